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
#define ALPHA_TRAP() __trap()
#else
#include "emu_ptx.hpp"
#define PTX(emulated, ...) emulated
#define PTX_PURE(emulated, ...) emulated
#define ALPHA_IS_LEFT_OUT(name) false
#define ALPHA_TRAP()
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
  ALPHA_KERNEL(name)
// The same of a kernel whose body follows in braces, and begins with ptx::follow().
#define ALPHA_GLOBAL(name, bounds, parameters) \
  extern "C" __global__ void __launch_bounds__ bounds name parameters; \
  ALPHA_KERNEL(name) \
  extern "C" __global__ void name parameters
#define ALPHA_JOINED(a, b) ALPHA_JOINED_OF(a, b)
#define ALPHA_JOINED_OF(a, b) a##b

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

// ---- cp.async (sm_80): BYTES = 4, 8 or 16 land in shared memory by the wait; beyond src_bytes they are zero
template <int BYTES> INLINE void cp_async(void* dst, const void* src, int src_bytes = BYTES) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
  if constexpr (BYTES == 16)
    PTX(emu::cp_async(dst, src, 16, src_bytes), "cp.async.cg.shared.global [%0], [%1], 16, %2;"
        ::"r"(shared(dst)), "l"(src), "r"(src_bytes) : "memory");
  else
    PTX(emu::cp_async(dst, src, BYTES, src_bytes), "cp.async.ca.shared.global [%0], [%1], %2, %3;"
        ::"r"(shared(dst)), "l"(src), "n"(BYTES), "r"(src_bytes) : "memory");
}
INLINE void cp_async_commit() { PTX(emu::cp_async_commit(), "cp.async.commit_group;" :: : "memory"); }
template <int PENDING> INLINE void cp_async_wait() {  // all but the last PENDING groups of this thread have landed
  PTX(emu::cp_async_wait(PENDING), "cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
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

// ---- mma.sync (sm_80): d += a b, fp32 accumulators; a is 16 x K row-major, b is K x 8 column-major
#define PTX_MMA(type, format, shape_types) \
  INLINE void mma_##type(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \
    PTX(emu::mma(emu::format, d, a, b, d), \
        "mma.sync.aligned." shape_types " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \
  }
PTX_MMA(f16, Fp16, "m16n8k16.row.col.f32.f16.f16.f32")
PTX_MMA(bf16, Bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
PTX_MMA(tf32, Tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")  // of float32's bits, whose low 13 are ignored
INLINE unsigned to_tf32(float v) {  // round to nearest, ties away: what mma_tf32 should be fed
  unsigned r = __float_as_uint(v);
  PTX_PURE(r = (r & 0x7F800000u) == 0x7F800000u ? r : (r + 0x1000u) & ~0x1FFFu,
           "cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}
}  // namespace ptx
