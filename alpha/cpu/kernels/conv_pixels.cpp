// What:    the convolutions of conv.cpp where vectors of channels would be half empty: few channels, in and out
// Layout:  as conv.cpp. A vector has pixels side by side of one channel out. Rows that are read are split into a plane of
//          each channel first, and what is made is turned back into channels.
// Zeros:   of a class of pixels that read the same taps, stretches side by side in a row; its taps are all that is read.
// Tile:    up to MOST_OUTPUTS channels out x up to MOST_VECTORS vectors of pixels. The last of a row begins early enough
//          to be whole. Terms are added in the order of conv.cpp's tiles, so the bits are theirs.
#include <vector>

#include "conv.hpp"

namespace {

constexpr int MOST_VECTORS = 2, MOST_OUTPUTS = 6;
constexpr int64_t MOST_INPUTS = 4, MOST_TERMS = 2048;
constexpr int MOST_CHANNELS = LANES * 3 / 4, STRETCH = MOST_VECTORS * LANES;

// The rows of planes that one row of outputs reads, and the steps among its taps.
struct Window {
  std::vector<const float*> rows;
  int64_t channels, columns, column_step, in_w;
};

// sums[o * STRETCH + pixel] = bias[o] + sum over taps and channels in of planes * w[o], for pixels from `at` on
template <int O, int V>
__attribute__((noinline)) void tile(const Window& window, int64_t at, const float* w, int64_t row_step, int64_t width,
                                    const float* bias, float* sums) {
  vfloat acc[O][V];
  UNROLL for (int o = 0; o < O; o++) UNROLL for (int v = 0; v < V; v++) acc[o][v] = broadcast(bias ? bias[o] : 0);
  for (const float* row : window.rows) {
    const float* weight = w;
    for (int64_t b = 0; b < window.columns; b++)
      for (int64_t i = 0; i < window.channels; i++, weight += width) {
        const float* in = row + i * window.in_w + at + b * window.column_step;
        vfloat x[V];
        UNROLL for (int v = 0; v < V; v++) x[v] = load(in + v * LANES);
        UNROLL for (int o = 0; o < O; o++) {
          const vfloat value = broadcast(weight[o]);
          UNROLL for (int v = 0; v < V; v++) acc[o][v] += x[v] * value;
        }
      }
    w += row_step;
  }
  UNROLL for (int o = 0; o < O; o++) UNROLL for (int v = 0; v < V; v++) store(sums + o * STRETCH + v * LANES, acc[o][v]);
}

using Tile = void (*)(const Window&, int64_t, const float*, int64_t, int64_t, const float*, float*);

// TILES[vectors - 1][outputs - 1]
constexpr Tile TILES[MOST_VECTORS][MOST_OUTPUTS] = {
    {tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>, tile<5, 1>, tile<6, 1>},
    {tile<1, 2>, tile<2, 2>, tile<3, 2>, tile<4, 2>, tile<5, 2>, tile<6, 2>}};

// planes[c * width + j] = row[j * C + c]
template <int C>
void split(const float* row, int64_t width, float* planes) {
  for (int64_t j = 0; j < width; j++)
    for (int c = 0; c < C; c++) planes[c * width + j] = row[j * C + c];
}
constexpr void (*SPLIT[MOST_INPUTS])(const float*, int64_t, float*) = {split<1>, split<2>, split<3>, split<4>};

// Writes a row of pixels, n floats.
void write_row(const float* from, int64_t n, const Operands& op, float* y) {
  for (int64_t k = 0; k < n; k += LANES) {
    vfloat value = load(from + k);
    if (op.accumulate) value += load_part(y + k, n - k);
    store_part(y + k, op.relu ? relu(value) : value, n - k);
  }
}

}  // namespace

bool is_stretch(const AxisClass& col) {
  const int64_t last = col.size - 1;
  return col.size >= LANES && col.count > 0 && col.positions[last] - col.positions[0] == last &&
         col.starts[last] - col.starts[0] == last;
}

bool suits_pixels(const Geometry& g) {
  if (g.groups > 1 || !g.dense() || g.in_c > MOST_INPUTS || g.out_c > MOST_CHANNELS || g.f_w == 1) return false;
  bool found = false;
  for (int64_t b = 0; b < g.cols.classes; b++) found |= is_stretch(g.cols[b]);
  return found && g.taps() * g.in_c <= MOST_TERMS;
}

void run_pixels(const Geometry& g, const Operands& op, const AxisClass& row, const AxisClass& col, const float* panel,
                int64_t width, int64_t part, int64_t parts) {
  const int64_t slots = (row.count - 1) * row.step + 1, plane = g.in_c * g.in_w;  // rows are kept by number % slots
  const int64_t floats = col.size * g.out_c;
  float* made = scratch<3>(std::max<int64_t>(slots, 0) * plane + floats + LANES);
  float* planes = made + floats + LANES;
  std::vector<int64_t> held(std::max<int64_t>(slots, 0), -1);
  Window window = {std::vector<const float*>(row.count), g.in_c, col.count, col.step, g.in_w};
  const float* weights = panel + (row.slot * g.f_w + col.slot) * g.in_c * width;
  const int64_t groups = ceil_div(g.out_c, MOST_OUTPUTS), vectors = std::min<int64_t>(MOST_VECTORS, col.size / LANES);
  alignas(64) float sums[MOST_CHANNELS * STRETCH];
  for (int64_t k = part_start(g.n * row.size, part, parts); k < part_start(g.n * row.size, part + 1, parts); k++) {
    const int64_t image = k / row.size, i = k % row.size;
    for (int64_t a = 0; a < row.count; a++) {
      const int64_t in_row = image * g.in_h + row.starts[i] + a * row.step, slot = in_row % slots;
      if (held[slot] != in_row) SPLIT[g.in_c - 1](op.in + in_row * plane, g.in_w, planes + slot * plane);
      held[slot] = in_row;
      window.rows[a] = planes + slot * plane;
    }
    for (int64_t done = 0; done < col.size;) {
      const int64_t count = (col.size - done <= LANES ? 1 : vectors) * LANES, j = std::min(done, col.size - count);
      for (int64_t group = 0; group < groups; group++) {
        const int64_t o = part_start(g.out_c, group, groups), outputs = part_start(g.out_c, group + 1, groups) - o;
        TILES[count / LANES - 1][outputs - 1](window, col.starts[0] + j, weights + o, g.f_w * g.in_c * width, width,
                                              op.bias ? op.bias + o : nullptr, sums + o * STRETCH);
      }
      for (int64_t v = 0; v < count; v += LANES)
        transpose(sums + v, STRETCH, g.out_c, made + (j + v) * g.out_c, g.out_c);
      done = j + count;
    }
    const int64_t first = (image * g.out_h + row.positions[i]) * g.out_w + col.positions[0];
    write_row(made, floats, op, op.out + first * g.out_c);
  }
}
