// What:     along an axis of n elements:  softmax  y = e^(x - m) / s,  log_softmax  y = x - m - ln(s),
//           m = max(x), s = sum(e^(x - m));  their gradients  y * (g - sum(g * y))  and  g - e^y * sum(g)
// Layout:   x as (outer, n, inner), C-contiguous; any inner
// Accuracy: sums keep what rounding leaves out of them (moments.cuh), so that the length of the axis costs no digits.
// Requires: 16-byte aligned tensors
// Threads:  inner = 1: the blockDim.x threads of a row (a warp, or the block) share it, blockDim.y rows per block.
//           else: a thread per (outer, inner), so that neighbours read neighbouring elements.
//           Two passes over the axis: the sums, then y; a short row stays in registers in between.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): softmax 95 %, gradient 98 %
#include <float.h>

#include "lanes.cuh"
#include "reduce.cuh"

constexpr int KEPT = 32;  // elements of a row that a thread keeps in registers between the passes

// Each fold: a State of the first pass, add(state, a, b), merge(state, state), and y from the total. a is x or g, b y.
// Where a whole row is at hand, start(its maximum) and the term of (a, b), which trusts that maximum, for add_term.
template <class T, bool LOG> struct Forward {
  static constexpr bool BOTH = false;
  struct State {
    float max;
    ExactSum sum;
  };
  __device__ static State start(float max) { return {max, {0, 0}}; }
  __device__ static State add(State s, float x, float) {
    const float e = exp_for<T>(-fabsf(x - s.max));
    if (x > s.max) {
      s = {x, {s.sum.sum * e, s.sum.rest * e}};
      s.sum.add(1);
    } else {
      s.sum.add(e);
    }
    return s;
  }
  __device__ static float term(const State &s, float x, float) { return exp_for<T>(x - s.max); }
  __device__ static State merge(const State &a, const State &b) {
    const float max = fmaxf(a.max, b.max), of_a = exp_for<T>(a.max - max), of_b = exp_for<T>(b.max - max);
    return {max, merge_sums({a.sum.sum * of_a, a.sum.rest * of_a}, {b.sum.sum * of_b, b.sum.rest * of_b})};
  }
  // The maximum, and what to multiply by or to subtract. A maximum of inf makes all NaN, as x - max would.
  __device__ static State total(const State &s) {
    const float sum = s.sum.value() + (s.max - s.max);
    return {s.max, {LOG ? logf(sum) : 1 / sum, 0}};
  }
  __device__ static float result(const State &s, float x, float) {
    return LOG ? x - s.max - s.sum.sum : exp_for<T>(x - s.max) * s.sum.sum;
  }
};

template <class T, bool LOG> struct Gradient {
  static constexpr bool BOTH = true;
  struct State { ExactSum sum; };
  __device__ static State start(float) { return {{0, 0}}; }
  __device__ static State add(State s, float g, float y) {
    s.sum.add(term(s, g, y));
    return s;
  }
  __device__ static float term(const State &, float g, float y) { return LOG ? g : g * y; }
  __device__ static State merge(const State &a, const State &b) { return {merge_sums(a.sum, b.sum)}; }
  __device__ static State total(const State &s) { return {{s.sum.value(), 0}}; }
  __device__ static float result(const State &s, float g, float y) {
    return LOG ? g - exp_for<T>(y) * s.sum.sum : y * (g - s.sum.sum);
  }
};

template <class T> using Softmax = Forward<T, false>;
template <class T> using LogSoftmax = Forward<T, true>;
template <class T> using SoftmaxGrad = Gradient<T, false>;
template <class T> using LogSoftmaxGrad = Gradient<T, true>;

// Every thread of a row gets the row's total; blockDim.x is 32, or THREADS where blockDim.y is 1.
template <class Fold> INLINE typename Fold::State fold_row(const typename Fold::State &s) {
  using State = typename Fold::State;
  return Fold::total(fold_group(s, blockDim.x, [](const State &a, const State &b) { return Fold::merge(a, b); }));
}

// aligned: n is a multiple of LANES<T>, so every row starts at a multiple of 16 bytes
template <class Fold, class T> INLINE void along_rows(const T *a, const T *b, T *y, i64 rows, i64 n, int aligned) {
  constexpr int L = LANES<T>;
  const i64 row = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps leave, and a row of several warps is a block's only one
  a += row * n, b += row * n, y += row * n;
  typename Fold::State s = Fold::start(-FLT_MAX);  // a row may begin with -inf
  const i64 whole = aligned ? n : 0, step = blockDim.x;
  const auto b_of = [](const Lanes<L, T> &second, int lane) { return Fold::BOTH ? value(second, lane) : 0.0f; };
  if (aligned && n <= KEPT * step) {
    constexpr int PACKETS = KEPT / L;
    Lanes<L, T> first[PACKETS], second[Fold::BOTH ? PACKETS : 1];
    const auto each = [&](const auto &f) {
      UNROLL for (int k = 0; k < PACKETS; k++)
        if ((threadIdx.x + k * step) * L < n) f(first[k], second[Fold::BOTH ? k : 0], (threadIdx.x + k * step) * L);
    };
    each([&](Lanes<L, T> &va, Lanes<L, T> &vb, i64 j) {
      va = load<L>(a + j);
      if (Fold::BOTH) vb = load<L>(b + j);
    });
    float max = -FLT_MAX;
    if (!Fold::BOTH)
      each([&](const Lanes<L, T> &va, const Lanes<L, T> &, i64) {
        UNROLL for (int lane = 0; lane < L; lane++) max = fmaxf(max, value(va, lane));
      });
    s = Fold::start(max);
    each([&](const Lanes<L, T> &va, const Lanes<L, T> &vb, i64) {
      float terms[L];
      UNROLL for (int lane = 0; lane < L; lane++) terms[lane] = Fold::term(s, value(va, lane), b_of(vb, lane));
      UNROLL for (int half = L / 2; half; half /= 2)
        UNROLL for (int lane = 0; lane < half; lane++) terms[lane] += terms[lane + half];
      s.sum.add(terms[0]);
    });
    s = fold_row<Fold>(s);
    each([&](const Lanes<L, T> &va, const Lanes<L, T> &vb, i64 j) {
      float out[L];
      UNROLL for (int lane = 0; lane < L; lane++) out[lane] = Fold::result(s, value(va, lane), b_of(vb, lane));
      store_floats(y + j, out);
    });
    return;
  }
  UNROLL_BY(2) for (i64 j = threadIdx.x * L; j < whole; j += step * L) {
    const Lanes<L, T> first = load<L>(a + j), second = Fold::BOTH ? load<L>(b + j) : first;
    UNROLL for (int lane = 0; lane < L; lane++) s = Fold::add(s, value(first, lane), b_of(second, lane));
  }
  UNROLL_BY(4) for (i64 j = whole + threadIdx.x; j < n; j += step)
    s = Fold::add(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0);
  s = fold_row<Fold>(s);
  UNROLL_BY(2) for (i64 j = threadIdx.x * L; j < whole; j += step * L) {
    const Lanes<L, T> first = load<L>(a + j), second = Fold::BOTH ? load<L>(b + j) : first;
    float out[L];
    UNROLL for (int lane = 0; lane < L; lane++) out[lane] = Fold::result(s, value(first, lane), b_of(second, lane));
    store_floats(y + j, out);
  }
  UNROLL_BY(4) for (i64 j = whole + threadIdx.x; j < n; j += step)
    y[j] = from_float<T>(Fold::result(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0));
}

template <class Fold, class T> INLINE void along_columns(const T *a, const T *b, T *y, i64 columns, i64 n, i64 inner) {
  const i64 column = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
  if (column >= columns) return;
  const i64 start = column / inner * n * inner + column % inner, end = start + n * inner;
  typename Fold::State s = Fold::start(-FLT_MAX);  // a row may begin with -inf
  UNROLL_BY(4) for (i64 j = start; j < end; j += inner)
    s = Fold::add(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0);
  s = Fold::total(s);
  UNROLL_BY(4) for (i64 j = start; j < end; j += inner)
    y[j] = from_float<T>(Fold::result(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0));
}

#define ALONG_AXIS(name, Fold, T, dtype) \
  ALPHA_ENTRY(name##_rows_##dtype, (THREADS, 1), (const T *a, const T *b, T *y, i64 rows, i64 n, int aligned), \
              along_rows<Fold<T>>(a, b, y, rows, n, aligned)) \
  ALPHA_ENTRY(name##_columns_##dtype, (THREADS), (const T *a, const T *b, T *y, i64 columns, i64 n, i64 inner), \
              along_columns<Fold<T>>(a, b, y, columns, n, inner))
#define KERNELS(T, dtype) \
  ALONG_AXIS(softmax, Softmax, T, dtype) \
  ALONG_AXIS(log_softmax, LogSoftmax, T, dtype) \
  ALONG_AXIS(softmax_grad, SoftmaxGrad, T, dtype) \
  ALONG_AXIS(log_softmax_grad, LogSoftmaxGrad, T, dtype)
FLOAT_KERNELS(KERNELS)
