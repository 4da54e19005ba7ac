// C = A B^T, bf16 or fp16, by TMA, mbarriers and wgmma: tile 64 x 64, a producer warp and one consumer warpgroup, 2 stages.
// Block 160: threads 0..127 multiply, thread 128 loads. Stages are 64 x 64 bf16 = 8 KiB per operand, 128-byte swizzle.
#include "ptx_more.cuh"
constexpr int STAGES = 2, TILE_BYTES = 64 * 128;

// A_MN: A is stored [K][M] instead of [M][K]; B_MN: B is stored [K][N] instead of [N][K].
template <bool BF16, int A_MN, int B_MN>
INLINE void matmul(const CUtensorMap& A, const CUtensorMap& B, const CUtensorMap& C, int K) {
  DYNAMIC_SHARED(char, smem);  // [STAGES][A, B][TILE_BYTES], then C: [64][64] fp32 as two halves
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const int steps = K / 64, x0 = blockIdx.x * 64, y0 = blockIdx.y * 64;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      ptx::mbarrier_init(&full[s], 1);
      ptx::mbarrier_init(&empty[s], 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (threadIdx.x >= 128) {  // producer
    if (threadIdx.x == 128)
      for (int k = 0; k < steps; k++) {
        const int s = k % STAGES;
        if (k >= STAGES) ptx::mbarrier_wait(&empty[s], k / STAGES % 2 ^ 1);
        ptx::mbarrier_arrive_expect(&full[s], 2 * TILE_BYTES);
        ptx::tma_load_2d(smem + (2 * s) * TILE_BYTES, A, A_MN ? y0 : k * 64, A_MN ? k * 64 : y0, &full[s]);
        ptx::tma_load_2d(smem + (2 * s + 1) * TILE_BYTES, B, B_MN ? x0 : k * 64, B_MN ? k * 64 : x0, &full[s]);
      }
    return;
  }
  float acc[32];
  for (int k = 0; k < steps; k++) {
    const int s = k % STAGES;
    ptx::mbarrier_wait(&full[s], k / STAGES % 2);
    const uint64_t a = ptx::wgmma_desc(smem + 2 * s * TILE_BYTES), b = ptx::wgmma_desc(smem + (2 * s + 1) * TILE_BYTES);
    ptx::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {  // 16 of K: 32 bytes along a row, or 16 rows of 128 bytes
      const uint64_t at_a = a + kk * (A_MN ? 128 : 2), at_b = b + kk * (B_MN ? 128 : 2);
      if (BF16) ptx::wgmma_n64_bf16<A_MN, B_MN>(acc, at_a, at_b, k + kk > 0);
      else ptx::wgmma_n64_f16<A_MN, B_MN>(acc, at_a, at_b, k + kk > 0);
    }
    ptx::wgmma_commit();
#ifndef BUG_NO_WGMMA_WAIT  // the tests build this bug on purpose
    ptx::wgmma_wait<0>();
#endif
    ptx::bar_sync(1, 128);
    if (threadIdx.x == 0) ptx::mbarrier_arrive(&empty[s]);
  }
#ifdef BUG_NO_WGMMA_WAIT
  ptx::wgmma_wait<0>();
#endif
  float* out = (float*)(smem + 2 * STAGES * TILE_BYTES);  // [2 halves of 32 columns][64 rows][32]
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 32; i++) {
    const int col = i / 4 * 8 + lane % 4 * 2 + i % 2;
    out[col / 32 * 2048 + (row + i / 2 % 2 * 8) * 32 + col % 32] = acc[i];
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(1, 128);
  if (threadIdx.x == 0) {
    ptx::tma_store_2d(C, out, x0, y0);
    ptx::tma_store_2d(C, out + 2048, x0 + 32, y0);
    ptx::bulk_commit();
    ptx::bulk_wait<0>();
  }
}
#define MAP const __grid_constant__ CUtensorMap
#define MATMUL(name, bf16, a_mn, b_mn) \
  extern "C" __global__ void __launch_bounds__(160) name(MAP A, MAP B, MAP C, int K) { \
    matmul<bf16, a_mn, b_mn>(A, B, C, K); \
  } \
  ALPHA_KERNEL(name)
MATMUL(matmul_bf16_nt, true, 0, 0)
MATMUL(matmul_bf16_nn, true, 0, 1)
MATMUL(matmul_bf16_tn, true, 1, 1)
MATMUL(matmul_f16_nt, false, 0, 0)
MATMUL(matmul_f16_nn, false, 0, 1)
MATMUL(matmul_f16_tn, false, 1, 1)
