// d = c + a b by one instruction or a chain of them, for a comparison with a device, bit by bit: problem = block.
// Operands arrive as words of one or two values: a [problem][rows][words], b [problem][columns][words], 32 bytes of K per
// instruction; c and d [problem][rows][columns] fp32. Rows x columns: 16 x 8 with mma.sync, 64 x 64 with wgmma.
#ifdef HOPPER
#include "ptx_more.cuh"
#else
#include "ptx.cuh"
#endif
#ifndef WORDS
#define WORDS 8
#endif
constexpr int words = WORDS;  // of K: 8 for each instruction
#define ARGS const unsigned *a, const unsigned *b, const float *c, float *d

#ifndef HOPPER
#define MMA(type) \
  extern "C" __global__ void __launch_bounds__(32) mma_##type(ARGS) { \
    const int lane = threadIdx.x; \
    const float* from = c + blockIdx.x * 128; \
    float acc[4]; \
    for (int e = 0; e < 4; e++) acc[e] = from[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2]; \
    _Pragma("unroll") for (int w = 0; w < words; w += 8) { \
      unsigned fa[4], fb[2]; \
      for (int i = 0; i < 4; i++) \
        fa[i] = a[(blockIdx.x * 16 + lane / 4 + i % 2 * 8) * words + w + lane % 4 + i / 2 * 4]; \
      for (int i = 0; i < 2; i++) fb[i] = b[(blockIdx.x * 8 + lane / 4) * words + w + lane % 4 + i * 4]; \
      ptx::mma_##type(acc, fa, fb); \
    } \
    float* to = d + blockIdx.x * 128; \
    for (int e = 0; e < 4; e++) to[(lane / 4 + e / 2 * 8) * 8 + lane % 4 * 2 + e % 2] = acc[e]; \
  } \
  ALPHA_KERNEL(mma_##type)
MMA(f16)
MMA(bf16)
MMA(tf32)
#else
// Rows of 128 bytes, swizzled as TMA would: up to four instructions read one tile.
INLINE void fill_tile(unsigned* tile, const unsigned* from) {
  for (int i = threadIdx.x; i < 64 * words; i += 128) {
    const int row = i / words, word = i % words;
    tile[row * 32 + (word / 4 ^ row % 8) * 4 + word % 4] = from[i];
  }
}
#define WGMMA(type) \
  extern "C" __global__ void __launch_bounds__(128) wgmma_##type(ARGS) { \
    DYNAMIC_SHARED(unsigned, smem); /* [a, b][64][32] */ \
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4; \
    fill_tile(smem, a + blockIdx.x * 64 * words); \
    fill_tile(smem + 64 * 32, b + blockIdx.x * 64 * words); \
    ptx::fence_proxy_async(); \
    __syncthreads(); \
    const float* from = c + blockIdx.x * 4096; \
    float acc[32]; \
    _Pragma("unroll") for (int i = 0; i < 32; i++) acc[i] = \
        from[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2]; \
    const uint64_t at_a = ptx::wgmma_desc(smem), at_b = ptx::wgmma_desc(smem + 64 * 32); \
    ptx::wgmma_fence(); \
    _Pragma("unroll") for (int w = 0; w < words; w += 8) ptx::wgmma_n64_##type(acc, at_a + w / 4, at_b + w / 4, true); \
    ptx::wgmma_commit(); \
    ptx::wgmma_wait<0>(); \
    float* to = d + blockIdx.x * 4096; \
    _Pragma("unroll") for (int i = 0; i < 32; i++) to[(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + lane % 4 * 2 + i % 2] = \
        acc[i]; \
  } \
  ALPHA_KERNEL(wgmma_##type)
WGMMA(f16)
WGMMA(bf16)
WGMMA(tf32)
#endif
