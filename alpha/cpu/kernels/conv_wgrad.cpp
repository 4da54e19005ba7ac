// What:    wgrad  dw[oc, fh, fw, ic] = sum_{n,oh,ow} g[n, oh, ow, oc] * x[n, ih, iw, ic]
// Source:  arXiv 2306.15951, Sk-dilated (Algorithm 3B): the inputs of a tap are read in leaps of the stride, over the
//          exact range of outputs that meet a real input. Differs: the ceiling of the lower bound (conv_desc.py).
// Layout:  NHWC and OHWI. GEMM view: GM = channels out, GN = channels in (x taps), GK = pixels.
// Zeros:   wgrad_per_tap lists the valid pixels of each tap; wgrad_few_channels lists the pixels of each class with one
//          common tap list, whose taps x channels form one row, so that few channels still fill the vectors.
// Tile:    up to ACCUMULATORS vectors: channels out x up to TILE_VECTORS vectors of channels in, over panels of
//          PANEL_PIXELS pixels x BLOCK_CHANNELS channels, of which a tile streams its own columns; dy is packed too.
//          Each panel is summed from zero and then added, which keeps the chains of sums short.
//          Rows are cut into parts that depend on the shape alone, and partial sums are added in a fixed order: results
//          do not depend on the number of threads.
#include <array>
#include <utility>
#include <vector>

#include "conv.hpp"

namespace {

constexpr int TILE_WIDTH = LANES * TILE_VECTORS;
constexpr int PANEL_PIXELS = 96, BLOCK_CHANNELS = 64, BLOCK_VECTORS = BLOCK_CHANNELS / LANES;
constexpr int64_t PARTIAL_SUM_BYTES = 512 * 1024;  // up to this size of dw, threads share out rows instead of taps
// Up to so many channels in, pixels of x are read where they lie; more are copied, [block][pixel][TILE_WIDTH].
constexpr int64_t DIRECT_CHANNELS = BLOCK_CHANNELS <= TILE_WIDTH ? BLOCK_CHANNELS : 0;

constexpr int tile_rows(int vectors) { return std::min({12, 2 * LANES, ACCUMULATORS / vectors}); }

// The pixels of one panel: offsets of their channels in x, or in a copy of them, and in dy.
struct Pixels {
  int64_t x[PANEL_PIXELS], dy[PANEL_PIXELS];
  int64_t count = 0;

  void add(int64_t x_offset, int64_t dy_offset) {
    x[count] = x_offset;
    dy[count++] = dy_offset;
  }
  bool full() const { return count == PANEL_PIXELS; }
};

// sums[P channels out][V vectors of channels in] += sum over pixels of gradients[pixel * step + P] * x
template <int P, int V>
__attribute__((noinline)) void tile(const float* x, const Pixels& pixels, const float* gradients, int64_t step,
                                    float* sums, int64_t ld) {
  vfloat acc[P][V] = {};
  const int64_t count = pixels.count;
  for (int64_t k = 0; k < count; k++, gradients += step) {
    const float* pixel = x + pixels.x[k];
    vfloat in[V];
    UNROLL for (int v = 0; v < V; v++) in[v] = load(pixel + v * LANES);
    UNROLL for (int p = 0; p < P; p++) {
      const vfloat gradient = broadcast(gradients[p]);
      UNROLL for (int v = 0; v < V; v++) acc[p][v] += gradient * in[v];
    }
  }
  UNROLL for (int p = 0; p < P; p++)
    UNROLL for (int v = 0; v < V; v++) {
      float* sum = sums + p * ld + v * LANES;
      store(sum, load(sum) + acc[p][v]);
    }
}

using Tile = void (*)(const float*, const Pixels&, const float*, int64_t, float*, int64_t);

template <int V, int... P>
constexpr std::array<Tile, ACCUMULATORS + 1> tiles_of(std::integer_sequence<int, P...>) {
  return {nullptr, tile<P + 1, V>...};
}

template <int... V>
constexpr std::array<std::array<Tile, ACCUMULATORS + 1>, TILE_VECTORS> all_tiles(std::integer_sequence<int, V...>) {
  return {tiles_of<V + 1>(std::make_integer_sequence<int, tile_rows(V + 1)>())...};
}

// TILES[vectors - 1][channels out]
constexpr auto TILES = all_tiles(std::make_integer_sequence<int, TILE_VECTORS>());

// Several matrix products with the same dy: strip k reads x + k * x_step and writes sums + k * outputs * width.
struct Strips {
  int64_t count, x_step, width;  // width is a multiple of LANES
  int64_t block_step = TILE_WIDTH;  // floats from one block of TILE_WIDTH channels of x to the next
};

// dy of a few tiles, [pixel][WIDTH]. Pixels of dy lie far apart and fall on few sets of the first-level cache: packed
// by whole vectors, each of its lines is fetched once.
struct PackedGradients {
  static constexpr int64_t WIDTH = 48;  // a multiple of LANES and of the rows of a full tile
  alignas(64) float data[PANEL_PIXELS * WIDTH];

  void pack(const float* dy, const Pixels& pixels, int64_t width) {
    for (int64_t k = 0; k < pixels.count; k++) {
      const float* pixel = dy + pixels.dy[k];
      float* to = data + k * WIDTH;
      if (width == WIDTH) {
        UNROLL for (int v = 0; v < WIDTH; v += LANES) store(to + v, load(pixel + v));
      } else {
        for (int64_t v = 0; v < width; v += LANES) store(to + v, load_part(pixel + v, width - v));
      }
    }
  }
};

// sums[strip][outputs][width] += dy^T x over the panel, in tiles. Empties the list.
void add_panel(const float* x, const float* dy, Pixels& pixels, const Strips& strips, float* sums, int64_t outputs) {
  const int64_t vectors = strips.width / LANES, blocks = ceil_div(vectors, TILE_VECTORS);
  const int64_t most_rows = tile_rows(static_cast<int>(std::min<int64_t>(vectors, TILE_VECTORS)));
  PackedGradients packed;
  for (int64_t first = 0; pixels.count && first < outputs; first += PackedGradients::WIDTH) {
    const int64_t packed_rows = std::min(outputs - first, PackedGradients::WIDTH);
    const int64_t tiles = ceil_div(packed_rows, most_rows);
    packed.pack(dy + first, pixels, packed_rows);
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t o = part_start(packed_rows, t, tiles), rows = part_start(packed_rows, t + 1, tiles) - o;
      for (int64_t strip = 0; strip < strips.count; strip++) {
        float* sums_of_rows = sums + (strip * outputs + first + o) * strips.width;
        for (int64_t b = 0; b < blocks; b++) {
          const int64_t count = std::min<int64_t>(vectors - b * TILE_VECTORS, TILE_VECTORS);
          TILES[count - 1][rows](x + strip * strips.x_step + b * strips.block_step, pixels, packed.data + o,
                                 PackedGradients::WIDTH, sums_of_rows + b * TILE_WIDTH, strips.width);
        }
      }
    }
  }
  pixels.count = 0;
}

// Copies n floats in whole vectors where memory up to `end` allows it; dst has room for the overshoot.
INLINE void copy_run(float* dst, const float* src, int64_t n, const float* end) {
  if (src + round_up(n, LANES) <= end)
    for (int64_t i = 0; i < n; i += LANES) store(dst + i, load(src + i));
  else
    memcpy(dst, src, n * sizeof(float));
}

// One class of pixels. Its taps x channels are the columns of one strip, which is copied to a panel, or (in_place)
// each row of taps is a strip that is read where it lies: chosen where rounding rows up to whole vectors costs little.
struct ClassPanel {
  const Geometry& g;
  AxisClass row, col;
  int64_t channels, run;  // channels in of a group; floats per row of taps
  bool joined, in_place;
  Strips strips;

  ClassPanel(const Geometry& geometry, const AxisClass& r, const AxisClass& c)
      : g(geometry), row(r), col(c), channels(g.in_c / g.groups), run(c.count * channels) {
    const int64_t copied = round_up(row.count * run, LANES), apart = row.count * round_up(run, LANES);
    joined = g.groups == 1 && col.step == 1;
    in_place = joined && 10 * apart <= 11 * copied;
    strips = in_place ? Strips{row.count, row.step * g.in_w * g.in_c, round_up(run, LANES)} : Strips{1, 0, copied};
  }

  int64_t sums() const { return (in_place ? row.count : 1) * strips.width * (g.out_c / g.groups); }

  const float* sums_of(const float* sums, int64_t o, int64_t a) const {
    return in_place ? sums + (a * (g.out_c / g.groups) + o) * strips.width : sums + o * strips.width + a * run;
  }

  void copy_pixel(float* dst, const float* src, const float* end) const {
    const int64_t row_step = row.step * g.in_w * g.in_c;
    if (joined && src + (row.count - 1) * row_step + round_up(run, LANES) <= end) {
      for (int64_t a = 0; a < row.count; a++)
        for (int64_t i = 0; i < run; i += LANES) store(dst + a * run + i, load(src + a * row_step + i));
      return;
    }
    for (int64_t a = 0; a < row.count; a++, dst += run) {
      const float* taps = src + a * row_step;
      for (int64_t b = 0; b < col.count; b++)
        copy_run(dst + b * channels, taps + b * col.step * g.in_c, channels, end);
    }
  }

  // A pixel whose last vector would reach past the end of x, one element at a time.
  void add_pixel(const float* src, const float* dy, float* sums) const {
    for (int64_t a = 0; a < row.count; a++)
      for (int64_t o = 0; o < g.out_c; o++)
        for (int64_t i = 0; i < run; i++)
          sums[(a * g.out_c + o) * strips.width + i] += dy[o] * src[a * strips.x_step + i];
  }

  // dw[o][taps of the class][channels] += sums; taps of a row of the filter follow one another.
  void add_to(float* dw, const float* sums) const {
    for (int64_t o = 0; o < g.out_c / g.groups; o++)
      for (int64_t a = 0; a < row.count; a++) {
        float* dst = dw + (o * g.taps() + (row.slot + a) * g.f_w + col.slot) * channels;
        const float* src = sums_of(sums, o, a);
        for (int64_t i = 0; i < run; i++) dst[i] += src[i];
      }
  }
};

// Adds part `part` of `parts` of the rows of one class and one group to dw. Scratch: a panel, then the sums.
void add_class(const ClassPanel& c, const float* x, const float* dy, int64_t group, int64_t part, int64_t parts,
               float* dw) {
  if (!c.run || !c.row.count) return;
  const Geometry& g = c.g;
  const int64_t outputs = g.out_c / g.groups, rows = g.n * c.row.size, width = c.strips.width;
  const int64_t reach = (c.strips.count - 1) * c.strips.x_step + width;
  const float* end = x + g.n * g.in_h * g.in_w * g.in_c;
  float* panel = scratch(PANEL_PIXELS * width + LANES + c.sums());
  float* sums = panel + PANEL_PIXELS * width + LANES;
  std::fill_n(sums, c.sums(), 0.0f);
  const float* base = c.in_place ? x : panel;
  Pixels pixels;
  for (int64_t k = part_start(rows, part, parts); k < part_start(rows, part + 1, parts); k++) {
    const int64_t image = k / c.row.size, i = k % c.row.size;
    const float* in_row = x + (image * g.in_h + c.row.starts[i]) * g.in_w * g.in_c + group * c.channels;
    const int64_t out_row = (image * g.out_h + c.row.positions[i]) * g.out_w;
    for (int64_t j = 0; j < c.col.size; j++) {
      const float* src = in_row + c.col.starts[j] * g.in_c;
      const int64_t out = (out_row + c.col.positions[j]) * g.out_pitch + group * outputs;
      if (!c.in_place) {
        c.copy_pixel(panel + pixels.count * width, src, end);
        pixels.add(pixels.count * width, out);
      } else if (src + reach <= end) {
        pixels.add(src - x, out);
      } else {
        c.add_pixel(src, dy + out, sums);
      }
      if (pixels.full()) add_panel(base, dy, pixels, c.strips, sums, outputs);
    }
  }
  add_panel(base, dy, pixels, c.strips, sums, outputs);
  c.add_to(dw + group * outputs * g.taps() * c.channels, sums);
}

// How wgrad_per_tap is cut. A job is (taps, block of channels in, channels out, rows): all taps where dw is small, so
// that they find x and dy in cache, else one tap. Only where dw is small are the rows cut, with partial sums. Channels
// out are cut where there are too few jobs for the threads, which changes no sum.
struct TapPlan {
  int64_t channels, outputs, taps_per_job, tap_jobs, blocks, output_jobs, row_parts, vectors;

  TapPlan(const Geometry& g, int threads) : channels(g.in_c / g.groups), outputs(g.out_c / g.groups) {
    vectors = ceil_div(channels, LANES);
    blocks = ceil_div(vectors, BLOCK_VECTORS);
    const int64_t panels = blocks * g.groups;
    const bool small = g.taps() * BLOCK_CHANNELS * outputs * int64_t(sizeof(float)) <= PARTIAL_SUM_BYTES;
    taps_per_job = small ? g.taps() : 1;
    tap_jobs = g.taps() / taps_per_job;
    row_parts = small ? parts_of_rows(g, tap_jobs * panels) : 1;
    const int64_t whole = tap_jobs * panels * row_parts;
    const bool enough = small && (whole % threads == 0 || whole >= 3 * threads);
    output_jobs = enough ? 1 : std::max<int64_t>(1, std::min(outputs / 24, ceil_div((small ? 2 : 6) * threads, whole)));
  }

  int64_t jobs(const Geometry& g) const { return g.groups * tap_jobs * blocks * output_jobs * row_parts; }
};

// One job of wgrad_per_tap.
struct TapJob {
  int64_t rows_part, outputs_first, outputs, channel, valid, width, tap, group;

  TapJob(const TapPlan& p, int64_t job) {
    rows_part = job % p.row_parts;
    job /= p.row_parts;
    outputs_first = part_start(p.outputs, job % p.output_jobs, p.output_jobs);
    outputs = part_start(p.outputs, job % p.output_jobs + 1, p.output_jobs) - outputs_first;
    job /= p.output_jobs;
    const int64_t first = part_start(p.vectors, job % p.blocks, p.blocks);
    channel = first * LANES;
    valid = std::min(part_start(p.vectors, job % p.blocks + 1, p.blocks) * LANES, p.channels) - channel;
    width = round_up(valid, LANES);
    job /= p.blocks;
    tap = job % p.tap_jobs * p.taps_per_job;
    group = job / p.tap_jobs;
  }
};

// Adds the rows [first, last) of one tap to sums[outputs][width].
void add_tap(const Geometry& g, const TapPlan& p, const TapJob& j, int64_t tap, const float* x, const float* dy,
             int64_t first, int64_t last, float* panel, float* sums) {
  const TapRange &row = g.row_ranges[tap / g.f_w], &col = g.col_ranges[tap % g.f_w];
  const bool direct = g.taps() > 1 && j.valid == j.width && p.channels <= DIRECT_CHANNELS;
  const float* dy_channel = dy + j.group * p.outputs + j.outputs_first;
  const Strips strip = {1, 0, j.width, direct ? TILE_WIDTH : PANEL_PIXELS * TILE_WIDTH};
  const float* x_channels = x + j.group * p.channels + j.channel;
  Pixels pixels;
  for (int64_t k = first; k < last; k++) {
    const int64_t image = k / g.out_h, oh = k % g.out_h;
    if (oh < row.first || oh >= row.first + row.count) continue;
    const int64_t ih = row.input + (oh - row.first) * g.stride_h;
    int64_t in = ((image * g.in_h + ih) * g.in_w + col.input) * g.in_c;
    int64_t out = (k * g.out_w + col.first) * g.out_pitch;
    for (int64_t c = 0; c < col.count; c++, in += g.stride_w * g.in_c, out += g.out_pitch) {
      if (direct) {
        pixels.add(in, out);
      } else {
        float* dst = panel + pixels.count * TILE_WIDTH;
        const float* src = x_channels + in;
        for (int64_t b = 0; b < j.width; b += TILE_WIDTH, dst += strip.block_step)
          for (int64_t v = b; v < std::min(j.width, b + TILE_WIDTH); v += LANES)
            store(dst + v - b, v + LANES <= j.valid ? load(src + v) : load_part(src + v, j.valid - v));
        pixels.add(pixels.count * TILE_WIDTH, out);
      }
      if (pixels.full()) add_panel(direct ? x_channels : panel, dy_channel, pixels, strip, sums, j.outputs);
    }
  }
  add_panel(direct ? x_channels : panel, dy_channel, pixels, strip, sums, j.outputs);
}

// sums[taps of the job][outputs][width] = the job's share. Rows go by panels, so that all taps find x and dy in cache.
void run_job(const Geometry& g, const TapPlan& p, const TapJob& j, const float* x, const float* dy, float* panel,
             float* sums) {
  std::fill_n(sums, p.taps_per_job * j.outputs * j.width, 0.0f);
  const int64_t rows = g.n * g.out_h, last = part_start(rows, j.rows_part + 1, p.row_parts);
  const int64_t step = p.taps_per_job > 1 ? std::max<int64_t>(1, PANEL_PIXELS / g.out_w) : rows;
  for (int64_t k = part_start(rows, j.rows_part, p.row_parts); k < last; k += step)
    for (int64_t t = 0; t < p.taps_per_job; t++)
      add_tap(g, p, j, j.tap + t, x, dy, k, std::min(last, k + step), panel, sums + t * j.outputs * j.width);
}

// dw[o][tap][c] = sum over `parts` arrays of sums, `ld` floats apart
void write_result(const Geometry& g, const TapPlan& p, const TapJob& j, const float* sums, int64_t parts, int64_t ld,
                  int64_t o, float* dw) {
  const int64_t output = j.group * p.outputs + j.outputs_first + o;
  for (int64_t t = 0; t < p.taps_per_job; t++) {
    float* dst = dw + (output * g.taps() + j.tap + t) * p.channels + j.channel;
    const float* src = sums + (t * j.outputs + o) * j.width;
    for (int64_t c = 0; c < j.valid; c++) {
      float total = src[c];
      for (int64_t part = 1; part < parts; part++) total += src[part * ld + c];
      dst[c] = total;
    }
  }
}

}  // namespace

void wgrad_few_channels(const Geometry& g, const float* x, const float* dy, float* dw) {
  const int64_t size = g.out_c * g.taps() * (g.in_c / g.groups);
  const int threads = team(g.multiply_adds(), 100000);
  const int64_t parts = parts_of_rows(g, g.groups);
  std::vector<float> sums(parts * size, 0.0f);
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < parts * g.groups; job++)
      for (int64_t a = 0; a < g.rows.classes; a++)
        for (int64_t b = 0; b < g.cols.classes; b++)
          add_class(ClassPanel(g, g.rows[a], g.cols[b]), x, dy, job / parts, job % parts, parts,
                    sums.data() + job % parts * size);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < size; i++) {
      float total = 0;
      for (int64_t part = 0; part < parts; part++) total += sums[part * size + i];
      dw[i] = total;
    }
  }
}

void wgrad_per_tap(const Geometry& g, const float* x, const float* dy, float* dw) {
  const int threads = team(g.multiply_adds(), 100000);
  const TapPlan plan(g, threads);
  const int64_t jobs = plan.jobs(g), parts = plan.row_parts;
  const int64_t most_outputs = ceil_div(plan.outputs, plan.output_jobs);
  const int64_t ld = round_up(plan.taps_per_job * most_outputs * BLOCK_CHANNELS, 16);
  float* partial = scratch<1>(parts > 1 ? jobs * ld : 0);  // [job][ld]
#pragma omp parallel num_threads(threads)
  {
    float* panel = scratch(PANEL_PIXELS * BLOCK_CHANNELS + ld);
#pragma omp for schedule(dynamic, 1)
    for (int64_t k = 0; k < jobs; k++) {
      const TapJob job(plan, k);
      float* sums = parts > 1 ? partial + k * ld : panel + PANEL_PIXELS * BLOCK_CHANNELS;
      run_job(g, plan, job, x, dy, panel, sums);
      if (parts == 1)
        for (int64_t o = 0; o < job.outputs; o++) write_result(g, plan, job, sums, 1, ld, o, dw);
    }
    if (parts > 1) {
#pragma omp for schedule(static)
      for (int64_t k = 0; k < jobs / parts * most_outputs; k++) {
        const int64_t first = k / most_outputs * parts, o = k % most_outputs;
        const TapJob job(plan, first);
        if (o < job.outputs) write_result(g, plan, job, partial + first * ld, parts, ld, o, dw);
      }
    }
  }
}
