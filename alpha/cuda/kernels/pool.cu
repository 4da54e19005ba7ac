// What:     max and average pooling with their gradients, and reading and adding by index.
//           max      y = max over the window; index = ih * IW + iw of the first maximum; a NaN is the maximum
//           average  y = sum over the window / (its pixels inside of x, or all of them where padding is counted)
// Layout:   NHWC; index int32 (int64 too in gather and scatter).
// Zeros:    a window is trimmed to the map, so padding is never read. The gradients gather: an input pixel sums over
//           the windows that hold it, in ascending order; nothing is scattered and nothing is cleared first.
// Requires: an image below 2^31 elements; for the packet kernels C a multiple of 16 bytes.
// Threads:  one per packet of channels (16 bytes; 1 element in the `scalar` kernels) of a pixel of the result, or of
//           TILE x TILE pixels in the gradients, which read a window once for all of them; channels fastest, of every
//           `apart`-th image: a thread finds its place and its windows once for all of these. BATCH pixels of a window
//           are loaded before the first is used. A global average has a block per image and line of packets.
#include "lanes.cuh"
#include "reduce.cuh"

// A number of elements, with what dividing by it takes: floor(k / n) for 0 <= k < 2^31, as the upper half of a product.
struct Size {
  int n;
  unsigned multiplier;
  int shift;
  __device__ __forceinline__ int quotient(int k) const { return (__umulhi(k, multiplier) + k) >> shift; }
  // Returns k % n, and divides k by n.
  __device__ __forceinline__ int take(int &k) const {
    const int whole = quotient(k), rest = k - whole * n;
    k = whole;
    return rest;
  }
};

struct Range {
  int first, last;
  __device__ __forceinline__ int size() const { return last > first ? last - first : 0; }
  __device__ __forceinline__ bool holds(int k) const { return first <= k && k < last; }
};

constexpr int TILE = 2;  // pixels of x along an axis that a thread of a gradient takes

// H or W. kernel 0: adaptive, window o spans [o * in / out, (o + 1) * in / out), the latter rounded up.
struct Axis {
  int kernel, padding;
  Size in, out, stride, tiles;

  __device__ __forceinline__ Range window(int o) const {
    if (!kernel) return spread(o, in.n, out);
    const int start = o * stride.n - padding;
    return {max(0, start), min(in.n, start + kernel)};
  }
  // Outputs whose window holds input i.
  __device__ __forceinline__ Range covering(int i) const {
    if (!kernel) return spread(i, out.n, in);
    const int above = i + padding - kernel;
    return {above < 0 ? 0 : stride.quotient(above) + 1, min(out.n, stride.quotient(i + padding) + 1)};
  }
  static __device__ __forceinline__ Range spread(int k, int many, const Size &few) {
    return {few.quotient(k * many), few.quotient((k + 1) * many + few.n - 1)};
  }
};

// A number of pixels to divide by: a product, and what it lacks (Markstein), rounded correctly.
struct Divisor {
  float size, reciprocal;
  bool exact;  // the reciprocal, so that the product lacks nothing
  template <int V> __device__ __forceinline__ void divide(float (&sum)[V]) const {
#pragma unroll
    for (int l = 0; l < V; l++) {
      const float q = sum[l] * reciprocal;
      if (exact) {
        sum[l] = q;
      } else {
        const float rest = fmaf(-q, size, sum[l]);
        sum[l] = fabsf(rest) > 0 ? fmaf(rest, reciprocal, q) : q;  // keeps inf and -0
      }
    }
  }
};

struct Pool {
  Axis h, w;
  Size packets;  // of a pixel
  int channels;
  int divisor;       // of every window; 0: each its own
  float reciprocal;  // of that divisor
  int images, apart;

  __device__ __forceinline__ int input_at(int row, int column) const { return (row * w.in.n + column) * channels; }
  __device__ __forceinline__ int output_at(int row, int column) const { return (row * w.out.n + column) * channels; }
  __device__ __forceinline__ i64 input_image(i64 image) const { return image * input_at(h.in.n, 0); }
  __device__ __forceinline__ i64 output_image(i64 image) const { return image * output_at(h.out.n, 0); }
  __device__ __forceinline__ Divisor one_divisor() const {
    return {static_cast<float>(divisor), reciprocal, (divisor & (divisor - 1)) == 0};
  }
  __device__ __forceinline__ Divisor own_divisor(int oh, int ow) const {
    const float size = static_cast<float>(h.window(oh).size() * w.window(ow).size());
    return {size, 1 / size, false};
  }
};

// What a thread works on: the first of its images, a pixel of the result, and the first of its channels.
struct Site {
  int c, column, row, image;
};
template <int V>
__device__ __forceinline__ Site site_of(const Pool &p, const Size &height, const Size &width, int k) {
  Site s;
  s.c = p.packets.take(k) * V;
  s.column = width.take(k);
  s.row = height.take(k);
  s.image = k;
  return s;
}

// Visits the pixels of a rectangle row by row: item = fetch(row, column), then use(item, row, column); BATCH fetches
// are on their way at a time.
template <int BATCH, class Fetch, class Use>
__device__ __forceinline__ void for_each_pixel(const Range &rows, const Range &columns, Fetch fetch, Use use) {
  const int area = rows.size() * columns.size();
  int row = rows.first, column = columns.first;
#pragma unroll 1
  for (int done = 0; done < area; done += BATCH) {
    decltype(fetch(0, 0)) items[BATCH];
    int item_row[BATCH], item_column[BATCH];
#pragma unroll
    for (int k = 0; k < BATCH; k++) {
      item_row[k] = row;
      item_column[k] = column;
      if (done + k < area) items[k] = fetch(row, column);
      if (++column == columns.last) {
        column = columns.first;
        row++;
      }
    }
#pragma unroll
    for (int k = 0; k < BATCH; k++)
      if (done + k < area) use(items[k], item_row[k], item_column[k]);
  }
}

template <int V, class T>
__device__ __forceinline__ void max_pool(const Pool &p, int k, const T *x, T *y, int *index) {
  const Site s = site_of<V>(p, p.h.out, p.w.out, k);
  const Range rows = p.h.window(s.row), columns = p.w.window(s.column);
  const bool first_nan = !p.h.kernel;  // of several NaNs an adaptive window takes the first, others the last
  for (int image = s.image; image < p.images; image += p.apart) {
    const T *from = x + p.input_image(image) + s.c;
    float best[V];
    Lanes<V, int> where;
#pragma unroll
    for (int l = 0; l < V; l++) {
      best[l] = __int_as_float(0xff800000);  // -inf
      where.v[l] = rows.first * p.w.in.n + columns.first;
    }
    for_each_pixel<4>(
        rows, columns, [&](int row, int column) { return load<V>(from + p.input_at(row, column)); },
        [&](const Lanes<V, T> &item, int row, int column) {
#pragma unroll
          for (int l = 0; l < V; l++) {
            const float v = value(item, l);
            if (v > best[l] || (v != v && !(first_nan && best[l] != best[l]))) {
              best[l] = v;
              where.v[l] = row * p.w.in.n + column;
            }
          }
        });
    const i64 at = p.output_image(image) + p.output_at(s.row, s.column) + s.c;
    store_floats(y + at, best);
    store(index + at, where);
  }
}

// The TILE x TILE pixels of x from (row, column) on, and the windows that hold each row and each column of them.
struct Tile {
  int row, column;
  Range rows[TILE], columns[TILE];
  __device__ __forceinline__ Tile(const Pool &p, const Site &s) : row(s.row * TILE), column(s.column * TILE) {
#pragma unroll
    for (int t = 0; t < TILE; t++) {
      rows[t] = p.h.covering(min(row + t, p.h.in.n - 1));
      columns[t] = p.w.covering(min(column + t, p.w.in.n - 1));
    }
  }
  // f(row, column) for each window that holds any of the pixels
  template <class F> __device__ __forceinline__ void for_each_window(const F &f) const {
#pragma unroll 1
    for (int row = rows[0].first; row < rows[TILE - 1].last; row++)
#pragma unroll 1
      for (int column = columns[0].first; column < columns[TILE - 1].last; column++) f(row, column);
  }
  // f(t, offset) for each of the pixels that the map has
  template <class F> __device__ __forceinline__ void for_each_pixel(const Pool &p, const F &f) const {
#pragma unroll
    for (int t = 0; t < TILE * TILE; t++)
      if (row + t / TILE < p.h.in.n && column + t % TILE < p.w.in.n)
        f(t, p.input_at(row + t / TILE, column + t % TILE));
  }
};

// dx = sum of g over the windows that took their maximum at this pixel.
template <int V, class T>
__device__ __forceinline__ void max_pool_backward(const Pool &p, int k, const T *g, const int *index, T *dx) {
  const Site s = site_of<V>(p, p.h.tiles, p.w.tiles, k);
  const Tile tile(p, s);
  const int here = tile.row * p.w.in.n + tile.column;
#pragma unroll 1
  for (int image = s.image; image < p.images; image += p.apart) {
    const i64 from = p.output_image(image) + s.c;
    float sum[TILE * TILE][V] = {};
    tile.for_each_window([&](int row, int column) {
      const i64 at = from + p.output_at(row, column);
      const Lanes<V, T> share = load<V>(g + at);
      const Lanes<V, int> where = load<V>(index + at);
#pragma unroll
      for (int t = 0; t < TILE * TILE; t++)
#pragma unroll
        for (int l = 0; l < V; l++)
          if (where.v[l] == here + t / TILE * p.w.in.n + t % TILE) sum[t][l] += value(share, l);
    });
    T *to = dx + p.input_image(image) + s.c;
    tile.for_each_pixel(p, [&](int t, int at) { store_floats(to + at, sum[t]); });
  }
}

template <int V, class T>
__device__ __forceinline__ void avg_pool(const Pool &p, int k, const T *x, T *y) {
  const Site s = site_of<V>(p, p.h.out, p.w.out, k);
  const Range rows = p.h.window(s.row), columns = p.w.window(s.column);
  const Divisor divisor = p.divisor ? p.one_divisor() : p.own_divisor(s.row, s.column);
  for (int image = s.image; image < p.images; image += p.apart) {
    const T *from = x + p.input_image(image) + s.c;
    float sum[V] = {};
    for_each_pixel<4>(
        rows, columns, [&](int row, int column) { return load<V>(from + p.input_at(row, column)); },
        [&](const Lanes<V, T> &item, int, int) {
#pragma unroll
          for (int l = 0; l < V; l++) sum[l] += value(item, l);
        });
    divisor.divide(sum);
    store_floats(y + p.output_image(image) + p.output_at(s.row, s.column) + s.c, sum);
  }
}

// dx = sum over the windows that hold this pixel of g / divisor; one division at the end where all divisors are equal.
template <int V, class T>
__device__ __forceinline__ void avg_pool_backward(const Pool &p, int k, const T *g, T *dx) {
  const Site s = site_of<V>(p, p.h.tiles, p.w.tiles, k);
  const Tile tile(p, s);
#pragma unroll 1
  for (int image = s.image; image < p.images; image += p.apart) {
    const T *from = g + p.output_image(image) + s.c;
    float sum[TILE * TILE][V] = {};
    tile.for_each_window([&](int row, int column) {
      const Lanes<V, T> lanes = load<V>(from + p.output_at(row, column));
      float share[V];
#pragma unroll
      for (int l = 0; l < V; l++) share[l] = value(lanes, l);
      if (!p.divisor) p.own_divisor(row, column).divide(share);
#pragma unroll
      for (int t = 0; t < TILE * TILE; t++)
        if (tile.rows[t / TILE].holds(row) && tile.columns[t % TILE].holds(column))
#pragma unroll
          for (int l = 0; l < V; l++) sum[t][l] += share[l];
    });
    T *to = dx + p.input_image(image) + s.c;
    tile.for_each_pixel(p, [&](int t, int at) {
      if (p.divisor) p.one_divisor().divide(sum[t]);
      store_floats(to + at, sum[t]);
    });
  }
}

// y[n, c] = mean of x[n, :, c]. A block takes `width` packets of a pixel, and of an image all pixels, `step` at a time.
template <int V, class T>
__device__ __forceinline__ void global_avg_pool(const T *x, T *y, int pixels, int packets, int width) {
  constexpr int AHEAD = 4;
  const int step = THREADS / width, tiles = (packets + width - 1) / width;
  const int column = blockIdx.x % tiles * width + threadIdx.x % width, row = threadIdx.x / width;
  const i64 image = blockIdx.x / tiles;
  const bool mine = row < step && column < packets;
  const T *from = x + (image * pixels * packets + column) * V;
  float sum[V] = {};
  for (int first = mine ? row : pixels; first < pixels; first += AHEAD * step) {
    Lanes<V, T> items[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + k * step < pixels) items[k] = load<V>(from + static_cast<i64>(first + k * step) * packets * V);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (first + k * step < pixels)
#pragma unroll
        for (int l = 0; l < V; l++) sum[l] += value(items[k], l);
  }
  Walk walk = {};
  walk.width = width;
  walk.step = step;
  fold_rows<V>(sum, walk, Add());
  if (row > 0 || !mine) return;
#pragma unroll
  for (int l = 0; l < V; l++) sum[l] /= pixels;
  store_floats(y + (image * packets + column) * V, sum);
}

// y[n, oh, ow, c] = x[n, index[n, oh, ow, c], c]
template <int V, class T, class Index>
__device__ __forceinline__ void pool_gather(const Pool &p, int k, const T *x, const Index *index, T *y) {
  const Site s = site_of<V>(p, p.h.out, p.w.out, k);
  for (int image = s.image; image < p.images; image += p.apart) {
    const T *from = x + p.input_image(image) + s.c;
    const i64 at = p.output_image(image) + p.output_at(s.row, s.column) + s.c;
    const Lanes<V, Index> positions = load<V>(index + at);
    Lanes<V, T> lanes;
#pragma unroll
    for (int l = 0; l < V; l++) lanes.v[l] = from[static_cast<i64>(positions.v[l]) * p.channels + l];
    store(y + at, lanes);
  }
}

constexpr int POSITIONS = 32, WARPS = THREADS / 32;

// y[n, i, c] = sum of x[n, k, c] over all k, ascending, with index[n, k, c] == i. Others are left out.
// A lane has one column (n, c), a warp POSITIONS of its positions: it reads all indices of its columns, and adds what
// falls among its positions in shared memory, where no other thread meets it.
template <class T, class Index>
__device__ __forceinline__ void pool_scatter(const T *x, const Index *index, T *y, i64 columns, int channels,
                                             int outputs, int positions) {
  __shared__ float map[WARPS][POSITIONS][32];  // (warp, position, column)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 column = static_cast<i64>(blockIdx.x) * 32 + lane;
  const int begin = (blockIdx.y * WARPS + warp) * POSITIONS, mine = min(POSITIONS, positions - begin);
  if (column >= columns || mine <= 0) return;
  const i64 image = column / channels, c = column % channels;
  for (int i = 0; i < mine; i++) map[warp][i][lane] = 0;
#pragma unroll 4
  for (int k = 0; k < outputs; k++) {
    const i64 at = (image * outputs + k) * channels + c, i = static_cast<i64>(index[at]) - begin;
    if (0 <= i && i < mine) map[warp][i][lane] += to_float(x[at]);
  }
  for (int i = 0; i < mine; i++)
    y[(image * positions + begin + i) * channels + c] = from_float<T>(map[warp][i][lane]);
}

// name_<dtype> takes packets, name_scalar_<dtype> one element per thread.
#define PARAMETERS(...) const __grid_constant__ Pool p, int threads, __VA_ARGS__
#define KERNEL(name, call, ...) \
  extern "C" __global__ void __launch_bounds__(THREADS) name(PARAMETERS(__VA_ARGS__)) { \
    const int k = blockIdx.x * THREADS + threadIdx.x; \
    if (k < threads) call; \
  } \
  ALPHA_KERNEL(name)
#define KERNELS(T, name, V) \
  KERNEL(max_pool_##name, max_pool<V>(p, k, x, y, index), const T *x, T *y, int *index) \
  KERNEL(max_pool_backward_##name, max_pool_backward<V>(p, k, g, index, dx), const T *g, \
         const int *index, T *dx) \
  KERNEL(avg_pool_##name, avg_pool<V>(p, k, x, y), const T *x, T *y) \
  KERNEL(avg_pool_backward_##name, avg_pool_backward<V>(p, k, g, dx), const T *g, T *dx) \
  KERNEL(gather_int32_##name, pool_gather<V>(p, k, x, index, y), const T *x, const int *index, T *y) \
  KERNEL(gather_int64_##name, pool_gather<V>(p, k, x, index, y), const T *x, const i64 *index, T *y) \
  extern "C" __global__ void __launch_bounds__(THREADS) \
      global_avg_pool_##name(const T *x, T *y, int pixels, int packets, int width) { \
    global_avg_pool<V>(x, y, pixels, packets, width); \
  } \
  ALPHA_KERNEL(global_avg_pool_##name)
#define SCATTER(T, name, Index) \
  extern "C" __global__ void __launch_bounds__(THREADS) \
      name(const T *x, const Index *index, T *y, i64 columns, int channels, int outputs, int positions) { \
    pool_scatter(x, index, y, columns, channels, outputs, positions); \
  } \
  ALPHA_KERNEL(name)
#define ALL(T, dtype) \
  KERNELS(T, dtype, LANES<T>) \
  KERNELS(T, scalar_##dtype, 1) \
  SCATTER(T, scatter_int32_##dtype, int) \
  SCATTER(T, scatter_int64_##dtype, i64)
FLOAT_KERNELS(ALL)
