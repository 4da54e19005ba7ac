// Sk-dilated: the gradient of a convolution with respect to its filters, leaping over the input in steps of the stride.
//
//   what      dw[oc][tap][ic] = sum over k of g[k][oc] * x[k moved by the tap][ic],  k = (image, output row, column)
//             over the outputs for which the tap meets a real input: 0 <= oh*sh - ph + fh*dh < IH, and likewise along w
//   source    arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B. Differs: lower bounds are ceilings; dilation; groups
//   layout    x (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC; dw (OC, FH, FW, IC / groups)
//   GEMM view one product per tap and group: rows oc, columns ic, both contiguous in memory (MN-major); a line k is one
//             output pixel. The pixels of a tap are a rectangle, walked image by image
//   zeros     padding is outside of the rectangle, and no zero is inserted between the rows of g: all are bounds of k
//   work      a unit is a range of k of one tile of one tap; block b computes units first[b] .. first[b + 1] - 1
//             (alpha/cuda/conv/schedule_wgrad.py). A tile cut into several units is added up by sum_slices.cu, in order
//   threads   see gemm_ffma.cuh. Where the lines of the next slabs start is worked out by all threads, one line each,
//             for THREADS lines at a time: two divisions per thread and THREADS / BK slabs
//   requires  VEC = 4: channels per group of x and of g are multiples of 4; VEC = 1: nothing. N * OH * OW < 2^31
#include "gemm_ffma.cuh"
#include "guard.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, false, false, VECTOR>;
using CopyG = MnMajorCopy<Tile, Tile::BM>;
using CopyX = MnMajorCopy<Tile, Tile::BN>;

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

__device__ __forceinline__ void store(const Ffma<Tile> &product, const WgradUnit &unit, const WgradTap &tap, float *dw,
                                      float *work, int rows, int cols, int dw_row) {
  const bool slot = unit.slot >= 0;  // a slot holds a whole tile, dw ends with its channels
  float *out = slot ? work + (long long)unit.slot * (Tile::BM * Tile::BN)
                    : dw + (tap.w + (unit.group * rows + unit.row) * (long long)dw_row + unit.col);
  const int stride = slot ? Tile::BN : dw_row;
  const int rows_left = slot ? Tile::BM : rows - unit.row, cols_left = slot ? Tile::BN : cols - unit.col;
#pragma unroll
  for (int i = 0; i < Tile::TM; i++) {
    const int row = product.row(i);
    if (row >= rows_left) continue;
#pragma unroll
    for (int j = 0; j < Tile::TN; j += 4) {
      const int col = product.col(j);
      float *to = out + (long long)row * stride + col;
      const float *v = product.acc[i] + j;
      if (slot || Tile::VEC == 4) {
        if (col < cols_left) *reinterpret_cast<float4 *>(to) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
#pragma unroll
        for (int q = 0; q < 4; q++)
          if (col + q < cols_left) to[q] = v[q];
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(Tile::THREADS, MIN_BLOCKS)
sk_dilated(const float *x, const float *g, float *dw, float *work, const WgradTap *taps, const WgradUnit *units,
           const int *first, long long x_image, long long g_image, int x_h, int x_w, int g_h, int g_w, int rows,
           int cols, int dw_row, Guard guard) {  // x_h .. g_w: elements between outputs; rows, cols: channels of a group
  constexpr int THREADS = Tile::THREADS, BK = Tile::BK;
  static_assert((THREADS & (THREADS - 1)) == 0 && THREADS % BK == 0, "a chunk of lines is a whole number of slabs");
  static_assert(THREADS / BK >= Tile::STAGES - 1, "a chunk is read behind the barrier that follows its writing");
  DYNAMIC_SHARED(float, smem);
  if (spared(guard)) return;
  __shared__ Line lines[2 * THREADS];  // two chunks: one is read while the other is written
  __shared__ WgradUnit unit;           // kept out of the registers, like what follows from them
  __shared__ WgradTap tap;
  __shared__ int end;
  const int thread = threadIdx.x;
  if (thread == 0) end = first[blockIdx.x + 1];
  for (int u = first[blockIdx.x];; u++) {
    __syncthreads();  // everybody is done with the unit before
    if (u >= end) return;
    if (thread == 0) {
      unit = units[u];
      tap = taps[unit.tap];
    }
    __syncthreads();
    int fill = unit.k + thread;  // the line of this thread in the next chunk
    auto write_chunk = [&](int chunk) {
      const int k = min(fill, unit.k_end - 1), image = k / tap.pixels, pixel = k - image * tap.pixels;
      const int h = pixel / tap.width, w = pixel - h * tap.width;
      lines[chunk + thread] = {image * g_image + (h * g_h + w * g_w), image * x_image + (h * x_h + w * x_w)};
      fill += THREADS;
    };
    if (unit.k < unit.k_end) write_chunk(0);
    __syncthreads();
    const CopyG copy_g(thread, g + (tap.g + unit.group * rows + unit.row), rows - unit.row);
    const CopyX copy_x(thread, x + (tap.x + unit.group * cols + unit.col), cols - unit.col);
    int next = 0, k_left = unit.k_end - unit.k;  // next: where the next slab's lines begin
    Ffma<Tile> product(thread);
    gemm_pipeline<Tile>(smem, (k_left + BK - 1) / BK, [&](float *a, float *b) {
      if ((next & (THREADS - 1)) == 0) write_chunk(next ^ THREADS);
      copy_g(a, [&](int i) { return lines[next + CopyG::line0(thread) + i * CopyG::STEP].g; }, k_left);
      copy_x(b, [&](int i) { return lines[next + CopyX::line0(thread) + i * CopyX::STEP].x; }, k_left);
      next = (next + BK) & (2 * THREADS - 1);
      k_left -= BK;
    }, product);
    store(product, unit, tap, dw, work, rows, cols, dw_row);
  }
}
ALPHA_KERNEL(sk_dilated)
