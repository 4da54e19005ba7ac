// What:    layer norm of the rows of (rows, n)
//          forward   y = (x - mean) * (gamma * istd) + beta,  istd = 1 / sqrt(var + eps)
//          backward  xhat = (x - mean) * istd, v = g * gamma;  dx = istd * (v - mean(v) - xhat * mean(v * xhat))
//                    dgamma = sum(g * xhat), dbeta = sum(g), over the rows
// Source:  arXiv 1607.06450.
// Layout:  contiguous rows; a piece is 16 bytes of a row, or 1 element where n is not a multiple of that.
// Passes:  a row is read once and stays in registers, if HELD pieces per thread suffice in the forward pass, or 4 in
//          the backward one, whose blocks walk over many rows and keep their dgamma and dbeta in registers too.
//          A longer row is read twice, the second time from the cache; dgamma and dbeta are then a pass of their own.
//          partial[block][dgamma, dbeta][n] is added up by the last kernel.
// Accuracy: var by two passes over registers; of a longer row the pieces' moments are merged by Chan's formula.
// Requires: 16-byte aligned tensors; fewer than 2^32 pieces in a row.
// Threads: `width` threads, a power of two up to a block, per row; see reduce.cuh for the columns.
#include "lanes.cuh"
#include "reduce.cuh"

template <class T, int N>
__device__ __forceinline__ void normalize(const T *__restrict__ x, const Parameter<T> &gamma, const Parameter<T> &beta,
                                          T *__restrict__ y, float *mean, float *istd, float eps, i64 rows, i64 n,
                                          int width) {
  const i64 row = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;
  const int lane = threadIdx.x % width;
  x += row * n, y += row * n;
  Lanes<N, T> held[HELD];
  auto each = [&](const auto &f) {
#pragma unroll
    for (int j = 0; j < HELD; j++) {
      const int column = (lane + j * width) * N;
      if (row < rows && column < n) f(j, column);
    }
  };
  each([&](int j, int column) { held[j] = load<N>(x + column); });
  float sum = 0, squares = 0;
  each([&](int j, i64) {
    float v[N];
    unpack(v, held[j]);
#pragma unroll
    for (int k = 0; k < N; k++) sum += v[k];
  });
  const float middle = fold_group(sum, width, Add()) / n;
  each([&](int j, i64) {
    float v[N];
    unpack(v, held[j]);
#pragma unroll
    for (int k = 0; k < N; k++) squares += (v[k] - middle) * (v[k] - middle);
  });
  squares = fold_group(squares, width, Add());
  const float root = 1 / sqrtf(squares / n + eps);
  if (lane == 0 && row < rows) {
    mean[row] = middle;
    istd[row] = root;
  }
  each([&](int j, int column) {
    float v[N], scale[N], shift[N];
    gamma.load(scale, column);
    beta.load(shift, column);
    unpack(v, held[j]);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = (v[k] - middle) * root * scale[k] + shift[k];
    store_floats(y + column, v);
  });
}

// A block takes a row of any length.
template <class T, int N>
__device__ __forceinline__ void normalize_long(const T *__restrict__ x, const Parameter<T> &gamma,
                                               const Parameter<T> &beta, T *__restrict__ y, float *mean, float *istd,
                                               float eps, i64 n) {
  const i64 row = blockIdx.x;
  x += row * n, y += row * n;
  Moments s = {0, 0, 0};
#pragma unroll 2
  for (i64 column = threadIdx.x * N; column < n; column += THREADS * N) {
    float v[N];
    Parameter<T>::template get<N>(v, x + column);
    Moments of = {0, 0, N};
#pragma unroll
    for (int k = 0; k < N; k++) of.mean += v[k];
    of.mean *= 1.0f / N;
#pragma unroll
    for (int k = 0; k < N; k++) of.m2 += (v[k] - of.mean) * (v[k] - of.mean);
    s = merge_moments(s, of);
  }
  s = fold_group(s, THREADS, MergeMoments());
  const float middle = s.mean, root = 1 / sqrtf(s.m2 / n + eps);
  if (threadIdx.x == 0) {
    mean[row] = middle;
    istd[row] = root;
  }
#pragma unroll 2
  for (i64 column = threadIdx.x * N; column < n; column += THREADS * N) {
    float v[N], scale[N], shift[N];
    Parameter<T>::template get<N>(v, x + column);
    gamma.load(scale, column);
    beta.load(shift, column);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = (v[k] - middle) * root * scale[k] + shift[k];
    store_floats(y + column, v);
  }
}

// ---- backward of rows of up to P pieces per thread, which has the pieces of its next row in flight

template <int R> struct Pairs {
  Pair of[R];
};
struct MergeEach {
  template <int R> __device__ Pairs<R> operator()(const Pairs<R> &a, const Pairs<R> &b) const {
    Pairs<R> merged;
#pragma unroll
    for (int r = 0; r < R; r++) merged.of[r] = MergePairs()(a.of[r], b.of[r]);
    return merged;
  }
};

template <class T, int N, int P>
__device__ __forceinline__ void gradient(const T *__restrict__ g, const T *__restrict__ x, const Parameter<T> &gamma,
                                         const float *mean, const float *istd, T *__restrict__ dx,
                                         float *__restrict__ partial, i64 rows, i64 n, int width) {
  constexpr int R = N > 4 && P == 1 ? 2 : 1;  // rows at a time
  const int lane = threadIdx.x % width, teams = THREADS / width;
  const float share = 1.0f / n;
  Pair total[P][N];
  float scale[P][N];
#pragma unroll
  for (int p = 0; p < P; p++) {
#pragma unroll
    for (int k = 0; k < N; k++) total[p][k] = {0, 0}, scale[p][k] = 0;
    const int column = (lane + p * width) * N;
    if (column < n) gamma.load(scale[p], column);
  }
  struct Held {
    Lanes<N, T> gradients[R][P], pieces[R][P];
    float middle[R], root[R];
  };
  const auto each = [&](i64 first, const auto &f) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const i64 row = first + r * teams;
#pragma unroll
      for (int p = 0; p < P; p++) {
        const int column = (lane + p * width) * N;
        if (row < rows && column < n) f(r, p, row, row * n + column);
      }
    }
  };
  const auto load_rows = [&](Held &held, i64 first) {
    each(first, [&](int r, int p, i64 row, i64 offset) {
      held.gradients[r][p] = load<N>(g + offset);
      held.pieces[r][p] = load<N>(x + offset);
      if (p == 0) held.middle[r] = mean[row], held.root[r] = istd[row];
    });
  };
  Held held = {}, next = {};
  const i64 step = i64(gridDim.x) * teams * R;
  i64 block = i64(blockIdx.x) * teams * R, first = block + threadIdx.x / width;
  load_rows(held, first);
  for (; block < rows; block += step, first += step) {
    load_rows(next, first + step);  // on their way while these rows are worked on
    Pairs<R> s = {};
    float from[N], v[N];
    each(first, [&](int r, int p, i64, i64) {
      unpack(from, held.gradients[r][p]);
      unpack(v, held.pieces[r][p]);
#pragma unroll
      for (int k = 0; k < N; k++) {
        const float xhat = (v[k] - held.middle[r]) * held.root[r];
        s.of[r].sum += from[k] * scale[p][k];
        s.of[r].dot += from[k] * scale[p][k] * xhat;
        total[p][k].sum += from[k];
        total[p][k].dot += from[k] * xhat;
      }
    });
    s = fold_group(s, width, MergeEach());
    each(first, [&](int r, int p, i64, i64 offset) {
      const float shift = s.of[r].sum * share, slope = s.of[r].dot * share;
      unpack(from, held.gradients[r][p]);
      unpack(v, held.pieces[r][p]);
#pragma unroll
      for (int k = 0; k < N; k++)
        v[k] = held.root[r] * (from[k] * scale[p][k] - shift - (v[k] - held.middle[r]) * held.root[r] * slope);
      store_floats(dx + offset, v);
    });
    held = next;
  }
  Walk w = {};
  w.width = width, w.step = teams;
  partial += 2 * blockIdx.x * n;
#pragma unroll
  for (int p = 0; p < P; p++) {
    fold_rows<N>(total[p], w, MergePairs());
    const int column = (lane + p * width) * N;
    if (threadIdx.x >= width || column >= n) continue;
#pragma unroll
    for (int k = 0; k < N; k++) {
      partial[column + k] = total[p][k].dot;
      partial[n + column + k] = total[p][k].sum;
    }
  }
}

// ---- backward of longer rows

template <class T, int N>
__device__ __forceinline__ void gradient_long(const T *__restrict__ g, const T *__restrict__ x,
                                              const Parameter<T> &gamma, const float *mean, const float *istd,
                                              T *__restrict__ dx, i64 n) {
  const i64 row = blockIdx.x;
  const float middle = mean[row], root = istd[row];
  g += row * n, x += row * n, dx += row * n;
  Pair s = {0, 0};
#pragma unroll 2
  for (i64 k = threadIdx.x * N; k < n; k += THREADS * N) {
    const auto gradient = load_piece<N>(g + k), piece = load_piece<N>(x + k);
    float scale[N];
    gamma.load(scale, k);
    Pair of = {0, 0};
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane];
      of.sum += v;
      of.dot += v * ((to_float(piece.v[lane]) - middle) * root);
    }
    s = MergePairs()(s, of);
  }
  s = fold_group(s, THREADS, MergePairs());
  const float shift = s.sum / n, slope = s.dot / n;
#pragma unroll 2
  for (i64 k = threadIdx.x * N; k < n; k += THREADS * N) {
    auto gradient = load_piece<N>(g + k);
    const auto piece = load_piece<N>(x + k);
    float scale[N];
    gamma.load(scale, k);
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane], xhat = (to_float(piece.v[lane]) - middle) * root;
      gradient.v[lane] = from_float<T>(root * (v - shift - xhat * slope));
    }
    store_piece(dx + k, gradient);
  }
}

template <class T, int N>
__device__ __forceinline__ void parameter_sums(const T *__restrict__ g, const T *__restrict__ x, const float *mean,
                                               const float *istd, float *__restrict__ partial, const Walk &w) {
  const Place at(w);
  const i64 first = at.column * N, n = w.columns * N;
  Pair s[N];
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane] = {0, 0};
#pragma unroll 4
  for (i64 r = at.begin; r < at.end; r += w.step) {
    const auto gradient = load_piece<N>(g + r * n + first), piece = load_piece<N>(x + r * n + first);
    const float middle = mean[r], root = istd[r];
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]);
      s[lane].sum += v;
      s[lane].dot += v * ((to_float(piece.v[lane]) - middle) * root);
    }
  }
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
  partial += 2 * at.chunk * n;
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    partial[first + lane] = s[lane].dot;
    partial[n + first + lane] = s[lane].sum;
  }
}

// ---- dgamma and dbeta from partial[chunk][dgamma, dbeta][n]; a block adds up 8 columns

__device__ __forceinline__ void totals(const float *__restrict__ partial, float *dgamma, float *dbeta, i64 chunks,
                                       i64 n) {
  constexpr int WIDTH = 8;
  const i64 column = i64(blockIdx.x) * WIDTH + threadIdx.x % WIDTH;
  double s[1] = {0};
  if (column < 2 * n) {
#pragma unroll 8
    for (i64 chunk = threadIdx.x / WIDTH; chunk < chunks; chunk += THREADS / WIDTH)
      s[0] += partial[chunk * 2 * n + column];
  }
  Walk w = {};
  w.width = WIDTH, w.step = THREADS / WIDTH;
  fold_rows<1>(s, w, Add());
  if (threadIdx.x >= WIDTH || column >= 2 * n) return;
  (column < n ? dgamma : dbeta - n)[column] = float(s[0]);
}

// ---- entries: <name>_<dtype> reads pieces of 16 bytes, <name>_single_<dtype> single elements

#define ENTRY(blocks, name) extern "C" __global__ void __launch_bounds__(THREADS, blocks) name
#define GRADIENT(T, suffix, N, P) \
  ENTRY(P * N > 8 ? 1 : P * N > 4 ? 2 : 3, gradient_##P##suffix)(const T *g, const T *x, const void *gamma, int wide, \
                                                                 const float *mean, const float *istd, T *dx, \
                                                                 float *partial, i64 rows, i64 n, int width) { \
    gradient<T, N, P>(g, x, {gamma, wide, 1}, mean, istd, dx, partial, rows, n, width); \
  } \
  ALPHA_KERNEL(gradient_##P##suffix)
#define PIECES(T, suffix, N) \
  ENTRY(3, normalize##suffix)(const T *x, const void *gamma, const void *beta, int wide, T *y, float *mean, \
                              float *istd, float eps, i64 rows, i64 n, int width) { \
    normalize<T, N>(x, {gamma, wide, 1}, {beta, wide, 0}, y, mean, istd, eps, rows, n, width); \
  } \
  ALPHA_KERNEL(normalize##suffix) \
  ENTRY(3, normalize_long##suffix)(const T *x, const void *gamma, const void *beta, int wide, T *y, float *mean, \
                                   float *istd, float eps, i64 n) { \
    normalize_long<T, N>(x, {gamma, wide, 1}, {beta, wide, 0}, y, mean, istd, eps, n); \
  } \
  ALPHA_KERNEL(normalize_long##suffix) \
  GRADIENT(T, suffix, N, 1) \
  GRADIENT(T, suffix, N, 2) \
  GRADIENT(T, suffix, N, 4) \
  ENTRY(3, gradient_long##suffix)(const T *g, const T *x, const void *gamma, int wide, const float *mean, \
                                  const float *istd, T *dx, i64 n) { \
    gradient_long<T, N>(g, x, {gamma, wide, 1}, mean, istd, dx, n); \
  } \
  ALPHA_KERNEL(gradient_long##suffix) \
  ENTRY(3, parameter_sums##suffix)(const T *g, const T *x, const float *mean, const float *istd, float *partial, \
                                   const Walk w) { \
    parameter_sums<T, N>(g, x, mean, istd, partial, w); \
  } \
  ALPHA_KERNEL(parameter_sums##suffix)
#define KERNELS(T, dtype) \
  PIECES(T, _##dtype, LANES<T>) \
  PIECES(T, _single_##dtype, 1)
FLOAT_KERNELS(KERNELS)
ENTRY(4, parameter_totals)(const float *partial, float *dgamma, float *dbeta, i64 chunks, i64 n) {
  totals(partial, dgamma, dbeta, chunks, n);
}
ALPHA_KERNEL(parameter_totals)
