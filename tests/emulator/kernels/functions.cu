// y[i] = f(x[i]) for the functions of one instruction: [1 / x, 2^x, x rounded to tf32][n].
#include "ptx.cuh"

extern "C" __global__ void functions(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  y[i] = ptx::reciprocal(x[i]);
  y[n + i] = ptx::exp2(x[i]);
  y[2 * n + i] = __uint_as_float(ptx::to_tf32(x[i]));
}
ALPHA_KERNEL(functions)
