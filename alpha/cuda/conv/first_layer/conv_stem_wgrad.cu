// The first layer's filter gradient in FFMA: input channels are few, so the taps share the columns of one product.
//
// What:     dw[oc][tap, ic] = sum over outputs p of g[p][oc] * x[p moved by the tap][ic]
// Source:   arXiv 2306.15951, Algorithm 3B; the shared columns are our own
// Layout:   x (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC; dw (OC, FH, FW, IC); float32
// GEMM:     rows oc, columns (tap, ic), a line k is an output position. Lines of g are contiguous; a line of x is
//           gathered, 4 bytes at a time, each thread for one column, whose displacement it knows
// Zeros:    outputs that meet the same taps form a class (conv_slab.cuh: SlabClass). A class is a product of its own,
//           with the columns of its taps: at a border there are fewer columns, and no padded zero
// Requires: one group; x has fewer than 2^31 elements, N * OH * OW < 2^31; VEC = 4: OC % 4 = 0
// Threads:  a unit is a range of k of one tile of one class, and has its own slot in the workspace [slot][BN][BM];
//           stem_sum adds, for each column of dw, the slots of all classes that have it, always in the same order.
//           gemm_ffma.cuh has the threads of a product, sk_dilated.cu the table of lines
// Measured: H100, 512 images of 32x32x3 to 64 channels, 3x3: 85 us, with g at the speed of a copy 47
#include "conv/ffma/conv_slab.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, false, false, VECTOR>;
using CopyG = Tile::LinesA;

struct StemUnit {
  int cls, row, col;  // row: output channel, col: column of the class
  int k, k_end, slot;
  int unused[2];
};

struct Line {
  long long g, x;  // elements up to the class's first tap of this position
};

ALPHA_GLOBAL(stem_wgrad, (Tile::THREADS, MIN_BLOCKS),
             (const float *x, const float *g, float *work, const SlabClass *classes, const StemUnit *units,
              long long x_image, long long g_image, int images, int ic, int oc)) {
  ptx::follow();
  constexpr int THREADS = Tile::THREADS, BK = Tile::BK, BN = Tile::BN, LINES = THREADS / BN;
  static_assert(THREADS % BN == 0 && BK % LINES == 0, "a thread gathers one column");
  static_assert((THREADS & (THREADS - 1)) == 0 && THREADS % BK == 0 && THREADS / BK >= Tile::STAGES - 1,
                "a chunk of lines is read behind the barrier that follows its writing");
  DYNAMIC_SHARED(float, smem);
  __shared__ Line lines[2 * THREADS];
  __shared__ SlabClass c;
  const int thread = threadIdx.x;
  const StemUnit unit = units[blockIdx.x];
  if (thread == 0) c = classes[unit.cls];
  __syncthreads();
  int fill = unit.k + thread;
  auto write_chunk = [&](int chunk) {
    const int pixels = c.rows / images, k = min(fill, unit.k_end - 1), image = k / pixels, pixel = k - image * pixels;
    const int h = pixel / c.width, w = pixel - h * c.width;
    lines[chunk + thread] = {image * g_image + (c.out + h * c.out_h + w * c.out_w),
                             image * x_image + (c.in + h * c.in_h + w * c.in_w)};
    fill += THREADS;
  };
  write_chunk(0);
  __syncthreads();
  const int wanted = unit.col + thread % BN, column = min(wanted, c.taps_h * c.taps_w * ic - 1);
  const int tap = column / ic;
  const float *gathered = x + (tap / c.taps_w * c.tap_in_h + tap % c.taps_w * c.tap_in_w + column % ic);
  const int line0 = thread / BN, k0 = wanted == column ? line0 : 1 << 30;  // beyond the last column: zeros
  const CopyG copy_g(thread, g + unit.row, oc - unit.row);
  int next = 0, k_left = unit.k_end - unit.k;
  Ffma<Tile> product(thread);
  gemm_pipeline<Tile>(smem, (k_left + BK - 1) / BK, [&](float *a, float *b) {
    if ((next & (THREADS - 1)) == 0) write_chunk(next ^ THREADS);
    copy_g(a, [&](int i) { return lines[next + CopyG::line0(thread) + i * CopyG::STEP].g; }, k_left);
    UNROLL for (int i = 0; i < BK; i += LINES)
      ptx::cp_async<4>(b + i * BN + thread, gathered + lines[next + line0 + i].x, k0 + i < k_left ? 4 : 0);
    next = (next + BK) & (2 * THREADS - 1);
    k_left -= BK;
  }, product);
  float *out = work + (long long)unit.slot * (Tile::BM * BN);
  UNROLL for (int j = 0; j < Tile::TN; j++)
    UNROLL for (int i = 0; i < Tile::TM; i += 4)
      *reinterpret_cast<float4 *>(out + product.col(j) * Tile::BM + product.row(i)) =
          make_float4(product.acc[i][j], product.acc[i + 1][j], product.acc[i + 2][j], product.acc[i + 3][j]);
}

// Grid (columns of dw, row tiles, parts of a row tile). SUM_CHANNELS threads side by side have an output channel each,
// and PARTS of them share one. from: columns of slots, slot * BN + column there, grouped by the column of dw that they
// are parts of
constexpr int SUM_THREADS = 512, SUM_CHANNELS = 16;

ALPHA_GLOBAL(stem_sum, (SUM_THREADS),
             (const float *work, float *dw, const int *from, const int *first, int row_tiles, int oc, int dw_row)) {
  ptx::follow();
  constexpr int BM = Tile::BM, PARTS = SUM_THREADS / SUM_CHANNELS;
  __shared__ float partial[SUM_THREADS];
  const int thread = threadIdx.x, row = blockIdx.z * SUM_CHANNELS + thread % SUM_CHANNELS;
  const int which = blockIdx.x * row_tiles + blockIdx.y, end = first[which + 1];
  float sum = 0.f;
  UNROLL_BY(8) for (int k = first[which] + thread / SUM_CHANNELS; k < end; k += PARTS)
    sum += work[(long long)from[k] * BM + row];
  partial[thread] = sum;
  for (int half = SUM_THREADS / 2; half >= SUM_CHANNELS; half /= 2) {
    __syncthreads();
    if (thread < half) partial[thread] += partial[thread + half];
  }
  const int channel = blockIdx.y * BM + row;
  if (thread < SUM_CHANNELS && channel < oc) dw[(long long)channel * dw_row + blockIdx.x] = partial[thread];
}
