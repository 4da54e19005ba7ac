// C = A B, row-major float32, 64 x 64 tiles, 4 x 4 results per thread, block (16, 16).
// Requires M, N multiples of 64 and K of 16. A_PAD avoids the bank conflict of a column write.
#include "ptx.cuh"
constexpr int BM = 64, BN = 64, BK = 16, A_PAD = 4;

extern "C" __global__ void __launch_bounds__(256) matmul_ffma(const float* __restrict__ A, const float* __restrict__ B,
                                                              float* __restrict__ C, int M, int N, int K, float alpha) {
  __shared__ __align__(16) float As[BK][BM + A_PAD];  // transposed: a thread's rows are contiguous
  __shared__ __align__(16) float Bs[BK][BN];
  const int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
  const float* a = A + (size_t)(blockIdx.y * BM + t / 4) * K + t % 4 * 4;
  const float* b = B + (size_t)(t / 16) * N + blockIdx.x * BN + t % 16 * 4;
  float acc[4][4] = {};
  for (int k = 0; k < K; k += BK) {
    float4 va = __ldg((const float4*)(a + k));
    As[t % 4 * 4 + 0][t / 4] = va.x;
    As[t % 4 * 4 + 1][t / 4] = va.y;
    As[t % 4 * 4 + 2][t / 4] = va.z;
    As[t % 4 * 4 + 3][t / 4] = va.w;
    *(float4*)&Bs[t / 16][t % 16 * 4] = __ldg((const float4*)(b + (size_t)k * N));
    __syncthreads();
#pragma unroll
    for (int kk = 0; kk < BK; kk++) {
      float4 x = *(const float4*)&As[kk][ty * 4], y = *(const float4*)&Bs[kk][tx * 4];
      const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] = fmaf(xs[i], ys[j], acc[i][j]);
    }
#ifndef BUG_NO_BARRIER  // the tests build this bug on purpose
    __syncthreads();
#endif
  }
  for (int i = 0; i < 4; i++)
    *(float4*)(C + (size_t)(blockIdx.y * BM + ty * 4 + i) * N + blockIdx.x * BN + tx * 4) =
        make_float4(alpha * acc[i][0], alpha * acc[i][1], alpha * acc[i][2], alpha * acc[i][3]);
}
ALPHA_KERNEL(matmul_ffma)
