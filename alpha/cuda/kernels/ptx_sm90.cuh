// Hopper's asynchronous instructions in two halves, as in ptx.cuh: clusters, mbarrier, TMA tiles, wgmma, and stmatrix.
// Needs -arch=sm_90a. Tiles and wgmma operands lie in dynamic shared memory, mbarriers anywhere in shared memory.
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
PTX_FN bool elect_one() {  // true in one lane of a converged warp
#ifdef __CUDACC__
  int yes;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(yes));
  return yes;
#else
  __syncwarp();
  return emu::self->lane == 0;
#endif
}
// Registers per thread, from here on, of the four warps of a warpgroup; the kernel states its __launch_bounds__.
template <int REGISTERS>
PTX_FN void setmaxnreg_inc() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "24 to 256 registers, in steps of 8");
  PTX(emu::setmaxnreg(REGISTERS), "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
PTX_FN void setmaxnreg_dec() {
  static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "24 to 256 registers, in steps of 8");
  PTX(emu::setmaxnreg(REGISTERS), "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- clusters: `__global__ void __cluster_dims__(2, 1, 1) kernel(...)`; no block returns before the last access to it
PTX_FN int cluster_rank() {  // of this block in its cluster, x fastest
#ifdef __CUDACC__
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
#else
  return emu::cluster_rank();
#endif
}
PTX_FN int cluster_size() {  // in blocks
#ifdef __CUDACC__
  int size;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  return size;
#else
  return emu::cluster_size();
#endif
}
// The barrier of all threads of the cluster: what was written before arriving is seen after waiting.
PTX_FN void cluster_arrive() { PTX(emu::cluster_arrive(), "barrier.cluster.arrive.release.aligned;" :: : "memory"); }
PTX_FN void cluster_arrive_relaxed() {  // says that this thread came by, and nothing of what it wrote: costs no fence
  PTX(emu::cluster_arrive(), "barrier.cluster.arrive.relaxed.aligned;" :: : "memory");
}
PTX_FN void cluster_wait() { PTX(emu::cluster_wait(), "barrier.cluster.wait.acquire.aligned;" :: : "memory"); }
template <class T>
PTX_FN T* cluster_map(T* p, int rank) {  // where that block has what this one has at p, for ordinary loads and stores
#ifdef __CUDACC__
  uint64_t there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(p), "r"(rank));
  return (T*)there;
#else
  return (T*)emu::cluster_map(p, rank);
#endif
}

// ---- mbarrier
PTX_FN void mbarrier_init(uint64_t* bar, int count) {
  PTX(emu::mbarrier_init(bar, count), "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)),
      "r"(count) : "memory");
}
PTX_FN void fence_mbarrier_init() { PTX((void)0, "fence.mbarrier_init.release.cluster;" :: : "memory"); }
PTX_FN void fence_proxy_async() {  // between ordinary writes and their reading by TMA or wgmma; all memory: 1 us
  PTX(emu::fence_proxy_async(), "fence.proxy.async;" :: : "memory");
}
PTX_FN void fence_proxy_async_shared() {  // the same of this block's shared memory alone
  PTX(emu::fence_proxy_async(), "fence.proxy.async.shared::cta;" :: : "memory");
}
PTX_FN void mbarrier_arrive(uint64_t* bar) {
  PTX(emu::mbarrier_arrive(bar, 0), "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory");
}
PTX_FN void mbarrier_arrive_expect(uint64_t* bar, int bytes) {  // one arrival, and this many bytes that TMA will bring
  PTX(emu::mbarrier_arrive(bar, bytes), "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)),
      "r"(bytes) : "memory");
}
PTX_FN void mbarrier_expect(uint64_t* bar, int bytes) {  // the bytes alone; an arrival must follow
  PTX(emu::mbarrier_expect(bar, bytes), "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)),
      "r"(bytes) : "memory");
}
PTX_FN void mbarrier_arrive_remote(uint64_t* bar, int rank) {  // on that block's mbarrier at the place of this one
  PTX(emu::mbarrier_arrive_remote(bar, rank),
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared(bar)),
      "r"(rank) : "memory");
}
PTX_FN void mbarrier_wait(uint64_t* bar, int parity) {  // until the phase of this parity is complete
  PTX(emu::mbarrier_wait(bar, parity),
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "AGAIN;\nDONE:\n}" ::"r"(shared(bar)),
      "r"(parity) : "memory");
}
PTX_FN void mbarrier_wait_cluster(uint64_t* bar, int parity) {  // and see what other blocks wrote before they arrived
  PTX(emu::mbarrier_wait(bar, parity),
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\n"
      "bra AGAIN;\nDONE:\n}" ::"r"(shared(bar)),
      "r"(parity) : "memory");
}
PTX_FN bool mbarrier_try_wait(uint64_t* bar, int parity) {  // is it complete, now or after a short while?
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

// ---- TMA tiles: the map is a __grid_constant__ parameter, the coordinates x, y, z, w, v begin with the innermost
//      dimension and may lie outside the tensor, where loads bring zeros and stores write nothing
// tma_load_1d ... _5d(dst, map, x, ..., bar): the tile's bytes arrive at bar
// tma_load_multicast_1d ... _5d(dst, map, x, ..., bar, blocks): the same in each block whose rank is a bit of `blocks`,
//      at the same places of its shared memory
// tma_store_1d ... _5d(map, src, x, ...)
// tma_load_1d ... _5d(dst, map, x, ..., bar, policy), tma_store_1d ... _5d(map, src, x, ..., policy): with a policy of L2
constexpr uint64_t L2_NORMAL = 0x1000000000000000, L2_EVICT_FIRST = 0x12f0000000000000;  // as createpolicy makes them
PTX_FN void tma_prefetch(const CUtensorMap& map) {  // the map itself
  PTX(emu::tma_prefetch(&map), "prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
PTX_FN void tensor_map_acquire(const CUtensorMap* map) {  // before the first use of a map that lies in device memory
  PTX(emu::tma_prefetch(map), "fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
#define PTX_LIST(...) __VA_ARGS__
#ifdef __CUDACC__
#define PTX_R(x) "r"(x)
#define PTX_TMA_LOAD(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" at "}], [%2];" \
               ::"r"(shared(dst)), "l"(&map), "r"(shared(bar)), "n"(0), __VA_ARGS__ \
               : "memory")
#define PTX_TMA_LOAD_BY(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint " \
               "[%0], [%1, {" at "}], [%2], %3;" ::"r"(shared(dst)), "l"(&map), "r"(shared(bar)), "l"(policy), \
               __VA_ARGS__ \
               : "memory")
#define PTX_TMA_MULTICAST(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank \
               "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster " \
               "[%0], [%1, {" at "}], [%2], %3;" ::"r"(shared(dst)), "l"(&map), "r"(shared(bar)), "h"(blocks), \
               __VA_ARGS__ \
               : "memory")
#define PTX_TMA_STORE(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group [%0, {" at "}], [%1];" \
               ::"l"(&map), "r"(shared(src)), "n"(0), "n"(0), __VA_ARGS__ \
               : "memory")
#define PTX_TMA_STORE_BY(rank, at, ...) \
  asm volatile("cp.async.bulk.tensor." #rank "d.global.shared::cta.tile.bulk_group.L2::cache_hint " \
               "[%0, {" at "}], [%1], %2;" ::"l"(&map), "r"(shared(src)), "l"(policy), "n"(0), __VA_ARGS__ \
               : "memory")
#else
#define PTX_R(x) x
#define PTX_TMA_LOAD(rank, at, ...) emu::tma_load(dst, &map, emu::Coordinates{__VA_ARGS__}.values, rank, bar)
#define PTX_TMA_LOAD_BY PTX_TMA_LOAD
#define PTX_TMA_MULTICAST(rank, at, ...) \
  emu::tma_load_multicast(dst, &map, emu::Coordinates{__VA_ARGS__}.values, rank, bar, blocks)
#define PTX_TMA_STORE(rank, at, ...) emu::tma_store(&map, src, emu::Coordinates{__VA_ARGS__}.values, rank)
#define PTX_TMA_STORE_BY PTX_TMA_STORE
#endif
#define PTX_TMA(rank, parameters, at, ...) /* at: the coordinates' operands, behind four others */ \
  PTX_FN void tma_load_##rank##d(void* dst, const CUtensorMap& map, PTX_LIST parameters, uint64_t* bar) { \
    PTX_TMA_LOAD(rank, at, __VA_ARGS__); \
  } \
  PTX_FN void tma_load_##rank##d(void* dst, const CUtensorMap& map, PTX_LIST parameters, uint64_t* bar, \
                                 [[maybe_unused]] uint64_t policy) { \
    PTX_TMA_LOAD_BY(rank, at, __VA_ARGS__); \
  } \
  PTX_FN void tma_load_multicast_##rank##d(void* dst, const CUtensorMap& map, PTX_LIST parameters, uint64_t* bar, \
                                           uint16_t blocks) { \
    PTX_TMA_MULTICAST(rank, at, __VA_ARGS__); \
  } \
  PTX_FN void tma_store_##rank##d(const CUtensorMap& map, const void* src, PTX_LIST parameters) { \
    PTX_TMA_STORE(rank, at, __VA_ARGS__); \
  } \
  PTX_FN void tma_store_##rank##d(const CUtensorMap& map, const void* src, PTX_LIST parameters, \
                                  [[maybe_unused]] uint64_t policy) { \
    PTX_TMA_STORE_BY(rank, at, __VA_ARGS__); \
  }
PTX_TMA(1, (int x), "%4", PTX_R(x))
PTX_TMA(2, (int x, int y), "%4,%5", PTX_R(x), PTX_R(y))
PTX_TMA(3, (int x, int y, int z), "%4,%5,%6", PTX_R(x), PTX_R(y), PTX_R(z))
PTX_TMA(4, (int x, int y, int z, int w), "%4,%5,%6,%7", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w))
PTX_TMA(5, (int x, int y, int z, int w, int v), "%4,%5,%6,%7,%8", PTX_R(x), PTX_R(y), PTX_R(z), PTX_R(w), PTX_R(v))
PTX_FN void bulk_commit() { PTX(emu::bulk_commit(), "cp.async.bulk.commit_group;" :: : "memory"); }
template <int PENDING>
PTX_FN void bulk_wait() {  // all but the last PENDING groups of this thread's stores are written
  PTX(emu::bulk_wait(PENDING), "cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING>
PTX_FN void bulk_wait_read() {  // ... have left shared memory, which may be overwritten
  PTX(emu::bulk_wait(PENDING), "cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// ---- stmatrix: the way back of ldmatrix; lane 8i+r brings the address of row r (16 bytes) of matrix i
PTX_FN void stmatrix_x1(void* row, const unsigned (&r)[1]) {
  PTX(emu::stmatrix(row, 1, false, r), "stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(shared(row)),
      "r"(r[0]) : "memory");
}
PTX_FN void stmatrix_x2(void* row, const unsigned (&r)[2]) {
  PTX(emu::stmatrix(row, 2, false, r), "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1,%2};" ::"r"(shared(row)),
      "r"(r[0]), "r"(r[1]) : "memory");
}
PTX_FN void stmatrix_x4(void* row, const unsigned (&r)[4]) {
  PTX(emu::stmatrix(row, 4, false, r),
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1]),
      "r"(r[2]), "r"(r[3]) : "memory");
}
PTX_FN void stmatrix_x1_trans(void* row, const unsigned (&r)[1]) {
  PTX(emu::stmatrix(row, 1, true, r), "stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(shared(row)),
      "r"(r[0]) : "memory");
}
PTX_FN void stmatrix_x2_trans(void* row, const unsigned (&r)[2]) {
  PTX(emu::stmatrix(row, 2, true, r),
      "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1])
      : "memory");
}
PTX_FN void stmatrix_x4_trans(void* row, const unsigned (&r)[4]) {
  PTX(emu::stmatrix(row, 4, true, r),
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared(row)), "r"(r[0]), "r"(r[1]),
      "r"(r[2]), "r"(r[3]) : "memory");
}

// ---- wgmma: d = a b (+ d if add) by the four warps of a warpgroup; a 64 x K, b K x N, K = 16, or 8 with tf32
// Descriptor of an operand whose rows are swizzled over SPAN = 128, 64 or 32 bytes, as TMA does it, or not at all (0).
//   K-major, rows along K: 8 rows of SPAN bytes repeat every sbo; 32 bytes further in K add 2 to the descriptor.
//   MN-major, rows along M or N, 16-bit types: rows of SPAN bytes, 8 of them (of K) repeat every sbo, and the next SPAN
//   bytes of M or N lie lbo further; 16 more of K add 2 sbo / 16 to the descriptor.
//   SPAN = 0: 8 rows of 16 bytes stand together. K-major: the next 16 bytes of K lie lbo further, the next 8 rows sbo.
//   MN-major: the next 16 bytes of M or N lie sbo further, the next 8 of K lbo.
// A tile begins at a multiple of 8 SPAN bytes.
template <int SPAN = 128>
PTX_FN uint64_t wgmma_desc(const void* tile, int lbo = 16, int sbo = 8 * SPAN) {
  static_assert(SPAN == 128 || SPAN == 64 || SPAN == 32 || SPAN == 0, "rows of 128, 64 or 32 bytes, or no swizzle");
#ifdef __CUDACC__
  unsigned at = shared(tile);
#else
  unsigned at = (unsigned)((const char*)tile - emu::engine.dynamic_shared);
#endif
  const uint64_t mode = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
  return (uint64_t)(at >> 4 & 0x3FFF) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 | mode << 62;
}
PTX_FN void wgmma_fence() {  // before the first wgmma, and after other instructions touched its registers
  PTX(emu::wgmma_fence(), "wgmma.fence.sync.aligned;" :: : "memory");
}
PTX_FN void wgmma_commit() { PTX(emu::wgmma_commit(), "wgmma.commit_group.sync.aligned;" :: : "memory"); }
template <int PENDING>
PTX_FN void wgmma_wait() {  // all but the last PENDING groups are complete
  PTX(emu::wgmma_wait(PENDING), "wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#ifdef __CUDACC__
#define PTX_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
// For each N: the accumulators as text and as operands, and the numbers of the operands behind them.
#define PTX_D8 "%0,%1,%2,%3"
#define PTX_D16 PTX_D8 ",%4,%5,%6,%7"
#define PTX_D24 PTX_D16 ",%8,%9,%10,%11"
#define PTX_D32 PTX_D24 ",%12,%13,%14,%15"
#define PTX_D40 PTX_D32 ",%16,%17,%18,%19"
#define PTX_D48 PTX_D40 ",%20,%21,%22,%23"
#define PTX_D56 PTX_D48 ",%24,%25,%26,%27"
#define PTX_D64 PTX_D56 ",%28,%29,%30,%31"
#define PTX_D72 PTX_D64 ",%32,%33,%34,%35"
#define PTX_D80 PTX_D72 ",%36,%37,%38,%39"
#define PTX_D88 PTX_D80 ",%40,%41,%42,%43"
#define PTX_D96 PTX_D88 ",%44,%45,%46,%47"
#define PTX_D104 PTX_D96 ",%48,%49,%50,%51"
#define PTX_D112 PTX_D104 ",%52,%53,%54,%55"
#define PTX_D120 PTX_D112 ",%56,%57,%58,%59"
#define PTX_D128 PTX_D120 ",%60,%61,%62,%63"
#define PTX_D136 PTX_D128 ",%64,%65,%66,%67"
#define PTX_D144 PTX_D136 ",%68,%69,%70,%71"
#define PTX_D152 PTX_D144 ",%72,%73,%74,%75"
#define PTX_D160 PTX_D152 ",%76,%77,%78,%79"
#define PTX_D168 PTX_D160 ",%80,%81,%82,%83"
#define PTX_D176 PTX_D168 ",%84,%85,%86,%87"
#define PTX_D184 PTX_D176 ",%88,%89,%90,%91"
#define PTX_D192 PTX_D184 ",%92,%93,%94,%95"
#define PTX_D200 PTX_D192 ",%96,%97,%98,%99"
#define PTX_D208 PTX_D200 ",%100,%101,%102,%103"
#define PTX_D216 PTX_D208 ",%104,%105,%106,%107"
#define PTX_D224 PTX_D216 ",%108,%109,%110,%111"
#define PTX_D232 PTX_D224 ",%112,%113,%114,%115"
#define PTX_D240 PTX_D232 ",%116,%117,%118,%119"
#define PTX_D248 PTX_D240 ",%120,%121,%122,%123"
#define PTX_D256 PTX_D248 ",%124,%125,%126,%127"
#define PTX_O8 PTX_F4(0)
#define PTX_O16 PTX_O8, PTX_F4(4)
#define PTX_O24 PTX_O16, PTX_F4(8)
#define PTX_O32 PTX_O24, PTX_F4(12)
#define PTX_O40 PTX_O32, PTX_F4(16)
#define PTX_O48 PTX_O40, PTX_F4(20)
#define PTX_O56 PTX_O48, PTX_F4(24)
#define PTX_O64 PTX_O56, PTX_F4(28)
#define PTX_O72 PTX_O64, PTX_F4(32)
#define PTX_O80 PTX_O72, PTX_F4(36)
#define PTX_O88 PTX_O80, PTX_F4(40)
#define PTX_O96 PTX_O88, PTX_F4(44)
#define PTX_O104 PTX_O96, PTX_F4(48)
#define PTX_O112 PTX_O104, PTX_F4(52)
#define PTX_O120 PTX_O112, PTX_F4(56)
#define PTX_O128 PTX_O120, PTX_F4(60)
#define PTX_O136 PTX_O128, PTX_F4(64)
#define PTX_O144 PTX_O136, PTX_F4(68)
#define PTX_O152 PTX_O144, PTX_F4(72)
#define PTX_O160 PTX_O152, PTX_F4(76)
#define PTX_O168 PTX_O160, PTX_F4(80)
#define PTX_O176 PTX_O168, PTX_F4(84)
#define PTX_O184 PTX_O176, PTX_F4(88)
#define PTX_O192 PTX_O184, PTX_F4(92)
#define PTX_O200 PTX_O192, PTX_F4(96)
#define PTX_O208 PTX_O200, PTX_F4(100)
#define PTX_O216 PTX_O208, PTX_F4(104)
#define PTX_O224 PTX_O216, PTX_F4(108)
#define PTX_O232 PTX_O224, PTX_F4(112)
#define PTX_O240 PTX_O232, PTX_F4(116)
#define PTX_O248 PTX_O240, PTX_F4(120)
#define PTX_O256 PTX_O248, PTX_F4(124)
#define PTX_WIDTHS(X, t) \
  X(t, 8, 4, 5, 6, 7, 8, 9, 10, 11, 12) X(t, 16, 8, 9, 10, 11, 12, 13, 14, 15, 16) \
  X(t, 24, 12, 13, 14, 15, 16, 17, 18, 19, 20) X(t, 32, 16, 17, 18, 19, 20, 21, 22, 23, 24) \
  X(t, 40, 20, 21, 22, 23, 24, 25, 26, 27, 28) X(t, 48, 24, 25, 26, 27, 28, 29, 30, 31, 32) \
  X(t, 56, 28, 29, 30, 31, 32, 33, 34, 35, 36) X(t, 64, 32, 33, 34, 35, 36, 37, 38, 39, 40) \
  X(t, 72, 36, 37, 38, 39, 40, 41, 42, 43, 44) X(t, 80, 40, 41, 42, 43, 44, 45, 46, 47, 48) \
  X(t, 88, 44, 45, 46, 47, 48, 49, 50, 51, 52) X(t, 96, 48, 49, 50, 51, 52, 53, 54, 55, 56) \
  X(t, 104, 52, 53, 54, 55, 56, 57, 58, 59, 60) X(t, 112, 56, 57, 58, 59, 60, 61, 62, 63, 64) \
  X(t, 120, 60, 61, 62, 63, 64, 65, 66, 67, 68) X(t, 128, 64, 65, 66, 67, 68, 69, 70, 71, 72) \
  X(t, 136, 68, 69, 70, 71, 72, 73, 74, 75, 76) X(t, 144, 72, 73, 74, 75, 76, 77, 78, 79, 80) \
  X(t, 152, 76, 77, 78, 79, 80, 81, 82, 83, 84) X(t, 160, 80, 81, 82, 83, 84, 85, 86, 87, 88) \
  X(t, 168, 84, 85, 86, 87, 88, 89, 90, 91, 92) X(t, 176, 88, 89, 90, 91, 92, 93, 94, 95, 96) \
  X(t, 184, 92, 93, 94, 95, 96, 97, 98, 99, 100) X(t, 192, 96, 97, 98, 99, 100, 101, 102, 103, 104) \
  X(t, 200, 100, 101, 102, 103, 104, 105, 106, 107, 108) X(t, 208, 104, 105, 106, 107, 108, 109, 110, 111, 112) \
  X(t, 216, 108, 109, 110, 111, 112, 113, 114, 115, 116) X(t, 224, 112, 113, 114, 115, 116, 117, 118, 119, 120) \
  X(t, 232, 116, 117, 118, 119, 120, 121, 122, 123, 124) X(t, 240, 120, 121, 122, 123, 124, 125, 126, 127, 128) \
  X(t, 248, 124, 125, 126, 127, 128, 129, 130, 131, 132) X(t, 256, 128, 129, 130, 131, 132, 133, 134, 135, 136)

// One instruction; i...: numbers of the operands b, add, signs of a and b, is b MN-major, and up to four of a.
#define PTX_WGMMA_N(types, n, a_text, majors, ib, iadd, ia_sign, ib_sign, ...) \
  if constexpr (HALF == n / 2) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #iadd ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #n types " {" PTX_D##n "}, " a_text ", %" #ib ", p, %" #ia_sign \
                 ", %" #ib_sign majors ";\n}" \
                 : PTX_O##n \
                 : "l"(b), "r"((int)add), "n"(NEGATE_A ? -1 : 1), "n"(NEGATE_B ? -1 : 1), __VA_ARGS__ \
                 : "memory");
#define PTX_SS_16(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "%" #i5, ", %" #i6 ", %" #i4, i0, i1, i2, i3, "n"(B_MN), "l"(a), "n"(A_MN))
#define PTX_RS_16(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "{%" #i5 ",%" #i6 ",%" #i7 ",%" #i8 "}", ", %" #i4, i0, i1, i2, i3, "n"(B_MN), "r"(a[0]), \
            "r"(a[1]), "r"(a[2]), "r"(a[3]))
#define PTX_SS_32(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "%" #i5, "", i0, i1, i2, i3, "n"(0), "l"(a))
#define PTX_RS_32(types, n, i0, i1, i2, i3, i4, i5, i6, i7, i8) \
  PTX_WGMMA_N(types, n, "{%" #i5 ",%" #i6 ",%" #i7 ",%" #i8 "}", "", i0, i1, i2, i3, "n"(0), "r"(a[0]), "r"(a[1]), \
            "r"(a[2]), "r"(a[3]))
#define PTX_WGMMA_ALL(X, types, format, a_registers, a_desc, a_mn, b_mn) PTX_WIDTHS(X, types)
#else
#define PTX_WGMMA_ALL(X, types, format, a_registers, a_desc, a_mn, b_mn) \
  emu::wgmma(emu::format, 2 * HALF, d, a_registers, a_desc, b, add, a_mn, b_mn, NEGATE_A != NEGATE_B);
#endif
#define PTX_WIDTH_OF_D \
  static_assert(HALF % 4 == 0 && HALF >= 4 && HALF <= 128, "N, twice the accumulators, is a multiple of 8 up to 256")

// N is twice the number of accumulators in d; these may be used after wgmma_wait. d[i] of a thread: row 16 (warp % 4) +
// lane / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (lane % 4) + i % 2. A_MN, B_MN: that operand is MN-major; NEGATE_A,
// NEGATE_B: its sign changes. ss: a in shared memory; rs: in registers, laid out as for mma_f16, 16 rows per warp.
#define PTX_WGMMA_16(type, format) \
  template <int A_MN = 0, int B_MN = 0, int NEGATE_A = 0, int NEGATE_B = 0, int HALF> \
  PTX_FN void wgmma_ss_##type(float (&d)[HALF], uint64_t a, uint64_t b, bool add) { \
    PTX_WIDTH_OF_D; \
    PTX_WGMMA_ALL(PTX_SS_16, "k16.f32." #type "." #type, format, nullptr, a, A_MN, B_MN) \
  } \
  template <int B_MN = 0, int NEGATE_A = 0, int NEGATE_B = 0, int HALF> \
  PTX_FN void wgmma_rs_##type(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) { \
    PTX_WIDTH_OF_D; \
    PTX_WGMMA_ALL(PTX_RS_16, "k16.f32." #type "." #type, format, a, 0, 0, B_MN) \
  } \
  template <int A_MN = 0, int B_MN = 0> \
  PTX_FN void wgmma_n64_##type(float (&d)[32], uint64_t a, uint64_t b, bool add) { \
    wgmma_ss_##type<A_MN, B_MN>(d, a, b, add); \
  }
PTX_WGMMA_16(f16, Fp16)
PTX_WGMMA_16(bf16, Bf16)
template <int NEGATE_A = 0, int NEGATE_B = 0, int HALF>
PTX_FN void wgmma_ss_tf32(float (&d)[HALF], uint64_t a, uint64_t b, bool add) {
  PTX_WIDTH_OF_D;
  PTX_WGMMA_ALL(PTX_SS_32, "k8.f32.tf32.tf32", Tf32, nullptr, a, 0, 0)
}
template <int NEGATE_A = 0, int NEGATE_B = 0, int HALF>
PTX_FN void wgmma_rs_tf32(float (&d)[HALF], const unsigned (&a)[4], uint64_t b, bool add) {
  PTX_WIDTH_OF_D;
  PTX_WGMMA_ALL(PTX_RS_32, "k8.f32.tf32.tf32", Tf32, a, 0, 0, 0)
}
PTX_FN void wgmma_n64_tf32(float (&d)[32], uint64_t a, uint64_t b, bool add) { wgmma_ss_tf32(d, a, b, add); }
}  // namespace ptx
