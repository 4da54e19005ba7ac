// What:     along an axis of n elements:  softmax  y = e^(x - m) / s,  log_softmax  y = x - m - ln(s),
//           m = max(x), s = sum(e^(x - m));  their gradients  y * (g - sum(g * y))  and  g - e^y * sum(g)
// Layout:   x as (outer, n, inner), C-contiguous; any inner
// Threads:  inner = 1: the blockDim.x threads of a row (a warp, or the block) share it, blockDim.y rows per block.
//           else: a thread per (outer, inner), so that neighbours read neighbouring elements.
//           Two passes over the axis: the sums, then y; a short row stays in registers in between.
#include <float.h>

#include "storage.cuh"

constexpr int THREADS = 256;
constexpr int HELD = 8;  // packets that a thread keeps in registers between the passes

// Each fold: a State of the first pass, add(state, a, b), merge(state, state), and y from the total. a is x or g, b y.
template <bool LOG> struct Forward {
  static constexpr bool BOTH = false;
  struct State {
    float max = -FLT_MAX, sum = 0;  // -FLT_MAX: a row may begin with -inf
  };
  __device__ static State start(float max) { return {max, 0}; }
  __device__ static State add(State s, float x, float) {
    const float e = expf(-fabsf(x - s.max));
    return x > s.max ? State{x, s.sum * e + 1} : State{s.max, s.sum + e};
  }
  __device__ static State merge(const State &a, const State &b) {
    const float max = fmaxf(a.max, b.max);
    return {max, a.sum * expf(a.max - max) + b.sum * expf(b.max - max)};
  }
  // The maximum, and what to multiply by or to subtract. A maximum of inf makes all NaN, as x - max would.
  __device__ static State total(const State &s) {
    const float sum = s.sum + (s.max - s.max);
    return {s.max, LOG ? logf(sum) : 1 / sum};
  }
  __device__ static float result(const State &s, float x, float) {
    return LOG ? x - s.max - s.sum : expf(x - s.max) * s.sum;
  }
};

template <bool LOG> struct Gradient {
  static constexpr bool BOTH = true;
  struct State {
    float sum = 0;
  };
  __device__ static State start(float) { return {0}; }
  __device__ static State add(State s, float g, float y) { return {s.sum + (LOG ? g : g * y)}; }
  __device__ static State merge(const State &a, const State &b) { return {a.sum + b.sum}; }
  __device__ static State total(const State &s) { return s; }
  __device__ static float result(const State &s, float g, float y) {
    return LOG ? g - expf(y) * s.sum : y * (g - s.sum);
  }
};

template <class State> __device__ __forceinline__ State from_lane(const State &s, int bits) {
  union {
    State state;
    float words[sizeof(State) / sizeof(float)];
  } u{s};
#pragma unroll
  for (float &word : u.words) word = __shfl_xor_sync(~0u, word, bits);
  return u.state;
}

// Every thread of a row gets the row's total; blockDim.x is 32, or THREADS where blockDim.y is 1.
template <class Fold> __device__ __forceinline__ typename Fold::State fold_row(typename Fold::State s) {
  __shared__ float words[sizeof(s) / sizeof(float)][THREADS / 32];  // [word of the state][warp]
#pragma unroll
  for (int bits = 16; bits; bits /= 2) s = Fold::merge(s, from_lane(s, bits));
  if (blockDim.x > 32) {
    union {
      typename Fold::State state;
      float words[sizeof(s) / sizeof(float)];
    } u{s};
    if (threadIdx.x % 32 == 0)
      for (unsigned k = 0; k < sizeof(s) / sizeof(float); k++) words[k][threadIdx.x / 32] = u.words[k];
    __syncthreads();
    for (int warp = 0; warp < THREADS / 32; warp++) {
      for (unsigned k = 0; k < sizeof(s) / sizeof(float); k++) u.words[k] = words[k][warp];
      s = warp ? Fold::merge(s, u.state) : u.state;
    }
  }
  return Fold::total(s);
}

// aligned: n is a multiple of LANES<T>, so every row starts at a multiple of 16 bytes
template <class Fold, class T>
__device__ __forceinline__ void fold_rows(const T *a, const T *b, T *y, i64 rows, i64 n, int aligned) {
  constexpr int L = LANES<T>;
  const i64 row = static_cast<i64>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // whole warps leave, and a row of several warps is a block's only one
  a += row * n, b += row * n, y += row * n;
  typename Fold::State s;
  const i64 whole = aligned ? n : 0, step = blockDim.x;
  // 16-bit lanes cost more to unpack again than one tensor costs to read again
  if ((L == 4 || Fold::BOTH) && aligned && n <= HELD * step * L) {
    Packet<T> first[HELD], second[Fold::BOTH ? HELD : 1];
    auto each = [&](const auto &f) {
#pragma unroll
      for (int k = 0; k < HELD; k++)
        if ((threadIdx.x + k * step) * L < n) f(k, (threadIdx.x + k * step) * L);
    };
    each([&](int k, i64 j) {
      first[k] = load16(a + j);
      if (Fold::BOTH) second[Fold::BOTH ? k : 0] = load16(b + j);
    });
    float max = -FLT_MAX;
    each([&](int k, i64) {
#pragma unroll
      for (int lane = 0; lane < L; lane++) max = fmaxf(max, to_float(first[k].v[lane]));
    });
    s = Fold::start(max);
    each([&](int k, i64) {
#pragma unroll
      for (int lane = 0; lane < L; lane++)
        s = Fold::add(s, to_float(first[k].v[lane]), Fold::BOTH ? to_float(second[Fold::BOTH ? k : 0].v[lane]) : 0);
    });
    s = fold_row<Fold>(s);
    each([&](int k, i64 j) {
      Packet<T> out;
#pragma unroll
      for (int lane = 0; lane < L; lane++)
        out.v[lane] = from_float<T>(Fold::result(
            s, to_float(first[k].v[lane]), Fold::BOTH ? to_float(second[Fold::BOTH ? k : 0].v[lane]) : 0));
      store16(y + j, out);
    });
    return;
  }
#pragma unroll 2
  for (i64 j = threadIdx.x * L; j < whole; j += step * L) {
    const Packet<T> first = load16(a + j), second = Fold::BOTH ? load16(b + j) : first;
#pragma unroll
    for (int lane = 0; lane < L; lane++) s = Fold::add(s, to_float(first.v[lane]), to_float(second.v[lane]));
  }
#pragma unroll 4
  for (i64 j = whole + threadIdx.x; j < n; j += step) s = Fold::add(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0);
  s = fold_row<Fold>(s);
#pragma unroll 2
  for (i64 j = threadIdx.x * L; j < whole; j += step * L) {
    const Packet<T> first = load16(a + j), second = Fold::BOTH ? load16(b + j) : first;
    Packet<T> out;
#pragma unroll
    for (int lane = 0; lane < L; lane++)
      out.v[lane] = from_float<T>(Fold::result(s, to_float(first.v[lane]), to_float(second.v[lane])));
    store16(y + j, out);
  }
#pragma unroll 4
  for (i64 j = whole + threadIdx.x; j < n; j += step)
    y[j] = from_float<T>(Fold::result(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0));
}

template <class Fold, class T>
__device__ __forceinline__ void fold_columns(const T *a, const T *b, T *y, i64 columns, i64 n, i64 inner) {
  const i64 column = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
  if (column >= columns) return;
  const i64 start = column / inner * n * inner + column % inner, end = start + n * inner;
  typename Fold::State s;
#pragma unroll 4
  for (i64 j = start; j < end; j += inner) s = Fold::add(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0);
  s = Fold::total(s);
#pragma unroll 4
  for (i64 j = start; j < end; j += inner)
    y[j] = from_float<T>(Fold::result(s, to_float(a[j]), Fold::BOTH ? to_float(b[j]) : 0));
}

#define ALONG_AXIS(name, Fold, T, dtype) \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) \
      name##_rows_##dtype(const T *a, const T *b, T *y, i64 rows, i64 n, int aligned) { \
    fold_rows<Fold>(a, b, y, rows, n, aligned); \
  } \
  ALPHA_KERNEL(name##_rows_##dtype) \
  extern "C" __global__ void __launch_bounds__(THREADS) \
      name##_columns_##dtype(const T *a, const T *b, T *y, i64 columns, i64 n, i64 inner) { \
    fold_columns<Fold>(a, b, y, columns, n, inner); \
  } \
  ALPHA_KERNEL(name##_columns_##dtype)
#define KERNELS(T, dtype) \
  ALONG_AXIS(softmax, Forward<false>, T, dtype) \
  ALONG_AXIS(log_softmax, Forward<true>, T, dtype) \
  ALONG_AXIS(softmax_grad, Gradient<false>, T, dtype) \
  ALONG_AXIS(log_softmax_grad, Gradient<true>, T, dtype)
FLOAT_KERNELS(KERNELS)
