// What:    wgrad of filters of one tap  dw[oc, ic] = sum_{n,oh,ow} g[n, oh, ow, oc] * x[n, ih, iw, ic]
// Source:  arXiv 2306.15951, Sk-dilated (Algorithm 3B), where the only tap meets an input at every output: a matrix
//          product over pixels, of which a stride leaps over some.
// Layout:  NHWC and OHWI. GEMM view: GM = channels out, GN = channels in, GK = pixels.
// Zeros:   none are there to be skipped.   Requires: one group, no output outside of the map (suits_one_tap).
// Tile:    PANEL pixels of x and of g are packed at a time and stay in the second-level cache while all tiles of the
//          sums meet them: [block of TILE_WIDTH channels in][pixel][channel] and [block of GRADIENTS channels out]
//          [pixel][channel]. A panel is summed from zero and then added, to dw itself where there is one part. Rows
//          are cut into parts that depend on the shape alone, channels in where parts are few for the threads or sums
//          large for a cache, channels out where jobs are still few, which changes no sum. Partial sums are added in a
//          fixed order.
#include "conv.hpp"
#include "winograd/product.hpp"

namespace {

constexpr int64_t PANEL = 96, GRADIENTS = 48, MOST_PARTS = 8, LEAST_PIXELS = 16, LEAST_UNEVEN = 1024;
constexpr int64_t SUM_BYTES = 4 << 20, SHARE_BYTES = 384 * 1024;  // of all partial sums, and of those of a job
constexpr int64_t LEAST_OUTPUTS = 24;

// How the work is cut: parts of the rows, shares of the channels in, cuts of those out.
struct Cut {
  int64_t parts = 1, blocks, shares, cuts = 1;

  Cut(const Geometry& g, int threads) : blocks(ceil_div(g.in_c, TILE_WIDTH)) {
    const int64_t bytes = sizeof(float) * g.out_c * blocks * TILE_WIDTH, pixels = g.n * g.out_h * g.out_w;
    while (parts < MOST_PARTS && 2 * parts * bytes <= SUM_BYTES && parts * PART_PIXELS < pixels) parts *= 2;
    parts = std::min(parts, g.n * g.out_h);
    const int64_t for_threads = parts % threads == 0 ? 1 : ceil_div(2 * threads, parts);
    shares = std::min(blocks, std::max(for_threads, ceil_div(bytes, SHARE_BYTES)));
    const int64_t jobs = parts * shares, most = std::max<int64_t>(1, g.out_c / LEAST_OUTPUTS);
    if (jobs % threads && jobs < 4 * threads) cuts = std::min<int64_t>(most, threads);
  }
};

// Copies `width` channels of a pixel to blocks of WIDTH, PANEL pixels apart; the last block is filled up with zeros.
template <int64_t WIDTH>
INLINE void pack_pixel(const float* from, int64_t width, float* to) {
  for (; width >= WIDTH; width -= WIDTH, from += WIDTH, to += PANEL * WIDTH)
    UNROLL for (int v = 0; v < WIDTH; v += LANES) store(to + v, load(from + v));
  if (width <= 0) return;
  for (int64_t v = 0; v < WIDTH; v += LANES) store(to + v, load_part(from + v, width - v));
}

// sums[outputs][ld] = g^T x over `count` packed pixels of `width` channels in, or += if `add`. The last block may have
// fewer vectors.
void add_panel(const float* x, int64_t width, const float* gradients, int64_t outputs, int64_t count, float* sums,
               int64_t ld, bool add) {
  const int64_t blocks = ceil_div(width, TILE_WIDTH), most = most_rows(TILE_VECTORS);
  for (int64_t first = 0; first < outputs; first += GRADIENTS, gradients += PANEL * GRADIENTS) {
    const int64_t rows = std::min(GRADIENTS, outputs - first), tiles = ceil_div(rows, most);
    for (int64_t b = 0; b < blocks; b++) {
      const int64_t vectors = std::min<int64_t>(TILE_VECTORS, ceil_div(width - b * TILE_WIDTH, LANES));
      for (int64_t t = 0; t < tiles; t++) {
        const int64_t o = part_start(rows, t, tiles), p = part_start(rows, t + 1, tiles) - o;
        product_of(static_cast<int>(vectors), static_cast<int>(p), true)(
            gradients + o, GRADIENTS, x + b * PANEL * TILE_WIDTH, TILE_WIDTH, count,
            sums + (first + o) * ld + b * TILE_WIDTH, ld, add);
      }
    }
  }
}

// sums[outputs][ld], of the channels of the blocks first .. last, = part `part` of the rows; dy begins with these outputs.
void add_rows(const Geometry& g, const Cut& cut, int64_t part, int64_t first, int64_t last, const float* x,
              const float* dy, int64_t outputs, float* sums, int64_t ld) {
  const int64_t blocks = last - first, channel = first * TILE_WIDTH;
  const int64_t width = std::min(g.in_c - channel, blocks * TILE_WIDTH);
  float* panel = scratch(PANEL * (blocks * TILE_WIDTH + round_up(outputs, GRADIENTS)));
  float* gradients = panel + PANEL * blocks * TILE_WIDTH;
  const int64_t rows = g.n * g.out_h, from = part_start(rows, part, cut.parts);
  const int64_t to = part_start(rows, part + 1, cut.parts), pixels = (to - from) * g.out_w;
  const int64_t each = ceil_div(pixels, ceil_div(pixels, PANEL));  // panels of nearly equal size
  int64_t count = 0;
  bool add = false;
  for (int64_t k = from; k < to; k++) {
    const int64_t row = k / g.out_h * g.in_h + g.row_ranges->input + k % g.out_h * g.stride_h;
    const float* in = x + (row * g.in_w + g.col_ranges->input) * g.in_c + channel;
    for (int64_t c = 0; c < g.out_w; c++, in += g.stride_w * g.in_c) {
      pack_pixel<TILE_WIDTH>(in, width, panel + count * TILE_WIDTH);
      pack_pixel<GRADIENTS>(dy + (k * g.out_w + c) * g.out_pitch, outputs, gradients + count * GRADIENTS);
      if (++count < each) continue;
      add_panel(panel, width, gradients, outputs, count, sums, ld, add);
      count = 0;
      add = true;
    }
  }
  if (count) add_panel(panel, width, gradients, outputs, count, sums, ld, add);
}

}  // namespace

// Few pixels, unless sums are dw and tiles wide, or so many sums that they fit no cache are as well off with wgrad_per_tap.
bool suits_one_tap(const Geometry& g) {
  return g.taps() == 1 && g.groups == 1 && g.row_ranges->count == g.out_h && g.col_ranges->count == g.out_w &&
         g.n * g.out_h * g.out_w >= (g.in_c % LANES || g.in_c < TILE_WIDTH ? LEAST_UNEVEN : LEAST_PIXELS) &&
         g.in_c * g.out_c * int64_t(sizeof(float)) <= 3 * SUM_BYTES;
}

void wgrad_one_tap(const Geometry& g, const float* x, const float* dy, float* dw) {
  const int threads = team(g.multiply_adds(), 100000);
  const Cut cut(g, threads);
  const int64_t widest = ceil_div(cut.blocks, cut.shares) * TILE_WIDTH, each = round_up(g.out_c * widest, 16);
  const bool direct = cut.parts == 1 && g.in_c % LANES == 0;  // sums are dw
  float* sums = direct ? dw : scratch<1>(cut.parts * cut.shares * each);  // else [share][part][out_c][channels of it]
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < cut.parts * cut.shares * cut.cuts; job++) {
      const int64_t k = job / cut.cuts, share = k / cut.parts, first = part_start(cut.blocks, share, cut.shares);
      const int64_t last = part_start(cut.blocks, share + 1, cut.shares);
      const int64_t ld = direct ? g.in_c : (last - first) * TILE_WIDTH;
      const int64_t from = part_start(g.out_c, job % cut.cuts, cut.cuts);
      const int64_t to = part_start(g.out_c, job % cut.cuts + 1, cut.cuts);
      add_rows(g, cut, k % cut.parts, first, last, x, dy + from, to - from,
               sums + (direct ? first * TILE_WIDTH : k * each) + from * ld, ld);
    }
#pragma omp for schedule(static)
    for (int64_t k = 0; k < (direct ? 0 : cut.shares * g.out_c); k++) {
      const int64_t share = k / g.out_c, first = part_start(cut.blocks, share, cut.shares);
      const int64_t ld = (part_start(cut.blocks, share + 1, cut.shares) - first) * TILE_WIDTH, o = k % g.out_c;
      const float* from = sums + share * cut.parts * each + o * ld;
      float* to = dw + o * g.in_c + first * TILE_WIDTH;
      for (int64_t c = 0; c < std::min(ld, g.in_c - first * TILE_WIDTH); c++) {
        float total = from[c];
        for (int64_t part = 1; part < cut.parts; part++) total += from[part * each + c];
        to[c] = total;
      }
    }
  }
}
