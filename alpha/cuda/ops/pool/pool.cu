// What:     max and average pooling with their gradients, and reading and adding by index.
//           max      y = max over the window; index = ih * IW + iw of the first maximum; a NaN is the maximum
//           average  y = sum over the window / (its pixels inside of x, or all of them where padding is counted)
// Layout:   NHWC; index int32, in gather and scatter int64.
// Zeros:    a window is trimmed to the map, so padding is never read. The gradients gather: an input pixel sums over
//           the windows that hold it, in ascending order; nothing is scattered and nothing is cleared first.
// Accuracy: means keep what rounding leaves out of a sum. So do gradients in the `single` kernels, which therefore serve
//           all pixels that more than 16 windows hold; packets are added in one short chain.
// Requires: an image below 2^31 elements; for the packet kernels C a multiple of 16 bytes.
// Threads:  one per packet of channels (16 bytes; 1 element in the `single` kernels) of a pixel of the result, or of
//           TILE x TILE pixels in the gradients, which read a window once for all of them; channels fastest, of every
//           `apart`-th image: a thread finds its place and its windows once for all of these. BATCH pixels of a window
//           are loaded before the first is used.
// Measured: benchmarks/results/h100/bandwidth.jsonl
#include "pool_backward.cuh"

// The same for windows of 3 x 3 at stride 1, a strip of a column of dx at a time: a row of windows has shares for three
// rows of dx, whose sums wait in registers.
template <int V, class T>
INLINE void max_pool_backward_rows(const Pool &p, int k, const T *g, T *dx, const unsigned char *index) {
  const Site s = site_of<V>(p, k);
  const Range rows = strip_of(s, p.h.in, p.h);
  const int first = s.column + p.w.padding - 2, begin = rows.first + p.h.padding - 2, end = rows.last + p.h.padding;
  for (int image = s.image; image < p.images && rows.size(); image += p.apart) {
    const i64 from = p.output_image(image) + s.c;
    Lanes<V, T> shares[3];
    Lanes<V, unsigned char> places[3];
    const auto load_row = [&](int oh) {
      UNROLL for (int j = 0; j < 3; j++) {
        UNROLL for (int l = 0; l < V; l++) places[j].v[l] = 255;  // no place of a window
        if (oh < 0 || oh >= p.h.out.n || oh >= end || first + j < 0 || first + j >= p.w.out.n) continue;
        const i64 at = from + p.output_at(oh, first + j);
        shares[j] = load<V>(g + at);
        places[j] = load<V>(index + at);
      }
    };
    float sums[3][V] = {};  // of rows oh - padding, and the two below
    load_row(begin);
    UNROLL_BY(1) for (int oh = begin; oh < end; oh++) {
      Lanes<V, T> share[3] = {shares[0], shares[1], shares[2]};
      Lanes<V, unsigned char> place[3] = {places[0], places[1], places[2]};
      load_row(oh + 1);
      UNROLL for (int j = 0; j < 3; j++)
        UNROLL for (int l = 0; l < V; l++) {
          const float v = value(share[j], l);
          UNROLL for (int kh = 0; kh < 3; kh++)
            if (place[j].v[l] == 3 * kh + 2 - j) sums[kh][l] += v;
        }
      if (oh - p.h.padding >= rows.first)
        store_floats(dx + p.input_image(image) + p.input_at(oh - p.h.padding, s.column) + s.c, sums[0]);
      UNROLL for (int l = 0; l < V; l++) {
        sums[0][l] = sums[1][l];
        sums[1][l] = sums[2][l];
        sums[2][l] = 0;
      }
    }
  }
}

// index = ih * IW + iw of places within windows
INLINE void write_index(const Pool &p, int k, const unsigned char *place, int *index) {
  const Site s = site_of<1>(p, k);
  const int top = s.row * p.h.stride.n - p.h.padding, left = s.column * p.w.stride.n - p.w.padding;
  for (int image = s.image; image < p.images; image += p.apart) {
    const i64 at = p.output_image(image) + p.output_at(s.row, s.column) + s.c;
    index[at] = (top + place[at] / p.w.kernel) * p.w.in.n + left + place[at] % p.w.kernel;
  }
}

// dx = sum over the windows that hold this pixel of g / divisor; one division at the end where all divisors are equal.
template <int V, class T> INLINE void avg_pool_backward(const Pool &p, int k, const T *g, T *dx) {
  pool_backward<V>(p, k, Output<V, T>{dx}, [&](Sum<V> (&sum)[TILE * TILE][V], const Tile &tile, i64 at, int row, int column) {
    const Lanes<V, T> lanes = load<V>(g + at);
    float share[V];
    UNROLL for (int l = 0; l < V; l++) share[l] = value(lanes, l);
    if (!p.divisor) p.own_divisor(row, column).divide(share);
    UNROLL for (int t = 0; t < TILE * TILE; t++)
      if (tile.rows[t / TILE].holds(row) && tile.columns[t % TILE].holds(column))
        UNROLL for (int l = 0; l < V; l++) sum[t][l].add(share[l]);
  }, [&](float (&total)[V]) {
    if (p.divisor) p.one_divisor().divide(total);
  });
}

// y[n, oh, ow, c] = x[n, index[n, oh, ow, c], c]; NaN where the index is outside of the map
template <int V, class T>
INLINE void pool_gather(const Pool &p, int k, const T *x, const i64 *index, T *y) {
  const Site s = site_of<V>(p, k);
  const i64 pixels = static_cast<i64>(p.h.in.n) * p.w.in.n;
  for (int image = s.image; image < p.images; image += p.apart) {
    const T *from = x + p.input_image(image) + s.c;
    const i64 at = p.output_image(image) + p.output_at(s.row, s.column) + s.c;
    const Lanes<V, i64> positions = load<V>(index + at);
    Lanes<V, T> lanes;
    UNROLL for (int l = 0; l < V; l++) {
      const i64 position = positions.v[l];
      const bool inside = 0 <= position && position < pixels;
      lanes.v[l] = inside ? from[position * p.channels + l] : from_float<T>(NAN);
    }
    store(y + at, lanes);
  }
}

// y[n, i, c] = sum of x[n, k, c] over all k, ascending, with index[n, k, c] == i. An index outside of the map makes all
// of y[n, :, c] NaN.
// A lane has one column (n, c), a warp POSITIONS of its positions: it reads all indices of its columns, and adds what
// falls among its positions in shared memory, where no other thread meets it.
template <class T>
INLINE void pool_scatter(const T *x, const i64 *index, T *y, i64 columns, int channels, int outputs, int positions) {
  constexpr int POSITIONS = 16, WARPS = THREADS / 32;
  __shared__ ExactSum maps[WARPS][POSITIONS][32];  // (warp, position, column)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 column = static_cast<i64>(blockIdx.x) * 32 + lane;
  const int begin = (blockIdx.y * WARPS + warp) * POSITIONS, mine = min(POSITIONS, positions - begin);
  if (column >= columns || mine <= 0) return;
  const i64 image = column / channels, c = column % channels;
  ExactSum(*map)[32] = maps[warp];
  for (int i = 0; i < mine; i++) map[i][lane] = {0, 0};
  bool bad = false;
  UNROLL_BY(4) for (int k = 0; k < outputs; k++) {
    const i64 at = (image * outputs + k) * channels + c, position = index[at], i = position - begin;
    bad |= position < 0 || position >= positions;
    if (0 <= i && i < mine) map[i][lane].add(to_float(x[at]));
  }
  for (int i = 0; i < mine; i++)
    y[(image * positions + begin + i) * channels + c] = from_float<T>(bad ? NAN : map[i][lane].value());
}

// Bounds of a gradient of V channels: from sm_100 on nvcc keeps one of single channels to 32 registers, and spills, unless
// it is told how many blocks there may be.
#if ALPHA_ARCH >= 100
#define GRADIENT_BOUNDS(V) (THREADS, V == 1 ? 5 : 1)
#else
#define GRADIENT_BOUNDS(V) (THREADS)
#endif
#define KERNEL(name, call, ...) KERNEL_WITHIN((THREADS), name, call, __VA_ARGS__)
#define KERNEL_WITHIN(bounds, name, call, ...) \
  ALPHA_ENTRY(name, bounds, (const __grid_constant__ Pool p, int threads, __VA_ARGS__), \
              const int k = blockIdx.x * THREADS + threadIdx.x; \
              if (k < threads) call)
#define FORWARD(T, name, V, pool, Index) \
  KERNEL(name, (pool(p, k, Input<V, T>{x}, Output<V, T>{y}, index)), Index *index, const T *x, T *y)
#define MAX_POOL(T, form, suffix, V, Index) \
  FORWARD(T, max_pool##form##suffix, V, max_pool<V>, Index) \
  KERNEL_WITHIN(GRADIENT_BOUNDS(V), max_pool_backward##form##suffix, \
                (max_pool_backward<V>(p, k, Input<V, T>{g}, Output<V, T>{dx}, index)), \
                const Index *index, const T *g, T *dx)
#define KERNELS(T, suffix, V) \
  MAX_POOL(T, , suffix, V, unsigned char) \
  MAX_POOL(T, _wide, suffix, V, int) \
  KERNEL(avg_pool##suffix, avg_pool<V>(p, k, Input<V, T>{x}, Output<V, T>{y}), const T *x, T *y) \
  KERNEL(avg_pool_backward##suffix, avg_pool_backward<V>(p, k, g, dx), const T *g, T *dx) \
  KERNEL(gather##suffix, pool_gather<V>(p, k, x, index, y), const T *x, const i64 *index, T *y)
PIECE_KERNELS(KERNELS)

#define PACKETS(T, dtype) \
  FORWARD(T, max_pool_rows_##dtype, LANES<T>, (max_pool_rows<LANES<T>, T>), unsigned char) \
  KERNEL(max_pool_backward_rows_##dtype, max_pool_backward_rows<LANES<T>>(p, k, g, dx, index), \
         const unsigned char *index, const T *g, T *dx) \
  ALPHA_ENTRY(scatter_##dtype, (THREADS), \
              (const T *x, const i64 *index, T *y, i64 columns, int channels, int outputs, int positions), \
              pool_scatter(x, index, y, columns, channels, outputs, positions))
FLOAT_KERNELS(PACKETS)
KERNEL(max_pool_index, write_index(p, k, place, index), const unsigned char *place, int *index)
