// Products of ELEMENT by mma.sync, PRODUCTS of each: fragments of operands, as registers of a warp.
//
// Modes:    ELEMENT float: PRODUCTS 3: x = hi + lo, two TF32 numbers that hold 23 or 24 bits of it; lo * hi, hi * lo,
//           hi * hi, the small ones first. 1: hi * hi. TF32 has float32's range, so that nothing is scaled. 16 bits:
//           one product of elements as they are stored
// sm_75:    its tensor cores multiply float16 alone. Other elements stay as they are, and FMA units multiply them: a lane
//           has the same places of all operands, and gets from others, by shuffles, the elements that it lacks
#pragma once
#include "lanes.cuh"

constexpr bool WIDE = sizeof(ELEMENT) == 4;
constexpr int STEP = WIDE ? 8 : 16;  // of k, that an mma.sync multiplies
constexpr bool ON_CORES = ALPHA_ARCH >= 80 || std::is_same<ELEMENT, f16>::value;

// N registers of an operand as the tensor core takes them; lo: of three products.
template <int N> struct Fragment {
  unsigned hi[N], lo[PRODUCTS == 3 ? N : 1];
  INLINE void set(int i, float v) {
    if constexpr (ON_CORES) hi[i] = ptx::to_tf32(v);
    else hi[i] = __float_as_uint(v);
    if constexpr (PRODUCTS == 3 && ON_CORES) lo[i] = __float_as_uint(v - __uint_as_float(hi[i]));  // 12 bits, 11 are read
  }
  INLINE void set(int i, unsigned pair) { hi[i] = pair; }
};
template <class T> INLINE unsigned pair_of(T first, T second) {
  unsigned short half[2];
  memcpy(half, &first, 2);
  memcpy(half + 1, &second, 2);
  return half[0] | (unsigned)half[1] << 16;
}
INLINE float element_of(unsigned word, int which) {
  if constexpr (WIDE) return __uint_as_float(word);
  else return float_of_pair<std::conditional_t<WIDE, f16, ELEMENT>>(word, which);
}
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], float) { ptx::mma_tf32(d, a, b); }
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) { ptx::mma_f16(d, a, b); }
INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) { ptx::mma_bf16(d, a, b); }

// The same on FMA units: of each word of k a lane needs two of A's rows and two of B's columns.
template <int M, int N, int COLS>
INLINE void multiply_by_fma(float (&sum)[M][COLS][4], const Fragment<4> (&a)[M], const Fragment<2> (&b)[N], int j0) {
  const int lane = threadIdx.x % 32, row = lane / 4 * 4, column = lane % 4 * 8;
  UNROLL for (int half = 0; half < 2; half++)
    UNROLL_BY(1) for (int from = 0; from < 4; from++) {  // a loop: all at once would be too much code
      unsigned left[M][2], right[N][2];
      UNROLL for (int i = 0; i < M; i++)
        UNROLL for (int r = 0; r < 2; r++) left[i][r] = __shfl_sync(~0u, a[i].hi[half * 2 + r], row + from);
      UNROLL for (int j = 0; j < N; j++)
        UNROLL for (int c = 0; c < 2; c++) right[j][c] = __shfl_sync(~0u, b[j].hi[half], column + c * 4 + from);
      UNROLL for (int e = 0; e < (WIDE ? 1 : 2); e++)
        UNROLL for (int i = 0; i < M; i++)
          UNROLL for (int j = 0; j < N; j++)
            UNROLL for (int q = 0; q < 4; q++)
              sum[i][j0 + j][q] = fmaf(element_of(left[i][q / 2], e), element_of(right[j][q % 2], e), sum[i][j0 + j][q]);
    }
}
// sum += a b, of M x N blocks from column block j0 on. Products that follow one another have different sums.
template <int M, int N, int COLS>
INLINE void multiply(float (&sum)[M][COLS][4], const Fragment<4> (&a)[M], const Fragment<2> (&b)[N], int j0 = 0) {
  if constexpr (!ON_CORES) multiply_by_fma(sum, a, b, j0);
  if constexpr (PRODUCTS == 3 && ON_CORES) {
    UNROLL for (int i = 0; i < M; i++)
      UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].lo, b[j].hi, ELEMENT());
    UNROLL for (int i = 0; i < M; i++)
      UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].hi, b[j].lo, ELEMENT());
  }
  if constexpr (ON_CORES) {
    UNROLL for (int i = 0; i < M; i++)
      UNROLL for (int j = 0; j < N; j++) mma(sum[i][j0 + j], a[i].hi, b[j].hi, ELEMENT());
  }
}
