// A bound of a convolution's results, known before they are, from which those who write them as planes take the scale.
//
// What:     |y| <= max |x| * max over oc of (sum over fh, fw, ic of |w[oc, fh, fw, ic]|) + max |b|,
//           written into the header of y (operand_header.cuh)
// Source:   Hoelder's inequality
// Layout:   w: [filter][length]; bounds: bits of numbers, of which the largest bounds |x|
// Accuracy: sums in float32, with room for their rounding, and for that of operands with one plane. Filters that are
//           not finite do not count: their results are found where they are split
// Requires: length a multiple of 4; w aligned to 16 bytes
// Threads:  a block per filter. Maxima do not depend on an order. The last block to end writes the header, and `found`
//           as it was before the launch: 0
// Measured: not by itself; see alpha/cuda/conv/deferred.py
#include "lazy/planes.cuh"

struct Found {
  unsigned most;     // bits of the largest sum
  unsigned arrived;  // blocks
};

// measured: null, or a header whose bound is not known yet but as `bounds`, and is written
extern "C" __global__ void __launch_bounds__(THREADS)
    conv_bound(const float *w, const float *b, const unsigned *bounds, int count, OperandHeader *measured,
               OperandHeader *header, Found *found, int filters, int length) {
  __shared__ bool last;
  const float *filter = w + static_cast<i64>(blockIdx.x) * length;
  float sum = 0;
#pragma unroll 4
  for (int i = threadIdx.x * 4; i < length; i += THREADS * 4) {
    const Packet<float> piece = load16(filter + i);
#pragma unroll
    for (int e = 0; e < 4; e++) sum += fabsf(piece.v[e]);
  }
  sum = fold_group(sum, THREADS, Add());
  if (threadIdx.x == 0) {
    atomicMax(&found->most, finite_bits(sum));
    __threadfence();
    last = atomicInc(&found->arrived, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  unsigned most_x = 0, most_b = 0;
  for (int k = threadIdx.x; k < count; k += THREADS) most_x = LargerBits()(most_x, bounds[k]);
  for (int k = threadIdx.x; b && k < filters; k += THREADS) most_b = LargerBits()(most_b, finite_bits(b[k]));
  most_x = fold_group(most_x, THREADS, LargerBits());
  most_b = fold_group(most_b, THREADS, LargerBits());
  if (threadIdx.x != 0) return;
  const double most_w = __uint_as_float(atomicExch(&found->most, 0u));
  if (measured) measured->bound = most_x;
  *header = {1, 0, 0, bits_of_bound(most_w * __uint_as_float(most_x) * 1.001 + __uint_as_float(most_b))};
}
ALPHA_KERNEL(conv_bound)
