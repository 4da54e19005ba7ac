// Products of ELEMENT by mma.sync, PRODUCTS of each: fragments of operands, as registers of a warp.
//
// Modes:    ELEMENT float: PRODUCTS 3: x = hi + lo, two TF32 numbers that hold 23 or 24 bits of it; lo * hi, hi * lo,
//           hi * hi, the small ones first. 1: hi * hi. TF32 has float32's range, so that nothing is scaled. 16 bits:
//           one product of elements as they are stored
// Requires: sm_80
#pragma once
#include "lanes.cuh"

constexpr bool WIDE = sizeof(ELEMENT) == 4;
constexpr int STEP = WIDE ? 8 : 16;  // of k, that an mma.sync multiplies

// N registers of an operand as the tensor core takes them; lo: of three products.
template <int N> struct Fragment {
  unsigned hi[N], lo[PRODUCTS == 3 ? N : 1];
  INLINE void set(int i, float v) {
    hi[i] = ptx::to_tf32(v);
    if constexpr (PRODUCTS == 3) lo[i] = __float_as_uint(v - __uint_as_float(hi[i]));  // 12 bits, 11 are read
  }
  INLINE void set(int i, unsigned pair) { hi[i] = pair; }
};
template <class T> INLINE unsigned pair_of(T first, T second) {
  unsigned short half[2];
  memcpy(half, &first, 2);
  memcpy(half + 1, &second, 2);
  return half[0] | (unsigned)half[1] << 16;
}
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], float) { ptx::mma_tf32(d, a, b); }
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) { ptx::mma_f16(d, a, b); }
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) { ptx::mma_bf16(d, a, b); }

// sum += a b, of M x N blocks from column block j0 on. Products that follow one another have different sums.
template <int M, int N, int COLS>
INLINE void multiply(float (&sum)[M][COLS][4], const Fragment<4> (&a)[M], const Fragment<2> (&b)[N], int j0 = 0) {
  if constexpr (PRODUCTS == 3) {
    UNROLL for (int i = 0; i < M; i++)
      UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].lo, b[j].hi, ELEMENT());
    UNROLL for (int i = 0; i < M; i++)
      UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].hi, b[j].lo, ELEMENT());
  }
  UNROLL for (int i = 0; i < M; i++)
    UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].hi, b[j].hi, ELEMENT());
}
