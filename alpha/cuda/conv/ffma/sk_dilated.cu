// Sk-dilated: the gradient of a convolution with respect to its filters, leaping over the input in steps of the stride.
//
// What:     dw[oc][tap][ic] = sum over k of g[k][oc] * x[k moved by the tap][ic]: see conv_wgrad.cuh
// Source:   arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B. Differs: lower bounds are ceilings; dilation; groups
// Layout:   x NHWC, g NHWC, dw OHWI, float32
// GEMM:     rows: oc; columns: ic of a tap; sum: the outputs of all images that the tap reaches. Both are MN-major
// Zeros:    neither padding nor the gaps of a stride are within the bounds of a sum
// Requires: VECTOR = 4: channels per group of x and of g are multiples of 4; VECTOR = 1: nothing
// Threads:  see conv_wgrad.cuh and gemm_ffma.cuh
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): 32x32x64 0.881 (1.488), 8x8x256 0.701 (0.363, by another algorithm), stride 2 to 8x8x256 0.359
//           (0.665)
#include "conv_wgrad.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, false, false, VECTOR>;

ALPHA_GLOBAL(sk_dilated, (Tile::THREADS, MIN_BLOCKS),
             (const float *x, const float *g, float *dw, float *work, const WgradTap *taps, const WgradUnit *units,
              const int *first, long long x_image, long long g_image, int x_h, int x_w, int g_h, int g_w, int rows,
              int cols, int dw_row)) {
  ptx::follow();
  DYNAMIC_SHARED(float, smem);
  wgrad_block<Tile>({x, g, dw, work, taps, units, first, x_image, g_image, x_h, x_w, g_h, g_w, rows, cols, dw_row}, smem);
}
