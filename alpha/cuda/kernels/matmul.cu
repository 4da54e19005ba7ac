// Matrix products: y[n][i][j] = activation(sum_k a[n][i][k] * b[n][k][j] + bias[j]).
//
// layout    y (batch, M, N); a (.., M, K), or (.., K, M) where A_MAJOR_K is 0; b (.., N, K), or (.., K, N) where
//           B_MAJOR_K is 0; all row-major. Entry n of the batch takes matrix matrices[n].x of a and matrices[n].y of
//           b, or without that table matrix n * a_step of a and n * b_step of b.
// requires  VECTOR = 4: K % 4 == 0 for a K-major operand, M % 4 == 0 (N % 4 == 0) for a transposed a (for a plain b)
// threads   one block per tile, columns fastest; see gemm_ffma.cuh
#include "gemm_ffma.cuh"

using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, A_MAJOR_K, B_MAJOR_K, VECTOR>;
using RowsA = KMajorCopy<Tile, Tile::BM, Tile::LANE_ROWS>;
using RowsB = KMajorCopy<Tile, Tile::BN, Tile::LANE_COLS>;
using LinesA = MnMajorCopy<Tile, Tile::BM>;
using LinesB = MnMajorCopy<Tile, Tile::BN>;

// One operand of a tile: rows [first, first + ROWS) of a matrix with `rows` rows.
template <bool KMAJOR, class Rows, class Lines> struct Operand {
  const float **table;  // [ROWS] in shared memory, for K-major operands
  Rows copy_rows;
  Lines copy_lines;
  long long ld;

  __device__ __forceinline__ Operand(const float **table_, int tile_rows, const float *matrix, int first, int rows,
                                     int k)
      : table(table_), copy_rows(threadIdx.x),
        copy_lines(threadIdx.x, matrix + Lines::line0(threadIdx.x) * (long long)rows + first, rows - first), ld(rows) {
    if constexpr (KMAJOR)
      for (int r = threadIdx.x; r < tile_rows; r += Tile::THREADS)
        table[r] = matrix + (long long)min(first + Rows::row_in_buffer(r), rows - 1) * k;
  }
  __device__ __forceinline__ void copy(float *buffer, int k, int k_left) const {
    if constexpr (KMAJOR) copy_rows(buffer, table, k, k_left);
    else copy_lines(buffer, [&](int i) { return (k + i * Lines::STEP) * ld; }, k_left);
  }
};

extern "C" __global__ void __launch_bounds__(Tile::THREADS, MIN_BLOCKS)
matmul(const float *a, const float *b, const float *bias, float *y, const int2 *matrices, int a_step, int b_step, int m,
       int n, int k, int row_tiles, int column_tiles, int relu) {
  DYNAMIC_SHARED(float, smem);
  __shared__ const float *rows_a[Tile::A_KMAJOR ? Tile::BM : 1], *rows_b[Tile::B_KMAJOR ? Tile::BN : 1];
  const int column0 = blockIdx.x % column_tiles * Tile::BN, rest = blockIdx.x / column_tiles;
  const int row0 = rest % row_tiles * Tile::BM, batch = rest / row_tiles;
  const int2 matrix = matrices ? matrices[batch] : make_int2(batch * a_step, batch * b_step);
  const Operand<Tile::A_KMAJOR, RowsA, LinesA> left(rows_a, Tile::BM, a + (long long)matrix.x * m * k, row0, m, k);
  const Operand<Tile::B_KMAJOR, RowsB, LinesB> right(rows_b, Tile::BN, b + (long long)matrix.y * n * k, column0, n, k);
  __syncthreads();
  Ffma<Tile> product(threadIdx.x);
  int k0 = 0;
  gemm_pipeline<Tile>(smem, (k + Tile::BK - 1) / Tile::BK, [&](float *a_buffer, float *b_buffer) {
    left.copy(a_buffer, k0, k - k0);
    right.copy(b_buffer, k0, k - k0);
    k0 += Tile::BK;
  }, product);
  float *out = y + ((long long)batch * m + row0) * n + column0;
  gemm_store<Tile>(product, [&](int r) { return row0 + r < m ? out + (long long)r * n : nullptr; },
                   bias ? bias + column0 : nullptr, n - column0, n % 4 == 0, relu);
}
ALPHA_KERNEL(matmul)
