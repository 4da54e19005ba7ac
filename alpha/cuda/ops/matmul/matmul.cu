// Matrix products in FFMA, with bias and activation; on tensor cores a product is a convolution of 1x1 maps.
//
// What:     y[n][i][j] = activation(sum_k a[n][i][k] * b[n][k][j] + bias[j]);  *_split: sums may be cut into slices
// Layout:   y (batch, M, N); nn: a (.., M, K), b (.., K, N); with t in the first place a is (.., K, M), in the second b is
//           (.., N, K), not both; all row-major. Entry n of the batch takes matrix matrices[n].x of a and matrices[n].y
//           of b, or without that table matrix n * a_step of a and n * b_step of b
// GEMM:     rows i, columns j, sum k; operands as they lie, K-major or MN-major
// Requires: VECTOR = 4: K % 4 == 0 for a K-major operand, M % 4 == 0 (N % 4 == 0) for a transposed a (for a plain b)
// Threads:  one block per slice of a tile: grid (tiles, columns fastest; slices of each). See gemm_ffma.cuh, split.cuh
// Measured: not by itself
#include "gemm_ffma.cuh"
#include "split.cuh"

template <bool A_KMAJOR, bool B_KMAJOR>
using Tile = GemmTile<TILE_M, TILE_N, TILE_K, THREAD_M, THREAD_N, PIPELINE, A_KMAJOR, B_KMAJOR, VECTOR>;

// One operand of a tile of THREADS threads: rows [first, first + ROWS) of a matrix with `rows` rows.
template <bool KMAJOR, int THREADS, class Rows, class Lines> struct Operand {
  const float **table;  // [ROWS] in shared memory, for K-major operands
  Rows copy_rows;
  Lines copy_lines;
  long long ld;

  INLINE Operand(const float **table_, int tile_rows, const float *matrix, int first, int rows, int k)
      : table(table_), copy_rows(threadIdx.x),
        copy_lines(threadIdx.x, matrix + Lines::line0(threadIdx.x) * (long long)rows + first, rows - first), ld(rows) {
    if constexpr (KMAJOR)
      for (int r = threadIdx.x; r < tile_rows; r += THREADS)
        table[r] = matrix + (long long)(first + row_to_copy(Rows::row_in_buffer(r), rows - first)) * k;
  }
  INLINE void copy(float *buffer, int k, int k_left) {
    if constexpr (KMAJOR) copy_rows(buffer, table, k, k_left);
    else copy_lines(buffer, [&](int i) { return (k + i * Lines::STEP) * ld; }, k_left);
  }
  INLINE void land(float *buffer) const {
    if constexpr (KMAJOR) copy_rows.land(buffer);
    else copy_lines.land(buffer);
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

template <class T, bool SPLIT> INLINE void matmul_block(const Matrices &p, float *smem) {
  __shared__ const float *rows_a[T::A_KMAJOR ? T::BM : 1], *rows_b[T::B_KMAJOR ? T::BN : 1];
  __shared__ Place later;  // registers are for accumulators
  const int column0 = blockIdx.x % p.column_tiles * T::BN, rest = blockIdx.x / p.column_tiles, k = p.k;
  const int row0 = rest % p.row_tiles * T::BM, batch = rest / p.row_tiles;
  const Place place = {row0, column0, batch};
  if (SPLIT && threadIdx.x == 0) later = place;
  const int2 matrix = p.matrices ? p.matrices[batch] : make_int2(batch * p.a_step, batch * p.b_step);
  Operand<T::A_KMAJOR, T::THREADS, typename T::RowsA, typename T::LinesA> left(
      rows_a, T::BM, p.a + (long long)matrix.x * p.m * k, row0, p.m, k);
  Operand<T::B_KMAJOR, T::THREADS, typename T::RowsB, typename T::LinesB> right(
      rows_b, T::BN, p.b + (long long)matrix.y * p.n * k, column0, p.n, k);
  __syncthreads();
  Ffma<T> product(threadIdx.x);
  const Slice slice = {int(blockIdx.x * gridDim.y), int(blockIdx.y), int(gridDim.y)};
  SlabRange slabs = {0, (k + T::BK - 1) / T::BK};
  if constexpr (SPLIT) slabs = slabs_of(slice, slabs.count);
  int k0 = slabs.begin * T::BK;
  gemm_pipeline<T>(smem, slabs.count, [&](float *a_buffer, float *b_buffer) {
    left.copy(a_buffer, k0, k - k0);
    right.copy(b_buffer, k0, k - k0);
    k0 += T::BK;
  }, [&](float *a_buffer, float *b_buffer) { left.land(a_buffer), right.land(b_buffer); }, product);
  if constexpr (SPLIT)
    if (!add_slices<T::THREADS>(product.acc, slice, p.partial)) return;
  const Place &tile = SPLIT ? later : place;
  float *out = p.y + ((long long)tile.batch * p.m + tile.row0) * p.n + tile.column0;
  const int rows = p.m - tile.row0;
  gemm_store<T>(product, [&](int r) { return r < rows ? out + (long long)r * p.n : nullptr; },
                p.bias ? p.bias + tile.column0 : nullptr, p.n - tile.column0, p.n % 4 == 0, p.relu);
}

#define MATMUL(name, SPLIT, ...) \
  ALPHA_ENTRY(name, (Tile<__VA_ARGS__>::THREADS, blocks_here(MIN_BLOCKS)), \
              (const float *a, const float *b, const float *bias, float *y, Workspace partial, const int2 *matrices, \
               int a_step, int b_step, int m, int n, int k, int row_tiles, int column_tiles, int relu), \
              DYNAMIC_SHARED(float, smem); \
              matmul_block<Tile<__VA_ARGS__>, SPLIT>({a, b, bias, y, partial, matrices, a_step, b_step, m, n, k, \
                                                      row_tiles, column_tiles, relu}, smem))
#define MATMULS(name, ...) MATMUL(matmul_##name, false, __VA_ARGS__) MATMUL(matmul_##name##_split, true, __VA_ARGS__)
MATMULS(nn, true, false)
MATMULS(nt, true, true)
MATMULS(tn, false, false)
