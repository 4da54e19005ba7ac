// How tensors are stored, and how kernels read them: float32, bfloat16 or float16 in memory, float32 in arithmetic,
// 16 bytes at a time. Every tensor starts at a multiple of 256 bytes, so element k * LANES<T> is always aligned.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include "ptx.cuh"

using bf16 = __nv_bfloat16;
using f16 = __half;
using i64 = long long;

INLINE float to_float(float v) { return v; }
INLINE float to_float(bf16 v) { return __bfloat162float(v); }
INLINE float to_float(f16 v) { return __half2float(v); }

template <class T> INLINE T from_float(float v);
template <> INLINE float from_float<float>(float v) { return v; }
template <> INLINE bf16 from_float<bf16>(float v) { return __float2bfloat16_rn(v); }
template <> INLINE f16 from_float<f16>(float v) { return __float2half_rn(v); }

// Two 16-bit elements in a word, the first one in its lower half.
template <class T> INLINE float float_of_pair(unsigned word, bool second);
template <> INLINE float float_of_pair<bf16>(unsigned word, bool second) {
  return __uint_as_float(second ? word & 0xffff0000u : word << 16);
}
template <> INLINE float float_of_pair<f16>(unsigned word, bool second) {
  union { unsigned word; __half2 pair; } u{word};
  return second ? __high2float(u.pair) : __low2float(u.pair);
}
template <class T> INLINE unsigned pair_of_floats(float first, float second);
template <> INLINE unsigned pair_of_floats<bf16>(float first, float second) {
  union { __nv_bfloat162 pair; unsigned word; } u{__floats2bfloat162_rn(first, second)};
  return u.word;
}
template <> INLINE unsigned pair_of_floats<f16>(float first, float second) {
  union { __half2 pair; unsigned word; } u{__floats2half2_rn(first, second)};
  return u.word;
}

// Two neighbours of a tensor; `to` is a multiple of two elements.
INLINE void store_pair(float *to, float first, float second) {
  *reinterpret_cast<float2 *>(to) = make_float2(first, second);
}
template <class T> INLINE void store_pair(T *to, float first, float second) {
  *reinterpret_cast<unsigned *>(to) = pair_of_floats<T>(first, second);
}

template <class T> constexpr int LANES = 16 / sizeof(T);  // elements of one 16-byte access

// Instantiates a kernel for every storage type: KERNEL(T, dtype) defines `<name>_<dtype>`.
#define FLOAT_KERNELS(KERNEL) KERNEL(float, float32) KERNEL(bf16, bfloat16) KERNEL(f16, float16)
