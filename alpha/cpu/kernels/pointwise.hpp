// What:    y[i] = f(a[i], b[i], ...) over flat arrays: the loop of kernels that are made from equations (alpha/cpu/pointwise.py)
// Layout:  contiguous. A condition is a byte, 0 or 1, in memory and a vint of 0 and -1 in a register.
// Threads: the caller's, see pointwise.cpp. Ends are read in part and computed as all else, so that an element has the
//          same bits wherever it lies.
#pragma once

#include "functions.hpp"

typedef uint8_t vbyte __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vfloat get(const float* p, int64_t left) { return left >= LANES ? load(p) : load_part(p, left); }
INLINE vint get(const uint8_t* p, int64_t left) {
  vbyte bytes = {};
  if (left >= LANES) bytes = *reinterpret_cast<const vbyte*>(p);
  else
    for (int64_t i = 0; i < left; i++) bytes[i] = p[i];
  return __builtin_convertvector(bytes, vint) != 0;
}
INLINE void put(float* p, vfloat v, int64_t left) { left >= LANES ? store(p, v) : store_part(p, v, left); }
INLINE void put(uint8_t* p, vint v, int64_t left) {
  const vbyte bytes = __builtin_convertvector(v & 1, vbyte);
  if (left >= LANES) *reinterpret_cast<vbyte*>(p) = bytes;
  else
    for (int64_t i = 0; i < left; i++) p[i] = bytes[i];
}

template <class F, class Out, class... In>
INLINE void map(int64_t n, const F& f, Out* out, const In*... in) {
  for (int64_t i = 0; i < n; i += LANES) put(out + i, f(get(in + i, n - i)...), n - i);
}
