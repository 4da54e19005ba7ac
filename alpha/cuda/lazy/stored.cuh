// A float32 tensor whose memory may have planes in its place (planes.cuh): either form takes 4 bytes of an element.
#pragma once
#include "lanes.cuh"
#include "operand_header.cuh"

// Float32 elements [i, i + 4), i a multiple of 4, from planes or, where their flag is set, from elements.
struct Stored {
  using Piece = Lanes<4, float>;
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
  INLINE float one(i64 i) const {
    if (whole) return reinterpret_cast<const float *>(memory)[i];
    const f16 *high = reinterpret_cast<const f16 *>(memory) + i;
    return (to_float(*high) + to_float(high[size])) * scale;
  }
  INLINE void unpack(float (&v)[4], const Piece &piece) const {
    UNROLL for (int e = 0; e < 4; e++) v[e] = at(piece, e);
  }
};
// header: null where there are but elements
INLINE Stored stored_or_not(const void *memory, const OperandHeader *header, i64 size) {
  return header ? Stored(memory, header, size) : Stored(memory, size);
}
