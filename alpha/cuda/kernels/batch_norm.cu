// What:    batch norm over the rows of a (rows, C) matrix (N, H, W flattened), with optional residual and relu
//          forward   y = relu((x - mean) * scale + beta + residual),  scale = gamma * istd,  istd = 1 / sqrt(var + eps)
//          backward  dx = scale * v + (x - mean) * slope + offset,  v = g where relu passed, else 0
//                    dbeta = sum(v), dgamma = istd * sum(v * (x - mean)), offset = -scale * dbeta / rows,
//                    slope = -scale * istd * dgamma / rows
// Source:  arXiv 1502.03167, Algorithms 1 and 2; the merging of variances: Chan, Golub, LeVeque.
// Layout:  rows are contiguous; a piece is 16 bytes of a row, or 1 element where C is not a multiple of that.
// Passes:  statistics (or sums) per chunk of rows, partial[quantity][C][chunks]; a finalize kernel, a block per
//          channel, in double; the pass that writes, beginning where the first one ended: that is still in the cache.
// Accuracy: a thread takes 4 rows at a time, subtracts their mean before it squares, and merges by Chan's formula.
// Mask:    made again from x by `standardized`, the expression of the forward pass, so both round alike.
// Requires: 16-byte aligned tensors.
// Threads: a thread keeps its columns, and with them its parameters, while it walks down the rows (reduce.cuh).
#include "reduce.cuh"

constexpr int AHEAD = 4;  // rows that a thread has in flight

__device__ __forceinline__ float standardized(float away, float scale, float shift) {
  return __fmaf_rn(away, scale, shift);
}

template <int N, class T>
__device__ __forceinline__ void load_channels(float (&middle)[N], float (&scale)[N], float (&shift)[N], const T *gamma,
                                              const T *beta, const float *mean, const float *istd, i64 first) {
  load_parameters(scale, gamma, first, 1);
  load_parameters(shift, beta, first, 0);
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    middle[lane] = mean[first + lane];
    scale[lane] *= istd[first + lane];
  }
}

// ---- statistics

template <class T, int N>
__device__ __forceinline__ void statistics(const T *__restrict__ x, float *__restrict__ partial, const Walk &w) {
  const Place at(w);
  const i64 stride = w.columns * N;
  float mean[N] = {}, m2[N] = {}, count = 0;
  i64 r = at.begin;
  for (; r + (AHEAD - 1) * w.step < at.end; r += AHEAD * w.step) {
    decltype(load_piece<N>(x)) piece[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++) piece[k] = load_piece<N>(x + (r + k * w.step) * stride + at.column * N);
    const float share = AHEAD / (count + AHEAD), weight = count * share;
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      float sum = 0, squares = 0;
#pragma unroll
      for (int k = 0; k < AHEAD; k++) sum += to_float(piece[k].v[lane]);
      const float middle = sum * (1.0f / AHEAD), away = middle - mean[lane];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        const float d = to_float(piece[k].v[lane]) - middle;
        squares += d * d;
      }
      mean[lane] += away * share;
      m2[lane] += squares + away * (away * weight);
    }
    count += AHEAD;
  }
  for (; r < at.end; r += w.step) {
    const auto piece = load_piece<N>(x + r * stride + at.column * N);
    const float share = 1 / (count + 1), weight = count * share;
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float away = to_float(piece.v[lane]) - mean[lane];
      mean[lane] += away * share;
      m2[lane] += away * (away * weight);
    }
    count++;
  }
  Moments s[N];
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane] = {mean[lane], m2[lane], count};
  fold_rows<N>(s, w, MergeMoments());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    partial[(at.column * N + lane) * w.chunks + at.chunk] = s[lane].mean;
    partial[(stride + at.column * N + lane) * w.chunks + at.chunk] = s[lane].m2;
  }
}

// mean, istd and the running statistics of channel blockIdx.x
template <class T>
__device__ __forceinline__ void finalize_statistics(const float *__restrict__ partial, T *running_mean, T *running_var,
                                                    float *mean, float *istd, i64 rows, i64 chunk, int chunks,
                                                    float momentum, float eps) {
  const i64 c = blockIdx.x;
  const float *means = partial + c * chunks, *m2 = partial + (i64(gridDim.x) + c) * chunks;
  double sum = 0, away = 0;
  for (int k = threadIdx.x; k < chunks; k += THREADS)
    sum += means[k] * double(k + 1 < chunks ? chunk : rows - k * chunk);
  const double center = fold_group(sum, THREADS, Add()) / rows;
  for (int k = threadIdx.x; k < chunks; k += THREADS)
    away += m2[k] + (means[k] - center) * (means[k] - center) * double(k + 1 < chunks ? chunk : rows - k * chunk);
  const double var = fold_group(away, THREADS, Add()) / rows;
  if (threadIdx.x) return;
  mean[c] = float(center);
  istd[c] = float(1 / sqrt(var + eps));
  if (running_mean) {
    const double old_mean = to_float(running_mean[c]), old_var = to_float(running_var[c]);
    running_mean[c] = from_float<T>(float(old_mean + momentum * (center - old_mean)));
    running_var[c] = from_float<T>(float(old_var + momentum * (var * rows / (rows - 1) - old_var)));
  }
}

template <class T>
__device__ __forceinline__ void running_statistics(const T *running_mean, const T *running_var, float *mean,
                                                   float *istd, int channels, float eps) {
  const int c = blockIdx.x * THREADS + threadIdx.x;
  if (c >= channels) return;
  mean[c] = to_float(running_mean[c]);
  istd[c] = float(1 / sqrt(to_float(running_var[c]) + double(eps)));
}

// ---- forward: floor is 0 with relu, else -infinity; NaN passes

template <class T, int N, bool RESIDUAL>
__device__ __forceinline__ void apply(const T *__restrict__ x, const T *__restrict__ residual, const T *gamma,
                                      const T *beta, const float *mean, const float *istd, T *__restrict__ y,
                                      float floor, const Walk &w) {
  constexpr int FLIGHT = RESIDUAL ? AHEAD / 2 : AHEAD;
  const Place at(w, true);
  if (at.begin >= at.end) return;
  const i64 first = at.column * N, stride = w.columns * N;
  float middle[N], scale[N], shift[N];
  load_channels(middle, scale, shift, gamma, beta, mean, istd, first);
  auto compute = [&](auto &piece, const auto &add) {
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      float v = standardized(to_float(piece.v[lane]) - middle[lane], scale[lane], shift[lane]);
      if (RESIDUAL) v += to_float(add.v[lane]);
      piece.v[lane] = from_float<T>(v < floor ? floor : v);
    }
  };
  i64 r = at.begin;
  for (; r + (FLIGHT - 1) * w.step < at.end; r += FLIGHT * w.step) {
    decltype(load_piece<N>(x)) piece[FLIGHT], add[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
      piece[k] = load_piece<N>(x + (r + k * w.step) * stride + first);
      if (RESIDUAL) add[k] = load_piece<N>(residual + (r + k * w.step) * stride + first);
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
      compute(piece[k], add[k]);
      store_piece(y + (r + k * w.step) * stride + first, piece[k]);
    }
  }
  for (; r < at.end; r += w.step) {
    decltype(load_piece<N>(x)) piece = load_piece<N>(x + r * stride + first), add;
    if (RESIDUAL) add = load_piece<N>(residual + r * stride + first);
    compute(piece, add);
    store_piece(y + r * stride + first, piece);
  }
}

// ---- backward

template <class T, int N, bool RELU>
__device__ __forceinline__ void sums(const T *__restrict__ g, const T *__restrict__ x, const T *gamma, const T *beta,
                                     const float *mean, const float *istd, float *__restrict__ partial, const Walk &w) {
  constexpr int FLIGHT = AHEAD / 2;
  const Place at(w);
  const i64 first = at.column * N, stride = w.columns * N;
  float middle[N], scale[N], shift[N];
  if (at.begin < at.end) load_channels(middle, scale, shift, gamma, beta, mean, istd, first);
  Pair s[N];
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane] = {0, 0};
  auto add = [&](const auto &gradient, const auto &piece) {
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float away = to_float(piece.v[lane]) - middle[lane];
      float v = to_float(gradient.v[lane]);
      if (RELU && standardized(away, scale[lane], shift[lane]) <= 0) v = 0;
      s[lane].sum += v;
      s[lane].dot += v * away;
    }
  };
  i64 r = at.begin;
  for (; r + (FLIGHT - 1) * w.step < at.end; r += FLIGHT * w.step) {
    decltype(load_piece<N>(x)) gradient[FLIGHT], piece[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
      gradient[k] = load_piece<N>(g + (r + k * w.step) * stride + first);
      piece[k] = load_piece<N>(x + (r + k * w.step) * stride + first);
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) add(gradient[k], piece[k]);
  }
  for (; r < at.end; r += w.step)
    add(load_piece<N>(g + r * stride + first), load_piece<N>(x + r * stride + first));
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    partial[(first + lane) * w.chunks + at.chunk] = s[lane].sum;
    partial[(stride + first + lane) * w.chunks + at.chunk] = s[lane].dot;
  }
}

// dgamma, dbeta, and coefficients[2][C] = slope, offset of channel blockIdx.x
template <class T>
__device__ __forceinline__ void finalize_sums(const float *__restrict__ partial, const T *gamma, const float *istd,
                                              T *dgamma, T *dbeta, float *coefficients, i64 rows, int chunks) {
  const i64 c = blockIdx.x, channels = gridDim.x;
  double sum = 0, dot = 0;
  for (int k = threadIdx.x; k < chunks; k += THREADS) {
    sum += partial[c * chunks + k];
    dot += partial[(channels + c) * chunks + k];
  }
  sum = fold_group(sum, THREADS, Add());
  dot = fold_group(dot, THREADS, Add()) * istd[c];
  if (threadIdx.x) return;
  const double scale = (gamma ? double(to_float(gamma[c])) : 1.0) * istd[c];
  dgamma[c] = from_float<T>(float(dot));
  dbeta[c] = from_float<T>(float(sum));
  coefficients[c] = float(-scale * istd[c] * dot / rows);
  coefficients[channels + c] = float(-scale * sum / rows);
}

template <class T, int N, bool RELU>
__device__ __forceinline__ void gradient(const T *__restrict__ g, const T *__restrict__ x, const T *gamma,
                                         const T *beta, const float *mean, const float *istd, const float *coefficients,
                                         T *__restrict__ dx, const Walk &w) {
  constexpr int FLIGHT = AHEAD / 2;
  const Place at(w, true);
  if (at.begin >= at.end) return;
  const i64 first = at.column * N, stride = w.columns * N;
  float middle[N], scale[N], shift[N], slope[N], offset[N];
  load_channels(middle, scale, shift, gamma, beta, mean, istd, first);
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    slope[lane] = coefficients[first + lane];
    offset[lane] = coefficients[stride + first + lane];
  }
  auto compute = [&](auto &gradient, const auto &piece) {
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float away = to_float(piece.v[lane]) - middle[lane];
      float v = to_float(gradient.v[lane]);
      if (RELU && standardized(away, scale[lane], shift[lane]) <= 0) v = 0;
      gradient.v[lane] = from_float<T>(scale[lane] * v + (away * slope[lane] + offset[lane]));
    }
  };
  i64 r = at.begin;
  for (; r + (FLIGHT - 1) * w.step < at.end; r += FLIGHT * w.step) {
    decltype(load_piece<N>(x)) gradient[FLIGHT], piece[FLIGHT];
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
      gradient[k] = load_piece<N>(g + (r + k * w.step) * stride + first);
      piece[k] = load_piece<N>(x + (r + k * w.step) * stride + first);
    }
#pragma unroll
    for (int k = 0; k < FLIGHT; k++) {
      compute(gradient[k], piece[k]);
      store_piece(dx + (r + k * w.step) * stride + first, gradient[k]);
    }
  }
  for (; r < at.end; r += w.step) {
    auto gradient = load_piece<N>(g + r * stride + first);
    compute(gradient, load_piece<N>(x + r * stride + first));
    store_piece(dx + r * stride + first, gradient);
  }
}

// ---- entries: <name>_<dtype> reads pieces of 16 bytes, <name>_single_<dtype> single elements

// Blocks per multiprocessor: what registers allow without spilling; the lanes of 16-bit pieces need more of them.
#define ENTRY_OF(N, name) extern "C" __global__ void __launch_bounds__(THREADS, N > 4 ? 3 : 4) name
#define ENTRY(name) ENTRY_OF(1, name)
#define WALKING(T, suffix, N) \
  ENTRY_OF(N, statistics##suffix)(const T *x, float *partial, const Walk w) { statistics<T, N>(x, partial, w); } \
  ALPHA_KERNEL(statistics##suffix) \
  ENTRY_OF(N, apply##suffix)(const T *x, const T *gamma, const T *beta, const float *mean, const float *istd, T *y, \
                       float floor, const Walk w) { \
    apply<T, N, false>(x, nullptr, gamma, beta, mean, istd, y, floor, w); \
  } \
  ALPHA_KERNEL(apply##suffix) \
  ENTRY_OF(N, apply_add##suffix)(const T *x, const T *residual, const T *gamma, const T *beta, const float *mean, \
                           const float *istd, T *y, float floor, const Walk w) { \
    apply<T, N, true>(x, residual, gamma, beta, mean, istd, y, floor, w); \
  } \
  ALPHA_KERNEL(apply_add##suffix) \
  BACKWARD(T, suffix, N, false) \
  BACKWARD(T, _relu##suffix, N, true)
#define BACKWARD(T, suffix, N, RELU) \
  ENTRY_OF(N, sums##suffix)(const T *g, const T *x, const T *gamma, const T *beta, const float *mean, \
                            const float *istd, float *partial, const Walk w) { \
    sums<T, N, RELU>(g, x, gamma, beta, mean, istd, partial, w); \
  } \
  ALPHA_KERNEL(sums##suffix) \
  ENTRY_OF(N, gradient##suffix)(const T *g, const T *x, const T *gamma, const T *beta, const float *mean, \
                                const float *istd, const float *coefficients, T *dx, const Walk w) { \
    gradient<T, N, RELU>(g, x, gamma, beta, mean, istd, coefficients, dx, w); \
  } \
  ALPHA_KERNEL(gradient##suffix)
#define KERNELS(T, dtype) \
  WALKING(T, _##dtype, LANES<T>) \
  WALKING(T, _single_##dtype, 1) \
  ENTRY(finalize_statistics_##dtype)(const float *partial, T *running_mean, T *running_var, float *mean, float *istd, \
                                     i64 rows, i64 chunk, int chunks, float momentum, float eps) { \
    finalize_statistics<T>(partial, running_mean, running_var, mean, istd, rows, chunk, chunks, momentum, eps); \
  } \
  ALPHA_KERNEL(finalize_statistics_##dtype) \
  ENTRY(running_statistics_##dtype)(const T *running_mean, const T *running_var, float *mean, float *istd, \
                                    int channels, float eps) { \
    running_statistics<T>(running_mean, running_var, mean, istd, channels, eps); \
  } \
  ALPHA_KERNEL(running_statistics_##dtype) \
  ENTRY(finalize_sums_##dtype)(const float *partial, const T *gamma, const float *istd, T *dgamma, T *dbeta, \
                               float *coefficients, i64 rows, int chunks) { \
    finalize_sums<T>(partial, gamma, istd, dgamma, dbeta, coefficients, rows, chunks); \
  } \
  ALPHA_KERNEL(finalize_sums_##dtype)
FLOAT_KERNELS(KERNELS)
