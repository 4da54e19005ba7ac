// Copies from device memory to shared memory that are under way while a thread computes, for every class of GPUs.
//
// sm_80:    cp.async: `begin` starts a copy, which lands by the wait of gemm_pipeline; `land` does nothing
// before:   STAGED: `begin` reads into a register of the thread, `land` writes that to shared memory. Between the two the
//           thread multiplies; one buffer is enough, as the next slab is in registers
#pragma once
#include "ptx.cuh"

constexpr bool STAGED = ALPHA_ARCH < 80;
// Blocks of a multiprocessor that registers allow, of those that they allow from sm_80 on: copies take registers too.
constexpr int blocks_here(int blocks) { return STAGED ? blocks * 3 / 4 : blocks; }

// COUNT copies of BYTES that a thread has under way at a time. bytes: BYTES, or 0: zeros are written, and nothing is read.
#if ALPHA_ARCH < 80
template <int BYTES, int COUNT> struct Copies {
  using Word = typename BitsOf<BYTES>::type;
  Word words[COUNT];
  INLINE void begin(int i, void *, const void *from, int bytes) {
    words[i] = bytes ? *static_cast<const Word *>(from) : Word();
  }
  INLINE void land(int i, void *to) const { *static_cast<Word *>(to) = words[i]; }
};
#else
template <int BYTES, int COUNT> struct Copies {
  INLINE void begin(int, void *to, const void *from, int bytes) const { ptx::cp_async<BYTES>(to, from, bytes); }
  INLINE void land(int, void *) const {}
};
#endif
