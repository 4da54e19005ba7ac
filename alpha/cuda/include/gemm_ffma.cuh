// One tile of a matrix product in FFMA: the main loop behind every float32 convolution and matrix product.
//
// What:     acc[i][j] += sum_k A[row(i)][k] * B[col(j)][k], k ascending, for a tile of BM rows and BN columns.
//           TERMS: sums of so many terms are made from 0 each and then added up, which keeps the error of long sums small
// Layout:   each operand lies in memory, and in its buffer, either
//           K-major   [rows][BK + 4]: k contiguous. A fragment is a float4 along k. The 4 padding floats put 8
//                     neighbouring rows into 8 different groups of banks.
//           MN-major  [BK][rows]: rows contiguous. A fragment is TM/4 (TN/4) float4 along the rows.
// Requires: VEC = 4: addresses of chunks of four floats are multiples of 16 bytes; VEC = 1: nothing
// Threads:  BM/TM x BN/TN threads; a warp is LANE_ROWS x LANE_COLS of them. A thread owns TM x TN elements in
//           quads: four neighbouring rows (columns), the next quad 4 * LANE_ROWS (4 * LANE_COLS) further on.
//           The lane's bits alternate between column and row, so that two lanes side by side ask shared memory
//           for the same 16 bytes and one wavefront serves 16 lanes. Slabs of BK values of k pass through STAGES
//           buffers in shared memory; cp.async fills a buffer while others are multiplied; one barrier per slab, and
//           the refill is issued right behind it. Before sm_80 there is one buffer, and the next slab is in registers
// Measured: see the kernels that use it
//
// The frames of convolutions (conv_slab.cuh, sk_dilated.cu) take from their tile T its sizes and types, Rows and Lines
// (copies of a K-major or MN-major slab), Product, gemm_pipeline and gemm_store. Those of tensor cores: gemm_mma.cuh
#pragma once
#include "gemm_pipeline.cuh"

#ifndef TERMS
#define TERMS 0
#endif

template <class T, int ROWS, int LANES> struct KMajorCopy;
template <class T, int ROWS> struct MnMajorCopy;
template <class T> struct Ffma;

template <int BM_, int BN_, int BK_, int TM_, int TN_, int STAGES_, bool A_KMAJOR_, bool B_KMAJOR_, int VEC_>
struct GemmTile {
  using In = float;
  using Out = float;
  static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_, STAGES = STAGES_, VEC = VEC_;
  static constexpr bool A_KMAJOR = A_KMAJOR_, B_KMAJOR = B_KMAJOR_;
  static constexpr int THREADS = BM / TM * (BN / TN);
  static constexpr int LANE_COLS = BN / TN < 8 ? 4 : 8, LANE_ROWS = 32 / LANE_COLS;
  static constexpr int WARP_COLS = BN / TN / LANE_COLS;
  static constexpr int K_STRIDE = BK + 4;                                // floats from row to row, K-major
  static constexpr int A_SIZE = BM * (A_KMAJOR ? K_STRIDE : BK);
  static constexpr int B_SIZE = BN * (B_KMAJOR ? K_STRIDE : BK);
  static constexpr int STAGE_SIZE = A_SIZE + B_SIZE;               // shared memory: STAGES times that
  using RowsA = KMajorCopy<GemmTile, BM, LANE_ROWS>;
  using RowsB = KMajorCopy<GemmTile, BN, LANE_COLS>;
  using LinesA = MnMajorCopy<GemmTile, BM>;
  using LinesB = MnMajorCopy<GemmTile, BN>;
  using Product = Ffma<GemmTile>;
  static_assert(TM % 4 == 0 && TN % 4 == 0 && BK % 8 == 0 && THREADS % 32 == 0, "fragments are quads");
  static_assert(BN % (TN * LANE_COLS) == 0 && BM % (TM * LANE_ROWS) == 0, "whole warps tile the tile");
};

// Copies ROWS rows of a K-major operand. LANES, the lanes of a warp along the operand, order the rows in the buffer: in
// each block of 4 * LANES rows, buffer row q * LANES + l holds row 4 * l + q, so that lanes read neighbours. Where the
// rows begin stands in shared memory, in the buffer's order: registers are for accumulators.
template <class T, int ROWS, int LANES> struct KMajorCopy {
  static constexpr int CHUNKS = T::BK / T::VEC, STEP = T::THREADS / CHUNKS, COUNT = ROWS / STEP;
  static_assert(T::THREADS % CHUNKS == 0 && ROWS % STEP == 0, "every thread copies the same number of chunks");
  int k, first;
  Copies<4 * T::VEC, COUNT> copies;

  static INLINE int row_in_buffer(int r) { // the row that buffer row r holds
    return r / (4 * LANES) * (4 * LANES) + r % LANES * 4 + r % (4 * LANES) / LANES;
  }
  INLINE explicit KMajorCopy(int thread, long long /*one plane*/ = 0)
      : k(thread % CHUNKS * T::VEC), first(thread / CHUNKS) {}
  // rows[r]: address of k = 0 of the row in buffer row r; the slab starts `offset` floats behind it, and is zero from
  // k = k_left on
  INLINE void operator()(float *buffer, const float *const *rows, int offset, int k_left) {
    const float *from[COUNT];
    UNROLL for (int i = 0; i < COUNT; i++) from[i] = rows[first + i * STEP] + (offset + k);
    const int bytes = k < k_left ? 4 * T::VEC : 0;
    buffer += first * T::K_STRIDE + k;
    UNROLL for (int i = 0; i < COUNT; i++) copies.begin(i, buffer + i * STEP * T::K_STRIDE, from[i], bytes);
  }
  INLINE void land(float *buffer) const {
    UNROLL for (int i = 0; i < COUNT; i++) copies.land(i, buffer + (first + i * STEP) * T::K_STRIDE + k);
  }
};

// Copies ROWS rows of an MN-major operand: BK lines of ROWS values. A thread copies COUNT of them: the i-th is
// k = line0(thread) + i * STEP, and starts line(i) floats behind `first`.
template <class T, int ROWS> struct MnMajorCopy {
  static constexpr int CHUNKS = ROWS / T::VEC, STEP = T::THREADS / CHUNKS, COUNT = T::BK / STEP;
  static_assert(T::THREADS % CHUNKS == 0 && T::BK % STEP == 0, "every thread copies the same number of chunks");
  const float *src;
  int k0, dst;
  Copies<4 * T::VEC, COUNT> copies;

  static INLINE int line0(int thread) { return thread / CHUNKS; }
  // first: address of the tile's row 0, and of what else the caller folds in; rows from rows_left (a multiple of VEC)
  // on do not exist: zeros are written without a read, which many lanes at one address would make slow
  INLINE MnMajorCopy(int thread, const float *first, int rows_left, long long /*one plane*/ = 0) {
    const int row = thread % CHUNKS * T::VEC;
    k0 = row < rows_left ? line0(thread) : 1 << 30;
    dst = line0(thread) * ROWS + row;
    src = first + (row < rows_left ? row : 0);
  }
  template <class Line> INLINE void operator()(float *buffer, Line line, int k_left) {
    UNROLL for (int i = 0; i < COUNT; i++)
      copies.begin(i, buffer + dst + i * STEP * ROWS, src + line(i), k0 + i * STEP < k_left ? 4 * T::VEC : 0);
  }
  INLINE void land(float *buffer) const {
    UNROLL for (int i = 0; i < COUNT; i++) copies.land(i, buffer + dst + i * STEP * ROWS);
  }
};

// The inner product on the FMA units.
template <class T> struct Ffma {
  float acc[T::TM][T::TN];
  float total[TERMS ? T::TM : 1][TERMS ? T::TN : 1];
  int row0, col0, a0, b0, slabs;

  INLINE explicit Ffma(int thread) {
    const int lane = thread % 32, warp = thread / 32, top = lane >> 4;
    const int col = (lane & 1) | (lane >> 1 & 2) | (T::LANE_COLS == 8 ? top << 2 : 0);
    const int row = (lane >> 1 & 1) | (lane >> 2 & 2) | (T::LANE_ROWS == 8 ? top << 2 : 0);
    const int warp_row = warp / T::WARP_COLS * (T::LANE_ROWS * T::TM);
    const int warp_col = warp % T::WARP_COLS * (T::LANE_COLS * T::TN);
    row0 = warp_row + row * 4;
    col0 = warp_col + col * 4;
    a0 = T::A_KMAJOR ? (warp_row + row) * T::K_STRIDE : row0;
    b0 = T::B_KMAJOR ? (warp_col + col) * T::K_STRIDE : col0;
    UNROLL for (int i = 0; i < T::TM; i++)
      UNROLL for (int j = 0; j < T::TN; j++) {
        acc[i][j] = 0.f;
        if constexpr (TERMS > 0) total[i][j] = 0.f;
      }
    slabs = 0;
  }
  INLINE int row(int i) const { return row0 + i / 4 * (4 * T::LANE_ROWS) + i % 4; }
  INLINE int col(int j) const { return col0 + j / 4 * (4 * T::LANE_COLS) + j % 4; }
  INLINE void scale(const float *, const float *) {   // the sum is complete; floats have no scale
    if constexpr (TERMS > 0) {
      UNROLL for (int i = 0; i < T::TM; i++)
        UNROLL for (int j = 0; j < T::TN; j++) acc[i][j] += total[i][j];
    }
  }

  // multiplies one slab
  INLINE void operator()(const float *a_buffer, const float *b_buffer) {
    const float *a = a_buffer + a0, *b = b_buffer + b0;
    // 16 of k: more code leaves the instruction cache
    UNROLL_BY(4) for (int k = 0; k < T::BK; k += 4) {
      float ak[T::A_KMAJOR ? T::TM : 1][4], bk[T::B_KMAJOR && !T::A_KMAJOR ? T::TN : 1][4];
      if constexpr (T::A_KMAJOR) {
        UNROLL for (int i = 0; i < T::TM; i++) quad(ak[i], a + i * (T::LANE_ROWS * T::K_STRIDE) + k);
      } else if constexpr (T::B_KMAJOR) {
        UNROLL for (int j = 0; j < T::TN; j++) quad(bk[j], b + j * (T::LANE_COLS * T::K_STRIDE) + k);
      }
      if constexpr (T::A_KMAJOR && T::B_KMAJOR) {
        UNROLL for (int j = 0; j < T::TN; j++) {
          float v[4];
          quad(v, b + j * (T::LANE_COLS * T::K_STRIDE) + k);
          UNROLL for (int q = 0; q < 4; q++)
            UNROLL for (int i = 0; i < T::TM; i++) acc[i][j] = fmaf(ak[i][q], v[q], acc[i][j]);
        }
      } else {
        UNROLL for (int q = 0; q < 4; q++) {
          float u[T::TM], v[T::TN];
          UNROLL for (int i = 0; i < T::TM; i += 4)
            if constexpr (!T::A_KMAJOR) quad(u + i, a + (k + q) * T::BM + i * T::LANE_ROWS);
          UNROLL for (int j = 0; j < T::TN; j += 4)
            if constexpr (!T::B_KMAJOR) quad(v + j, b + (k + q) * T::BN + j * T::LANE_COLS);
          UNROLL for (int i = 0; i < T::TM; i++)
            UNROLL for (int j = 0; j < T::TN; j++) {
              const float x = T::A_KMAJOR ? ak[T::A_KMAJOR ? i : 0][q] : u[i];
              const float y = T::B_KMAJOR ? bk[T::B_KMAJOR && !T::A_KMAJOR ? j : 0][q] : v[j];
              acc[i][j] = fmaf(x, y, acc[i][j]);
            }
        }
      }
    }
    if constexpr (TERMS > 0) {
      if (++slabs % (TERMS / T::BK) != 0) return;
      UNROLL for (int i = 0; i < T::TM; i++)
        UNROLL for (int j = 0; j < T::TN; j++) {
          total[i][j] += acc[i][j];
          acc[i][j] = 0.f;
        }
    }
  }

private:
  static INLINE void quad(float *to, const float *from) {
    const float4 v = *reinterpret_cast<const float4 *>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  }
};

// Stores four neighbours, of which `left` exist. aligned: all or none do, at a multiple of 16 bytes.
INLINE void store_quad(float *to, const float (&v)[4], int left, bool aligned) {
  if (aligned) {
    if (left > 0) *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
  } else {
    UNROLL for (int q = 0; q < 4; q++)
      if (q < left) to[q] = v[q];
  }
}

// Writes a tile: out[row(i)][col(j)] = acc[i][j] + bias[col(j)], then relu. row_at(r): address of column 0 of the
// tile's row r, null where there is none. bias: its value for column 0, or null. left: columns that exist. quads: rows
// begin at multiples of 16 bytes and `left` is a multiple of 4.
template <class T, class RowAt>
INLINE void gemm_store(const Ffma<T> &product, RowAt row_at, const float *bias, int left, bool quads, bool relu) {
  float add[T::TN];
  UNROLL for (int j = 0; j < T::TN; j++) add[j] = bias && product.col(j) < left ? bias[product.col(j)] : 0.f;
  UNROLL for (int i = 0; i < T::TM; i++) {
    float *out = row_at(product.row(i));
    if (!out) continue;
    UNROLL for (int j = 0; j < T::TN; j += 4) {
      float v[4];
      UNROLL for (int q = 0; q < 4; q++) {
        v[q] = product.acc[i][j + q] + add[j + q];
        if (relu && v[q] < 0.f) v[q] = 0.f;  // keeps NaN
      }
      store_quad(out + product.col(j), v, left - product.col(j), quads);
    }
  }
}
