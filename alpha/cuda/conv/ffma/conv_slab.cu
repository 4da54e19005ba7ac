// ConvV2 and KS-deconv, on FMA units or on tensor cores by mma.sync: no product with a padded or inserted zero is made.
//
// What:     conv_v2    y[n, oh, ow, oc] = relu(b[oc] + sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]),
//                      ih = oh*stride - padding + fh*dilation, iw likewise: `in` is x, `out` is y
//           ks_deconv  dx[n, ih, iw, ic] = sum_{fh, fw, oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic], the same ih, iw:
//                      `in` is g, `out` is dx
//           Sums may be cut into slices, but for those that are made of TERMS terms at a time
// Source:   arXiv 2306.15951, ConvV2 and KS-deconv-V2, Algorithms 1B and 2B. Differs: positions with the same taps are
//           one product, whose taps are read where they lie; an input may have none
// Layout:   in NHWC, w OHWI, out NHWC. FMA units: float32. Tensor cores: in, w are planes of 16-bit ELEMENTs, OUT is
//           float, bf16 or f16
// GEMM:     rows: (pixel of a class, image); sum: taps of the class x channels of `in`; columns: channels of `out`, of a
//           group. `in` is K-major; w is K-major for conv_v2, and MN-major, as it lies in memory, for ks_deconv
// Zeros:    positions that read the same taps form a class, see conv_slab.cuh: near the border sums are shorter, inputs
//           of one residue modulo the stride read every stride-th tap, and inputs without a tap are written 0. Tensor
//           cores: channels beyond the last are zeros in both operands; images beyond the last are copies of others
// Exact:    where planes do not hold an operand of float32 results, the sums are those of conv/exact/exact_sum.cuh
// Requires: VECTOR = 4: IC / groups is a multiple of 4, for ks_deconv OC / groups too; VECTOR = 1: nothing.
//           ELEMENT: sm_75, bfloat16 sm_80, and multiples of 8
// Threads:  see conv_slab.cuh, gemm_ffma.cuh and gemm_mma.cuh
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): conv_v2 32x32x64 0.889 (0.945), 8x8x256 0.798 (0.911), 4x4x512 0.669 (0.907), 2x2x512 0.118
//           (0.407); ks_deconv 32x32x64 0.814 (1.431), 8x8x256 0.748 (1.069), stride 2 to 8x8x256 0.379 (1.094).
//           ELEMENT: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction counts
#include "conv_slab.cuh"
#ifdef ELEMENT
#include "conv/mma/gemm_mma.cuh"

template <bool FPROP>
using Tile = MmaTile<ELEMENT, OUT, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, true, FPROP>;
#else
template <bool FPROP>
using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, true, FPROP, VECTOR>;
#endif

#define CONV(name, FPROP) \
  ALPHA_ENTRY(name, (Tile<FPROP>::THREADS, blocks_here(MIN_BLOCKS)), (SlabTensors<Tile<FPROP>> t, Exact exact), \
              DYNAMIC_SHARED(Tile<FPROP>::In, smem); slab_block<Tile<FPROP>, !TERMS>(t, smem, exact))
CONV(conv_v2, true)
CONV(ks_deconv, false)
