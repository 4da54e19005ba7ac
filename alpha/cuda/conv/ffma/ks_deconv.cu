// KS-deconv: the gradient of a convolution with respect to its input, without a product with an inserted zero.
//
// What:     dx[n, ih, iw, ic] = sum_{fh, fw, oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic],
//           ih = oh*stride - padding + fh*dilation, iw likewise; over the taps that meet an output alone
// Source:   arXiv 2306.15951, KS-deconv-V2, Algorithm 2B. Differs: nothing is split in memory; the taps of a residue
//           class are read where they lie, and an input may have none
// Layout:   g NHWC, w OHWI, dx NHWC, float32
// GEMM:     rows: (input pixel of a class, image); sum: taps of the class x oc; columns: ic of a group.
//           g is K-major (oc contiguous), w is MN-major (ic contiguous): no transposed copy of w is made
// Zeros:    inputs of one residue modulo the stride read every stride-th tap and nothing between; towards the border
//           the list is trimmed; inputs without a tap are written 0. All of it is a class, see conv_slab.cuh
// Requires: VECTOR = 4: OC / groups and IC / groups are multiples of 4; VECTOR = 1: nothing
// Threads:  see conv_slab.cuh and gemm_ffma.cuh
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): 32x32x64 0.814 (1.431), 8x8x256 0.748 (1.069); stride 2 to 8x8x256 0.379 (1.094)
#include "conv_slab.cuh"
#include "guard.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, true, false, VECTOR>;

#define KS_DECONV(name, SPLIT) \
  ALPHA_ENTRY(name, (Tile::THREADS, MIN_BLOCKS), \
              (const float *g, const float *w, float *dx, Workspace partial, const SlabClass *classes, \
               const SlabItem *work, long long g_image, long long dx_image, int images, int channels, int columns, \
               int w_row, Guard guard), \
              DYNAMIC_SHARED(float, smem); \
              if (!spared(guard)) slab_block<Tile, SPLIT>({g, w, nullptr, dx, partial, classes, work, g_image, \
                                                           dx_image, images, channels, columns, w_row, 0}, smem))
KS_DECONV(ks_deconv, false)
#if !TERMS  // whose sums are not cut
KS_DECONV(ks_deconv_split, true)
#endif
