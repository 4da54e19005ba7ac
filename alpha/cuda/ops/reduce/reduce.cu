// What:    y[o, i] = fold of x[o, r, i] over r: sum (or mean), max, min, argmax, var; o, r, i of (outer, count, inner)
// Layout:  x is contiguous, so `inner` = 1 reduces rows, `outer` = 1 columns.
// Passes:  where there are few results, r is cut into chunks, a block each; the last block to end merges all states.
//          The number of chunks follows from the shape, so the order of merging does too, whichever block that is.
// Accuracy: a thread merges the elements of a few pieces pairwise, four of these one after the other, and so on;
//          threads meet in a tree. A sum of chunks, which may be many, keeps what rounding leaves out of it. Distances
//          for a variance are from the first element of a result, which takes large means out. Integers are summed in
//          64 bits.
// Requires: 16-byte aligned tensors.
// Threads: rows: a group of `width` threads per chunk; columns: see reduce.cuh.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): sum of everything 87 %, per channel 86 %,
//           mean per row 95 %, argmax 82 %
#include <limits>

#include "reduce.cuh"

template <class T> constexpr bool FLOATING = !std::is_integral<T>::value;
template <class T> constexpr T LEAST = std::numeric_limits<T>::min();
template <class T> constexpr T MOST = std::numeric_limits<T>::max();

template <class T> INLINE auto widened(T v) {  // float, or the integer of at least 32 bits
  if constexpr (FLOATING<T>) return to_float(v);
  else return std::conditional_t<sizeof(T) == 8, i64, int>(v);
}
template <class T> using Wide = decltype(widened(T()));
template <class T> INLINE T narrowed(Wide<T> v) {
  if constexpr (FLOATING<T>) return from_float<T>(v);
  else return T(v);
}

// ---- folds: State of no element, of one, whose result begins with the element `origin`, of two states; the result.

template <class T> struct Sum {
  using State = std::conditional_t<FLOATING<T>, float, i64>;
  using Result = std::conditional_t<FLOATING<T>, T, i64>;
  static __device__ State none() { return 0; }
  static __device__ State of(T v, i64, float) { return widened(v); }
  __device__ State operator()(State a, State b) const { return a + b; }
  static __device__ Result result(State s, float divisor) {
    if constexpr (FLOATING<T>) return from_float<T>(s / divisor);
    else return s;
  }
};

template <class T, bool LARGEST> struct Extremum {  // NaN wins
  using State = Wide<T>;
  using Result = T;
  static __device__ State none() {
    if constexpr (FLOATING<T>) return LARGEST ? -INFINITY : INFINITY;
    else return LARGEST ? LEAST<State> : MOST<State>;
  }
  static __device__ State of(T v, i64, float) { return widened(v); }
  __device__ State operator()(State a, State b) const { return a != a || (LARGEST ? a >= b : a <= b) ? a : b; }
  static __device__ Result result(State s, float) { return narrowed<T>(s); }
};
template <class T> using Max = Extremum<T, true>;
template <class T> using Min = Extremum<T, false>;

template <class T> struct ArgMax {  // NaN wins, and the first of equals
  struct State {
    Wide<T> value;
    i64 index;
  };
  using Result = i64;
  static __device__ State none() { return {Max<T>::none(), MOST<i64>}; }
  static __device__ State of(T v, i64 index, float) { return {widened(v), index}; }
  __device__ State operator()(State a, State b) const {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    const bool equal = a.value == b.value || (nan_a && nan_b);
    return (equal ? a.index < b.index : nan_a || (!nan_b && a.value > b.value)) ? a : b;
  }
  static __device__ Result result(State s, float) { return s.index; }
};

template <class T> struct Var {  // divisor: count - correction
  using State = Moments;
  using Result = T;
  static __device__ State none() { return {0, 0, 0}; }
  static __device__ State of(T v, i64, float origin) {  // m2 is NaN of what is not finite, as that of several is
    return {to_float(v) - origin, to_float(v) - to_float(v), 1};
  }
  __device__ State operator()(const State &a, const State &b) const { return merge_moments(a, b); }
  static __device__ Result result(State s, float divisor) { return from_float<T>(s.m2 / divisor); }
};

template <class Fold> constexpr bool ADDS_FLOATS = false;
template <class T> constexpr bool ADDS_FLOATS<Sum<T>> = FLOATING<T>;
template <class Fold> constexpr bool SHIFTED = std::is_same<typename Fold::State, Moments>::value;

// The state of v[0], .., v[N - 1], of which the first one has the given index; merged as a tree.
template <class Fold, int N, class T> INLINE typename Fold::State fold_piece(const T *v, i64 index, float origin) {
  if constexpr (N == 1) return Fold::of(v[0], index, origin);
  else return Fold()(fold_piece<Fold, N / 2>(v, index, origin),
                     fold_piece<Fold, N / 2>(v + N / 2, index + N / 2, origin));
}

// Where results go. wide: those of sums are float, whatever the elements are
template <class Fold> struct Results {
  void *y;
  int wide;
  float divisor;
  INLINE void put(i64 k, const typename Fold::State &s) const {
    if constexpr (ADDS_FLOATS<Fold>)
      if (wide) return void(static_cast<float *>(y)[k] = s / divisor);
    static_cast<typename Fold::Result *>(y)[k] = Fold::result(s, divisor);
  }
};

// What a thread has of a result: add() merges a state with it. Sums of floats have two levels, so that chains are
// short: next() ends a link of the first one.
template <class Fold, bool = ADDS_FLOATS<Fold>> struct Chain {
  typename Fold::State s = Fold::none();
  INLINE void add(const typename Fold::State &v) { s = Fold()(s, v); }
  INLINE void next(int) {}
  INLINE typename Fold::State state() const { return s; }
};
template <class Fold> struct Chain<Fold, true> {
  float link = 0, links = 0;
  INLINE void add(float v) { link += v; }
  INLINE void next(int round) {
    if (round % 4) return;
    links += link;
    link = 0;
  }
  INLINE float state() const { return links + link; }
};
// The same for any number of states.
template <class Fold, bool = ADDS_FLOATS<Fold>> struct LongChain : Chain<Fold, false> {};
template <class Fold> struct LongChain<Fold, true> {
  ExactSum s = {0, 0};
  INLINE void add(float v) { s.add(v); }
  INLINE float state() const { return s.value(); }
};

// Adds of(0), .., of(3); these as a tree, but where that is of no use to the result, and takes registers.
template <class Fold, class Of> INLINE void add_four(Chain<Fold> &chain, const Of &of) {
  if constexpr (sizeof(typename Fold::State) <= sizeof(Moments)) {
    chain.add(Fold()(Fold()(of(0), of(1)), Fold()(of(2), of(3))));
  } else {
    UNROLL for (int k = 0; k < 4; k++) chain.add(of(k));
  }
}

// ---- rows: aligned says that every row and chunk starts at a multiple of 16 bytes

template <class Fold, class T>
INLINE void rows(const T *__restrict__ x, const Meeting<typename Fold::State> &meeting, const Results<Fold> &y,
                 i64 outer, i64 count, i64 chunk, int chunks, int width, int aligned) {
  constexpr int L = LANES<T>, AHEAD = 4;
  const i64 item = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;  // a chunk of a row
  const int lane = threadIdx.x % width;
  const bool mine = item < outer * chunks;
  const i64 begin = item % chunks * chunk, end = !mine ? begin : begin + chunk < count ? begin + chunk : count;
  const T *row = x + item / chunks * count;
  const i64 whole = aligned ? end - (end - begin) % L : begin;  // pieces of L end here
  const float origin = SHIFTED<Fold> && mine && count > 0 ? static_cast<float>(widened(row[0])) : 0;
  Chain<Fold> chain;
  i64 k = begin + lane * L;
  for (int round = 1; k + (AHEAD - 1) * width * L < whole; k += AHEAD * width * L, round++) {
    Lanes<L, T> packet[AHEAD];
    UNROLL for (int p = 0; p < AHEAD; p++) packet[p] = load<L>(row + k + p * width * L);
    add_four<Fold>(chain, [&](int p) { return fold_piece<Fold, L>(packet[p].v, k + p * width * L, origin); });
    chain.next(round);
  }
  for (; k < whole; k += width * L) {
    const Lanes<L, T> packet = load<L>(row + k);
    chain.add(fold_piece<Fold, L>(packet.v, k, origin));
  }
  k = whole + lane;
  UNROLL_BY(4) for (int round = 1; k < end; k += width, round++) {
    chain.add(Fold::of(row[k], k, origin));
    chain.next(round);
  }
  typename Fold::State s = fold_group(chain.state(), width, Fold());
  const i64 result = item / chunks;
  if (chunks > 1) {  // of a block each
    if (lane == 0) meeting.partial[item] = s;
    if (!arrives_last(meeting.arrived + result, chunks)) return;
    LongChain<Fold> all;
    const auto *states = meeting.partial + result * chunks;
    UNROLL_BY(4) for (int k = lane; k < chunks; k += THREADS) all.add(left<1>(states + k).v[0]);
    s = fold_group(all.state(), THREADS, Fold());
  }
  if (lane == 0 && mine) y.put(result, s);
}

// ---- columns: Walk over (outer * inner / N) columns of `count` rows; inner counts pieces

template <class Fold, int N, class T>
INLINE void columns(const T *__restrict__ x, const Meeting<typename Fold::State> &meeting, const Results<Fold> &y,
                    i64 inner, const Walk &w) {
  constexpr int AHEAD = 4;
  const Place at(w);
  const i64 stride = inner * N;
  const i64 first = (at.column / inner * w.rows * inner + at.column % inner) * N;
  Chain<Fold> chain[N];
  float origin[N] = {};
  if (SHIFTED<Fold> && at.begin < at.end) {
    const auto piece = load<N>(x + first);
    UNROLL for (int lane = 0; lane < N; lane++) origin[lane] = static_cast<float>(widened(piece.v[lane]));
  }
  i64 r = at.begin;
  for (int round = 1; r + (AHEAD - 1) * w.step < at.end; r += AHEAD * w.step, round++) {
    Lanes<N, T> piece[AHEAD];
    UNROLL for (int k = 0; k < AHEAD; k++) piece[k] = load<N>(x + first + (r + k * w.step) * stride);
    UNROLL for (int lane = 0; lane < N; lane++) {
      const auto of = [&](int k) { return Fold::of(piece[k].v[lane], r + k * w.step, origin[lane]); };
      add_four<Fold>(chain[lane], of);
      chain[lane].next(round);
    }
  }
  for (; r < at.end; r += w.step) {
    const auto piece = load<N>(x + first + r * stride);
    UNROLL for (int lane = 0; lane < N; lane++) chain[lane].add(Fold::of(piece.v[lane], r, origin[lane]));
  }
  typename Fold::State s[N];
  UNROLL for (int lane = 0; lane < N; lane++) s[lane] = chain[lane].state();
  fold_rows<N>(s, w, Fold());
  fold_chunks<LongChain<Fold>>(s, meeting, w, at, Fold(), [&](i64 k, const auto &total) { y.put(k, total); });
}

#define BOUNDS (THREADS, 3)
#define COLUMNS(name, Fold, T, N) \
  ALPHA_ENTRY(name, BOUNDS, \
              (const T *x, const Meeting<Fold<T>::State> meeting, const Results<Fold<T>> y, i64 inner, const Walk w), \
              columns<Fold<T>, N>(x, meeting, y, inner, w))
#define FOLD(name, Fold, T, dtype) \
  ALPHA_ENTRY(name##_rows_##dtype, BOUNDS, \
              (const T *x, const Meeting<Fold<T>::State> meeting, const Results<Fold<T>> y, i64 outer, i64 count, \
               i64 chunk, int chunks, int width, int aligned), \
              rows<Fold<T>>(x, meeting, y, outer, count, chunk, chunks, width, aligned)) \
  COLUMNS(name##_columns_##dtype, Fold, T, 1)
#define NUMBERS(T, dtype) \
  FOLD(sum, Sum, T, dtype) \
  COLUMNS(sum_wide_columns_##dtype, Sum, T, LANES<T>) \
  FOLD(max, Max, T, dtype) \
  FOLD(min, Min, T, dtype) \
  FOLD(argmax, ArgMax, T, dtype)
#define FLOATS(T, dtype) NUMBERS(T, dtype) FOLD(var, Var, T, dtype)
FLOAT_KERNELS(FLOATS)
NUMBERS(unsigned char, uint8)
NUMBERS(int, int32)
NUMBERS(i64, int64)
