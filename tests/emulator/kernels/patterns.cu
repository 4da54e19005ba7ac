// Correct uses of shared memory that a careless race check would blame: the checked build stays silent on all of it.
#include "ptx.cuh"
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(256) patterns(const float* x, float* y) {  // block 256, x[1024]
  __shared__ __half halves[256];        // neighbours share a 4-byte word
  __shared__ unsigned char bytes[256];  // four threads share one
  __shared__ float part[8][32];         // [warp][lane], ordered by warp operations alone
  __shared__ float tile[32][33];        // transposed through shared memory
  __shared__ unsigned histogram[16];    // atomics without barriers between them
  __shared__ float broadcast, pair[2];
  const int t = threadIdx.x, lane = t % 32, warp = t / 32;

  if (t < 16) histogram[t] = 0;
  halves[t] = __float2half(x[t]);
  float sum = __half2float(halves[t]);  // its own bytes need no barrier
  bytes[t] = t;
  bytes[t] = bytes[t] + 1;
  __syncthreads();
  atomicAdd(&histogram[t * 7 % 16], 1u);
  sum += __half2float(halves[255 - t]) + bytes[255 - t];

  part[warp][lane] = sum;
  __syncwarp();
  for (int d = 16; d; d /= 2) {
    if (lane < d) part[warp][lane] += part[warp][lane + d];
    __syncwarp();
  }
  sum = part[warp][0];  // all lanes read, then one overwrites
  __syncwarp();
  if (lane == 5) part[warp][0] = 1;
  __syncwarp();
  sum += part[warp][0];

  for (int r = warp; r < 32; r += 8) tile[r][lane] = x[r * 32 + lane];
  __syncthreads();
  for (int r = warp; r < 32; r += 8) sum += tile[lane][r];
  for (int i = 0; i < 3; i++) {  // one writes, all read, again and again
    if (t == i) broadcast = i;
    __syncthreads();
    sum += broadcast;
    __syncthreads();
  }
  if (warp < 2) {  // two warps exchange through a barrier of their own
    if (lane == 0) pair[warp] = sum;
    ptx::bar_sync(1, 64);
    sum += pair[1 - warp];
  }
  y[blockIdx.x * 256 + t] = sum + histogram[t % 16];
}
ALPHA_KERNEL(patterns)
