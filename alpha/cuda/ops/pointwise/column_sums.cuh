// Sums down the columns of a matrix, of values and of products, as batch norm's backward needs them (reduce.cuh).
#pragma once
#include "reduce.cuh"

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
