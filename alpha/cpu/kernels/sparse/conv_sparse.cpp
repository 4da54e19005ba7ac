// What:    fprop and dgrad as in conv.cpp, from the elements of the input that are not zero.
// Source:  Xu, Fan, Yu, Wang, Zhou, Performance optimization of convolution calculation by blocking and sparsity on GPU.
//          Differs: lists per pixel, not per window and filter, so that every tap and all filters share them.
// Layout:  activations NHWC, filters OHWI; groups 1. Per chunk of channels and row of pixels one list of
//          (pixel * channels of the chunk + channel, value), pixel by pixel, in the order of channels.
// Zeros:   those of padding and stride as in conv.cpp, and those of the input; -0 is a zero, NaN and infinities are not.
//          A zero times an infinity or a NaN among the weights is not made.
// Tile:    one pixel x up to BLOCK_VECTORS vectors of channels out. The weights of a row of taps and a chunk of channels
//          stay in the first-level cache while all pixels of a part pass: the taps of a row read neighbouring pixels,
//          whose lists follow one another, so that they are one loop. Its sum begins at zero and is then added to those
//          of the part, which lie in a buffer.
#include <array>
#include <utility>
#include <vector>

#include "../conv.hpp"
#include "lists.hpp"

namespace {

constexpr int BLOCK_VECTORS = 8, BLOCK = BLOCK_VECTORS * LANES;
constexpr int64_t ROW_BYTES = 36 * 1024;     // weights of a row of taps
constexpr int64_t SUM_BYTES = 128 * 1024;    // sums of a part
constexpr int64_t LIST_BYTES = 4 << 20;      // lists that are made at a time, or those of one image
constexpr int64_t ALONE_BELOW = 400000;      // multiply-adds without zeros

// Weights of channels out [k, k + valid) and channels in [r, r + rows).
struct Slice {
  int64_t k, valid, width, r, rows;
};

// How the work is cut: channels in of a list, blocks of channels out, images at a time.
struct Cut {
  int64_t chunk, chunks, blocks, images;

  explicit Cut(const Geometry& g) {
    chunk = std::max<int64_t>(8, ROW_BYTES / (g.f_w * BLOCK * sizeof(float)) / 8 * 8);
    chunks = ceil_div(g.in_c, chunk);
    blocks = ceil_div(g.out_c, BLOCK);
    images = std::max<int64_t>(1, std::min<int64_t>(g.n, LIST_BYTES / (8 * g.in_h * g.in_w * g.in_c)));
  }

  int64_t channels(const Geometry& g, int64_t c) const { return std::min(chunk, g.in_c - c * chunk); }
  Slice slice(const Geometry& g, int64_t block, int64_t c) const {
    const int64_t k = block * BLOCK, valid = std::min<int64_t>(BLOCK, g.out_c - k);
    return {k, valid, round_up(valid, LANES), c * chunk, channels(g, c)};
  }
  // Where the weights of a slice lie among all.
  int64_t weights_at(const Geometry& g, const Slice& s) const { return g.taps() * (g.in_c * s.k + s.r * s.width); }
};

// The lists of a group of images: per chunk and row of pixels a slot that holds a row without zeros.
struct Lists {
  int32_t* memory;
  int64_t in_w, rows, chunk;

  Lists(const Geometry& g, const Cut& cut, float* work)
      : memory(reinterpret_cast<int32_t*>(work)), in_w(g.in_w), rows(cut.images * g.in_h), chunk(cut.chunk) {}

  int64_t entries() const { return in_w * chunk + LANES; }
  int64_t slot() const { return 2 * entries() + in_w + 1; }
  int32_t* index(int64_t c, int64_t row) const { return memory + (c * rows + row) * slot(); }
  float* value(int64_t c, int64_t row) const { return reinterpret_cast<float*>(index(c, row) + entries()); }
  int32_t* starts(int64_t c, int64_t row) const { return index(c, row) + 2 * entries(); }

  void fill(const Geometry& g, const Cut& cut, const float* in, int64_t c, int64_t row) const {
    int32_t *const where = index(c, row), *const start = starts(c, row);
    float* const values = value(c, row);
    const int64_t channels = cut.channels(g, c);
    int64_t filled = 0;
    for (int64_t j = 0; j < in_w; j++) {
      start[j] = static_cast<int32_t>(filled);
      filled += append_nonzeros(in + (row * in_w + j) * g.in_pitch + c * chunk, channels,
                                static_cast<int32_t>(j * channels), where + filled, values + filled);
    }
    start[in_w] = static_cast<int32_t>(filled);
  }
};

// The taps of one position of an axis: packed slots slot, slot + 1, ... at inputs start + j * step.
struct Position {
  int64_t slot, count, step, start;
};

std::vector<Position> positions_of(const AxisTable& axis, int64_t size) {
  std::vector<Position> found(size, Position{});
  for (int64_t k = 0; k < axis.classes; k++) {
    const AxisClass c = axis[k];
    for (int64_t i = 0; i < c.size; i++) found[c.positions[i]] = {c.slot, c.count, c.step, c.starts[i]};
  }
  return found;
}

struct Job {
  const Geometry& g;
  const Cut& cut;
  const Lists& lists;
  const std::vector<Position>&rows, &cols;
  const Operands& op;
  int64_t image;  // the first one
};

template <int V>
INLINE void add_entries(vfloat (&acc)[V], const int32_t* index, const float* value, int64_t from, int64_t to,
                        int64_t shift, const float* panel) {
  for (int64_t k = from; k < to; k++) {
    const float* w = panel + (index[k] + shift) * (V * LANES);
    const vfloat x = broadcast(value[k]);
    UNROLL for (int v = 0; v < V; v++) acc[v] += x * load(w + v * LANES);
  }
}

// Adds what the row of taps `slot_row` of chunk c brings to the sums of one row of outputs.
template <int V>
INLINE void add_row(const Job& job, const Slice& s, const float* panel, int64_t c, int64_t row, float* sums) {
  const int32_t *index = job.lists.index(c, row), *starts = job.lists.starts(c, row);
  const float* value = job.lists.value(c, row);
  for (int64_t j = 0; j < job.g.out_w; j++, sums += V * LANES) {
    const Position& p = job.cols[j];
    const bool joined = p.step == 1;
    const int64_t runs = joined ? p.count > 0 : p.count, length = joined ? p.count : 1;
    for (int64_t b = 0; b < runs; b++) {
      const int64_t pixel = p.start + b * p.step, from = starts[pixel], to = starts[pixel + length];
      if (from == to) continue;
      vfloat acc[V] = {};
      add_entries<V>(acc, index, value, from, to, (p.slot + b - pixel) * s.rows, panel);
      UNROLL for (int v = 0; v < V; v++) store(sums + v * LANES, load(sums + v * LANES) + acc[v]);
    }
  }
}

// Rows [first, last) of outputs of the group of images, a block of channels out.
template <int V>
__attribute__((noinline)) void run_part(const Job& job, int64_t block, int64_t first, int64_t last) {
  const Geometry& g = job.g;
  const Slice whole = job.cut.slice(g, block, 0);
  float* out = job.op.out + ((job.image * g.out_h + first) * g.out_w) * g.out_pitch + whole.k;
  const int64_t pixels = (last - first) * g.out_w, row_floats = g.out_w * V * LANES;
  float* sums = scratch<7>(pixels * V * LANES);
  for (int64_t v = 0; v < V; v++) {
    const int64_t left = whole.valid - v * LANES;
    const vfloat bias = job.op.bias ? load_part(job.op.bias + whole.k + v * LANES, left) : vfloat{};
    for (int64_t k = 0; k < pixels; k++)
      store(sums + (k * V + v) * LANES,
            job.op.accumulate ? load_part(out + k * g.out_pitch + v * LANES, left) + bias : bias);
  }
  for (int64_t c = 0; c < job.cut.chunks; c++) {
    const Slice s = job.cut.slice(g, block, c);
    const float* panel = job.op.panels + job.cut.weights_at(g, s);
    const int64_t floats = g.f_w * s.rows * s.width;
    for (int64_t slot = 0; slot < g.f_h; slot++, panel += floats) {
      for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(panel + floats + i, 0, 2);
      for (int64_t k = first; k < last; k++) {
        const int64_t image = k / g.out_h;
        const Position& p = job.rows[k % g.out_h];
        const int64_t tap = slot - p.slot;
        if (tap < 0 || tap >= p.count) continue;
        add_row<V>(job, s, panel, c, image * g.in_h + p.start + tap * p.step, sums + (k - first) * row_floats);
      }
    }
  }
  for (int64_t k = 0; k < pixels; k++)
    UNROLL for (int v = 0; v < V; v++) {
      const vfloat y = load(sums + (k * V + v) * LANES);
      store_part(out + k * g.out_pitch + v * LANES, job.op.relu ? relu(y) : y, whole.valid - v * LANES);
    }
}

using RunPart = void (*)(const Job&, int64_t, int64_t, int64_t);

template <int... V>
constexpr std::array<RunPart, BLOCK_VECTORS> parts_of(std::integer_sequence<int, V...>) {
  return {run_part<V + 1>...};
}

// RUN_PART[vectors - 1]
constexpr auto RUN_PART = parts_of(std::make_integer_sequence<int, BLOCK_VECTORS>());

// op.panels: weights of pack_sparse; work: sparse_floats.
void run(const Geometry& g, const Operands& op, float* work) {
  const Cut cut(g);
  const Lists lists(g, cut, work);
  const std::vector<Position> rows = positions_of(g.rows, g.out_h), cols = positions_of(g.cols, g.out_w);
  const int threads = team(g.multiply_adds(), ALONE_BELOW);
  for (int64_t image = 0; image < g.n; image += cut.images) {
    const int64_t images = std::min(cut.images, g.n - image), out_rows = images * g.out_h;
    const float* in = op.in + image * g.in_h * g.in_w * g.in_pitch;
    const Job job = {g, cut, lists, rows, cols, op, image};
    const int64_t most = std::max<int64_t>(1, SUM_BYTES / (g.out_w * BLOCK * sizeof(float)));
    const int64_t parts = std::min(out_rows, std::max(ceil_div(out_rows, most), ceil_div(2 * threads, cut.blocks)));
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t k = 0; k < cut.chunks * images * g.in_h; k++) {
        const int64_t row = k / cut.chunks, c = k % cut.chunks;
        lists.fill(g, cut, in, c, row);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t k = 0; k < cut.blocks * parts; k++) {
        const int64_t block = k / parts, part = k % parts;
        RUN_PART[cut.slice(g, block, 0).width / LANES - 1](job, block, part_start(out_rows, part, parts),
                                                           part_start(out_rows, part + 1, parts));
      }
    }
  }
}

int64_t tap_of(const Geometry& g, int64_t slot) {
  return g.rows.taps[slot / g.f_w] * g.f_w + g.cols.taps[slot % g.f_w];
}

// filters[at of the slice + (slot * rows + i) * width + o] = w[k + o][tap of slot][r + i], 0 from o = valid on.
void pack_fprop(const Geometry& g, const Cut& cut, const float* w, int64_t block, int64_t slot, float* filters) {
  const int64_t ld = g.taps() * g.in_c;
  for (int64_t o = 0; o < cut.slice(g, block, 0).width; o += LANES)
    for (int64_t c = 0; c < cut.chunks; c++) {
      const Slice s = cut.slice(g, block, c);
      const float* src = w + (s.k + o) * ld + tap_of(g, slot) * g.in_c + s.r;
      float* dst = filters + cut.weights_at(g, s) + slot * s.rows * s.width + o;
      int64_t i = 0;
      for (; i + LANES <= s.rows; i += LANES) transpose(src + i, ld, s.valid - o, dst + i * s.width, s.width);
      for (; i < s.rows; i++)
        for (int64_t j = 0; j < LANES; j++) dst[i * s.width + j] = o + j < s.valid ? src[j * ld + i] : 0;
    }
}

// The same from w[r + i][tap of slot][k + o].
void pack_dgrad(const Geometry& g, const Cut& cut, const float* w, int64_t block, int64_t slot, float* filters) {
  for (int64_t c = 0; c < cut.chunks; c++) {
    const Slice s = cut.slice(g, block, c);
    float* dst = filters + cut.weights_at(g, s) + slot * s.rows * s.width;
    for (int64_t i = 0; i < s.rows; i++) {
      const float* src = w + ((s.r + i) * g.taps() + tap_of(g, slot)) * g.out_c + s.k;
      for (int64_t o = 0; o < s.width; o += LANES) store(dst + i * s.width + o, load_part(src + o, s.valid - o));
    }
  }
}

// Vectors that cross a cache line take twice as long to load: what is read most begins at one. Callers leave room.
float* aligned(float* p) { return reinterpret_cast<float*>(round_up(reinterpret_cast<int64_t>(p), 64)); }

// The one level of a table.
Geometry only_level(const int64_t* table) { return Geometry(table + table[1]); }

}  // namespace

// Floats of the lists that sparse_run makes.
EXPORT int64_t sparse_floats(const int64_t* table) {
  const Geometry g = only_level(table);
  const Cut cut(g);
  const Lists lists(g, cut, nullptr);
  return cut.chunks * lists.rows * lists.slot();
}

// Floats of the packed weights.
EXPORT int64_t sparse_filter_floats(const int64_t* table) {
  const Geometry g = only_level(table);
  return g.taps() * g.in_c * round_up(g.out_c, LANES) + 16;
}

EXPORT void sparse_filters(const int64_t* table, const float* w, float* filters, int dgrad) {
  const Geometry g = only_level(table);
  const Cut cut(g);
  filters = aligned(filters);
#pragma omp parallel for num_threads(team(g.taps() * g.in_c * g.out_c, 100000)) schedule(static)
  for (int64_t k = 0; k < cut.blocks * g.taps(); k++)
    (dgrad ? pack_dgrad : pack_fprop)(g, cut, w, k / g.taps(), k % g.taps(), filters);
}

// out = bias + the sum over what is not zero in `in`, or that added to out, then relu. table: a forward table, or one of
// dgrad for filters packed so.
EXPORT void sparse_run(const int64_t* table, const float* in, float* filters, const float* bias, float* out,
                       float* work, int relu, int accumulate) {
  run(only_level(table), {in, nullptr, bias, out, relu != 0, accumulate != 0, aligned(filters)}, work);
}

// How many elements are not zero in every step-th of `rows` rows of `channels`.
EXPORT int64_t count_nonzeros(const float* x, int64_t rows, int64_t channels, int64_t step) {
  int64_t count = 0;
  for (int64_t k = 0; k < rows; k += step) {
    vint found = {};
    int64_t i = 0;
    for (; i + LANES <= channels; i += LANES) found -= load(x + k * channels + i) != vfloat{};
    for (int v = 0; v < LANES; v++) count += found[v];
    for (; i < channels; i++) count += x[k * channels + i] != 0;
  }
  return count;
}
