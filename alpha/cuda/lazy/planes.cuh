// Kernels that write the planes of a float32 tensor (operand_header.cuh) in its place; stored.cuh has what reads them
// there. The flag is that of a split, and set where an element exceeds the bound too.
// A launch that writes elements follows, whose blocks end at once unless it is set: memory then has the elements.
#pragma once
#include "reduce.cuh"
#include "stored.cuh"

// ---- writing planes instead of a tensor ---------------------------------------------------------------------

// Both planes of a tensor of `size` elements, a multiple of 8, no larger than the bound in its header: put by the
// threads of all blocks, 4 elements at a time, and finished by all threads of each. It may take several launches, of
// `blocks` blocks together.
struct PlaneWriter {
  f16 *high, *low;
  float factor;
  Tally tally = {};
  INLINE PlaneWriter(void *memory, i64 size, const OperandHeader *header)
      : high(static_cast<f16 *>(memory)), low(high + size), factor(power_of_two(shift_of(header->bound))) {}
  INLINE void put(const float (&v)[4], i64 i) {
    uint2 of_high, of_low;
    split_pair<Float16x2>(v[0], v[1], factor, of_high.x, of_low.x, tally);
    split_pair<Float16x2>(v[2], v[3], factor, of_high.y, of_low.y, tally);
    __stcg(reinterpret_cast<uint2 *>(high + i), of_high);
    __stcg(reinterpret_cast<uint2 *>(low + i), of_low);
  }
  INLINE void finish(OperandHeader *header, int *lost_ranges, unsigned blocks = gridDim.x) {
    tally = fold_group(tally, THREADS, MergeTallies());
    if (threadIdx.x == 0) report(header, tally, blocks, lost_ranges);
  }
};
