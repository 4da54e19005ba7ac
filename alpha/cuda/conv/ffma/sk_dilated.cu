// Sk-dilated: the gradient of a convolution with respect to its filters, leaping over the input in steps of the stride;
// on FMA units or on tensor cores by mma.sync.
//
// What:     dw[oc][tap][ic] = sum over k of g[k][oc] * x[k moved by the tap][ic]: see conv_wgrad.cuh
// Source:   arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B. Differs: lower bounds are ceilings; dilation; groups
// Layout:   x NHWC, g NHWC, dw OHWI, float32. Tensor cores: x, g are planes of 16-bit ELEMENTs
// GEMM:     rows: oc; columns: ic of a tap; sum: the outputs of all images that the tap reaches. Both are MN-major, as
//           they lie in memory; for tensor cores ldmatrix transposes them on their way to the registers
// Zeros:    neither padding nor the gaps of a stride are within the bounds of a sum. Lines beyond its end are filled
//           with zeros in both operands: never 0 * Inf
// Exact:    where planes do not hold an operand, the sums are those of conv/exact/exact_sum.cuh
// Requires: VECTOR = 4: channels per group of x and of g are multiples of 4; VECTOR = 1: nothing. ELEMENT: sm_80, and
//           multiples of 8
// Threads:  see conv_wgrad.cuh, gemm_ffma.cuh and gemm_mma.cuh
// Measured: H100, batch 512, 3x3, ms beside cuDNN's better layout, 2026-11-21 (benchmarks.conv_ops --sets layers
//           --fma): 32x32x64 0.881 (1.488), 8x8x256 0.701 (0.363, by another algorithm), stride 2 to 8x8x256 0.359
//           (0.665). ELEMENT: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction
//           counts
#include "conv_wgrad.cuh"
#ifdef ELEMENT
#include "conv/mma/gemm_mma.cuh"

using Tile = MmaTile<ELEMENT, float, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, false, false>;

template <class T> INLINE void wgrad_store(const Mma<T> &product, const WgradPlace &to) {
  gemm_store(product, [&](int r) { return r < to.rows ? to.out + (long long)r * to.stride : nullptr; }, nullptr, to.cols,
             true, false);
}
#else
using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, false, false, VECTOR>;
#endif

ALPHA_ENTRY(sk_dilated, (Tile::THREADS, MIN_BLOCKS), (WgradTensors<Tile> t, Exact exact),
            DYNAMIC_SHARED(Tile::In, smem); wgrad_block<Tile>(t, smem, exact))
