// What:     along an axis of n elements:  softmax  y = e^(x - m) / s,  log_softmax  y = x - m - ln(s),
//           m = max(x), s = sum(e^(x - m));  their gradients  y * (g - sum(g * y))  and  g - e^y * sum(g)
// Layout:   x as (outer, n, inner), C-contiguous; any inner. A row is what lies along the axis; a piece of it is 16 bytes,
//           or 1 element where n is not a multiple of that, or inner is not 1.
// Passes:   the maximum, the sum, and y; of a gradient the sum and dx. A short row stays in registers (row_pieces.cuh).
// Accuracy: long sums keep what rounding leaves out of them, so that the length of the axis costs no digits.
// Requires: 16-byte aligned tensors
// Threads:  inner = 1: `width` threads, up to a warp or the whole block, per row.
//           else: a thread per row, so that neighbours read neighbouring elements.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): softmax 95 %, gradient 98 %
#include <float.h>

#include "ops/softmax/row_pieces.cuh"

// y and, of a gradient, b too: the rows that lie as a does
template <class T, int N, bool LOG, bool GRADIENT>
INLINE void along_axis(const T *a, const T *b, T *y, i64 rows, i64 n, i64 inner, int width) {
  const i64 row = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;
  const i64 start = inner == 1 ? row * n : row / inner * n * inner + row % inner;
  RowPieces<T, N, GRADIENT> pieces(a + start, threadIdx.x % width, width, row < rows ? n / N : 0,
                                   N * inner, b + start);
  if constexpr (GRADIENT) {
    const float sum = pieces.fold(0, [](float g, float y, i64) { return LOG ? g : g * y; }, Add());
    pieces.map(y + start, [&](float g, float y, i64) { return LOG ? g - exp_for<T>(y) * sum : y * (g - sum); });
  } else {
    // A row may be -inf alone. One with inf has a sum of NaN, as inf - inf has.
    const float max = pieces.fold(-FLT_MAX, [](float x, float, i64) { return x; }, Larger());
    const float sum = pieces.fold(0, [&](float x, float, i64) { return exp_for<T>(x - max); }, Add());
    const float last = LOG ? logf(sum) : 1 / sum;
    pieces.map(y + start, [&](float x, float, i64) { return LOG ? x - max - last : exp_for<T>(x - max) * last; });
  }
}

#define ALONG_AXIS(name, T, N, LOG, GRADIENT) \
  ALPHA_ENTRY(name, (THREADS, 1), (const T *a, const T *b, T *y, i64 rows, i64 n, i64 inner, int width), \
              along_axis<T, N, LOG, GRADIENT>(a, b, y, rows, n, inner, width))
#define KERNELS(T, suffix, N) \
  ALONG_AXIS(softmax##suffix, T, N, false, false) \
  ALONG_AXIS(log_softmax##suffix, T, N, true, false) \
  ALONG_AXIS(softmax_grad##suffix, T, N, false, true) \
  ALONG_AXIS(log_softmax_grad##suffix, T, N, true, true)
PIECE_KERNELS(KERNELS)
