// The exact way of kernels that read planes and write float32: where the flag of an operand is set, planes do not hold its
// tensor well. Then nothing is copied for tensor cores, and the same sums are made of float32 elements by FMA units.
//
// What:     sum[row][col] += A[row][k] * B[k][col], of a slab of up to 64 of k at a time
// Layout:   slabs in shared memory, where planes would have been: [k][rows of A] and [k][columns of B], float32. A thread
//           owns what it has in registers of mma.sync and wgmma: quads of two neighbours in a row and in that 8 below
// Zeros:    what does not exist is 0 in both slabs, or is left out: never 0 * Inf
// Threads:  those that fill slabs meet before they multiply, and before the slabs are filled again
#pragma once
#include <type_traits>

#include "lazy/stored.cuh"

struct Flags {  // of two operands, on the device; nulls: none is looked at
  const int *a, *b;
  INLINE bool any() const { return a ? *a | *b : 0; }
};

struct ExactOperand {
  const void *memory;           // float32; where there is a header, planes, or float32 where their flag is set
  const OperandHeader *header;
  i64 size;
  INLINE Stored stored() const { return stored_or_not(memory, header, size); }
};

struct Exact {
  Flags flags;
  ExactOperand a, b;
  i64 first;                    // element of b that is the first one of the launch's operand
};

// Whether a kernel has an exact way: one that rounds its results to 16 bits has none, and bfloat16 loses no range.
template <class In, class Out>
constexpr bool HAS_EXACT_WAY = std::is_same<In, __half>::value && std::is_same<Out, float>::value;

constexpr int EXACT_K = 64;        // of a slab
constexpr int PIECE = 32;          // columns that a thread of wgmma's sums up at a time: registers are short beside these
constexpr int EXACT_BARRIER = 8;   // of consumers; with a number of their own, of those of each from there on
template <int ROWS, int COLS> constexpr int EXACT_BYTES = EXACT_K * (ROWS + COLS) * 4;

// Fills the slab of an operand that lies as (row, k). at(row): the element at k = 0, or -1: there is none. depth: of k, a
// multiple of 4
template <int ROWS, int THREADS, class At>
INLINE void fill_rows(float *slab, const Stored &from, int thread, int depth, const At &at) {
  UNROLL_BY(1) for (int i = thread; i < depth / 4 * ROWS; i += THREADS) {
    const int row = i % ROWS, k = i / ROWS * 4;
    const i64 first = at(row);
    float v[4] = {};
    if (first >= 0) from.unpack(v, from.load(first + k));
    UNROLL for (int e = 0; e < 4; e++) slab[(k + e) * ROWS + row] = v[e];
  }
}
// The same of one that lies as (k, row). at(k, row): the element, of four rows that all exist or not.
template <int ROWS, int THREADS, class At>
INLINE void fill_lines(float *slab, const Stored &from, int thread, int depth, const At &at) {
  UNROLL_BY(1) for (int i = 4 * thread; i < depth * ROWS; i += 4 * THREADS) {
    const i64 first = at(i / ROWS, i % ROWS);
    float v[4] = {};
    if (first >= 0) from.unpack(v, from.load(first));
    *reinterpret_cast<float4 *>(slab + i) = make_float4(v[0], v[1], v[2], v[3]);
  }
}

// Adds the products of a slab to QUADS quads of a thread; a, b: its first row and column, in slabs of ROWS and COLS. upper,
// lower: whether those of its row and of the one 8 below are made. PARTS: added up before they are added to the sum, which
// keeps the error of long sums small.
template <int QUADS, int ROWS, int COLS, bool PARTS = true>
INLINE void multiply_slab(float *sum, const float *a, const float *b, int depth, bool upper = true, bool lower = true) {
  float parts[PARTS ? 4 * QUADS : 1] = {};
  float *const to = PARTS ? parts : sum;
  UNROLL_BY(2) for (int k = 0; k < depth; k++, a += ROWS, b += COLS) {
    const float first = a[0], second = a[8];
    UNROLL for (int q = 0; q < QUADS; q++) {
      const float2 v = *reinterpret_cast<const float2 *>(b + 8 * q);
      if (upper) to[4 * q] = fmaf(first, v.x, to[4 * q]), to[4 * q + 1] = fmaf(first, v.y, to[4 * q + 1]);
      if (lower) to[4 * q + 2] = fmaf(second, v.x, to[4 * q + 2]), to[4 * q + 3] = fmaf(second, v.y, to[4 * q + 3]);
    }
  }
  if constexpr (PARTS) {
    UNROLL for (int i = 0; i < 4 * QUADS; i++) sum[i] += parts[i];
  }
}

// The sum of a tile on mma.sync (conv/mma/gemm_mma.cuh). fill(a, b): all threads fill the next slab, and know its depth.
template <class T, class Fill>
INLINE void exact_slabs(typename T::In *smem, int slabs, typename T::Product &product, const Fill &fill) {
  if constexpr (HAS_EXACT_WAY<typename T::In, typename T::Out>) {
    static_assert(T::BK * (T::BM + T::BN) * 4 <= T::STAGES * T::STAGE_SIZE * sizeof(*smem), "a slab lies in the buffers");
    float *const a = reinterpret_cast<float *>(smem), *const b = a + T::BK * T::BM;
    UNROLL_BY(1) for (int s = 0; s < slabs; s++) {
      __syncthreads();
      const int depth = fill(a, b);
      __syncthreads();
      product.exact(a, b, depth);
    }
  }
}
