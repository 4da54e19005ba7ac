// Sum, maximum and count of positives of x[0..n), one partial result per block; the block is a multiple of 32.
#include "ptx.cuh"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void reduce(const float* __restrict__ x, float* __restrict__ sum, float* __restrict__ largest,
                                  int* positives, int n) {
  __shared__ float part[2][32];  // [sum, max][warp]
  float s = 0, m = -INFINITY;
  int p = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    s += x[i];
    m = fmaxf(m, x[i]);
    p += x[i] > 0;
  }
  for (int d = 16; d; d /= 2) {
    s += __shfl_down_sync(0xffffffffu, s, d);
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) {
    part[0][warp] = s;
    part[1][warp] = m;
  }
  __syncthreads();
  if (warp == 0) {
    const bool mine = lane < blockDim.x / 32;
    s = mine ? part[0][lane] : 0;
    m = mine ? part[1][lane] : -INFINITY;
    for (int d = 16; d; d /= 2) {
      s += __shfl_down_sync(0xffffffffu, s, d);
      m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));
    }
    if (lane == 0) {
      sum[blockIdx.x] = s;
      largest[blockIdx.x] = m;
    }
  }
  unsigned any = __ballot_sync(0xffffffffu, p > 0);
  for (int d = 16; d; d /= 2) p += __shfl_xor_sync(0xffffffffu, p, d);
  if (lane == 0 && any) atomicAdd(positives, p);
}
ALPHA_KERNEL(reduce)

// y = a x + b over 16-bit values: conversions and packed arithmetic.
extern "C" __global__ void axpb_half(const __half2* x, __half2* y, const __nv_bfloat16* u, __nv_bfloat16* v, float a,
                                     float b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) y[i] = __hfma2(x[i], __float2half2_rn(a), __float2half2_rn(b));
  if (i < n) v[i] = __float2bfloat16(fmaf(__bfloat162float(u[i]), a, b));
}
ALPHA_KERNEL(axpb_half)
