// Sk-dilated: the gradient of a convolution with respect to its filters, leaping over the input in steps of the stride;
// on FMA units or on tensor cores by mma.sync. Units of a work list, in turn.
//
// What:     dw[oc][tap][ic] = sum over k of g[k][oc] * x[k moved by the tap][ic],  k = (image, output row, column)
//           over the outputs for which the tap meets a real input: 0 <= oh*sh - ph + fh*dh < IH, and likewise along w
// Source:   arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B. Differs: lower bounds are ceilings; dilation; groups
// Layout:   x (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC; dw (OC, FH, FW, IC / groups), float32. Tensor cores: x, g
//           are planes of 16-bit ELEMENTs
// GEMM:     one product per tap and group: rows oc, columns ic, both contiguous in memory (MN-major); a line k is one
//           output pixel. The pixels of a tap are a rectangle, walked image by image. For tensor cores ldmatrix
//           transposes the operands on their way to the registers
// Zeros:    padding is outside of the rectangle, and no zero is inserted between the rows of g: all are bounds of k.
//           Lines beyond the end of a sum are filled with zeros in both operands: never 0 * Inf
// Exact:    where planes do not hold an operand, the sums are those of conv/exact/exact_sum.cuh
// Requires: N * OH * OW < 2^31. VECTOR = 4: channels per group of x and of g are multiples of 4; VECTOR = 1: nothing.
//           ELEMENT: sm_75, bfloat16 sm_80, and multiples of 8
// Threads:  a unit is a range of k of one tile of one tap; block b computes units first[b] .. first[b + 1] - 1
//           (schedule_wgrad.py). A tile cut into several units is added up by sum_slices.cu, in order. Where the lines
//           of the next slabs start is worked out by all threads, one line each, for THREADS lines at a time: two
//           divisions per thread and THREADS / BK slabs. T, gemm_ffma.cuh or gemm_mma.cuh, has what is read and what
//           multiplies
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): 32x32x64 0.881 (1.488), 8x8x256 0.701 (0.363, by another algorithm), stride 2 to 8x8x256 0.359
//           (0.665). ELEMENT: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction
//           counts
#include "conv/exact/exact_sum.cuh"
#include "gemm_ffma.cuh"

struct WgradTap {
  int pixels, width;  // of the rectangle of outputs
  int g, x;           // elements of an image up to its first output, and up to the input that this one meets
  int w;              // elements of a filter up to the tap
  int unused[3];
};

struct WgradUnit {
  int tap, group, row, col;  // row, col: of the tile, in channels of the group
  int k, k_end;              // lines
  int slot;                  // tile of the workspace that gets the sum; -1: it is complete and goes to dw
  int unused;
};

struct Line {
  long long g, x;  // elements from the tap's first pixel of image 0
};

template <class T> struct WgradTensors {
  const typename T::In *x, *g;
  float *dw, *work;
  const WgradTap *taps;
  const WgradUnit *units;
  const int *first;
  long long x_image, g_image;          // elements of an image
  int x_h, x_w, g_h, g_w;              // elements between outputs
  int rows, cols;                      // channels of a group
  int dw_row;
  long long x_plane, g_plane;          // elements from a plane to the next, and scales, where T reads such
  const float *x_scale, *g_scale;
};

// Where a unit's sum goes.
struct WgradPlace {
  float *out;
  int stride, rows, cols;              // rows, cols: that exist
  bool slot;

  template <class T> INLINE WgradPlace(const WgradTensors<T> &t, const WgradUnit &unit, const WgradTap &tap)
      : slot(unit.slot >= 0) {         // a slot holds a whole tile, dw ends with its channels
    out = slot ? t.work + (long long)unit.slot * (T::BM * T::BN)
               : t.dw + (tap.w + (unit.group * t.rows + unit.row) * (long long)t.dw_row + unit.col);
    stride = slot ? T::BN : t.dw_row;
    rows = slot ? T::BM : t.rows - unit.row, cols = slot ? T::BN : t.cols - unit.col;
  }
};

template <class T> INLINE void wgrad_store(const Ffma<T> &product, const WgradPlace &to) {
  UNROLL for (int i = 0; i < T::TM; i++) {
    const int row = product.row(i);
    if (row >= to.rows) continue;
    UNROLL for (int j = 0; j < T::TN; j += 4) {
      const int col = product.col(j);
      const float *v = product.acc[i] + j, quad[] = {v[0], v[1], v[2], v[3]};
      store_quad(to.out + (long long)row * to.stride + col, quad, to.cols - col, to.slot || T::VEC == 4);
    }
  }
}

// One block: its units. exact: where T reads planes. By value, what they have would take a register more than there is.
template <class T> INLINE void wgrad_block(const WgradTensors<T> &t, typename T::In *smem, const Exact &exact) {
  using In = typename T::In;
  using CopyG = typename T::LinesA;
  using CopyX = typename T::LinesB;
  constexpr int THREADS = T::THREADS, BK = T::BK;
  static_assert((THREADS & (THREADS - 1)) == 0 && THREADS % BK == 0, "a chunk of lines is a whole number of slabs");
  static_assert(THREADS / BK >= T::STAGES - 1, "a chunk is read behind the barrier that follows its writing");
  __shared__ Line lines[2 * THREADS];  // two chunks: one is read while the other is written
  __shared__ WgradUnit unit;           // kept out of the registers, like what follows from them
  __shared__ WgradTap tap;
  __shared__ int end;
  const int thread = threadIdx.x;
  const bool flagged = HAS_EXACT_WAY<In, float> && exact.flags.any();
  if (thread == 0) end = t.first[blockIdx.x + 1];
  for (int u = t.first[blockIdx.x];; u++) {
    __syncthreads();  // everybody is done with the unit before
    if (u >= end) return;
    if (thread == 0) {
      unit = t.units[u];
      tap = t.taps[unit.tap];
    }
    __syncthreads();
    int fill = unit.k + thread;  // the line of this thread in the next chunk
    auto write_chunk = [&](int chunk) {
      const int k = min(fill, unit.k_end - 1), image = k / tap.pixels, pixel = k - image * tap.pixels;
      const int h = pixel / tap.width, w = pixel - h * tap.width;
      lines[chunk + thread] = {image * t.g_image + (h * t.g_h + w * t.g_w), image * t.x_image + (h * t.x_h + w * t.x_w)};
      fill += THREADS;
    };
    if (unit.k < unit.k_end) write_chunk(0);
    __syncthreads();
    CopyG copy_g(thread, t.g + (tap.g + unit.group * t.rows + unit.row), t.rows - unit.row, t.g_plane);
    CopyX copy_x(thread, t.x + (tap.x + unit.group * t.cols + unit.col), t.cols - unit.col, t.x_plane);
    int next = 0, k_left = unit.k_end - unit.k;  // next: where the next slab's lines begin
    typename T::Product product(thread);
    const int slabs = (k_left + BK - 1) / BK;
    const auto move_on = [&] {
      next = (next + BK) & (2 * THREADS - 1);
      k_left -= BK;
    };
    if (flagged) {
      exact_slabs<T>(smem, slabs, product, [&](float *a, float *b) {
        if ((next & (THREADS - 1)) == 0) write_chunk(next ^ THREADS);
        const int depth = min(k_left, BK), rows = t.rows - unit.row, cols = t.cols - unit.col;
        const i64 g = exact.first + tap.g + unit.group * t.rows + unit.row, x = tap.x + unit.group * t.cols + unit.col;
        fill_lines<T::BM, THREADS>(a, exact.b.stored(), thread, depth,
                                   [&](int k, int r) { return r < rows ? g + lines[next + k].g + r : -1; });
        fill_lines<T::BN, THREADS>(b, exact.a.stored(), thread, depth,
                                   [&](int k, int c) { return c < cols ? x + lines[next + k].x + c : -1; });
        move_on();
        return depth;
      });
    } else {
      gemm_pipeline<T>(smem, slabs, [&](In *a, In *b) {
        if ((next & (THREADS - 1)) == 0) write_chunk(next ^ THREADS);
        copy_g(a, [&](int i) { return lines[next + CopyG::line0(thread) + i * CopyG::STEP].g; }, k_left);
        copy_x(b, [&](int i) { return lines[next + CopyX::line0(thread) + i * CopyX::STEP].x; }, k_left);
        move_on();
      }, [&](In *a, In *b) { copy_g.land(a), copy_x.land(b); }, product);
      product.scale(t.x_scale, t.g_scale);
    }
    wgrad_store(product, WgradPlace(t, unit, tap));
  }
}

#ifdef ELEMENT
#include "conv/mma/gemm_mma.cuh"

using Tile = MmaTile<ELEMENT, float, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, false, false>;

template <class T> INLINE void wgrad_store(const Mma<T> &product, const WgradPlace &to) {
  gemm_store(product, [&](int r) { return r < to.rows ? to.out + (long long)r * to.stride : nullptr; }, nullptr, to.cols,
             true, false);
}
#else
using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, false, false, VECTOR>;
#endif

ALPHA_ENTRY(sk_dilated, (Tile::THREADS, blocks_here(MIN_BLOCKS)), (WgradTensors<Tile> t, Exact exact),
            DYNAMIC_SHARED(Tile::In, smem); wgrad_block<Tile>(t, smem, exact))
