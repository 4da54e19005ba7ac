// What generated kernels of chains are made of (chain.py): N elements of each array at once, in a walk down the columns
// of a matrix (reduce.cuh), whose vectors of channels stay in registers.
#pragma once
#include "lazy/planes.cuh"
#include "ops/pointwise/equation.cuh"
#include "philox.cuh"
#include "reduce.cuh"

// As a float would be read that has been stored as T
template <class T> EQUATION float rounded(float v) { return to_float(from_float<T>(v)); }

// Element k of neighbours in memory, or the only one, which is a bool where T is unsigned char.
template <int N, class T> EQUATION auto get(const Lanes<N, T> &piece, int k) {
  if constexpr (sizeof(T) == 1) return piece.v[k] != 0;
  else return value(piece, k);
}
template <class T> EQUATION auto one(const T *p) { return get(load<1>(p), 0); }

// The same of neighbours from i on in a tensor that has planes in its place.
template <int N> EQUATION auto load_stored(const Stored &x, i64 i) {
  if constexpr (N == 4) {
    return x.load(i);
  } else {
    Lanes<N, float> piece;
    UNROLL for (int k = 0; k < N; k++) piece.v[k] = x.one(i + k);
    return piece;
  }
}
template <int N> EQUATION float get(const Stored &x, const Lanes<N, float> &piece, int k) {
  if constexpr (N == 4) return x.at(piece, k);
  else return piece.v[k];
}

template <class T, int N, class V> EQUATION void put(T *p, const V (&v)[N]) {
  if constexpr (sizeof(T) == 1) {
    Lanes<N, T> piece;
    UNROLL for (int k = 0; k < N; k++) piece.v[k] = v[k];
    store(p, piece);
  } else {
    store_floats(p, v);
  }
}
