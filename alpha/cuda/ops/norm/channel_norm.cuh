// The two passes of a norm whose threads walk down the rows of a sample's channels: one sums, over chunks of rows, the
// other one writes. Batch norm is one sample; group norm has several, and one statistic for k neighbouring channels.
#pragma once
#include <type_traits>

#include "ops/norm/norm_equation.cuh"
#include "reduce.cuh"

constexpr int AHEAD = 4;  // rows that a thread has in flight
#define SUMMERS (THREADS, 2)  // of walk.py
#define BACKWARDS Place(w, gridDim.x - 1 - blockIdx.x)  // what was read last first: it is in the cache

// Which statistic a channel has: one for k neighbours in a sample. Batch norm has one sample, and k is 1.
struct Sharing {
  int k;
  i64 first;
  INLINE Sharing(int sample, i64 channels, int k) : k(k), first(sample * (k == 1 ? channels : channels / k)) {}
  INLINE i64 operator()(i64 channel) const { return first + (k == 1 ? channel : unsigned(channel) / unsigned(k)); }
};

// What a thread knows of its channels.
template <int N> struct Channels {
  float middle[N], scale[N], shift[N];
  template <class T> INLINE Channels(const Norm<T> &norm, i64 first, const Sharing &shared) {
    norm.load_scale(scale, first);
    norm.load_shift(shift, first);
    UNROLL for (int lane = 0; lane < N; lane++) {
      const i64 k = shared(first + lane);
      middle[lane] = norm.mean[k];
      scale[lane] *= norm.istd[k];
    }
  }
};

// ---- statistics

// partial[sample][mean, m2][C][chunks]; of distances from a sample's first element of k channels, if k > 0
template <class T, int N>
INLINE void statistics(const T *__restrict__ x, float *__restrict__ partial, const Walk &w, const Place &at,
                       unsigned k = 0) {
  const i64 first = at.column * N, stride = w.columns * N;
  float mean[N] = {}, m2[N] = {}, origin[N] = {}, v[N], count = 0;
  if (k && at.begin < at.end)
    UNROLL for (int lane = 0; lane < N; lane++)
      origin[lane] = origin_at(x + at.sample * w.rows * stride + unsigned(first + lane) / k * k);
  const auto distances = [&](Lanes<N, T> &row) {
    unpack(v, row);
    UNROLL for (int lane = 0; lane < N; lane++) v[lane] -= origin[lane];
  };
  i64 r = at.begin;
  for (; r + (AHEAD - 1) * w.step < at.end; r += AHEAD * w.step) {
    Lanes<N, T> rows[AHEAD];
    UNROLL for (int k = 0; k < AHEAD; k++) rows[k] = load<N>(x + (r + k * w.step) * stride + first);
    float middle[N] = {}, squares[N] = {};
    UNROLL for (int k = 0; k < AHEAD; k++) {
      distances(rows[k]);
      UNROLL for (int lane = 0; lane < N; lane++) middle[lane] += v[lane];
    }
    UNROLL for (int lane = 0; lane < N; lane++) middle[lane] *= 1.0f / AHEAD;
    UNROLL for (int k = 0; k < AHEAD; k++) {
      distances(rows[k]);
      UNROLL for (int lane = 0; lane < N; lane++) squares[lane] += (v[lane] - middle[lane]) * (v[lane] - middle[lane]);
    }
    const float share = AHEAD / (count + AHEAD), weight = count * share;
    UNROLL for (int lane = 0; lane < N; lane++) {
      const float away = middle[lane] - mean[lane];
      mean[lane] += away * share;
      m2[lane] += squares[lane] + away * (away * weight);
    }
    count += AHEAD;
  }
  for (; r < at.end; r += w.step) {
    Lanes<N, T> row = load<N>(x + r * stride + first);
    distances(row);
    const float share = 1 / (count + 1), weight = count * share;
    UNROLL for (int lane = 0; lane < N; lane++) {
      const float away = v[lane] - mean[lane];
      mean[lane] += away * share;
      m2[lane] += away * (away * weight);
    }
    count++;
  }
  Moments s[N];
  UNROLL for (int lane = 0; lane < N; lane++) s[lane] = {mean[lane], m2[lane], count};
  fold_rows<N>(s, w, [](const Moments &a, const Moments &b) { return merge_moments(a, b); });
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
  partial += 2 * at.sample * stride * w.chunks;
  UNROLL for (int lane = 0; lane < N; lane++) {
    partial[(first + lane) * w.chunks + at.chunk] = s[lane].mean;
    partial[(stride + first + lane) * w.chunks + at.chunk] = s[lane].m2;
  }
}

struct PartMoments {
  float mean, m2;
  double count;
};

// What `statistics` has left of k channels of a sample: j counts their chunks.
struct Chunks {
  const float *means, *m2s;
  const Walk &w;
  INLINE PartMoments operator()(i64 j) const {
    return {means[j], m2s[j],
            double(int(j) % w.chunks + 1 < w.chunks ? w.chunk : w.rows - (w.chunks - 1) * w.chunk)};
  }
};

// Of parts, in double: how many numbers, their distances from `origin`, and the squares of these, summed.
struct Sums {
  double count, sum, squares;
};
struct MergeSums {
  __device__ Sums operator()(const Sums &a, const Sums &b) const {
    return {a.count + b.count, a.sum + b.sum, a.squares + b.squares};
  }
};

// Mean and variance of `count` numbers, from the moments of their parts; `fold` merges the sums of `width` threads.
struct MeanAndVariance {
  double mean, var, counted;
  template <class Parts, class Fold>
  INLINE MeanAndVariance(const Parts &of, i64 parts, i64 count, int lane, int width, const Fold &fold) {
    const float first = of(0).mean;
    const double origin = isfinite(first) ? first : 0;  // the mean of any part loses no digits that float32 has
    Sums s = {};
    UNROLL_BY(4) for (i64 j = lane; j < parts; j += width) {
      const PartMoments part = of(j);
      const double away = part.mean - origin;
      s = MergeSums()(s, {part.count, away * part.count, part.m2 + away * away * part.count});
    }
    s = fold(s, width, MergeSums());
    const double away = s.sum / count, squares = s.squares - away * s.sum;
    mean = origin + away, var = squares < 0 ? 0 : squares / count, counted = s.count;
  }
};

// ---- what a pass reads beside x, and where it puts its results: N elements from i on

struct Nothing {
  struct Piece {};
  static constexpr bool READS = false;
  INLINE Piece load(i64) const { return {}; }
};
template <class T, int N> struct Elements {
  using Piece = Lanes<N, T>;
  static constexpr bool READS = true;
  const T *x;
  INLINE Piece load(i64 i) const { return ::load<N>(x + i); }
  INLINE void unpack(float (&v)[N], const Piece &piece) const {
    UNROLL for (int lane = 0; lane < N; lane++) v[lane] = to_float(piece.v[lane]);
  }
};
template <class T, int N> struct Results {
  T *y;
  INLINE void put(const float (&v)[N], i64 i) const {
    Lanes<N, T> piece;
    UNROLL for (int lane = 0; lane < N; lane++) piece.v[lane] = from_float<T>(v[lane]);
    store_piece(y + i, piece);
  }
};

// Where row r of a result lies, from its element `first` on: in a matrix of its own, or among a larger one's columns.
struct Alone { INLINE i64 operator()(i64 r, i64 stride, i64 first) const { return r * stride + first; } };
struct Among {
  i64 columns, begin;
  INLINE i64 operator()(i64 r, i64, i64 first) const { return r * columns + (begin + first); }
};

// ---- forward: floor is 0 with relu, else -infinity; NaN passes

template <class T, int N, class Residual, class From, class Out, class Target = Alone>
INLINE void apply(const T *__restrict__ x, const Residual &residual, const From &norm, Out &&out, float floor,
                  const Walk &w, const Place &at, int k, const Target &target = Target()) {
  if (at.begin >= at.end) return;
  const i64 first = at.column * N, stride = w.columns * N;
  struct Row {
    Lanes<N, T> x;
    typename Residual::Piece residual;
  };
  auto load = [&](i64 r) {
    const i64 offset = r * stride + first;
    return Row{::load<N>(x + offset), residual.load(offset)};
  };
  Channels<N> c(norm, first, Sharing(at.sample, stride, k));
  if constexpr (std::is_same_v<From, SampleNorm<T>> && sizeof(T) == 4)
    UNROLL for (int lane = 0; lane < N; lane++)
      c.shift[lane] -= norm.rest[Sharing(at.sample, stride, k)(first + lane)] * c.scale[lane];
  each_row<Residual::READS ? AHEAD / 2 : AHEAD>(at, w, load, [&](const Row &row, i64 r) {
    float v[N], more[N] = {};
    if constexpr (Residual::READS) residual.unpack(more, row.residual);
    UNROLL for (int lane = 0; lane < N; lane++) {
      v[lane] = standardized(to_float(row.x.v[lane]) - c.middle[lane], c.scale[lane], c.shift[lane]);
      if (Residual::READS) v[lane] += more[lane];
      v[lane] = v[lane] < floor ? floor : v[lane];
    }
    out.put(v, target(r, stride, first));
  });
}

// ---- backward

// A matrix whose rows are `pitch` elements apart: a gradient may be some of the columns of a larger one.
template <class T> struct Pitched {
  const T *p;
  i64 pitch;
};

// use(v, x - mean, r) for the rows of a thread, FLIGHT of them in flight: v = g where relu passed, else 0
template <bool RELU, int FLIGHT, int N, class T, class Use>
INLINE void each_gradient(const Pitched<T> &g, const T *__restrict__ x, const Channels<N> &c, const Place &at,
                          const Walk &w, const Use &use) {
  struct Row { Lanes<N, T> g, x; };
  auto load = [&](i64 r) {
    const i64 column = at.column * N;
    return Row{::load<N>(g.p + (r * g.pitch + column)), ::load<N>(x + (r * (w.columns * N) + column))};
  };
  each_row<FLIGHT>(at, w, load, [&](const Row &row, i64 r) {
    float v[N], away[N];
    UNROLL for (int lane = 0; lane < N; lane++) {
      away[lane] = to_float(row.x.v[lane]) - c.middle[lane];
      v[lane] = to_float(row.g.v[lane]);
      if (RELU) v[lane] = passed(v[lane], standardized(away[lane], c.scale[lane], c.shift[lane]));
    }
    use(v, away, r);
  });
}

// put(s), of the sums of v and of v * (x - mean) over a thread's rows, times istd if HATS, whose sums are of the size of v;
// and the largest |v|, where State has room for it
template <class State, int N, bool RELU, bool HATS = false, class T, class Put>
INLINE void sum_gradient(const Pitched<T> &g, const T *x, const Norm<T> &norm, const Walk &w, const Place &at, int k,
                         const Put &put) {
  const i64 first = at.column * N, stride = w.columns * N;
  State s[N];
  UNROLL for (int lane = 0; lane < N; lane++) s[lane] = {};
  if (at.begin < at.end) {
    const Sharing shared(at.sample, stride, k);
    const Channels<N> c(norm, first, shared);
    float root[N];
    UNROLL for (int lane = 0; lane < N; lane++) root[lane] = HATS ? norm.istd[shared(first + lane)] : 1;
    each_stretch(at, w, [&](const Place &part) {
      State own[N] = {};
      each_gradient<RELU, AHEAD>(g, x, c, part, w, [&](const float (&v)[N], const float (&away)[N], i64) {
        UNROLL for (int lane = 0; lane < N; lane++)
          add_up(own[lane], v[lane], HATS ? away[lane] * root[lane] : away[lane]);
      });
      UNROLL for (int lane = 0; lane < N; lane++) s[lane] = MergePairs()(s[lane], own[lane]);
    });
  }
  put(s);
}

// partial[sample][these][C][chunks], for batch norm
template <class T, int N, bool RELU, class State = Pair>
INLINE void sums(const Pitched<T> &g, const T *x, const Norm<T> &norm, float *__restrict__ partial, const Walk &w,
                 const Place &at) {
  sum_gradient<State, N, RELU>(g, x, norm, w, at, 1, [&](State (&s)[N]) {
    put_sums(s, partial + sizeof(State) / 4 * at.sample * (w.columns * N) * w.chunks, w, at);
  });
}

// coefficients[2][statistic] = slope, offset
template <class T, int N, bool RELU, class Out>
INLINE void gradient(const Pitched<T> &g, const T *x, const Norm<T> &norm, const float *coefficients, Out &&out,
                     const Walk &w, const Place &at, i64 statistics, int k) {
  if (at.begin >= at.end) return;
  const i64 first = at.column * N, stride = w.columns * N;
  const Sharing shared(at.sample, stride, k);
  const Channels<N> c(norm, first, shared);
  float slope[N], offset[N];
  UNROLL for (int lane = 0; lane < N; lane++) {
    slope[lane] = coefficients[shared(first + lane)];
    offset[lane] = coefficients[statistics + shared(first + lane)];
  }
  each_gradient<RELU, AHEAD / 2>(g, x, c, at, w, [&](const float (&v)[N], const float (&away)[N], i64 r) {
    float dx[N];
    UNROLL for (int lane = 0; lane < N; lane++)
      dx[lane] = norm_gradient(v[lane], away[lane], c.scale[lane], slope[lane], offset[lane]);
    out.put(dx, r * stride + first);
  });
}
