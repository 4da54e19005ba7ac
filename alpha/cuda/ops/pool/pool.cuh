// Pools: the geometry of windows, and the forward pass, whatever x is read from and y is written to; pool.cu says the
// rest. Both are known by their elements' numbers: x.load(i), x.at(piece, lane), y.put(values, i).
#pragma once
#include <type_traits>

#include "lanes.cuh"
#include "reduce.cuh"

// A number of elements, with what dividing by it takes: floor(k / n) for 0 <= k < 2^31, as the upper half of a product.
struct Size {
  int n;
  unsigned multiplier;
  int shift;
  INLINE int quotient(int k) const { return (__umulhi(k, multiplier) + k) >> shift; }
  // Returns k % n, and divides k by n.
  INLINE int take(int &k) const {
    const int whole = quotient(k), rest = k - whole * n;
    k = whole;
    return rest;
  }
};

struct Range {
  int first, last;
  INLINE int size() const { return last > first ? last - first : 0; }
  INLINE bool holds(int k) const { return first <= k && k < last; }
};

// H or W. kernel 0: adaptive, window o spans [o * in / out, (o + 1) * in / out), the latter rounded up.
struct Axis {
  int kernel, padding;
  Size in, out, stride, tiles;  // tiles: what threads take of it

  INLINE Range window(int o) const {
    if (!kernel) return spread(o, in.n, out);
    const int start = o * stride.n - padding;
    return {max(0, start), min(in.n, start + kernel)};
  }
  // Outputs whose window holds input i.
  INLINE Range covering(int i) const {
    if (!kernel) return spread(i, out.n, in);
    const int above = i + padding - kernel;
    return {above < 0 ? 0 : stride.quotient(above) + 1, min(out.n, stride.quotient(i + padding) + 1)};
  }
  static INLINE Range spread(int k, int many, const Size &few) {
    return {few.quotient(k * many), few.quotient((k + 1) * many + few.n - 1)};
  }
};

// A number of pixels to divide by: a product, and what it lacks (Markstein), rounded correctly.
struct Divisor {
  float size, reciprocal;
  bool exact;  // the reciprocal, so that the product lacks nothing
  template <int V> INLINE void divide(float (&sum)[V]) const {
    UNROLL for (int l = 0; l < V; l++) {
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

  INLINE int input_at(int row, int column) const { return (row * w.in.n + column) * channels; }
  INLINE int output_at(int row, int column) const { return (row * w.out.n + column) * channels; }
  INLINE i64 input_image(i64 image) const { return image * input_at(h.in.n, 0); }
  INLINE i64 output_image(i64 image) const { return image * output_at(h.out.n, 0); }
  INLINE Divisor one_divisor() const {
    return {static_cast<float>(divisor), reciprocal, (divisor & (divisor - 1)) == 0};
  }
  INLINE Divisor own_divisor(int oh, int ow) const {
    const float size = static_cast<float>(h.window(oh).size() * w.window(ow).size());
    return {size, 1 / size, false};
  }
};

// How a window names a pixel: by ih * IW + iw, or in a byte by kh * KW + kw, its place within the window.
template <class Index> struct Naming {
  int per_row, first;
  INLINE Naming(const Pool &p, int oh, int ow) : per_row(p.w.in.n), first(0) {
    if (sizeof(Index) > 1) return;
    per_row = p.w.kernel;
    first = (p.h.padding - oh * p.h.stride.n) * per_row + p.w.padding - ow * p.w.stride.n;
  }
  INLINE int operator()(int row, int column) const { return row * per_row + column + first; }
};

// What a thread works on: the first of its images, a pixel of the result, and the first of its channels.
struct Site { int c, column, row, image; };
template <int V> INLINE Site site_of(const Pool &p, int k) {
  Site s;
  s.c = p.packets.take(k) * V;
  s.column = p.w.tiles.take(k);
  s.row = p.h.tiles.take(k);
  s.image = k;
  return s;
}
// The rows of a thread where each has a strip of them
INLINE Range strip_of(const Site &s, const Size &rows, const Axis &axis) {
  const int each = (rows.n + axis.tiles.n - 1) / axis.tiles.n;
  return {s.row * each, min(rows.n, (s.row + 1) * each)};
}

// Visits the pixels of a rectangle row by row: item = fetch(row, column), then use(item, row, column); BATCH fetches
// are on their way at a time.
template <int BATCH, class Fetch, class Use>
INLINE void for_each_pixel(const Range &rows, const Range &columns, Fetch fetch, Use use) {
  const int area = rows.size() * columns.size();
  int row = rows.first, column = columns.first;
  UNROLL_BY(1) for (int done = 0; done < area; done += BATCH) {
    decltype(fetch(0, 0)) items[BATCH];
    int item_row[BATCH], item_column[BATCH];
    UNROLL for (int k = 0; k < BATCH; k++) {
      item_row[k] = row;
      item_column[k] = column;
      if (done + k < area) items[k] = fetch(row, column);
      if (++column == columns.last) {
        column = columns.first;
        row++;
      }
    }
    UNROLL for (int k = 0; k < BATCH; k++)
      if (done + k < area) use(items[k], item_row[k], item_column[k]);
  }
}

// V elements at a time of a tensor, and of a result
template <int V, class T> struct Input {
  using Piece = Lanes<V, T>;
  const T *x;
  INLINE Piece load(i64 i) const { return ::load<V>(x + i); }
  INLINE float at(const Piece &piece, int lane) const { return value(piece, lane); }
  INLINE unsigned word(const Piece &piece, int e) const {
    unsigned word;
    memcpy(&word, reinterpret_cast<const char *>(piece.v) + 4 * e, 4);
    return word;
  }
};
template <int V, class T> struct Output {
  T *y;
  INLINE void put(const float (&v)[V], i64 i) const { store_floats(y + i, v); }
  INLINE void put_words(const unsigned (&w)[4], i64 i) const {
    *reinterpret_cast<uint4 *>(y + i) = make_uint4(w[0], w[1], w[2], w[3]);
  }
};

// Words of 32 bits with an element or two, the greater of which are chosen. Codes lie in words in the same way.
template <class T> struct Words {
  static constexpr unsigned EACH = 2 / (sizeof(T) / 2), ONE = 0x10001;  // of a code
  using Two = std::conditional_t<std::is_same<T, f16>::value, __half2, __nv_bfloat162>;
  static constexpr unsigned LEAST = std::is_same<T, f16>::value ? 0xfc00fc00 : 0xff80ff80;  // -Inf
  static constexpr unsigned MAGNITUDE = 0x7fff7fff;
  static INLINE Two two(unsigned word) {
    Two pair;
    memcpy(&pair, &word, 4);
    return pair;
  }
  static INLINE unsigned greater(unsigned a, unsigned b) {
#if ALPHA_ARCH < 80
    if constexpr (std::is_same<T, bf16>::value)  // which has no instruction for it there
      return (float_of_pair<T>(a, false) > float_of_pair<T>(b, false) ? 0xffffu : 0) |
             (float_of_pair<T>(a, true) > float_of_pair<T>(b, true) ? 0xffff0000u : 0);
    else
#endif
      return __hgt2_mask(two(a), two(b));
  }
  // 0 * word + sum: NaN where an element is Inf or NaN, else a zero
  static INLINE unsigned nothing(unsigned word, unsigned sum) {
#if ALPHA_ARCH < 80
    if constexpr (std::is_same<T, bf16>::value)
      return pair_of_floats<T>(fmaf(float_of_pair<T>(word, false), 0, float_of_pair<T>(sum, false)),
                               fmaf(float_of_pair<T>(word, true), 0, float_of_pair<T>(sum, true)));
    else
#endif
    {
      const Two made = __hfma2(two(word), two(0), two(sum));
      memcpy(&sum, &made, 4);
      return sum;
    }
  }
};
template <> struct Words<float> {
  static constexpr unsigned EACH = 1, ONE = 1, LEAST = 0xff800000, MAGNITUDE = 0x7fffffff;
  static INLINE bool greater(unsigned a, unsigned b) { return __uint_as_float(a) > __uint_as_float(b); }
  static INLINE unsigned nothing(unsigned word, unsigned sum) {
    return __float_as_uint(__fmaf_rn(__uint_as_float(word), 0, __uint_as_float(sum)));
  }
};
INLINE unsigned choose(bool take, unsigned a, unsigned b) { return take ? a : b; }
INLINE unsigned choose(unsigned mask, unsigned a, unsigned b) { return (mask & a) | (~mask & b); }

// ---- the largest and the mean element of a window ------------------------------------------------------------------

// Window (oh, ow) of an image, whose channel c begins at `from`
template <int V, class X, class Y, class Index>
INLINE void window_max(const Pool &p, int oh, int ow, i64 from, i64 at, const X &x, Y &&y, Index *index) {
  const Range rows = p.h.window(oh), columns = p.w.window(ow);
  const Naming<Index> name(p, oh, ow);
  float best[V];
  int where[V];
  UNROLL for (int l = 0; l < V; l++) {
    best[l] = __int_as_float(0xff800000);  // -inf
    where[l] = name(rows.first, columns.first);
  }
  for_each_pixel<4>(
      rows, columns, [&](int row, int column) { return x.load(from + p.input_at(row, column)); },
      [&](const typename X::Piece &item, int row, int column) {
        UNROLL for (int l = 0; l < V; l++) {
          const float v = x.at(item, l);
          if (v > best[l] || v != v) {  // the last of several NaNs
            best[l] = v;
            where[l] = name(row, column);
          }
        }
      });
  Lanes<V, Index> named;
  UNROLL for (int l = 0; l < V; l++) named.v[l] = static_cast<Index>(where[l]);
  y.put(best, at);
  store(index + at, named);
}

template <int V, class X, class Y, class Index>
INLINE void max_pool(const Pool &p, int k, const X &x, Y &&y, Index *index) {
  const Site s = site_of<V>(p, k);
  for (int image = s.image; image < p.images; image += p.apart)
    window_max<V>(p, s.row, s.column, p.input_image(image) + s.c,
                  p.output_image(image) + p.output_at(s.row, s.column) + s.c, x, y, index);
}

// 16 bytes of elements of T with the largest of some pixels, and which these are; rare: whether Inf or NaN is among them
template <class T> struct Largest {
  using W = Words<T>;
  unsigned best[4] = {W::LEAST, W::LEAST, W::LEAST, W::LEAST}, where[4] = {};
  bool rare = false;
  // The larger ones of these, where others are not greater; `more` is added to the codes of those.
  INLINE Largest or_of(const Largest &others, unsigned more) const {
    Largest made;
    made.rare = rare | others.rare;
    UNROLL for (int e = 0; e < 4; e++) {
      const auto take = W::greater(others.best[e], best[e]);
      made.best[e] = choose(take, others.best[e], best[e]);
      made.where[e] = choose(take, others.where[e] + more * W::ONE, where[e]);
    }
    return made;
  }
};

// Windows of 3 x 3 at stride 1 or 2, a strip of up to 32 pixels of a column of y at a time. A row of x gives the largest
// of 3 neighbours once; a window is that of two rows, which are there, and of the third. What lies outside at the sides
// is stood for by the middle, which as the first of equals has the code of the middle. Where Inf or NaN is near,
// window_max has its say.
template <int V, class T, class X, class Y>
INLINE void max_pool_rows(const Pool &p, int k, const X &x, Y &&y, unsigned char *index) {
  using W = Words<T>;
  const Site s = site_of<V>(p, k);
  const Range out = strip_of(s, p.h.out, p.h);
  const int middle = s.column * p.w.stride.n - p.w.padding + 1, top = out.first * p.h.stride.n - p.h.padding;
  const int end = (out.last - 1) * p.h.stride.n - p.h.padding + 3;
  const bool left = middle > 0, right = middle + 1 < p.w.in.n;
  const int columns[3] = {middle - left, middle, middle + right};
  const unsigned codes[3] = {left ? 0 : W::ONE, W::ONE, 2 * W::ONE};
  for (int image = s.image; image < p.images && out.size(); image += p.apart) {
    const i64 from = p.input_image(image) + s.c, to = p.output_image(image) + s.c;
    unsigned later = 0;  // windows of the strip that are rare
    typename X::Piece ahead[3];
    const auto load = [&](int row) {
      if (row < 0 || row >= p.h.in.n || row >= end) return;
      UNROLL for (int c = 0; c < 3; c++) ahead[c] = x.load(from + p.input_at(row, columns[c]));
    };
    Largest<T> two, one;  // of the two rows before, and of the one before
    load(top);
    UNROLL_BY(1) for (int row = top; row < end; row++) {
      Largest<T> here;
      typename X::Piece pieces[3] = {ahead[0], ahead[1], ahead[2]};
      load(row + 1);
      if (row >= 0 && row < p.h.in.n) {
        unsigned rare = 0;
        UNROLL for (int e = 0; e < 4; e++) {
          unsigned sum = 0;
          UNROLL for (int c = 0; c < 3; c++) {
            unsigned word;
            if constexpr (sizeof(T) == 4) word = __float_as_uint(x.at(pieces[c], e));
            else word = x.word(pieces[c], e);
            sum = W::nothing(word, sum);
            const auto take = W::greater(word, here.best[e]);
            here.where[e] = c ? choose(take, codes[c], here.where[e]) : codes[0];
            here.best[e] = c ? choose(take, word, here.best[e]) : word;
          }
          rare |= sum;
        }
        here.rare = rare & W::MAGNITUDE;
      }
      int oh = row - top - 2;  // its window ends here, if there is one
      if (oh >= 0 && p.h.stride.take(oh) == 0) {
        oh += out.first;
        const Largest<T> found = two.or_of(here, 6);
        if (found.rare) {
          later |= 1u << (oh - out.first);
        } else {
          const i64 at = to + p.output_at(oh, s.column);
          if constexpr (sizeof(T) == 4) {
            const float v[4] = {__uint_as_float(found.best[0]), __uint_as_float(found.best[1]),
                                __uint_as_float(found.best[2]), __uint_as_float(found.best[3])};
            y.put(v, at);
          } else {
            y.put_words(found.best, at);
          }
          Lanes<V, unsigned char> named;
          UNROLL for (int l = 0; l < V; l++)
            named.v[l] = static_cast<unsigned char>(found.where[l / W::EACH] >> 16 * (l % W::EACH));
          store(index + at, named);
        }
      }
      two = one.or_of(here, 3);
      one = here;
    }
    for (int oh = out.first; later; oh++, later >>= 1)
      if (later & 1) window_max<V>(p, oh, s.column, from, to + p.output_at(oh, s.column), x, y, index);
  }
}

template <int V, class X, class Y> INLINE void avg_pool(const Pool &p, int k, const X &x, Y &&y) {
  const Site s = site_of<V>(p, k);
  const Range rows = p.h.window(s.row), columns = p.w.window(s.column);
  const Divisor divisor = p.divisor ? p.one_divisor() : p.own_divisor(s.row, s.column);
  for (int image = s.image; image < p.images; image += p.apart) {
    const i64 from = p.input_image(image) + s.c;
    ExactSum exact[V] = {};
    for_each_pixel<4>(
        rows, columns, [&](int row, int column) { return x.load(from + p.input_at(row, column)); },
        [&](const typename X::Piece &item, int, int) {
          UNROLL for (int l = 0; l < V; l++) exact[l].add(x.at(item, l));
        });
    float sum[V];
    UNROLL for (int l = 0; l < V; l++) sum[l] = exact[l].value();
    divisor.divide(sum);
    y.put(sum, p.output_image(image) + p.output_at(s.row, s.column) + s.c);
  }
}
