// One tile of a matrix product by mma.sync, the tensor cores of every GPU from sm_75 on: the pieces that gemm_ffma.cuh
// has for the FMA units, with the same names, for the same frames and work lists.
//
// What:     sum[row][col] = scale_a * scale_b * sum_k A[row][k] * B[col][k], 16-bit elements, float32 sums
// Planes:   1 or 2 of an operand, as gemm_wgmma.cuh has them: of two, three products are made of each 16 of k, and
//           added to registers after every slab of 32, in proper float32
// Layout:   a buffer: planes of A, planes of B. A plane is made of lines of 16-byte chunks:
//             K-major   [rows][32]: 4 chunks of k. ldmatrix reads 8 rows x 16 bytes
//             MN-major  [32][rows]: rows / 8 chunks. ldmatrix.trans reads 8 lines of k x 16 bytes, and transposes
//           Chunk c of line l lies in the place of chunk c ^ (l % 8); where a line has 4 chunks, of c ^ (l / 2 % 4).
//           So the 8 pieces that a matrix of ldmatrix reads, and those that 8 neighbouring copies write, lie in 8
//           different groups of 4 banks: no conflicts, and no padding. Moving on by 16 of k (K-major), or by 16 rows
//           (MN-major), changes bits of the chunk that are 0 before: it is one exclusive or
// Requires: sm_75, for bfloat16 sm_80; rows of a K-major operand and lines of an MN-major one begin at multiples of 16 bytes
// Threads:  BM/WM x BN/WN warps, WM x WN elements each, in blocks of 16 x 8: of block (i, j) a lane has
//           (lane / 4, lane % 4 * 2), its right neighbour, and the two 8 rows below; gemm_pipeline.cuh has the loop
// Measured: not on an sm_80 GPU; benchmarks/results/h100/tried.md has the counts of instructions
#pragma once
#include "conv/exact/exact_sum.cuh"
#include "gemm_pipeline.cuh"
#include "scale.cuh"
#include "storage.cuh"

template <class T, int ROWS> struct KMajorPlanes;
template <class T, int ROWS> struct MnMajorPlanes;
template <class T> struct Mma;

template <class In_, class Out_, int BM_, int BN_, int WM_, int WN_, int PLANES_, int STAGES_, bool A_KMAJOR_,
          bool B_KMAJOR_>
struct MmaTile {
  using In = In_;
  using Out = Out_;
  static constexpr int BM = BM_, BN = BN_, BK = 32, WM = WM_, WN = WN_, PLANES = PLANES_;
  static constexpr int STAGES = STAGED ? 2 / PLANES : STAGES_;  // STAGED: what the exact way needs; one is a pipeline's
  static constexpr bool A_KMAJOR = A_KMAJOR_, B_KMAJOR = B_KMAJOR_;
  static constexpr int WARP_COLS = BN / WN, THREADS = 32 * (BM / WM) * WARP_COLS;
  static constexpr int A_PLANE = BM * BK, B_PLANE = BN * BK;                                      // elements
  static constexpr int A_SIZE = PLANES * A_PLANE, STAGE_SIZE = A_SIZE + PLANES * B_PLANE;
  using RowsA = KMajorPlanes<MmaTile, BM>;
  using RowsB = KMajorPlanes<MmaTile, BN>;
  using LinesA = MnMajorPlanes<MmaTile, BM>;
  using LinesB = MnMajorPlanes<MmaTile, BN>;
  using Product = Mma<MmaTile>;
  static_assert(BM % WM == 0 && BN % WN == 0 && WM % 32 == 0 && WN % 32 == 0 && WM <= 64 && WN <= 64,
                "16 more rows change bits of a chunk's number that are 0 for a warp's first ones");
};

// The element that chunk `chunk` of line `line` begins at; WIDTH: elements of a line.
template <int WIDTH> INLINE int swizzled(int line, int chunk) {
  return line * WIDTH + (chunk ^ (WIDTH == 32 ? line >> 1 & 3 : line & 7)) * 8;
}

// Copies ROWS rows of a K-major operand, 16 bytes a thread; see KMajorCopy.
template <class T, int ROWS> struct KMajorPlanes {
  using In = typename T::In;
  static constexpr int CHUNKS = T::BK / 8, STEP = T::THREADS / CHUNKS, COUNT = ROWS / STEP;
  static_assert(ROWS % STEP == 0 && STEP % 8 == 0, "a thread's chunks have one place in their rows");
  int k, first, dst;
  long long plane;  // elements from a plane to the next
  Copies<16, COUNT * T::PLANES> copies;

  static INLINE int row_in_buffer(int r) { return r; }
  INLINE KMajorPlanes(int thread, long long plane_)
      : k(thread % CHUNKS * 8), first(thread / CHUNKS), dst(swizzled<T::BK>(thread / CHUNKS, thread % CHUNKS)),
        plane(plane_) {}
  INLINE void operator()(In *buffer, const In *const *rows, int offset, int k_left) {
    const int bytes = k < k_left ? 16 : 0;
    const In *from[COUNT];  // all of them before the first copy, behind which nothing is read from shared memory early
    UNROLL for (int i = 0; i < COUNT; i++) from[i] = rows[first + i * STEP] + (offset + k);
    UNROLL for (int i = 0; i < COUNT; i++)
      UNROLL for (int p = 0; p < T::PLANES; p++)
        copies.begin(i * T::PLANES + p, buffer + place(i, p), from[i] + p * plane, bytes);
  }
  INLINE void land(In *buffer) const {
    UNROLL for (int i = 0; i < COUNT; i++)
      UNROLL for (int p = 0; p < T::PLANES; p++) copies.land(i * T::PLANES + p, buffer + place(i, p));
  }

private:
  INLINE int place(int i, int p) const { return p * (ROWS * T::BK) + dst + i * STEP * T::BK; }
};

// Copies ROWS rows of an MN-major operand, 32 lines; see MnMajorCopy.
template <class T, int ROWS> struct MnMajorPlanes {
  using In = typename T::In;
  static constexpr int CHUNKS = ROWS / 8, STEP = T::THREADS / CHUNKS, COUNT = T::BK / STEP;
  static_assert(T::BK % STEP == 0 && STEP % 8 == 0, "a thread's chunks have one place in their lines");
  const In *src;
  int k0, dst;
  long long plane;  // elements from a plane to the next
  Copies<16, COUNT * T::PLANES> copies;

  static INLINE int line0(int thread) { return thread / CHUNKS; }
  INLINE MnMajorPlanes(int thread, const In *first, int rows_left, long long plane_) : plane(plane_) {
    const int row = thread % CHUNKS * 8;
    k0 = row < rows_left ? line0(thread) : 1 << 30;
    dst = swizzled<ROWS>(line0(thread), thread % CHUNKS);
    src = first + (row < rows_left ? row : 0);
  }
  template <class Line> INLINE void operator()(In *buffer, Line line, int k_left) {
    const In *from[COUNT];  // as above
    UNROLL for (int i = 0; i < COUNT; i++) from[i] = src + line(i);
    UNROLL for (int i = 0; i < COUNT; i++)
      UNROLL for (int p = 0; p < T::PLANES; p++)
        copies.begin(i * T::PLANES + p, buffer + place(i, p), from[i] + p * plane, k0 + i * STEP < k_left ? 16 : 0);
  }
  INLINE void land(In *buffer) const {
    UNROLL for (int i = 0; i < COUNT; i++)
      UNROLL for (int p = 0; p < T::PLANES; p++) copies.land(i * T::PLANES + p, buffer + place(i, p));
  }

private:
  INLINE int place(int i, int p) const { return p * (ROWS * T::BK) + dst + i * STEP * ROWS; }
};

// The inner product on tensor cores.
template <class T> struct Mma {
  using In = typename T::In;
  static constexpr int MT = T::WM / 16, NT = T::WN / 8;  // blocks of a warp
  float acc[MT * NT][4];
  unsigned place;  // row * 65536 + column of its first element: in one register
  int a0, b0;  // where the thread's row of ldmatrix begins in a plane: block 0, k = 0

  INLINE explicit Mma(int thread) {
    const int lane = thread % 32, warp = thread / 32, low = lane % 8, mid = lane / 8 & 1, high = lane / 16;
    const int warp_row = warp / T::WARP_COLS * T::WM, warp_col = warp % T::WARP_COLS * T::WN;
    place = (warp_row + lane / 4) << 16 | (warp_col + lane % 4 * 2);
    ptx::forget(place);
    a0 = T::A_KMAJOR ? swizzled<T::BK>(warp_row + mid * 8 + low, high)          // matrices: rows first, then k
                     : swizzled<T::BM>(high * 8 + low, warp_row / 8 + mid);
    b0 = T::B_KMAJOR ? swizzled<T::BK>(warp_col + high * 8 + low, mid)          // k first, then columns
                     : swizzled<T::BN>(mid * 8 + low, warp_col / 8 + high);
    UNROLL for (int i = 0; i < MT * NT; i++)
      UNROLL for (int q = 0; q < 4; q++) acc[i][q] = 0.f;
  }
  INLINE int row(int i) const { return int(place >> 16) + i * 16; }
  INLINE int col(int j) const { return int(place & 0xffff) + j * 8; }

  // multiplies one slab
  INLINE void operator()(const In *a, const In *b) {
    if constexpr (T::PLANES == 1) {
      multiply(acc, a, b);
    } else {
      float part[MT * NT][4] = {};
      multiply(part, a, b);
      UNROLL for (int i = 0; i < MT * NT; i++)
        UNROLL for (int q = 0; q < 4; q++) acc[i][q] += part[i][q];
    }
  }
  // multiplies one slab of float32, [k][rows] and [k][columns]
  INLINE void exact(const float *a, const float *b, int depth) {
    UNROLL for (int i = 0; i < MT; i++)
      multiply_slab<NT, T::BM, T::BN, T::PLANES == 2>(&acc[i * NT][0], a + row(i), b + col(0), depth);
  }
  INLINE void scale(const float *a, const float *b) {
    const Scale scale(a, b);
    UNROLL for (int i = 0; i < MT * NT; i++)
      UNROLL for (int q = 0; q < 4; q++) acc[i][q] = acc[i][q] * scale.first * scale.second;
  }

private:
  INLINE void multiply(float (&sum)[MT * NT][4], const In *a_buffer, const In *b_buffer) const {
    UNROLL for (int k = 0; k < T::BK; k += 16) {
      unsigned a[T::PLANES][MT][4];
      UNROLL for (int p = 0; p < T::PLANES; p++)
        UNROLL for (int i = 0; i < MT; i++) fragment<T::A_KMAJOR, T::BM>(a[p][i], a_buffer + p * T::A_PLANE, a0, i, k);
      UNROLL for (int j = 0; j < NT; j += 2) {
        unsigned b[T::PLANES][4];
        UNROLL for (int p = 0; p < T::PLANES; p++)
          fragment<T::B_KMAJOR, T::BN>(b[p], b_buffer + p * T::B_PLANE, b0, j / 2, k);
        if constexpr (T::PLANES == 2) {
          blocks(sum, j, a[1], b[0]);
          blocks(sum, j, a[0], b[1]);
        }
        blocks(sum, j, a[0], b[0]);
      }
    }
  }
  // Fragments of 16 rows x 16 of k: all of A's, or those of two blocks of columns.
  template <bool KMAJOR, int ROWS>
  static INLINE void fragment(unsigned (&r)[4], const In *plane, int at, int i, int k) {
    if constexpr (KMAJOR) ptx::ldmatrix_x4(r, plane + ((at ^ k) + i * (16 * T::BK)));
    else ptx::ldmatrix_x4_trans(r, plane + ((at ^ i * 16) + k * ROWS));
  }
  // Products that follow one another have different sums: none waits for the one before.
  static INLINE void blocks(float (&sum)[MT * NT][4], int j, const unsigned (&a)[MT][4], const unsigned (&b)[4]) {
    const unsigned left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
    UNROLL for (int i = 0; i < MT; i++) {
      mma(sum[i * NT + j], a[i], left, In());
      mma(sum[i * NT + j + 1], a[i], right, In());
    }
  }
  static INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) { ptx::mma_f16(d, a, b); }
  static INLINE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) {
    ptx::mma_bf16(d, a, b);
  }
};

// Writes a tile as gemm_store of gemm_ffma.cuh does. aligned: rows begin at multiples of two elements, and `left` is even.
template <class T, class RowAt>
INLINE void gemm_store(const Mma<T> &product, RowAt row_at, const float *bias, int left, bool aligned, bool relu) {
  using Out = typename T::Out;
  constexpr int NT = Mma<T>::NT;
  float add[NT][2];
  UNROLL for (int j = 0; j < NT; j++)
    UNROLL for (int q = 0; q < 2; q++) add[j][q] = bias && product.col(j) + q < left ? bias[product.col(j) + q] : 0.f;
  UNROLL for (int i = 0; i < 2 * Mma<T>::MT; i++) {
    Out *out = row_at(product.row(i / 2) + i % 2 * 8);
    if (!out) continue;
    UNROLL for (int j = 0; j < NT; j++) {
      float v[2];
      UNROLL for (int q = 0; q < 2; q++) {
        v[q] = product.acc[i / 2 * NT + j][i % 2 * 2 + q] + add[j][q];
        if (relu && v[q] < 0.f) v[q] = 0.f;  // keeps NaN
      }
      const int col = product.col(j);
      if (aligned) {
        if (col < left) store_pair(out + col, v[0], v[1]);
      } else {
        if (col < left) out[col] = from_float<Out>(v[0]);
        if (col + 1 < left) out[col + 1] = from_float<Out>(v[1]);
      }
    }
  }
}
