// What:    batch norm over the rows of a (rows, C) matrix (N, H, W flattened), with optional residual and relu
//          forward   y = relu((x - mean) * scale + beta + residual),  scale = gamma * istd,  istd = 1 / sqrt(var + eps)
//          backward  dx = scale * v + (x - mean) * slope + offset,  v = g where relu passed, else 0
//                    dbeta = sum(v), dgamma = istd * sum(v * (x - mean)), offset = -scale * dbeta / rows,
//                    slope = -scale * istd * dgamma / rows
// Source:  arXiv 1502.03167, Algorithms 1 and 2; the merging of variances: Chan, Golub, LeVeque.
// Layout:  rows are contiguous; a piece is 16 bytes of a row, or 1 element where C is not a multiple of that.
// Passes:  statistics (or sums) per chunk of rows, partial[quantity][C][chunks]; a finalize kernel, a block per
//          channel (of counted statistics per eight), in double; the pass that writes, beginning where the first one
//          ended: that is still in the cache.
//          Where the kernel that wrote x has counted statistics (tile_statistics.cuh), the first pass is left out.
// Accuracy: a thread takes 4 rows at a time, subtracts their mean before it squares, and merges by Chan's formula.
// Mask:    made again from x by `standardized`, the expression of the forward pass, so both round alike.
// Requires: 16-byte aligned tensors.
// Threads: a thread keeps its columns, and with them its parameters, while it walks down the rows (reduce.cuh).
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): training 90 %, inference 92 %, gradient 93 %
#include "channel_norm.cuh"
#include "lazy/planes.cuh"

// A bound of |y|: |x - mean| * istd <= sqrt(rows - 1), as M numbers of mean 0 and variance 1 have it.
struct Bound {
  const float *gamma, *beta;
  const unsigned *residual;  // bits of what no |residual| exceeds
  OperandHeader *header;     // where it goes; or null

  // By block 0: makes the header ready.
  INLINE void write(i64 rows, unsigned channels) const {
    if (!header || blockIdx.x) return;
    unsigned most = 0;
    for (unsigned c = threadIdx.x; c < channels; c += THREADS) {
      const double deviation = (gamma ? fabs(double(gamma[c])) : 1.0) * sqrt(double(rows - 1));
      most = LargerBits()(most, bits_of_bound(deviation + (beta ? fabs(double(beta[c])) : 0.0) +
                                              (residual ? __uint_as_float(*residual) : 0.0f)));
    }
    most = fold_group(most, THREADS, LargerBits());
    if (threadIdx.x) return;
    *header = {};
    header->bound = most;
  }
};

// What the kernel that wrote x has counted of a channel, slot by slot; or the channel itself, row by row.
template <bool COUNTED> struct Slots {
  const float *first;
  i64 channels;
  INLINE PartMoments operator()(i64 j) const {
    if (!COUNTED) return {first[j * channels], 0, 1};
    return {first[3 * j * channels], first[(3 * j + 1) * channels], first[(3 * j + 2) * channels]};
  }
};

// What the statistics of a batch make of a channel.
template <class P> struct Outcome {
  P *running_mean, *running_var;
  float *mean, *istd;
  float momentum, eps;

  // By one thread, for channel c
  INLINE void write(const MeanAndVariance &of, i64 rows, i64 c) const {
    mean[c] = float(of.mean);
    istd[c] = float(1 / sqrt(of.var + eps));
    if (!running_mean) return;
    const double old_mean = to_float(running_mean[c]), old_var = to_float(running_var[c]);
    running_mean[c] = from_float<P>(float(old_mean + momentum * (of.mean - old_mean)));
    running_var[c] = from_float<P>(float(old_var + momentum * (of.var * rows / (rows - 1) - old_var)));
  }
};

template <class P>
INLINE void finalize_statistics(const float *partial, const Walk &w, const Outcome<P> &to, const Bound &y) {
  const i64 c = blockIdx.x, channels = gridDim.x;
  const Chunks chunks{partial + c * w.chunks, partial + (channels + c) * w.chunks, w};
  const MeanAndVariance of(chunks, w.chunks, w.rows, threadIdx.x, THREADS, FoldGroup<1>());
  if (threadIdx.x == 0) to.write(of, w.rows, c);
  y.write(w.rows, gridDim.x);
}

// A block takes SIDE channels, and of each THREADS / SIDE slots at once: neighbours read the 32 bytes of a sector.
// x: read where nothing was counted, as planes did not hold what it is made of: float32. That is slow, and rare.
template <class P>
INLINE void finalize_tiles(const float *parts, int count, const float *x, i64 rows, int channels, const Outcome<P> &to,
                           const Bound &y) {
  constexpr int SIDE = 8;
  const int c = blockIdx.x * SIDE + threadIdx.x % SIDE, lane = threadIdx.x / SIDE, there = min(c, channels - 1);
  MeanAndVariance of(Slots<true>{parts + there, channels}, count, rows, lane, THREADS / SIDE, FoldGroup<SIDE>());
  if (__syncthreads_or(of.counted == 0)) {
    const MeanAndVariance again(Slots<false>{x + there, channels}, rows, rows, lane, THREADS / SIDE, FoldGroup<SIDE>());
    if (of.counted == 0) of = again;
  }
  if (lane == 0 && c < channels) to.write(of, rows, c);
  y.write(rows, channels);
}

template <class P>
INLINE void running_statistics(const P *running_mean, const P *running_var, float *mean, float *istd, int channels,
                               float eps) {
  const int c = blockIdx.x * THREADS + threadIdx.x;
  if (c >= channels) return;
  mean[c] = to_float(running_mean[c]);
  istd[c] = float(1 / sqrt(to_float(running_var[c]) + double(eps)));
}

// dgamma, dbeta, coefficients[2][C] = slope, offset of channel blockIdx.x, and the total of dx, to which x - mean adds
// nothing; and, if there is a header, a bound of |dx| from that of |v|, partial[2]
template <class P>
INLINE void finalize_sums(const float *__restrict__ partial, const P *gamma, const float *istd, float *dgamma,
                          float *dbeta, float *total, float *coefficients, i64 rows, int chunks,
                          OperandHeader *header) {
  const i64 c = blockIdx.x, channels = gridDim.x;
  double sum = 0, dot = 0;
  for (int k = threadIdx.x; k < chunks; k += THREADS) {
    sum += partial[c * chunks + k];
    dot += partial[(channels + c) * chunks + k];
  }
  sum = fold_group(sum, THREADS, Add());
  dot = fold_group(dot, THREADS, Add()) * istd[c];
  float most = 0;
  if (header) {
    for (int k = threadIdx.x; k < chunks; k += THREADS) most = fmaxf(most, partial[(2 * channels + c) * chunks + k]);
    most = fold_group(most, THREADS, Larger());
  }
  if (threadIdx.x) return;
  const double scale = (gamma ? double(to_float(gamma[c])) : 1.0) * istd[c];
  dgamma[c] = float(dot);
  dbeta[c] = float(sum);
  coefficients[c] = float(-scale * istd[c] * dot / rows);
  const float offset = coefficients[channels + c] = float(-scale * sum / rows);
  total[c] = float(scale * sum + double(offset) * rows);
  if (header)
    atomicMax(&header->bound,
              bits_of_bound(fabs(scale) * (most + (fabs(sum) + fabs(dot) * sqrt(double(rows - 1))) / rows)));
}

// ---- entries, see PIECE_KERNELS

// Blocks per multiprocessor: what registers allow without spilling; the lanes of 16-bit pieces need more of them.
// header: of y or dx, for a bound of it; or null.
// flag: nothing is written where it is 0, as planes are there already (batch_norm_planes.cu); or null.
#define FEW (THREADS, 4)
#define BOUNDS(N) (THREADS, N > 4 ? 3 : 4)
#define WALKING(T, suffix, N) \
  ALPHA_ENTRY(statistics##suffix, FEW, (const T *x, float *partial, const Walk w), \
              statistics<T, N>(x, partial, w, Place(w))) \
  ALPHA_ENTRY(apply##suffix, BOUNDS(N), \
              (const T *x, const Norm<T> norm, T *y, float floor, const int *flag, const Walk w), \
              if (flag && !*flag) return; \
              apply<T, N>(x, Nothing(), norm, Results<T, N>{y}, floor, w, BACKWARDS, 1)) \
  ALPHA_ENTRY(apply_add##suffix, BOUNDS(N), (const T *x, const T *residual, const Norm<T> norm, T *y, float floor, \
                                             const Walk w), \
              const Elements<T, N> more{residual}; \
              apply<T, N>(x, more, norm, Results<T, N>{y}, floor, w, BACKWARDS, 1)) \
  BACKWARD(T, suffix, N, false) \
  BACKWARD(T, _relu##suffix, N, true)
#define BACKWARD(T, suffix, N, RELU) \
  ALPHA_ENTRY(sums##suffix, SUMMERS, (const Pitched<T> g, const T *x, const Norm<T> norm, float *partial, \
                                        const Walk w), \
              sums<T, N, RELU>(g, x, norm, partial, w, Place(w))) \
  ALPHA_ENTRY(gradient##suffix, BOUNDS(N), (const Pitched<T> g, const T *x, const Norm<T> norm, \
                                            const float *coefficients, T *dx, const int *flag, const Walk w), \
              if (flag && !*flag) return; \
              gradient<T, N, RELU>(g, x, norm, coefficients, Results<T, N>{dx}, w, BACKWARDS, w.columns * N, 1))
#define PARAMETERS(P, dtype) \
  ALPHA_ENTRY(finalize_statistics_##dtype, FEW, \
              (const float *partial, const Walk w, const Outcome<P> to, const Bound y), \
              finalize_statistics(partial, w, to, y)) \
  ALPHA_ENTRY(finalize_tiles_##dtype, FEW, \
              (const float *parts, int slots, const float *x, i64 rows, int channels, const Outcome<P> to, \
               const Bound y), \
              finalize_tiles(parts, slots, x, rows, channels, to, y)) \
  ALPHA_ENTRY(running_statistics_##dtype, FEW, \
              (const P *running_mean, const P *running_var, float *mean, float *istd, int channels, float eps), \
              running_statistics(running_mean, running_var, mean, istd, channels, eps)) \
  ALPHA_ENTRY(finalize_sums_##dtype, FEW, (const float *partial, const P *gamma, const float *istd, float *dgamma, \
                                           float *dbeta, float *total, float *coefficients, i64 rows, int chunks, \
                                           OperandHeader *header), \
              finalize_sums(partial, gamma, istd, dgamma, dbeta, total, coefficients, rows, chunks, header))
PIECE_KERNELS(WALKING)
FLOAT_KERNELS(PARAMETERS)

// The bound alone, where the statistics are known: y is made again.
ALPHA_ENTRY(apply_bound, FEW, (i64 rows, int channels, const Bound y), y.write(rows, channels))
