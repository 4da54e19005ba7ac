// How elements of a float32 tensor become 16-bit planes (planes.cu has the equations), and who says, on the device,
// how well the planes hold them: for kernels that split a tensor, and for those that write planes in its place.
#pragma once
#include "storage.cuh"

using u64 = unsigned long long;

constexpr unsigned INFINITE = 0x7f800000;   // bits of Inf; those of NaN are larger
constexpr unsigned OVERFLOWS = 0x477ff000;  // bits of 65,520: from here on float16 has Inf

template <class T_, int PLANES_, bool SCALED_> struct PlanesOf {
  using T = T_;
  static constexpr int PLANES = PLANES_;
  static constexpr bool SCALED = SCALED_;
};
struct Float16x2 : PlanesOf<f16, 2, true> {
  static constexpr float LEAST = 0x1p-10f;  // what is below is lost
};
struct Float16 : PlanesOf<f16, 1, true> { static constexpr float LEAST = 0x1p-14f; };
struct BFloat16 : PlanesOf<bf16, 1, false> { static constexpr float LEAST = 0; };

// What alpha/cuda/lazy/operands.py gives its scale and flag from. Partial maxima may follow it.
struct OperandHeader {
  float scale;       // 2^-s
  int flag;
  unsigned tickets;  // blocks of the split that are done; 0 again after the last one
  unsigned bound;    // bits of a number that no finite |x| exceeds, where s is not from partial maxima
  i64 balance;       // lost elements less kept ones, over the blocks that are done; 0 again, too
  unsigned most;     // bits of the largest finite |x|, where planes were written in the place of x
  unsigned unused[9];
};
static_assert(sizeof(OperandHeader) == 64, "alpha/cuda/lazy/operands.py reserves as much");

// ---- the scale ------------------------------------------------------------------------------------------------------

struct LargerBits { __device__ unsigned operator()(unsigned a, unsigned b) const { return a > b ? a : b; } };

// Bits of |x|, which order as the numbers do; 0 for Inf and NaN.
INLINE unsigned finite_bits(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffff;
  return bits < INFINITE ? bits : 0;
}

// s, of the bits of amax; at most 126, so that 2^s and 2^-s are normal numbers
INLINE int shift_of(unsigned amax) {
  const int shift = 14 + 127 - static_cast<int>(amax >> 23);
  return amax == 0 ? 0 : shift < 126 ? shift : 126;
}
INLINE float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// Bits of a channel's bound, with room for the rounding of what it bounds. One that is not finite says nothing: if
// elements are so large, they are found where they are split.
INLINE unsigned bits_of_bound(double bound) { return finite_bits(static_cast<float>(bound * 1.001)); }

// ---- two elements, and what is counted about them -------------------------------------------------------------------

struct Tally {
  int balance;       // lost elements less kept ones
  unsigned largest;  // bits of the largest |x * 2^s|; an Inf that meets a second plane counts, NaN does not
};
struct MergeTallies {
  __device__ Tally operator()(const Tally &a, const Tally &b) const {
    return {a.balance + b.balance, LargerBits()(a.largest, b.largest)};
  }
};

// What hi leaves to lo; not Inf - Inf, and a zero with the sign of the element
INLINE float rest(float value, float high) { return high == value ? copysignf(0.0f, value) : value - high; }
// value = x * 2^s
template <class Form> INLINE void count(Tally &tally, float x, float value) {
  const unsigned bits = __float_as_uint(value) & 0x7fffffff;
  tally.balance += bits < __float_as_uint(Form::LEAST) ? x != 0 : -static_cast<int>(bits < INFINITE);
  tally.largest = LargerBits()(tally.largest, bits < INFINITE + (Form::PLANES == 2) ? bits : 0);
}
// Two elements of both planes, a word each; `low` is left alone where there is one plane.
template <class Form>
INLINE void split_pair(float x, float y, float factor, unsigned &high, unsigned &low, Tally &tally) {
  using T = typename Form::T;
  const float a = x * factor, b = y * factor;
  high = pair_of_floats<T>(a, b);
  if constexpr (Form::PLANES == 2)
    low = pair_of_floats<T>(rest(a, float_of_pair<T>(high, false)), rest(b, float_of_pair<T>(high, true)));
  if constexpr (Form::SCALED) count<Form>(tally, x, a), count<Form>(tally, y, b);
}

// scale and flag of a tensor, told by its last block
INLINE void finish(OperandHeader *header, int shift, bool flag, int *lost_ranges) {
  header->scale = power_of_two(-shift);
  header->flag = flag;
  if (flag) atomicAdd(lost_ranges, 1);
}

// By one thread of each of `blocks` blocks, with the tally of its block.
INLINE void hand_in(OperandHeader *header, const Tally &tally, unsigned blocks, int shift, int *lost_ranges) {
  u64 *balance = reinterpret_cast<u64 *>(&header->balance);
  atomicAdd(balance, static_cast<u64>(tally.balance + (static_cast<i64>(tally.largest >= OVERFLOWS) << 48)));
  __threadfence();
  if (atomicAdd(&header->tickets, 1u) != blocks - 1) return;
  finish(header, shift, static_cast<i64>(atomicExch(balance, u64(0))) > 0, lost_ranges);
  atomicExch(&header->tickets, 0u);
}

// By one thread of each of `reporters`, who write planes of a tensor in its place, with the tally of what they wrote.
INLINE void report(OperandHeader *header, const Tally &tally, unsigned reporters, int *lost_ranges) {
  const int shift = shift_of(header->bound);
  const float most = __uint_as_float(tally.largest) * power_of_two(-shift);
  atomicMax(&header->most, tally.largest < OVERFLOWS ? __float_as_uint(most) : header->bound);
  hand_in(header, tally, reporters, shift, lost_ranges);
}
