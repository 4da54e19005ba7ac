// V elements that a thread reads and writes at once, packets of 16 bytes or one by one, and computes with as float32.
// Two 16-bit elements of a word are converted where they are, which saves taking the word apart.
#pragma once
#include <string.h>
#include <type_traits>

#include "storage.cuh"

template <int V, class T> struct Lanes { T v[V]; };

// p: a multiple of V elements, or of 16 bytes where these are fewer
template <int V, class T> INLINE Lanes<V, T> load(const T *p) {
  constexpr int EACH = V < LANES<T> ? V : LANES<T>;  // in one access
  using Word = typename BitsOf<EACH * sizeof(T)>::type;
  static_assert(V % EACH == 0, "whole words");
  Lanes<V, T> lanes;
  UNROLL for (int k = 0; k < V; k += EACH) {
    const Word word = *reinterpret_cast<const Word *>(p + k);
    memcpy(lanes.v + k, &word, sizeof(word));
  }
  return lanes;
}
template <int V, class T> INLINE void store(T *p, const Lanes<V, T> &lanes) {
  constexpr int EACH = V < LANES<T> ? V : LANES<T>;
  using Word = typename BitsOf<EACH * sizeof(T)>::type;
  UNROLL for (int k = 0; k < V; k += EACH) {
    Word word;
    memcpy(&word, lanes.v + k, sizeof(word));
    *reinterpret_cast<Word *>(p + k) = word;
  }
}

// Element k
template <int V, class T> INLINE float value(const Lanes<V, T> &lanes, int k) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    unsigned word;
    memcpy(&word, lanes.v + (k - k % 2), 4);
    return float_of_pair<T>(word, k % 2);
  } else {
    return to_float(lanes.v[k]);
  }
}
// All elements, of lanes that stay in registers: they are converted each time anew, as floats of 16-bit elements would
// take twice the registers.
template <int V, class T> INLINE void unpack(float (&values)[V], Lanes<V, T> &lanes) {
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    UNROLL for (int k = 0; k < V; k += 2) {
      unsigned word;
      memcpy(&word, lanes.v + k, 4);
      ptx::forget(word);
      memcpy(lanes.v + k, &word, 4);
      values[k] = float_of_pair<T>(word, false);
      values[k + 1] = float_of_pair<T>(word, true);
    }
  } else {
    UNROLL for (int k = 0; k < V; k++) values[k] = to_float(lanes.v[k]);
  }
}
template <int V, class T> INLINE void store_floats(T *p, const float (&values)[V]) {
  Lanes<V, T> lanes;
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    UNROLL for (int k = 0; k < V; k += 2) {
      const unsigned word = pair_of_floats<T>(values[k], values[k + 1]);
      memcpy(lanes.v + k, &word, 4);
    }
  } else {
    UNROLL for (int k = 0; k < V; k++) lanes.v[k] = from_float<T>(values[k]);
  }
  store(p, lanes);
}

// e^x, exact enough for results that are stored as T: 16 bits do with the device's own 2^x.
template <class T> INLINE float exp_for(float x) { return sizeof(T) == 2 ? ptx::exp2(x * 1.44269504f) : expf(x); }
