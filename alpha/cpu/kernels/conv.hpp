// The geometry of a convolution as the kernels see it: tables that alpha/cpu/conv_tables.py packs from ConvDesc.
// No kernel computes which taps meet which pixels; it walks these lists.
#pragma once

#include "vec.hpp"

// Positions of one axis of the tensor that is written which read the same taps.
// Position positions[k] reads `count` taps: packed slots slot, slot + 1, ... at inputs starts[k] + j * step.
struct AxisClass {
  int64_t size, slot, count, step;
  const int64_t* positions;
  const int64_t* starts;
};

// Table: [classes, f taps in slot order, 5 numbers per class (size, slot, count, step, at), positions, starts, ...].
struct AxisTable {
  int64_t classes;
  const int64_t* taps;
  const int64_t* base;
  int64_t f;

  AxisClass operator[](int64_t k) const {
    const int64_t* c = base + 1 + f + 5 * k;
    return {c[0], c[1], c[2], c[3], base + c[4], base + c[4] + c[0]};
  }
};

// Outputs [first, first + count) meet a real input at this tap; output `first` meets input `input`.
struct TapRange {
  int64_t first, count, input;
};

// `in` is the tensor that is read at shifted positions (x; g for dgrad), `out` the one that positions belong to.
// A tensor may be a slice of the channels of a wider one: from a pixel to the next there are in_pitch, out_pitch floats.
struct Geometry {
  int64_t n, in_h, in_w, in_c, out_h, out_w, out_c, f_h, f_w, groups, stride_h, stride_w, in_pitch, out_pitch;
  AxisTable rows, cols;
  const TapRange *row_ranges, *col_ranges;  // [f_h], [f_w]; forward tables only

  explicit Geometry(const int64_t* t)
      : n(t[0]), in_h(t[1]), in_w(t[2]), in_c(t[3]), out_h(t[4]), out_w(t[5]), out_c(t[6]), f_h(t[7]), f_w(t[8]),
        groups(t[9]), stride_h(t[10]), stride_w(t[11]), in_pitch(t[12]), out_pitch(t[13]),
        rows(axis(t + t[14], f_h)), cols(axis(t + t[15], f_w)),
        row_ranges(reinterpret_cast<const TapRange*>(t + t[16])),
        col_ranges(reinterpret_cast<const TapRange*>(t + t[17])) {}

  int64_t taps() const { return f_h * f_w; }
  bool depthwise() const { return groups > 1 && groups == in_c && groups == out_c; }
  bool dense() const { return in_pitch == in_c && out_pitch == out_c; }
  // Of a forward table; padding may leave the only tap outside of the map.
  bool matrix_product() const {
    return taps() == 1 && groups == 1 && in_h * in_w == 1 && out_h * out_w == 1 && row_ranges->count &&
           col_ranges->count && dense();
  }
  int64_t multiply_adds() const { return n * out_h * out_w * taps() * in_c * (out_c / groups); }

 private:
  static AxisTable axis(const int64_t* t, int64_t f) { return {t[0], t + 1, t, f}; }
};

// Calls run(geometry, first) for each level of a table: a convolution with the output channels from `first` on.
// Table: [levels, (where its geometry begins, first) per level, geometries].
template <class Run>
INLINE void for_each_level(const int64_t* t, Run run) {
  for (int64_t k = 0; k < t[0]; k++) run(Geometry(t + t[1 + 2 * k]), t[2 + 2 * k]);
}

struct Operands {
  const float* in;
  const float* w;
  const float* bias;  // or null
  float* out;
  bool relu, accumulate;  // accumulate: out += the result, before relu
  const float* panels;    // all weights, packed; or null
};

// One contiguous stretch of a reduction: where it starts in the input (from the pixel's first tap) and in the panel.
struct Run {
  int64_t in, panel, length;
};

// Calls emit(x, y, count) for register tiles of at most `most` pixels of a class: x and y point to the first input
// and to the output of each pixel. Tiles cross rows and images, and are of nearly equal size. Of the rows of the class
// this is part `part` out of `parts`.
template <class Emit>
INLINE void for_each_tile(const Geometry& g, const AxisClass& row, const AxisClass& col, int64_t part, int64_t parts,
                          int most, const float* in, float* out, Emit emit) {
  const int64_t first = part_start(g.n * row.size, part, parts), last = part_start(g.n * row.size, part + 1, parts);
  const int64_t total = (last - first) * col.size;
  if (total == 0) return;
  const int64_t tiles = ceil_div(total, most), base = total / tiles, larger = total % tiles;
  const float* x[ACCUMULATORS];
  float* y[ACCUMULATORS];
  int64_t filled = 0, done = 0;
  for (int64_t k = first; k < last; k++) {
    const int64_t image = k / row.size, i = k % row.size;
    const float* in_row = in + (image * g.in_h + row.starts[i]) * g.in_w * g.in_pitch;
    float* out_row = out + (image * g.out_h + row.positions[i]) * g.out_w * g.out_pitch;
    for (int64_t j = 0; j < col.size; j++) {
      x[filled] = in_row + col.starts[j] * g.in_pitch;
      y[filled] = out_row + col.positions[j] * g.out_pitch;
      if (++filled < base + (done < larger)) continue;
      emit(x, y, static_cast<int>(filled));
      filled = 0;
      done++;
    }
  }
}

// Parts of the rows have some so many pixels, beside which writing and adding partial sums is cheap; and they make so
// many jobs at most.
constexpr int64_t PART_PIXELS = 512, MOST_JOBS = 16;

// How many parts the rows of a filter gradient are cut into, where there are `jobs` without: a power of two, as numbers
// of threads are, or fewer.
INLINE int64_t parts_of_rows(const Geometry& g, int64_t jobs) {
  int64_t parts = 1;
  while (parts * jobs < MOST_JOBS && parts * PART_PIXELS < g.n * g.out_h * g.out_w) parts *= 2;
  return std::min(parts, g.n * g.out_h);
}

// Which of the two channel orders a panel is packed from.
enum class Pass { fprop, dgrad };

void convolve(const Geometry& g, const Operands& op, Pass pass);
void depthwise(const Geometry& g, const Operands& op);
void depthwise_wgrad(const Geometry& g, const float* x, const float* dy, float* dw);
void linear_dot(const Geometry& g, const Operands& op);
// Whether vectors of pixels side by side pay, where a class of columns is a stretch of them.
bool suits_pixels(const Geometry& g);
bool is_stretch(const AxisClass& col);
// Part `part` of `parts` of the rows of a class that is a stretch, with weights packed for a `width` of channels out.
void run_pixels(const Geometry& g, const Operands& op, const AxisClass& row, const AxisClass& col, const float* panel,
                int64_t width, int64_t part, int64_t parts);
// Whether taps and channels in make one row: less than a vector of channels, or one, of which a row of taps is several.
INLINE bool suits_few_channels(const Geometry& g) {
  const int64_t channels = g.in_c / g.groups;
  return channels < LANES || (channels == LANES && g.groups == 1 && g.f_w > 1);
}
void wgrad_few_channels(const Geometry& g, const float* x, const float* dy, float* dw);
bool suits_one_tap(const Geometry& g);  // which wgrad_one_tap requires; of a forward table
void wgrad_one_tap(const Geometry& g, const float* x, const float* dy, float* dw);
void wgrad_per_tap(const Geometry& g, const float* x, const float* dy, float* dw);
