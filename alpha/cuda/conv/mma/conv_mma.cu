// ConvV2 and KS-deconv on tensor cores by mma.sync: no product with a padded or inserted zero is made.
//
// What:     fprop and dgrad: conv_v2 and ks_deconv of conv_ffma.cu, with sums that may be cut into slices
// Source:   arXiv 2306.15951, ConvV2 and KS-deconv-V2, Algorithms 1B and 2B, as in conv_ffma.cu, whose classes, work lists
//           and addresses these are
// Layout:   in, w: planes of 16-bit elements, NHWC and OHWI; out: NHWC, OUT = float, bf16 or f16
// GEMM:     as in conv_ffma.cu
// Zeros:    padding, and what a stride or dilation inserts, lies outside of all classes, see conv_slab.cuh. Channels
//           beyond the last are filled with zeros in both operands; images beyond the last are copies of others
// Exact:    where planes do not hold an operand of float32 results, the sums are those of conv/exact/exact_sum.cuh
// Requires: sm_80; channels of a group of `in` are a multiple of 8, those of `out` too for dgrad
// Threads:  see conv_slab.cuh and gemm_mma.cuh
// Measured: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction counts
#include "conv/ffma/conv_slab.cuh"
#include "gemm_mma.cuh"

template <bool FPROP>
using Tile = MmaTile<ELEMENT, OUT, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, true, FPROP>;

#define CONV(name, FPROP) \
  ALPHA_ENTRY(name, (Tile<FPROP>::THREADS, MIN_BLOCKS), (SlabTensors<Tile<FPROP>> t, Exact exact), \
              DYNAMIC_SHARED(ELEMENT, smem); slab_block<Tile<FPROP>, true>(t, smem, exact))
CONV(conv_mma_fprop, true)
CONV(conv_mma_dgrad, false)
