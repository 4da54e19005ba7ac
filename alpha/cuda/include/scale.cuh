// What becomes of a sum of products of scaled 16-bit planes (alpha/cuda/lazy/operands.py).
#pragma once
#include "ptx.cuh"

// What two operands' scales make of a sum. They are powers of two, whose product may be out of float's range where the
// result is not: then it is applied in two halves.
struct Scale {
  float first, second;

  INLINE Scale() : first(1), second(1) {}  // of float32
  INLINE Scale(const float *a, const float *b) {
    const int exponent = (__float_as_int(*a) >> 23) + (__float_as_int(*b) >> 23) - 254;
    const int half = abs(exponent) < 127 ? exponent : exponent / 2;
    first = __int_as_float((127 + half) << 23);
    second = __int_as_float((127 + exponent - half) << 23);
  }
};

// Right before slices of sums lie the scales of their operands, which one thread of the kernel that makes them tells.
INLINE void tell_scales(void *slots, float a, float b) {
  static_cast<float *>(slots)[-2] = a;
  static_cast<float *>(slots)[-1] = b;
}
INLINE Scale told_scale(const void *slots) {
  const float *behind = static_cast<const float *>(slots);
  return Scale(behind - 2, behind - 1);
}
