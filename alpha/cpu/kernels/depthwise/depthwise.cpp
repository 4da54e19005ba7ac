// What:    depthwise convolution, groups == channels in == channels out, all three passes: c is never summed over.
//          y[n,oh,ow,c] = bias[c] + sum_{fh,fw} x[n,ih,iw,c] * w[c,fh,fw];
//          dx likewise from g;  dw[c,fh,fw] = sum_{n,oh,ow} x[n,ih,iw,c] * g[n,oh,ow,c]
// Layout:  NHWC, so vectors run over channels; the filters are packed to [tap slot][C].
// Zeros:   fprop and dgrad walk classes of pixels with one common tap list (conv.cpp), wgrad the exact output range of
//          each tap; no padded or inserted zero is read.
// Tile:    where the pixels of a class follow one another in a row, strips of up to STRIP vectors of outputs, a line of
//          the cache of each pixel: a row of taps stays in registers, and so does an input while all its taps read
//          it. Else TILE_PIXELS pixels x 2 vectors share the weights of a tap. An output adds its taps in the same
//          order in both. Filters of more taps: rows.cpp.
//          wgrad: all taps of a row of the filter at a time, which share dy; parts of the rows follow from the shape,
//          and are added in order.
#include <array>
#include <utility>
#include <vector>

#include "../conv.hpp"
#include "rows.hpp"

namespace {

constexpr int TILE_PIXELS = 4, STRIP = 8, BLOCK = 2 * LANES, WGRAD_VECTORS = 4, PARTS_PER_THREAD = 8;
constexpr int MOST_TAPS = 7, MOST_STRIDE = 2;  // of strips
constexpr int FEW_TAPS = 3;  // of a row, whose filters for all channels stay in the first-level cache beside a strip
constexpr int LINE_VECTORS = LANES >= 8 ? 16 / LANES : 1;  // of a line of the cache, which strips read at a time
constexpr int64_t WIDE = 32;           // pixels of a row, of which strips have all channels in one job
constexpr int64_t ROWS_TOGETHER = 16;  // that stay in the second-level cache while strips read one vector of each
constexpr int64_t SLAB_FLOATS = 1536;  // of filters, beside as many inputs of a pixel in the first-level cache

// acc[P][2] over all taps for channels [c, c + BLOCK) or as many as there are; runs[r].panel is the row of weights.
template <int P>
void depthwise_block(const Geometry& g, const float* const* pixels, float* const* outputs, const std::vector<Run>& runs,
                     const float* panel, int64_t ld, const Operands& op, int64_t c) {
  const int64_t valid = std::min<int64_t>(BLOCK, g.in_c - c), rest = valid - LANES;
  const float *x[P], *w = panel + c, *bias = op.bias ? op.bias + c : nullptr;
  float* y[P];
  vfloat acc[P][2];
  UNROLL for (int p = 0; p < P; p++) {
    x[p] = pixels[p] + c;
    y[p] = outputs[p] + c;
  }
  UNROLL for (int p = 0; p < P; p++) {
    const float* start = op.accumulate ? y[p] : bias;
    acc[p][0] = start ? load_part(start, valid) : vfloat{};
    acc[p][1] = start ? load_part(start + LANES, rest) : vfloat{};
  }
  for (const Run& run : runs) {
    const float* weights = w + run.panel * ld;
    const vfloat w0 = load(weights), w1 = load(weights + LANES);
    if (valid == BLOCK) {
      UNROLL for (int p = 0; p < P; p++) {
        acc[p][0] += load(x[p] + run.in) * w0;
        acc[p][1] += load(x[p] + run.in + LANES) * w1;
      }
    } else {
      UNROLL for (int p = 0; p < P; p++) {
        acc[p][0] += load_part(x[p] + run.in, valid) * w0;
        acc[p][1] += load_part(x[p] + run.in + LANES, rest) * w1;
      }
    }
  }
  UNROLL for (int p = 0; p < P; p++) {
    store_part(y[p], op.relu ? relu(acc[p][0]) : acc[p][0], valid);
    store_part(y[p] + LANES, op.relu ? relu(acc[p][1]) : acc[p][1], rest);
  }
}

template <int P>
void depthwise_tile(const Geometry& g, const float* const* x, float* const* y, const std::vector<Run>& runs,
                    const float* panel, int64_t ld, const Operands& op, int64_t first, int64_t end) {
  for (int64_t c = first; c < end; c += BLOCK) depthwise_block<P>(g, x, y, runs, panel, ld, op, c);
}

using DepthwiseTile = void (*)(const Geometry&, const float* const*, float* const*, const std::vector<Run>&,
                               const float*, int64_t, const Operands&, int64_t, int64_t);
constexpr DepthwiseTile TILES[TILE_PIXELS + 1] = {nullptr, depthwise_tile<1>, depthwise_tile<2>, depthwise_tile<3>,
                                                  depthwise_tile<4>};

// A row of outputs of a class, for the vector of channels that x, y, w and bias point to; `left` channels are there.
struct StripRow {
  const float *x, *w, *bias;
  float* y;
  int64_t x_step, y_step, row_step, ld, w_row, taps_h, outputs, left;  // x_step: from a tap to the next
  bool relu, accumulate;
};

// P outputs of V vectors, from output `first` on. Every output adds its taps in order, whichever loop is outside.
template <int FW, int S, int P, int V, bool FULL>
INLINE void strip(const StripRow& r, int64_t first) {
  const int64_t left = FULL ? LANES : r.left;
  const auto read = [&](const float* p) INLINED { return FULL ? load(p) : load_part(p, left); };
  float* y = r.y + first * r.y_step;
  const float *x = r.x + first * S * r.x_step, *w = r.w;
  vfloat acc[P][V];
  UNROLL for (int p = 0; p < P; p++)
    UNROLL for (int v = 0; v < V; v++)
      acc[p][v] = r.accumulate ? read(y + p * r.y_step + v * LANES) : r.bias ? read(r.bias + v * LANES) : vfloat{};
  for (int64_t a = 0; a < r.taps_h; a++, x += r.row_step, w += r.w_row) {
    if (ACCUMULATORS > 12 || FW <= 3) {  // there are registers for a row of taps
      vfloat k[FW][V];
      UNROLL for (int b = 0; b < FW; b++)
        UNROLL for (int v = 0; v < V; v++) k[b][v] = load(w + b * r.ld + v * LANES);
      UNROLL for (int i = 0; i < (P - 1) * S + FW; i++)
        UNROLL for (int v = 0; v < V; v++) {
          const vfloat in = read(x + i * r.x_step + v * LANES);
          UNROLL for (int b = 0; b < FW; b++)
            if (i >= b && (i - b) % S == 0 && (i - b) / S < P) acc[(i - b) / S][v] += in * k[b][v];
        }
    } else {
      UNROLL for (int b = 0; b < FW; b++)
        UNROLL for (int v = 0; v < V; v++) {
          const vfloat k = load(w + b * r.ld + v * LANES);
          UNROLL for (int p = 0; p < P; p++) acc[p][v] += read(x + (p * S + b) * r.x_step + v * LANES) * k;
        }
    }
  }
  UNROLL for (int p = 0; p < P; p++)
    UNROLL for (int v = 0; v < V; v++) {
      float* to = y + p * r.y_step + v * LANES;
      const vfloat sum = r.relu ? relu(acc[p][v]) : acc[p][v];
      FULL ? store(to, sum) : store_part(to, sum, left);
    }
}

template <int FW, int S, int V, bool FULL>
__attribute__((noinline)) void strip_row(const StripRow& r) {
  constexpr int P = STRIP / V;
  int64_t k = 0;
  for (; k + P <= r.outputs; k += P) strip<FW, S, P, V, FULL>(r, k);
  if (k + P / 2 <= r.outputs) {
    strip<FW, S, P / 2, V, FULL>(r, k);
    k += P / 2;
  }
  for (; k < r.outputs; k++) strip<FW, S, 1, V, FULL>(r, k);
}

using Strips = void (*)(const StripRow&);

template <int V, bool FULL, int... K>
constexpr std::array<Strips, sizeof...(K)> all_strips(std::integer_sequence<int, K...>) {
  return {strip_row<K / MOST_STRIDE + 1, K % MOST_STRIDE + 1, V, FULL>...};
}
// STRIPS[whole vectors of a line][(taps - 1) * MOST_STRIDE + stride - 1]; of a line of one vector the last two are one
constexpr auto STRIP_KINDS = std::make_integer_sequence<int, MOST_TAPS * MOST_STRIDE>();
constexpr std::array<Strips, MOST_TAPS * MOST_STRIDE> STRIPS[] = {
    all_strips<1, false>(STRIP_KINDS), all_strips<1, true>(STRIP_KINDS), all_strips<LINE_VECTORS, true>(STRIP_KINDS)};

// How far the inputs of a class's columns are apart, in taps, if strips can walk them; else 0.
int64_t strip_stride(const AxisClass& col) {
  if (col.size < STRIP / 2 || col.count < 1 || col.count > MOST_TAPS || col.step != 1) return 0;
  const int64_t stride = col.starts[1] - col.starts[0], step = col.positions[1] - col.positions[0];
  if (stride < 1 || stride > MOST_STRIDE) return 0;
  for (int64_t k = 1; k < col.size; k++)
    if (col.starts[k] - col.starts[k - 1] != stride || col.positions[k] - col.positions[k - 1] != step) return 0;
  return stride;
}

// Asks for `lines` lines of the cache in a row.
template <int WRITE>
INLINE void fetch(const float* p, int64_t lines) {
  for (int64_t k = 0; k < lines; k++) __builtin_prefetch(p + k * 16, WRITE, 2);
}

// Channels [begin, end) of part `part` out of `parts` of the rows of a class whose columns strips can walk.
struct StripClass {
  const Geometry& g;
  const AxisClass &row, &col;
  const Operands& op;
  const float* panel;
  int64_t stride, ld, part, parts, begin, end;
  int64_t step = col.positions[1] - col.positions[0], kind = (col.count - 1) * MOST_STRIDE + stride - 1;
  int64_t first = part_start(g.n * row.size, part, parts), last = part_start(g.n * row.size, part + 1, parts);

  // Row k, for channels from c on
  StripRow at(int64_t k, int64_t c) const {
    const int64_t image = k / row.size, i = k % row.size;
    return {op.in + ((image * g.in_h + row.starts[i]) * g.in_w + col.starts[0]) * g.in_pitch + c,
            panel + (row.slot * g.f_w + col.slot) * ld + c, op.bias ? op.bias + c : nullptr,
            op.out + ((image * g.out_h + row.positions[i]) * g.out_w + col.positions[0]) * g.out_pitch + c,
            g.in_pitch, step * g.out_pitch, row.step * g.in_w * g.in_pitch, ld, g.f_w * ld, row.count, col.size, end - c,
            op.relu, op.accumulate};
  }

  // Few taps: all channels of the outputs of a strip, whose inputs lie in a row, before the next outputs. What the next
  // ones read for the first time, and write, is asked for meanwhile.
  void by_outputs() const {
    for (int64_t k = first; k < last; k++) {
      const StripRow whole = at(k, 0);
      const int64_t x_step = stride * g.in_pitch;
      const float* fresh = whole.x + (row.count - 1) * whole.row_step;
      for (int64_t o = 0; o < col.size; o += STRIP / LINE_VECTORS) {
        for (int64_t c = begin, vectors; c < end; c += vectors * LANES) {
          vectors = end - c >= LINE_VECTORS * LANES ? LINE_VECTORS : 1;
          StripRow r = at(k, c);
          r.x += o * x_step, r.y += o * r.y_step;
          r.outputs = std::min<int64_t>(STRIP / LINE_VECTORS, col.size - o);
          for (int64_t next = o + STRIP; next < o + STRIP + STRIP / LINE_VECTORS; next++) {
            __builtin_prefetch(fresh + next * x_step + c);
            __builtin_prefetch(whole.y + next * r.y_step + c, 1);
          }
          STRIPS[vectors > 1 ? 2 : r.left >= LANES][kind](r);
        }
      }
    }
  }

  // Vector after vector of a few rows: what neighbouring rows have in common stays in the first-level cache. A line of
  // each pixel is read and written at a time, which no prefetcher expects, so that the rows behind these are asked for
  // meanwhile, in a row.
  void by_channels() const {
    const int64_t lines = col.size * LANES / 16, ahead = ROWS_TOGETHER * g.in_w * g.in_pitch * stride;
    const int64_t ahead_out = ROWS_TOGETHER * g.out_w * g.out_pitch;
    for (int64_t top = first; top < last; top += ROWS_TOGETHER) {
      for (int64_t c = begin; c < end; c += LANES) {
        for (int64_t k = top; k < std::min(top + ROWS_TOGETHER, last); k++) {
          const StripRow r = at(k, c);
          if (top + ROWS_TOGETHER < last && g.out_w >= WIDE) {
            fetch<0>(r.x - c + ahead + c * col.size, lines * stride);
            fetch<1>(r.y - c + ahead_out + c * col.size, lines);
          }
          STRIPS[r.left >= LANES][kind](r);
        }
      }
    }
  }
};

// panel[slot][c] = w[c][tap of slot]; rows are padded with zeros to a whole block.
const float* pack_filters(const Geometry& g, const float* w, int64_t ld) {
  float* panel = scratch<4>(g.taps() * ld);
  std::fill_n(panel, g.taps() * ld, 0.0f);
  for (int64_t slot = 0; slot < g.taps(); slot++) {
    const int64_t tap = g.rows.taps[slot / g.f_w] * g.f_w + g.cols.taps[slot % g.f_w];
    for (int64_t c = 0; c < g.in_c; c++) panel[slot * ld + c] = w[c * g.taps() + tap];
  }
  return panel;
}

void list_taps(const Geometry& g, const AxisClass& row, const AxisClass& col, std::vector<Run>& runs) {
  runs.clear();
  for (int64_t a = 0; a < row.count; a++)
    for (int64_t b = 0; b < col.count; b++)
      runs.push_back({(a * row.step * g.in_w + b * col.step) * g.in_pitch, (row.slot + a) * g.f_w + col.slot + b, 1});
}

// sums[tap][ld] += x * dy over `count` outputs of one row, for FW neighbouring taps and V vectors of channels; an
// output reads FW inputs, and the next output those `x_step` floats on.
template <int FW, int V, bool FULL>
void wgrad_row(const float* x, int64_t x_step, int64_t tap_step, const float* dy, int64_t dy_step, int64_t count,
               int64_t left, float* sums, int64_t ld) {
  const auto read = [=](const float* p, int v) INLINED {
    return FULL ? load(p + v * LANES) : load_part(p + v * LANES, left - v * LANES);
  };
  vfloat acc[FW][V] = {};
  for (int64_t k = 0; k < count; k++, x += x_step, dy += dy_step) {
    UNROLL for (int v = 0; v < V; v++) {
      const vfloat g = read(dy, v);
      UNROLL for (int b = 0; b < FW; b++) acc[b][v] += read(x + b * tap_step, v) * g;
    }
  }
  UNROLL for (int b = 0; b < FW; b++)
    UNROLL for (int v = 0; v < V; v++) {
      float* to = sums + b * ld + v * LANES;
      store(to, load(to) + acc[b][v]);
    }
}

// As wgrad_row, for channels [0, valid) and any number of them.
template <int FW>
void wgrad_channels(const float* x, int64_t x_step, int64_t tap_step, const float* dy, int64_t dy_step, int64_t count,
                    int64_t valid, float* sums, int64_t ld) {
  constexpr int V = ACCUMULATORS / FW >= WGRAD_VECTORS ? WGRAD_VECTORS : std::max(1, ACCUMULATORS / FW);
  int64_t c = 0;
  for (; c + V * LANES <= valid; c += V * LANES)
    wgrad_row<FW, V, true>(x + c, x_step, tap_step, dy + c, dy_step, count, V * LANES, sums + c, ld);
  for (; c < valid; c += LANES)
    wgrad_row<FW, 1, false>(x + c, x_step, tap_step, dy + c, dy_step, count, valid - c, sums + c, ld);
}

using WgradTaps = decltype(&wgrad_channels<1>);
template <int... K>
constexpr std::array<WgradTaps, sizeof...(K) + 1> all_wgrads(std::integer_sequence<int, K...>) {
  return {nullptr, wgrad_channels<K + 1>...};
}
constexpr auto WGRADS = all_wgrads(std::make_integer_sequence<int, MOST_TAPS>());  // [taps]

// Columns of outputs that meet the taps [tap, tap + taps) of a row, all of them: output `first` meets input `input` at
// the first of these taps, and the next ones `step` on.
struct Span {
  int64_t tap, taps, first, last, input, step;
};

// Cuts the outputs of a row into spans of the same taps, of at most MOST_TAPS, so that all taps share what they read.
std::vector<Span> spans_of(const Geometry& g) {
  std::vector<Span> spans;
  std::vector<int64_t> cuts = {0, g.out_w};
  for (int64_t t = 0; t < g.f_w; t++) {
    cuts.push_back(g.col_ranges[t].first);
    cuts.push_back(g.col_ranges[t].first + g.col_ranges[t].count);
  }
  std::sort(cuts.begin(), cuts.end());
  for (size_t k = 0; k + 1 < cuts.size(); k++) {
    const int64_t first = std::max<int64_t>(0, cuts[k]), last = std::min(g.out_w, cuts[k + 1]);
    if (first >= last) continue;
    const auto meets = [&](int64_t t) {
      const TapRange& range = g.col_ranges[t];
      return range.count && range.first <= first && last <= range.first + range.count;
    };
    for (int64_t t = 0; t < g.f_w; t++) {
      if (!meets(t)) continue;
      int64_t taps = 1;
      while (taps < MOST_TAPS && t + taps < g.f_w && meets(t + taps)) taps++;
      const auto input = [&](int64_t tap) {
        return g.col_ranges[tap].input + (first - g.col_ranges[tap].first) * g.stride_w;
      };
      spans.push_back({t, taps, first, last, input(t), taps > 1 ? input(t + 1) - input(t) : 0});
      t += taps - 1;
    }
  }
  return spans;
}

// All taps of one row of outputs, for all channels; sums is [tap][ld].
void wgrad_taps(const Geometry& g, const std::vector<Span>& spans, const float* x, const float* dy, int64_t image,
                int64_t oh, float* sums, int64_t ld) {
  for (int64_t fh = 0; fh < g.f_h; fh++) {
    const TapRange& row = g.row_ranges[fh];
    if (oh < row.first || oh >= row.first + row.count) continue;
    const int64_t ih = row.input + (oh - row.first) * g.stride_h;
    for (const Span& s : spans)
      WGRADS[s.taps](x + ((image * g.in_h + ih) * g.in_w + s.input) * g.in_c, g.stride_w * g.in_c, s.step * g.in_c,
                     dy + ((image * g.out_h + oh) * g.out_w + s.first) * g.out_pitch, g.out_pitch, s.last - s.first,
                     g.in_c, sums + (fh * g.f_w + s.tap) * ld, ld);
  }
}

}  // namespace

// Where rows are short, so would strips be of outputs with the same taps.
void depthwise(const Geometry& g, const Operands& op) {
  if (suits_rows(g, g.out_w <= 2 * LANES ? MOST_TAPS : ROW_TAPS)) return depthwise_rows(g, op);
  const int64_t ld = round_up(g.in_c, BLOCK);
  const float* panel = pack_filters(g, op.w, ld);
  const int threads = team(g.multiply_adds(), 50000);
  const int64_t width = std::max<int64_t>(BLOCK, SLAB_FLOATS / g.taps() / BLOCK * BLOCK);  // of a slab of channels
  const int64_t share = g.out_w < WIDE ? width : round_up(g.in_c, width), slabs = ceil_div(g.in_c, share);
  const int64_t parts = std::min(g.n * g.out_h, ceil_div(PARTS_PER_THREAD * threads, slabs));
  std::vector<int64_t> strides;  // per class of columns
  for (int64_t b = 0; b < g.cols.classes; b++) strides.push_back(strip_stride(g.cols[b]));
#pragma omp parallel num_threads(threads)
  {
    std::vector<Run> runs;
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < slabs * parts; job++) {
      const int64_t part = job % parts, first = job / parts * share, end = std::min(first + share, g.in_c);
      for (int64_t a = 0; a < g.rows.classes; a++) {
        for (int64_t b = 0; b < g.cols.classes; b++) {
          if (strides[b]) {
            const StripClass strips{g, g.rows[a], g.cols[b], op, panel, strides[b], ld, part, parts, first, end};
            strips.col.count <= FEW_TAPS ? strips.by_outputs() : strips.by_channels();
            continue;
          }
          list_taps(g, g.rows[a], g.cols[b], runs);
          for (int64_t c = first; c < end; c += width)
            for_each_tile(g, g.rows[a], g.cols[b], part, parts, TILE_PIXELS, op.in, op.out,
                          [&](const float* const* x, float* const* y, int count) {
                            TILES[count](g, x, y, runs, panel, ld, op, c, std::min(c + width, end));
                          });
        }
      }
    }
  }
}

void depthwise_wgrad(const Geometry& g, const float* x, const float* dy, float* dw) {
  if (suits_rows(g)) return depthwise_rows_wgrad(g, x, dy, dw);
  const int64_t ld = round_up(g.in_c, LANES), rows = g.n * g.out_h;
  const int threads = team(g.multiply_adds(), 50000);
  const int64_t parts = parts_of_rows(g, 1);
  const std::vector<Span> spans = spans_of(g);
  float* sums = scratch<4>(parts * g.taps() * ld);  // [part][tap][ld]
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++) {
      float* own = sums + part * g.taps() * ld;
      std::fill_n(own, g.taps() * ld, 0.0f);
      for (int64_t k = part_start(rows, part, parts); k < part_start(rows, part + 1, parts); k++)
        wgrad_taps(g, spans, x, dy, k / g.out_h, k % g.out_h, own, ld);
    }
#pragma omp for schedule(static)
    for (int64_t c = 0; c < g.in_c; c++)
      for (int64_t tap = 0; tap < g.taps(); tap++) {
        float total = 0;
        for (int64_t part = 0; part < parts; part++) total += sums[(part * g.taps() + tap) * ld + c];
        dw[c * g.taps() + tap] = total;
      }
  }
}
