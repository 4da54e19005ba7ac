// Hopper's asynchronous instructions in two halves, as in ptx.cuh: mbarrier, TMA tiles, wgmma. Needs -arch=sm_90a.
// Tiles and wgmma operands live in dynamic shared memory; mbarriers may be anywhere in shared memory.
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
template <int REGISTERS>
PTX_FN void setmaxnreg_inc() {
  PTX((void)0, "setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
PTX_FN void setmaxnreg_dec() {
  PTX((void)0, "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- mbarrier
PTX_FN void mbarrier_init(uint64_t* bar, int count) {
  PTX(emu::mbarrier_init(bar, count), "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)),
      "r"(count) : "memory");
}
PTX_FN void fence_mbarrier_init() { PTX((void)0, "fence.mbarrier_init.release.cluster;" :: : "memory"); }
PTX_FN void fence_proxy_async() { PTX((void)0, "fence.proxy.async;" :: : "memory"); }
PTX_FN void mbarrier_arrive(uint64_t* bar) {
  PTX(emu::mbarrier_arrive(bar, 0), "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory");
}
PTX_FN void mbarrier_arrive_expect(uint64_t* bar, int bytes) {  // one arrival, and this many bytes that TMA will bring
  PTX(emu::mbarrier_arrive(bar, bytes), "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(bar)),
      "r"(bytes) : "memory");
}
PTX_FN void mbarrier_wait(uint64_t* bar, int parity) {  // until the phase of this parity is complete
  PTX(emu::mbarrier_wait(bar, parity),
      "{\n.reg .pred p;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE;\nbra "
      "AGAIN;\nDONE:\n}" ::"r"(shared(bar)),
      "r"(parity) : "memory");
}

// ---- TMA tiles: the map is a __grid_constant__ parameter; coordinates from the innermost dimension
PTX_FN void tma_load_2d(void* dst, const CUtensorMap& map, int x, int y, uint64_t* bar) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(shared(dst)),
      "l"(&map), "r"(x), "r"(y), "r"(shared(bar))
      : "memory");
#else
  int at[2] = {x, y};
  emu::tma_load(dst, &map, at, 2, bar);
#endif
}
PTX_FN void tma_load_4d(void* dst, const CUtensorMap& map, int x, int y, int z, int w, uint64_t* bar) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4, %5}], [%6];" ::"r"(shared(dst)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared(bar))
      : "memory");
#else
  int at[4] = {x, y, z, w};
  emu::tma_load(dst, &map, at, 4, bar);
#endif
}
PTX_FN void tma_store_2d(const CUtensorMap& map, const void* src, int x, int y) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared(src))
               : "memory");
#else
  int at[2] = {x, y};
  emu::tma_store(&map, src, at, 2);
#endif
}
PTX_FN void tma_store_4d(const CUtensorMap& map, const void* src, int x, int y, int z, int w) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
               "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared(src))
               : "memory");
#else
  int at[4] = {x, y, z, w};
  emu::tma_store(&map, src, at, 4);
#endif
}
PTX_FN void bulk_commit() { PTX(emu::bulk_commit(), "cp.async.bulk.commit_group;" :: : "memory"); }
template <int PENDING>
PTX_FN void bulk_wait() {
  PTX(emu::bulk_wait(PENDING), "cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- wgmma
// Descriptor of an operand with 128-byte swizzle. K-major: 8 rows of 128 bytes repeat every sbo = 1024 bytes; a step of
// n bytes in K adds n / 16 to the descriptor. MN-major (16-bit types): lbo between blocks of 64 columns, sbo between
// groups of 8 rows of K.
PTX_FN uint64_t wgmma_desc(const void* tile, int lbo = 16, int sbo = 1024) {
#ifdef __CUDACC__
  unsigned at = shared(tile);
#else
  unsigned at = (unsigned)((const char*)tile - emu::engine.dynamic_shared);
#endif
  return (uint64_t)(at >> 4 & 0x3FFF) | (uint64_t)(lbo >> 4) << 16 | (uint64_t)(sbo >> 4) << 32 | (uint64_t)1 << 62;
}
PTX_FN void wgmma_fence() { PTX((void)0, "wgmma.fence.sync.aligned;" :: : "memory"); }
PTX_FN void wgmma_commit() { PTX(emu::wgmma_commit(), "wgmma.commit_group.sync.aligned;" :: : "memory"); }
template <int PENDING>
PTX_FN void wgmma_wait() {
  PTX(emu::wgmma_wait(PENDING), "wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

#define PTX_F8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define PTX_WGMMA_64(shape_types, majors, ...) \
  asm volatile( \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" \
      "wgmma.mma_async.sync.aligned.m64n64" shape_types \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
      "%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1" majors ";\n}" \
      : PTX_F8(0), PTX_F8(8), PTX_F8(16), PTX_F8(24) \
      : "l"(a), "l"(b), __VA_ARGS__ \
      : "memory")
// d = a b (+ d if add), 64 x 64 x 16, both operands in shared memory; A_MN, B_MN: that operand is MN-major. The result
// may be used after wgmma_wait. Other widths and A in registers follow the same pattern; the emulator has them.
template <int A_MN = 0, int B_MN = 0>
PTX_FN void wgmma_n64_f16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
#ifdef __CUDACC__
  PTX_WGMMA_64("k16.f32.f16.f16", ", %35, %36", "r"((int)add), "n"(A_MN), "n"(B_MN));
#else
  emu::wgmma(emu::Fp16, 64, d, nullptr, a, b, add, A_MN, B_MN);
#endif
}
template <int A_MN = 0, int B_MN = 0>
PTX_FN void wgmma_n64_bf16(float (&d)[32], uint64_t a, uint64_t b, bool add) {
#ifdef __CUDACC__
  PTX_WGMMA_64("k16.f32.bf16.bf16", ", %35, %36", "r"((int)add), "n"(A_MN), "n"(B_MN));
#else
  emu::wgmma(emu::Bf16, 64, d, nullptr, a, b, add, A_MN, B_MN);
#endif
}
PTX_FN void wgmma_n64_tf32(float (&d)[32], uint64_t a, uint64_t b, bool add) {  // 64 x 64 x 8, both K-major
#ifdef __CUDACC__
  PTX_WGMMA_64("k8.f32.tf32.tf32", "", "r"((int)add));
#else
  emu::wgmma(emu::Tf32, 64, d, nullptr, a, b, add, false, false);
#endif
}
}  // namespace ptx
