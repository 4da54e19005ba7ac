// What:    depthwise convolution, groups == channels in == channels out, all three passes: c is never summed over.
//          y[n,oh,ow,c] = bias[c] + sum_{fh,fw} x[n,ih,iw,c] * w[c,fh,fw];
//          dx likewise from g;  dw[c,fh,fw] = sum_{n,oh,ow} x[n,ih,iw,c] * g[n,oh,ow,c]
// Layout:  NHWC, so vectors run over channels; the filters are packed to [tap slot][C].
// Zeros:   fprop and dgrad walk classes of pixels with one common tap list (conv.cpp), wgrad the exact output range of
//          each tap; no padded or inserted zero is read.
// Tile:    TILE_PIXELS pixels x 2 vectors share the weights of a tap; the channels of a slab of a tile's pixels
//          follow one another, so that memory is read and written in a row. wgrad: 4 vectors, one row of outputs at a
//          time; parts of the rows follow from the shape, and are added in order.
#include <vector>

#include "conv.hpp"

namespace {

constexpr int TILE_PIXELS = 4, BLOCK = 2 * LANES, WGRAD_VECTORS = 4, PARTS_PER_THREAD = 8;
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

// panel[slot][c] = w[c][tap of slot]; rows are padded with zeros to a whole block.
std::vector<float> pack_filters(const Geometry& g, const float* w, int64_t ld) {
  std::vector<float> panel(g.taps() * ld, 0.0f);
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

// sums[c] += sum over the outputs of one row that meet one tap, for a block of WGRAD_VECTORS vectors of channels
void wgrad_row(const float* x, int64_t x_step, const float* dy, int64_t dy_step, int64_t count, int64_t valid,
               float* sums) {
  vfloat acc[WGRAD_VECTORS] = {};
  if (valid == WGRAD_VECTORS * LANES) {
    for (int64_t k = 0; k < count; k++, x += x_step, dy += dy_step)
      UNROLL for (int v = 0; v < WGRAD_VECTORS; v++) acc[v] += load(x + v * LANES) * load(dy + v * LANES);
  } else {
    for (int64_t k = 0; k < count; k++, x += x_step, dy += dy_step)
      UNROLL for (int v = 0; v < WGRAD_VECTORS; v++) {
        const int64_t left = valid - v * LANES;
        acc[v] += load_part(x + v * LANES, left) * load_part(dy + v * LANES, left);
      }
  }
  UNROLL for (int v = 0; v < WGRAD_VECTORS; v++) store(sums + v * LANES, load(sums + v * LANES) + acc[v]);
}

// All taps of one row of outputs for channels [c, c + valid); sums is [tap][ld].
void wgrad_taps(const Geometry& g, const float* x, const float* dy, int64_t image, int64_t oh, int64_t c, int64_t valid,
                float* sums, int64_t ld) {
  for (int64_t fh = 0; fh < g.f_h; fh++) {
    const TapRange& row = g.row_ranges[fh];
    if (oh < row.first || oh >= row.first + row.count) continue;
    const int64_t ih = row.input + (oh - row.first) * g.stride_h;
    for (int64_t fw = 0; fw < g.f_w; fw++) {
      const TapRange& col = g.col_ranges[fw];
      if (!col.count) continue;
      wgrad_row(x + ((image * g.in_h + ih) * g.in_w + col.input) * g.in_c + c, g.stride_w * g.in_c,
                dy + ((image * g.out_h + oh) * g.out_w + col.first) * g.out_pitch + c, g.out_pitch, col.count, valid,
                sums + (fh * g.f_w + fw) * ld);
    }
  }
}

}  // namespace

void depthwise(const Geometry& g, const Operands& op) {
  const int64_t ld = round_up(g.in_c, BLOCK);
  const std::vector<float> panel = pack_filters(g, op.w, ld);
  const int threads = team(g.multiply_adds(), 50000);
  const int64_t width = std::max<int64_t>(BLOCK, SLAB_FLOATS / g.taps() / BLOCK * BLOCK);  // of a slab of channels
  const int64_t slabs = ceil_div(g.in_c, width);
  const int64_t parts = std::min(g.n * g.out_h, ceil_div(PARTS_PER_THREAD * threads, slabs));
#pragma omp parallel num_threads(threads)
  {
    std::vector<Run> runs;
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < slabs * parts; job++) {
      const int64_t part = job % parts, first = job / parts * width, end = std::min(first + width, g.in_c);
      for (int64_t a = 0; a < g.rows.classes; a++) {
        for (int64_t b = 0; b < g.cols.classes; b++) {
          list_taps(g, g.rows[a], g.cols[b], runs);
          for_each_tile(g, g.rows[a], g.cols[b], part, parts, TILE_PIXELS, op.in, op.out,
                        [&](const float* const* x, float* const* y, int count) {
                          TILES[count](g, x, y, runs, panel.data(), ld, op, first, end);
                        });
        }
      }
    }
  }
}

void depthwise_wgrad(const Geometry& g, const float* x, const float* dy, float* dw) {
  constexpr int64_t block = WGRAD_VECTORS * LANES;
  const int64_t ld = round_up(g.in_c, block), rows = g.n * g.out_h;
  const int threads = team(g.multiply_adds(), 50000);
  const int64_t parts = parts_of_rows(g, 1);
  std::vector<float> sums(parts * g.taps() * ld, 0.0f);  // [part][tap][ld]
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t part = 0; part < parts; part++)
      for (int64_t k = part_start(rows, part, parts); k < part_start(rows, part + 1, parts); k++)
        for (int64_t c = 0; c < g.in_c; c += block)
          wgrad_taps(g, x, dy, k / g.out_h, k % g.out_h, c, std::min(block, g.in_c - c),
                     sums.data() + part * g.taps() * ld + c, ld);
#pragma omp for schedule(static)
    for (int64_t c = 0; c < g.in_c; c++)
      for (int64_t tap = 0; tap < g.taps(); tap++) {
        float total = 0;
        for (int64_t part = 0; part < parts; part++) total += sums[(part * g.taps() + tap) * ld + c];
        dw[c * g.taps() + tap] = total;
      }
  }
}
