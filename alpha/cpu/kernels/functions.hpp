// What:    the functions that equations call (alpha/fuse/equation.py), on vectors of floats; within 1.5 ulp, tanh, erf
//          and logistic within 2.5. NaN stays NaN, infinities give the limits, and results below 1.2e-38 may be 0.
// Source:  argument reductions are the usual ones (powers of two); polynomials were fitted for these intervals,
//          relative error below 6e-9. The lower tail of the normal distribution is e^(-z^2 / 2) times one, so nothing
//          cancels there.
// Bits:    nothing is contracted but what says fma, so that an equation gives the same bits alone and within others.
#pragma once

#include "vec.hpp"

INLINE vfloat number(float x) { return broadcast(x); }
INLINE vfloat select(vint condition, vfloat a, vfloat b) { return condition ? a : b; }
// NaN wins
INLINE vfloat maximum(vfloat a, vfloat b) { return select((a > b) | (a != a), a, b); }
INLINE vfloat minimum(vfloat a, vfloat b) { return select((a < b) | (a != a), a, b); }
// x within bounds; NaN stays NaN
#if defined(__AVX512F__)
INLINE vfloat at_least(float low, vfloat x) { return _mm512_max_ps(number(low), x); }
INLINE vfloat at_most(float high, vfloat x) { return _mm512_min_ps(number(high), x); }
#else
INLINE vfloat at_least(float low, vfloat x) { return select(x < low, number(low), x); }
INLINE vfloat at_most(float high, vfloat x) { return select(x > high, number(high), x); }
#endif
INLINE vfloat absolute(vfloat x) { return (vfloat)((vint)x & 0x7fffffff); }

// a * b + c, rounded once where the processor can
#if defined(__AVX512F__)
INLINE vfloat fma(vfloat a, vfloat b, vfloat c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vfloat sqrt(vfloat x) { return _mm512_sqrt_ps(x); }
#elif defined(__FMA__)
INLINE vfloat fma(vfloat a, vfloat b, vfloat c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vfloat sqrt(vfloat x) { return _mm256_sqrt_ps(x); }
#else
INLINE vfloat fma(vfloat a, vfloat b, vfloat c) { return a * b + c; }
INLINE vfloat sqrt(vfloat x) {
  UNROLL for (int i = 0; i < LANES; i++) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
#endif

// c[0] + x * (c[1] + x * (...))
template <int N>
INLINE vfloat polynomial(vfloat x, const float (&c)[N]) {
  vfloat sum = number(c[N - 1]);
  UNROLL for (int k = N - 2; k >= 0; k--) sum = fma(sum, x, number(c[k]));
  return sum;
}

// 2^n for integers n from -126 to 127, as floats that have ROUND added to them
constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
INLINE vfloat power_of_two(vint n) { return (vfloat)((n + 127) << 23); }

// x = n * log(2) + r with |r| <= log(2) / 2; e^r = 1 + slope
struct Reduced {
  vint n;
  vfloat slope;
};
INLINE Reduced reduced(vfloat x) {
  const vfloat shifted = fma(x, number(1.44269504f), number(ROUND)), n = shifted - ROUND;
  const vfloat r = fma(n, number(2.12194440e-4f), fma(n, number(-0.693359375f), x));
  const vfloat p = polynomial(r, {5.000000000e-01f, 1.666651815e-01f, 4.166620597e-02f, 8.368917741e-03f,
                                  1.395053812e-03f});
  return {(vint)shifted - (vint)number(ROUND), fma(r * r, p, r)};
}

INLINE vfloat exp(vfloat x) {
  const Reduced e = reduced(at_least(-104, at_most(89, x)));
#if defined(__AVX512F__)
  return _mm512_scalef_ps(1 + e.slope, __builtin_convertvector(e.n, vfloat));
#else
  const vint half = e.n >> 1;  // in two steps, as 2^n may be beyond the range of floats where e^x is not
  return (1 + e.slope) * power_of_two(half) * power_of_two(e.n - half);
#endif
}

INLINE vfloat expm1(vfloat x) {
  const Reduced e = reduced(at_least(-30, at_most(89, x)));
  const vfloat half = power_of_two(e.n - 1), y = fma(half, e.slope, half - 0.5f);
  return select(x == 0, x, y + y);  // -0 stays -0
}

// log(1 + f) = f - f^2 / 2 + f^3 * p(f), and n * log(2)
INLINE vfloat log_of(vfloat f, vfloat n) {
  const vfloat p = polynomial(f, {3.333331347e-01f, -2.500000894e-01f, 2.000211924e-01f, -1.666799635e-01f,
                                  1.421955079e-01f, -1.240559146e-01f, 1.188817471e-01f, -1.167564094e-01f,
                                  6.746601313e-02f});
  const vfloat square = f * f, low = fma(n, number(-2.12194440e-4f), square * f * p);
  return fma(n, number(0.693359375f), f + fma(square, number(-0.5f), low));
}

INLINE vfloat log(vfloat x) {
  const vint tiny = x < 1.17549435e-38f;
  const vfloat scaled = select(tiny, x * 8388608.0f, x);
  const vint bits = (vint)scaled, exponent = (bits - 0x3f3504f3) >> 23;  // the significand is in [sqrt(1/2), sqrt(2))
  const vfloat n = __builtin_convertvector(exponent + (tiny & -23), vfloat);
  const vfloat y = log_of((vfloat)(bits - (exponent << 23)) - 1, n);
  const vfloat infinity = number(__builtin_inff());
  return select(x > 0, select(x == infinity, x, y), select(x == 0, -infinity, number(__builtin_nanf(""))));
}

INLINE vfloat log1p(vfloat x) {
  const vfloat u = 1 + x, lost = select(x < 1, x - (u - 1), 1 - (u - x));  // what rounding has left out of u
  return select((x == 0) | (u == __builtin_inff()), x, log(u) + select(u > 0, lost / u, vfloat{}));
}

INLINE vfloat with_sign(vfloat magnitude, vfloat x) {
  return (vfloat)((vint)magnitude | ((vint)x & static_cast<int32_t>(0x80000000)));
}

// t / (t + 2) with t = e^(2 |x|) - 1; where that is near 1, 1 - 2 / (t + 2), of which 1 - tanh(x)^2 keeps its digits
INLINE vfloat tanh(vfloat x) {
  const vfloat size = absolute(x), t = expm1(size + size);
  const vint large = size > 0.55f;
  return with_sign(select(large, number(-2), t) / (t + 2) + select(large, number(1), number(0)), x);
}

// 0 where e^-x is infinite, as it should be
INLINE vfloat logistic(vfloat x) { return 1 / (1 + exp(-x)); }

// e^(-x^2 / 2): what rounding leaves out of x^2 counts where that is large
INLINE vfloat bell(vfloat x) {
  const vfloat limited = at_most(20, absolute(x)), square = limited * limited;
  const vfloat lost = fma(limited, limited, -square);
  return exp(square * -0.5f) * fma(lost, number(-0.5f), number(1));
}

// The share of a normal distribution above z >= 0, over e^(-z^2 / 2); t = 1 / (1 + 0.3 z)
INLINE vfloat tail(vfloat z) {
  const vfloat t = 1 / fma(z, number(0.3f), number(1));
  return polynomial(t, {7.067976640e-07f, 1.196703166e-01f, 1.197357103e-01f, 1.093010679e-01f, 8.175350726e-02f,
                        8.815164119e-02f, -6.664516777e-02f, 1.782460362e-01f, -2.190825492e-01f, 1.088880673e-01f,
                        -2.001934685e-02f});
}

INLINE vfloat normal_cdf(vfloat x) {
  const vfloat above = bell(x) * tail(absolute(x));
  return select(x > 0, 1 - above, above);
}
INLINE vfloat normal_pdf(vfloat x) { return bell(x) * 0.39894228f; }

INLINE vfloat erf(vfloat x) {
  const vfloat square = x * x, z = absolute(x) * 1.41421356f;
  const vfloat rest = polynomial(square, {1.283791065e-01f, -3.761262596e-01f, 1.128358543e-01f, -2.685381100e-02f,
                                          5.188327748e-03f, -8.010192541e-04f, 7.853857824e-05f});
  const vfloat inner = fma(x, rest, x);
  const vfloat outer = fma(bell(z) * tail(z), number(-2), number(1));
  return select(absolute(x) < 1, inner, with_sign(outer, x));
}

// ---- the loop of a kernel made from an equation: y[i] = f(a[i], b[i], ...) over contiguous arrays -------------------
//
// A condition is a byte, 0 or 1, in memory, and a vint of 0 and -1 in a register. Ends are read in part and computed as
// all else, so that an element has the same bits wherever it lies.

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
