// What:    the gradient of softmax cross-entropy (loss.cu) in float32 as planes (planes.cu), in the memory that float32
//          would take: the products of the last linear layer read them, and nobody measures and splits them.
// Layout:  logits (rows, C); hi of all rows, then lo
// Scale:   known before, as the difference of a softmax and its target is between -1 and 1:  |dx| <= |g| * scale
// Flag:    as a split has it. A launch of gradient_stored follows, whose blocks end at once unless the flag is set:
//          memory then has the elements themselves.
// Requires: C a multiple of 8; one g for all rows
// Threads: as loss.cu, but a block takes every gridDim.x-th set of rows: each ends with three atomics on one header
// Measured: not by itself
#include "loss_gradient.cuh"
#include "lazy/planes.cuh"

extern "C" __global__ void gradient_bound(const float *g, float scale, OperandHeader *header) {
  *header = {1, 0, 0, bits_of_bound(fabs(double(*g) * scale))};
}
ALPHA_KERNEL(gradient_bound)

template <class Put>
__device__ __forceinline__ void gradient_of_rows(const LossRows<float> &all, i64 rows, const Put &put) {
  const int rows_at_once = THREADS / all.width;
  i64 row = i64(blockIdx.x) * rows_at_once + threadIdx.x / all.width;
  for (; row < rows; row += i64(gridDim.x) * rows_at_once) gradient_of_row<float, 4>(all, row, put);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
gradient_planes(const float *g, const float *logits, const void *labels, int long_labels, const float *stats, void *dx,
                OperandHeader *header, int *lost_ranges, i64 rows, i64 classes, int width, float smoothing,
                float scale) {
  PlaneWriter out(dx, rows * classes, header);
  gradient_of_rows({g, 0, logits, labels, long_labels, stats, rows, classes, width, smoothing, scale}, rows,
                   [&](const float (&v)[4], i64 i) { out.put(v, i); });
  out.finish(header, lost_ranges);
}
ALPHA_KERNEL(gradient_planes)

extern "C" __global__ void __launch_bounds__(THREADS, 4)
gradient_stored(const float *g, const float *logits, const void *labels, int long_labels, const float *stats, float *dx,
                const int *flag, i64 rows, i64 classes, int width, float smoothing, float scale) {
  if (!*flag) return;
  gradient_of_rows({g, 0, logits, labels, long_labels, stats, rows, classes, width, smoothing, scale}, rows,
                   [&](const float (&v)[4], i64 i) { store_floats(dx + i, v); });
}
ALPHA_KERNEL(gradient_stored)
