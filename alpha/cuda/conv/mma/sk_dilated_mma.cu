// Sk-dilated on tensor cores by mma.sync: the gradient of a convolution with respect to its filters.
//
// What:     dw[oc][tap][ic] = sum over k of g[k][oc] * x[k moved by the tap][ic]: see conv_wgrad.cuh
// Source:   arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B, as in sk_dilated.cu, whose work list and addresses these are
// Layout:   x, g: planes of 16-bit elements, NHWC; dw: OHWI, float32
// GEMM:     rows: oc; columns: ic of a tap; sum: the outputs of all images that the tap reaches. Both operands are
//           MN-major, as they lie in memory, and ldmatrix transposes them on their way to the registers
// Zeros:    neither padding nor the gaps of a stride are within the bounds of a sum. Lines beyond its end are filled
//           with zeros in both operands: never 0 * Inf
// Exact:    where planes do not hold an operand, the sums are those of conv/exact/exact_sum.cuh
// Requires: sm_80; channels per group of x and of g are multiples of 8
// Threads:  see conv_wgrad.cuh and gemm_mma.cuh
// Measured: not on an sm_80 GPU; what alpha/cuda/conv/mma expects of it follows from instruction counts
#include "conv/ffma/conv_wgrad.cuh"
#include "gemm_mma.cuh"

using Tile = MmaTile<ELEMENT, float, TILE_M, TILE_N, WARP_M, WARP_N, OPERAND_PLANES, PIPELINE, false, false>;

template <class T> INLINE void wgrad_store(const Mma<T> &product, const WgradPlace &to) {
  gemm_store(product, [&](int r) { return r < to.rows ? to.out + (long long)r * to.stride : nullptr; }, nullptr, to.cols,
             true, false);
}

ALPHA_ENTRY(sk_dilated_mma, (Tile::THREADS, MIN_BLOCKS), (WgradTensors<Tile> t, Exact exact),
            DYNAMIC_SHARED(ELEMENT, smem); wgrad_block<Tile>(t, smem, exact))
