// ConvV2 of 1x1 filters with few input channels: the filters stay in shared memory while the pixels pass by.
//
// what      y[n, oh, ow, oc] = relu(b[oc] + sum_ic x[n, oh*stride, ow*stride, ic] * w[oc, ic])
// layout    x NHWC, w O..I, y NHWC, float32
// GEMM      rows: output pixels in the order of memory, images among them; sum: ic; columns: oc
// work      grid (blocks, column tiles). A block reads the filters of its columns once, then takes every gridDim.x-th
//           tile of rows. Its slabs of x are one long sequence for the pipeline: those of the next tile are on their way
//           while this one is multiplied and stored. Sums this short would else be all start and end: conv_v2.cu, whose
//           blocks have one tile each, issues an instruction in 59 of 100 clocks on an H100
// measured  H100 SXM, nvcc 13.0, bursts, 512 images of 32x32, 64 to 128 channels, stride 2: 60.5 us (conv_v2 77.5), with
//           slabs of 16 or 64 channels 62.5; tiles of 64 columns 64, 16 warps a multiprocessor 70, 16x8 or 8x16 sums a
//           thread 72, slabs of 32 whose whole product is unrolled 70. What is left when all blocks have had as many
//           tiles, done in tiles of half the rows: 65
// zeros     there is no padding, and inputs that the stride leaves out are not read
// requires  IC a multiple of 4; STAGES slabs of x and all of the columns' filters fit into shared memory; x and y have
//           fewer than 2^30 pixels
#include "gemm_ffma.cuh"
#include "guard.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, true, false, VECTOR>;

struct HeldTile : Tile {  // what passes through the pipeline: x alone
  static constexpr int STAGE_SIZE = Tile::A_SIZE;
};

struct HeldShape {
  long long x_image;             // elements of an image of x
  int x_h, x_w;                  // elements of x between outputs
  int rows, pixels, width;       // outputs of all images, of an image, of a line
  int channels, columns;
  int relu;
};

// Filters lie in shared memory as B of a tile does: [k][column]. What does not exist is zero. A warp takes 16 of k of 8
// columns: 8 lines of memory in the place of 32, and 4 lanes that store to a bank.
__device__ __forceinline__ void hold(float *filters, const float *w, int column0, int k_end, const HeldShape &s) {
  static_assert(Tile::BK % 16 == 0, "as many of k as a warp takes");
#pragma unroll 8  // loads on their way at once
  for (int at = threadIdx.x; at < k_end / 4 * Tile::BN; at += Tile::THREADS) {
    const int column = at / 4 % Tile::BN, k = at / (4 * Tile::BN) * 16 + at % 4 * 4;
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
    if (column0 + column < s.columns && k < s.channels)
      v = *reinterpret_cast<const float4 *>(w + (long long)(column0 + column) * s.channels + k);
    float *to = filters + k * Tile::BN + column;
    to[0] = v.x, to[Tile::BN] = v.y, to[2 * Tile::BN] = v.z, to[3 * Tile::BN] = v.w;
  }
}

extern "C" __global__ void __launch_bounds__(Tile::THREADS, MIN_BLOCKS)
conv_v2_held(const float *x, const float *w, const float *b, float *y, HeldShape s, Guard guard) {
  using Copy = Tile::RowsA;
  DYNAMIC_SHARED(float, smem);
  if (spared(guard)) return;
  const int column0 = blockIdx.y * Tile::BN, slabs = (s.channels + Tile::BK - 1) / Tile::BK;
  const int tiles = (s.rows + Tile::BM - 1) / Tile::BM;
  const int own = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  float *filters = smem + Tile::STAGES * Tile::A_SIZE;
  hold(filters, w, column0, slabs * Tile::BK, s);
  const Copy copy(threadIdx.x);
  __shared__ const float *starts[Copy::COUNT][Tile::THREADS];  // of the rows that each thread copies of the next tile
  int next = blockIdx.x * Tile::BM, copied = s.channels;
  auto load = [&](float *a, float *) {
    if (copied >= s.channels) {
#pragma unroll
      for (int i = 0; i < Copy::COUNT; i++) {
        const unsigned row = min(next + Copy::row_in_buffer(copy.first + i * Copy::STEP), s.rows - 1);
        const unsigned image = row / s.pixels, pixel = row - image * s.pixels, h = pixel / s.width;
        starts[i][threadIdx.x] = x + image * s.x_image + (h * s.x_h + (pixel - h * s.width) * s.x_w) + copy.k;
      }
      next += gridDim.x * Tile::BM;
      copied = 0;
    }
    const float *from[Copy::COUNT];
#pragma unroll
    for (int i = 0; i < Copy::COUNT; i++) from[i] = starts[i][threadIdx.x] + copied;
    copy.chunks(a, from, s.channels - copied);
    copied += Tile::BK;
  };
  Tile::Product product(threadIdx.x);
  int row0 = blockIdx.x * Tile::BM, multiplied = 0;
  auto multiply = [&](const float *a, const float *) {
    product(a, filters + multiplied * Tile::BN);
    multiplied += Tile::BK;
    if (multiplied < s.channels) return;
    gemm_store(product, [&](int r) {
      return row0 + r < s.rows ? y + (long long)(row0 + r) * s.columns + column0 : nullptr;
    }, b ? b + column0 : nullptr, s.columns - column0, true, s.relu);
    row0 += gridDim.x * Tile::BM;
    multiplied = 0;
    product.clear();
  };
  gemm_pipeline<HeldTile>(smem, own * slabs, load, multiply);
}
ALPHA_KERNEL(conv_v2_held)
