// Adds up the slices of the filter gradient's tiles, always in the same order.
//
// What:     dw tile = sum over `count` slots of the workspace, `apart` from each other
// Layout:   workspace [slot][BM][BN]; dw (OC, FH, FW, IC / groups): a row of a tile is a run of input channels
// Requires: blockDim.x = 256, split a power of two up to 32; parts = BM * BN / 4 * split / 256, an integer
// Threads:  grid (parts of a tile, tiles). A thread adds one float4 of every `split`-th slot; the `split` partial
//           sums of an element meet in shared memory. Few elements with many slots want a large split
// Measured: with the kernels whose slices it adds
#include "ptx.cuh"

struct SumTile {
  int slot, count;
  int out;         // elements of dw up to the tile
  int rows, cols;  // of the tile that exist
  int unused[3];
};

ALPHA_GLOBAL(sum_slices, (256),
             (const float *work, float *dw, const SumTile *tiles, int tile_floats, int tile_cols, int dw_row,
              int split, int apart)) {
  ptx::follow();
  __shared__ float4 partial[256];
  const SumTile tile = tiles[blockIdx.y];
  const int width = 256 / split, lane = threadIdx.x % width, part = threadIdx.x / width;
  const int element = (blockIdx.x * width + lane) * 4;
  const int row = element / tile_cols, col = element - row * tile_cols;
  const bool exists = row < tile.rows && col < tile.cols;
  const int count = exists ? tile.count : 0;
  const float *from = work + (long long)tile.slot * tile_floats + element;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  UNROLL_BY(8) for (int s = part; s < count; s += split) {
    const float4 v = *reinterpret_cast<const float4 *>(from + (long long)s * apart * tile_floats);
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
  if (dw_row % 4 == 0 && tile.cols % 4 == 0 && tile.out % 4 == 0) {
    *reinterpret_cast<float4 *>(to) = sum;
  } else {
    const float v[4] = {sum.x, sum.y, sum.z, sum.w};
    for (int q = 0; q < 4; q++)
      if (col + q < tile.cols) to[q] = v[q];
  }
}
