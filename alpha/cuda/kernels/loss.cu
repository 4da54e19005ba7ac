// What:    softmax cross-entropy over rows of logits with integer labels and label smoothing s
//          loss[r] = lse[r] - (1 - s) * x[r, label] - s / C * sum_c x[r, c],   lse = log sum_c exp(x[r, c])
//          dx[r, c] = g[r] * scale * (exp(x[r, c] - lse[r]) - (1 - s) * [c == label] - s / C)
//          mask[r, c] = (c == label[r])
// Layout:  logits (rows, C); a piece is 16 bytes of a row, or 1 element where C is not a multiple of that. Labels are
//          int64 (long_labels), or int32.
// Labels:  outside [0, C): the row's loss and gradient are NaN, its mask is false, first_bad is the first such row.
// Accuracy: the largest logit is subtracted before exp, so nothing overflows; the second read comes from the cache.
// Requires: 16-byte aligned tensors.
// Threads: `width` threads, up to a warp or a whole block, per row.
#include "reduce.cuh"

__device__ __forceinline__ i64 label_of(const void *labels, int long_labels, i64 row) {
  return long_labels ? static_cast<const i64 *>(labels)[row] : static_cast<const int *>(labels)[row];
}

template <class T, int N>
__device__ __forceinline__ void forward(const T *__restrict__ logits, const void *labels, int long_labels, T *loss,
                                        float *block_loss, float *lse, i64 rows, i64 classes, int width,
                                        float smoothing) {
  const i64 row = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;
  const int lane = threadIdx.x % width;
  const T *x = logits + row * classes;
  Pieces<N, T> pieces(x, lane, width, row < rows ? classes / N : 0);
  float largest = -INFINITY;
  pieces.each([&](const auto &piece, unsigned) {
#pragma unroll
    for (int k = 0; k < N; k++) largest = fmaxf(largest, to_float(piece.v[k]));
  });
  largest = fold_group(largest, width, Larger());
  Pair s = {0, 0};  // of exp(x - largest), of x - largest
  pieces.each([&](const auto &piece, unsigned) {
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float below = to_float(piece.v[k]) - largest;
      s.sum += expf(below);
      s.dot += below;
    }
  });
  s = fold_group(s, width, MergePairs());
  float v = 0;
  if (lane == 0 && row < rows) {
    const float log_sum = logf(s.sum);
    const i64 label = label_of(labels, long_labels, row);
    v = NAN;
    if (0 <= label && label < classes) v = log_sum - (1 - smoothing) * (to_float(x[label]) - largest);
    if (smoothing > 0) v -= smoothing * (s.dot / classes);
    lse[row] = largest + log_sum;
    if (loss) loss[row] = from_float<T>(v);
  }
  if (loss) return;
  v = fold_group(v, THREADS, Add());
  if (threadIdx.x == 0) block_loss[blockIdx.x] = v;
}

// loss = sum of the blocks' losses / divisor; one block
template <class T>
__device__ __forceinline__ void total(const float *__restrict__ block_loss, T *loss, i64 blocks, float divisor) {
  double s = 0;
#pragma unroll 16
  for (i64 k = threadIdx.x; k < blocks; k += THREADS) s += block_loss[k];
  s = fold_group(s, THREADS, Add());
  if (threadIdx.x == 0) *loss = from_float<T>(float(s / divisor));
}

template <class T, int N>
__device__ __forceinline__ void backward(const T *g, int g_step, const T *__restrict__ logits, const void *labels,
                                         int long_labels, const float *lse, T *__restrict__ dx, i64 rows, i64 classes,
                                         int width, float smoothing, float scale) {
  const i64 row = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;
  if (row >= rows) return;
  const T *x = logits + row * classes;
  const i64 label = label_of(labels, long_labels, row);
  const float off = smoothing / classes, shift = lse[row];
  const float factor = 0 <= label && label < classes ? to_float(g[row * g_step]) * scale : NAN;
#pragma unroll 4
  for (i64 c = threadIdx.x % width * N; c < classes; c += width * N) {
    auto piece = load_piece<N>(x + c);
#pragma unroll
    for (int k = 0; k < N; k++) {
      const float q = c + k == label ? 1 - smoothing + off : off;
      piece.v[k] = from_float<T>(factor * (expf(to_float(piece.v[k]) - shift) - q));
    }
    store_piece(dx + row * classes + c, piece);
  }
}

#define ENTRY_OF(N, name) extern "C" __global__ void __launch_bounds__(THREADS, N > 4 ? 2 : 3) name
#define ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 4) name
#define PIECES(T, suffix, N) \
  ENTRY_OF(N, forward##suffix)(const T *logits, const void *labels, int long_labels, T *loss, float *block_loss, \
                               float *lse, i64 rows, i64 classes, int width, float smoothing) { \
    forward<T, N>(logits, labels, long_labels, loss, block_loss, lse, rows, classes, width, smoothing); \
  } \
  ALPHA_KERNEL(forward##suffix) \
  ENTRY(backward##suffix)(const T *g, int g_step, const T *logits, const void *labels, int long_labels, \
                          const float *lse, T *dx, i64 rows, i64 classes, int width, float smoothing, float scale) { \
    backward<T, N>(g, g_step, logits, labels, long_labels, lse, dx, rows, classes, width, smoothing, scale); \
  } \
  ALPHA_KERNEL(backward##suffix)
#define KERNELS(T, dtype) \
  PIECES(T, _##dtype, LANES<T>) \
  PIECES(T, _single_##dtype, 1) \
  ENTRY(total_##dtype)(const float *block_loss, T *loss, i64 blocks, float divisor) { \
    total<T>(block_loss, loss, blocks, divisor); \
  } \
  ALPHA_KERNEL(total_##dtype)
FLOAT_KERNELS(KERNELS)

extern "C" __global__ void __launch_bounds__(THREADS)
    label_mask(const void *labels, int long_labels, unsigned char *mask, i64 *first_bad, i64 rows, i64 classes) {
  const i64 row = i64(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const i64 label = label_of(labels, long_labels, row);
  for (i64 c = threadIdx.x % 32; c < classes; c += 32) mask[row * classes + c] = c == label;
  if (threadIdx.x % 32 == 0 && (label < 0 || label >= classes)) atomicMin(first_bad, row);
}
ALPHA_KERNEL(label_mask)
