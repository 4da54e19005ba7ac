// ConvV2: convolution with bias and relu, without a product with a padded zero.
//
// What:     y[n, oh, ow, oc] = relu(b[oc] + sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]),
//           ih = oh*stride - padding + fh*dilation, iw likewise; over the taps with 0 <= ih < IH, 0 <= iw < IW alone
// Source:   arXiv 2306.15951, ConvV2, Algorithm 1B. Differs: outputs with the same trimmed filter are one product
// Layout:   x NHWC, w OHWI, y NHWC, float32
// GEMM:     rows: (output pixel of a class, image); sum: taps of the class x ic; columns: oc of a group.
//           Both operands are K-major: ic is contiguous in x and in w
// Zeros:    an output near the border belongs to a class with fewer taps: a shorter sum, see conv_slab.cuh
// Requires: VECTOR = 4: IC / groups is a multiple of 4; VECTOR = 1: nothing
// Threads:  see conv_slab.cuh and gemm_ffma.cuh
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): 32x32x64 0.889 (0.945), 8x8x256 0.798 (0.911), 4x4x512 0.669 (0.907), 2x2x512 0.118 (0.407)
#include "conv_slab.cuh"
#include "guard.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, true, true, VECTOR>;

#define CONV_V2(name, SPLIT) \
  ALPHA_ENTRY(name, (Tile::THREADS, MIN_BLOCKS), \
              (const float *x, const float *w, const float *b, float *y, Workspace partial, const SlabClass *classes, \
               const SlabItem *work, long long x_image, long long y_image, int images, int channels, int columns, \
               int w_row, int relu, Guard guard), \
              DYNAMIC_SHARED(float, smem); \
              if (!spared(guard)) slab_block<Tile, SPLIT>({x, w, b, y, partial, classes, work, x_image, y_image, \
                                                           images, channels, columns, w_row, relu}, smem))
CONV_V2(conv_v2, false)
CONV_V2(conv_v2_split, true)
