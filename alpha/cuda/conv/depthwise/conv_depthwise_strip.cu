// Depthwise convolution with square filters of F x F, stride STRIDE: a block has what a tile reads in shared memory.
//
// What:     strip_gather    y[n][oh][ow][c] = sum over fh, fw of x[n][oh*S - p + fh][ow*S - p + fw][c] * w[c][fh][fw],
//                           with bias and relu on top; with `flipped` filters it is dgrad of stride 1
//           strip_scatter   dx[n][ih][iw][c] = sum of g[n][(ih + p - fh)/2][(iw + p - fw)/2][c] * w[c][fh][fw] over the
//                           taps that leave no remainder: dgrad of stride 2
//           strip_wgrad     slices[s][tap][c] = sum over the tiles of slice s of g * x; depthwise_sum adds the slices
// Source:   the definition, with the tap ranges of arXiv 2306.15951
// Layout:   activations (N, H, W, C), NHWC, as T; w (C, F, F, 1), bias and slices float32; sums in float32
// GEMM:     none: nothing is summed over channels. A tile is copied before its first product, 16 bytes at a time where
//           C allows it; other blocks of the multiprocessor compute meanwhile. A thread's loops over lines and columns
//           are unrolled: an element is converted once for all outputs that it serves
// Zeros:    lines outside the map are skipped, inserted zeros never read; columns outside are zeros in shared memory
// Requires: C % 2 = 0, F of 3, 5, 7, stride 1 or 2 on both axes, no dilation; elements of a tensor fewer than 2^31
// Threads:  `lanes` side by side along the channels, V of them each; the rest along strips of Q lines and P columns
// Measured: H200, bfloat16, 256 images, us (fprop / wgrad): 3x3 on 32x32x144 80 / 87, 5x5 on 16x16x240 53 / 57, 7x7 on
//           16x16x96 30 / 36; more in benchmarks/results/h200/depthwise.jsonl
#include "copies.cuh"
#include "lanes.cuh"

constexpr int THREADS = 128, P = 4, Q = F == 3 && STRIDE == 1 ? 8 : 4, V = 2, TAPS = F * F;
constexpr int WGRAD_V = F == 3 ? 2 : 1;          // F * F * V sums stay in registers
constexpr int PITCH = 66;                        // of a tap's filters: channels of a tile, and two for the banks
constexpr int BYTES = F == 3 ? 43008 : 36096;    // of a tile
constexpr int WGRAD_BYTES = F == 3 ? 43008 : 49152;
constexpr int BLOCKS = blocks_here(F == 3 ? 5 : 4);  // of a multiprocessor, at least

struct Cut {  // of what is written (wgrad: g): tiles of images x rows x columns, `down` x `across` in a map
  int n, height, width, images, rows, columns, down, across, lanes, first_h, first_w;  // first: where tiles begin
};
struct Box {  // a part of maps, in shared memory as [image][line][column][channel of the tile]
  int image, images, top, lines, left, columns;
};
INLINE Box box_of(const Cut &t, int tile) {
  const int line = tile / t.across, group = line / t.down, image = group * t.images;
  return {image, min(t.images, t.n - image), t.first_h + (line - group * t.down) * t.rows, t.rows,
          t.first_w + (tile - line * t.across) * t.columns, (t.columns + P - 1) / P * P};
}
// What outputs from `first` on, so many, read of an axis: from where on, how many.
template <bool SCATTER> INLINE int read_from(int first, int pad) {
  return SCATTER ? (first + pad) / 2 - (F - 1) / 2 : first * STRIDE - pad;
}
template <bool SCATTER> constexpr __device__ int reach(int count) {
  return SCATTER ? (count + 1) / 2 + (F - 1) / 2 : (count - 1) * STRIDE + F;
}
struct Map {  // that is read
  int height, width, channels, pad_h, pad_w;
};
template <bool SCATTER> INLINE Box read_by(const Box &b, const Map &m) {
  return {b.image, b.images, read_from<SCATTER>(b.top, m.pad_h), reach<SCATTER>(b.lines),
          read_from<SCATTER>(b.left, m.pad_w), reach<SCATTER>(b.columns)};
}

// Copies `wide` channels of a box, EACH at a time; lines outside the map are left as they are.
template <int EACH, class T>
INLINE void copy(T *tile, const T *map, const Box &b, int height, int width, int channels, int wide, int c0) {
  const int chunks = wide / EACH, first = threadIdx.x / chunks, c = (threadIdx.x - first * chunks) * EACH;
  const int step = THREADS / chunks, down = step / b.columns, along = step - down * b.columns;
  if (c0 + c >= channels || first >= step) return;
  map += (i64)b.image * height * width * channels + c0 + c, tile += c;
  for (int n = 0; n < b.images; n++)
    for (int line = first / b.columns, column = first - line * b.columns; line < b.lines; line += down) {
      const int h = b.top + line, w = b.left + column;
      const bool inside = unsigned(w) < unsigned(width);
      if (unsigned(h) < unsigned(height))
        ptx::cp_async<EACH * sizeof(T)>(tile + ((n * b.lines + line) * b.columns + column) * wide,
                                        map + (inside ? ((n * height + h) * width + w) * channels : 0),
                                        inside ? EACH * sizeof(T) : 0);
      column += along;
      if (column >= b.columns) column -= b.columns, line++;
    }
}
template <class T>
INLINE void fetch(T *tile, const void *map, const Box &b, int height, int width, int channels, int wide, int c0) {
  if (channels % LANES<T> == 0) copy<LANES<T>>(tile, static_cast<const T *>(map), b, height, width, channels, wide, c0);
  else copy<V>(tile, static_cast<const T *>(map), b, height, width, channels, wide, c0);
}
template <int N, int COUNT, class T> INLINE void floats(float (&to)[COUNT][N], const T *from, int pitch) {
  UNROLL for (int j = 0; j < COUNT; j++) {
    const Lanes<N, T> lanes = load<N>(from + j * pitch);
    UNROLL for (int e = 0; e < N; e++) to[j][e] = value(lanes, e);
  }
}

struct Place {  // strip k of a tile; those of the same columns are one behind the other
  int image, down, right;  // down, right: of the first output, from the tile's first one
  INLINE Place(const Box &b, int k) {
    const int parts = (b.lines + Q - 1) / Q, column = b.images * parts, strip = k / column, rest = k - strip * column;
    image = rest / parts, down = (rest - image * parts) * Q, right = strip * P;
  }
};
INLINE int strips_of(const Box &b) { return b.images * ((b.lines + Q - 1) / Q) * (b.columns / P); }

struct Strips {
  const void *in;
  const float *w, *bias;
  void *out;
  Cut cut;  // of out
  Map map;  // in
  int flipped, relu;
};

// Every line completes the outputs that read no later one.
template <class T, bool SCATTER>
INLINE void strip(const Strips &t, const Box &to, const Box &box, const Place &at, const T *tile, const float *filter,
                  const Lanes<V, float> &bias, int c) {
  constexpr int S = STRIDE, LINES = reach<SCATTER>(Q), COLUMNS = reach<SCATTER>(P);
  const int wide = t.cut.lanes * V;
  const int down = SCATTER ? at.down / 2 : at.down * S, right = SCATTER ? at.right / 2 : at.right * S;
  const int line = box.top + down, limit = max(0, min(box.top + box.lines, t.map.height));
  const int top = to.top + at.down, left = to.left + at.right;
  const int lines = min(to.lines - at.down, t.cut.height - top), columns = t.cut.width - left;  // that are there
  const unsigned channels = t.map.channels, pitch = t.cut.width * channels;
  const T *in = tile + ((at.image * box.lines + down) * box.columns + right) * wide;
  const i64 line_out = (i64)(to.image + at.image) * t.cut.height + top;
  T *out = static_cast<T *>(t.out) + (line_out * t.cut.width + left) * t.map.channels + c;
  Lanes<V, float> kept[F == 3 ? TAPS : 1];
  UNROLL for (int k = 0; F == 3 && k < TAPS; k++) kept[k] = load<V>(filter + k * PITCH);
  float sum[Q][P][V];
  UNROLL for (int e = 0; e < Q * P * V; e++) sum[e / (P * V)][e / V % P][e % V] = bias.v[e % V];
  UNROLL for (int l = 0; l < LINES; l++) {
    if (unsigned(line + l) < unsigned(limit)) {
      float now[COLUMNS][V];
      floats(now, in + l * box.columns * wide, wide);
      UNROLL for (int k = 0; k < Q * COLUMNS * P; k++) {
        const int i = k / (COLUMNS * P), j = k / P % COLUMNS, u = k % P;
        const int fh = SCATTER ? i - 2 * l + F - 1 : l - S * i, fw = SCATTER ? u - 2 * j + F - 1 : j - S * u;
        if (fh < 0 || fh >= F || fw < 0 || fw >= F) continue;
        const int tap = fh * F + fw;
        const Lanes<V, float> w = F == 3 ? kept[F == 3 ? tap : 0] : load<V>(filter + tap * PITCH);
        UNROLL for (int e = 0; e < V; e++) sum[i][u][e] = fmaf(now[j][e], w.v[e], sum[i][u][e]);
      }
    }
    UNROLL for (int i = 0; i < Q; i++) {
      if (l != (SCATTER ? (i + F - 1) / 2 : S * i + F - 1)) continue;
      if (i >= lines || (SCATTER && top + i < 0)) continue;
      if (t.relu)
        UNROLL for (int e = 0; e < P * V; e++) {
          float &v = sum[i][e / V][e % V];
          v = v < 0.f ? 0.f : v;
        }
      UNROLL for (int u = 0; u < P; u++)
        if (u < columns && (!SCATTER || left + u >= 0))
          store_pair(out + (i * pitch + u * channels), sum[i][u][0], sum[i][u][1]);
    }
  }
}

// Grid (tiles, channel tiles).
template <class T, bool SCATTER> INLINE void strips(const Strips &t) {
  __shared__ __align__(16) float filter[TAPS * PITCH];  // [tap][channel of the tile]
  __shared__ __align__(16) T tile[BYTES / sizeof(T)];
  const int lanes = t.cut.lanes, lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = THREADS / lanes;
  const int wide = lanes * V, channels = t.map.channels, c0 = blockIdx.y * wide, c = c0 + lane * V;
  const Box to = box_of(t.cut, blockIdx.x), box = read_by<SCATTER>(to, t.map);
  fetch(tile, t.in, box, t.map.height, t.map.width, channels, wide, c0);
  for (int e = threadIdx.x; e < TAPS * min(wide, channels - c0); e += THREADS) {
    const int k = e / TAPS, tap = e - k * TAPS;
    filter[(t.flipped ? TAPS - 1 - tap : tap) * PITCH + k] = t.w[c0 * TAPS + e];
  }
  ptx::cp_async_done();
  if (c >= channels) return;
  const Lanes<V, float> bias = t.bias ? load<V>(t.bias + c) : Lanes<V, float>{};
  for (int k = row; k < strips_of(to); k += rows)
    strip<T, SCATTER>(t, to, box, Place(to, k), tile + lane * V, filter + lane * V, bias, c);
}

struct StripWgrad {
  const void *x, *g;
  float *slices;
  Cut cut;  // of g
  Map map;  // x
  int tiles, unused;
};

template <class T>
INLINE void wgrad_strip(const StripWgrad &t, const Box &x, const Box &g, const Place &at, const T *x_tile,
                        const T *g_tile, float (&sum)[TAPS][WGRAD_V]) {
  constexpr int S = STRIDE, N = WGRAD_V, LINES = reach<false>(Q), COLUMNS = reach<false>(P);
  const int wide = t.cut.lanes * N;
  const int line = x.top + at.down * S, limit = max(0, min(x.top + x.lines, t.map.height));
  const int lines = min(g.lines, t.cut.height - g.top) - at.down, columns = t.cut.width - g.left - at.right;
  const T *in = x_tile + ((at.image * x.lines + at.down * S) * x.columns + at.right * S) * wide;
  const T *dy_in = g_tile + ((at.image * g.lines + at.down) * g.columns + at.right) * wide;
  float dy[Q][P][N] = {};
  UNROLL for (int l = 0; l < LINES; l++) {
    if (l % S == 0 && l / S < Q && l / S < lines) floats(dy[l / S % Q], dy_in + l / S * g.columns * wide, wide);
    if (unsigned(line + l) >= unsigned(limit)) continue;
    float now[COLUMNS][N];
    floats(now, in + l * x.columns * wide, wide);
    UNROLL for (int k = 0; k < Q * COLUMNS * P; k++) {
      const int i = k / (COLUMNS * P), j = k / P % COLUMNS, u = k % P, fh = l - S * i, fw = j - S * u;
      if (fh < 0 || fh >= F || fw < 0 || fw >= F || i >= lines || u >= columns) continue;  // no 0 * infinity
      UNROLL for (int e = 0; e < N; e++) sum[fh * F + fw][e] = fmaf(now[j][e], dy[i][u][e], sum[fh * F + fw][e]);
    }
  }
}

// Grid (slices, channel tiles).
template <class T> INLINE void wgrad(const StripWgrad &t) {
  constexpr int N = WGRAD_V;
  __shared__ __align__(16) T tile[WGRAD_BYTES / sizeof(T)];
  float *partial = reinterpret_cast<float *>(tile);  // [fw][element][thread], in the end
  const int lanes = t.cut.lanes, lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = THREADS / lanes;
  const int wide = lanes * N, c0 = blockIdx.y * wide, channels = t.map.channels;
  float sum[TAPS][N] = {};
  for (int k = blockIdx.x; k < t.tiles; k += gridDim.x) {
    const Box g = box_of(t.cut, k), x = read_by<false>(g, t.map);
    T *g_tile = tile + t.cut.images * x.lines * x.columns * wide;
    fetch(tile, t.x, x, t.map.height, t.map.width, channels, wide, c0);
    fetch(g_tile, t.g, g, t.cut.height, t.cut.width, channels, wide, c0);
    ptx::cp_async_done();
    for (int s = row; s < strips_of(g) && c0 + lane * N < channels; s += rows)
      wgrad_strip(t, x, g, Place(g, s), tile + lane * N, g_tile + lane * N, sum);
    __syncthreads();
  }
  UNROLL for (int fh = 0; fh < F; fh++) {
    __syncthreads();
    UNROLL for (int e = 0; e < F * N; e++) partial[e * THREADS + threadIdx.x] = sum[fh * F + e / N][e % N];
    __syncthreads();
    for (int e = threadIdx.x; e < F * wide; e += THREADS) {
      const int fw = e / wide, k = e - fw * wide;
      if (c0 + k >= channels) continue;
      const float *from = partial + (fw * N + k % N) * THREADS + k / N;
      float total = 0.f;
      for (int r = 0; r < rows; r++) total += from[r * lanes];
      t.slices[((i64)blockIdx.x * TAPS + fh * F + fw) * channels + c0 + k] = total;
    }
  }
}

#define STRIP_KERNELS(T, dtype) \
  ALPHA_ENTRY(strip_gather_##dtype, (THREADS, BLOCKS), (Strips t), strips<T, false>(t)) \
  ALPHA_ENTRY(strip_scatter_##dtype, (THREADS, BLOCKS), (Strips t), strips<T, true>(t)) \
  ALPHA_ENTRY(strip_wgrad_##dtype, (THREADS, BLOCKS), (StripWgrad t), wgrad<T>(t))
FLOAT_KERNELS(STRIP_KERNELS)
