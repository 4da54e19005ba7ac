// What:    depthwise convolution with filters of many taps and steps of 1 along a row, all three passes, as sums of
//          rows: to[o] += sum_t in[origin + o + t] * by[t].  fprop and dgrad: `by` is a row of taps, `to` one of
//          outputs; wgrad: `by` is a row of g, `to` one of taps. What a row reads outside of `in` is left out.
// Layout:  NHWC; filters are packed to [slot][LANES channels], and rows that many taps read to [row][column][LANES].
// Tile:    OUTS outputs of a vector of channels and TAPS taps: an input is read once and meets all of them. An output
//          adds its taps in order. Parts of wgrad's rows follow from the shape, and are added in order.
#include <utility>
#include <vector>

#include "rows.hpp"

namespace {

constexpr int OUTS = ACCUMULATORS > 12 ? 16 : 8, TAPS = ACCUMULATORS > 12 ? 8 : 4;
constexpr int64_t NEAR_FLOATS = 6144;      // of rows and filters that are read again and again: first-level cache
constexpr int64_t BAND_FLOATS = 128 << 10;  // of rows that are copied at a time: second-level cache
constexpr int64_t JOBS_PER_THREAD = 4;

// `count` rows of `length` inputs, `in_step` floats apart, and of `taps`, `by_step` apart, for one row of outputs.
// Sums begin with what `start` has. From a column to the next there are *_pitch floats; `left` channels are written.
struct RowSum {
  const float *in, *by, *start;
  float* to;
  int64_t in_pitch, start_pitch, to_pitch, left;
  int64_t origin, length, taps, outs, count, in_step, by_step;
  bool relu;
};

// acc[p] += sum over B taps of in[first + p + b] * by[b], inputs outside of [0, length) left out.
template <int P, int B, bool EDGE>
INLINE void block(const float* in, int64_t pitch, const float* by, int64_t first, int64_t length, vfloat (&acc)[P]) {
  vfloat k[B];
  UNROLL for (int b = 0; b < B; b++) k[b] = load(by + b * LANES);
  in += first * pitch;
  UNROLL for (int i = 0; i < P + B - 1; i++) {
    if (EDGE && (first + i < 0 || first + i >= length)) continue;
    const vfloat x = load(in + i * pitch);
    UNROLL for (int b = 0; b < B; b++)
      if (i >= b && i - b < P) acc[i - b] += x * k[b];
  }
}

template <int P, int B>
INLINE int64_t blocks(const RowSum& r, const float* in, const float* by, int64_t o, int64_t t, vfloat (&acc)[P]) {
  for (; t + B <= r.taps; t += B) {
    const int64_t first = r.origin + o + t, last = first + P + B - 1;
    if (first >= 0 && last <= r.length)
      block<P, B, false>(in, r.in_pitch, by + t * LANES, first, r.length, acc);
    else if (last > 0 && first < r.length)
      block<P, B, true>(in, r.in_pitch, by + t * LANES, first, r.length, acc);
  }
  return t;
}

// Outputs [o, o + P), of which those behind the last are not written.
template <int P>
__attribute__((noinline)) void strip(const RowSum& r, int64_t o) {
  const int64_t count = std::min<int64_t>(P, r.outs - o);
  vfloat acc[P];
  UNROLL for (int p = 0; p < P; p++)
    acc[p] = p < count ? load_part(r.start + (o + p) * r.start_pitch, r.left) : vfloat{};
  const float *in = r.in, *by = r.by;
  for (int64_t k = 0; k < r.count; k++, in += r.in_step, by += r.by_step) {
    int64_t t = blocks<P, TAPS>(r, in, by, o, 0, acc);
    if (TAPS > 4) t = blocks<P, 4>(r, in, by, o, blocks<P, 7>(r, in, by, o, t, acc), acc);
    t = blocks<P, 2>(r, in, by, o, t, acc);
    blocks<P, 1>(r, in, by, o, t, acc);
  }
  float* to = r.to + o * r.to_pitch;
  UNROLL for (int p = 0; p < P; p++)
    if (p < count) store_part(to + p * r.to_pitch, r.relu ? relu(acc[p]) : acc[p], r.left);
}

void add_rows(const RowSum& r) {
  int64_t o = 0;
  for (; r.outs - o > OUTS / 2; o += OUTS) strip<OUTS>(r, o);
  if (r.outs - o > OUTS / 4) strip<OUTS / 2>(r, o);
  else if (o < r.outs) strip<OUTS / 4>(r, o);
}

// Rows [first, last) of an image for the vector of channels that x points to, of which `left` are there.
void copy_rows(const float* x, int64_t width, int64_t pitch, int64_t first, int64_t last, int64_t left, float* to) {
  x += first * width * pitch;
  for (int64_t k = (last - first) * width; k > 0; k--, x += pitch, to += LANES)
    store(to, left >= LANES ? load(x) : load_part(x, left));
}

// to[slot_of[tap]][LANES] = w[channel][tap] for `left` channels.
void copy_filters(const float* w, int64_t taps, int64_t left, const std::vector<int64_t>& slot_of, float* to) {
  alignas(64) float turned[LANES * LANES];
  int64_t tap = 0;
  for (; left >= LANES && tap + LANES <= taps; tap += LANES) {
    transpose(w + tap, taps, LANES, turned, LANES);
    for (int64_t k = 0; k < LANES; k++) store(to + slot_of[tap + k] * LANES, load(turned + k * LANES));
  }
  for (; tap < taps; tap++)
    for (int64_t c = 0; c < LANES; c++) to[slot_of[tap] * LANES + c] = c < left ? w[c * taps + tap] : 0;
}

// Where an output row begins to read, and which slots of taps it meets.
struct RowTaps {
  int64_t input, slot, count;
};

std::vector<RowTaps> rows_of(const Geometry& g) {
  std::vector<RowTaps> rows(g.out_h);
  for (int64_t a = 0; a < g.rows.classes; a++) {
    const AxisClass row = g.rows[a];
    for (int64_t k = 0; k < row.size; k++) rows[row.positions[k]] = {row.starts[k], row.slot, row.count};
  }
  return rows;
}

// The input of the first column and of slot 0. Requires suits_rows.
int64_t origin_of(const Geometry& g) {
  for (int64_t b = 0; b < g.cols.classes; b++)
    if (g.cols[b].size) return g.cols[b].starts[0] - g.cols[b].slot - g.cols[b].positions[0];
  return 0;
}

}  // namespace

bool suits_rows(const Geometry& g, int64_t least_taps) {
  if (g.f_w < least_taps) return false;
  const int64_t origin = origin_of(g);
  for (int64_t b = 0; b < g.cols.classes; b++) {
    const AxisClass col = g.cols[b];
    if (col.count < 1 || col.step != 1) return false;
    for (int64_t k = 0; k < col.size; k++)
      if (col.starts[k] - col.slot - col.positions[k] != origin) return false;
  }
  return true;
}

void depthwise_rows(const Geometry& g, const Operands& op) {
  const int64_t vectors = ceil_div(g.in_c, LANES), taps = g.taps(), origin = origin_of(g), step = g.rows[0].step;
  const int threads = team(g.multiply_adds(), 50000);
  const std::vector<RowTaps> rows = rows_of(g);
  std::vector<int64_t> slot_of(taps);
  for (int64_t slot = 0; slot < taps; slot++)
    slot_of[g.rows.taps[slot / g.f_w] * g.f_w + g.cols.taps[slot % g.f_w]] = slot;
  const int64_t bands = std::min(g.out_h, std::max(ceil_div(JOBS_PER_THREAD * threads, vectors * g.n),
                                                   ceil_div(g.in_h * g.in_w * LANES, BAND_FLOATS)));
  const int64_t near = std::max<int64_t>(1, NEAR_FLOATS / ((g.in_w + g.f_w) * LANES));
  const bool copied = near < g.f_h;  // else the few times that an input is read do not pay for it
  float* panel = scratch<4>(vectors * taps * LANES);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t v = 0; v < vectors; v++)
      copy_filters(op.w + v * LANES * taps, taps, g.in_c - v * LANES, slot_of, panel + v * taps * LANES);
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < vectors * g.n * bands; job++) {
      const int64_t c = job % vectors * LANES, left = g.in_c - c;
      const int64_t band = job / vectors % bands, image = job / vectors / bands;
      const int64_t top = part_start(g.out_h, band, bands), bottom = part_start(g.out_h, band + 1, bands);
      const float* in = op.in + image * g.in_h * g.in_w * g.in_pitch + c;
      int64_t pitch = g.in_pitch, first = 0;
      if (copied || left < LANES) {
        int64_t last = 0;
        first = g.in_h;
        for (int64_t oh = top; oh < bottom; oh++) {
          if (!rows[oh].count) continue;
          const int64_t from = rows[oh].input, until = from + (rows[oh].count - 1) * step;
          first = std::min({first, from, until});
          last = std::max({last, from + 1, until + 1});
        }
        float* copy = scratch<3>(std::max<int64_t>(1, last - first) * g.in_w * LANES);
        copy_rows(in, g.in_w, pitch, first, last, left, copy);
        in = copy, pitch = LANES;
      }
      alignas(64) float bias[LANES] = {};
      if (op.bias) store(bias, load_part(op.bias + c, left));
      for (int64_t oh = top; oh < bottom; oh++) {
        const RowTaps row = rows[oh];
        float* y = op.out + (image * g.out_h + oh) * g.out_w * g.out_pitch + c;
        RowSum r = {in + (row.input - first) * g.in_w * pitch,
                    panel + (c / LANES * taps + row.slot * g.f_w) * LANES,
                    op.accumulate ? y : bias, y, pitch, op.accumulate ? g.out_pitch : 0, g.out_pitch, left,
                    origin, g.in_w, g.f_w, g.out_w, 0, step * g.in_w * pitch, g.f_w * LANES, false};
        for (int64_t a = 0; a == 0 || a < row.count; a += near) {
          r.count = std::min(near, row.count - a);
          r.relu = op.relu && a + near >= row.count;
          add_rows(r);
          r.in += near * r.in_step, r.by += near * r.by_step;
          r.start = y, r.start_pitch = g.out_pitch;
        }
      }
    }
  }
}

void depthwise_rows_wgrad(const Geometry& g, const float* x, const float* dy, float* dw) {
  const int64_t vectors = ceil_div(g.in_c, LANES), parts = parts_of_rows(g, vectors), origin = origin_of(g);
  const int64_t width = g.f_w * LANES, own = g.f_h * width, rows = g.n * g.out_h;
  const int64_t band = std::max<int64_t>(1, BAND_FLOATS / ((g.in_w + g.out_w) * LANES));  // rows of outputs
  const int threads = team(g.multiply_adds(), 50000);
  float* sums = scratch<4>(vectors * parts * own);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < vectors * parts; job++) {
      const int64_t part = job % parts, c = job / parts * LANES, left = g.in_c - c;
      float* to = sums + job * own;
      std::fill_n(to, own, 0.0f);
      for (int64_t k = part_start(rows, part, parts), end = part_start(rows, part + 1, parts); k < end;) {
        const int64_t image = k / g.out_h, top = k % g.out_h, bottom = std::min({top + band, g.out_h, top + end - k});
        k += bottom - top;
        int64_t first = g.in_h, last = 0;
        for (int64_t fh = 0; fh < g.f_h; fh++) {
          const TapRange& r = g.row_ranges[fh];
          const int64_t from = std::max(top, r.first), until = std::min(bottom, r.first + r.count);
          if (from >= until) continue;
          first = std::min(first, r.input + (from - r.first) * g.stride_h);
          last = std::max(last, r.input + (until - 1 - r.first) * g.stride_h + 1);
        }
        if (first >= last) continue;
        float* in = scratch<3>((last - first) * g.in_w * LANES);
        float* by = scratch<2>((bottom - top) * g.out_w * LANES);
        copy_rows(x + image * g.in_h * g.in_w * g.in_c + c, g.in_w, g.in_c, first, last, left, in);
        copy_rows(dy + image * g.out_h * g.out_w * g.out_pitch + c, g.out_w, g.out_pitch, top, bottom, left, by);
        for (int64_t oh = top; oh < bottom; oh++)
          for (int64_t fh = 0; fh < g.f_h; fh++) {
            const TapRange& r = g.row_ranges[fh];
            if (oh < r.first || oh >= r.first + r.count) continue;
            const int64_t ih = r.input + (oh - r.first) * g.stride_h;
            add_rows({in + (ih - first) * g.in_w * LANES, by + (oh - top) * g.out_w * LANES, to + fh * width,
                      to + fh * width, LANES, LANES, LANES, LANES, origin, g.in_w, g.out_w, g.f_w, 1, 0, 0, false});
          }
      }
    }
#pragma omp for schedule(static)
    for (int64_t v = 0; v < vectors; v++)
      for (int64_t tap = 0; tap < g.taps(); tap++) {
        const float* from = sums + v * parts * own + tap * LANES;
        vfloat total = {};
        for (int64_t part = 0; part < parts; part++) total += load(from + part * own);
        for (int64_t c = 0; c < std::min<int64_t>(LANES, g.in_c - v * LANES); c++)
          dw[(v * LANES + c) * g.taps() + tap] = total[c];
      }
  }
}
