// What batch norm does to an element, forward and back: the only place that says so. The norm's own passes
// (channel_norm.cuh) and chains of pointwise ops (chained.py) call these, so both round alike.
//
//   away = x - mean;  scale = gamma * istd
//   y = away * scale + beta (+ residual), then relu where it follows; NaN passes
//   v = g where relu passed, else 0;  dx = scale * v + (away * slope + offset)
#pragma once
#include "storage.cuh"

INLINE float standardized(float away, float scale, float shift) { return __fmaf_rn(away, scale, shift); }
INLINE float passed(float v, float y) { return y <= 0 ? 0 : v; }
INLINE float norm_gradient(float v, float away, float scale, float slope, float offset) {
  return __fmaf_rn(scale, v, __fmaf_rn(away, slope, offset));
}

// ---- functions of chains, which get what a channel has instead of what a thread has made of it ----------------------

#define CHANNEL float mean, float istd, float gamma, float beta
#define COEFFICIENTS float slope, float offset

INLINE float norm_away_of(float x, float mean) { return __fadd_rn(x, -mean); }
INLINE float norm_of(float x, CHANNEL) {
  return standardized(norm_away_of(x, mean), __fmul_rn(gamma, istd), beta);
}
INLINE float norm_relu_of(float x, CHANNEL) {
  const float v = norm_of(x, mean, istd, gamma, beta);
  return v < 0 ? 0 : v;
}
INLINE float norm_add_of(float x, CHANNEL, float residual) {
  return __fadd_rn(norm_of(x, mean, istd, gamma, beta), residual);
}
INLINE float norm_add_relu_of(float x, CHANNEL, float residual) {
  const float v = norm_add_of(x, mean, istd, gamma, beta, residual);
  return v < 0 ? 0 : v;
}
INLINE float norm_relu_grad_of(float g, float x, CHANNEL) { return passed(g, norm_of(x, mean, istd, gamma, beta)); }
INLINE float norm_grad_of(float v, float x, float mean, float istd, float gamma, COEFFICIENTS) {
  return norm_gradient(v, norm_away_of(x, mean), __fmul_rn(gamma, istd), slope, offset);
}
INLINE float norm_grad_from_of(float g, float x, CHANNEL, COEFFICIENTS) {
  return norm_grad_of(g, x, mean, istd, gamma, slope, offset);
}
INLINE float norm_grad_from_relu_of(float g, float x, CHANNEL, COEFFICIENTS) {
  return norm_grad_of(norm_relu_grad_of(g, x, mean, istd, gamma, beta), x, mean, istd, gamma, slope, offset);
}
