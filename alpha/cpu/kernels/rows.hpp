// Passes over contiguous rows: vectors with an end that is read in part, and sums that keep their digits.
#pragma once

#include "functions.hpp"

constexpr int64_t CHAIN = 8;  // vectors that meet in two float chains; what they are is added in double

// body(i, left): the vector at element i of a row, `left` elements before its end; of a whole one LANES
template <class Body>
INLINE void for_vectors(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) body(i, LANES);
  if (i < n) body(i, n - i);
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
    vfloat even[K] = {}, odd[K] = {};  // two chains, as one would wait for each of its additions
    const int64_t last = std::min(n, first + CHAIN * LANES);
    int64_t i = first;
    for (; i + 2 * LANES <= last; i += 2 * LANES) {
      add(i, LANES, even);
      add(i + LANES, LANES, odd);
    }
    for (; i < last; i += LANES) add(i, last - i, even);
    for (int k = 0; k < K; k++) totals[k] += sum_lanes(even[k] + odd[k]);
  }
}
