// C = A B^T on tensor cores: A [M][K], B [N][K] in bf16, fp16 or fp32 (as tf32), C fp32. Tile 64 x 64, 4 warps of
// 32 x 32. Shared rows are 64 bytes: 16-byte chunk c of row r sits at c ^ (r / 2 % 4), free of bank conflicts.
#include "ptx_more.cuh"
constexpr int ROW = 64, TILE = 64;  // bytes of K per row and stage; rows per tile

template <int FORMAT>
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (FORMAT == 0) ptx::mma_f16(d, a, b);
  else if constexpr (FORMAT == 1) ptx::mma_bf16(d, a, b);
  else ptx::mma_tf32(d, a, b);
}
template <int FORMAT>
INLINE void matmul(const char* A, const char* B, float* C, int N, int row_bytes) {
  __shared__ __align__(128) char As[2][TILE][ROW], Bs[2][TILE][ROW];
  const int t = threadIdx.x, lane = t % 32, wm = t / 64 * 32, wn = t / 32 % 2 * 32;
  auto load = [&](int step, int stage) {
    for (int i = t; i < TILE * ROW / 16; i += 128) {
      int r = i / 4, c = i % 4, to = (c ^ (r / 2 % 4)) * 16;
      ptx::cp_async<16>(&As[stage][r][to], A + (size_t)(blockIdx.y * TILE + r) * row_bytes + step * ROW + c * 16);
      ptx::cp_async<16>(&Bs[stage][r][to], B + (size_t)(blockIdx.x * TILE + r) * row_bytes + step * ROW + c * 16);
    }
    ptx::cp_async_commit();
  };
  float acc[2][4][4] = {};  // [16-row block][8-column block][fragment]
  load(0, 0);
  for (int s = 0; s < row_bytes / ROW; s++) {
    ptx::cp_async_wait<0>();
    __syncthreads();  // stage s has landed, and everyone has left stage s - 1
    if ((s + 1) * ROW < row_bytes) load(s + 1, (s + 1) % 2);
#pragma unroll
    for (int k = 0; k < 2; k++) {  // 32 bytes of K each
      unsigned a[2][4], b[4][2];
      for (int i = 0; i < 2; i++) {
        int r = wm + i * 16 + lane % 16, c = 2 * k + lane / 16;
        ptx::ldmatrix_x4(a[i], &As[s % 2][r][(c ^ (r / 2 % 4)) * 16]);
      }
      for (int j = 0; j < 4; j++) {
        int r = wn + j * 8 + lane % 8, c = 2 * k + lane / 8 % 2;
        ptx::ldmatrix_x2(b[j], &Bs[s % 2][r][(c ^ (r / 2 % 4)) * 16]);
      }
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) mma<FORMAT>(acc[i][j], a[i], b[j]);
    }
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int e = 0; e < 4; e++)
        C[(size_t)(blockIdx.y * TILE + wm + i * 16 + lane / 4 + e / 2 * 8) * N + blockIdx.x * TILE + wn + j * 8 +
          lane % 4 * 2 + e % 2] = acc[i][j][e];
}
#define MATMUL(name, format) \
  extern "C" __global__ void __launch_bounds__(128) \
      name(const char* A, const char* B, float* C, int N, int row_bytes) { \
    matmul<format>(A, B, C, N, row_bytes); \
  } \
  ALPHA_KERNEL(name)
MATMUL(matmul_f16, 0)
MATMUL(matmul_bf16, 1)
MATMUL(matmul_tf32, 2)
