// An operand of a product by mma.sync in shared memory: lines of 16-byte chunks, copied as they lie in memory.
//
// Layout:   K-major   [ROWS][DEPTH]: ldmatrix reads 8 rows of 16 bytes.   MN-major  [DEPTH][ROWS]: 16 bits by
//           ldmatrix.trans, 8 lines of 16 bytes; float32 element by element
//           Chunk c of line l lies in the place of another one, so that what a warp reads at once lies in different
//           banks: c ^ l % 8; of lines of 4 chunks c ^ l / 2 % 4; of lines that are read by elements c ^ 2 * (l % 4)
// Requires: sm_75. ALIGNED: lines begin at multiples of 16 bytes; else elements are copied one by one
// Threads:  COPIERS copy; a warp reads fragments of 16 rows, or of 16 columns
#pragma once
#include "fragments.cuh"

template <bool KMAJOR_, int ROWS_, int DEPTH_> struct TileOperand {
  static constexpr bool KMAJOR = KMAJOR_;
  static constexpr int ROWS = ROWS_, DEPTH = DEPTH_, PER = LANES<ELEMENT>;
  static constexpr int LINES = KMAJOR ? ROWS : DEPTH, WIDTH = KMAJOR ? DEPTH : ROWS, CHUNKS = WIDTH / PER;
  static constexpr int SIZE = ROWS * DEPTH;
  static_assert(CHUNKS % 8 == 0 || CHUNKS == 4, "chunks change places within a line");

  static INLINE int place(int line, int chunk) {
    if constexpr (!KMAJOR && WIDE) return line * WIDTH + (chunk ^ (line & 3) << 1) * PER;
    else return line * WIDTH + (chunk ^ (CHUNKS == 4 ? line >> 1 & 3 : line & 7)) * PER;
  }

  // Starts to copy lines of which `lines_left` and `elements_left` exist; zeros stand for the others. ld: elements from a
  // line to the next in memory.
  template <int COPIERS, bool ALIGNED>
  static INLINE void copy(ELEMENT *to, const ELEMENT *from, i64 ld, int lines_left, int elements_left) {
    if constexpr (ALIGNED) {
      UNROLL_BY(4) for (int k = threadIdx.x; k < LINES * CHUNKS; k += COPIERS) {
        const int line = k / CHUNKS, chunk = k % CHUNKS, left = elements_left - chunk * PER;
        const int count = line < lines_left ? max(0, min(left, PER)) : 0;
        ptx::cp_async<16>(to + place(line, chunk), from + (count ? line * ld + chunk * PER : 0),
                          count * int(sizeof(ELEMENT)));
      }
    } else {
      UNROLL_BY(4) for (int k = threadIdx.x; k < LINES * WIDTH; k += COPIERS) {
        const int line = k / WIDTH, e = k % WIDTH;
        const bool there = line < lines_left && e < elements_left;
        const ELEMENT *source = from + (there ? line * ld + e : 0);
        ELEMENT *target = to + place(line, e / PER) + e % PER;
        if constexpr (WIDE) ptx::cp_async<4>(target, source, there ? 4 : 0);
        else *target = there ? *source : from_float<ELEMENT>(0.f);
      }
    }
  }

  // Fragments of rows [row, row + 16) and STEP of k from k on
  static INLINE void rows(Fragment<4> &a, const ELEMENT *tile, int row, int k, int lane) {
    if constexpr (!KMAJOR && WIDE) {
      UNROLL for (int q = 0; q < 4; q++) a.set(q, element(tile, row + lane / 4 + q % 2 * 8, k + lane % 4 + q / 2 * 4));
    } else {
      unsigned word[4];
      const int low = lane % 8, mid = lane / 8 & 1, high = lane / 16;
      if constexpr (KMAJOR) ptx::ldmatrix_x4(word, tile + place(row + mid * 8 + low, k / PER + high));
      else ptx::ldmatrix_x4_trans(word, tile + place(k + high * 8 + low, row / PER + mid));
      UNROLL for (int q = 0; q < 4; q++) set(a, q, word[q]);
    }
  }
  // Of columns [column, column + 16), in two fragments of 8
  static INLINE void columns(Fragment<2> (&b)[2], const ELEMENT *tile, int column, int k, int lane) {
    if constexpr (!KMAJOR && WIDE) {
      UNROLL for (int q = 0; q < 4; q++)
        b[q / 2].set(q % 2, element(tile, column + q / 2 * 8 + lane / 4, k + lane % 4 + q % 2 * 4));
    } else {
      unsigned word[4];
      const int low = lane % 8, mid = lane / 8 & 1, high = lane / 16;
      if constexpr (KMAJOR) ptx::ldmatrix_x4(word, tile + place(column + high * 8 + low, k / PER + mid));
      else ptx::ldmatrix_x4_trans(word, tile + place(k + mid * 8 + low, column / PER + high));
      UNROLL for (int q = 0; q < 4; q++) set(b[q / 2], q % 2, word[q]);
    }
  }

private:
  static INLINE float element(const ELEMENT *tile, int row, int k) {
    return to_float(tile[place(k, row / PER) + row % PER]);
  }
  template <int N> static INLINE void set(Fragment<N> &f, int q, unsigned word) {
    if constexpr (WIDE) f.set(q, __uint_as_float(word));
    else f.set(q, word);
  }
};
