// What equations are made of (alpha/core/equation.py), as floats: each operation is rounded by itself, so that an
// equation gives the same bits alone and among others. NaN wins in maximum and minimum.
#pragma once
#include "storage.cuh"

#define EQUATION INLINE
#define ORDERED(number) \
  EQUATION bool operator<(number a, number b) { return a.v < b.v; } \
  EQUATION bool operator<=(number a, number b) { return a.v <= b.v; } \
  EQUATION bool operator>(number a, number b) { return a.v > b.v; } \
  EQUATION bool operator>=(number a, number b) { return a.v >= b.v; } \
  EQUATION bool operator==(number a, number b) { return a.v == b.v; } \
  EQUATION bool operator!=(number a, number b) { return a.v != b.v; } \
  EQUATION number select(bool condition, number a, number b) { return condition ? a : b; } \
  EQUATION number maximum(number a, number b) { return a >= b || a != a ? a : b; } \
  EQUATION number minimum(number a, number b) { return a <= b || a != a ? a : b; }

struct number {
  float v;
  EQUATION number(float v) : v(v) {}
};
ORDERED(number)
EQUATION number operator+(number a, number b) { return number(__fadd_rn(a.v, b.v)); }
EQUATION number operator-(number a, number b) { return number(__fadd_rn(a.v, -b.v)); }
EQUATION number operator*(number a, number b) { return number(__fmul_rn(a.v, b.v)); }
EQUATION number operator/(number a, number b) { return number(__fdiv_rn(a.v, b.v)); }
EQUATION number operator-(number a) { return number(-a.v); }
EQUATION number absolute(number x) { return number(fabsf(x.v)); }
EQUATION number sqrt(number x) { return number(sqrtf(x.v)); }
EQUATION number exp(number x) { return number(expf(x.v)); }
EQUATION number expm1(number x) { return number(expm1f(x.v)); }
EQUATION number log(number x) { return number(logf(x.v)); }
EQUATION number log1p(number x) { return number(log1pf(x.v)); }
EQUATION number tanh(number x) { return number(tanhf(x.v)); }
EQUATION number erf(number x) { return number(erff(x.v)); }
// e^-x = inf gives 0, as it should
EQUATION number logistic(number x) { return number(ptx::reciprocal(__fadd_rn(1, expf(-x.v)))); }

// The normal distribution at x and e^(-x^2 / 2), of which the distribution below 0 is made: Abramowitz and Stegun,
// 7.1.26, which errs by 1.5e-7 in erf. Nothing cancels in the lower tail.
EQUATION float normal_bell(float x) { return ptx::exp2(__fmul_rn(__fmul_rn(x, x), -0.72134752f)); }
EQUATION number normal_pdf(number x) { return number(__fmul_rn(normal_bell(x.v), 0.39894228f)); }
EQUATION number normal_cdf(number x) {
  const float t = ptx::reciprocal(fmaf(fabsf(x.v), 0.23164189f, 1));
  const float cubic = fmaf(fmaf(fmaf(0.53070271f, t, -0.72657601f), t, 0.71070687f), t, -0.14224837f);
  const float tail = __fmul_rn(__fmul_rn(fmaf(cubic, t, 0.12741480f), t), normal_bell(x.v));
  return number(x.v > 0 ? __fadd_rn(1, -tail) : tail);
}

// What stands for a number where equations are computed of integers: in 64 bits, which wrap around, as in NumPy.
struct integer {
  i64 v;
  EQUATION integer(i64 v) : v(v) {}
};
ORDERED(integer)
EQUATION integer operator+(integer a, integer b) { return integer(static_cast<unsigned long long>(a.v) + b.v); }
EQUATION integer operator-(integer a, integer b) { return integer(static_cast<unsigned long long>(a.v) - b.v); }
EQUATION integer operator*(integer a, integer b) { return integer(static_cast<unsigned long long>(a.v) * b.v); }
EQUATION integer operator-(integer a) { return integer(0) - a; }
EQUATION integer absolute(integer x) { return x.v < 0 ? -x : x; }

// What stands for a number in a rule that may be contracted: the compiler may round a product and its sum once.
struct fused {
  float v;
  EQUATION fused(float v) : v(v) {}
};
ORDERED(fused)
EQUATION fused operator+(fused a, fused b) { return fused(a.v + b.v); }
EQUATION fused operator-(fused a, fused b) { return fused(a.v - b.v); }
EQUATION fused operator*(fused a, fused b) { return fused(a.v * b.v); }
EQUATION fused operator/(fused a, fused b) { return fused(a.v / b.v); }
EQUATION fused operator-(fused a) { return fused(-a.v); }
#define AS_NUMBER(function) EQUATION fused function(fused x) { return fused(function(number(x.v)).v); }
AS_NUMBER(absolute)
AS_NUMBER(sqrt)
AS_NUMBER(exp)
AS_NUMBER(expm1)
AS_NUMBER(log)
AS_NUMBER(log1p)
AS_NUMBER(tanh)
AS_NUMBER(erf)
AS_NUMBER(logistic)
AS_NUMBER(normal_pdf)
AS_NUMBER(normal_cdf)
