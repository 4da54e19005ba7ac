// Depthwise convolution with square filters of F x F, stride STRIDE: a thread has a strip of P neighbours in a line.
//
// What:     strip_gather    y[n][oh][ow][c] = sum over fh, fw of x[n][oh*S - p + fh][ow*S - p + fw][c] * w[c][fh][fw],
//                           with bias and relu on top; with `flipped` filters it is dgrad of stride 1
//           strip_scatter   dx[n][ih][iw][c] = sum of g[n][(ih + p - fh)/2][(iw + p - fw)/2][c] * w[c][fh][fw] over the
//                           taps that leave no remainder: dgrad of stride 2
//           strip_wgrad     slices[s][tap][c] = sum over the strips of slice s of g * x; depthwise_sum adds the slices
// Source:   the definition, with the tap ranges of arXiv 2306.15951
// Layout:   activations (N, H, W, C), NHWC, as T; w (C, F, F, 1), bias and slices float32; sums in float32
// GEMM:     none: nothing is summed over channels. What is read for a strip serves all its outputs
// Zeros:    lines and columns outside the map are skipped, padded and inserted zeros are never read
// Requires: C % 4 = 0, F of 3, 5, 7, stride 1 or 2 on both axes, no dilation; elements of a tensor fewer than 2^31
// Threads:  `lanes` side by side along the channels, V of them each; the rest along strips
// Measured: no file of results has it; the rates in costs.py are estimates
#include "storage.cuh"

constexpr int THREADS = 192, P = 4, V = 4, TAPS = F * F;
constexpr int WGRAD_V = F < 7 ? 4 : 2;  // F * F * V sums stay in registers
constexpr int BLOCKS = F * STRIDE < 7 ? 3 : 2;  // of a multiprocessor, at least

// N elements of a channel group, as they are stored
template <class T, int N> struct alignas(sizeof(T) * N) Group {
  T v[N];
};
template <class T, int N> __device__ __forceinline__ Group<T, N> read(const T *p) {
  return *reinterpret_cast<const Group<T, N> *>(p);
}

struct Strips {
  const void *in;
  const float *w, *bias;
  void *out;
  int strips, per_line, height, width;  // of out: strips of all images, of a line; its map
  int in_height, in_width, channels, pad_h, pad_w;
  int first, lanes, flipped, relu, unused;  // first: column of the first output of a line's first strip
};

template <class T, bool SCATTER> __device__ __forceinline__ void strip(const Strips &t) {
  constexpr int S = SCATTER ? 1 : STRIDE, COLUMNS = SCATTER ? (P + F - 2) / 2 + 1 : (P - 1) * S + F;
  __shared__ __align__(16) float filter[TAPS * THREADS];  // [tap][4 * lanes]
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes, wide = t.lanes * V;
  const int c0 = blockIdx.y * wide, c = c0 + lane * V;
  for (int e = threadIdx.x; e < TAPS * wide; e += THREADS) {
    const int k = e / TAPS, tap = e - k * TAPS;
    if (c0 + k < t.channels) filter[(t.flipped ? TAPS - 1 - tap : tap) * wide + k] = t.w[(c0 + k) * TAPS + tap];
  }
  __syncthreads();
  if (c >= t.channels || row >= rows) return;
  const Group<float, V> bias = t.bias ? read<float, V>(t.bias + c) : Group<float, V>{};
  for (int s = blockIdx.x * rows + row; s < t.strips; s += gridDim.x * rows) {
    const int line = s / t.per_line, begin = t.first + (s - line * t.per_line) * P;
    const int image = line / t.height, y = line - image * t.height;
    const int left = SCATTER ? (begin + t.pad_w) / 2 - (F - 1) / 2 : begin * S - t.pad_w;
    const bool inside = left >= 0 && left + COLUMNS <= t.in_width;
    float sum[P][V];
#pragma unroll
    for (int e = 0; e < P * V; e++) sum[e / V][e % V] = bias.v[e % V];
    for (int fh = SCATTER ? (y + t.pad_h) % 2 : 0; fh < F; fh += SCATTER ? 2 : 1) {
      const int at = SCATTER ? y + t.pad_h - fh : y * S - t.pad_h + fh, from = SCATTER ? at / 2 : at;
      if (at < 0 || from >= t.in_height) continue;
      const T *in = static_cast<const T *>(t.in) +
                    ((i64)(image * t.in_height + from) * t.in_width + left) * t.channels + c;
      Group<float, V> w[F];
#pragma unroll
      for (int fw = 0; fw < F; fw++) w[fw] = read<float, V>(filter + (fh * F + fw) * wide + lane * V);
      Group<T, V> x[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
        if (inside || unsigned(left + j) < unsigned(t.in_width)) x[j] = read<T, V>(in + j * t.channels);
#pragma unroll
      for (int j = 0; j < COLUMNS; j++)
        if (inside || unsigned(left + j) < unsigned(t.in_width)) {
#pragma unroll
          for (int u = 0; u < P; u++) {
            const int fw = SCATTER ? u - 2 * j + F - 1 : j - S * u;
            if (fw < 0 || fw >= F) continue;
#pragma unroll
            for (int k = 0; k < V; k++) sum[u][k] = fmaf(to_float(x[j].v[k]), w[fw].v[k], sum[u][k]);
          }
        }
    }
    T *out = static_cast<T *>(t.out) + ((i64)line * t.width + begin) * t.channels + c;
#pragma unroll
    for (int u = 0; u < P; u++) {
      if (unsigned(begin + u) >= unsigned(t.width)) continue;
      Group<T, V> stored;
#pragma unroll
      for (int k = 0; k < V; k++) stored.v[k] = from_float<T>(t.relu && sum[u][k] < 0.f ? 0.f : sum[u][k]);
      *reinterpret_cast<Group<T, V> *>(out + u * t.channels) = stored;
    }
  }
}

struct StripWgrad {
  const void *x, *g;
  float *slices;
  int strips, per_line, height, width;  // of g
  int in_height, in_width, channels, pad_h, pad_w, lanes, share, unused;  // share: strips of a slice at most
};

template <class T, bool INSIDE>
__device__ __forceinline__ void wgrad_strip(const StripWgrad &t, const T *x, const T *g, int top, int left, int count,
                                            float (&sum)[TAPS][WGRAD_V]) {
  constexpr int COLUMNS = (P - 1) * STRIDE + F, N = WGRAD_V;
  Group<T, N> dy[P];
#pragma unroll
  for (int u = 0; u < P; u++)
    if (INSIDE || u < count) dy[u] = read<T, N>(g + u * t.channels);
#pragma unroll
  for (int fh = 0; fh < F; fh++) {
    if (unsigned(top + fh) >= unsigned(t.in_height)) continue;
    const T *from = x + (i64)fh * t.in_width * t.channels;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      if (!INSIDE && unsigned(left + j) >= unsigned(t.in_width)) continue;
      const Group<T, N> v = read<T, N>(from + j * t.channels);
#pragma unroll
      for (int u = 0; u < P; u++) {
        const int fw = j - STRIDE * u;
        if (fw < 0 || fw >= F || !(INSIDE || u < count)) continue;
#pragma unroll
        for (int k = 0; k < N; k++)
          sum[fh * F + fw][k] = fmaf(to_float(v.v[k]), to_float(dy[u].v[k]), sum[fh * F + fw][k]);
      }
    }
  }
}

// Grid (slices, channel tiles).
template <class T> __device__ __forceinline__ void wgrad(const StripWgrad &t) {
  constexpr int COLUMNS = (P - 1) * STRIDE + F, N = WGRAD_V;
  __shared__ float partial[F * N * THREADS];  // [fw][element][thread]
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes;
  const int c0 = blockIdx.y * t.lanes * N, c = c0 + lane * N;
  const int end = min((int)(blockIdx.x + 1) * t.share, t.strips);
  float sum[TAPS][N] = {};
  if (c < t.channels && row < rows)
    for (int s = blockIdx.x * t.share + row; s < end; s += rows) {
      const int line = s / t.per_line, begin = (s - line * t.per_line) * P, image = line / t.height;
      const int top = (line - image * t.height) * STRIDE - t.pad_h, left = begin * STRIDE - t.pad_w;
      const int count = t.width - begin;
      const T *x = static_cast<const T *>(t.x) +
                   ((i64)(image * t.in_height + top) * t.in_width + left) * t.channels + c;
      const T *g = static_cast<const T *>(t.g) + ((i64)line * t.width + begin) * t.channels + c;
      if (left >= 0 && left + COLUMNS <= t.in_width && count >= P)
        wgrad_strip<T, true>(t, x, g, top, left, count, sum);
      else
        wgrad_strip<T, false>(t, x, g, top, left, count, sum);
    }
#pragma unroll
  for (int fh = 0; fh < F; fh++) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < F * N; e++) partial[e * THREADS + threadIdx.x] = sum[fh * F + e / N][e % N];
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
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) strip_gather_##dtype(Strips t) { strip<T, false>(t); } \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) strip_scatter_##dtype(Strips t) { strip<T, true>(t); } \
  ALPHA_KERNEL(strip_gather_##dtype) ALPHA_KERNEL(strip_scatter_##dtype) \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) strip_wgrad_##dtype(StripWgrad t) { wgrad<T>(t); } \
  ALPHA_KERNEL(strip_wgrad_##dtype)
FLOAT_KERNELS(STRIP_KERNELS)
