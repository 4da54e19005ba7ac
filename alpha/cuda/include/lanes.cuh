// V elements that a thread reads and writes at once, packets of 16 bytes or one by one, and computes with as float32.
// Two 16-bit elements of a word are converted where they are, which saves taking the word apart.
#pragma once
#include <string.h>
#include <type_traits>

#include "storage.cuh"

template <int V, class T> struct Lanes { T v[V]; };

template <int V> using BytesOf = std::conditional_t<V == 8, uint2, unsigned>;  // 8 or 4 of them, in one access

// p: a multiple of V elements where these are packets or bytes
template <int V, class T> INLINE Lanes<V, T> load(const T *p) {
  Lanes<V, T> lanes;
  if constexpr (V % LANES<T> == 0) {
    UNROLL for (int k = 0; k < V; k += LANES<T>) {
      const Packet<T> packet = load16(p + k);
      memcpy(lanes.v + k, &packet, 16);
    }
  } else if constexpr (sizeof(T) == 1 && V >= 4) {
    const BytesOf<V> bytes = *reinterpret_cast<const BytesOf<V> *>(p);
    memcpy(lanes.v, &bytes, V);
  } else {
    UNROLL for (int k = 0; k < V; k++) lanes.v[k] = p[k];
  }
  return lanes;
}
template <int V, class T> INLINE void store(T *p, const Lanes<V, T> &lanes) {
  if constexpr (V % LANES<T> == 0) {
    UNROLL for (int k = 0; k < V; k += LANES<T>) {
      Packet<T> packet;
      memcpy(&packet, lanes.v + k, 16);
      store16(p + k, packet);
    }
  } else if constexpr (sizeof(T) == 1 && V >= 4) {
    BytesOf<V> bytes;
    memcpy(&bytes, lanes.v, V);
    *reinterpret_cast<BytesOf<V> *>(p) = bytes;
  } else {
    UNROLL for (int k = 0; k < V; k++) p[k] = lanes.v[k];
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
