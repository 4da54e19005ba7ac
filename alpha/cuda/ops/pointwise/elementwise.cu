// What:     arithmetic and comparisons, element by element; one line per op
// Layout:   flat, C-contiguous; see elementwise.cuh for broadcasting and the thread map
// Numbers:  floats are computed in float32, by CUDA's accurate functions; integers wrap around, as in NumPy
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): add 98 %, to a vector of channels 92 %
#include "elementwise.cuh"

// ---- sets of dtypes -------------------------------------------------------------------------------------------------

#define UNARY(name, f) MAP1(name, x, f)
#define BINARY(name, f) BROADCAST2(name, a, b, f)

// Integers, computed in one type for those of up to 32 bits and one for 64
#define INTEGERS(KERNEL, name, C, C64, ...) \
  KERNEL(name, int32, int, int, C, __VA_ARGS__) \
  KERNEL(name, int64, i64, i64, C64, __VA_ARGS__) \
  KERNEL(name, uint8, u8, u8, C, __VA_ARGS__)

// In unsigned types, where wrapping around is defined, and in types that keep their order
#define WRAPPING_INTEGERS(name, f) INTEGERS(KERNEL1, name, u32, u64, x, f)
#define WRAPPING_UNARY(name, f) UNARY(name, f) WRAPPING_INTEGERS(name, f)
#define WRAPPING_BINARY(name, f) BINARY(name, f) INTEGERS(BROADCAST_KERNEL2, name, u32, u64, a, b, f)
#define ORDERED_UNARY(name, f, ...) INTEGERS(KERNEL1, name, i64, i64, x, f, ##__VA_ARGS__)
#define ORDERED_BINARY(name, f) BINARY(name, f) INTEGERS(BROADCAST_KERNEL2, name, int, i64, a, b, f)

#define COMPARISON(name, f) \
  BROADCAST_KERNEL2(name, float32, float, u8, float, a, b, f) \
  BROADCAST_KERNEL2(name, bfloat16, bf16, u8, float, a, b, f) \
  BROADCAST_KERNEL2(name, float16, f16, u8, float, a, b, f) \
  BROADCAST_KERNEL2(name, int32, int, u8, int, a, b, f) \
  BROADCAST_KERNEL2(name, int64, i64, u8, i64, a, b, f) \
  BROADCAST_KERNEL2(name, uint8, u8, u8, int, a, b, f)

// ---- one tensor -----------------------------------------------------------------------------------------------------

WRAPPING_UNARY(neg, -x)
UNARY(exp, expf(x))
UNARY(log, logf(x))
UNARY(sqrt, sqrtf(x))
UNARY(erf, erff(x))
UNARY(sin, sinf(x))
UNARY(cos, cosf(x))
UNARY(floor, floorf(x))
WRAPPING_INTEGERS(floor, x)
UNARY(abs, fabsf(x))
ORDERED_UNARY(abs, static_cast<i64>(x < 0 ? 0 - static_cast<u64>(x) : x))
UNARY(sign, (x > 0) - (x < 0))
ORDERED_UNARY(sign, (x > 0) - (x < 0))
MAP1(clip, x, smaller(larger(x, low), high), float low, float high)
ORDERED_UNARY(clip, min(max(x, low), high), i64 low, i64 high)
MAP2(clip_grad, g, x, x >= low && x <= high ? g : 0, float low, float high)
// As PyTorch has it: logarithms of at least -100; NaN where p is outside [0, 1]
MAP2(binary_cross_entropy, p, t, (t - 1) * larger(log1pf(-p), -100.0f) - t * larger(logf(p), -100.0f))

// ---- two tensors ----------------------------------------------------------------------------------------------------

// Squares exactly: the most frequent power is not worth a logarithm.
INLINE float power(float a, float b) { return b == 2 ? a * a : b == 1 ? a : powf(a, b); }

// The quotient of the largest multiple of b that is not above a, towards -inf; what fmodf leaves is exact.
INLINE float floor_divide(float a, float b) {
  if (b == 0) return a / b;
  const float rest = fmodf(a, b), quotient = (a - rest) / b - (rest != 0 && (rest < 0) != (b < 0));
  const float whole = floorf(quotient);
  return quotient == 0 ? copysignf(0.0f, a / b) : whole + (quotient - whole > 0.5f);
}
template <class T> INLINE T floor_divide(T a, T b) {
  if (b == 0) return 0;
  if (b == static_cast<T>(-1)) return static_cast<T>(0 - static_cast<u64>(a));  // the smallest integer wraps around
  const T quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}

// What that leaves of a, exactly, with the sign of b
INLINE float rest_of(float a, float b) {
  const float rest = fmodf(a, b);
  return rest == 0 ? copysignf(0.0f, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}
template <class T> INLINE T rest_of(T a, T b) { return static_cast<T>(a - static_cast<u64>(floor_divide(a, b)) * b); }

WRAPPING_BINARY(add, a + b)
WRAPPING_BINARY(sub, a - b)
WRAPPING_BINARY(mul, a * b)
BINARY(div, a / b)
BINARY(pow, power(a, b))
ORDERED_BINARY(floor_divide, floor_divide(a, b))
ORDERED_BINARY(remainder, rest_of(a, b))
ORDERED_BINARY(maximum, larger(a, b))
ORDERED_BINARY(minimum, smaller(a, b))
COMPARISON(eq, a == b)
COMPARISON(ne, a != b)
COMPARISON(lt, a < b)
COMPARISON(le, a <= b)
