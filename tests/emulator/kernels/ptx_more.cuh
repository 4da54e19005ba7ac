// The instructions that the emulator has and no kernel of alpha/cuda uses: for the tests of the emulator alone.
#pragma once
#include "ptx_wgmma.cuh"

namespace ptx {
// ---- warps with roles, named barriers
INLINE bool elect_one() {  // true in one lane of a converged warp
#ifdef __CUDACC__
  int yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(yes));
  return yes;
#else
  __syncwarp();
  return emu::self->lane == 0;
#endif
}
INLINE void bar_arrive(int id, int count) {
  PTX(emu::named_barrier(id, count, false), "bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// ---- ldmatrix, stmatrix: the forms beside x4, see ptx.cuh and ptx_sm90.cuh
INLINE void ldmatrix_x1(unsigned (&r)[1], const void* row) {
  PTX(emu::ldmatrix(r, 1, false, row),
      "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared(row)) : "memory");
}
INLINE void ldmatrix_x2(unsigned (&r)[2], const void* row) {
  PTX(emu::ldmatrix(r, 2, false, row), "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]),
      "=r"(r[1]) : "r"(shared(row)) : "memory");
}
INLINE void ldmatrix_x1_trans(unsigned (&r)[1], const void* row) {
  PTX(emu::ldmatrix(r, 1, true, row),
      "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(shared(row)) : "memory");
}
INLINE void ldmatrix_x2_trans(unsigned (&r)[2], const void* row) {
  PTX(emu::ldmatrix(r, 2, true, row), "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]),
      "=r"(r[1]) : "r"(shared(row)) : "memory");
}
INLINE void stmatrix_x1(void* row, const unsigned (&r)[1]) {
  PTX(emu::stmatrix(row, 1, false, r), "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared(row)),
      "r"(r[0]) : "memory");
}
INLINE void stmatrix_x2(void* row, const unsigned (&r)[2]) {
  PTX(emu::stmatrix(row, 2, false, r), "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(shared(row)),
      "r"(r[0]), "r"(r[1]) : "memory");
}
INLINE void stmatrix_x1_trans(void* row, const unsigned (&r)[1]) {
  PTX(emu::stmatrix(row, 1, true, r), "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared(row)),
      "r"(r[0]) : "memory");
}
INLINE void stmatrix_x2_trans(void* row, const unsigned (&r)[2]) {
  PTX(emu::stmatrix(row, 2, true, r),
      "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1])
      : "memory");
}
INLINE void stmatrix_x4_trans(void* row, const unsigned (&r)[4]) {
  PTX(emu::stmatrix(row, 4, true, r),
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1]),
      "r"(r[2]), "r"(r[3]) : "memory");
}

// ---- clusters, mbarrier, TMA
INLINE int cluster_size() {  // in blocks
#ifdef __CUDACC__
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return emu::cluster_size();
#endif
}
INLINE void fence_proxy_async() {  // between ordinary writes and their reading by TMA or wgmma; all memory: 1 us
  PTX(emu::fence_proxy_async(), "fence.proxy.async;" :: : "memory");
}
INLINE void mbarrier_arrive_remote(uint64_t* bar, int rank) {  // on that block's mbarrier at the place of this one
  PTX(emu::mbarrier_arrive_remote(bar, rank),
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared(bar)),
      "r"(rank) : "memory");
}
INLINE void mbarrier_wait_cluster(uint64_t* bar, int parity) {  // and see what other blocks wrote before they arrived
  PTX(emu::mbarrier_wait(bar, parity),
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
      "bra AGAIN;\nDONE:\n}" ::"r"(shared(bar)),
      "r"(parity) : "memory");
}
INLINE bool mbarrier_try_wait(uint64_t* bar, int parity) {  // is it complete, now or after a short while?
#ifdef __CUDACC__
  int complete;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
      : "=r"(complete)
      : "r"(shared(bar)), "r"(parity)
      : "memory");
  return complete;
#else
  return emu::mbarrier_test(bar, parity);
#endif
}
INLINE void tma_prefetch(const CUtensorMap& map) {  // the map itself
  PTX(emu::tma_prefetch(&map), "prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Tiles of one to three dimensions, and stores without a policy of the L2 cache; as those of ptx_sm90.cuh
#define PTX_LIST(...) __VA_ARGS__
#ifdef __CUDACC__
#define PTX_R(x) "r"(x)
#define PTX_TMA_LOAD(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank "d" PTX_LOADS " [%0], [%1, {" at "}], [%2];" \
               ::"r"(shared(dst)), "l"(&map), "r"(shared(bar)), "n"(0), __VA_ARGS__ \
               : "memory")
#define PTX_TMA_STORE(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group [%0, {" at "}], [%1];" \
               ::"l"(&map), "r"(shared(src)), "n"(0), "n"(0), __VA_ARGS__ \
               : "memory")
#else
#define PTX_R(x) x
#define PTX_TMA_LOAD(rank, at, ...) emu::tma_load(dst, &map, emu::Coordinates{__VA_ARGS__}.values, rank, bar)
#define PTX_TMA_STORE(rank, at, ...) emu::tma_store(&map, src, emu::Coordinates{__VA_ARGS__}.values, rank)
#endif
#define PTX_TMA_LOADS(rank, parameters, at, ...) /* at: the coordinates' operands, behind four others */ \
  INLINE void tma_load_##rank##d(void* dst, const CUtensorMap& map, PTX_LIST parameters, uint64_t* bar) { \
    PTX_TMA_LOAD(rank, at, __VA_ARGS__); \
  }
#define PTX_TMA_STORES(rank, parameters, at, ...) \
  INLINE void tma_store_##rank##d(const CUtensorMap& map, const void* src, PTX_LIST parameters) { \
    PTX_TMA_STORE(rank, at, __VA_ARGS__); \
  }
PTX_TMA_LOADS(1, (int x), "%4", PTX_R(x))
PTX_TMA_LOADS(2, (int x, int y), "%4,%5", PTX_R(x), PTX_R(y))
PTX_TMA_LOADS(3, (int x, int y, int z), "%4,%5,%6", PTX_R(x), PTX_R(y), PTX_R(z))
PTX_TMA_STORES(1, (int x), "%4", PTX_R(x))
PTX_TMA_STORES(2, (int x, int y), "%4,%5", PTX_R(x), PTX_R(y))
PTX_TMA_STORES(3, (int x, int y, int z), "%4,%5,%6", PTX_R(x), PTX_R(y), PTX_R(z))
PTX_TMA_STORES(4, (int x, int y, int z, int w), "%4,%5,%6,%7", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w))
PTX_TMA_STORES(5, (int x, int y, int z, int w, int v), "%4,%5,%6,%7,%8", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w),
               PTX_R(v))

// ---- wgmma: rs: a in registers, laid out as for mma_f16, 16 rows per warp
#ifdef __CUDACC__
#define PTX_RS_16(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "{%" #i5 ",%" #i6 ",%" #i7 ",%" #i8 "}", ", %" #i4, i0, i1, i2, i3, "n"(B_MN), "r"(a[0]), \
            "r"(a[1]), "r"(a[2]), "r"(a[3]))
#define PTX_RS_32(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "{%" #i5 ",%" #i6 ",%" #i7 ",%" #i8 "}", "", i0, i1, i2, i3, "n"(0), "r"(a[0]), "r"(a[1]), \
            "r"(a[2]), "r"(a[3]))
#endif
#define PTX_WGMMA_MORE(type, format) \
  template <int B_MN = 0, int NEGATE_A = 0, int NEGATE_B = 0, int HALF> \
  INLINE void wgmma_rs_##type(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) { \
    PTX_WIDTH_OF_D; \
    PTX_WGMMA_ALL(PTX_RS_16, "k16.f32." #type "." #type, format, a, 0, 0, B_MN) \
  } \
  template <int A_MN = 0, int B_MN = 0> \
  INLINE void wgmma_n64_##type(float (&d)[32], uint64_t a, uint64_t b, bool add) { \
    wgmma_ss_##type<A_MN, B_MN>(d, a, b, add); \
  }
PTX_WGMMA_MORE(f16, Fp16)
PTX_WGMMA_MORE(bf16, Bf16)
template <int NEGATE_A = 0, int NEGATE_B = 0, int HALF>
INLINE void wgmma_rs_tf32(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) {
  PTX_WIDTH_OF_D;
  PTX_WGMMA_ALL(PTX_RS_32, "k8.f32.tf32.tf32", Tf32, a, 0, 0, 0)
}
INLINE void wgmma_n64_tf32(float (&d)[32], uint64_t a, uint64_t b, bool add) { wgmma_ss_tf32(d, a, b, add); }

// tma_load_multicast_1d ... _5d(dst, map, x, ..., bar, blocks): the same in each block whose rank is a bit of `blocks`,
//      at the same places of its shared memory
#ifdef __CUDACC__
#define PTX_TMA_MULTICAST(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster " \
               "[%0], [%1, {" at "}], [%2], %3;" ::"r"(shared(dst)), "l"(&map), "r"(shared(bar)), "h"(blocks), \
               __VA_ARGS__ \
               : "memory")
#else
#define PTX_TMA_MULTICAST(rank, at, ...) \
  emu::tma_load_multicast(dst, &map, emu::Coordinates{__VA_ARGS__}.values, rank, bar, blocks)
#endif
#define PTX_TMA_MORE(rank, parameters, at, ...) \
  INLINE void tma_load_multicast_##rank##d(void* dst, const CUtensorMap& map, PTX_LIST parameters, uint64_t* bar, \
                                           uint16_t blocks) { \
    PTX_TMA_MULTICAST(rank, at, __VA_ARGS__); \
  }
PTX_TMA_MORE(1, (int x), "%4", PTX_R(x))
PTX_TMA_MORE(2, (int x, int y), "%4,%5", PTX_R(x), PTX_R(y))
PTX_TMA_MORE(3, (int x, int y, int z), "%4,%5,%6", PTX_R(x), PTX_R(y), PTX_R(z))
PTX_TMA_MORE(4, (int x, int y, int z, int w), "%4,%5,%6,%7", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w))
PTX_TMA_MORE(5, (int x, int y, int z, int w, int v), "%4,%5,%6,%7,%8", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w), PTX_R(v))
}  // namespace ptx
