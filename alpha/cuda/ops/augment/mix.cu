// What:     y[b] = s * x[b + 1] + (1 - s) * x[b]; s = inside the box of b one share, outside another one
// Source:   mixup, arXiv 1710.09412; CutMix, arXiv 1905.04899
// Layout:   x (B + 1, H, W, C), y (B, H, W, C), table (B, 6): outside, inside, top, left, bottom, right; float32.
// Requires: H*W*C below 2^31. Products and their sum are rounded by themselves, as on the host.
// Threads:  gridDim.x images, gridDim.y blocks for each, an element per thread.
// Measured: not by itself
#include "ptx.cuh"
#include "storage.cuh"

constexpr int THREADS = 256;

INLINE void mix(const float *x, const float *table, float *y, int elements, int width, int channels) {
  const float *row = table + blockIdx.x * 6;
  const i64 at = static_cast<i64>(blockIdx.x) * elements;
  for (int i = blockIdx.y * THREADS + threadIdx.x; i < elements; i += gridDim.y * THREADS) {
    const float line = static_cast<float>(i / (width * channels)), column = static_cast<float>(i / channels % width);
    const bool inside = row[2] <= line && line < row[4] && row[3] <= column && column < row[5];
    const float share = inside ? row[1] : row[0];
    y[at + i] = __fadd_rn(__fmul_rn(share, x[at + elements + i]), __fmul_rn(1.0f - share, x[at + i]));
  }
}

ALPHA_ENTRY(mix_images, (THREADS), (const float *x, const float *table, float *y, int elements, int width, int channels),
            mix(x, table, y, elements, width, channels))
