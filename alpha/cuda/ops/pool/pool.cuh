// Pools: the geometry of windows, and the forward pass, whatever x is read from and y is written to; pool.cu says the
// rest. Both are known by their elements' numbers: x.load(i), x.at(piece, lane), y.put(values, i).
#pragma once
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

// V elements at a time of a tensor, and of a result
template <int V, class T> struct Input {
  using Piece = Lanes<V, T>;
  const T *x;
  __device__ __forceinline__ Piece load(i64 i) const { return ::load<V>(x + i); }
  __device__ __forceinline__ float at(const Piece &piece, int lane) const { return value(piece, lane); }
};
template <int V, class T> struct Output {
  T *y;
  __device__ __forceinline__ void put(const float (&v)[V], i64 i) const { store_floats(y + i, v); }
};

// ---- the largest and the mean element of a window ------------------------------------------------------------------

template <int V, class X, class Y>
__device__ __forceinline__ void max_pool(const Pool &p, int k, const X &x, Y &&y, int *index) {
  const Site s = site_of<V>(p, p.h.out, p.w.out, k);
  const Range rows = p.h.window(s.row), columns = p.w.window(s.column);
  const bool first_nan = !p.h.kernel;  // of several NaNs an adaptive window takes the first, others the last
  for (int image = s.image; image < p.images; image += p.apart) {
    const i64 from = p.input_image(image) + s.c;
    float best[V];
    Lanes<V, int> where;
#pragma unroll
    for (int l = 0; l < V; l++) {
      best[l] = __int_as_float(0xff800000);  // -inf
      where.v[l] = rows.first * p.w.in.n + columns.first;
    }
    for_each_pixel<4>(
        rows, columns, [&](int row, int column) { return x.load(from + p.input_at(row, column)); },
        [&](const typename X::Piece &item, int row, int column) {
#pragma unroll
          for (int l = 0; l < V; l++) {
            const float v = x.at(item, l);
            if (v > best[l] || (v != v && !(first_nan && best[l] != best[l]))) {
              best[l] = v;
              where.v[l] = row * p.w.in.n + column;
            }
          }
        });
    const i64 at = p.output_image(image) + p.output_at(s.row, s.column) + s.c;
    y.put(best, at);
    store(index + at, where);
  }
}

template <int V, class X, class Y>
__device__ __forceinline__ void avg_pool(const Pool &p, int k, const X &x, Y &&y) {
  const Site s = site_of<V>(p, p.h.out, p.w.out, k);
  const Range rows = p.h.window(s.row), columns = p.w.window(s.column);
  const Divisor divisor = p.divisor ? p.one_divisor() : p.own_divisor(s.row, s.column);
  for (int image = s.image; image < p.images; image += p.apart) {
    const i64 from = p.input_image(image) + s.c;
    ExactSum exact[V] = {};
    for_each_pixel<4>(
        rows, columns, [&](int row, int column) { return x.load(from + p.input_at(row, column)); },
        [&](const typename X::Piece &item, int, int) {
#pragma unroll
          for (int l = 0; l < V; l++) exact[l].add(x.at(item, l));
        });
    float sum[V];
#pragma unroll
    for (int l = 0; l < V; l++) sum[l] = exact[l].value();
    divisor.divide(sum);
    y.put(sum, p.output_image(image) + p.output_at(s.row, s.column) + s.c);
  }
}
