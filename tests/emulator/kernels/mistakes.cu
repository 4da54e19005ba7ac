// Kernels with one mistake each: what the emulator must catch. Every one compiles for the device.
#include "ptx.cuh"

extern "C" __global__ void write_past_end(float* x, int n) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
ALPHA_KERNEL(write_past_end)

extern "C" __global__ void read_past_end(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
ALPHA_KERNEL(read_past_end)

extern "C" __global__ void barrier_in_branch(float* x) {
  if (threadIdx.x < 40) {
    x[threadIdx.x] = 1;
    __syncthreads();
  }
}
ALPHA_KERNEL(barrier_in_branch)

extern "C" __global__ void two_barriers(float* x) {
  if (threadIdx.x % 2) __syncthreads();
  else {
    x[threadIdx.x] = 1;
    __syncthreads();
  }
}
ALPHA_KERNEL(two_barriers)

extern "C" __global__ void shuffle_in_branch(int* x) {
  if (threadIdx.x < 20) x[threadIdx.x] = __shfl_sync(0xffffffffu, (int)threadIdx.x, 3);
  else __syncwarp();
}
ALPHA_KERNEL(shuffle_in_branch)

extern "C" __global__ void uninitialised_shared(float* x) {
  __shared__ float s[64];
  if (threadIdx.x < 63) s[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x];
}
ALPHA_KERNEL(uninitialised_shared)

extern "C" __global__ void missing_barrier(float* x) {  // lane order within a warp hides it, other warps do not
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  x[threadIdx.x] = s[threadIdx.x ^ 32];
}
ALPHA_KERNEL(missing_barrier)

extern "C" __global__ void null_pointer(float* x) {
  float* p = (float*)(size_t)(threadIdx.x - 5);
  if (threadIdx.x == 5) *p = 1;
  x[threadIdx.x] = 0;
}
ALPHA_KERNEL(null_pointer)

extern "C" __global__ void index_past_array(float* x) {
  __shared__ float s[32], other[32];
  other[threadIdx.x] = 0;
  __syncwarp();
  s[threadIdx.x + 1] = 1;
  __syncwarp();
  x[threadIdx.x] = s[threadIdx.x] + other[threadIdx.x];
}
ALPHA_KERNEL(index_past_array)

extern "C" __global__ void misaligned(float* x) {
  DYNAMIC_SHARED(float, s);
  float2 *pairs = reinterpret_cast<float2 *>(s + 1);
  pairs[threadIdx.x] = make_float2(1, 2);
  __syncwarp();
  x[threadIdx.x] = s[threadIdx.x + 1];
}
ALPHA_KERNEL(misaligned)

extern "C" __global__ void past_dynamic_shared(float* x) {
  DYNAMIC_SHARED(float, s);
  s[threadIdx.x] = x[threadIdx.x];
}
ALPHA_KERNEL(past_dynamic_shared)

extern "C" __global__ void overlapping_blocks(float* x) { x[blockIdx.x * (blockDim.x - 1) + threadIdx.x] = 1; }
ALPHA_KERNEL(overlapping_blocks)
