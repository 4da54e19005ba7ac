// Products of one to X_ROWS rows, each weight read once: what it takes to read the weights is what they take.
//
// What:     y[r][o] = activation(scale * sum_k x[r][k] * w[o][k] + bias[o]); without zeros the sum is over those k for
//           which a row of x has something else than 0
// Layout:   x (rows, K), y (rows, N), w (N, K), without zeros its transpose (K, N): row-major ELEMENTs; bias float32
// Requires: K a multiple of the elements of 16 bytes, without zeros N
// Threads:  256. linear_rows: so many warps to an output, 32 * V neighbours of k at a time. linear_without_zeros: grid
//           (tiles of 32 * V outputs, slices of k); 256 of k at a time the block lists those that are not 0, and each
//           warp takes every eighth; slices are added up as split.cuh says
// Measured: H200, us, one row, graphs of 20 calls, all weights / 75 % zeros, PyTorch (benchmarks/cuda_sparsity.py):
//           4096 to 4096 float32 19.1 / 6.8, 22.1; bfloat16 6.4 / 6.9, 9.9; 25088 to 4096 96.5 / 39.3, 96.8 and
//           52.4 / 22.0, 52.3
#include "lanes.cuh"
#include "split.cuh"

using T = ELEMENT;
constexpr int THREADS = 256, WARPS = THREADS / 32, V = LANES<T>;

struct Rows {
  const T *x, *w;
  const float *bias, *scale;
  T *y;
  int rows, n, k, relu;

  INLINE void put(int r, int o, float sum) const {
    const float v = fmaf(sum, scale ? *scale : 1.f, bias ? bias[o] : -0.f);
    y[(i64)r * n + o] = from_float<T>(relu && v < 0.f ? 0.f : v);
  }
};

INLINE void dense(const Rows &p, int warps) {
  __shared__ float parts[WARPS][X_ROWS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, o = (blockIdx.x * WARPS + warp) / warps;
  float sum[X_ROWS] = {};
  if (o < p.n) {
    const T *row = p.w + (i64)o * p.k;
    UNROLL_BY(4) for (int at = (warp % warps * 32 + lane) * V; at < p.k; at += warps * 32 * V) {
      const Lanes<V, T> weights = load<V>(row + at);
      UNROLL for (int r = 0; r < X_ROWS; r++) {
        const Lanes<V, T> values = load<V>(p.x + (i64)(X_ROWS > 1 ? min(r, p.rows - 1) : 0) * p.k + at);
        UNROLL for (int v = 0; v < V; v++) sum[r] = fmaf(value(values, v), value(weights, v), sum[r]);
      }
    }
  }
  UNROLL for (int r = 0; r < X_ROWS; r++) {
    UNROLL for (int step = 16; step; step /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], step);
    if (lane == 0) parts[warp][r] = sum[r];
  }
  __syncthreads();
  if (o >= p.n || warp % warps || lane >= p.rows) return;
  float all = parts[warp][lane];
  for (int k = 1; k < warps; k++) all += parts[warp + k][lane];
  p.put(lane, o, all);
}

INLINE void without_zeros(const Rows &p, const Workspace &partial, int each) {
  __shared__ float values[THREADS][X_ROWS], sums[WARPS][X_ROWS][32 * V];
  __shared__ int lines[THREADS], counts[WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = (blockIdx.x * 32 + lane) * V;
  const int end = min(p.k, (int(blockIdx.y) + 1) * each);
  float acc[X_ROWS][V] = {};
  UNROLL_BY(1) for (int first = blockIdx.y * each; first < end; first += THREADS) {
    const int k = first + threadIdx.x;
    float mine[X_ROWS] = {};
    bool any = false;
    UNROLL for (int r = 0; r < X_ROWS; r++) {
      if (k < end && r < p.rows) mine[r] = to_float(p.x[(i64)r * p.k + k]);
      any |= mine[r] != 0.f;
    }
    const unsigned votes = __ballot_sync(~0u, any);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int at = __popc(votes & ((1u << lane) - 1)), count = 0;
    UNROLL for (int k = 0; k < WARPS; k++) at += k < warp ? counts[k] : 0, count += counts[k];
    if (any) {
      lines[at] = k;
      UNROLL for (int r = 0; r < X_ROWS; r++) values[at][r] = mine[r];
    }
    __syncthreads();
    if (column < p.n) {
      UNROLL_BY(4) for (int j = warp; j < count; j += WARPS) {
        const Lanes<V, T> weights = load<V>(p.w + (i64)lines[j] * p.n + column);
        UNROLL for (int r = 0; r < X_ROWS; r++) {
          UNROLL for (int v = 0; v < V; v++) acc[r][v] = fmaf(values[j][r], value(weights, v), acc[r][v]);
        }
      }
    }
    __syncthreads();
  }
  const Slice slice = {int(blockIdx.x * gridDim.y), int(blockIdx.y), int(gridDim.y)};
  if (gridDim.y > 1 && !add_slices<THREADS>(acc, slice, partial)) return;
  UNROLL for (int r = 0; r < X_ROWS; r++) {
    UNROLL for (int v = 0; v < V; v++) sums[warp][r][lane * V + v] = acc[r][v];
  }
  __syncthreads();
  for (int at = threadIdx.x; at < p.rows * 32 * V; at += THREADS) {
    const int r = at / (32 * V), o = blockIdx.x * 32 * V + at % (32 * V);
    float all = 0.f;
    for (int k = 0; k < WARPS; k++) all += sums[k][r][at % (32 * V)];
    if (o < p.n) p.put(r, o, all);
  }
}

ALPHA_ENTRY(linear_rows, (THREADS), (const Rows p, int warps), dense(p, warps))
ALPHA_ENTRY(linear_without_zeros, (THREADS), (const Rows p, Workspace partial, int each),
            without_zeros(p, partial, each))
