// Reductions in a fixed order: over the lanes of a group of threads, over the rows that a block's threads share, and
// the walk of a block down the columns of a matrix. Which elements meet when follows from the shapes alone.
#pragma once
#include "split.cuh"
#include "lanes.cuh"
#include "moments.cuh"

constexpr int THREADS = 256;  // of every block

// ---- pieces: N elements that one thread reads at once; N is LANES<T>, or what a row is a multiple of, as a rule 1

// Instantiates kernels for every storage type: KERNELS(T, suffix, N) has <name>_<dtype> read pieces of 16 bytes, and
// <name>_single_<dtype> single elements, or as many as PIECE says.
#ifndef PIECE
#define PIECE 1
#endif
#define PIECE_KERNELS(KERNELS) \
  KERNELS(float, _float32, LANES<float>) KERNELS(float, _single_float32, PIECE) \
  KERNELS(bf16, _bfloat16, LANES<bf16>) KERNELS(bf16, _single_bfloat16, PIECE) \
  KERNELS(f16, _float16, LANES<f16>) KERNELS(f16, _single_float16, PIECE)

// As store, but 16 bytes stay one access: as an assignment it may become 4 of 4 bytes.
template <class T, int N> INLINE void store_piece(T *p, const Lanes<N, T> &piece) {
  if constexpr (N < LANES<T>) {
    store(p, piece);
  } else {
    uint4 bits;
    memcpy(&bits, &piece, 16);
    __stcg(reinterpret_cast<uint4 *>(p), bits);
  }
}

// A scale or a shift for elements of type T: of that type too, or float32 (`wide`). A null pointer stands for `absent`.
template <class T> struct Parameter {
  const void *p;
  int wide;
  float absent;
  // N of them from index k on, k a multiple of N
  template <int N> INLINE void load(float (&v)[N], i64 k) const {
    if (!p) {
      UNROLL for (int lane = 0; lane < N; lane++) v[lane] = absent;
    } else if (sizeof(T) == 4 || wide) {
      get<N>(v, static_cast<const float *>(p) + k);
    } else {
      get<N>(v, static_cast<const T *>(p) + k);
    }
  }
  template <int N, class P> static INLINE void get(float (&v)[N], const P *p) {
    const Lanes<N, P> piece = ::load<N>(p);
    UNROLL for (int lane = 0; lane < N; lane++) v[lane] = to_float(piece.v[lane]);
  }
};

// Where distances are measured from, so that their sum keeps its digits; results of 16 bits would not show them.
template <class T> INLINE float origin_at(const T *x) { return sizeof(T) == 4 ? to_float(*x) : 0; }

// origin + away, and what rounding leaves out of it
struct Rounded {
  float value, rest;
  INLINE Rounded(float origin, float away) : value(origin + away), rest(origin - value + away) {}
};

// 1 / sqrt(var + eps) of `rows` rows of `count` elements, and their mean, by one thread in double. It is for elements whose
// squares, or sums, float32 does not hold, which is rare; a NaN or an infinity among them gives NaN.
template <class T>
INLINE float wide_statistics(const T *x, i64 rows, i64 pitch, i64 count, float eps, float origin, Rounded &middle) {
  double sum = 0, squares = 0;
  UNROLL_BY(1) for (i64 r = 0; r < rows; r++)
    UNROLL_BY(1) for (i64 k = 0; k < count; k++) sum += double(to_float(x[r * pitch + k])) - origin;
  const double away = sum / (double(rows) * count), mean = origin + away;
  UNROLL_BY(1) for (i64 r = 0; r < rows; r++)
    UNROLL_BY(1) for (i64 k = 0; k < count; k++) {
      const double v = to_float(x[r * pitch + k]) - mean;
      squares += v * v;
    }
  middle = Rounded(origin, float(away));
  return float(1 / sqrt(squares / (double(rows) * count) + eps));
}

// What standardizes elements of type T, as a kernel takes it; forward it finds mean and istd.
// wide: gamma and beta are float32, whatever T is
template <class T> struct Norm {
  const void *gamma, *beta;
  int wide;
  float *mean, *istd;
  template <int N> INLINE void load_scale(float (&scale)[N], i64 first) const {
    Parameter<T>{gamma, wide, 1}.load(scale, first);
  }
  template <int N> INLINE void load_shift(float (&shift)[N], i64 first) const {
    Parameter<T>{beta, wide, 0}.load(shift, first);
  }
};

// The same with what rounding has left out of mean; null stands for zeros.
template <class T> struct SampleNorm : Norm<T> {
  float *rest;
  INLINE float rest_of(i64 k) const { return sizeof(T) == 4 && rest ? rest[k] : 0; }  // see origin_at
  INLINE void put(i64 k, const Rounded &middle, float root) const {
    this->mean[k] = middle.value, rest[k] = middle.rest, this->istd[k] = root;
  }
};

// Pieces of a row that a thread may keep in registers from one pass to the next.
constexpr int HELD = 8;

// ---- what is merged

struct Pair { float sum, dot; };
struct BoundedPair { float sum, dot, most; };
struct MergePairs {
  __device__ Pair operator()(const Pair &a, const Pair &b) const { return {a.sum + b.sum, a.dot + b.dot}; }
  __device__ BoundedPair operator()(const BoundedPair &a, const BoundedPair &b) const {
    return {a.sum + b.sum, a.dot + b.dot, fmaxf(a.most, b.most)};
  }
};
struct Add { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct Larger { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };

// ---- groups of `width` threads, a power of two up to THREADS

template <class State> INLINE State shuffle(const State &s, int lane, int width) {
  static_assert(sizeof(State) % 4 == 0, "shuffles move words");
  int words[sizeof(State) / 4];
  memcpy(words, &s, sizeof(State));
  UNROLL for (unsigned k = 0; k < sizeof(State) / 4; k++) words[k] = __shfl_sync(~0u, words[k], lane, width);
  State moved;
  memcpy(&moved, words, sizeof(State));
  return moved;
}

// Every thread of a group gets the group's result: of SIDE results, which neighbours have side by side, its own.
// All threads of the block call it.
template <int SIDE = 1, class State, class Merge> INLINE State fold_group(State s, int width, const Merge &merge) {
  __shared__ State warps[THREADS / 32][SIDE];
  const int inside = width < 32 ? width : 32, lane = threadIdx.x % inside;
  for (int d = inside / 2; d / SIDE; d /= 2) s = merge(s, shuffle(s, lane + d, inside));  // lane 0 meets everyone once
  s = shuffle(s, lane % SIDE, inside);
  if (width <= 32) return s;
  if (threadIdx.x % 32 < SIDE) warps[threadIdx.x / 32][lane % SIDE] = s;
  __syncthreads();
  const int first = threadIdx.x / width * (width / 32);  // warp of the group
  s = warps[first][lane % SIDE];
  for (int warp = 1; warp < width / 32; warp++) s = merge(s, warps[first + warp][lane % SIDE]);
  __syncthreads();  // warps may be written again
  return s;
}

// The same for `width` threads that have a result together.
template <int SIDE> struct FoldGroup {
  template <class State, class Merge> INLINE State operator()(const State &s, int width, const Merge &merge) const {
    return fold_group<SIDE>(s, width * SIDE, merge);
  }
};

// ---- columns of a matrix of (rows, columns) pieces: a block takes `width` columns and `chunk` rows, `step` at once.
// Of several such matrices, the samples, one behind the other, a block takes a part of one.

struct Walk {
  i64 rows, columns;                // of the matrix
  int width, step;                  // threads along a row, and down the rows: width * step <= THREADS
  int tiles, chunks;                // blocks along a row, and down the rows
  i64 chunk;                        // rows of a block
};

struct Place {
  i64 column;         // this thread's
  int sample, chunk;  // this block's
  i64 begin, end;     // this thread's rows: begin, begin + step, ... before end; none if it has nothing to do
  INLINE Place(const Walk &w, unsigned block = blockIdx.x) {
    column = i64(block % w.tiles) * w.width + threadIdx.x % w.width;
    sample = block / w.tiles / w.chunks;
    chunk = block / w.tiles % w.chunks;
    const int row = threadIdx.x / w.width;
    const i64 first = sample * w.rows, behind = (chunk + 1) * w.chunk;
    begin = first + chunk * w.chunk + row;
    end = first + (behind < w.rows ? behind : w.rows);
    if (row >= w.step || column >= w.columns) end = begin;
  }
};

// use(load(r), r) for the rows of a thread, in order, FLIGHT of them in flight
template <int FLIGHT, class Load, class Use>
INLINE void each_row(const Place &at, const Walk &w, const Load &load, const Use &use) {
  i64 r = at.begin;
  for (; r + (FLIGHT - 1) * w.step < at.end; r += FLIGHT * w.step) {
    decltype(load(r)) row[FLIGHT];
    UNROLL for (int k = 0; k < FLIGHT; k++) row[k] = load(r + k * w.step);
    UNROLL for (int k = 0; k < FLIGHT; k++) use(row[k], r + k * w.step);
  }
  for (; r < at.end; r += w.step) use(load(r), r);
}

// use(part) for the rows of a thread, STRETCH of them at a time: no chain of what it sums is longer.
constexpr int STRETCH = 16;
template <class Use> INLINE void each_stretch(const Place &at, const Walk &w, const Use &use) {
  Place part = at;
  for (const i64 rows = STRETCH * w.step; part.begin < at.end; part.begin += rows) {
    part.end = part.begin + rows < at.end ? part.begin + rows : at.end;
    use(part);
  }
}

// Threads of one column merge their states; those of the block's first row get the results. All threads call it.
template <int N, class State, class Merge> INLINE void fold_rows(State (&s)[N], const Walk &w, const Merge &merge) {
  __shared__ State states[N][THREADS];  // [lane][row in the step * width + column]
  UNROLL for (int k = 0; k < N; k++) states[k][threadIdx.x] = s[k];
  __syncthreads();
  const int row = threadIdx.x / w.width;
  for (int left = w.step; left > 1;) {
    const int half = (left + 1) / 2;
    if (row + half < left) {
      UNROLL for (int k = 0; k < N; k++)
        states[k][threadIdx.x] = s[k] = merge(s[k], states[k][threadIdx.x + half * w.width]);
    }
    __syncthreads();
    left = half;
  }
}

// What is added up of v and of v * w; and the largest |v|, where State has room for it.
template <class State> INLINE void add_up(State &s, float v, float w) {
  s.sum += v, s.dot += v * w;
  if constexpr (sizeof(State) > sizeof(Pair)) s.most = fmaxf(s.most, fabsf(v));
}
// partial[these][C][chunks], of columns of N: of sums, of products, and of what is largest
template <int N, class State> INLINE void put_sums(State (&s)[N], float *partial, const Walk &w, const Place &at) {
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
  const i64 first = at.column * N, stride = w.columns * N;
  UNROLL for (int lane = 0; lane < N; lane++) {
    partial[(first + lane) * w.chunks + at.chunk] = s[lane].sum;
    partial[(stride + first + lane) * w.chunks + at.chunk] = s[lane].dot;
    if constexpr (sizeof(State) > sizeof(Pair)) partial[(2 * stride + first + lane) * w.chunks + at.chunk] = s[lane].most;
  }
}

// ---- states of chunks, [chunk][column], which the last block of a tile of columns, or of a result, merges

template <class State> struct Meeting {
  State *partial;
  unsigned *arrived;  // of each tile, or result; 0 before and after a launch
};

// N states that another block has left, in words of up to 16 bytes
template <int N, class State> INLINE Lanes<N, State> left(const State *from) {
  constexpr int BYTES = N * sizeof(State), EACH = BYTES % 16 ? BYTES % 8 ? 4 : 8 : 16;
  using Word = typename BitsOf<EACH>::type;
  Word words[BYTES / EACH];
  UNROLL for (int k = 0; k < BYTES / EACH; k++) words[k] = __ldcg(reinterpret_cast<const Word *>(from) + k);
  Lanes<N, State> states;
  memcpy(states.v, words, BYTES);
  return states;
}

// put(column, total) for the columns of a tile, by its last block: a Chain adds up every `step`-th chunk, `merge` adds
// up chains. s: of the block's chunk, in the threads of the first row. All threads call it.
template <class Chain, int N, class State, class Merge, class Put>
INLINE void fold_chunks(const State (&s)[N], const Meeting<State> &meeting, const Walk &w, const Place &at,
                        const Merge &merge, const Put &put) {
  constexpr int M = sizeof(State) * N <= 16 ? N : 16 / sizeof(State);  // of a thread
  const i64 size = w.columns * N, first = at.column * N;
  if (threadIdx.x < w.width && first < size) {
    UNROLL for (int lane = 0; lane < N; lane++)
      if (w.chunks > 1) meeting.partial[at.chunk * size + first + lane] = s[lane];
      else put(first + lane, s[lane]);
  }
  if (w.chunks == 1 || !arrives_last(meeting.arrived + blockIdx.x % w.tiles, w.chunks)) return;
  Walk of = {};
  of.width = w.width * (N / M), of.step = THREADS / of.width;
  const i64 column = i64(blockIdx.x % w.tiles) * w.width * N + threadIdx.x % of.width * M;
  const int row = threadIdx.x / of.width, end = row < of.step && column < size ? w.chunks : 0;
  Chain chain[M];
  UNROLL_BY(8) for (int k = row; k < end; k += of.step) {
    const Lanes<M, State> found = left<M>(meeting.partial + k * size + column);
    UNROLL for (int lane = 0; lane < M; lane++) chain[lane].add(found.v[lane]);
  }
  decltype(chain[0].state()) total[M];
  UNROLL for (int lane = 0; lane < M; lane++) total[lane] = chain[lane].state();
  fold_rows<M>(total, of, merge);
  if (end && row == 0) UNROLL for (int lane = 0; lane < M; lane++) put(column + lane, total[lane]);
}
