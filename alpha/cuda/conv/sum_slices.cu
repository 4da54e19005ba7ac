// Adds up the slices of the filter gradient's tiles, always in the same order.
//
// What:     dw tile = sum over `count` slots of the workspace, `apart` from each other
// Layout:   workspace [slot][BM][BN], or accumulators of wgmma for 64 rows, [slot][BN / 8][thread] float4: elements
//           (row, col), (row, col + 1) and the same of row + 8; dw (OC, FH, FW, IC / groups): a row of a tile is a run of
//           input channels
// Requires: blockDim.x = 256, split a power of two up to 32; parts = BM * BN / 4 * split / 256, an integer
// Threads:  grid (parts of a tile, tiles). A thread adds one float4 of every `split`-th slot; the `split` partial
//           sums of an element meet in shared memory. Few elements with many slots want a large split
// Measured: with the kernels whose slices it adds
#include "ptx.cuh"

struct SumTile {
  int slot, count;
  int out;         // elements of dw up to the tile
  int rows, cols;  // of the tile that exist
};

// tile_cols: 0 where slots have accumulators.
ALPHA_GLOBAL(sum_slices, (256),
             (const float4 *work, float *dw, const SumTile *tiles, int tile_quads, int tile_cols, int dw_row,
              int split, int apart)) {
  ptx::follow();
  __shared__ float4 partial[256];
  const SumTile tile = tiles[blockIdx.y];
  const int width = 256 / split, lane = threadIdx.x % width, part = threadIdx.x / width;
  const int at = blockIdx.x * width + lane;
  const int row = tile_cols ? 4 * at / tile_cols : at % 128 / 32 * 16 + at % 32 / 4;
  const int col = tile_cols ? 4 * at % tile_cols : at / 128 * 8 + at % 4 * 2;
  const bool exists = row < tile.rows && col < tile.cols;
  const int count = exists ? tile.count : 0;
  const float4 *from = work + (long long)tile.slot * tile_quads + at;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  UNROLL_BY(8) for (int s = part; s < count; s += split) {
    const float4 v = from[(long long)s * apart * tile_quads];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (part > 0 || !exists) return;
  for (int p = 1; p < split; p++) {
    const float4 v = partial[p * width + lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  float *to = dw + tile.out + (long long)row * dw_row + col;
  if (!tile_cols) {
    *reinterpret_cast<float2 *>(to) = make_float2(sum.x, sum.y);
    if (row + 8 < tile.rows) *reinterpret_cast<float2 *>(to + 8 * (long long)dw_row) = make_float2(sum.z, sum.w);
  } else if (dw_row % 4 == 0 && tile.cols % 4 == 0 && tile.out % 4 == 0) {
    *reinterpret_cast<float4 *>(to) = sum;
  } else {
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int q = 0; q < 4; q++)
      if (col + q < tile.cols) to[q] = v[q];
  }
}
