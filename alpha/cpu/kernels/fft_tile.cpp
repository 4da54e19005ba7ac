// What:    the half spectrum of real tiles of E x E, and its inverse, a vector of channels at a time.
// Source:  Cooley and Tukey's transform, by halves in time; two real rows are the parts of one complex row.
// Layout:  maps NHWC. Spectra [tile][k][2][channels], k = row * (E / 2 + 1) + column, real then imaginary parts. Those of
//          filters are the matrix that multiplies them, (part, in) by (part, out), as the panels that conv.cpp reads,
//          [k][block of outs][part][in][TILE_WIDTH outs]; gradients of filters come as [k][part][out][part][in].
// Zeros:   tiles reach over the border, where zeros are transformed.
#include <cmath>

#include "vec.hpp"

namespace {

constexpr int MOST = 64;  // of E

// cos and sin of 2 pi j / E, from double.
struct Twiddles {
  float re[MOST / 2], im[MOST / 2];
};

template <int E>
const Twiddles& twiddles() {
  static const Twiddles made = [] {
    Twiddles t{};
    for (int j = 0; j < E / 2; j++) {
      t.re[j] = static_cast<float>(std::cos(2 * M_PI * j / E));
      t.im[j] = static_cast<float>(-std::sin(2 * M_PI * j / E));
    }
    return t;
  }();
  return made;
}

// out = transform of the E numbers in[0], in[step], ...; the inverse, unscaled, with the parts exchanged.
template <int E>
struct Line {
  static void run(const vfloat* re, const vfloat* im, int step, vfloat* out_re, vfloat* out_im) {
    constexpr int H = E / 2;
    Line<H>::run(re, im, 2 * step, out_re, out_im);
    Line<H>::run(re + step, im + step, 2 * step, out_re + H, out_im + H);
    const Twiddles& t = twiddles<E>();
    for (int k = 0; k < H; k++) {
      const vfloat a = t.re[k] * out_re[k + H] - t.im[k] * out_im[k + H];
      const vfloat b = t.re[k] * out_im[k + H] + t.im[k] * out_re[k + H];
      out_re[k + H] = out_re[k] - a;
      out_im[k + H] = out_im[k] - b;
      out_re[k] += a;
      out_im[k] += b;
    }
  }
};

template <>
struct Line<2> {
  __attribute__((always_inline)) static inline void run(const vfloat* re, const vfloat* im, int step, vfloat* out_re, vfloat* out_im) {
    out_re[0] = re[0] + re[step];
    out_im[0] = im[0] + im[step];
    out_re[1] = re[0] - re[step];
    out_im[1] = im[0] - im[step];
  }
};

template <>
struct Line<4> {
  __attribute__((always_inline)) static inline void run(const vfloat* re, const vfloat* im, int step, vfloat* out_re, vfloat* out_im) {
    const vfloat a = re[0] + re[2 * step], b = re[0] - re[2 * step], c = re[step] + re[3 * step];
    const vfloat d = re[step] - re[3 * step], e = im[0] + im[2 * step], f = im[0] - im[2 * step];
    const vfloat g = im[step] + im[3 * step], h = im[step] - im[3 * step];
    out_re[0] = a + c;
    out_im[0] = e + g;
    out_re[1] = b + h;
    out_im[1] = f - d;
    out_re[2] = a - c;
    out_im[2] = e - g;
    out_re[3] = b - h;
    out_im[3] = f + d;
  }
};

template <int E>
struct Tile {
  static constexpr int H = E / 2 + 1;
  vfloat re[E * H], im[E * H];

  // Half spectrum of rows [0, rows) of real numbers; the others are 0.
  void forward(const vfloat (*real)[E], int rows) {
    vfloat out_re[E], out_im[E];
    for (int i = 0; i < rows; i += 2) {  // real has an even number of rows, 0 in the last where rows is odd
      Line<E>::run(real[i], real[i + 1], 1, out_re, out_im);
      for (int k = 0; k < H; k++) {
        const int m = (E - k) % E;
        re[i * H + k] = 0.5f * (out_re[k] + out_re[m]);
        im[i * H + k] = 0.5f * (out_im[k] - out_im[m]);
        re[(i + 1) * H + k] = 0.5f * (out_im[k] + out_im[m]);
        im[(i + 1) * H + k] = 0.5f * (out_re[m] - out_re[k]);
      }
    }
    vfloat column_re[E], column_im[E];
    for (int k = 0; k < H; k++) {
      for (int i = 0; i < E; i++) {
        column_re[i] = i < rows ? re[i * H + k] : vfloat{};
        column_im[i] = i < rows ? im[i * H + k] : vfloat{};
      }
      Line<E>::run(column_re, column_im, 1, out_re, out_im);
      for (int i = 0; i < E; i++) {
        re[i * H + k] = out_re[i];
        im[i * H + k] = out_im[i];
      }
    }
  }

  // Rows [0, rows) of the real numbers of a half spectrum.
  void inverse(vfloat (*real)[E], int rows) {
    vfloat from_re[E], from_im[E], out_re[E], out_im[E];
    for (int k = 0; k < H; k++) {
      for (int i = 0; i < E; i++) {
        from_re[i] = re[i * H + k];
        from_im[i] = im[i * H + k];
      }
      Line<E>::run(from_im, from_re, 1, out_im, out_re);
      for (int i = 0; i < rows; i++) {
        re[i * H + k] = out_re[i];
        im[i * H + k] = out_im[i];
      }
    }
    const float scale = 1.0f / (E * E);
    for (int i = 0; i < rows; i += 2) {
      const bool two = i + 1 < rows;
      for (int k = 0; k < E; k++) {  // the rows a + i b: what is beyond the half is the conjugate of its mirror
        const int m = k < H ? k : E - k;
        const float sign = k < H ? 1.0f : -1.0f;
        const vfloat b_re = two ? re[(i + 1) * H + m] : vfloat{}, b_im = two ? im[(i + 1) * H + m] : vfloat{};
        from_re[k] = re[i * H + m] - sign * b_im;
        from_im[k] = sign * im[i * H + m] + b_re;
      }
      Line<E>::run(from_im, from_re, 1, out_im, out_re);
      for (int k = 0; k < E; k++) {
        real[i][k] = scale * out_re[k];
        if (two) real[i + 1][k] = scale * out_im[k];
      }
    }
  }
};

// From Python: tiles of a map. Tile t has its first pixel at (row * step_h - pad_h, col * step_w - pad_w), and takes up to
// size_h x size_w pixels (the rest is 0), or writes them. filters: how many filters there are, 0 for maps.
struct Map {
  int64_t n, h, w, c, rows, cols, step_h, step_w, pad_h, pad_w, size_h, size_w, edge, filters;
};

// A vector of channels of a tile, transformed.
template <int E>
void transform(const Map& map, const float* x, int64_t tile, int64_t c, vfloat (*real)[E], Tile<E>* spectrum) {
  const int64_t per_image = map.rows * map.cols, left = map.c - c;
  const int64_t row = tile % per_image / map.cols * map.step_h - map.pad_h;
  const int64_t col = tile % map.cols * map.step_w - map.pad_w;
  const float* from = x + tile / per_image * map.h * map.w * map.c + c;
  const int rows = static_cast<int>(std::min<int64_t>(map.size_h, std::max<int64_t>(0, map.h - row)));
  for (int i = 0; i < rows + rows % 2; i++)
    for (int j = 0; j < E; j++) {
      const bool inside = i < rows && row + i >= 0 && j < map.size_w && col + j >= 0 && col + j < map.w;
      real[i][j] = inside ? load_part(from + ((row + i) * map.w + col + j) * map.c, left) : vfloat{};
    }
  spectrum->forward(real, rows);
}

template <int E>
void maps_of(const Map& map, const float* x, float* v) {
  const int64_t points = E * (E / 2 + 1), tiles = map.n * map.rows * map.cols, vectors = ceil_div(map.c, LANES);
#pragma omp parallel num_threads(team(tiles * map.c * points, 20000))
  {
    auto* real = reinterpret_cast<vfloat(*)[E]>(scratch<2>(E * E * LANES));
    auto* spectrum = reinterpret_cast<Tile<E>*>(scratch<3>(sizeof(Tile<E>) / sizeof(float)));
#pragma omp for schedule(static)
    for (int64_t job = 0; job < tiles * vectors; job++) {
      const int64_t tile = job / vectors, c = job % vectors * LANES, left = map.c - c;
      transform(map, x, tile, c, real, spectrum);
      float* to = v + tile * points * 2 * map.c + c;
      for (int64_t k = 0; k < points; k++, to += 2 * map.c) {
        store_part(to, spectrum->re[k], left);
        store_part(to + map.c, spectrum->im[k], left);
      }
    }
  }
}

// Filters are one tile, of as many channels as there are pairs (in, out), outs in whole vectors. Their spectra become the
// panels of [[re, -im], [im, re]], ins by outs. Those of a few are written together, since points lie far apart.
template <int E>
void filters_of(const Map& map, const float* x, float* v) {
  constexpr int64_t WIDTH = LANES * TILE_VECTORS, MOST_BYTES = 1280 * 1024, MOST_TOGETHER = 32;
  constexpr int64_t SIZE = sizeof(Tile<E>), TOGETHER = std::min(MOST_TOGETHER, std::max<int64_t>(1, MOST_BYTES / SIZE));
  const int64_t points = E * (E / 2 + 1), outs = map.filters, ins = map.c / outs, vectors = map.c / LANES;
  const auto at = [=](int64_t row, int64_t col) {
    const int64_t first = col / WIDTH * WIDTH;
    return first * 2 * ins + row * std::min(WIDTH, 2 * outs - first) + col - first;
  };
#pragma omp parallel num_threads(team(map.c * points, 20000))
  {
    auto* real = reinterpret_cast<vfloat(*)[E]>(scratch<2>(E * E * LANES));
    auto* spectra = reinterpret_cast<Tile<E>*>(scratch<3>(TOGETHER * SIZE / sizeof(float)));
#pragma omp for schedule(static)
    for (int64_t first = 0; first < vectors; first += TOGETHER) {
      const int64_t count = std::min(TOGETHER, vectors - first);
      int64_t re_re[TOGETHER], re_im[TOGETHER], im_re[TOGETHER], im_im[TOGETHER];
      for (int64_t j = 0; j < count; j++) {
        const int64_t c = (first + j) * LANES, in = c / outs, out = c % outs;
        re_re[j] = at(in, out), re_im[j] = at(in, outs + out);
        im_re[j] = at(ins + in, out), im_im[j] = at(ins + in, outs + out);
        transform(map, x, 0, c, real, spectra + j);
      }
      float* to = v;
      for (int64_t k = 0; k < points; k++, to += 4 * ins * outs) {
        for (int64_t j = 0; j < count; j++) store(to + re_re[j], spectra[j].re[k]);
        for (int64_t j = 0; j < count; j++) store(to + re_im[j], -spectra[j].im[k]);
        for (int64_t j = 0; j < count; j++) store(to + im_re[j], spectra[j].im[k]);
        for (int64_t j = 0; j < count; j++) store(to + im_im[j], spectra[j].re[k]);
      }
    }
  }
}

template <int E, bool FILTERS>
void inverse_of(const Map& map, const float* m, float* y) {
  const int64_t points = E * (E / 2 + 1), per_image = map.rows * map.cols, vectors = ceil_div(map.c, LANES);
#pragma omp parallel num_threads(team(map.n * per_image * map.c * points, 20000))
  {
    auto* real = reinterpret_cast<vfloat(*)[E]>(scratch<2>(E * E * LANES));
    auto* spectrum = reinterpret_cast<Tile<E>*>(scratch<3>(sizeof(Tile<E>) / sizeof(float)));
#pragma omp for schedule(static)
    for (int64_t job = 0; job < map.n * per_image * vectors; job++) {
      const int64_t tile = job / vectors, c = job % vectors * LANES, left = map.c - c;
      const int64_t row = tile % per_image / map.cols * map.step_h, col = tile % map.cols * map.step_w;
      const float* from = m + tile * points * 2 * map.c + c;
      if (FILTERS) {  // the four products of parts of g and x, of x times the conjugate of g
        const int64_t part = map.n * 2 * map.c;
        from = m + tile * 2 * map.c + c;
        for (int64_t k = 0; k < points; k++, from += 2 * part) {
          spectrum->re[k] = load_part(from, left) + load_part(from + part + map.c, left);
          spectrum->im[k] = load_part(from + map.c, left) - load_part(from + part, left);
        }
      }
      for (int64_t k = 0; !FILTERS && k < points; k++, from += 2 * map.c) {
        spectrum->re[k] = load_part(from, left);
        spectrum->im[k] = load_part(from + map.c, left);
      }
      const int rows = static_cast<int>(std::min(map.size_h, map.h - row));
      const int64_t cols = std::min(map.size_w, map.w - col);
      spectrum->inverse(real, rows);
      float* to = y + tile / per_image * map.h * map.w * map.c + c;
      for (int i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
          store_part(to + ((row + i) * map.w + col + j) * map.c, real[i][j], left);
    }
  }
}

template <template <int> class Run>
void dispatch(int64_t edge, const Map& map, const float* from, float* to) {
  if (edge == 8) Run<8>::run(map, from, to);
  if (edge == 16) Run<16>::run(map, from, to);
  if (edge == 32) Run<32>::run(map, from, to);
  if (edge == 64) Run<64>::run(map, from, to);
}

template <int E>
struct ForwardOf {
  static void run(const Map& map, const float* from, float* to) {
    map.filters ? filters_of<E>(map, from, to) : maps_of<E>(map, from, to);
  }
};

template <int E>
struct InverseOf {
  static void run(const Map& map, const float* from, float* to) {
    map.filters ? inverse_of<E, true>(map, from, to) : inverse_of<E, false>(map, from, to);
  }
};

}  // namespace

// v [tile][k][2][c] = half spectra of the tiles of x (n, h, w, c), or panels of filters x (1, h, w, ins, outs).
EXPORT void fft_tiles(const int64_t* map, const float* x, float* v) {
  const Map& m = *reinterpret_cast<const Map*>(map);
  dispatch<ForwardOf>(m.edge, m, x, v);
}

// y (n, h, w, c) = the tiles of the half spectra m.
EXPORT void fft_inverse(const int64_t* map, const float* m, float* y) {
  const Map& shape = *reinterpret_cast<const Map*>(map);
  dispatch<InverseOf>(shape.edge, shape, m, y);
}
