// What generated kernels of chains are made of (chain.py): N elements of each array at once, in a walk down the columns
// of a matrix (reduce.cuh), whose vectors of channels stay in registers.
#pragma once
#include "ops/pointwise/equation.cuh"
#include "philox.cuh"
#include "reduce.cuh"

// N neighbours in memory; T is unsigned char for bools.
template <class T, int N> struct Some {
  using Word = typename BitsOf<(sizeof(T) * N < 16 ? sizeof(T) * N : 16)>::type;
  static constexpr int WORDS = sizeof(T) * N / sizeof(Word);
  Word words[WORDS];

  EQUATION void load(const T *p) {
    UNROLL for (int k = 0; k < WORDS; k++) words[k] = reinterpret_cast<const Word *>(p)[k];
  }
  EQUATION void store(T *p) const {
    UNROLL for (int k = 0; k < WORDS; k++) reinterpret_cast<Word *>(p)[k] = words[k];
  }
  EQUATION auto get(int k) const {
    if constexpr (sizeof(T) == 2 && N % 2 == 0) {
      unsigned pair;
      memcpy(&pair, reinterpret_cast<const char *>(words) + k / 2 * 4, 4);
      return float_of_pair<T>(pair, k % 2);
    } else {
      T v;
      memcpy(&v, reinterpret_cast<const char *>(words) + k * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 1) return v != 0;
      else return to_float(v);
    }
  }
  template <class V> EQUATION void set(const V (&v)[N]) {
    UNROLL for (int k = 0; k < N; k += sizeof(T) == 2 && N % 2 == 0 ? 2 : 1) {
      char *p = reinterpret_cast<char *>(words) + k * sizeof(T);
      if constexpr (sizeof(T) == 2 && N % 2 == 0) {
        const unsigned pair = pair_of_floats<T>(v[k], v[k + 1]);
        memcpy(p, &pair, 4);
      } else if constexpr (sizeof(T) == 1) {
        *p = v[k];
      } else {
        const T one = from_float<T>(v[k]);
        memcpy(p, &one, sizeof(T));
      }
    }
  }
};

// As a float would be read that has been stored as T
template <class T> EQUATION float rounded(float v) { return to_float(from_float<T>(v)); }

template <int N, class T> EQUATION Some<T, N> some(const T *p) {
  Some<T, N> piece;
  piece.load(p);
  return piece;
}
template <int N> EQUATION auto one(const unsigned char *p) { return *p != 0; }
template <int N, class T> EQUATION auto one(const T *p) { return to_float(*p); }

template <class T, int N, class V> EQUATION void put(T *p, const V (&v)[N]) {
  Some<T, N> piece;
  piece.set(v);
  piece.store(p);
}

// partial[sum of v, of v * w][C][chunks], of columns of N: what batch norm's backward needs, see channel_norm.cuh
template <int N> EQUATION void put_sums(Pair (&s)[N], float *partial, const Walk &w, const Place &at) {
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
  const i64 first = at.column * N, stride = w.columns * N;
  UNROLL for (int lane = 0; lane < N; lane++) {
    partial[(first + lane) * w.chunks + at.chunk] = s[lane].sum;
    partial[(stride + first + lane) * w.chunks + at.chunk] = s[lane].dot;
  }
}
