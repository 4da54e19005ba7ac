// What:    fprop  y[n,oh,ow,oc] = bias[oc] + sum_{fh,fw,ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic], then optionally relu
//          dgrad  dx[n,ih,iw,ic] = sum_{fh,fw,oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic]
// Source:  arXiv 2306.15951, ConvV2 (Algorithm 1B) and KS-deconv (Algorithm 2B), with the errata in conv_desc.py.
// Layout:  activations NHWC, filters OHWI. GEMM: GM = pixels of a class, GN = channels out, GK = taps x channels in.
// Zeros:   output pixels are grouped into classes with one common tap list (row class x column class); a class is a
//          matrix product without any padded or inserted zero. A class without taps gets bias or 0.
// Tile:    up to ACCUMULATORS vectors: pixels of a class, of any row or image, x up to TILE_VECTORS vectors of channels
//          out, in chains of sums of about MOST_TERMS terms. Weights are packed once per job into a panel [tap slot]
//          [channel in][TILE_WIDTH] that stays in the second-level cache. A job is (group, block of channels out, part of
//          the rows) and sums in a fixed order. Up to LANES / 2 channels out: a vector has two terms of each, as a pair
//          of inputs that lie side by side is broadcast at once. Of few channels in as well, stretches of pixels are those of
//          conv_pixels.cpp. Filters of one tap with several blocks are all packed first. A job is a stretch of rows, so
//          few that what it reads and writes stays in that cache while it meets one block after the other.
#include <memory>
#include <vector>

#include "conv_tile.hpp"

namespace {

constexpr int TILE_WIDTH = LANES * TILE_VECTORS;
constexpr int64_t PANEL_BYTES = 384 * 1024, DOT_BELOW = 12;  // images
constexpr int64_t STRETCH_BYTES = 192 * 1024, LEAST_STRETCHES = 16, CACHED_FLOATS = 192 * 1024;
constexpr int64_t TOGETHER_BYTES = 16 * 1024, MOST_TOGETHER = 32;  // panels that a tile meets one after the other
constexpr int64_t ROWS_PACKED = 16;   // of dgrad's filters, of a tap
constexpr int64_t MOST_TERMS = 2048;  // of a chain of sums; each starts at 0 and is added to what the others made
constexpr int64_t ALONE_BELOW = 400000;  // multiply-adds, some 10 us: what waking and awaiting a team may cost

// The weights of one job: channels out [k, k + valid) of a group, channels in [r, r + rows).
struct Slice {
  int64_t group, k, valid, width, r, rows;
};

// Puts the next row of a panel beside each row, lane by lane: a run may begin at any.
void pair_rows(const Geometry& g, const Slice& s, float* panel) {
  if (!in_pairs(s.valid) || suits_pixels(g)) return;
  for (int64_t left = g.taps() * s.rows; left > 0; left--, panel += LANES) {
    float row[LANES];
    for (int o = 0; o < LANES / 2; o++) {
      row[2 * o] = panel[o];
      row[2 * o + 1] = left > 1 ? panel[LANES + o] : 0;
    }
    store(panel, load(row));
  }
}

// panel[(slot * rows + i) * width + o] = w[group, k + o][tap of slot][r + i]
void pack_fprop(const Geometry& g, const float* w, const Slice& s, float* panel) {
  const int64_t channels = g.in_c / g.groups, ld = g.taps() * channels;
  const float* filters = w + (s.group * (g.out_c / g.groups) + s.k) * ld + s.r;
  for (int64_t slot = 0; slot < g.taps(); slot++) {
    const float* src = filters + (g.rows.taps[slot / g.f_w] * g.f_w + g.cols.taps[slot % g.f_w]) * channels;
    float* dst = panel + slot * s.rows * s.width;
    for (int64_t o = 0; o < s.width; o += LANES) {
      int64_t i = 0;
      for (; i + LANES <= s.rows; i += LANES)
        transpose(src + o * ld + i, ld, s.valid - o, dst + i * s.width + o, s.width);
      for (; i < s.rows; i++)
        for (int64_t j = o; j < o + LANES; j++) dst[i * s.width + j] = j < s.valid ? src[j * ld + i] : 0;
    }
  }
  pair_rows(g, s, panel);
}

// panel[(slot * rows + i) * width + o] = w[group, r + i][tap of slot][k + o]
void pack_dgrad(const Geometry& g, const float* w, const Slice& s, float* panel) {
  const int64_t channels = g.out_c / g.groups;
  const float* filters = w + (s.group * (g.in_c / g.groups) + s.r) * g.taps() * channels + s.k;
  const auto pack_tap = [&](int64_t slot, int64_t tap, int64_t first, int64_t end) {
    float* dst = panel + (slot * s.rows + first) * s.width;
    const float* src = filters + (first * g.taps() + tap) * channels;
    for (int64_t i = first; i < end; i++, dst += s.width, src += g.taps() * channels) {
      if (s.valid == TILE_WIDTH) {
        UNROLL for (int o = 0; o < TILE_WIDTH; o += LANES) store(dst + o, load(src + o));
      } else {
        for (int64_t o = 0; o < s.width; o += LANES) store(dst + o, load_part(src + o, s.valid - o));
      }
    }
  };
  // some rows of a tap after each other: taps of a row lie side by side in w, and in the panel on one set of the cache
  for (int64_t i = 0; i < s.rows; i += ROWS_PACKED)
    for (int64_t a = 0; a < g.f_h; a++)
      for (int64_t b = 0; b < g.f_w; b++)
        pack_tap(a * g.f_w + b, g.rows.taps[a] * g.f_w + g.cols.taps[b], i, std::min(i + ROWS_PACKED, s.rows));
  pair_rows(g, s, panel);
}

// The reduction of one class as contiguous runs: a whole row of taps where its channels follow one another in memory.
void list_runs(const Geometry& g, const AxisClass& row, const AxisClass& col, int64_t channels,
               std::vector<Run>& runs) {
  const bool joined = channels == g.in_pitch && col.step == 1;
  runs.clear();
  for (int64_t a = 0; a < row.count; a++) {
    const int64_t slot = (row.slot + a) * g.f_w + col.slot, in = a * row.step * g.in_w * g.in_pitch;
    if (joined) {
      if (col.count) runs.push_back({in, slot * channels, col.count * channels});
      continue;
    }
    for (int64_t b = 0; b < col.count; b++)
      runs.push_back({in + b * col.step * g.in_pitch, (slot + b) * channels, channels});
  }
}

// How the work is cut: channels in per panel, blocks of channels out, parts of the rows; or stretches of rows, which
// meet all blocks (0: none).
struct Plan {
  int64_t chunk, chunks, blocks, parts, stretches = 0;

  Plan(const Geometry& g, int threads) {
    const int64_t channels = g.in_c / g.groups, row_bytes = g.taps() * TILE_WIDTH * sizeof(float);
    const int64_t fits = std::max<int64_t>(16, PANEL_BYTES / row_bytes / 16 * 16);
    chunk = channels;
    if (channels > fits) chunk = round_up(ceil_div(channels, ceil_div(channels, fits)), 16);
    chunks = ceil_div(channels, chunk);
    blocks = ceil_div(g.out_c / g.groups, TILE_WIDTH);
    const int64_t panels = blocks * g.groups;
    parts = std::min(g.n * g.out_h, std::max<int64_t>(1, ceil_div(4 * threads, panels)));
    if (panels >= 2 * threads && panels % threads == 0) parts = 1;
    if (threads == 1) parts = 1;
    const int64_t bytes = g.n * g.out_h * g.out_w * (g.in_c + g.out_c) * int64_t(sizeof(float));
    const int64_t cut = std::min(g.n * g.out_h, ceil_div(bytes, STRETCH_BYTES));
    const int64_t weights = g.in_c * g.out_c, in = g.n * g.in_h * g.in_w * g.in_c;
    const bool again = weights > CACHED_FLOATS && cut * weights > blocks * in;  // weights are read more often than x was
    if (g.taps() == 1 && g.groups == 1 && blocks > 1 && cut >= LEAST_STRETCHES && !again) stretches = cut;
  }
};

// A slice and its packed weights.
struct Piece {
  Slice slice;
  const float* panel;
};

// Calls f(first run, their number, whether they are the last) for runs of about MOST_TERMS terms, once for no runs.
template <class F>
void for_each_chain(const std::vector<Run>& runs, F f) {
  const int64_t all = runs.size();
  int64_t from = 0, to = 0;
  do {
    for (int64_t terms = 0; to < all && (to == from || terms + runs[to].length <= MOST_TERMS); to++)
      terms += runs[to].length;
    f(from, to - from, to == all);
    from = to;
  } while (to < all);
}

// Tiles of part `part` out of `parts` of the rows, each of which meets `count` slices of the same channels in. The last
// slice may be narrower than the others.
void run_classes(const Geometry& g, const Operands& op, const Piece* pieces, int64_t count, int64_t part, int64_t parts,
                 bool first, bool last, std::vector<Run>& runs) {
  const Slice& s = pieces->slice;
  const int64_t group_out = s.group * (g.out_c / g.groups);
  const float* in = op.in + s.group * (g.in_c / g.groups) + s.r;
  const bool by_pixels = suits_pixels(g);
  for (int64_t a = 0; a < g.rows.classes; a++) {
    const AxisClass row = g.rows[a];
    for (int64_t b = 0; b < g.cols.classes; b++) {
      const AxisClass col = g.cols[b];
      if (by_pixels && is_stretch(col)) {
        run_pixels(g, op, row, col, pieces->panel, s.width, part, parts);
        continue;
      }
      list_runs(g, row, col, s.rows, runs);
      for_each_tile(g, row, col, part, parts, tile_pixels(static_cast<int>(s.width / LANES)), in, op.out + group_out,
                    [&](const float* const* x, float* const* y, int pixels) {
                      int64_t ahead = g.taps() == 1 && g.in_c >= g.out_c ? pixels * g.in_pitch : 0;
                      for (int64_t k = 0; k < count; k++, ahead = 0) {
                        const auto& [slice, panel] = pieces[k];
                        float* to[ACCUMULATORS];
                        for (int p = 0; p < pixels; p++) to[p] = y[p] + slice.k;
                        for_each_chain(runs, [&](int64_t run, int64_t n_runs, bool end) {
                          const bool begin = first && run == 0;
                          const float* bias = op.bias && begin ? op.bias + group_out + slice.k : nullptr;
                          const Epilogue e = {bias, op.accumulate || !begin, op.relu && last && end};
                          const Tile run_tile =
                              in_pairs(slice.valid) && !by_pixels ? PAIRS[pixels] : TILES[slice.width / LANES - 1][pixels];
                          run_tile(x, to, runs.data() + run, n_runs, panel, slice.valid, e, ahead);
                        });
                      }
                    });
    }
  }
}

// Block `block` of all groups, TILE_WIDTH channels out or fewer, and chunk c of the channels in.
Slice slice_of(const Plan& plan, int64_t channels_in, int64_t channels_out, int64_t block, int64_t c) {
  const int64_t k = block % plan.blocks * TILE_WIDTH, r = c * plan.chunk;
  const int64_t valid = std::min<int64_t>(TILE_WIDTH, channels_out - k);
  return {block / plan.blocks, k, valid, round_up(valid, LANES), r, std::min(plan.chunk, channels_in - r)};
}

// Where the panel of a slice lies among all panels of a convolution, one behind the other.
int64_t panel_at(const Geometry& g, const Slice& s) {
  const int64_t channels_in = g.in_c / g.groups;
  return g.taps() * (channels_in * (s.group * round_up(g.out_c / g.groups, LANES) + s.k) + s.r * s.width);
}

// Whether a convolution reads packed weights.
bool reads_panels(const Geometry& g) { return !g.depthwise() && !(g.matrix_product() && g.n < DOT_BELOW); }

int64_t panel_floats(const Geometry& g) {
  return reads_panels(g) ? g.taps() * (g.in_c / g.groups) * g.groups * round_up(g.out_c / g.groups, LANES) : 0;
}

// A tensor this many times as wide as a slice of it: pixels of the slice fall on few sets of the first-level cache, and
// are packed.
constexpr int64_t PACKED_FROM = 2;

// Copies the channels of a slice, pixel behind pixel, and returns the copy.
const float* pack_slice(const Geometry& g, const float* in, float* packed) {
  const int64_t pixels = g.n * g.in_h * g.in_w;
  const int threads = team(pixels * g.in_c, ALONE_BELOW);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t p = 0; p < pixels; p++) {
    int64_t c = 0;
    for (; c + LANES <= g.in_c; c += LANES) store(packed + p * g.in_c + c, load(in + p * g.in_pitch + c));
    for (; c < g.in_c; c++) packed[p * g.in_c + c] = in[p * g.in_pitch + c];
  }
  return packed;
}

// Filters of one tap and one group, by stretches of rows. Of few channels in, several panels stay in the first-level
// cache, so that a tile meets them one after the other and its pixels are written in a row.
void convolve_stretches(const Geometry& g, const Operands& op, Pass pass, const Plan& plan, int threads) {
  const auto pack = pass == Pass::fprop ? pack_fprop : pack_dgrad;
  float* own = op.panels ? nullptr : scratch<2>(g.in_c * round_up(g.out_c, LANES));
  const float* panels = own ? own : op.panels;
  const int64_t fit = TOGETHER_BYTES / (plan.chunk * TILE_WIDTH * int64_t(sizeof(float)));
  const int64_t together = std::max<int64_t>(1, std::min(fit, MOST_TOGETHER));
#pragma omp parallel num_threads(threads)
  {
    std::vector<Run> runs;
#pragma omp for schedule(static)
    for (int64_t k = 0; k < (own ? plan.blocks * plan.chunks : 0); k++) {
      const Slice slice = slice_of(plan, g.in_c, g.out_c, k / plan.chunks, k % plan.chunks);
      pack(g, op.w, slice, own + panel_at(g, slice));
    }
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < plan.stretches; job++)
      for (int64_t block = 0; block < plan.blocks; block += together)
        for (int64_t c = 0; c < plan.chunks; c++) {
          Piece pieces[MOST_TOGETHER];
          const int64_t count = std::min(together, plan.blocks - block);
          for (int64_t k = 0; k < count; k++) {
            const Slice slice = slice_of(plan, g.in_c, g.out_c, block + k, c);
            pieces[k] = {slice, panels + panel_at(g, slice)};
          }
          run_classes(g, op, pieces, count, job, plan.stretches, c == 0, c == plan.chunks - 1, runs);
        }
  }
}

}  // namespace

void convolve(const Geometry& g, const Operands& op, Pass pass) {
  const int threads = team(g.multiply_adds(), ALONE_BELOW);
  const Plan plan(g, threads);
  if (plan.stretches) return convolve_stretches(g, op, pass, plan, threads);
  const int64_t channels_in = g.in_c / g.groups, channels_out = g.out_c / g.groups;
  const auto pack = pass == Pass::fprop ? pack_fprop : pack_dgrad;
#pragma omp parallel num_threads(threads)
  {
    float* panel = op.panels ? nullptr : scratch(g.taps() * plan.chunk * TILE_WIDTH);
    std::vector<Run> runs;
    int64_t packed = -1;
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < g.groups * plan.blocks * plan.parts; job++) {
      const int64_t block = job / plan.parts;
      for (int64_t c = 0; c < plan.chunks; c++) {
        const Slice slice = slice_of(plan, channels_in, channels_out, block, c);
        const bool last = c == plan.chunks - 1;
        if (!op.panels && packed != block * plan.chunks + c) pack(g, op.w, slice, panel);
        packed = block * plan.chunks + c;
        const Piece piece = {slice, op.panels ? op.panels + panel_at(g, slice) : panel};
        run_classes(g, op, &piece, 1, job % plan.parts, plan.parts, c == 0, last, runs);
      }
    }
  }
}

EXPORT void conv_fprop(const int64_t* table, const float* x, const float* w, const float* bias, float* y, int relu) {
  for_each_level(table, [&](const Geometry& g, int64_t first) {
    const float* filters = w + first * g.taps() * (g.in_c / g.groups);
    const Operands op = {x, filters, bias ? bias + first : nullptr, y + first, relu != 0, false, nullptr};
    if (g.depthwise()) return depthwise(g, op);
    if (g.matrix_product() && g.n < DOT_BELOW) return linear_dot(g, op);
    convolve(g, op, Pass::fprop);
  });
}

// Floats of the packed weights of conv_fprop: 0 where it reads them as they are.
EXPORT int64_t conv_panel_floats(const int64_t* table) {
  int64_t floats = 0;
  for_each_level(table, [&](const Geometry& g, int64_t) { floats += panel_floats(g); });
  return floats;
}

EXPORT void conv_pack(const int64_t* table, const float* w, float* panels) {
  for_each_level(table, [&](const Geometry& g, int64_t first) {
    if (!reads_panels(g)) return;
    const Plan plan(g, 1);
    const float* filters = w + first * g.taps() * (g.in_c / g.groups);
    for (int64_t block = 0; block < g.groups * plan.blocks; block++)
      for (int64_t c = 0; c < plan.chunks; c++) {
        const Slice slice = slice_of(plan, g.in_c / g.groups, g.out_c / g.groups, block, c);
        pack_fprop(g, filters, slice, panels + panel_at(g, slice));
      }
    panels += panel_floats(g);
  });
}

// As conv_fprop, with weights that conv_pack has packed, and, if `accumulate`, y += before the relu. Where there are no
// packed weights, w is read, and nothing can be added.
EXPORT void conv_run(const int64_t* table, const float* x, const float* w, const float* panels, const float* bias,
                     float* y, int relu, int accumulate) {
  for_each_level(table, [&](const Geometry& g, int64_t first) {
    const float* filters = w + first * g.taps() * (g.in_c / g.groups);
    const Operands op = {x, filters, bias ? bias + first : nullptr, y + first, relu != 0, accumulate != 0, panels};
    if (g.depthwise()) return depthwise(g, op);
    if (!reads_panels(g)) return linear_dot(g, op);
    convolve(g, op, Pass::fprop);
    panels += panel_floats(g);
  });
}

// The first level writes dx, the others add to it.
EXPORT void conv_dgrad(const int64_t* table, const float* dy, const float* w, float* dx) {
  std::unique_ptr<float[]> packed;
  for_each_level(table, [&](Geometry g, int64_t first) {
    const float* filters = w + first * g.taps() * (g.out_c / g.groups);
    Operands op = {dy + first, filters, nullptr, dx, false, first > 0, nullptr};
    if (g.depthwise()) return depthwise(g, op);
    if (g.in_pitch >= PACKED_FROM * g.in_c) {
      if (!packed) packed.reset(new float[g.n * g.in_h * g.in_w * (g.in_pitch / PACKED_FROM)]);
      op.in = pack_slice(g, op.in, packed.get());
      g.in_pitch = g.in_c;
    }
    convolve(g, op, Pass::dgrad);
  });
}

// Whether conv_dgrad_add does its work: not where sums of an element are several chains, between which dx would come.
EXPORT int conv_dgrad_adds(const int64_t* table) {
  const Geometry g(table + table[1]);
  const bool one_chain = Plan(g, 1).chunks == 1 && g.taps() * (g.in_c / g.groups) <= MOST_TERMS;
  return !g.depthwise() && one_chain;
}

// dx += what conv_dgrad makes, with the bits of an addition behind it, where conv_dgrad_adds.
EXPORT void conv_dgrad_add(const int64_t* table, const float* dy, const float* w, float* dx) {
  convolve(Geometry(table + table[1]), {dy, w, nullptr, dx, false, true, nullptr}, Pass::dgrad);
}

EXPORT void conv_wgrad(const int64_t* table, const float* x, const float* dy, float* dw) {
  for_each_level(table, [&](const Geometry& g, int64_t first) {
    const float* gradients = dy + first;
    float* sums = dw + first * g.taps() * (g.in_c / g.groups);
    if (g.depthwise()) return depthwise_wgrad(g, x, gradients, sums);
    if (suits_few_channels(g)) return wgrad_few_channels(g, x, gradients, sums);
    if (suits_one_tap(g)) return wgrad_one_tap(g, x, gradients, sums);
    wgrad_per_tap(g, x, gradients, sums);
  });
}

EXPORT void set_threads(int count) { most_threads = count; }
