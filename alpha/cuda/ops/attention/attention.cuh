// What attention and its gradients share: where operands lie, scores of a tile, and products whose left operand is in
// registers.
//
// What:     S = scale * Q K^T + mask. A block owns TILE_ROWS rows, queries or keys (TURNED), of a head, and goes through the
//           columns, keys or queries, TILE_COLUMNS at a time: a warp has 16 rows and all columns
// Layout:   tiles [rows or columns][HEAD] in shared memory, zeros beyond the width: tile_operand.cuh. The products of a tile
//           with what a warp has in registers read the same tiles by columns. There float32 takes keys 2 t and 2 t + 1
//           for the places t and t + 4 of k, as a lane has them
// Zeros:    of a causal mask whole tiles of columns are left out
// Modes:    those of fragments.cuh; sums over 32 of k are added in proper float32
// Not finite: of float32, an infinity in q, k, v or g makes NaN, as it has no two halves
#pragma once
#include "philox.cuh"
#include "tile_operand.cuh"

using u32 = unsigned;
using u64 = unsigned long long;
constexpr int WARPS = TILE_ROWS / 16, THREADS = 32 * WARPS, BLOCKS = TILE_COLUMNS / 8, SPANS = SPAN / 8;
using RowTile = TileOperand<true, TILE_ROWS, HEAD>;
using ColumnTile = TileOperand<true, TILE_COLUMNS, HEAD>;
using Scores = float[1][BLOCKS][4];

struct Place {
  i64 first, sample, head, row;  // elements
};
struct AttentionShape {
  int heads, rows, keys, width, value_width, causal, mask_kind, tiles;  // mask_kind: 1 bools, 2 ELEMENT; tiles: of a head
  Place q, k, v, y;
  i64 mask_sample, mask_head, mask_row, mask_column;
  float scale, p, factor;
  int aligned;  // whether all heads and rows begin at multiples of 16 bytes
};
struct Drawn {  // numbers of dropout
  u64 seed;
  u32 stream;
  u64 offset;
  const u64 *from;
};

// A block's head, and elements of it.
struct Head {
  const AttentionShape &s;
  const void *mask;
  Drawn drawn;
  int number, n, h;

  INLINE Head(const AttentionShape &shape, const void *mask_, Drawn numbers)
      : s(shape), mask(mask_), drawn(numbers), number(blockIdx.x / shape.tiles), n(number / shape.heads),
        h(number % shape.heads) {
    if (drawn.from) drawn.offset += drawn.from[1], drawn.seed = drawn.from[0];
  }
  template <class T> INLINE T *at(T *tensor, const Place &p, int row) const {
    return tensor + p.first + n * p.sample + h * p.head + row * p.row;
  }
  // scale * v + mask of query i and key j, -infinity of a key that is not seen
  INLINE float score(float v, int i, int j) const {
    if (i >= s.rows || j >= s.keys || (s.causal && j > i)) return -INFINITY;
    v *= s.scale;
    if (!s.mask_kind) return v;
    const i64 at = n * s.mask_sample + h * s.mask_head + i * s.mask_row + j * s.mask_column;
    if (s.mask_kind == 1) return static_cast<const unsigned char *>(mask)[at] ? v : -INFINITY;
    return v + to_float(static_cast<const ELEMENT *>(mask)[at]);
  }
  // What weights of query i and the keys j and j + 1 are multiplied by
  INLINE void keep(float (&kept)[2], int i, int j) const {
    uniforms(kept, drawn.seed, drawn.stream, drawn.offset + (static_cast<u64>(number) * s.rows + i) * s.keys + j);
    UNROLL for (int c = 0; c < 2; c++) kept[c] = kept[c] >= s.p ? s.factor : 0.f;
  }
  INLINE float keep(int i, int j) const {
    float kept[1];
    uniforms(kept, drawn.seed, drawn.stream, drawn.offset + (static_cast<u64>(number) * s.rows + i) * s.keys + j);
    return kept[0] >= s.p ? s.factor : 0.f;
  }
};

// sum = rows [row, row + 16) of a tile times the columns of the other, over HEAD
INLINE void tile_scores(Scores &sum, const ELEMENT *rows, const ELEMENT *columns, int row, int lane) {
  UNROLL for (int j = 0; j < BLOCKS; j++)
    UNROLL for (int q = 0; q < 4; q++) sum[0][j][q] = 0.f;
  UNROLL_BY(WIDE ? 1 : 2) for (int k0 = 0; k0 < HEAD; k0 += 32) {
    Scores part = {};
    UNROLL for (int k = 0; k < 32; k += STEP) {
      Fragment<4> a[1];
      RowTile::rows(a[0], rows, row, k0 + k, lane);
      UNROLL for (int j = 0; j < BLOCKS; j += 2) {
        Fragment<2> b[2];
        ColumnTile::columns(b, columns, j * 8, k0 + k, lane);
        multiply(WIDE ? part : sum, a, b, j);
      }
    }
    if constexpr (WIDE) {
      UNROLL for (int j = 0; j < BLOCKS; j++)
        UNROLL for (int q = 0; q < 4; q++) sum[0][j][q] += part[0][j][q];
    }
  }
}

// Fragments of STEP columns of what a warp has of a tile: the left operand of a product over columns
template <class E = ELEMENT> INLINE void left_operand(Fragment<4> (&a)[1], const Scores &x, int step) {
  if constexpr (sizeof(E) == 4) {
    UNROLL for (int q = 0; q < 4; q++) a[0].set(q, x[0][step][q % 2 * 2 + q / 2]);
  } else {
    UNROLL for (int q = 0; q < 4; q++)
      a[0].set(q, pair_of_floats<E>(x[0][step * 2 + q / 2][q % 2 * 2], x[0][step * 2 + q / 2][q % 2 * 2 + 1]));
  }
}
// sum[rows of the warp][SPAN] += x times columns [first, first + SPAN) of a tile
INLINE void add_product(float (&sum)[1][SPANS][4], const Scores &x, const ELEMENT *tile, int first, int lane) {
  Fragment<4> a[TILE_COLUMNS / STEP][1];
  UNROLL for (int k = 0; k < TILE_COLUMNS / STEP; k++) left_operand(a[k], x, k);
  UNROLL for (int j = 0; j < SPANS; j += 2) {
    float part[1][2][4] = {};
    UNROLL for (int k = 0; k < TILE_COLUMNS / STEP; k++) {
      Fragment<2> b[2];
      if constexpr (WIDE) {
        UNROLL for (int q = 0; q < 4; q++) {
          const int line = k * 8 + lane % 4 * 2 + q % 2, column = first + j * 8 + q / 2 * 8 + lane / 4;
          b[q / 2].set(q % 2, to_float(tile[ColumnTile::place(line, column / ColumnTile::PER) + column % ColumnTile::PER]));
        }
      } else {
        unsigned word[4];
        const int line = k * 16 + (lane / 8 & 1) * 8 + lane % 8;
        ptx::ldmatrix_x4_trans(word, tile + ColumnTile::place(line, (first + j * 8) / ColumnTile::PER + lane / 16));
        UNROLL for (int q = 0; q < 4; q++) b[q / 2].set(q % 2, word[q]);
      }
      multiply(part, a[k], b);
    }
    UNROLL for (int c = 0; c < 2; c++)
      UNROLL for (int q = 0; q < 4; q++) sum[0][j + c][q] += part[0][c][q];
  }
}

// Goes through tiles [from, to) of columns: fetch(tile, buffer) starts copies, run(tile, buffer) follows once they landed.
template <class Fetch, class Run> INLINE void go_through(int from, int to, const Fetch &fetch, const Run &run) {
  if (from < to) fetch(from, 0);
  UNROLL_BY(1) for (int tile = from; tile < to; tile++) {
    const int buffer = STAGES == 2 ? (tile - from) & 1 : 0;
    if (STAGES == 2 && tile + 1 < to) {
      ptx::cp_async_commit();
      fetch(tile + 1, buffer ^ 1);
      ptx::cp_async_commit();
      ptx::cp_async_wait<1>();
    } else {
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    run(tile, buffer);
    __syncthreads();
    if (STAGES == 1 && tile + 1 < to) fetch(tile + 1, 0);
  }
}

// Writes what a warp has of rows from `row` on: columns [first, first + SPAN) of `width`, times factor[half of the rows].
INLINE void write_rows(const float (&sum)[1][SPANS][4], ELEMENT *to, i64 ld, bool aligned, int row, int rows, int first,
                       int width, const float (&factor)[2], int lane) {
  UNROLL for (int half = 0; half < 2; half++) {
    const int r = row + half * 8 + lane / 4;
    if (r >= rows) continue;
    UNROLL for (int j = 0; j < SPANS; j++) {
      const int column = first + j * 8 + lane % 4 * 2;
      ELEMENT *at = to + r * ld + column;
      const float v[2] = {sum[0][j][half * 2] * factor[half], sum[0][j][half * 2 + 1] * factor[half]};
      if (aligned && column < width) store_pair(at, v[0], v[1]);
      else if (column < width) {
        at[0] = from_float<ELEMENT>(v[0]);
        if (column + 1 < width) at[1] = from_float<ELEMENT>(v[1]);
      }
    }
  }
}
