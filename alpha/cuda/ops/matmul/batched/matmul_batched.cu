// Products of many small matrices on tensor cores, by mma.sync, of operands as they are stored.
//
// What:     y[n][i][j] = sum_k a[n][i][k] * b[n][k][j]
// Layout:   y (batch, M, N) of ELEMENT or float32; nn: a (.., M, K), b (.., K, N); with t in the first place a is (.., K, M), in the
//           second b is (.., N, K), not both; of ELEMENT, row-major. Entry n of the batch takes matrix matrices[n].x of a
//           and matrices[n].y of b, or without that table matrix n * a_step of a and n * b_step of b
// GEMM:     rows i, columns j, sum k in slabs of DEPTH; see tile_operand.cuh. float32: each slab is added in proper float32
// Modes:    those of fragments.cuh
// Not finite: an infinity has no hi and lo, and a float32 may round to an infinity: a sum of float32 elements that is not
//           finite is made again with multiply-adds
// Requires: sm_80, float16 sm_75
// Threads:  TILE_M / WARP_M x TILE_N / WARP_N warps, a block for each tile: grid (tiles, columns fastest)
// Measured: not yet on a GPU: `python -m benchmarks.attention --device cuda --sets products`
#include "tile_operand.cuh"

constexpr int DEPTH = 32;
constexpr int WARP_COLUMNS = TILE_N / WARP_N, THREADS = 32 * (TILE_M / WARP_M) * WARP_COLUMNS;
constexpr int BLOCKS_M = WARP_M / 16, BLOCKS_N = WARP_N / 8;

struct Products {
  const ELEMENT *a, *b;
  void *y;
  const int2 *matrices;
  int a_step, b_step, m, n, k, row_tiles, column_tiles;
  int aligned, wide;  // whether lines begin at multiples of 16 bytes; whether y is float32
};

template <bool A_KMAJOR, bool B_KMAJOR>
INLINE float exact(const Products &p, const ELEMENT *a, const ELEMENT *b, int i, int j) {
  float sum = 0.f;
  UNROLL_BY(1) for (int k = 0; k < p.k; k++)
    sum = fmaf(to_float(a[A_KMAJOR ? (i64)i * p.k + k : (i64)k * p.m + i]),
               to_float(b[B_KMAJOR ? (i64)j * p.k + k : (i64)k * p.n + j]), sum);
  return sum;
}

template <class Tile>
INLINE void copy_tile(bool aligned, ELEMENT *to, const ELEMENT *from, i64 ld, int lines_left, int elements_left) {
  if (aligned) Tile::template copy<THREADS, true>(to, from, ld, lines_left, elements_left);
  else Tile::template copy<THREADS, false>(to, from, ld, lines_left, elements_left);
}
// Two neighbours of a row, of which the second one exists if `two`.
template <class Out> INLINE void write(Out *to, const float (&v)[2], bool even, bool two) {
  if (even) return store_pair(to, v[0], v[1]);
  to[0] = from_float<Out>(v[0]);
  if (two) to[1] = from_float<Out>(v[1]);
}

template <bool A_KMAJOR, bool B_KMAJOR> INLINE void batched(const Products &p, ELEMENT *shared) {
  using A = TileOperand<A_KMAJOR, TILE_M, DEPTH>;
  using B = TileOperand<B_KMAJOR, TILE_N, DEPTH>;
  constexpr int STAGE = A::SIZE + B::SIZE;
  const int column0 = blockIdx.x % p.column_tiles * TILE_N, rest = blockIdx.x / p.column_tiles;
  const int row0 = rest % p.row_tiles * TILE_M, batch = rest / p.row_tiles;
  const int2 matrix = p.matrices ? p.matrices[batch] : make_int2(batch * p.a_step, batch * p.b_step);
  const ELEMENT *a = p.a + (i64)matrix.x * p.m * p.k, *b = p.b + (i64)matrix.y * p.n * p.k;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / WARP_COLUMNS * WARP_M, warp_column = warp % WARP_COLUMNS * WARP_N;
  const int rows = p.m - row0, columns = p.n - column0, slabs = (p.k + DEPTH - 1) / DEPTH;

  auto fetch = [&](int slab) {
    const int k0 = slab * DEPTH, left = p.k - k0;
    ELEMENT *to = shared + slab % STAGES * STAGE;
    if constexpr (A_KMAJOR) copy_tile<A>(p.aligned, to, a + (i64)row0 * p.k + k0, p.k, rows, left);
    else copy_tile<A>(p.aligned, to, a + (i64)k0 * p.m + row0, p.m, left, rows);
    if constexpr (B_KMAJOR) copy_tile<B>(p.aligned, to + A::SIZE, b + (i64)column0 * p.k + k0, p.k, columns, left);
    else copy_tile<B>(p.aligned, to + A::SIZE, b + (i64)k0 * p.n + column0, p.n, left, columns);
  };
  float sum[BLOCKS_M][BLOCKS_N][4] = {};
  auto multiply_slab = [&](float (&into)[BLOCKS_M][BLOCKS_N][4], const ELEMENT *left, const ELEMENT *right) {
    UNROLL for (int k = 0; k < DEPTH; k += STEP) {
      Fragment<4> f[BLOCKS_M];
      UNROLL for (int i = 0; i < BLOCKS_M; i++) A::rows(f[i], left, warp_row + i * 16, k, lane);
      UNROLL for (int j = 0; j < BLOCKS_N; j += 2) {
        Fragment<2> g[2];
        B::columns(g, right, warp_column + j * 8, k, lane);
        multiply(into, f, g, j);
      }
    }
  };
  UNROLL for (int s = 0; s < STAGES - 1; s++) {
    if (s < slabs) fetch(s);
    ptx::cp_async_commit();
  }
  UNROLL_BY(1) for (int s = 0; s < slabs; s++) {
    ptx::cp_async_wait<STAGES - 2>();
    __syncthreads();
    if (s + STAGES - 1 < slabs) fetch(s + STAGES - 1);
    ptx::cp_async_commit();
    const ELEMENT *left = shared + s % STAGES * STAGE;
    if constexpr (WIDE) {
      float part[BLOCKS_M][BLOCKS_N][4] = {};
      multiply_slab(part, left, left + A::SIZE);
      UNROLL for (int i = 0; i < BLOCKS_M; i++)
        UNROLL for (int j = 0; j < BLOCKS_N; j++)
          UNROLL for (int q = 0; q < 4; q++) sum[i][j][q] += part[i][j][q];
    } else {
      multiply_slab(sum, left, left + A::SIZE);
    }
  }
  const i64 before = (i64)batch * p.m * p.n;
  UNROLL for (int i = 0; i < BLOCKS_M; i++)
    UNROLL for (int j = 0; j < BLOCKS_N; j++)
      UNROLL for (int half = 0; half < 2; half++) {
        const int row = row0 + warp_row + i * 16 + half * 8 + lane / 4;
        const int column = column0 + warp_column + j * 8 + lane % 4 * 2;
        if (row >= p.m || column >= p.n) continue;
        float v[2] = {sum[i][j][half * 2], sum[i][j][half * 2 + 1]};
        if constexpr (WIDE) {
          UNROLL for (int q = 0; q < 2; q++)
            if (v[q] * 0.f != 0.f && column + q < p.n) v[q] = exact<A_KMAJOR, B_KMAJOR>(p, a, b, row, column + q);
        }
        const i64 at = before + (i64)row * p.n + column;
        if (p.wide) write(static_cast<float *>(p.y) + at, v, p.n % 2 == 0, column + 1 < p.n);
        else write(static_cast<ELEMENT *>(p.y) + at, v, p.n % 2 == 0, column + 1 < p.n);
      }
}

#define BATCHED(name, ...) \
  ALPHA_ENTRY(matmul_batched_##name, (THREADS, MIN_BLOCKS), \
              (const ELEMENT *a, const ELEMENT *b, void *y, const int2 *matrices, int a_step, int b_step, int m, int n, \
               int k, int row_tiles, int column_tiles, int aligned, int wide), \
              DYNAMIC_SHARED(ELEMENT, shared); \
              batched<__VA_ARGS__>({a, b, y, matrices, a_step, b_step, m, n, k, row_tiles, column_tiles, aligned, wide}, \
                                   shared))
BATCHED(nn, true, false)
BATCHED(nt, true, true)
BATCHED(tn, false, false)
