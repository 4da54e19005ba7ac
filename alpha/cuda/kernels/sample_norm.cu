// What:    layer norm and group norm: x of (N, pixels, groups, K), statistics of each (n, group)
//          forward   y = (x - mean) * (gamma * istd) + beta,  istd = 1 / sqrt(var + eps)
//          backward  xhat = (x - mean) * istd, v = g * gamma;  dx = istd * (v - mean(v) - xhat * mean(v * xhat))
//                    dgamma = sum(g * xhat), dbeta = sum(g), over n and pixels
// Source:  arXiv 1607.06450 (layer norm: one pixel, one group), 1803.08494 (group norm).
// Layout:  contiguous; a sample's group is `pixels` runs of K elements, groups * K apart. A piece is 16 bytes of a run,
//          or 1 element where K is not a multiple of that. gamma, beta: (groups, K).
// Passes:  forward keeps a float32 group in registers if HELD pieces per thread suffice, else it reads it twice, the
//          second time from the cache; so does dx. dgamma and dbeta are sums down
//          the columns of (N * pixels, groups * K), partial[dgamma, dbeta][column][chunk].
// Accuracy: the pieces' moments are merged by Chan's formula.
// Requires: 16-byte aligned tensors; fewer than 2^32 pieces in a sample's group.
// Threads: `width` threads, up to a warp or a whole block, per (n, group); see reduce.cuh for the columns.
#include "reduce.cuh"

// The group of a sample that this thread works on, and its pieces: lane, lane + width, ..., before `pieces`.
template <int N> struct Group {
  i64 item, base, stride;
  unsigned run, pieces, lane, width;
  i64 parameters;  // index of the group's first gamma
  __device__ __forceinline__ Group(i64 items, i64 pixels, i64 groups, i64 k, int threads) {
    item = i64(blockIdx.x) * (THREADS / threads) + threadIdx.x / threads;
    lane = threadIdx.x % threads;
    width = threads;
    run = k / N;
    pieces = item < items ? unsigned(pixels * run) : 0;
    parameters = item % groups * k;
    base = item / groups * pixels * groups * k + parameters;
    stride = groups * k;
  }
  __device__ __forceinline__ i64 offset(unsigned piece) const { return base + piece / run * stride + inside(piece); }
  __device__ __forceinline__ i64 inside(unsigned piece) const { return i64(piece % run) * N; }
};

template <class T, int N>
__device__ __forceinline__ void normalize(const T *__restrict__ x, const T *gamma, const T *beta, T *__restrict__ y,
                                          float *mean, float *istd, float eps, const Group<N> &at) {
  decltype(load_piece<N>(x)) held[HELD];
  const bool all = N <= 4 && at.pieces <= HELD * at.width;
  if (all) {
#pragma unroll
    for (int j = 0; j < HELD; j++)
      if (at.lane + j * at.width < at.pieces) held[j] = load_piece<N>(x + at.offset(at.lane + j * at.width));
  }
  auto each = [&](const auto &f) {
    if (all) {
#pragma unroll
      for (int j = 0; j < HELD; j++)
        if (at.lane + j * at.width < at.pieces) f(held[j], at.lane + j * at.width);
    } else {
#pragma unroll 2
      for (unsigned k = at.lane; k < at.pieces; k += at.width) f(load_piece<N>(x + at.offset(k)), k);
    }
  };
  Moments s = {0, 0, 0};
  each([&](const auto &piece, unsigned) {
    Moments of = {0, 0, N};
#pragma unroll
    for (int lane = 0; lane < N; lane++) of.mean += to_float(piece.v[lane]);
    of.mean *= 1.0f / N;
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float away = to_float(piece.v[lane]) - of.mean;
      of.m2 += away * away;
    }
    s = merge_moments(s, of);
  });
  s = fold_group(s, at.width, MergeMoments());
  const float middle = s.mean, root = float(1 / sqrt(double(s.m2) / s.count + double(eps)));
  if (at.lane == 0 && at.pieces) {
    mean[at.item] = middle;
    istd[at.item] = root;
  }
  each([&](auto piece, unsigned k) {
    float scale[N], shift[N];
    load_parameters(scale, gamma, at.parameters + at.inside(k), 1);
    load_parameters(shift, beta, at.parameters + at.inside(k), 0);
#pragma unroll
    for (int lane = 0; lane < N; lane++)
      piece.v[lane] = from_float<T>((to_float(piece.v[lane]) - middle) * root * scale[lane] + shift[lane]);
    store_piece(y + at.offset(k), piece);
  });
}

template <class T, int N>
__device__ __forceinline__ void gradient(const T *__restrict__ g, const T *__restrict__ x, const T *gamma,
                                         const float *mean, const float *istd, T *__restrict__ dx, const Group<N> &at) {
  const float middle = at.pieces ? mean[at.item] : 0, root = at.pieces ? istd[at.item] : 0;
  Pair s = {0, 0};
#pragma unroll 2
  for (unsigned k = at.lane; k < at.pieces; k += at.width) {
    const i64 offset = at.offset(k);
    const auto gradient = load_piece<N>(g + offset), piece = load_piece<N>(x + offset);
    float scale[N];
    load_parameters(scale, gamma, at.parameters + at.inside(k), 1);
    Pair of = {0, 0};
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane];
      of.sum += v;
      of.dot += v * ((to_float(piece.v[lane]) - middle) * root);
    }
    s = MergePairs()(s, of);
  }
  s = fold_group(s, at.width, MergePairs());
  const float count = float(at.pieces) * N, shift = s.sum / count, slope = s.dot / count;
#pragma unroll 2
  for (unsigned k = at.lane; k < at.pieces; k += at.width) {
    const i64 offset = at.offset(k);
    auto gradient = load_piece<N>(g + offset);
    const auto piece = load_piece<N>(x + offset);
    float scale[N];
    load_parameters(scale, gamma, at.parameters + at.inside(k), 1);
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane], xhat = (to_float(piece.v[lane]) - middle) * root;
      gradient.v[lane] = from_float<T>(root * (v - shift - xhat * slope));
    }
    store_piece(dx + offset, gradient);
  }
}

template <class T, int N>
__device__ __forceinline__ void parameter_sums(const T *__restrict__ g, const T *__restrict__ x, const float *mean,
                                               const float *istd, float *__restrict__ partial, i64 pixels, i64 groups,
                                               i64 k, const Walk &w) {
  const Place at(w);
  const i64 first = at.column * N, stride = w.columns * N, group = first / k;
  Pair s[N];
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane] = {0, 0};
#pragma unroll 4
  for (i64 r = at.begin; r < at.end; r += w.step) {
    const auto gradient = load_piece<N>(g + r * stride + first), piece = load_piece<N>(x + r * stride + first);
    const i64 item = r / pixels * groups + group;
    const float middle = mean[item], root = istd[item];
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]);
      s[lane].sum += v;
      s[lane].dot += v * ((to_float(piece.v[lane]) - middle) * root);
    }
  }
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
#pragma unroll
  for (int lane = 0; lane < N; lane++) {
    partial[(first + lane) * w.chunks + at.chunk] = s[lane].dot;
    partial[(stride + first + lane) * w.chunks + at.chunk] = s[lane].sum;
  }
}

// <name>_<dtype> reads pieces of 16 bytes, <name>_single_<dtype> single elements
#define ENTRY(name) extern "C" __global__ void __launch_bounds__(THREADS, 3) name
#define PIECES(T, suffix, N) \
  ENTRY(normalize##suffix)(const T *x, const T *gamma, const T *beta, T *y, float *mean, float *istd, float eps, \
                           i64 items, i64 pixels, i64 groups, i64 k, int width) { \
    normalize<T, N>(x, gamma, beta, y, mean, istd, eps, Group<N>(items, pixels, groups, k, width)); \
  } \
  ALPHA_KERNEL(normalize##suffix) \
  ENTRY(gradient##suffix)(const T *g, const T *x, const T *gamma, const float *mean, const float *istd, T *dx, \
                          i64 items, i64 pixels, i64 groups, i64 k, int width) { \
    gradient<T, N>(g, x, gamma, mean, istd, dx, Group<N>(items, pixels, groups, k, width)); \
  } \
  ALPHA_KERNEL(gradient##suffix) \
  ENTRY(parameter_sums##suffix)(const T *g, const T *x, const float *mean, const float *istd, float *partial, \
                                i64 pixels, i64 groups, i64 k, const Walk w) { \
    parameter_sums<T, N>(g, x, mean, istd, partial, pixels, groups, k, w); \
  } \
  ALPHA_KERNEL(parameter_sums##suffix)
#define KERNELS(T, dtype) \
  PIECES(T, _##dtype, LANES<T>) \
  PIECES(T, _single_##dtype, 1)
FLOAT_KERNELS(KERNELS)
