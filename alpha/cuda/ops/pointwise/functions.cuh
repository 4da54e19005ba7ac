// What elementwise ops without an equation do to floats, computed by CUDA's accurate functions, and to integers.
#pragma once
#include "equation.cuh"

INLINE float sin_of(float x) { return sinf(x); }
INLINE float cos_of(float x) { return cosf(x); }
INLINE float floor_of(float x) { return floorf(x); }

// Squares exactly: the most frequent power is not worth a logarithm.
INLINE float pow_of(float a, float b) { return b == 2 ? a * a : b == 1 ? a : powf(a, b); }

// The quotient of the largest multiple of b that is not above a, towards -inf; what fmodf leaves is exact.
INLINE float floor_divide_of(float a, float b) {
  if (b == 0) return a / b;
  const float rest = fmodf(a, b), quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  const float whole = floorf(quotient);
  return quotient == 0 ? copysignf(0.0f, a / b) : whole + (quotient - whole > 0.5f);
}
// What that leaves of a, exactly, with the sign of b
INLINE float remainder_of(float a, float b) {
  const float rest = fmodf(a, b);
  return rest == 0 ? copysignf(0.0f, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}

// As PyTorch has it: logarithms of at least -100; NaN where p is outside [0, 1]
INLINE float binary_cross_entropy_of(float p, float target) {
  const number least(-100);
  return (target - 1) * maximum(log1pf(-p), least).v - target * maximum(logf(p), least).v;
}

namespace integers {
INLINE i64 floor_of(i64 x) { return x; }
INLINE i64 floor_divide_of(i64 a, i64 b) {
  if (b == 0) return 0;
  if (b == -1) return 0 - static_cast<unsigned long long>(a);  // the smallest integer wraps around
  const i64 quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
INLINE i64 remainder_of(i64 a, i64 b) { return a - static_cast<unsigned long long>(floor_divide_of(a, b)) * b; }
}  // namespace integers
