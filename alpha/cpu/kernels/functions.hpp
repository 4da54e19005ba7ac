// What:    the functions that equations call (alpha/core/equation.py), on vectors of floats. They are within 1.6 ulp;
//          erf and logistic are within 2, the normal distribution within 8. NaN stays NaN, infinities give the
//          limits, and results below 1.2e-38 may be 0.
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
#elif defined(__AVX__)
INLINE vfloat at_least(float low, vfloat x) { return _mm256_max_ps(number(low), x); }
INLINE vfloat at_most(float high, vfloat x) { return _mm256_min_ps(number(high), x); }
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

// Whether all of x is positive, finite and not below 1.2e-38
#if defined(__AVX512F__)
INLINE bool all_normal(vfloat x) {
  const __m512i least = (__m512i)(vint{} + 0x00800000), span = (__m512i)(vint{} + 0x7f000000);
  return _mm512_cmplt_epu32_mask(_mm512_sub_epi32((__m512i)x, least), span) == 0xffff;
}
#elif defined(__AVX__)
INLINE bool all_normal(vfloat x) {
  const vint ok = (x >= 1.17549435e-38f) & (x < __builtin_inff());
  return _mm256_movemask_ps((__m256)ok) == 0xff;
}
#else
INLINE bool all_normal(vfloat) { return false; }
#endif

// c[0] + x * (c[1] + x * (...))
template <int N>
INLINE vfloat polynomial(vfloat x, const float (&c)[N]) {
  vfloat sum = number(c[N - 1]);
  UNROLL for (int k = N - 2; k >= 0; k--) sum = fma(sum, x, number(c[k]));
  return sum;
}

// x + more = n * log(2) + r with |r| <= log(2) / 2
constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to an integer
struct Reduced {
  vfloat shifted, n, r;  // n + ROUND, n, r

  // x * 2^n
  INLINED vfloat scaled(vfloat x) const {
#if defined(__AVX512F__)
    return _mm512_scalef_ps(x, n);
#else
    const vint whole = (vint)shifted - (vint)number(ROUND), half = whole >> 1;
    // in two steps, as 2^n may be beyond the range of floats where the product is not
    return x * power_of_two(half) * power_of_two(whole - half);
#endif
  }
  // The same of n <= 1, where it is 0 from -127 on
  INLINED vfloat scaled_down(vfloat x) const {
#if defined(__AVX512F__)
    return scaled(x);
#else
    return x * power_of_two((vint)shifted - (vint)number(ROUND));
#endif
  }
  static INLINED vfloat power_of_two(vint n) { return (vfloat)((n + 127) << 23); }
};
INLINE Reduced reduced(vfloat x) {
  const vfloat shifted = fma(x, number(1.44269504f), number(ROUND)), n = shifted - ROUND;
  return {shifted, n, fma(n, number(2.12194440e-4f), fma(n, number(-0.693359375f), x))};
}

// (e^r - 1 - r) / r^2
INLINE vfloat exp_rest(vfloat r) {
  return polynomial(r, {5.000000000e-01f, 1.666651815e-01f, 4.166620597e-02f, 8.368917741e-03f, 1.395053812e-03f});
}
// e^r
INLINE vfloat exp_of_rest(vfloat r) { return fma(fma(exp_rest(r), r, number(1)), r, number(1)); }
INLINE vfloat exp_of(const Reduced& x) { return x.scaled(exp_of_rest(x.r)); }
// 0 where e^x is below 1.2e-38: processors take many times as long over numbers with fewer digits, and a mask of -inf
// makes whole vectors of them.
INLINE vfloat exp(vfloat x) {
  const float least = -87.3365f;
  return select(x < least, vfloat{}, exp_of(reduced(at_least(least, at_most(89, x)))));
}

// x is at most 88
INLINE vfloat expm1_of(const Reduced& x) {
  const vfloat power = x.scaled(number(1)), slope = fma(x.r * x.r, exp_rest(x.r), x.r);
  return fma(power, slope, power - 1);
}
INLINE vfloat expm1(vfloat x) {
  const Reduced e = reduced(at_least(-30, at_most(89, x)));
  const vfloat half = e.scaled(number(0.5f)), slope = fma(e.r * e.r, exp_rest(e.r), e.r);
  const vfloat y = fma(half, slope, half - 0.5f);
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

// The significand is in [sqrt(1/2), sqrt(2)); `times`: powers of two that x was multiplied by
INLINE vfloat log_of_normal(vfloat x, vint times) {
  const vint bits = (vint)x, exponent = (bits - 0x3f3504f3) >> 23;
  return log_of((vfloat)(bits - (exponent << 23)) - 1, __builtin_convertvector(exponent - times, vfloat));
}

INLINE vfloat log(vfloat x) {
  if (__builtin_expect(all_normal(x), 1)) return log_of_normal(x, vint{});
  const vint tiny = x < 1.17549435e-38f;
  const vfloat y = log_of_normal(select(tiny, x * 8388608.0f, x), tiny & 23), infinity = number(__builtin_inff());
  return select(x > 0, select(x == infinity, x, y), select(x == 0, -infinity, number(__builtin_nanf(""))));
}

// 1 + x = 2^n * (1 + f), of which f = x / 2^n + (1 / 2^n - 1) is rounded once
INLINE vfloat log1p(vfloat x) {
  const vfloat u = 1 + x;
  const vint exponent = ((vint)u - 0x3f3504f3) >> 23;
  const vfloat over = Reduced::power_of_two(-exponent);
  const vfloat y = log_of(fma(x, over, over - 1), __builtin_convertvector(exponent, vfloat));
  const vfloat signed_y = select(x == 0, x, y);
  if (__builtin_expect(all_normal(u * 4), 1)) return signed_y;
  return select((u > 0) & (u < 8e37f), signed_y, log(u));  // beyond it 1 / 2^n is no normal number
}

INLINE vfloat with_sign(vfloat magnitude, vfloat x) {
  return (vfloat)((vint)magnitude | ((vint)x & static_cast<int32_t>(0x80000000)));
}

// x + x^3 * p(x^2) up to 0.6; beyond it 1 - 2 / (e^(2 |x|) + 1), of which 1 - tanh(x)^2 keeps its digits
INLINE vfloat tanh(vfloat x) {
  const vfloat square = x * x, size = absolute(x);
  const vfloat p = polynomial(square, {-3.333329800e-01f, 1.333192414e-01f, -5.378383117e-02f, 2.079597357e-02f,
                                       -5.895159188e-03f});
  const vfloat far = 1 - 2 / (exp_of(reduced(at_most(88, size + size))) + 1);
  return with_sign(select(size > 0.6f, far, fma(size * square, p, size)), x);
}

// 1 / (2^n + (1 + 2^n * (e^r - 1))), where -x = n * log(2) + r, so that 2^n * e^r is not rounded. The last bits of
// `shifted` are the exponent of 2^n. n is at most 127; beyond it r grows until the sum is infinite.
INLINE vfloat logistic(vfloat x) {
  const vfloat round = number(ROUND + 127), most = at_most(87, x);
  const vfloat shifted = at_most(ROUND + 254, fma(most, number(-1.44269504f), round)), n = shifted - round;
  const vfloat r = fma(n, number(2.12194440e-4f), fma(n, number(-0.693359375f), -most));
  const vfloat power = (vfloat)((vint)shifted << 23), slope = fma(exp_rest(r), r, number(1));
  return 1 / (power + fma(power * r, slope, number(1)));
}

// e^(-z^2 / 2) for 0 <= z <= FAR, where it is 0: z^2 is not rounded before n * log(2), whose first part is exact, is
// taken from it
#if defined(__AVX512F__)
constexpr float FAR = 14.421f;
#else
constexpr float FAR = 13.28f;
#endif
INLINE vfloat bell(vfloat z) {
  const vfloat half = z * -0.5f, shifted = fma(z * half, number(1.44269504f), number(ROUND)), n = shifted - ROUND;
  const Reduced x = {shifted, n, fma(n, number(2.12194440e-4f), fma(z, half, n * -0.693359375f))};
  return x.scaled_down(exp_of_rest(x.r));
}

// The share of a normal distribution above z, 0 <= z <= FAR, over e^(-z^2 / 2); t = 1 / (1 + 0.3 z)
INLINE vfloat tail(vfloat z) {
  const vfloat t = 1 / fma(z, number(0.3f), number(1));
  return polynomial(t, {7.067976640e-07f, 1.196703166e-01f, 1.197357103e-01f, 1.093010679e-01f, 8.175350726e-02f,
                        8.815164119e-02f, -6.664516777e-02f, 1.782460362e-01f, -2.190825492e-01f, 1.088880673e-01f,
                        -2.001934685e-02f});
}

INLINE vfloat normal_cdf(vfloat x) {
  const vfloat z = at_most(FAR, absolute(x)), above = bell(z) * tail(z);
  return select(x > 0, 1 - above, above);
}
INLINE vfloat normal_pdf(vfloat x) { return bell(at_most(FAR, absolute(x))) * 0.39894228f; }

// From 1 to 4 it is 1 - e^-p(|x|)
INLINE vfloat erf(vfloat x) {
  const vfloat square = x * x, size = absolute(x);
  const vfloat rest = polynomial(square, {1.283791065e-01f, -3.761262596e-01f, 1.128358543e-01f, -2.685381100e-02f,
                                          5.188327748e-03f, -8.010192541e-04f, 7.853857824e-05f});
  const vfloat inner = fma(x, rest, x);
  const vfloat power = polynomial(at_most(4, size), {-3.53711133e-04f, -1.12704003e+00f, -6.38225675e-01f,
                                                     -1.03037372e-01f, 2.18053125e-02f, -2.93960376e-03f,
                                                     1.85573459e-04f});
  return select(size < 1, inner, with_sign(1 - exp_of(reduced(power)), x));
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

constexpr int64_t AHEAD = 1024;  // elements to be read and written that the cache is asked for
template <class F, class Out, class... In>
INLINE void map(int64_t n, const F& f, Out* out, const In*... in) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    (__builtin_prefetch(in + i + AHEAD), ...);
    __builtin_prefetch(out + i + AHEAD, 1);
    put(out + i, f(get(in + i, LANES)...), LANES);
  }
  if (i < n) put(out + i, f(get(in + i, n - i)...), n - i);
}

// ---- the loop of a kernel made from a rule: f changes vectors of all lists but the last, in place -------------------

template <int LISTS, class F>
INLINE void update(float* const* lists, int64_t n, const F& f) {
  float* at[LISTS];  // read once: a store might change what `lists` points to
  vfloat x[LISTS];
  UNROLL for (int k = 0; k < LISTS; k++) at[k] = lists[k];
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    UNROLL for (int k = 0; k < LISTS; k++) x[k] = load(at[k] + i);
    f(x);
    UNROLL for (int k = 0; k + 1 < LISTS; k++) store(at[k] + i, x[k]);
  }
  if (i == n) return;
  UNROLL for (int k = 0; k < LISTS; k++) x[k] = load_part(at[k] + i, n - i);
  f(x);
  UNROLL for (int k = 0; k + 1 < LISTS; k++) store_part(at[k] + i, x[k], n - i);
}
