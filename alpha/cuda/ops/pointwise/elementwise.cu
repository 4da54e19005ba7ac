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

// Integers in the unsigned type of their size, where wrapping around is defined
#define WRAPPING_UNARY(name, f) \
  UNARY(name, f) \
  WRAPPING_INTEGERS(name, f)
#define WRAPPING_INTEGERS(name, f) \
  KERNEL1(name, int32, int, int, u32, x, f) \
  KERNEL1(name, int64, i64, i64, u64, x, f) \
  KERNEL1(name, uint8, u8, u8, u32, x, f)
#define WRAPPING_BINARY(name, f) \
  BINARY(name, f) \
  BROADCAST_KERNEL2(name, int32, int, int, u32, a, b, f) \
  BROADCAST_KERNEL2(name, int64, i64, i64, u64, a, b, f) \
  BROADCAST_KERNEL2(name, uint8, u8, u8, u32, a, b, f)

// Integers in a type that keeps their order
#define ORDERED_UNARY(name, f, ...) \
  KERNEL1(name, int32, int, int, i64, x, f, ##__VA_ARGS__) \
  KERNEL1(name, int64, i64, i64, i64, x, f, ##__VA_ARGS__) \
  KERNEL1(name, uint8, u8, u8, i64, x, f, ##__VA_ARGS__)
#define ORDERED_BINARY(name, f) \
  BINARY(name, f) \
  BROADCAST_KERNEL2(name, int32, int, int, int, a, b, f) \
  BROADCAST_KERNEL2(name, int64, i64, i64, i64, a, b, f) \
  BROADCAST_KERNEL2(name, uint8, u8, u8, int, a, b, f)

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

WRAPPING_BINARY(add, a + b)
WRAPPING_BINARY(sub, a - b)
WRAPPING_BINARY(mul, a * b)
BINARY(div, a / b)
BINARY(pow, power(a, b))
ORDERED_BINARY(floor_divide, floor_divide(a, b))
ORDERED_BINARY(maximum, larger(a, b))
ORDERED_BINARY(minimum, smaller(a, b))
COMPARISON(eq, a == b)
COMPARISON(ne, a != b)
COMPARISON(lt, a < b)
COMPARISON(le, a <= b)
