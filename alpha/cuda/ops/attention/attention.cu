// Attention of heads: scores, softmax and the product with values in one pass, and the gradients in two.
//
// What:     y = drop(P) v,  P = softmax(S),  lse = log(sum_j e^S[i][j]);  delta[i] = sum_c g[i][c] y[i][c],
//           dP = drop(g v^T),  dS = P * (dP - delta),  dq = scale * dS k,  dk = scale * dS^T q,  dv = drop(P)^T g
// Source:   Dao et al., arXiv 2205.14135 and 2307.08691; gradients of queries and of keys in two kernels, without atomics
// Layout:   rows of heads are contiguous, anything else is said by AttentionShape; lse and delta (N, H, L), float32
// Zeros:    see attention.cuh
// Masks:    a query that sees no key has y = 0, lse = infinity and no gradient
// Requires: sm_75; width and value_width at most HEAD: 32, 64, 128 or 256
// Threads:  TILE_ROWS / 16 warps, 16 rows each, queries (forward, dq) or keys (dkv); grid (heads x tiles of rows, HEAD / SPAN): a
//           block has SPAN columns of the result. dq comes before dkv, which reads its delta
// Measured: not yet on a GPU: `python -m benchmarks.attention --device cuda`
#include "attention.cuh"

constexpr int PAIR = 2 * ColumnTile::SIZE;  // elements of two tiles of columns

// Starts to copy rows [row, ..) of a head of a tensor with `rows` rows.
template <class Tile>
INLINE void fetch_tile(ELEMENT *to, const Head &head, const ELEMENT *tensor, const Place &p, int row, int rows, int width) {
  const int there = min(row, rows - 1);
  const ELEMENT *from = head.at(tensor, p, there);
  if (head.s.aligned) Tile::template copy<THREADS, true>(to, from, p.row, rows - row, width);
  else Tile::template copy<THREADS, false>(to, from, p.row, rows - row, width);
}

#if !GRADIENTS  // which have tiles of their own
ALPHA_GLOBAL(attention_forward, (THREADS, MIN_BLOCKS),
             (const ELEMENT *q, const ELEMENT *k, const ELEMENT *v, const void *mask, ELEMENT *y, float *lse,
              AttentionShape s, Drawn drawn)) {
  ptx::follow();
  DYNAMIC_SHARED(ELEMENT, shared);
  const Head head(s, mask, drawn);
  const int lane = threadIdx.x % 32, row0 = blockIdx.x % s.tiles * TILE_ROWS, warp_row = threadIdx.x / 32 * 16;
  const int first = blockIdx.y * SPAN, row = row0 + warp_row + lane / 4, end = s.causal ? min(s.keys, row0 + TILE_ROWS) : s.keys;
  ELEMENT *columns = shared + RowTile::SIZE;
  fetch_tile<RowTile>(shared, head, q, s.q, row0, s.rows, s.width);
  float sum[1][SPANS][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  go_through(0, (end + TILE_COLUMNS - 1) / TILE_COLUMNS, [&](int tile, int buffer) {
    fetch_tile<ColumnTile>(columns + buffer * PAIR, head, k, s.k, tile * TILE_COLUMNS, s.keys, s.width);
    fetch_tile<ColumnTile>(columns + buffer * PAIR + ColumnTile::SIZE, head, v, s.v, tile * TILE_COLUMNS, s.keys, s.value_width);
  }, [&](int tile, int buffer) {
    Scores x;
    tile_scores(x, shared, columns + buffer * PAIR, warp_row, lane);
    const int column = tile * TILE_COLUMNS + lane % 4 * 2;
    UNROLL for (int half = 0; half < 2; half++) {
      const int i = row + half * 8;
      float largest = most[half];
      UNROLL for (int j = 0; j < BLOCKS; j++)
        UNROLL for (int c = 0; c < 2; c++) {
          float &one = x[0][j][half * 2 + c];
          one = head.score(one, i, column + j * 8 + c);
          largest = one > largest ? one : largest;
        }
      UNROLL for (int far = 1; far < 4; far *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, far));
      const float base = largest == -INFINITY ? 0.f : largest, less = exp_for<ELEMENT>(most[half] - base);
      most[half] = largest;
      total[half] *= less;
      UNROLL for (int j = 0; j < SPANS; j++)
        UNROLL for (int c = 0; c < 2; c++) sum[0][j][half * 2 + c] *= less;
      UNROLL for (int j = 0; j < BLOCKS; j++) {
        float kept[2] = {1.f, 1.f};
        if (s.p > 0.f) head.keep(kept, i, column + j * 8);
        UNROLL for (int c = 0; c < 2; c++) {
          float &one = x[0][j][half * 2 + c];
          one = exp_for<ELEMENT>(one - base);
          total[half] += one;
          one *= kept[c];
        }
      }
    }
    add_product(sum, x, columns + buffer * PAIR + ColumnTile::SIZE, first, lane);
  });
  float factor[2];
  UNROLL for (int half = 0; half < 2; half++) {
    UNROLL for (int far = 1; far < 4; far *= 2) total[half] += __shfl_xor_sync(0xffffffffu, total[half], far);
    const bool none = most[half] == -INFINITY && total[half] == 0.f;
    factor[half] = none ? 0.f : 1.f / total[half];
    const int i = row + half * 8;
    if (blockIdx.y == 0 && lane % 4 == 0 && i < s.rows)
      lse[(i64)head.number * s.rows + i] = none ? INFINITY : most[half] + logf(total[half]);
  }
  write_rows(sum, head.at(y, s.y, 0), s.y.row, s.aligned, row0 + warp_row, s.rows, first, s.value_width, factor, lane);
}
#else
ALPHA_GLOBAL(attention_dq, (THREADS, MIN_BLOCKS),
             (const ELEMENT *g, const ELEMENT *q, const ELEMENT *k, const ELEMENT *v, const void *mask, const ELEMENT *y,
              const float *lse, float *delta, ELEMENT *dq, AttentionShape s, Drawn drawn)) {
  ptx::follow();
  DYNAMIC_SHARED(ELEMENT, shared);
  const Head head(s, mask, drawn);
  const int lane = threadIdx.x % 32, row0 = blockIdx.x % s.tiles * TILE_ROWS, warp_row = threadIdx.x / 32 * 16;
  const int first = blockIdx.y * SPAN, row = row0 + warp_row + lane / 4, end = s.causal ? min(s.keys, row0 + TILE_ROWS) : s.keys;
  ELEMENT *columns = shared + 2 * RowTile::SIZE;
  fetch_tile<RowTile>(shared, head, q, s.q, row0, s.rows, s.width);
  fetch_tile<RowTile>(shared + RowTile::SIZE, head, g, s.y, row0, s.rows, s.value_width);
  float base[2], inner[2];
  UNROLL for (int half = 0; half < 2; half++) {
    const int i = min(row + half * 8, s.rows - 1);
    const ELEMENT *gs = head.at(g, s.y, i), *ys = head.at(y, s.y, i);
    float part = 0.f;
    UNROLL_BY(1) for (int c = lane % 4; c < s.value_width; c += 4) part = fmaf(to_float(gs[c]), to_float(ys[c]), part);
    UNROLL for (int far = 1; far < 4; far *= 2) part += __shfl_xor_sync(0xffffffffu, part, far);
    const i64 at = (i64)head.number * s.rows + i;
    base[half] = lse[at], inner[half] = part;
    if (blockIdx.y == 0 && lane % 4 == 0 && row + half * 8 < s.rows) delta[at] = part;
  }
  float sum[1][SPANS][4] = {};
  go_through(0, (end + TILE_COLUMNS - 1) / TILE_COLUMNS, [&](int tile, int buffer) {
    fetch_tile<ColumnTile>(columns + buffer * PAIR, head, k, s.k, tile * TILE_COLUMNS, s.keys, s.width);
    fetch_tile<ColumnTile>(columns + buffer * PAIR + ColumnTile::SIZE, head, v, s.v, tile * TILE_COLUMNS, s.keys, s.value_width);
  }, [&](int tile, int buffer) {
    Scores x, d;
    tile_scores(x, shared, columns + buffer * PAIR, warp_row, lane);
    tile_scores(d, shared + RowTile::SIZE, columns + buffer * PAIR + ColumnTile::SIZE, warp_row, lane);
    const int column = tile * TILE_COLUMNS + lane % 4 * 2;
    UNROLL for (int j = 0; j < BLOCKS; j++)
      UNROLL for (int half = 0; half < 2; half++) {
        const int i = row + half * 8;
        float kept[2] = {1.f, 1.f};
        if (s.p > 0.f) head.keep(kept, i, column + j * 8);
        UNROLL for (int c = 0; c < 2; c++) {
          const int e = half * 2 + c;
          const float p = exp_for<ELEMENT>(head.score(x[0][j][e], i, column + j * 8 + c) - base[half]);
          x[0][j][e] = p * (d[0][j][e] * kept[c] - inner[half]);
        }
      }
    add_product(sum, x, columns + buffer * PAIR, first, lane);
  });
  const float factor[2] = {s.scale, s.scale};
  write_rows(sum, head.at(dq, s.q, 0), s.q.row, s.aligned, row0 + warp_row, s.rows, first, s.width, factor, lane);
}

ALPHA_GLOBAL(attention_dkv, (THREADS, MIN_BLOCKS),
             (const ELEMENT *g, const ELEMENT *q, const ELEMENT *k, const ELEMENT *v, const void *mask, const float *lse,
              const float *delta, ELEMENT *dk, ELEMENT *dv, AttentionShape s, Drawn drawn)) {
  ptx::follow();
  DYNAMIC_SHARED(ELEMENT, shared);
  const Head head(s, mask, drawn);
  const int lane = threadIdx.x % 32, row0 = blockIdx.x % s.tiles * TILE_ROWS, warp_row = threadIdx.x / 32 * 16;
  const int first = blockIdx.y * SPAN, row = row0 + warp_row + lane / 4, begin = s.causal ? row0 / TILE_COLUMNS : 0;
  ELEMENT *columns = shared + 2 * RowTile::SIZE;
  fetch_tile<RowTile>(shared, head, k, s.k, row0, s.keys, s.width);
  fetch_tile<RowTile>(shared + RowTile::SIZE, head, v, s.v, row0, s.keys, s.value_width);
  float of_k[1][SPANS][4] = {}, of_v[1][SPANS][4] = {};
  go_through(begin, (s.rows + TILE_COLUMNS - 1) / TILE_COLUMNS, [&](int tile, int buffer) {
    fetch_tile<ColumnTile>(columns + buffer * PAIR, head, q, s.q, tile * TILE_COLUMNS, s.rows, s.width);
    fetch_tile<ColumnTile>(columns + buffer * PAIR + ColumnTile::SIZE, head, g, s.y, tile * TILE_COLUMNS, s.rows, s.value_width);
  }, [&](int tile, int buffer) {
    Scores x, d;
    tile_scores(x, shared, columns + buffer * PAIR, warp_row, lane);
    tile_scores(d, shared + RowTile::SIZE, columns + buffer * PAIR + ColumnTile::SIZE, warp_row, lane);
    UNROLL for (int j = 0; j < BLOCKS; j++)
      UNROLL for (int c = 0; c < 2; c++) {
        const int i = tile * TILE_COLUMNS + j * 8 + lane % 4 * 2 + c;
        const i64 at = (i64)head.number * s.rows + min(i, s.rows - 1);
        const float base = lse[at], inner = delta[at];
        UNROLL for (int half = 0; half < 2; half++) {
          const int e = half * 2 + c, key = row + half * 8;
          const float p = exp_for<ELEMENT>(head.score(x[0][j][e], i, key) - base);
          const float kept = s.p > 0.f ? head.keep(i, key) : 1.f;
          d[0][j][e] = p * (d[0][j][e] * kept - inner);
          x[0][j][e] = p * kept;
        }
      }
    add_product(of_v, x, columns + buffer * PAIR + ColumnTile::SIZE, first, lane);
    add_product(of_k, d, columns + buffer * PAIR, first, lane);
  });
  const float scale[2] = {s.scale, s.scale}, one[2] = {1.f, 1.f};
  write_rows(of_k, head.at(dk, s.k, 0), s.k.row, s.aligned, row0 + warp_row, s.keys, first, s.width, scale, lane);
  write_rows(of_v, head.at(dv, s.v, 0), s.v.row, s.aligned, row0 + warp_row, s.keys, first, s.value_width, one, lane);
}
#endif
