// wgmma in every width, with operands in every layout, of either sign, and with A in registers. Blocks of 128 threads.
#include "ptx_more.cuh"
#include <utility>

struct F16 {
  template <int A_MN, int B_MN, int NA, int NB, int HALF>
  static INLINE void ss(float (&d)[HALF], uint64_t a, uint64_t b, bool add) {
    ptx::wgmma_ss_f16<A_MN, B_MN, NA, NB>(d, a, b, add);
  }
  template <int B_MN, int NA, int NB, int HALF>
  static INLINE void rs(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) {
    ptx::wgmma_rs_f16<B_MN, NA, NB>(d, a, b, add);
  }
};
struct Bf16 {
  template <int A_MN, int B_MN, int NA, int NB, int HALF>
  static INLINE void ss(float (&d)[HALF], uint64_t a, uint64_t b, bool add) {
    ptx::wgmma_ss_bf16<A_MN, B_MN, NA, NB>(d, a, b, add);
  }
  template <int B_MN, int NA, int NB, int HALF>
  static INLINE void rs(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) {
    ptx::wgmma_rs_bf16<B_MN, NA, NB>(d, a, b, add);
  }
};
struct Tf32 {
  template <int A_MN, int B_MN, int NA, int NB, int HALF>
  static INLINE void ss(float (&d)[HALF], uint64_t a, uint64_t b, bool add) {
    ptx::wgmma_ss_tf32<NA, NB>(d, a, b, add);
  }
  template <int B_MN, int NA, int NB, int HALF>
  static INLINE void rs(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) {
    ptx::wgmma_rs_tf32<NA, NB>(d, a, b, add);
  }
};
template <int HALF>
__device__ inline void store(float* to, int stride, const float (&d)[HALF]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < HALF; i++) to[(row + i / 2 % 2 * 8) * stride + i / 4 * 8 + lane % 4 * 2 + i % 2] = d[i];
}
INLINE unsigned* shared_words() {
  DYNAMIC_SHARED(unsigned, smem);
  return smem;
}
INLINE void fill(unsigned* to, const unsigned* from, int words) {
  for (int i = threadIdx.x; i < words; i += 128) to[i] = from[i];
}

// ---- widths: d[N / 8 - 1] = 2 a b^T, of 64 x N in 64 x 256, by adding a b^T and (-a)(-b)^T; block = N / 8 - 1.
// a [64][8 words], b [256][8 words]: one instruction's K, 32 bytes, over which shared memory is swizzled.
template <class Kind, int FROM_REGISTERS, int N>
__device__ inline void width(const unsigned (&a)[4], uint64_t at_a, uint64_t at_b, float* d) {
  float acc[N / 2];
  ptx::wgmma_fence();
  if constexpr (FROM_REGISTERS) {
    Kind::template rs<0, 0, 0>(acc, a, at_b, false);
    Kind::template rs<0, 1, 1>(acc, a, at_b, true);
  } else {
    Kind::template ss<0, 0, 0, 0>(acc, at_a, at_b, false);
    Kind::template ss<0, 0, 1, 1>(acc, at_a, at_b, true);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  store(d + (N / 8 - 1) * 64 * 256, 256, acc);
}
template <class Kind, int FROM_REGISTERS, int... I>
INLINE void widths(const unsigned* a, const unsigned* b, float* d, std::integer_sequence<int, I...>) {
  unsigned* smem = shared_words();  // [a: 64][8], [b: 256][8]
  for (int i = threadIdx.x; i < 320 * 8; i += 128) {
    const int row = i / 8, word = i % 8;
    smem[row * 8 + (word ^ row / 4 % 2 * 4)] = row < 64 ? a[i] : b[i - 64 * 8];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  unsigned fragment[4];
  for (int i = 0; i < 4; i++) fragment[i] = a[(row + i % 2 * 8) * 8 + lane % 4 + i / 2 * 4];
  const uint64_t at_a = ptx::wgmma_desc<32>(smem), at_b = ptx::wgmma_desc<32>(smem + 64 * 8);
  // nvcc compiles the widths that alpha's kernels use, the emulated driver has them all
  const auto one = [&](auto n) {
    if constexpr (PTX_HAS_WIDTH(n.value / 2)) width<Kind, FROM_REGISTERS, n.value>(fragment, at_a, at_b, d);
  };
  ((blockIdx.x == I ? one(std::integral_constant<int, 8 * I + 8>()) : (void)0), ...);
}
#define WIDTHS(name, Kind, from_registers) \
  extern "C" __global__ void __launch_bounds__(128) name(const unsigned* a, const unsigned* b, float* d) { \
    widths<Kind, from_registers>(a, b, d, std::make_integer_sequence<int, 32>()); \
  } \
  ALPHA_KERNEL(name)
WIDTHS(widths_ss_f16, F16, 0)
WIDTHS(widths_ss_bf16, Bf16, 0)
WIDTHS(widths_ss_tf32, Tf32, 0)
WIDTHS(widths_rs_f16, F16, 1)
WIDTHS(widths_rs_bf16, Bf16, 1)
WIDTHS(widths_rs_tf32, Tf32, 1)

// ---- layouts: d = a b, 64 x 128, K = two instructions. Operands arrive as they shall lie in shared memory.
struct Layout {
  int words, span, lbo, sbo, step;  // size; of the descriptor; bytes from the first instruction's K to the second's
};
INLINE uint64_t descriptor(const void* at, Layout l) {
  return l.span == 128  ? ptx::wgmma_desc<128>(at, l.lbo, l.sbo)
         : l.span == 64 ? ptx::wgmma_desc<64>(at, l.lbo, l.sbo)
         : l.span == 32 ? ptx::wgmma_desc<32>(at, l.lbo, l.sbo)
                        : ptx::wgmma_desc<0>(at, l.lbo, l.sbo);
}
template <class Kind, int A_MN, int B_MN>
INLINE void layouts(const unsigned* a, const unsigned* b, float* d, Layout of_a, Layout of_b) {
  unsigned* smem = shared_words();  // a, b
  fill(smem, a, of_a.words);
  fill(smem + of_a.words, b, of_b.words);
  ptx::fence_proxy_async();
  __syncthreads();
  const uint64_t at_a = descriptor(smem, of_a), at_b = descriptor(smem + of_a.words, of_b);
  float acc[64];
  ptx::wgmma_fence();
  Kind::template ss<A_MN, B_MN, 0, 0>(acc, at_a, at_b, false);
  Kind::template ss<A_MN, B_MN, 0, 0>(acc, at_a + of_a.step / 16, at_b + of_b.step / 16, true);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  store(d, 128, acc);
}
#define LAYOUTS(name, Kind, a_mn, b_mn) \
  extern "C" __global__ void __launch_bounds__(128) name(const unsigned* a, const unsigned* b, float* d, Layout of_a, \
                                                         Layout of_b) { \
    layouts<Kind, a_mn, b_mn>(a, b, d, of_a, of_b); \
  } \
  ALPHA_KERNEL(name)
LAYOUTS(layouts_f16_kk, F16, 0, 0)
LAYOUTS(layouts_f16_km, F16, 0, 1)
LAYOUTS(layouts_f16_mk, F16, 1, 0)
LAYOUTS(layouts_f16_mm, F16, 1, 1)
LAYOUTS(layouts_bf16_kk, Bf16, 0, 0)
LAYOUTS(layouts_bf16_km, Bf16, 0, 1)
LAYOUTS(layouts_bf16_mk, Bf16, 1, 0)
LAYOUTS(layouts_bf16_mm, Bf16, 1, 1)
LAYOUTS(layouts_tf32_kk, Tf32, 0, 0)

// ---- signs: d[0..3] = a b, (-a) b, a (-b), (-a)(-b), 64 x 64; a as in widths, b [16 of K][64]
extern "C" __global__ void __launch_bounds__(128) signs(const unsigned* a, const unsigned* b, float* d) {
  unsigned* smem = shared_words();  // [b: 16 of K][32 words], swizzled
  for (int i = threadIdx.x; i < 16 * 32; i += 128) {
    const int k = i / 32, word = i % 32;
    smem[k * 32 + (word ^ k % 8 * 4)] = b[i];
  }
  ptx::fence_proxy_async();
  __syncthreads();
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  unsigned fragment[4];
  for (int i = 0; i < 4; i++) fragment[i] = a[(row + i % 2 * 8) * 8 + lane % 4 + i / 2 * 4];
  const uint64_t at_b = ptx::wgmma_desc(smem);
  float acc[4][32];
  ptx::wgmma_fence();
  ptx::wgmma_rs_f16<1>(acc[0], fragment, at_b, false);
  ptx::wgmma_rs_f16<1, 1>(acc[1], fragment, at_b, false);
  ptx::wgmma_commit();
  ptx::wgmma_rs_f16<1, 0, 1>(acc[2], fragment, at_b, false);
  ptx::wgmma_rs_f16<1, 1, 1>(acc[3], fragment, at_b, false);
  ptx::wgmma_commit();
  ptx::wgmma_wait<1>();
  for (int i = 0; i < 2; i++) store(d + i * 4096, 64, acc[i]);
  ptx::wgmma_wait<0>();
  for (int i = 2; i < 4; i++) store(d + i * 4096, 64, acc[i]);
}
ALPHA_KERNEL(signs)
