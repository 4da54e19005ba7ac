// Split-K: long sums cut into slices that several blocks compute at the same time, added up in a fixed order.
//
// What:     the sum of a tile is made of slabs. Slice `number` of `count` has about slabs / count of them, one after
//           the other, and a block of its own. Each block stores what it gets in a slot of the workspace; the block
//           that is the last of its tile to do so adds the slots up, slice 0 first whichever block it is, and stores
//           the tile. A tile of one slice does nothing of it
// Layout:   workspace: [slot][quad][thread] float4, the accumulators of a thread in their own order: threads add up
//           what their counterparts wrote, so that rows and columns need not be known. Slots of a tile are neighbours
// Requires: arrived, a counter per slot, of which a tile uses that of its first: 0 before every launch, and after it.
//           alpha/cuda/conv/split.py decides on the slices and hands out the slots
#pragma once
#include "ptx.cuh"

struct Slice {
  int slot;           // the first one of the tile
  int number, count;  // 0 of 1: all of the sum
};

struct Workspace {
  float *slots;
  unsigned *arrived;
};

struct SlabRange { int begin, count; };

// Returns which slabs of a sum belong to a slice: the first ones have one more where they are not a multiple of count.
INLINE SlabRange slabs_of(const Slice &slice, int slabs) {
  if (slice.count == 1) return {0, slabs};
  const int each = slabs / slice.count, more = slabs % slice.count;
  return {each * slice.number + min(slice.number, more), each + (slice.number < more)};
}

// Tells whether this block is the last of `count` to call it with a counter, which is 0 before and after. Then it sees
// what the others had stored, by __ldcg. Every thread of the block calls it.
INLINE bool arrives_last(unsigned *arrived, unsigned count) {
  __shared__ bool last;
  __threadfence();  // what this thread has stored is seen before the count
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, count - 1) == count - 1;  // back to 0
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// Stores a slice's accumulators. Where all slices of the tile are there, replaces them by their sum and returns true:
// one block of each tile gets that. Every thread of the block calls it.
template <int THREADS, int ROWS, int COLS>
INLINE bool add_slices(float (&acc)[ROWS][COLS], const Slice &slice, const Workspace &work) {
  constexpr int SLOT = ROWS * COLS * THREADS / 4;  // float4
  constexpr int AT_ONCE = ROWS * COLS >= 64 ? 1 : 64 / (ROWS * COLS);  // slots that are read together
  float4 *slots = reinterpret_cast<float4 *>(work.slots) + (long long)slice.slot * SLOT + threadIdx.x;
  float4 *mine = slots + slice.number * SLOT;
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int j = 0; j < COLS; j += 4)
      mine[(i * COLS + j) / 4 * THREADS] = make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
  if (!arrives_last(work.arrived + slice.slot, slice.count)) return false;
  UNROLL for (int i = 0; i < ROWS; i++)
    UNROLL for (int j = 0; j < COLS; j++) acc[i][j] = 0.f;
  UNROLL_BY(AT_ONCE) for (int s = 0; s < slice.count; s++, slots += SLOT) {
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int j = 0; j < COLS; j += 4) {
        const float4 v = __ldcg(slots + (i * COLS + j) / 4 * THREADS);
        acc[i][j] += v.x, acc[i][j + 1] += v.y, acc[i][j + 2] += v.z, acc[i][j + 3] += v.w;
      }
  }
  return true;
}
