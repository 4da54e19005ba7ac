// Kernels that write the planes of a float32 tensor (operand_header.cuh) in its place, and those that read them there:
// either form takes 4 bytes of an element. The flag is that of a split, and set where an element exceeds the bound too.
// A launch that writes elements follows, whose blocks end at once unless it is set: memory then has the elements.
#pragma once
#include "operand_header.cuh"
#include "reduce.cuh"

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

// ---- a tensor whose memory has planes in its place ------------------------------------------------------------------

// Float32 elements [i, i + 4), i a multiple of 4, from planes or, where their flag is set, from elements.
struct Stored {
  using Piece = Lanes<4, float>;
  static constexpr bool READS = true;
  const char *memory;
  i64 size;
  float scale;
  bool whole;
  INLINE Stored(const void *memory, const OperandHeader *header, i64 size)
      : memory(static_cast<const char *>(memory)), size(size), scale(header->scale), whole(header->flag) {}
  INLINE Stored(const void *memory, i64 size)
      : memory(static_cast<const char *>(memory)), size(size), scale(1), whole(true) {}
  INLINE Piece load(i64 i) const {
    const char *first = memory + (whole ? 4 * i : 2 * i), *second = whole ? first + 8 : first + 2 * size;
    const uint2 bits[2] = {*reinterpret_cast<const uint2 *>(first), *reinterpret_cast<const uint2 *>(second)};
    Piece piece;
    memcpy(&piece, bits, sizeof(bits));
    return piece;
  }
  INLINE float at(const Piece &piece, int e) const {
    const unsigned high = __float_as_uint(piece.v[e / 2]), low = __float_as_uint(piece.v[2 + e / 2]);
    return whole ? piece.v[e] : (float_of_pair<f16>(high, e % 2) + float_of_pair<f16>(low, e % 2)) * scale;
  }
  INLINE void unpack(float (&v)[4], const Piece &piece) const {
    UNROLL for (int e = 0; e < 4; e++) v[e] = at(piece, e);
  }
};
// header: null where there are but elements
INLINE Stored stored_or_not(const void *memory, const OperandHeader *header, i64 size) {
  return header ? Stored(memory, header, size) : Stored(memory, size);
}
