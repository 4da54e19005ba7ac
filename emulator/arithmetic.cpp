// Model: products are exact. WIDTH of them and the accumulator are aligned to the largest exponent, each is cut off
// EXTRA bits below the last place of fp32, the sum is exact, and the result is cut off to fp32. Widths and extra bits of
// H100 as in arXiv 2512.07004 (A100: half the widths, one bit); test_device.py holds them to an H100, bit by bit.
#include "arithmetic.hpp"

namespace emu {
static const int EXTRA = 2;
static const int ZERO = -1000;  // the exponent of 0: below every other, and so is its sum with any
static int width_of(Format f) { return f == Tf32 ? 8 : 16; }

static float to_float(Format f, uint32_t bits) {
  uint32_t u = f == Bf16 ? bits << 16 : bits & ~0x1FFFu;  // tf32: the unit ignores the low 13 bits
  if (f == Fp16) {
    _Float16 h;
    uint16_t b = bits;
    memcpy(&h, &b, 2);
    return (float)h;
  }
  float r;
  memcpy(&r, &u, 4);
  return r;
}
// Every format has 1 sign, `range` bits of exponent and at most 10 of fraction; denormals are not normalised.
template <int bits_of, int range, int fraction, int unused>
static void decode_as(Operand& o, int negate) {
  const int most = (1 << range) - 1, low = 2 - (1 << (range - 1)), n = (int)o.bits.size();
  const uint32_t* bits = o.bits.data();
  int *magnitude = o.magnitude.data(), *sign = o.sign.data(), *exponent = o.exponent.data(), special = 0;
  for (int i = 0; i < n; i++) {
    const int u = (int)(bits[i] >> unused), e = u >> fraction & most, f = u & ((1 << fraction) - 1);
    const int m = e ? f | 1 << fraction : f;
    magnitude[i] = m << (10 - fraction);
    sign[i] = -(u >> (bits_of - unused - 1) & 1) ^ negate;
    exponent[i] = m ? std::max(e, 1) - 1 + low : ZERO;
    special |= e == most;
  }
  o.finite = !special;
}
static void decode(Operand& o, Format f, bool negate) {
  o.negated = negate;
  if (f == Fp16) decode_as<16, 5, 10, 0>(o, -negate);
  else if (f == Bf16) decode_as<16, 8, 7, 0>(o, -negate);
  else decode_as<32, 8, 10, 13>(o, -negate);
}
static int any_of(const int* p, int n) {
  int any = 0;
  for (int i = 0; i < n; i++) any |= p[i];
  return any;
}
void decode_a(Operand& o, Format f, bool negate) {
  decode(o, f, negate);
  const int k = f == Tf32 ? 8 : 16;
  o.empty.resize(o.bits.size() / k);
  for (size_t row = 0; row < o.empty.size(); row++) o.empty[row] = !any_of(&o.magnitude[row * k], k);
}
void decode_b(Operand& o, Format f, int columns) {
  decode(o, f, false);
  o.empty.assign(columns / 8, 1);
  for (size_t at = 0; at < o.bits.size(); at += 8)
    if (any_of(&o.magnitude[at], 8)) o.empty[at % columns / 8] = 0;
}

typedef int Ints __attribute__((vector_size(32)));  // of eight columns side by side
static Ints load(const int* p) {
  Ints v;
  memcpy(&v, p, sizeof v);
  return v;
}
typedef int Ints4 __attribute__((vector_size(16)));  // and of four
typedef float Floats4 __attribute__((vector_size(16)));
typedef double Doubles4 __attribute__((vector_size(32)));
typedef int64_t Longs4 __attribute__((vector_size(32)));
static Ints4 four(const Ints& v, int from) {
  Ints4 r;
  memcpy(&r, (const int*)&v + from, sizeof r);
  return r;
}
static Doubles4 power(Ints4 e) { return (Doubles4)((__builtin_convertvector(e, Longs4) + 1023) << 52); }
static Floats4 cut(Doubles4 v) {  // to fp32, towards zero
  return __builtin_convertvector((Doubles4)((Longs4)v & ~0x1FFFFFFFll), Floats4);
}
static Ints larger(Ints a, Ints b) { return a > b ? a : b; }
static Ints shifted(Ints v, Ints down) { return v >> (down > 31 ? 31 : down); }  // v >= 0
// c[0..8) += a[0..W) b[0..W)[0..8), as one step of the unit, in units of the last of the EXTRA bits: a product is
// magnitude x magnitude x 2^(exponent - 20), so below 2^27.
template <int W>
static void step(const Operand& a, int at_a, const Operand& b, int at_b, int columns, float* c) {
  const int SHIFT = 23 + EXTRA - 20;
  const int *ma = &a.magnitude[at_a], *sa = &a.sign[at_a], *ea = &a.exponent[at_a];
  const int *mb = &b.magnitude[at_b], *sb = &b.sign[at_b], *eb = &b.exponent[at_b];
  const Ints bits = load((const int*)c), stored = bits >> 23 & 255, fraction = bits & 0x7FFFFF;
  const Ints own = (bits & 0x7FFFFFFF) == 0 ? Ints{} + ZERO : larger(stored, Ints{} + 1) - 127;
  Ints top = larger(own, Ints{} - 400), exponent[W];
  for (int i = 0; i < W; i++) {
    exponent[i] = load(eb + i * columns) + ea[i];
    top = larger(top, exponent[i]);
  }
  Ints negative = bits >> 31, half[2] = {};  // negative: while every term is, which makes a sum of 0 a -0
  half[0] = shifted((stored ? fraction | 0x800000 : fraction) << EXTRA, top - own);
  half[0] = (half[0] ^ negative) - negative;
  for (int i = 0; i < W; i++) {
    const Ints sign = load(sb + i * columns) ^ sa[i];
    const Ints product = shifted(load(mb + i * columns) * (ma[i] << SHIFT), top - exponent[i]);
    half[i % 2] += (product ^ sign) - sign;  // 16 products and c might not fit into 32 bits
    negative &= sign;
  }
  for (int j = 0; j < 8; j += 4) {
    const Doubles4 sum = __builtin_convertvector(four(half[0], j), Doubles4) +
                         __builtin_convertvector(four(half[1], j), Doubles4);
    const Longs4 minus = __builtin_convertvector(four(negative, j), Longs4) << 63;
    const Floats4 result = cut((Doubles4)((Longs4)sum | minus) * power(four(top, j) - 23 - EXTRA));
    memcpy(c + j, &result, sizeof result);
  }
}
void multiply_add(Format f, const Operand& a, int row, const Operand& b, int column, int columns, int k, float* c) {
  uint32_t bits[8];
  memcpy(bits, c, sizeof bits);
  bool special = false, negative_zero = false;
  for (uint32_t u : bits) {
    special |= (u & 0x7F800000) == 0x7F800000;
    negative_zero |= u == 0x80000000;  // of which +0 makes +0
  }
  const bool model = a.finite && b.finite && !special;
  if (model && !negative_zero && (a.empty[row] || b.empty[column / 8])) return;
  for (int at = 0, w = width_of(f); model && at < k; at += w) {
    if (w == 16) step<16>(a, row * k + at, b, at * columns + column, columns, c);
    else step<8>(a, row * k + at, b, at * columns + column, columns, c);
  }
  for (int j = 0; !model && j < 8; j++) {  // infinities and NaN take their usual way
    double sum = c[j];
    for (int x = 0; x < k; x++) {
      const double v = (double)to_float(f, a.bits[row * k + x]) * to_float(f, b.bits[x * columns + column + j]);
      sum += a.negated ? -v : v;
    }
    c[j] = (float)sum;
  }
}
}  // namespace emu
