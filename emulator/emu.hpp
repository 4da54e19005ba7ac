// CUDA C++ for the host compiler: the names a .cu file uses, with their meaning on one emulated block.
// Included before the .cu by the generated source; nvcc never sees it.
#pragma once
#include <algorithm>
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <type_traits>
#include <vector_functions.h>  // the toolkit's own vector types and 16-bit floats also serve the host compiler
#include <vector_types.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#undef __grid_constant__
#undef __restrict__
#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((visibility("default")))  // found by cuModuleGetGlobal
// One OS thread runs all blocks; thread_local only gathers the shared arrays in one segment, to poison it. __constinit:
// no hidden "already constructed" flags in that segment for arrays of __half and the like.
#define __shared__ __constinit static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#undef __cluster_dims__
// Stands between "void" and the kernel's name: declares something else there, and begins the declaration again.
#define __cluster_dims__(...) \
  EMU_NAME(emu_unused_)(); \
  static emu::ClusterDims EMU_NAME(emu_cluster_)(__VA_ARGS__); \
  extern "C" void
#define EMU_NAME(prefix) EMU_JOIN(prefix, __COUNTER__)
#define EMU_JOIN(a, b) EMU_JOINED(a, b)
#define EMU_JOINED(a, b) a##b
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __restrict__ __restrict

#include "engine.hpp"

#define threadIdx (emu::self->tid)
#define blockIdx (emu::engine.block_idx)
#define blockDim (emu::engine.block_dim)
#define gridDim (emu::engine.grid_dim)
constexpr int warpSize = 32;

// ALPHA_KERNEL(k) after a kernel makes it launchable by name; nvcc takes the name from extern "C" instead.
#define ALPHA_KERNEL(k) static emu::Register<&k> emu_register_##k(#k);
// extern __shared__ cannot be expressed; this declares "type *name" at the start of dynamic shared memory.
#define DYNAMIC_SHARED(type, name) type* name = (type*)emu::engine.dynamic_shared

// ---- barriers and fences
#define __syncthreads() emu::barrier(0, emu::engine.threads, "__syncthreads()", __LINE__)
namespace emu {
inline void nothing(Meeting&) {}
template <int Op>
int sync_reduce(int v, int line) {  // __syncthreads_count / _and / _or
  int& sum = self->block->vote;
  barrier(0, engine.threads, "__syncthreads_count/and/or()", line);  // the last reader of the old sum has passed
  sum = Op == 1;
  barrier(0, engine.threads, "__syncthreads_count/and/or()", line);
  sum = Op == 0 ? sum + !!v : Op == 1 ? sum && v : sum || v;
  barrier(0, engine.threads, "__syncthreads_count/and/or()", line);
  return sum;
}
}  // namespace emu
#define __syncthreads_count(v) emu::sync_reduce<0>(v, __LINE__)
#define __syncthreads_and(v) emu::sync_reduce<1>(v, __LINE__)
#define __syncthreads_or(v) emu::sync_reduce<2>(v, __LINE__)
inline void __syncwarp(unsigned mask = ~0u) { emu::meet(mask, "__syncwarp", nullptr, emu::nothing); }
inline void __threadfence() { emu::engine.fenced = true; }
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emu::yield("__nanosleep"); }
inline unsigned __activemask() { return emu::self->warp->alive; }
[[noreturn]] inline void __trap() { emu::fail("__trap()"); }
inline long long clock64() {
  static long long t;
  return ++t;
}

// ---- shuffles, votes, warp reductions
namespace emu {
struct Exchange {
  uint64_t value;
  int from;
  uint64_t result;
};
inline void exchange(Meeting& m) {  // a source lane that takes no part: undefined, so poison
  for (int l = 0; l < 32; l++)
    if (m.arrived >> l & 1) {
      Exchange& x = *(Exchange*)m.arg[l];
      x.result = m.arrived >> x.from & 1 ? ((Exchange*)m.arg[x.from])->value : EMU_POISON * 0x0001000100010001ull;
    }
}
template <class Type>
Type shuffle(unsigned mask, const char* op, Type v, int from) {
  static_assert(sizeof(Type) <= 8, "shuffles move at most 8 bytes");
  Exchange x{0, from, 0};
  memcpy(&x.value, &v, sizeof v);
  meet(mask, op, &x, exchange);
  memcpy((void*)&v, &x.result, sizeof v);
  return v;
}
inline uint64_t all_lanes(unsigned mask, const char* op, uint64_t v, uint64_t (*fold)(uint64_t, uint64_t),
                          uint64_t first) {
  struct Arg {
    uint64_t v, first;
    uint64_t (*fold)(uint64_t, uint64_t);
  } a{v, first, fold};
  meet(mask, op, &a, [](Meeting& m) {
    uint64_t r = 0;
    bool begun = false;
    for (int l = 0; l < 32; l++)
      if (m.arrived >> l & 1) {
        Arg& x = *(Arg*)m.arg[l];
        r = x.fold(begun ? r : x.first, x.v);
        begun = true;
      }
    for (int l = 0; l < 32; l++)
      if (m.arrived >> l & 1) ((Arg*)m.arg[l])->v = r;
  });
  return a.v;
}
}  // namespace emu
template <class Type>
Type __shfl_sync(unsigned mask, Type v, int lane, int width = 32) {
  int l = emu::self->lane;
  return emu::shuffle(mask, "__shfl_sync", v, (l & ~(width - 1)) | (lane & (width - 1)));
}
template <class Type>
Type __shfl_up_sync(unsigned mask, Type v, unsigned d, int width = 32) {
  int l = emu::self->lane, low = l & ~(width - 1);
  return emu::shuffle(mask, "__shfl_up_sync", v, l - (int)d < low ? l : l - (int)d);
}
template <class Type>
Type __shfl_down_sync(unsigned mask, Type v, unsigned d, int width = 32) {
  int l = emu::self->lane, high = l | (width - 1);
  return emu::shuffle(mask, "__shfl_down_sync", v, l + (int)d > high ? l : l + (int)d);
}
template <class Type>
Type __shfl_xor_sync(unsigned mask, Type v, int bits, int width = 32) {
  int l = emu::self->lane, to = l ^ bits, high = l | (width - 1);
  return emu::shuffle(mask, "__shfl_xor_sync", v, to > high ? l : to);
}
inline unsigned __ballot_sync(unsigned mask, int p) {
  return emu::all_lanes(
      mask, "__ballot_sync", p ? 1ull << emu::self->lane : 0, [](uint64_t a, uint64_t b) { return a | b; }, 0);
}
inline int __any_sync(unsigned mask, int p) {
  return emu::all_lanes(mask, "__any_sync", !!p, [](uint64_t a, uint64_t b) { return a | b; }, 0);
}
inline int __all_sync(unsigned mask, int p) {
  return emu::all_lanes(mask, "__all_sync", !!p, [](uint64_t a, uint64_t b) { return a & b; }, 1);
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  emu::require(80, "redux.sync");
  return emu::all_lanes(mask, "__reduce_add_sync", v, [](uint64_t a, uint64_t b) { return a + b; }, 0);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned v) {
  emu::require(80, "redux.sync");
  return emu::all_lanes(mask, "__reduce_max_sync", v, [](uint64_t a, uint64_t b) { return std::max(a, b); }, 0);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) {
  emu::require(80, "redux.sync");
  return emu::all_lanes(mask, "__reduce_min_sync", v, [](uint64_t a, uint64_t b) { return std::min(a, b); }, ~0u);
}

// ---- atomics: one OS thread, so plain code is atomic; the checks between blocks are told
namespace emu {
template <class Type, class Function>
Type atomic(Type* p, Function f) {
  engine.in_atomic = true;
  asm volatile("" ::: "memory");  // the hooks, which the optimiser does not see yet, read it
  Type old = *p;
  *p = f(old);
  asm volatile("" ::: "memory");
  engine.in_atomic = false;
  return old;
}
}  // namespace emu
template <class Type, class Value>
Type atomicAdd(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return old + (Type)v; });
}
template <class Type, class Value>
Type atomicSub(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return old - (Type)v; });
}
template <class Type, class Value>
Type atomicMax(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return std::max(old, (Type)v); });
}
template <class Type, class Value>
Type atomicMin(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return std::min(old, (Type)v); });
}
template <class Type, class Value>
Type atomicAnd(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return old & (Type)v; });
}
template <class Type, class Value>
Type atomicOr(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return old | (Type)v; });
}
template <class Type, class Value>
Type atomicXor(Type* p, Value v) {
  return emu::atomic(p, [=](Type old) { return old ^ (Type)v; });
}
template <class Type, class Value>
Type atomicExch(Type* p, Value v) {
  return emu::atomic(p, [=](Type) { return (Type)v; });
}
template <class Type, class Value>
Type atomicCAS(Type* p, Value expect, Value v) {
  return emu::atomic(p, [=](Type old) { return old == (Type)expect ? (Type)v : old; });
}
inline unsigned atomicInc(unsigned* p, unsigned n) {
  return emu::atomic(p, [=](unsigned old) { return old >= n ? 0 : old + 1; });
}

// ---- loads and stores with cache hints
template <class Type>
Type __ldg(const Type* p) {
  return *p;
}
template <class Type>
Type __ldcg(const Type* p) {
  return *p;
}
template <class Type>
Type __ldcs(const Type* p) {
  return *p;
}
template <class Type>
Type __ldca(const Type* p) {
  return *p;
}
template <class Type>
void __stcg(Type* p, Type v) {
  *p = v;
}
template <class Type>
void __stcs(Type* p, Type v) {
  *p = v;
}
template <class Type>
void __stwt(Type* p, Type v) {
  *p = v;
}

// ---- arithmetic intrinsics (the fast ones compute the accurate result: allowed, never the other way round)
using std::max;
using std::min;
template <
    class Left, class Right,
    class = std::enable_if_t<std::is_arithmetic_v<Left> && std::is_arithmetic_v<Right> && !std::is_same_v<Left, Right>>>
constexpr auto min(Left a, Right b) {
  std::common_type_t<Left, Right> x = a, y = b;
  return x < y ? x : y;
}
template <
    class Left, class Right,
    class = std::enable_if_t<std::is_arithmetic_v<Left> && std::is_arithmetic_v<Right> && !std::is_same_v<Left, Right>>>
constexpr auto max(Left a, Right b) {
  std::common_type_t<Left, Right> x = a, y = b;
  return x > y ? x : y;
}
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fadd_rn(float a, float b) {
  volatile float r = a + b;
  return r;
}  // volatile: never contracted
inline float __fsub_rn(float a, float b) {
  volatile float r = a - b;
  return r;
}
inline float __fmul_rn(float a, float b) {
  volatile float r = a * b;
  return r;
}
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float a) { return expf(a); }
inline float __exp2f(float a) { return exp2f(a); }
inline float __logf(float a) { return logf(a); }
inline float __log2f(float a) { return log2f(a); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
inline float __saturatef(float a) { return a > 0 ? (a < 1 ? a : 1) : 0; }
inline float rsqrtf(float a) { return (float)(1 / sqrt((double)a)); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline unsigned __float_as_uint(float a) {
  unsigned r;
  memcpy(&r, &a, 4);
  return r;
}
inline int __float_as_int(float a) {
  int r;
  memcpy(&r, &a, 4);
  return r;
}
inline float __uint_as_float(unsigned a) {
  float r;
  memcpy(&r, &a, 4);
  return r;
}
inline float __int_as_float(int a) {
  float r;
  memcpy(&r, &a, 4);
  return r;
}
inline int __float2int_rn(float a) { return (int)rintf(a); }
inline int __float2int_rz(float a) { return (int)a; }
inline int __float2int_rd(float a) { return (int)floorf(a); }
inline float __int2float_rn(int a) { return (float)a; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a ? __builtin_clz(a) : 32; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __brev(unsigned a) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i);
  return r;
}
inline int __mul24(int a, int b) { return a * b; }
inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned __int128)a * b >> 64;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  uint64_t v = (uint64_t)b << 32 | a;
  unsigned r = 0;
  for (int i = 0; i < 4; i++) r |= (unsigned)(v >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
  return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)(((uint64_t)hi << 32 | lo) << (n & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)(((uint64_t)hi << 32 | lo) >> (n & 31));
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c += (int8_t)(a >> i) * (int8_t)(b >> i);
  return c;
}
#define __builtin_assume(x) ((void)0)

// 16-bit fused operations that the toolkit's headers leave to the device: product and sum in double, rounded once.
inline __half __hfma(__half a, __half b, __half c) {
  return __double2half((double)__half2float(a) * __half2float(b) + __half2float(c));
}
inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  return __halves2half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __double2bfloat16((double)__bfloat162float(a) * __bfloat162float(b) + __bfloat162float(c));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __halves2bfloat162(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
