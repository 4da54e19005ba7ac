// ConvV2 and KS-deconv on tensor cores by mma.sync: no product with a padded or inserted zero is made.
//
// What:     fprop  y[n, oh, ow, oc] = relu(b[oc] + sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]),
//                  ih = oh*stride - padding + fh*dilation, iw likewise: `in` is x, `out` is y
//           dgrad  dx[n, ih, iw, ic] = sum_{fh, fw, oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic], the same ih, iw:
//                  `in` is g, `out` is dx. B_MAJOR_N is 1
// Source:   arXiv 2306.15951, ConvV2 and KS-deconv-V2, Algorithms 1B and 2B, as in conv_v2.cu and ks_deconv.cu, whose
//           classes, work lists and addresses these are
// Layout:   in, w: planes of 16-bit elements, NHWC and OHWI; out: NHWC, OUT = float, bf16 or f16
// GEMM:     rows: (pixel of a class, image); sum: taps of the class x channels of `in`; columns: channels of `out`. in
//           is K-major; w is K-major for fprop, and MN-major, as it lies in memory, for dgrad
// Zeros:    padding, and what a stride or dilation inserts, lies outside of all classes, see conv_slab.cuh. Channels
//           beyond the last are filled with zeros in both operands; images beyond the last are copies of others
// Requires: sm_80; channels of a group of `in` are a multiple of 8, those of `out` too for dgrad
// Threads:  see conv_slab.cuh and gemm_mma.cuh
// Measured: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction counts
#include "conv/ffma/conv_slab.cuh"
#include "gemm_mma.cuh"

using Tile = MmaTile<ELEMENT, OUT, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, true, !B_MAJOR_N>;

extern "C" __global__ void __launch_bounds__(Tile::THREADS, MIN_BLOCKS)
conv_mma(const ELEMENT *in, const ELEMENT *w, const float *b, OUT *out, Workspace partial, const SlabClass *classes,
         const SlabItem *work, long long in_image, long long out_image, int images, int channels, int columns, int w_row,
         long long in_plane, long long w_plane, const float *in_scale, const float *w_scale, int relu) {
  DYNAMIC_SHARED(ELEMENT, smem);
  slab_block<Tile, true>({in, w, b, out, partial, classes, work, in_image, out_image, images, channels, columns, w_row,
                          relu, in_plane, w_plane, in_scale, w_scale}, smem);
}
ALPHA_KERNEL(conv_mma)
