// What the matrix products on tiles share, whatever unit multiplies: slabs of k on their way through shared memory.
#pragma once
#include "copies.cuh"

// Returns which row of a tile is copied in place of row r where only `left` of them exist. Those that do not get others
// in turn: many lanes that read one address are slow.
INLINE int row_to_copy(int r, int left) { return r < left ? r : r & ((1 << (31 - __clz(left))) - 1); }

// Runs `slabs` slabs through the buffers at `smem` (STAGES * STAGE_SIZE elements). load(a, b) begins the copies of the
// next slab, and land(a, b) ends them where they are STAGED; multiply(a, b) consumes one. On return every thread has read
// what it needs; others may still be reading.
template <class T, class Load, class Land, class Multiply>
INLINE void gemm_pipeline(typename T::In *smem, int slabs, Load &&load, Land &&land, Multiply &multiply) {
  if constexpr (STAGED) {
    if (slabs > 0) load(smem, smem + T::A_SIZE);
    UNROLL_BY(1) for (int s = 0; s < slabs; s++) {
      __syncthreads();  // everybody has read the slab before
      land(smem, smem + T::A_SIZE);
      __syncthreads();
      if (s + 1 < slabs) load(smem, smem + T::A_SIZE);
      multiply(smem, smem + T::A_SIZE);
    }
  } else {
    UNROLL for (int s = 0; s < T::STAGES - 1; s++) {
      if (s < slabs) load(smem + s * T::STAGE_SIZE, smem + s * T::STAGE_SIZE + T::A_SIZE);
      ptx::cp_async_commit();
    }
    typename T::In *read = smem, *write = smem + (T::STAGES - 1) * T::STAGE_SIZE, *end = smem + T::STAGES * T::STAGE_SIZE;
    UNROLL_BY(1) for (int s = 0; s < slabs; s++) {
      ptx::cp_async_wait<T::STAGES - 2>();
      __syncthreads();
      if (s + T::STAGES - 1 < slabs) load(write, write + T::A_SIZE);
      ptx::cp_async_commit();
      multiply(read, read + T::A_SIZE);
      read = read + T::STAGE_SIZE == end ? smem : read + T::STAGE_SIZE;
      write = write + T::STAGE_SIZE == end ? smem : write + T::STAGE_SIZE;
    }
  }
}
