// What is merged of many numbers: moments and sums, in float32.
#pragma once
#include "ptx.cuh"

// Of `count` numbers: their mean, and m2 = sum((v - mean)^2).
struct Moments { float mean, m2, count; };

// Chan's formula: no digits are lost, however large the mean. Either count may be 0.
INLINE Moments merge_moments(const Moments &a, const Moments &b) {
  const float count = a.count + b.count, share = count > 0 ? b.count / count : 0.0f, away = b.mean - a.mean;
  return {a.mean + away * share, a.m2 + b.m2 + away * (away * (a.count * share)), count};
}

// A sum and what rounding has left out of it, so that the error does not grow with the number of terms (Knuth's
// two-sum). What is left out goes into the next term: added up apart it would lose digits itself in millions of terms.
// Where the sum is not finite, `rest` is NaN and says nothing.
struct ExactSum {
  float sum, rest;
  INLINE void add(float v) {
    const float term = rest == rest ? v + rest : v, total = sum + term, of_term = total - sum;
    rest = (sum - (total - of_term)) + (term - of_term);
    sum = total;
  }
  INLINE float value() const { return rest == rest ? sum + rest : sum; }
};
// The same of few terms, which need no care.
struct ShortSum {
  float sum;
  INLINE void add(float v) { sum += v; }
  INLINE float value() const { return sum; }
};
