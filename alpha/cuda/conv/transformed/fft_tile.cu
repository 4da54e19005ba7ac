// The half spectrum of real tiles of E x E and its inverse, for maps and filters; depthwise convolution in one pass.
//
// What:     fft_tiles       points = spectra of tiles;  fft_filters: as matrices [[re, -im], [im, re]] that spectra multiply
//           fft_maps        map = tiles of the inverse, then bias and relu;  fft_gradients: of products of spectra
//           fft_depthwise   y = tiles of the inverse of spectrum * conj(spectrum of the channel's filter), in one pass
//           fft_sums        sums over tiles of spectrum * conj(spectrum), a channel each: filters of a depthwise pass
// Source:   the convolution theorem; Cooley and Tukey's transform, by halves in time; two real rows are the parts of
//           one complex row. The filter's spectrum is conjugated, as this is a correlation
// Layout:   maps NHWC, filters OHWI; points as in tiles.cuh, k = row * (E / 2 + 1) + column
// GEMM:     none: products over channels are convolutions of 1x1 maps, a group per point
// Zeros:    tiles reach over the border, where zeros are transformed
// Requires: an image has fewer than 2^31 elements
// Threads:  a block per tile and LANES channels: first pairs of rows, then columns, a line of a channel per thread
// Measured: benchmarks/results/h200/algorithms.jsonl
#include "tiles.cuh"

constexpr int H = E / 2 + 1, THREADS = 256, MOST = 64, TERMS = 64;

// cos and -sin of 2 pi j / MOST.
struct Twiddles { float re[MOST / 2], im[MOST / 2]; };

// out = the transform of the L numbers in[0], in[step], ...; the inverse, unscaled, with the parts exchanged.
template <int L> struct Line {
  static INLINE void run(const Twiddles &t, const float *re, const float *im, int step, float *out_re, float *out_im) {
    constexpr int HALF = L / 2;
    Line<HALF>::run(t, re, im, 2 * step, out_re, out_im);
    Line<HALF>::run(t, re + step, im + step, 2 * step, out_re + HALF, out_im + HALF);
    UNROLL for (int k = 0; k < HALF; k++) {
      const float c = t.re[k * (MOST / L)], s = t.im[k * (MOST / L)];
      const float a = c * out_re[k + HALF] - s * out_im[k + HALF], b = c * out_im[k + HALF] + s * out_re[k + HALF];
      out_re[k + HALF] = out_re[k] - a;
      out_im[k + HALF] = out_im[k] - b;
      out_re[k] += a;
      out_im[k] += b;
    }
  }
};
template <> struct Line<1> {
  static INLINE void run(const Twiddles &, const float *re, const float *im, int, float *out_re, float *out_im) {
    out_re[0] = re[0];
    out_im[0] = im[0];
  }
};

// A line of E complex numbers in registers.
struct Complex {
  float re[E], im[E];

  INLINE Complex forward(const Twiddles &t) const {
    Complex out;
    Line<E>::run(t, re, im, 1, out.re, out.im);
    return out;
  }
  INLINE Complex inverse(const Twiddles &t) const {
    Complex out;
    Line<E>::run(t, im, re, 1, out.im, out.re);
    return out;
  }
};

// The tile in shared memory: half spectra of its rows.
struct Rows {
  float *re, *im;

  INLINE explicit Rows(float *smem) : re(smem), im(smem + E * H * LANES) {}
  static INLINE int at(int row, int k, int lane) { return (row * H + k) * LANES + lane; }

  // Half spectra of the rows of a tile. map: channel of lane 0.
  INLINE void fill(const Twiddles &t, const Tiles &s, const float *map, const Place &place, int lanes) const {
    for (int job = threadIdx.x; job < E / 2 * LANES; job += THREADS) {
      const int i = job / LANES * 2, lane = job % LANES;
      if (i >= s.size_h || lane >= lanes) continue;
      Complex d;
      UNROLL for (int j = 0; j < E; j++) {
        d.re[j] = pixel_of(s, map + (long long)lane * s.channel, place, i, j);
        d.im[j] = pixel_of(s, map + (long long)lane * s.channel, place, i + 1, j);
      }
      const Complex v = d.forward(t);
      UNROLL for (int k = 0; k < H; k++) {
        const int m = (E - k) % E;
        re[at(i, k, lane)] = 0.5f * (v.re[k] + v.re[m]);
        im[at(i, k, lane)] = 0.5f * (v.im[k] - v.im[m]);
        re[at(i + 1, k, lane)] = 0.5f * (v.im[k] + v.im[m]);
        im[at(i + 1, k, lane)] = 0.5f * (v.re[m] - v.re[k]);
      }
    }
    __syncthreads();
  }
  // The spectrum of column k. rows: those that are there, the others are 0.
  INLINE Complex column(const Twiddles &t, int k, int lane, int rows) const {
    Complex d;
    UNROLL for (int i = 0; i < E; i++) {
      d.re[i] = i < rows ? re[at(i, k, lane)] : 0.f;
      d.im[i] = i < rows ? im[at(i, k, lane)] : 0.f;
    }
    return d.forward(t);
  }
  // Puts back column k of a spectrum.
  INLINE void put(const Twiddles &t, const Complex &v, int k, int lane, int rows) const {
    const Complex d = v.inverse(t);
    UNROLL for (int i = 0; i < E; i++) {
      if (i >= rows) continue;
      re[at(i, k, lane)] = d.re[i];
      im[at(i, k, lane)] = d.im[i];
    }
  }
  // Writes the rows of the tile, which have been put back.
  INLINE void write(const Twiddles &t, const Tiles &s, float *map, const Place &place, int lanes, const float *bias,
                    int relu) const {
    __syncthreads();
    constexpr float SCALE = 1.f / (E * E);
    for (int job = threadIdx.x; job < E / 2 * LANES; job += THREADS) {
      const int i = job / LANES * 2, lane = job % LANES;
      if (i >= s.size_h || lane >= lanes) continue;
      const bool two = i + 1 < s.size_h;
      Complex d;
      UNROLL for (int k = 0; k < E; k++) {  // the rows a + i b: what is beyond the half is the conjugate of its mirror
        const int m = k < H ? k : E - k;
        const float sign = k < H ? 1.f : -1.f;
        const float b_re = two ? re[at(i + 1, m, lane)] : 0.f, b_im = two ? im[at(i + 1, m, lane)] : 0.f;
        d.re[k] = re[at(i, m, lane)] - sign * b_im;
        d.im[k] = sign * im[at(i, m, lane)] + b_re;
      }
      const Complex y = d.inverse(t);
      const float add = bias ? bias[lane] : 0.f;
      UNROLL for (int j = 0; j < E; j++) {
        put_pixel(s, map + (long long)lane * s.channel, place, i, j, SCALE * y.re[j] + add, relu);
        put_pixel(s, map + (long long)lane * s.channel, place, i + 1, j, SCALE * y.im[j] + add, relu);
      }
    }
  }
};

enum Form { PLAIN, MATRIX };

// One block: a tile's channels from c0 on. Of MATRIX, the rows of imaginary parts are the second half of a point.
template <Form FORM>
INLINE void to_points(float *smem, const float *map, float *points, const Twiddles &t, const Tiles &s) {
  const int c0 = blockIdx.y * LANES, lanes = min(LANES, s.c - c0);
  const long long outer = s.point / 2;
  const Place place(s, s.first + blockIdx.x);
  const Rows rows(smem);
  rows.fill(t, s, map + (place.image + (long long)c0 * s.channel), place, lanes);
  for (int job = threadIdx.x; job < H * LANES; job += THREADS) {
    const int k = job / LANES, lane = job % LANES;
    if (lane >= lanes) continue;
    const Complex v = rows.column(t, k, lane, s.size_h);
    float *to = points + (blockIdx.x * s.item + k * s.point + c0 + lane);
    UNROLL for (int i = 0; i < E; i++, to += H * s.point) {
      to[0] = v.re[i];
      to[s.part] = FORM == MATRIX ? -v.im[i] : v.im[i];
      if (FORM == MATRIX) {
        to[outer] = v.im[i];
        to[outer + s.part] = v.re[i];
      }
    }
  }
}

template <Form FORM>
INLINE void to_pixels(float *smem, const float *points, float *map, const float *bias, const Twiddles &t,
                      const Tiles &s, int relu) {
  const int c0 = blockIdx.y * LANES, lanes = min(LANES, s.c - c0);
  const long long outer = s.point / 2;
  const Place place(s, s.first + blockIdx.x);
  const Rows rows(smem);
  for (int job = threadIdx.x; job < H * LANES; job += THREADS) {
    const int k = job / LANES, lane = job % LANES;
    if (lane >= lanes) continue;
    const float *from = points + (blockIdx.x * s.item + k * s.point + c0 + lane);
    Complex v;
    UNROLL for (int i = 0; i < E; i++, from += H * s.point) {
      v.re[i] = from[0];
      v.im[i] = from[s.part];
      if (FORM == MATRIX) {  // the four products of parts of g and x, of x times the conjugate of g
        v.re[i] += from[outer + s.part];
        v.im[i] -= from[outer];
      }
    }
    rows.put(t, v, k, lane, s.size_h);
  }
  rows.write(t, s, map + (place.image + (long long)c0 * s.channel), place, lanes, bias ? bias + c0 : nullptr, relu);
}

// x and y: the tiles of both, whose grids are the same.
INLINE void depthwise(float *smem, const float *map, const float *filters, float *out, const float *bias, int relu,
                      const Twiddles &t, const Tiles &x, const Tiles &y) {
  const int c0 = blockIdx.y * LANES, lanes = min(LANES, x.c - c0);
  const Place from(x, x.first + blockIdx.x);
  const Rows rows(smem);
  rows.fill(t, x, map + (from.image + c0), from, lanes);
  for (int job = threadIdx.x; job < H * LANES; job += THREADS) {
    const int k = job / LANES, lane = job % LANES;
    if (lane >= lanes) continue;
    Complex v = rows.column(t, k, lane, x.size_h);
    const float *u = filters + (k * x.point + c0 + lane);
    UNROLL for (int i = 0; i < E; i++, u += H * x.point) {
      const float re = v.re[i], im = v.im[i], u_re = u[0], u_im = u[x.part];
      v.re[i] = re * u_re + im * u_im;
      v.im[i] = im * u_re - re * u_im;
    }
    rows.put(t, v, k, lane, y.size_h);
  }
  const Place to(y, y.first + blockIdx.x);
  rows.write(t, y, out + (to.image + c0), to, lanes, bias ? bias + c0 : nullptr, relu);
}

#define TRANSFORM(name, call) \
  ALPHA_ENTRY(name, (THREADS), \
              (const float *from, float *to, const float *bias, Twiddles t, Tiles tiles, int relu), \
              DYNAMIC_SHARED(float, smem); call)
TRANSFORM(fft_tiles, to_points<PLAIN>(smem, from, to, t, tiles))
TRANSFORM(fft_filters, to_points<MATRIX>(smem, from, to, t, tiles))
TRANSFORM(fft_maps, to_pixels<PLAIN>(smem, from, to, bias, t, tiles, relu))
TRANSFORM(fft_gradients, to_pixels<MATRIX>(smem, from, to, bias, t, tiles, relu))

ALPHA_ENTRY(fft_depthwise, (THREADS),
            (const float *map, const float *filters, float *out, const float *bias, Twiddles t, Tiles x, Tiles y,
             int relu),
            DYNAMIC_SHARED(float, smem); depthwise(smem, map, filters, out, bias, relu, t, x, y))

// sums[k][part][c] = the sum over tiles of x times the conjugate of g; x and g [tile][k][part][c].
ALPHA_GLOBAL(fft_sums, (THREADS), (const float *x, const float *g, float *sums, int tiles, int channels)) {
  ptx::follow();
  const int k = blockIdx.x * THREADS + threadIdx.x, size = E * H * channels;
  if (k >= size) return;
  const long long at = k / channels * 2LL * channels + k % channels;
  float re = 0.f, im = 0.f;
  for (int first = 0; first < tiles; first += TERMS) {
    float part_re = 0.f, part_im = 0.f;
    UNROLL_BY(4) for (int tile = first; tile < min(tiles, first + TERMS); tile++) {
      const long long from = at + tile * 2LL * size;
      const float x_re = x[from], x_im = x[from + channels], g_re = g[from], g_im = g[from + channels];
      part_re += x_re * g_re + x_im * g_im;
      part_im += x_im * g_re - x_re * g_im;
    }
    re += part_re;
    im += part_im;
  }
  sums[at] = re;
  sums[at + channels] = im;
}
