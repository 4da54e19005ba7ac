// Weight-stationary tiles: filters stay in shared memory while the tiles that read them follow each other.
//
// What:     all blocks of B of a sum, T::HELD at most, behind the ring, whose buffers are of A alone. Where a sum is
//           short, as that of a 1x1 filter, B is half of what a tile loads, and the same as that of the tile before
// Threads:  the producer loads them before the first tile that reads them, once the consumers are done with those
//           that lie there: their products end, and its copies begin anew. So lists have few changes
// Measured: benchmarks/results/h100/tried.md
#pragma once
#include "gemm_wgmma.cuh"

struct HeldBarriers {  // in shared memory
  uint64_t full, empty;

  // By one thread, before a fence of the initialization and __syncthreads(); readers: warps of the consumers.
  INLINE void init(int readers) {
    ptx::mbarrier_init(&full, 1);
    ptx::mbarrier_init(&empty, readers);
    ptx::fence_mbarrier_init();
  }
};

template <class T> struct HeldFilters {
  char *const buffers;  // block k lies at T::B_AT + k * T::B_BLOCK
  HeldBarriers &barriers;
  unsigned phase = 0;   // of the next filters

  INLINE HeldFilters(char *smem, HeldBarriers &b) : buffers(smem), barriers(b) {}

  // Producer, its whole warp: waits until nobody reads what lies there, and returns the barrier of what is to come.
  INLINE uint64_t *begin() {
    ptx::mbarrier_wait(&barriers.empty, phase ^ 1);
    phase ^= 1;
    return &barriers.full;
  }
  INLINE void expect(int bytes) {  // before they are loaded
    if (threadIdx.x % 32 == 0) ptx::mbarrier_expect(&barriers.full, bytes);
    __syncwarp();
  }
  INLINE void end() {  // all has been expected
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&barriers.full);
    __syncwarp();
  }
  // Consumer, all of its threads: waits for the next filters.
  INLINE void wait() {
    ptx::mbarrier_wait(&barriers.full, phase);
    phase ^= 1;
  }
  // Consumer: has read the filters; the warp's lanes are together.
  INLINE void release() { if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&barriers.empty); }
};
