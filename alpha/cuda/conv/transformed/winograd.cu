// Winograd's transforms of tiles, F(M x M, R x R): both ways, for maps, gradients and filters.
//
// What:     points = B^T x B (inputs), G w G^T (filters), A g A^T (outputs_t); map = A^T m A (outputs), G^T m G
//           (filters_t), for every tile and channel; the products between are convolutions of 1x1 maps, a group a point
// Source:   Winograd's minimal filtering; points and coefficients are Winograd.table of ops/algorithms/tile_transform.py
// Layout:   maps NHWC, filters OHWI; points as in tiles.cuh
// GEMM:     none: a tile of a channel is a thread's own
// Zeros:    tiles reach over the border, where zeros are transformed
// Requires: an image has fewer than 2^31 elements, and so have tiles times channels
// Threads:  one per tile and channel, channels side by side
// Measured: benchmarks/results/h200/algorithms.jsonl
#include "tiles.cuh"

constexpr int N = M + R - 1, Q = (N - 2) / 2, THREADS = 128;  // Q pairs of points, beside 0 and infinity
enum Kind { INPUTS, FILTERS, OUTPUTS_T, OUTPUTS, FILTERS_T };

// Z (Q), then per pair Q_k (Q - 1), p, p^i (M), p^j / N (R), then 1 / N of point 0; see Winograd.table.
struct Table {
  float v[(Q + Q * (Q + M + R) + 2) / 2 * 2];
  INLINE const float *pair(int k) const { return v + Q + k * (Q + M + R); }
  INLINE float first() const { return v[Q + Q * (Q + M + R)]; }
};

// v = B^T d
INLINE void inputs(const Table &t, const float *d, float *v) {
  v[0] = d[2 * Q];
  v[N - 1] = d[2 * Q + 1];
  UNROLL for (int j = 0; j < Q; j++) {
    v[0] += t.v[j] * d[2 * j];
    v[N - 1] += t.v[j] * d[2 * j + 1];
  }
  UNROLL for (int k = 0; k < Q; k++) {
    const float *c = t.pair(k);
    float even = d[2 * Q], odd = d[2 * Q - 1];
    UNROLL for (int j = 0; j < Q - 1; j++) {
      even += c[j] * d[2 * j + 2];
      odd += c[j] * d[2 * j + 1];
    }
    v[1 + 2 * k] = even + c[Q - 1] * odd;
    v[2 + 2 * k] = even - c[Q - 1] * odd;
  }
}

// Values at all points of the polynomial with coefficients a (L), scaled by the powers at `at` of each pair.
template <int L> INLINE void evaluate(const Table &t, const float *a, float *v, int at) {
  v[0] = a[0];
  v[N - 1] = a[L - 1];
  UNROLL for (int k = 0; k < Q; k++) {
    const float *power = t.pair(k) + at;
    float even = power[0] * a[0], odd = power[1] * a[1];
    UNROLL for (int j = 2; j < L; j++) (j % 2 ? odd : even) += power[j] * a[j];
    v[1 + 2 * k] = even + odd;
    v[2 + 2 * k] = even - odd;
  }
}

// The transpose of evaluate.
template <int L> INLINE void combine(const Table &t, const float *v, float *a, int at, float first) {
  UNROLL for (int j = 0; j < L; j++) a[j] = j == 0 ? first * v[0] : j == L - 1 ? v[N - 1] : 0.f;
  UNROLL for (int k = 0; k < Q; k++) {
    const float *power = t.pair(k) + at, even = v[1 + 2 * k] + v[2 + 2 * k], odd = v[1 + 2 * k] - v[2 + 2 * k];
    UNROLL for (int j = 0; j < L; j++) a[j] += power[j] * (j % 2 ? odd : even);
  }
}

template <Kind KIND> INLINE void line(const Table &t, const float *from, float *to) {
  if constexpr (KIND == INPUTS) inputs(t, from, to);
  if constexpr (KIND == OUTPUTS_T) evaluate<M>(t, from, to, Q);
  if constexpr (KIND == OUTPUTS) combine<M>(t, from, to, Q, 1.f);
  if constexpr (KIND == FILTERS_T) combine<R>(t, from, to, Q + M, t.first());
  if constexpr (KIND == FILTERS) {
    evaluate<R>(t, from, to, Q + M);
    to[0] = t.first() * from[0];
  }
}

// out (B x B) = the transform along both axes of in (A x A).
template <Kind KIND, int A, int B> INLINE void both_axes(const Table &t, const float (&in)[A][A], float (&out)[B][B]) {
  float half[B][A];
  UNROLL for (int j = 0; j < A; j++) {
    float from[A], to[B];
    UNROLL for (int i = 0; i < A; i++) from[i] = in[i][j];
    line<KIND>(t, from, to);
    UNROLL for (int i = 0; i < B; i++) half[i][j] = to[i];
  }
  UNROLL for (int i = 0; i < B; i++) line<KIND>(t, half[i], out[i]);
}

// points = the transform of tiles of A x A pixels.
template <Kind KIND, int A> INLINE void to_points(const float *map, float *points, const Table &table, const Tiles &t) {
  const int number = blockIdx.x * THREADS + threadIdx.x, item = number / t.c, c = number - item * t.c;
  if (item >= t.count) return;
  const Place at(t, t.first + item);
  map += at.image + (long long)c * t.channel;
  float d[A][A], v[N][N];
  UNROLL for (int i = 0; i < A; i++)
    UNROLL for (int j = 0; j < A; j++) d[i][j] = pixel_of(t, map, at, i, j);
  both_axes<KIND>(table, d, v);
  float *to = points + (item * t.item + c);
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int j = 0; j < N; j++) to[(i * N + j) * t.point] = v[i][j];
}

// Tiles of B x B pixels = the transform of points, then bias and relu.
template <Kind KIND, int B>
INLINE void to_pixels(const float *points, float *map, const float *bias, const Table &table, const Tiles &t,
                      int relu) {
  const int number = blockIdx.x * THREADS + threadIdx.x, item = number / t.c, c = number - item * t.c;
  if (item >= t.count) return;
  const Place at(t, t.first + item);
  const float *from = points + (item * t.item + c);
  map += at.image + (long long)c * t.channel;
  float v[N][N], y[B][B];
  UNROLL for (int i = 0; i < N; i++)
    UNROLL for (int j = 0; j < N; j++) v[i][j] = from[(i * N + j) * t.point];
  both_axes<KIND>(table, v, y);
  const float add = bias ? bias[c] : 0.f;
  UNROLL for (int i = 0; i < B; i++)
    UNROLL for (int j = 0; j < B; j++) put_pixel(t, map, at, i, j, y[i][j] + add, relu);
}

#define TRANSFORM(name, ...) \
  ALPHA_ENTRY(winograd_##name, (THREADS), \
              (const float *from, float *to, const float *bias, Table table, Tiles tiles, int relu), __VA_ARGS__)
TRANSFORM(inputs, to_points<INPUTS, N>(from, to, table, tiles))
TRANSFORM(filters, to_points<FILTERS, R>(from, to, table, tiles))
TRANSFORM(outputs_t, to_points<OUTPUTS_T, M>(from, to, table, tiles))
TRANSFORM(outputs, to_pixels<OUTPUTS, M>(from, to, bias, table, tiles, relu))
TRANSFORM(filters_t, to_pixels<FILTERS_T, R>(from, to, bias, table, tiles, relu))
