// What:     the work list of conv_wgmma.cu as it reads it, and its producer: the warp that copies boxes of `in` and w
// Layout:   an entry of the list is FIELDS ints; alpha/cuda/conv/wgmma/schedule.py writes them
#pragma once
#include "conv/exact/exact_sum.cuh"
#include "gemm_wgmma.cuh"
#include "held_filters.cuh"
#include "pair_sum.cuh"

// An entry of a block's list: 32 integers, of which a warp's lanes hold one each. The next entry is always on its way.
enum Field {
  BLOCKS, WHOLE, BLOCK,     // how many of the sum's blocks are this entry's (-1: the list ends here), of them the whole
                            // ones, which come first; and the number of the first. They are ordered by chunk of a
                            // run, run h, run w
  SLOT, SLICE,              // first slot of the tile; number of the slice * 65536 + number of slices
  PIXEL, IMAGE, COLUMN,     // where the tile begins; a pixel is a box of BoxShape, a position alone as a rule
  GROUP,                    // the rest is its class, in coordinates:
  PIXELS, WIDTH,            // pixel = h * width + w
  IN_H, IN_H_STEP, IN_W, IN_W_STEP,        // where pixel (0, 0) starts to read, distance of pixels
  OUT_H, OUT_H_STEP, OUT_W, OUT_W_STEP,
  RUNS_H, RUNS_W,                          // number of runs; of pairs, of the pixels of a row that they read
  TAP_IN_H, TAP_IN_W,                      // distance of taps in `in`
  TAP_H, TAP_H_STEP, TAP_W, TAP_W_STEP,    // in the filter: first tap, distance of taps
  RUN, LENGTH,                             // taps in a run, and values
  PAIR,                                    // a pixel is a pair of outputs, so far apart; 0: it is one
  FIELDS = 32,
  FILTERS = SLOT            // where filters are held no sum is cut: 1 if this entry's are to be loaded, else 0
};
INLINE int field(int entry, Field f) { return __shfl_sync(~0u, entry, f); }

// Positions of a box: `images` x `height` x `width`, powers of two, rows of a tile in this order. They lie as far apart
// as those of their residue class do: of `out` by OUT_H_STEP / height, and boxes by OUT_H_STEP. Where that is not 1 there
// is a map for each residue class, (row, column), of `in` or `out`, in which they are neighbours.
struct BoxShape {
  int packed;  // logarithms, in 4 bits each: rows, height, width; how far positions lie apart in `in`, h and w, and `out`

  INLINE int log2(int number) const { return packed >> 4 * number & 15; }
  INLINE int rows_log2() const { return log2(0); }
  INLINE int height_log2() const { return log2(1); }
  INLINE int width_log2() const { return log2(2); }
  INLINE int rows() const { return 1 << rows_log2(); }
  INLINE int image(int row) const { return (row & rows() - 1) >> height_log2() + width_log2(); }
  INLINE int h(int row, int apart) const {
    return (row >> width_log2() & (1 << height_log2()) - 1) * (apart >> height_log2());
  }
  INLINE int w(int row, int apart) const { return (row & (1 << width_log2()) - 1) * (apart >> width_log2()); }
  INLINE int out_maps() const { return 1 << log2(5) + log2(6); }
};

// The number of the residue class of (h, w), which become its coordinates there.
INLINE int residue_class(int &h, int &w, int h_log2, int w_log2) {
  const int number = (h & (1 << h_log2) - 1) << w_log2 | w & (1 << w_log2) - 1;
  h >>= h_log2, w >>= w_log2;
  return number;
}

struct alignas(8) ConvShape {   // what the exact way has to know besides
  int height, width;            // of `in`
  int filter_h, filter_w;
};

struct ConvOperands {
  const CUtensorMap *in, *w, *out;  // in and K-major w: maps for runs of least_run taps, and one more each; behind
                                    // those of w, where tiles end beyond the columns, as many for the last tile's
  const float *bias, *scale_in, *scale_w;
  void *slots;          // of slices; clusters, which have none: out itself
  float *statistics;    // [block][consumer][mean, m2, count][channels], or null
  const void *joined;   // what is added before relu, like out, or null
  const int *work;      // [block][entry][FIELDS]
  int entries;          // of a block, its list's end among them
  BoxShape box;
  int batch, height, width, groups;  // of out
  int columns;          // of a group
  int counted;          // channels of out, and of the statistics; of which these columns, of all groups, may be a part
  int least_run, runs, unit, relu, adds, streams;  // streams: what is stored is beyond what the L2 cache keeps
  Exact exact;          // a: in
  ConvShape shape;

  INLINE const int *list() const { return work + (long long)blockIdx.x * entries * FIELDS + threadIdx.x % 32; }
};

// What a lane of the producer loads for each block of a sum: one of the pixels of `in`, or a box of w.
template <class Tile> struct Box {
  static constexpr bool B_MN = Tile::B_MN;
  static constexpr int PARTS = B_MN ? (Tile::BN + 63) / 64 : 1;  // boxes of w side by side, in a plane
  const ConvOperands &t;
  const int pixels, units;                         // of a whole block
  const int part, my_unit;                         // of w
  const bool is_pixel, is_mn;
  int length, channels, runs_h, runs_w, pair, chunk, h, w;
  int y0, y_step, x_first, x0, x_step, tap_step;   // coordinates of the sum's first tap, and distances
  int x, y, depth;                                 // where the box begins; depth: in the run or, MN-major, in its tap
  int w_bytes;                                     // of a plane, by all lanes
  bool reads_w;

  INLINE Box(const ConvOperands &operands, int lane)
      : t(operands), pixels(Tile::A_ROWS >> t.box.rows_log2()), units(B_MN ? 64 / t.unit : 1), part((lane - pixels) % PARTS),
        my_unit((lane - pixels) / PARTS), is_pixel(lane < pixels), is_mn(B_MN && !is_pixel) {}

  // Enters an entry of the list; in_y, in_x: where the lane's pixel starts to read.
  INLINE void enter(int item, int in_y, int in_x) {
    const int filter_y = field(item, TAP_H), filter_x = field(item, TAP_W);
    const int in_y_step = field(item, TAP_IN_H), filter_y_step = field(item, TAP_H_STEP);
    const int in_x_step = field(item, TAP_IN_W), filter_x_step = field(item, TAP_W_STEP);
    const int block = field(item, BLOCK);
    length = field(item, LENGTH), channels = length / field(item, RUN);
    runs_h = field(item, RUNS_H), runs_w = field(item, RUNS_W), pair = field(item, PAIR);
    y_step = is_pixel ? in_y_step : filter_y_step, x_step = is_pixel ? in_x_step : filter_x_step;
    y0 = is_pixel ? in_y : filter_y, x0 = x_first = is_pixel ? in_x : filter_x, tap_step = filter_x_step;
    chunk = block ? block / (runs_h * runs_w) : 0;
    const int at = block - chunk * runs_h * runs_w;
    h = block ? at / runs_w : 0, w = at - h * runs_w;
    w_bytes = B_MN ? PARTS * 128 * 64 : Tile::B_PLANE, reads_w = !is_pixel && my_unit < units;
    enter_chunk();
    y = y0 + h * y_step, x = x0 + w * x_step;
  }
  INLINE bool has_filters() const { return !Tile::PAIRS || pair == 0 || w + 1 < runs_w; }
  INLINE void enter_chunk() {
    depth = chunk * 64;
    if (!B_MN || t.unit == 64) return;
    const int there = min((length - depth + t.unit - 1) / t.unit, units);
    w_bytes = there * (PARTS * 128 * t.unit), reads_w = !is_pixel && my_unit < there;
    if (is_pixel) return;
    const int k = depth + my_unit * t.unit, tap = k / channels;
    depth = k - tap * channels, x0 = x_first + tap * tap_step;
  }
  INLINE void advance() {
    x += x_step;
    if (++w < runs_w) return;
    w = 0, x = x0, y += y_step;
    if (++h < runs_h) return;
    h = 0, y = y0, chunk++;
    enter_chunk();
    x = x0;
  }
};

// All filters of an entry's sum, whose first box is `box`: whole, for that is rare.
template <class Tile>
INLINE void load_filters(const ConvOperands &t, HeldFilters<Tile> &held, Box<Tile> box, int blocks,
                         const CUtensorMap *map, int column, int group, int to) {
  uint64_t *const landed = held.begin();
  UNROLL_BY(1) for (int k = 0; k < blocks; k++, to += Tile::B_BLOCK) {
    held.expect(Tile::PLANES * box.w_bytes);
    if (box.reads_w) {
      UNROLL for (int p = 0; p < Tile::PLANES; p++)
        ptx::tma_load_5d(held.buffers + to + p * Tile::B_PLANE, *map, box.is_mn ? column : box.depth, box.x, box.y,
                         box.is_mn ? box.depth : column, group + p * t.groups, landed);
    }
    box.advance();
  }
  held.end();
}

// The producer's first warp. Lane j loads pixel j of a tile; the lanes behind load the boxes of w.
// ahead: the list's first entry.
template <class Tile>
INLINE void load_tiles(const ConvOperands &t, Ring<Tile> &ring, HeldFilters<Tile> &held, int ahead) {
  const int lane = threadIdx.x, box_bytes = 128 << t.box.rows_log2();
  Box<Tile> box(t, lane);
  const int to = box.is_pixel ? lane * box_bytes : Tile::B_AT + box.part * Tile::BOX + box.my_unit * (128 * t.unit);
  const int plane = box.is_pixel ? Tile::A_PLANE : Tile::B_PLANE;
  const int fourth_step = box.is_pixel ? t.batch : 0, fifth_step = box.is_pixel ? 0 : t.groups;  // from plane to plane
  const bool tails = !Tile::B_MN && !Tile::HELD && t.columns % Tile::BN;  // the last tile has fewer filters
  const int *list = t.list();
  const int h_log2 = box.is_pixel ? t.box.log2(3) : 0, w_log2 = box.is_pixel ? t.box.log2(4) : 0;
  for (;;) {
    const int item = ahead, blocks = field(item, BLOCKS);
    if (blocks < 0) break;
    ahead = *(list += FIELDS);
    const int pixels = min(field(item, PIXELS) - field(item, PIXEL), box.pixels), width = field(item, WIDTH);
    const int pixel = field(item, PIXEL) + min(lane, pixels - 1), row = pixel / width, col = pixel - row * width;
    const int in_y = field(item, IN_H) + row * field(item, IN_H_STEP);
    const int in_x = field(item, IN_W) + col * field(item, IN_W_STEP);
    const int image = field(item, IMAGE), column = field(item, COLUMN) + (Tile::B_MN ? box.part * 64 : 0);
    const int fixed = box.is_pixel ? image : column, group = field(item, GROUP), run = field(item, RUN);
    const CUtensorMap *map = (box.is_pixel ? t.in : t.w) + (box.is_mn ? 0 : run - t.least_run);
    const int there = t.columns - field(item, COLUMN);
    box.enter(item, in_y, in_x);
    if (Tile::HELD && field(item, FILTERS)) load_filters(t, held, box, blocks, map, fixed, group, to);
    UNROLL_BY(1) for (int k = 0; k < blocks; k++) {
      // A buffer's first filling is whole: pixels that do not exist are the last one again, filters are zeros. Later
      // they are left out.
      const int loaded = ring.fresh ? box.pixels : pixels;
      const bool cut = tails && there < Tile::BN && !ring.fresh;
      int x = box.x, y = box.y;
      const CUtensorMap *from = map + (cut && !box.is_pixel ? t.runs : residue_class(y, x, h_log2, w_log2));
      int first = box.is_mn ? fixed : box.depth, fourth = box.is_mn ? box.depth : fixed;
      ptx::settle(first, x, y, fourth);  // three buffers of two planes leave no time behind the wait
      const bool filters = !Tile::HELD && (box.has_filters() || (tails && ring.fresh));
      const int w_bytes = filters ? (cut ? there * 128 : box.w_bytes) : 0;
      const auto buffer = ring.next(Tile::PLANES * (loaded * box_bytes + w_bytes));
      if (lane < loaded || (box.reads_w && filters)) {
        UNROLL for (int p = 0; p < Tile::PLANES; p++)
          ptx::tma_load_5d(buffer.a + to + p * plane, *from, first, x, y, fourth + p * fourth_step,
                           group + p * fifth_step, buffer.landed);
      }
      box.advance();
    }
  }
}
