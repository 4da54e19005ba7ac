// Passes over contiguous rows: vectors with an end that is read in part, and sums that keep their digits.
#pragma once

#include "functions.hpp"

constexpr int64_t CHAIN = 8;  // vectors that meet in one float chain; what they are is added in double

// body(i, left): the vector at element i of a row, `left` elements before its end
template <class Body>
INLINE void for_vectors(int64_t n, const Body& body) {
  for (int64_t i = 0; i < n; i += LANES) body(i, n - i);
}
// v in the lanes before the end, 0 behind it
INLINE vfloat before_end(vfloat v, int64_t left) {
  if (left >= LANES) return v;
  vint lane;
  UNROLL for (int i = 0; i < LANES; i++) lane[i] = i;
  return lane < static_cast<int32_t>(left) ? v : vfloat{};
}

// totals[k] = the sum of value(k) over the row, of K values that add(i, left, sums) adds to vectors, 0 behind the end
template <int K, class Add>
INLINE void sum_row(int64_t n, double (&totals)[K], const Add& add) {
  for (double& total : totals) total = 0;
  for (int64_t first = 0; first < n; first += CHAIN * LANES) {
    vfloat sums[K] = {};
    const int64_t last = std::min(n, first + CHAIN * LANES);
    for (int64_t i = first; i < last; i += LANES) add(i, n - i, sums);
    for (int k = 0; k < K; k++) totals[k] += sum_lanes(sums[k]);
  }
}
