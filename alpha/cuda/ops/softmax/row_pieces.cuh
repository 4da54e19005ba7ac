// Rows by the threads that share them: what a thread holds of a row, or of two side by side, in registers between the
// passes over it, and what all of it folds to.
#pragma once
#include <type_traits>

#include "lanes.cuh"
#include "reduce.cuh"

// The pieces of a row that one thread takes: lane, lane + width, ... before `count`, `pitch` elements from one to the
// next. If HELD of them suffice they are read once, else HELD at a time in each pass, from the cache.
// BOTH: and those of a second row, which lies as the first does.
template <class T, int N, bool BOTH = false> struct RowPieces {
  using Piece = Lanes<N, T>;
  Piece held[HELD], others[BOTH ? HELD : 1];
  const T *row, *other;
  unsigned lane, width;
  i64 count, pitch;
  bool all;
  INLINE RowPieces(const T *row, unsigned lane, unsigned width, i64 count, i64 pitch = N, const T *other = nullptr)
      : row(row), other(other), lane(lane), width(width), count(count), pitch(pitch), all(count <= HELD * width) {
    if (all) fill(lane);
  }
  INLINE void fill(i64 first) {
    UNROLL for (int k = 0; k < HELD; k++) {
      const i64 at = first + k * width;
      if (at < count) held[k] = load<N>(row + at * pitch);
      if (BOTH && at < count) others[BOTH ? k : 0] = load<N>(other + at * pitch);
    }
  }
  // f(piece, that of the second row, place of its first element in the row) for all pieces, in order
  template <class F> INLINE void each(const F &f) {
    UNROLL_BY(1) for (i64 first = lane; first < count; first += HELD * width) {
      if (!all) fill(first);
      UNROLL for (int k = 0; k < HELD; k++) {
        const i64 at = first + k * width;
        if (at < count) f(held[k], BOTH ? others[BOTH ? k : 0] : held[k], at * pitch);
      }
    }
  }
  // Merges f(x, z, c) of all elements x of the row, z of the second one, at place c, into v. Those of a piece meet as a
  // tree. Every thread of the row gets the result. All threads of the block call it.
  template <class F, class Merge> INLINE float fold(float v, const F &f, const Merge &merge) {
    constexpr bool SUMS = std::is_same<Merge, Add>::value;  // which, in a long chain, keep what rounding leaves out
    ExactSum sum = {v, 0};
    each([&](const Piece &piece, const Piece &second, i64 at) {
      float w[N];
      UNROLL for (int l = 0; l < N; l++) w[l] = f(value(piece, l), value(second, l), at + l);
      UNROLL for (int half = N / 2; half; half /= 2)
        UNROLL for (int l = 0; l < half; l++) w[l] = merge(w[l], w[l + half]);
      if (SUMS && !all) sum.add(w[0]);
      else v = merge(v, w[0]);
    });
    if (SUMS && !all) v = sum.value();
    if (width > 32) return fold_group(v, width, merge);
    UNROLL for (int bits = 16; bits; bits /= 2)
      if (bits < width) v = merge(v, __shfl_xor_sync(~0u, v, bits));
    return v;
  }
  // to = f(x, z, c) of all elements, in a row that lies as these do
  template <class F> INLINE void map(T *to, const F &f) {
    each([&](const Piece &piece, const Piece &second, i64 at) {
      float out[N];
      UNROLL for (int l = 0; l < N; l++) out[l] = f(value(piece, l), value(second, l), at + l);
      store_floats(to + at, out);
    });
  }
};
