// Reductions in a fixed order: over the lanes of a group of threads, over the rows that a block's threads share, and
// the walk of a block down the columns of a matrix. Which elements meet when follows from the shapes alone.
#pragma once
#include <string.h>

#include "storage.cuh"

constexpr int THREADS = 256;  // of every block

// ---- pieces: N elements that one thread reads at once; N is 1 or LANES<T>

template <class T> struct Single {
  T v[1];
};
template <int N, class T> __device__ __forceinline__ auto load_piece(const T *p) {
  if constexpr (N == 1) return Single<T>{{*p}};
  else return load16(p);
}
template <class T> __device__ __forceinline__ void store_piece(T *p, const Single<T> &piece) { *p = piece.v[0]; }
template <class T> __device__ __forceinline__ void store_piece(T *p, const Packet<T> &piece) { store16(p, piece); }

// N parameters from index k on, k a multiple of N; a null pointer stands for `absent`.
template <int N, class T>
__device__ __forceinline__ void load_parameters(float (&v)[N], const T *p, i64 k, float absent) {
  if (p) {
    const auto piece = load_piece<N>(p + k);
#pragma unroll
    for (int lane = 0; lane < N; lane++) v[lane] = to_float(piece.v[lane]);
  } else {
#pragma unroll
    for (int lane = 0; lane < N; lane++) v[lane] = absent;
  }
}

// The pieces of a row that one thread takes: lane, lane + width, ... before `count`. They stay in registers from one
// pass to the next where HELD of them suffice, and are read again where not, or where 16-bit lanes cost more to unpack.
constexpr int HELD = 8;

template <int N, class T> struct Pieces {
  decltype(load_piece<N>(static_cast<const T *>(nullptr))) held[HELD];
  const T *row;
  unsigned lane, width, count;
  bool all;
  __device__ __forceinline__ Pieces(const T *row, unsigned lane, unsigned width, unsigned count)
      : row(row), lane(lane), width(width), count(count), all(N <= 4 && count <= HELD * width) {
    if (!all) return;
#pragma unroll
    for (int k = 0; k < HELD; k++)
      if (lane + k * width < count) held[k] = load_piece<N>(row + i64(lane + k * width) * N);
  }
  // f(piece, index) for each of them
  template <class F> __device__ __forceinline__ void each(const F &f) {
    if (all) {
#pragma unroll
      for (int k = 0; k < HELD; k++)
        if (lane + k * width < count) f(held[k], lane + k * width);
    } else {
#pragma unroll 2
      for (unsigned k = lane; k < count; k += width) f(load_piece<N>(row + i64(k) * N), k);
    }
  }
};

// ---- moments of `count` numbers: their mean, and m2 = sum((v - mean)^2)

struct Moments {
  float mean, m2, count;
};

// Chan's formula: no digits are lost, however large the mean. Either count may be 0.
__device__ __forceinline__ Moments merge_moments(const Moments &a, const Moments &b) {
  const float count = a.count + b.count, share = count > 0 ? b.count / count : 0.0f, away = b.mean - a.mean;
  return {a.mean + away * share, a.m2 + b.m2 + away * (away * (a.count * share)), count};
}

// ---- what else is merged

struct MergeMoments {
  __device__ Moments operator()(const Moments &a, const Moments &b) const { return merge_moments(a, b); }
};
struct Pair {
  float sum, dot;
};
struct MergePairs {
  __device__ Pair operator()(const Pair &a, const Pair &b) const { return {a.sum + b.sum, a.dot + b.dot}; }
};
struct Add {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// ---- groups of `width` threads, a power of two up to 32, or all THREADS of the block

template <class State> __device__ __forceinline__ State shuffle(const State &s, int lane, int width) {
  static_assert(sizeof(State) % 4 == 0, "shuffles move words");
  int words[sizeof(State) / 4];
  memcpy(words, &s, sizeof(State));
#pragma unroll
  for (unsigned k = 0; k < sizeof(State) / 4; k++) words[k] = __shfl_sync(~0u, words[k], lane, width);
  State moved;
  memcpy(&moved, words, sizeof(State));
  return moved;
}

// Every thread of a group gets the group's result. All threads of the block call it.
template <class State, class Merge>
__device__ __forceinline__ State fold_group(State s, int width, const Merge &merge) {
  __shared__ State warps[THREADS / 32];
  const int inside = width < 32 ? width : 32, lane = threadIdx.x % inside;
  for (int d = inside / 2; d; d /= 2) s = merge(s, shuffle(s, lane + d, inside));  // lane 0 meets everyone once
  s = shuffle(s, 0, inside);
  if (width <= 32) return s;
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
  __syncthreads();
  s = warps[0];
  for (int warp = 1; warp < THREADS / 32; warp++) s = merge(s, warps[warp]);
  __syncthreads();  // warps may be written again
  return s;
}

// ---- columns of a matrix of (rows, columns) pieces: a block takes `width` columns and `chunk` rows, `step` at once

struct Walk {
  i64 rows, columns;                // of the matrix
  int width, step;                  // threads along a row, and down the rows: width * step <= THREADS
  int tiles, chunks;                // blocks along a row, and down the rows
  i64 chunk;                        // rows of a block
};

struct Place {
  i64 column;      // this thread's
  int chunk;       // this block's
  i64 begin, end;  // this thread's rows: begin, begin + step, ... before end; none if it has nothing to do
  __device__ __forceinline__ Place(const Walk &w, bool backwards = false) {
    column = i64(blockIdx.x % w.tiles) * w.width + threadIdx.x % w.width;
    chunk = blockIdx.x / w.tiles;
    if (backwards) chunk = w.chunks - 1 - chunk;
    const int row = threadIdx.x / w.width;
    begin = chunk * w.chunk + row;
    end = chunk * w.chunk + w.chunk < w.rows ? chunk * w.chunk + w.chunk : w.rows;
    if (row >= w.step || column >= w.columns) end = begin;
  }
};

// Threads of one column merge their states; those of the block's first row get the results. All threads call it.
template <int N, class State, class Merge>
__device__ __forceinline__ void fold_rows(State (&s)[N], const Walk &w, const Merge &merge) {
  __shared__ State states[N][THREADS];  // [lane][row in the step * width + column]
#pragma unroll
  for (int k = 0; k < N; k++) states[k][threadIdx.x] = s[k];
  __syncthreads();
  const int row = threadIdx.x / w.width;
  for (int left = w.step; left > 1;) {
    const int half = (left + 1) / 2;
    if (row + half < left) {
#pragma unroll
      for (int k = 0; k < N; k++)
        states[k][threadIdx.x] = s[k] = merge(s[k], states[k][threadIdx.x + half * w.width]);
    }
    __syncthreads();
    left = half;
  }
}
