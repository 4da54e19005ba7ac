// Matrix products in FFMA, with bias and activation; on tensor cores a product is a convolution of 1x1 maps.
//
// What:     y[n][i][j] = activation(sum_k a[n][i][k] * b[n][k][j] + bias[j])
// Layout:   y (batch, M, N); a (.., M, K), or (.., K, M) where A_MAJOR_K is 0; b (.., N, K), or (.., K, N) where
//           B_MAJOR_K is 0; all row-major. Entry n of the batch takes matrix matrices[n].x of a and matrices[n].y of
//           b, or without that table matrix n * a_step of a and n * b_step of b
// GEMM:     rows i, columns j, sum k; operands as they lie, K-major or MN-major
// Requires: VECTOR = 4: K % 4 == 0 for a K-major operand, M % 4 == 0 (N % 4 == 0) for a transposed a (for a plain b)
// Threads:  one block per slice of a tile: grid (tiles, columns fastest; slices of each). See gemm_ffma.cuh, split.cuh
// Measured: not by itself
#include "gemm_ffma.cuh"
#include "split.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, A_MAJOR_K, B_MAJOR_K, VECTOR>;
using RowsA = Tile::RowsA;
using RowsB = Tile::RowsB;
using LinesA = Tile::LinesA;
using LinesB = Tile::LinesB;

// One operand of a tile: rows [first, first + ROWS) of a matrix with `rows` rows.
template <bool KMAJOR, class Rows, class Lines> struct Operand {
  const float **table;  // [ROWS] in shared memory, for K-major operands
  Rows copy_rows;
  Lines copy_lines;
  long long ld;

  INLINE Operand(const float **table_, int tile_rows, const float *matrix, int first, int rows, int k)
      : table(table_), copy_rows(threadIdx.x),
        copy_lines(threadIdx.x, matrix + Lines::line0(threadIdx.x) * (long long)rows + first, rows - first), ld(rows) {
    if constexpr (KMAJOR)
      for (int r = threadIdx.x; r < tile_rows; r += Tile::THREADS)
        table[r] = matrix + (long long)(first + row_to_copy(Rows::row_in_buffer(r), rows - first)) * k;
  }
  INLINE void copy(float *buffer, int k, int k_left) const {
    if constexpr (KMAJOR) copy_rows(buffer, table, k, k_left);
    else copy_lines(buffer, [&](int i) { return (k + i * Lines::STEP) * ld; }, k_left);
  }
};

struct Place {  // of a tile
  int row0, column0, batch;
};

struct Matrices {
  const float *a, *b, *bias;
  float *y;
  Workspace partial;
  const int2 *matrices;
  int a_step, b_step, m, n, k, row_tiles, column_tiles, relu;
};

template <bool SPLIT> INLINE void matmul_block(const Matrices &p, float *smem) {
  __shared__ const float *rows_a[Tile::A_KMAJOR ? Tile::BM : 1], *rows_b[Tile::B_KMAJOR ? Tile::BN : 1];
  __shared__ Place later;  // registers are for accumulators
  const int column0 = blockIdx.x % p.column_tiles * Tile::BN, rest = blockIdx.x / p.column_tiles, k = p.k;
  const int row0 = rest % p.row_tiles * Tile::BM, batch = rest / p.row_tiles;
  const Place place = {row0, column0, batch};
  if (SPLIT && threadIdx.x == 0) later = place;
  const int2 matrix = p.matrices ? p.matrices[batch] : make_int2(batch * p.a_step, batch * p.b_step);
  const Operand<Tile::A_KMAJOR, RowsA, LinesA> left(rows_a, Tile::BM, p.a + (long long)matrix.x * p.m * k, row0, p.m, k);
  const Operand<Tile::B_KMAJOR, RowsB, LinesB> right(rows_b, Tile::BN, p.b + (long long)matrix.y * p.n * k, column0,
                                                     p.n, k);
  __syncthreads();
  Ffma<Tile> product(threadIdx.x);
  const Slice slice = {int(blockIdx.x * gridDim.y), int(blockIdx.y), int(gridDim.y)};
  SlabRange slabs = {0, (k + Tile::BK - 1) / Tile::BK};
  if constexpr (SPLIT) slabs = slabs_of(slice, slabs.count);
  int k0 = slabs.begin * Tile::BK;
  gemm_pipeline<Tile>(smem, slabs.count, [&](float *a_buffer, float *b_buffer) {
    left.copy(a_buffer, k0, k - k0);
    right.copy(b_buffer, k0, k - k0);
    k0 += Tile::BK;
  }, product);
  if constexpr (SPLIT)
    if (!add_slices<Tile::THREADS>(product.acc, slice, p.partial)) return;
  const Place &tile = SPLIT ? later : place;
  float *out = p.y + ((long long)tile.batch * p.m + tile.row0) * p.n + tile.column0;
  const int rows = p.m - tile.row0;
  gemm_store<Tile>(product, [&](int r) { return r < rows ? out + (long long)r * p.n : nullptr; },
                   p.bias ? p.bias + tile.column0 : nullptr, p.n - tile.column0, p.n % 4 == 0, p.relu);
}

#define MATMUL(name, SPLIT) \
  ALPHA_ENTRY(name, (Tile::THREADS, MIN_BLOCKS), \
              (const float *a, const float *b, const float *bias, float *y, Workspace partial, const int2 *matrices, \
               int a_step, int b_step, int m, int n, int k, int row_tiles, int column_tiles, int relu), \
              DYNAMIC_SHARED(float, smem); \
              matmul_block<SPLIT>({a, b, bias, y, partial, matrices, a_step, b_step, m, n, k, row_tiles, \
                                   column_tiles, relu}, smem))
MATMUL(matmul, false)
MATMUL(matmul_split, true)
