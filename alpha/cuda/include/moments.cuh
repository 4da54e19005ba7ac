// Moments of `count` numbers: their mean, and m2 = sum((v - mean)^2).
#pragma once

struct Moments {
  float mean, m2, count;
};

// Chan's formula: no digits are lost, however large the mean. Either count may be 0.
__device__ __forceinline__ Moments merge_moments(const Moments &a, const Moments &b) {
  const float count = a.count + b.count, share = count > 0 ? b.count / count : 0.0f, away = b.mean - a.mean;
  return {a.mean + away * share, a.m2 + b.m2 + away * (away * (a.count * share)), count};
}
