// What:    max and average pooling, forward and backward, any window, stride and padding
//          max  y = max over the window, index = ih * IW + iw of the first maximum; a NaN in the window is the maximum
//          avg  y = sum over the window / divisor (its real pixels, or kh * kw where padding is counted)
// Layout:  NHWC; vectors run over channels.
// Zeros:   windows are trimmed to the map, so padding is never read. The backward passes gather: each input pixel sums
//          over the windows that cover it, in ascending order, so nothing is scattered and nothing is cleared first; of
//          maxima of windows side by side each window writes its pixels.
// Sums:    PART pixels in float, parts in double.
// Threads: rows of the tensor that is written.
#include <limits>
#include <type_traits>
#include <vector>

#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 16384, PART = 8;

// Whether more pixels meet than one chain of float32 may add.
INLINE bool are_many(int64_t height, int64_t width) { return height * width > PART + 1; }

struct Range {
  int64_t first, last;
  int64_t size() const { return last - first; }
};

struct PoolAxis {
  int64_t in, out, kernel, stride, padding;

  Range window(int64_t o) const {
    const int64_t start = o * stride - padding;
    return {std::max<int64_t>(0, start), std::min(in, start + kernel)};
  }
  // Outputs whose window holds input i.
  Range covering(int64_t i) const {
    const int64_t above = i + padding - kernel;
    return {above < 0 ? 0 : above / stride + 1, std::min(out, (i + padding) / stride + 1)};
  }
};

// Table: n, channels, then in, out, kernel, stride, padding of H and of W.
struct Pool {
  int64_t n, channels;
  PoolAxis h, w;

  explicit Pool(const int64_t* t) : n(t[0]), channels(t[1]), h{t[2], t[3], t[4], t[5], t[6]},
                                    w{t[7], t[8], t[9], t[10], t[11]} {}

  // Whether many windows may hold one input.
  bool many_cover() const { return are_many(ceil_div(h.kernel, h.stride), ceil_div(w.kernel, w.stride)); }
  // Whether windows lie side by side from the first pixel on.
  bool apart() const {
    return h.kernel == h.stride && w.kernel == w.stride && h.padding == 0 && w.padding == 0;
  }
  int64_t inputs() const { return n * h.in * w.in * channels; }
  int64_t outputs() const { return n * h.out * w.out * channels; }
  int64_t input(int64_t image, int64_t ih, int64_t iw) const { return ((image * h.in + ih) * w.in + iw) * channels; }
  int64_t output(int64_t image, int64_t oh, int64_t ow) const { return ((image * h.out + oh) * w.out + ow) * channels; }
  float divisor(int64_t oh, int64_t ow, bool count_padding) const {
    return float(count_padding ? h.kernel * w.kernel : h.window(oh).size() * w.window(ow).size());
  }
};

using RangeOf = Range (PoolAxis::*)(int64_t) const;

// Calls body(image, row, column, rows, columns) for every pixel of a map, where rows and columns are the ranges that
// (p.h.*range)(row) and (p.w.*range)(column) give.
template <class Body>
INLINE void for_each_pixel(const Pool& p, int64_t height, int64_t width, RangeOf range, Body body) {
  std::vector<Range> columns(width);
  for (int64_t j = 0; j < width; j++) columns[j] = (p.w.*range)(j);
#pragma omp parallel for schedule(static) num_threads(team(p.n * height * width * p.channels, ALONE_BELOW))
  for (int64_t k = 0; k < p.n * height; k++) {
    const int64_t image = k / height, row = k % height;
    const Range rows = (p.h.*range)(row);
    for (int64_t j = 0; j < width; j++) body(image, row, j, rows, columns[j]);
  }
}

// The sum of term(at, a, b) over a rectangle of pixels, row by row; at: of pixel (0, 0), and steps from there on.
template <bool MANY, class Term>
INLINE vfloat sum_pixels(const Range& rows, const Range& columns, int64_t first, int64_t row_step, int64_t step,
                         Term term) {
  typedef double vdouble __attribute__((vector_size(LANES * 8)));
  vdouble total = {};
  vfloat sum = {};
  int64_t added = 0;
  for (int64_t a = 0; a < rows.size(); a++) {
    int64_t at = first + a * row_step;
    for (int64_t b = 0; b < columns.size(); b++, at += step) {
      sum += term(at, a, b);
      if (MANY && ++added == PART) {
        total += __builtin_convertvector(sum, vdouble);
        sum = vfloat{};
        added = 0;
      }
    }
  }
  return MANY ? __builtin_convertvector(total + __builtin_convertvector(sum, vdouble), vfloat) : sum;
}

// A tensor that is read. Of its first `n` elements at an offset, fewer than a vector holds, a vector takes what follows
// them as well, where memory goes on: those lanes are written nowhere.
template <class T>
struct Source {
  const T *data, *last;  // where the last whole vector begins

  Source(const T* p, int64_t size) : data(p), last(p + size - LANES) {}
  auto at(int64_t offset, int64_t n) const {
    const T* p = data + offset;
    return p <= last ? load(p) : load_part(p, n);
  }
};

// Writes the first n elements of v: the whole vector where `rest` elements behind them are written later.
template <class T, class Vector>
INLINE void put(T* p, Vector v, int64_t n, int64_t rest) {
  n + rest >= LANES ? store(p, v) : store_part(p, v, n);
}

// Calls body(height, width) of a window; those of the usual ones are constants.
template <class Body>
INLINE void with_size(const Range& rows, const Range& columns, Body body) {
  using Two = std::integral_constant<int64_t, 2>;
  using Three = std::integral_constant<int64_t, 3>;
  if (rows.size() == 2 && columns.size() == 2) return body(Two{}, Two{});
  if (rows.size() == 3 && columns.size() == 3) return body(Three{}, Three{});
  body(rows.size(), columns.size());
}

// Windows side by side: each looks once at what it has, and writes its pixels; the others are 0.
void max_pool_gradient_apart(const Pool& p, const float* dy, const int32_t* indices, float* dx) {
  const Source<float> g(dy, p.outputs());
  const Source<int32_t> index(indices, p.outputs());
  const int64_t channels = p.channels, bands = ceil_div(p.h.in, p.h.kernel);
#pragma omp parallel for schedule(static) num_threads(team(p.inputs(), ALONE_BELOW))
  for (int64_t k = 0; k < p.n * bands; k++) {
    const int64_t image = k / bands, band = k % bands, ih = band * p.h.kernel;
    const int64_t last = std::min(p.h.in, ih + p.h.kernel), windows = band < p.h.out ? p.w.out : 0;
    for (int64_t ow = 0; ow < windows; ow++) {
      const int64_t out = p.output(image, band, ow);
      const Range columns = p.w.window(ow);
      for (int64_t c = 0; c < channels; c += LANES) {
        const vfloat gradient = g.at(out + c, channels - c);
        const vint where = index.at(out + c, channels - c);
        for (int64_t i = ih; i < last; i++)
          for (int64_t j = columns.first; j < columns.last; j++) {
            const vfloat own = where == vint{} + int32_t(i * p.w.in + j) ? gradient : vfloat{};
            store_part(dx + p.input(image, i, j) + c, vfloat{} + own, channels - c);
          }
      }
    }
    const int64_t covered = std::min(p.w.in, windows * p.w.kernel);
    for (int64_t i = ih; i < last; i++)
      std::fill_n(dx + p.input(image, i, covered), (p.w.in - covered) * channels, 0.0f);
  }
}

template <bool MANY>
void max_pool_gradient(const Pool& p, const float* dy, const int32_t* indices, float* dx) {
  const Source<float> g(dy, p.outputs());
  const Source<int32_t> index(indices, p.outputs());
  const int64_t channels = p.channels, row_step = p.w.out * channels;
  for_each_pixel(p, p.h.in, p.w.in, &PoolAxis::covering,
                 [=](int64_t image, int64_t ih, int64_t iw, Range rows, Range columns) {
    const int64_t out = p.output(image, rows.first, columns.first), in = p.input(image, ih, iw);
    const vint here = vint{} + int32_t(ih * p.w.in + iw);
    for (int64_t c = 0; c < channels; c += LANES) {
      const auto term = [=](int64_t at, int64_t, int64_t) {
        return index.at(at, channels - c) == here ? g.at(at, channels - c) : vfloat{};
      };
      store_part(dx + in + c, sum_pixels<MANY>(rows, columns, out + c, row_step, channels, term), channels - c);
    }
  });
}

template <bool MANY>
void avg_pool(const Pool& p, const float* from, float* y, bool count_padding) {
  const Source<float> x(from, p.inputs());
  const int64_t channels = p.channels, row_step = p.w.in * channels;
  for_each_pixel(p, p.h.out, p.w.out, &PoolAxis::window,
                 [=](int64_t image, int64_t oh, int64_t ow, Range rows, Range columns) {
    const int64_t in = p.input(image, rows.first, columns.first), out = p.output(image, oh, ow);
    const float divisor = p.divisor(oh, ow, count_padding);
    for (int64_t c = 0; c < channels; c += LANES) {
      const auto term = [=](int64_t at, int64_t, int64_t) { return x.at(at, channels - c); };
      const vfloat sum = sum_pixels<MANY>(rows, columns, in + c, row_step, channels, term);
      store_part(y + out + c, sum / divisor, channels - c);
    }
  });
}

template <bool MANY>
void avg_pool_gradient(const Pool& p, const float* dy, float* dx, bool count_padding) {
  const Source<float> g(dy, p.outputs());
  const int64_t channels = p.channels, row_step = p.w.out * channels;
  for_each_pixel(p, p.h.in, p.w.in, &PoolAxis::covering,
                 [=](int64_t image, int64_t ih, int64_t iw, Range rows, Range columns) {
    const int64_t out = p.output(image, rows.first, columns.first), in = p.input(image, ih, iw);
    for (int64_t c = 0; c < channels; c += LANES) {
      const auto term = [&](int64_t at, int64_t a, int64_t b) {
        return g.at(at, channels - c) / p.divisor(rows.first + a, columns.first + b, count_padding);
      };
      store_part(dx + in + c, sum_pixels<MANY>(rows, columns, out + c, row_step, channels, term), channels - c);
    }
  });
}

}  // namespace

EXPORT void max_pool_fwd(const int64_t* table, const float* from, float* y, int32_t* index) {
  const Pool p(table);
  const Source<float> x(from, p.inputs());
  const int64_t channels = p.channels, row_step = p.w.in * channels;
  for_each_pixel(p, p.h.out, p.w.out, &PoolAxis::window,
                 [=](int64_t image, int64_t oh, int64_t ow, Range rows, Range columns) INLINED {
    const int64_t in = p.input(image, rows.first, columns.first), out = p.output(image, oh, ow);
    const int64_t rest = (p.w.out - 1 - ow) * channels;
    const int32_t first = int32_t(rows.first * p.w.in + columns.first);
    with_size(rows, columns, [=](auto height, auto width) INLINED {
      for (int64_t c = 0; c < channels; c += LANES) {
        vfloat best = broadcast(-std::numeric_limits<float>::infinity());
        vint where = vint{} + first;
        for (int64_t a = 0; a < height; a++)
          for (int64_t b = 0; b < width; b++) {
            const vfloat v = x.at(in + a * row_step + b * channels + c, channels - c);
            const vint better = (v > best) | (v != v);
            best = better ? v : best;
            where = better ? vint{} + int32_t(first + a * p.w.in + b) : where;
          }
        put(y + out + c, best, channels - c, rest);
        put(index + out + c, where, channels - c, rest);
      }
    });
  });
}

// y = max(the largest of each window, 0), without its index: what follows a convolution in inference.
EXPORT void max_pool_relu(const int64_t* table, const float* from, float* y) {
  const Pool p(table);
  const Source<float> x(from, p.inputs());
  const int64_t channels = p.channels, row_step = p.w.in * channels;
  for_each_pixel(p, p.h.out, p.w.out, &PoolAxis::window,
                 [=](int64_t image, int64_t oh, int64_t ow, Range rows, Range columns) {
    const int64_t in = p.input(image, rows.first, columns.first), out = p.output(image, oh, ow);
    for (int64_t c = 0; c < channels; c += LANES) {
      vfloat best = {};
      for (int64_t a = 0; a < rows.size(); a++) {
        int64_t at = in + a * row_step + c;
        for (int64_t b = 0; b < columns.size(); b++, at += channels) {
          const vfloat v = x.at(at, channels - c);
          best = (v > best) | (v != v) ? v : best;
        }
      }
      store_part(y + out + c, best, channels - c);
    }
  });
}

EXPORT void max_pool_bwd(const int64_t* table, const float* g, const int32_t* index, float* dx) {
  const Pool p(table);
  if (p.apart()) return max_pool_gradient_apart(p, g, index, dx);
  p.many_cover() ? max_pool_gradient<true>(p, g, index, dx) : max_pool_gradient<false>(p, g, index, dx);
}

// The general form: any index, in any order. One image at a time, so that no two threads meet.
// Returns the first element whose index is outside of the map, which is left out, or -1.
EXPORT int64_t pool_scatter(const float* g, const int32_t* index, float* dx, int64_t n, int64_t outputs, int64_t inputs,
                            int64_t channels) {
  int64_t bad = std::numeric_limits<int64_t>::max();
#pragma omp parallel num_threads(team(n * outputs * channels, ALONE_BELOW)) reduction(min : bad)
  {
    std::vector<double> map(inputs * channels);
#pragma omp for schedule(static)
    for (int64_t image = 0; image < n; image++) {
      std::fill(map.begin(), map.end(), 0.0);
      for (int64_t k = image * outputs; k < (image + 1) * outputs; k++)
        for (int64_t c = 0; c < channels; c++) {
          const int64_t at = index[k * channels + c];
          if (0 <= at && at < inputs)
            map[at * channels + c] += g[k * channels + c];
          else
            bad = std::min(bad, k * channels + c);
        }
      std::copy(map.begin(), map.end(), dx + image * inputs * channels);
    }
  }
  return bad < std::numeric_limits<int64_t>::max() ? bad : -1;
}

EXPORT void avg_pool_fwd(const int64_t* table, const float* x, float* y, int count_padding) {
  const Pool p(table);
  are_many(p.h.kernel, p.w.kernel) ? avg_pool<true>(p, x, y, count_padding) : avg_pool<false>(p, x, y, count_padding);
}

EXPORT void avg_pool_bwd(const int64_t* table, const float* g, float* dx, int count_padding) {
  const Pool p(table);
  p.many_cover() ? avg_pool_gradient<true>(p, g, dx, count_padding)
                    : avg_pool_gradient<false>(p, g, dx, count_padding);
}
