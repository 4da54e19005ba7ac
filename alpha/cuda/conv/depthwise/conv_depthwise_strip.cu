// Depthwise convolution with square filters of F x F, stride STRIDE: a thread goes down P neighbouring columns.
//
// What:     strip_gather    y[n][oh][ow][c] = sum over fh, fw of x[n][oh*S - p + fh][ow*S - p + fw][c] * w[c][fh][fw],
//                           with bias and relu on top; with `flipped` filters it is dgrad of stride 1
//           strip_scatter   dx[n][ih][iw][c] = sum of g[n][(ih + p - fh)/2][(iw + p - fw)/2][c] * w[c][fh][fw] over the
//                           taps that leave no remainder: dgrad of stride 2
//           strip_wgrad     slices[s][tap][c] = sum over the strips of slice s of g * x; depthwise_sum adds the slices
// Source:   the definition, with the tap ranges of arXiv 2306.15951
// Layout:   activations (N, H, W, C), NHWC, as T; w (C, F, F, 1), bias and slices float32; sums in float32
// GEMM:     none: nothing is summed over channels. A line is read once by a thread, for all outputs that it serves:
//           their sums (wgrad: the lines of g) stay in registers, and move up by a line
// Zeros:    lines and columns outside the map are skipped, padded and inserted zeros are never read
// Requires: C % 2 = 0, F of 3, 5, 7, stride 1 or 2 on both axes, no dilation; elements of a tensor fewer than 2^31
// Threads:  `lanes` side by side along the channels, V of them each; the rest along strips, each P columns of `rows`
//           lines
// Measured: H200, bf16, 256 images, 3x3, fprop / dgrad / wgrad, us (benchmarks/results/h200/depthwise.jsonl): 32x32x144
//           84 / 85 / 86, a copy of the same bytes 37; 16x16x192 24 / 24 / 32, 14; 4x4x960 10 / 10 / 16, 6
#include "lanes.cuh"

constexpr int THREADS = 128, LANES_MOST = 32, P = 4, V = 2, TAPS = F * F;
constexpr int WGRAD_V = F < 5 ? 2 : 1;  // F * F * V sums stay in registers
constexpr int BLOCKS = F == 3 ? 6 - STRIDE : F == 5 ? 3 : 4 - STRIDE;  // of a multiprocessor, at least
constexpr int WGRAD_BLOCKS = F == 3 ? 5 - STRIDE : F == 5 ? 4 : 3;

// Where the strips of a tensor lie: strip s has columns `begin` to begin + P, lines `top` to top + count of an image.
// `group` strips in a row have the same columns, of parts one behind the other: threads of a warp meet the same edges.
struct Cut {  // parts: of all images, `chunks` of each, of `rows` lines; per_line: strips side by side
  int strips, parts, per_line, chunks, rows, height, width;
};
struct Place {
  int image, top, count, begin;  // count: 0 behind the last part
  INLINE Place(const Cut &t, int s, int group) {
    const int columns = s / group, above = columns / t.per_line, part = s - (columns - above) * group;
    image = part / t.chunks, top = (part - image * t.chunks) * t.rows;
    count = part < t.parts ? min(t.rows, t.height - top) : 0, begin = (columns - above * t.per_line) * P;
  }
};

// A line of N columns from `left` on, of V channels: the columns that are there, which `mask` has a bit for each.
template <class T, int N, int V, bool INSIDE> struct Line {
  using Bits = typename BitsOf<sizeof(T) * V>::type;
  Bits x[N];  // what is read ahead stays as it is stored until it is there
  INLINE void fetch(const T *from, int channels, unsigned mask) {
    UNROLL for (int j = 0; j < N; j++)
      if (INSIDE || mask >> j & 1) x[j] = *reinterpret_cast<const Bits *>(from + j * channels);
  }
  INLINE void floats(float (&v)[N][V]) const {
    UNROLL for (int k = 0; k < N * V; k++)
      if constexpr (sizeof(T) == 2 && V == 2) {
        v[k / V][k % V] = float_of_pair<T>(x[k / V], k % V);
      } else {
        T element;
        memcpy(&element, reinterpret_cast<const char *>(x) + k * sizeof(T), sizeof(T));
        v[k / V][k % V] = to_float(element);
      }
  }
};
INLINE unsigned columns_inside(int left, int n, int width) {
  unsigned mask = 0;
  for (int j = 0; j < n; j++) mask |= unsigned(unsigned(left + j) < unsigned(width)) << j;
  return mask;
}

struct Strips {
  const void *in;
  const float *w, *bias;
  void *out;
  Cut cut;  // of out
  int in_height, in_width, channels, pad_h, pad_w;
  int first, lanes, flipped, relu;  // first: column of the first output of a line's first strip
};

template <bool SCATTER> constexpr int COLUMNS = SCATTER ? (P + F - 2) / 2 + 1 : (P - 1) * STRIDE + F;  // that are read

// Every step reads S lines and completes DONE; sum[i] is of line out_line + i.
template <class T, bool SCATTER, bool INSIDE>
INLINE void go_down(const Strips &t, const Place &at, const float *filter, int filter_pitch,
                    const Lanes<V, float> &bias, int left, unsigned mask, int c) {
  constexpr int S = SCATTER ? 1 : STRIDE, DONE = SCATTER ? 2 : 1, HELD = SCATTER ? F : (F - 1) / S + 1;
  const int bottom = at.top + at.count, pitch = t.in_width * t.channels;
  const int first = SCATTER ? (at.top + t.pad_h - F + 2) >> 1 : at.top;
  const int end = SCATTER ? ((bottom - 1 + t.pad_h) >> 1) + 1 : bottom + HELD - 1;
  const int from = SCATTER ? first : first * S - t.pad_h;
  const int limit = max(0, min(SCATTER ? end : end * S - t.pad_h, t.in_height));
  const T *in = static_cast<const T *>(t.in) + ((i64)at.image * t.in_height * t.in_width + left) * t.channels + c;
  T *out = static_cast<T *>(t.out) + ((i64)at.image * t.cut.height * t.cut.width + at.begin) * t.channels + c;
  float sum[HELD][P][V];
  UNROLL for (int e = 0; e < HELD * P * V; e++) sum[e / (P * V)][e / V % P][e % V] = bias.v[e % V];
  Line<T, COLUMNS<SCATTER>, V, INSIDE> next = {};
  float now[COLUMNS<SCATTER>][V];
  if (unsigned(from) < unsigned(limit)) next.fetch(in + from * pitch, t.channels, mask);
  for (int k = first, line = from; k < end; k++) {
    const int out_line = SCATTER ? 2 * k - t.pad_h : k - (HELD - 1);
    UNROLL for (int a = 0; a < S; a++, line++) {
      next.floats(now);
      if (unsigned(line + 1) < unsigned(limit)) next.fetch(in + (line + 1) * pitch, t.channels, mask);
      if (unsigned(line) >= unsigned(limit)) continue;
      UNROLL for (int i = 0; i < HELD; i++) {
        const int fh = SCATTER ? i : S * (HELD - 1 - i) + a;
        if (fh >= F || unsigned(out_line + i - at.top) >= unsigned(at.count)) continue;
        Lanes<V, float> w[F];
        UNROLL for (int fw = 0; fw < F; fw++) w[fw] = load<V>(filter + (fh * F + fw) * filter_pitch);
        UNROLL for (int j = 0; j < COLUMNS<SCATTER>; j++)
          if (INSIDE || mask >> j & 1)
            UNROLL for (int k = 0; k < P * V; k++) {
              const int u = k / V, e = k % V, fw = SCATTER ? u - 2 * j + F - 1 : j - S * u;
              if (fw >= 0 && fw < F) sum[i][u][e] = fmaf(now[j][e], w[fw].v[e], sum[i][u][e]);
            }
      }
    }
    UNROLL for (int i = 0; i < DONE; i++)
      if (unsigned(out_line + i - at.top) < unsigned(at.count)) {
        UNROLL for (int u = 0; u < P; u++) {
          if (unsigned(at.begin + u) >= unsigned(t.cut.width)) continue;
          UNROLL for (int e = 0; e < V; e++) sum[i][u][e] = t.relu && sum[i][u][e] < 0.f ? 0.f : sum[i][u][e];
          store_pair(out + ((out_line + i) * t.cut.width + u) * t.channels, sum[i][u][0], sum[i][u][1]);
        }
      }
    UNROLL for (int i = 0; i < HELD; i++)
      UNROLL for (int e = 0; e < P * V; e++)
        sum[i][e / V][e % V] = i + DONE < HELD ? sum[i + DONE][e / V][e % V] : bias.v[e % V];
  }
}

template <class T, bool SCATTER> INLINE void strip(const Strips &t) {
  __shared__ __align__(16) float filter[TAPS * (V * LANES_MOST + 2)];  // [tap][pitch]
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes, wide = t.lanes * V;
  const int pitch = wide + 2, c0 = blockIdx.y * wide, c = c0 + lane * V;
  for (int e = threadIdx.x; e < TAPS * wide; e += THREADS) {
    const int k = e / TAPS, tap = e - k * TAPS;
    if (c0 + k < t.channels) filter[(t.flipped ? TAPS - 1 - tap : tap) * pitch + k] = t.w[(c0 + k) * TAPS + tap];
  }
  __syncthreads();
  if (c >= t.channels || row >= rows) return;
  const Lanes<V, float> bias = t.bias ? load<V>(t.bias + c) : Lanes<V, float>{};
  for (int s = blockIdx.x * rows + row; s < t.cut.strips; s += gridDim.x * rows) {
    Place at(t.cut, s, rows);
    if (!at.count) continue;
    at.begin += t.first;
    const int left = SCATTER ? (at.begin + t.pad_w) / 2 - (F - 1) / 2 : at.begin * STRIDE - t.pad_w;
    const unsigned mask = columns_inside(left, COLUMNS<SCATTER>, t.in_width);
    if (mask + 1 == 1u << COLUMNS<SCATTER>)
      go_down<T, SCATTER, true>(t, at, filter + lane * V, pitch, bias, left, mask, c);
    else
      go_down<T, SCATTER, false>(t, at, filter + lane * V, pitch, bias, left, mask, c);
  }
}

struct StripWgrad {
  const void *x, *g;
  float *slices;
  Cut cut;  // of g
  int in_height, in_width, channels, pad_h, pad_w, lanes, share;  // share: strips of a slice at most
};

template <class T, bool INSIDE>
INLINE void wgrad_down(const StripWgrad &t, const Place &at, int left, int c, float (&sum)[TAPS][WGRAD_V]) {
  constexpr int S = STRIDE, N = WGRAD_V, COLUMNS = ::COLUMNS<false>, HELD = (F - 1) / S + 1;
  const int pitch = t.in_width * t.channels, g_pitch = t.cut.width * t.channels, end = at.top + at.count + HELD - 1;
  const int limit = max(0, min(end * S - t.pad_h, t.in_height));
  const unsigned mask = INSIDE ? 0 : columns_inside(left, COLUMNS, t.in_width);
  const unsigned g_mask = INSIDE ? 0 : columns_inside(at.begin, P, t.cut.width);
  const T *x = static_cast<const T *>(t.x) + ((i64)at.image * t.in_height * t.in_width + left) * t.channels + c;
  const T *g = static_cast<const T *>(t.g) + ((i64)at.image * t.cut.height * t.cut.width + at.begin) * t.channels + c;
  float dy[HELD][P][N] = {}, now[COLUMNS][N];  // dy[i]: line k - (HELD - 1) + i of g
  Line<T, P, N, INSIDE> next_dy = {};
  Line<T, COLUMNS, N, INSIDE> next = {};
  int line = at.top * S - t.pad_h;
  next_dy.fetch(g + at.top * g_pitch, t.channels, g_mask);
  if (unsigned(line) < unsigned(limit)) next.fetch(x + line * pitch, t.channels, mask);
  for (int k = at.top; k < end; k++) {
    UNROLL for (int i = 0; i + 1 < HELD; i++)
      UNROLL for (int e = 0; e < P * N; e++) dy[i][e / N][e % N] = dy[i + 1][e / N][e % N];
    next_dy.floats(dy[HELD - 1]);
    if (k + 1 < at.top + at.count) next_dy.fetch(g + (k + 1) * g_pitch, t.channels, g_mask);
    UNROLL for (int a = 0; a < S; a++, line++) {
      next.floats(now);
      if (unsigned(line + 1) < unsigned(limit)) next.fetch(x + (line + 1) * pitch, t.channels, mask);
      if (unsigned(line) >= unsigned(limit)) continue;
      UNROLL for (int i = 0; i < HELD; i++) {
        const int fh = S * (HELD - 1 - i) + a;
        if (fh >= F || unsigned(k - (HELD - 1) + i - at.top) >= unsigned(at.count)) continue;
        UNROLL for (int j = 0; j < COLUMNS; j++)
          if (INSIDE || mask >> j & 1)
            UNROLL for (int k = 0; k < P * N; k++) {
              const int u = k / N, e = k % N, fw = j - S * u, tap = fh * F + fw;
              if (fw >= 0 && fw < F && (INSIDE || g_mask >> u & 1))
                sum[tap][e] = fmaf(now[j][e], dy[i][u][e], sum[tap][e]);
            }
      }
    }
  }
}

// Grid (slices, channel tiles).
template <class T> INLINE void wgrad(const StripWgrad &t) {
  constexpr int N = WGRAD_V;
  __shared__ float partial[F * N * THREADS];  // [fw][element][thread]
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes;
  const int c0 = blockIdx.y * t.lanes * N, c = c0 + lane * N;
  const int end = min((int)(blockIdx.x + 1) * t.share, t.cut.strips);
  float sum[TAPS][N] = {};
  if (c < t.channels && row < rows)
    for (int s = blockIdx.x * t.share + row; s < end; s += rows) {
      const Place at(t.cut, s, rows);
      if (!at.count) continue;
      const int left = at.begin * STRIDE - t.pad_w;
      if (left >= 0 && left + COLUMNS<false> <= t.in_width && at.begin + P <= t.cut.width)
        wgrad_down<T, true>(t, at, left, c, sum);
      else
        wgrad_down<T, false>(t, at, left, c, sum);
    }
  UNROLL for (int fh = 0; fh < F; fh++) {
    __syncthreads();
    UNROLL for (int e = 0; e < F * N; e++) partial[e * THREADS + threadIdx.x] = sum[fh * F + e / N][e % N];
    __syncthreads();
    for (int e = threadIdx.x; e < F * N * t.lanes; e += THREADS) {
      const int fw = e / (N * t.lanes), k = e - fw * N * t.lanes;
      if (c0 + k >= t.channels) continue;
      const float *from = partial + (fw * N + k % N) * THREADS + k / N;
      float total = 0.f;
      for (int r = 0; r < rows; r++) total += from[r * t.lanes];
      t.slices[((i64)blockIdx.x * TAPS + fh * F + fw) * t.channels + c0 + k] = total;
    }
  }
}

#define STRIP_KERNELS(T, dtype) \
  ALPHA_ENTRY(strip_gather_##dtype, (THREADS, F == 7 && sizeof(T) > 2 ? 2 : BLOCKS), (Strips t), strip<T, false>(t)) \
  ALPHA_ENTRY(strip_scatter_##dtype, (THREADS, BLOCKS), (Strips t), strip<T, true>(t)) \
  ALPHA_ENTRY(strip_wgrad_##dtype, (THREADS, WGRAD_BLOCKS), (StripWgrad t), wgrad<T>(t))
FLOAT_KERNELS(STRIP_KERNELS)
