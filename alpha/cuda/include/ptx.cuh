// The PTX instructions that kernels use, each with its two halves: inline PTX under nvcc, the emulator elsewhere.
// Kernels contain no asm of their own. Pointers are ordinary pointers; the wrappers convert shared-memory addresses.
#pragma once
#include <stdint.h>
#ifdef __CUDACC__
#include "declared.cuh"
#define DYNAMIC_SHARED(type, name) \
  extern __shared__ __align__(1024) unsigned char alpha_dynamic_shared[]; \
  type* name = (type*)alpha_dynamic_shared
#define PTX(emulated, ...) asm volatile(__VA_ARGS__)
#define PTX_PURE(emulated, ...) asm(__VA_ARGS__)  // whose results are all that it does
#define ALPHA_BOUNDS(name, bounds)
#define ALPHA_TRAP() __trap()
#else
#include "emu_ptx.hpp"
#define PTX(emulated, ...) emulated
#define PTX_PURE(emulated, ...) emulated
// bounds may end in CLUSTERS, which begins a declaration again: it ends in a function without a body.
#define ALPHA_BOUNDS(name, bounds) \
  namespace ALPHA_JOINED(alpha_bounds_, name) { \
  static emu::LaunchBounds of_next ALPHA_BOUND bounds ALPHA_JOINED(alpha_bounded_, name)(); \
  }
#define ALPHA_BOUND(...) (__VA_ARGS__); extern "C" void
#define ALPHA_IS_LEFT_OUT(name) false
#define ALPHA_TRAP()
#endif
// The class of GPU that is compiled for, 75 for sm_75. The emulator names those that lack what sm_80 has.
#ifdef __CUDA_ARCH__
#define ALPHA_ARCH (__CUDA_ARCH__ / 10)
#elif !defined(ALPHA_ARCH)
#define ALPHA_ARCH 90
#endif
#define INLINE __device__ __forceinline__
#define UNROLL _Pragma("unroll")  // before a loop whose length is known; UNROLL_BY(1): it stays a loop
#define UNROLL_BY(n) ALPHA_PRAGMA(unroll n)
#define ALPHA_PRAGMA(text) _Pragma(#text)
// A kernel that is launched by its name. bounds: those of __launch_bounds__, and parameters, in parentheses; then its
// body, which has no directives: loops are in what it calls.
#define ALPHA_ENTRY(name, bounds, parameters, ...) \
  constexpr bool ALPHA_JOINED(left_out_, name) = ALPHA_IS_LEFT_OUT(name); \
  extern "C" __global__ void __launch_bounds__ bounds name parameters { \
    if constexpr (ALPHA_JOINED(left_out_, name)) { \
      ALPHA_TRAP(); \
    } else { \
      ptx::follow(); \
      __VA_ARGS__; \
    } \
  } \
  ALPHA_BOUNDS(name, bounds) \
  ALPHA_KERNEL(name)
// The same of a kernel whose body follows in braces, and begins with ptx::follow().
#define ALPHA_GLOBAL(name, bounds, parameters) \
  extern "C" __global__ void __launch_bounds__ bounds name parameters; \
  ALPHA_BOUNDS(name, bounds) \
  ALPHA_KERNEL(name) \
  extern "C" __global__ void name parameters
#define ALPHA_JOINED(a, b) ALPHA_JOINED_OF(a, b)
#define ALPHA_JOINED_OF(a, b) a##b

template <int BYTES> struct BitsOf;  // what as many bytes are read and written as, at once
template <> struct BitsOf<1> { using type = unsigned char; };
template <> struct BitsOf<2> { using type = unsigned short; };
template <> struct BitsOf<4> { using type = unsigned; };
template <> struct BitsOf<8> { using type = uint2; };
template <> struct BitsOf<16> { using type = uint4; };

namespace ptx {
#ifdef __CUDACC__
INLINE unsigned shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#else
INLINE unsigned shared(const void* p) { return (unsigned)((const char*)p - emu::engine.dynamic_shared); }
#endif

// The first thing in every kernel: it waits until the kernel before it has ended, and what that wrote can be read. In a
// recording (runtime/recording.py) the blocks may be in their places by then.
INLINE void follow() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- 1 / x and 2^x within 2 units in the last place; results below 2^-126 are 0
INLINE float reciprocal(float x) {
  PTX_PURE(x = 1 / x, "rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}
INLINE float exp2(float x) {
  PTX_PURE(x = exp2f(x), "ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
  return x;
}

// ---- the compiler forgets what it has made from a word: it makes it again where it would have kept it in registers
INLINE void forget(unsigned& word) { PTX_PURE((void)word, "" : "+r"(word)); }

// ---- what this stands in is jumped over; else the compiler may run it in any case and choose among values afterwards
INLINE void branch() { PTX((void)0, ""); }

// ---- cp.async (sm_80): BYTES = 4, 8 or 16 land in shared memory by the wait; beyond src_bytes they are zero. Before
// sm_80 they pass through a register and have landed at once: what copies while it multiplies is in copies.cuh
template <int BYTES> INLINE void cp_async(void* dst, const void* src, int src_bytes = BYTES) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if ALPHA_ARCH < 80
  using Word = typename BitsOf<BYTES>::type;
  Word word = {};
  if (src_bytes == BYTES) {
    word = *static_cast<const Word*>(src);
  } else {
    auto* half = reinterpret_cast<unsigned short*>(&word);
    UNROLL for (int i = 0; i < BYTES / 2; i++)
      if (2 * i < src_bytes) half[i] = static_cast<const unsigned short*>(src)[i];
  }
  *static_cast<Word*>(dst) = word;
#else
  if constexpr (BYTES == 16)
    PTX(emu::cp_async(dst, src, 16, src_bytes), "cp.async.cg.shared.global [%0], [%1], 16, %2;"
        ::"r"(shared(dst)), "l"(src), "r"(src_bytes) : "memory");
  else
    PTX(emu::cp_async(dst, src, BYTES, src_bytes), "cp.async.ca.shared.global [%0], [%1], %2, %3;"
        ::"r"(shared(dst)), "l"(src), "n"(BYTES), "r"(src_bytes) : "memory");
#endif
}
#if ALPHA_ARCH < 80
INLINE void cp_async_commit() {}
template <int PENDING> INLINE void cp_async_wait() {}
#else
INLINE void cp_async_commit() { PTX(emu::cp_async_commit(), "cp.async.commit_group;" :: : "memory"); }
template <int PENDING> INLINE void cp_async_wait() {  // all but the last PENDING groups of this thread have landed
  PTX(emu::cp_async_wait(PENDING), "cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#endif
INLINE void cp_async_done() {  // all of this block has landed
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
}

// ---- named barrier: COUNT threads (whole warps) meet at barrier ID, 1..15
INLINE void bar_sync(int id, int count) {
  PTX(emu::named_barrier(id, count, true), "bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// ---- ldmatrix (sm_75): lane 8i+r brings the address of row r (16 bytes) of matrix i
INLINE void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  PTX(emu::ldmatrix(r, 4, false, row), "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]),
      "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared(row)) : "memory");
}
INLINE void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  PTX(emu::ldmatrix(r, 4, true, row),
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]),
      "=r"(r[3]) : "r"(shared(row)) : "memory");
}

// ---- mma.sync (sm_80; f16 on sm_75 too): d += a b, fp32 accumulators; a is 16 x K row-major, b is K x 8 column-major
#define PTX_MMA(type, format, shape_types) \
  INLINE void mma_##type(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
    PTX(emu::mma(emu::format, d, a, b, d), \
        "mma.sync.aligned." shape_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
#if ALPHA_ARCH < 80
INLINE void mma_f16_k8(float (&d)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
  PTX(emu::mma_k8(d, a, b, d),
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
INLINE void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {  // k = 0 to 7, then 8 to 15
  const unsigned a0[2] = {a[0], a[1]}, a1[2] = {a[2], a[3]}, b0[1] = {b[0]}, b1[1] = {b[1]};
  mma_f16_k8(d, a0, b0);
  mma_f16_k8(d, a1, b1);
}
#else
PTX_MMA(f16, Fp16, "m16n8k16.row.col.f32.f16.f16.f32")
#endif
PTX_MMA(bf16, Bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
PTX_MMA(tf32, Tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")  // of float32's bits, whose low 13 are ignored
INLINE unsigned to_tf32(float v) {  // round to nearest, ties away: what mma_tf32 should be fed
  unsigned r = __float_as_uint(v);
#if ALPHA_ARCH < 80
  r = (r & 0x7F800000u) == 0x7F800000u ? r : (r + 0x1000u) & ~0x1FFFu;
#else
  PTX_PURE(r = (r & 0x7F800000u) == 0x7F800000u ? r : (r + 0x1000u) & ~0x1FFFu,
           "cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
#endif
  return r;
}
}  // namespace ptx
