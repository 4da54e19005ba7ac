// What:     a part of a joined float32 tensor: rows of a tensor that may consist of planes (planes.cu), copied to where
//           they belong in the rows of the whole, as planes or as elements. Where part and whole have different scales
//           an element of planes is rounded once more.
//           Parts that batch norm has not written yet are put there by its own pass (batch_norm_planes.cu).
// Layout:   whole (rows, columns), of which the part has w.columns * 4 from `first` on; columns of parts are multiples
//           of 8. hi of all rows, then lo. header_of_x: null where x has elements
// Scale:    of the whole, from the largest bound of its parts, which is in the header before
// Flag:     see planes.cuh; told by the last block of all parts. What follows behind it is concat_stored
// Requires: columns of parts multiples of 8
// Threads:  as reduce.cuh has it; blocks go through a part backwards: what was written last is still in the L2 cache
// Measured: not by itself
#include "lazy/planes.cuh"
#include "reduce.cuh"

constexpr int AHEAD = 4;  // rows that a thread has in flight

template <class Out>
INLINE void copy_rows(const void *x, const OperandHeader *header_of_x, Out &&out, i64 columns, i64 first,
                      const Walk &w) {
  const Stored stored = stored_or_not(x, header_of_x, w.rows * w.columns * 4);
  const Place at(w, gridDim.x - 1 - blockIdx.x);
  each_row<AHEAD>(
      at, w, [&](i64 r) { return stored.load((r * w.columns + at.column) * 4); },
      [&](const Stored::Piece &piece, i64 r) {
        float v[4];
        stored.unpack(v, piece);
        out.put(v, r * columns + first + at.column * 4);
      });
}

// blocks: of the launches for all parts
ALPHA_ENTRY(concat_planes, (THREADS), (const void *x, const OperandHeader *header_of_x, void *y, OperandHeader *header,
                                       i64 columns, i64 first, int blocks, int *lost_ranges, const Walk w),
            PlaneWriter out(y, w.rows * columns, header);
            copy_rows(x, header_of_x, out, columns, first, w);
            out.finish(header, lost_ranges, blocks))

struct Elements {
  float *y;
  INLINE void put(const float (&v)[4], i64 i) const { store_floats(y + i, v); }
};
// behind a flag, or none
ALPHA_ENTRY(concat_stored, (THREADS), (const void *x, const OperandHeader *header_of_x, float *y, i64 columns,
                                       i64 first, const int *flag, const Walk w),
            if (flag && !*flag) return;
            copy_rows(x, header_of_x, Elements{y}, columns, first, w))
