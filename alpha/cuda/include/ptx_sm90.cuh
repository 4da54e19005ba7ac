// Hopper's asynchronous instructions in two halves, as in ptx.cuh: clusters, mbarrier, TMA tiles and stmatrix; those of
// wgmma are in ptx_wgmma.cuh. Needs -arch=sm_90a. Tiles lie in dynamic shared memory, mbarriers anywhere in shared.
#pragma once
#include "ptx.cuh"
#ifdef __CUDACC__
#include <cuda.h>
#else
struct alignas(64) CUtensorMap {
  uint64_t opaque[16];
};
#endif

namespace ptx {
// ---- warps with roles
// Registers per thread, from here on, of the four warps of a warpgroup; the kernel states its __launch_bounds__.
template <int REGISTERS> INLINE void setmaxnreg_inc() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "24 to 256 registers, in steps of 8");
  PTX(emu::setmaxnreg(REGISTERS), "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> INLINE void setmaxnreg_dec() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "24 to 256 registers, in steps of 8");
  PTX(emu::setmaxnreg(REGISTERS), "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- clusters: `__global__ void __cluster_dims__(2, 1, 1) kernel(...)`; no block returns before the last access to it
INLINE int cluster_rank() {  // of this block in its cluster, x fastest
  int rank;
  PTX_PURE(rank = emu::cluster_rank(), "mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The barrier of all threads of the cluster: what was written before arriving is seen after waiting.
INLINE void cluster_arrive() { PTX(emu::cluster_arrive(), "barrier.cluster.arrive.release.aligned;" :: : "memory"); }
INLINE void cluster_wait() { PTX(emu::cluster_wait(), "barrier.cluster.wait.acquire.aligned;" :: : "memory"); }
template <class T>
INLINE T* cluster_map(T* p, int rank) {  // where that block has what this one has at p, for ordinary loads and stores
  uint64_t there;
  PTX_PURE(there = (uint64_t)emu::cluster_map(p, rank), "mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return (T*)there;
}

// ---- mbarrier
INLINE void mbarrier_init(uint64_t* bar, int count) {
  PTX(emu::mbarrier_init(bar, count), "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)),
      "r"(count) : "memory");
}
INLINE void fence_mbarrier_init() { PTX((void)0, "fence.mbarrier_init.release.cluster;" :: : "memory"); }
INLINE void fence_proxy_async_shared() {  // the same of this block's shared memory alone
  PTX(emu::fence_proxy_async(), "fence.proxy.async.shared::cta;" :: : "memory");
}
INLINE void mbarrier_arrive(uint64_t* bar) {
  PTX(emu::mbarrier_arrive(bar, 0), "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory");
}
INLINE void mbarrier_arrive_expect(uint64_t* bar, int bytes) {  // one arrival, and this many bytes that TMA will bring
  PTX(emu::mbarrier_arrive(bar, bytes), "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)),
      "r"(bytes) : "memory");
}
INLINE void mbarrier_expect(uint64_t* bar, int bytes) {  // the bytes alone; an arrival must follow
  PTX(emu::mbarrier_expect(bar, bytes), "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)),
      "r"(bytes) : "memory");
}
INLINE void mbarrier_wait(uint64_t* bar, int parity) {  // until the phase of this parity is complete
  PTX(emu::mbarrier_wait(bar, parity),
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "AGAIN;\nDONE:\n}" ::"r"(shared(bar)),
      "r"(parity) : "memory");
}

// ---- TMA tiles: the map is a __grid_constant__ parameter, the coordinates x, y, z, w, v begin with the innermost
//      dimension and may lie outside the tensor, where loads bring zeros and stores write nothing
// Maps of a launch, one behind the other (runtime/tensor_map.py): an argument, whose maps may be used at once; or,
// where that has no room for them, `more`, in device memory. It has to be the first argument, which the host puts where
// ptxas has it for this alignment: 112 bytes further on.
struct alignas(128) TensorMaps { CUtensorMap few[4]; };
INLINE const CUtensorMap *maps_of(const TensorMaps &maps, const CUtensorMap *more) { return more ? more : maps.few; }
constexpr uint64_t L2_NORMAL = 0x1000000000000000, L2_EVICT_FIRST = 0x12f0000000000000;  // as createpolicy makes them
INLINE void tensor_map_acquire(const CUtensorMap* map) {  // before the first use of a map that lies in device memory
  PTX(emu::tma_prefetch(map), "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
#define PTX_LOADS ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"
INLINE void tma_load_4d(void* dst, const CUtensorMap& map, int x, int y, int z, int w, uint64_t* bar) {
  PTX(emu::tma_load(dst, &map, emu::Coordinates{x, y, z, w}.values, 4, bar),
      "cp.async.bulk.tensor.4d" PTX_LOADS " [%0], [%1, {%3,%4,%5,%6}], [%2];" ::"r"(shared(dst)), "l"(&map),
      "r"(shared(bar)), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
INLINE void tma_load_5d(void* dst, const CUtensorMap& map, int x, int y, int z, int w, int v, uint64_t* bar) {
  PTX(emu::tma_load(dst, &map, emu::Coordinates{x, y, z, w, v}.values, 5, bar),
      "cp.async.bulk.tensor.5d" PTX_LOADS " [%0], [%1, {%3,%4,%5,%6,%7}], [%2];" ::"r"(shared(dst)), "l"(&map),
      "r"(shared(bar)), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}
INLINE void tma_load_5d(void* dst, const CUtensorMap& map, int x, int y, int z, int w, int v, uint64_t* bar,
                        [[maybe_unused]] uint64_t policy) {  // of the L2 cache
  PTX(emu::tma_load(dst, &map, emu::Coordinates{x, y, z, w, v}.values, 5, bar),
      "cp.async.bulk.tensor.5d" PTX_LOADS ".L2::cache_hint [%0], [%1, {%4,%5,%6,%7,%8}], [%2], %3;" ::"r"(shared(dst)),
      "l"(&map), "r"(shared(bar)), "l"(policy), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory");
}
INLINE void tma_store_4d(const CUtensorMap& map, const void* src, int x, int y, int z, int w,
                         [[maybe_unused]] uint64_t policy) {
  PTX(emu::tma_store(&map, src, emu::Coordinates{x, y, z, w}.values, 4),
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%3,%4,%5,%6}], [%1], %2;"
      ::"l"(&map), "r"(shared(src)), "l"(policy), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
#define PTX_STORE_5D(name, emulated, instruction) \
  INLINE void name(const CUtensorMap& map, const void* src, int x, int y, int z, int w, int v, \
                   [[maybe_unused]] uint64_t policy) { \
    PTX(emulated(&map, src, emu::Coordinates{x, y, z, w, v}.values, 5), \
        instruction ".tile.bulk_group.L2::cache_hint [%0, {%3,%4,%5,%6,%7}], [%1], %2;" ::"l"(&map), \
        "r"(shared(src)), "l"(policy), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v) : "memory"); \
  }
PTX_STORE_5D(tma_store_5d, emu::tma_store, "cp.async.bulk.tensor.5d.global.shared::cta")
// Adds a tile to what the tensor holds, rounded to its dtype, as tma_store_5d stores it.
PTX_STORE_5D(tma_add_5d, emu::tma_add, "cp.reduce.async.bulk.tensor.5d.global.shared::cta.add")
INLINE void bulk_commit() { PTX(emu::bulk_commit(), "cp.async.bulk.commit_group;" :: : "memory"); }
template <int PENDING> INLINE void bulk_wait() {  // all but the last PENDING groups of this thread's stores are written
  PTX(emu::bulk_wait(PENDING), "cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING> INLINE void bulk_wait_read() {  // ... have left shared memory, which may be overwritten
  PTX(emu::bulk_wait(PENDING), "cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// ---- stmatrix: the way back of ldmatrix; lane 8i+r brings the address of row r (16 bytes) of matrix i
INLINE void stmatrix_x4(void* row, const unsigned (&r)[4]) {
  PTX(emu::stmatrix(row, 4, false, r),
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1]),
      "r"(r[2]), "r"(r[3]) : "memory");
}
}  // namespace ptx
