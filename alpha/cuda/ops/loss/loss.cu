// What:    softmax cross-entropy over rows of logits with integer labels and label smoothing s
//          loss[r] = lse[r] - (1 - s) * x[r, label] - s / C * sum_c x[r, c],   lse = log sum_c exp(x[r, c])
//          dx[r, c] = g[r] * scale * (exp(x[r, c] - lse[r]) - (1 - s) * [c == label] - s / C)
// Source:  label smoothing: arXiv 1512.00567
// Layout:  logits (rows, C); a piece is 16 bytes of a row, or 1 element where C is not a multiple of that. Labels are
//          int64 (long_labels), or int32. stats (3, rows): the largest logit, lse - that, 1 - softmax at the label.
// Passes:  a row stays in registers between the maximum and the sum if HELD pieces per thread suffice, else it is read
//          again, from the cache. Blocks store the sum of their rows' losses and the number of rows that count; the
//          last block to do so adds these up, in the order of the blocks whichever it is.
// Labels:  the ignored one: loss, stats and gradient of the row are 0, and the mean leaves it out.
//          Others outside [0, C): the row's loss and gradient are NaN.
// Accuracy: the largest logit is subtracted before exp, so nothing overflows, and kept apart from the rest
//          of lse. What other classes than the label have is added up by itself. So no digits are lost.
// Requires: 16-byte aligned tensors.
// Threads: `width` threads, up to a warp or a whole block, per row; a block of `forward` takes every gridDim.x-th set
//          of THREADS / width rows.
// Measured: benchmarks/results/h100/bandwidth.jsonl
#include "ops/softmax/row_pieces.cuh"

struct Labels {
  const void *labels;
  int long_labels;
  INLINE i64 operator[](i64 row) const {
    return long_labels ? static_cast<const i64 *>(labels)[row] : static_cast<const int *>(labels)[row];
  }
};

struct LossRows {
  i64 rows, classes;
  int width;  // threads of a row
  float smoothing;
  i64 ignored;  // label
};

__device__ unsigned blocks_done;  // of the launch in progress; 0 before and after it

// each[row], or loss = the sum over all rows, with `mean` by their count; one of them is null. sums: two of each block.
template <class T, int N>
INLINE void forward(const T *__restrict__ logits, const Labels &labels, T *each, T *loss, float *sums, float *stats,
                    float *count, const LossRows &shape, int mean) {
  const auto [rows, classes, width, smoothing, ignored] = shape;
  const int rows_at_once = THREADS / width, lane = threadIdx.x % width;
  double mine = 0, kept = 0;  // of many rows
  for (i64 first = i64(blockIdx.x) * rows_at_once; first < rows; first += i64(gridDim.x) * rows_at_once) {
    const i64 row = first + threadIdx.x / width;
    const T *x = logits + row * classes;
    const bool leads = lane == 0 && row < rows;
    const i64 label = row < rows ? labels[row] : -1;
    RowPieces<T, N> pieces(x, lane, width, row < rows ? classes / N : 0);
    const float largest = pieces.fold(-INFINITY, [](float v, float, i64) { return v; }, Larger());
    const bool known = 0 <= label && label < classes;
    T at_label;  // on its way while the sum is made
    if (known && leads) at_label = x[label];
    const unsigned labelled = known ? unsigned(label) : ~0u;
    const auto share = [&](float v, float, unsigned c) { return c == labelled ? 0 : exp_for<T>(v - largest); };
    const float others = pieces.fold(0, share, Add());
    float below = 0;
    if (smoothing > 0) below = pieces.fold(0, [&](float v, float, i64) { return v - largest; }, Add());
    if (!leads) continue;
    const float away = known ? to_float(at_label) - largest : NAN, sum = known ? others + exp_for<T>(away) : others;
    const float log_sum = away == 0 ? log1pf(others) : logf(sum);
    float v = log_sum - (1 - smoothing) * away;
    if (smoothing > 0) v -= smoothing * (below / classes);
    const bool counts = label != ignored;
    stats[row] = counts ? largest : 0;
    stats[rows + row] = counts ? log_sum : 0;
    stats[2 * rows + row] = counts ? others / sum : 0;
    v = counts ? v : 0;
    if (each) each[row] = from_float<T>(v);
    mine += v;
    kept += counts;
  }
  mine = fold_group(mine, THREADS, Add());
  kept = fold_group(kept, THREADS, Add());
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = float(mine);
    sums[gridDim.x + blockIdx.x] = float(kept);
  }
  if (!arrives_last(&blocks_done, gridDim.x)) return;
  double total = 0, all = 0;
  for (unsigned k = threadIdx.x; k < gridDim.x; k += THREADS) {
    total += sums[k];
    all += sums[gridDim.x + k];
  }
  total = fold_group(total, THREADS, Add());
  all = fold_group(all, THREADS, Add());
  if (threadIdx.x) return;
  *count = float(all);
  if (loss) *loss = from_float<T>(float(mean ? total / all : total));
}

// What the thread has of a row of dx.
template <class T, int N>
INLINE void backward(const T *g, int g_step, const T *logits, const Labels &labels, const float *stats,
                     const float *count, T *dx, const LossRows &t, int mean) {
  const i64 row = i64(blockIdx.x) * (THREADS / t.width) + threadIdx.x / t.width;
  if (row >= t.rows) return;
  const i64 label = labels[row];
  const float off = t.smoothing / t.classes, largest = stats[row], log_sum = stats[t.rows + row],
              at_label = t.smoothing - stats[2 * t.rows + row];
  const bool ignored = label == t.ignored, known = 0 <= label && label < t.classes;
  const float factor = known ? to_float(g[row * g_step]) * (mean ? 1 / *count : 1) : NAN;
  const unsigned labelled = known ? unsigned(label) : ~0u;
  RowPieces<T, N> pieces(logits + row * t.classes, threadIdx.x % t.width, t.width, t.classes / N);
  pieces.map(dx + row * t.classes, [&](float x, float, unsigned c) {
    const float v = c == labelled ? at_label : exp_for<T>(x - largest - log_sum);
    return ignored ? 0 : factor * (v - off);
  });
}

#define PIECES(T, suffix, N) \
  ALPHA_ENTRY(forward##suffix, (THREADS, 3), (const T *logits, const Labels labels, T *each, T *loss, \
                                              float *sums, float *stats, float *count, const LossRows rows, int mean), \
              forward<T, N>(logits, labels, each, loss, sums, stats, count, rows, mean)) \
  ALPHA_ENTRY(backward##suffix, (THREADS, 4), \
              (const T *g, int g_step, const T *logits, const Labels labels, const float *stats, \
               const float *count, T *dx, const LossRows rows, int mean), \
              backward<T, N>(g, g_step, logits, labels, stats, count, dx, rows, mean))
PIECE_KERNELS(PIECES)
