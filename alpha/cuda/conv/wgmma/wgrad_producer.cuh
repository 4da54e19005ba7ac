// What:     the tables of sk_dilated_wgmma.cu as it reads them, and its producer: the thread that copies g and x
// Layout:   a unit is Unit, then its tile's segments; alpha/cuda/conv/wgmma/schedule_wgrad.py writes them
#pragma once
#include <type_traits>

#include "gemm_wgmma.cuh"

template <class E_, int BM_, int TAP_, int TAPS_, int PLANES_, int STAGES_, int STRIP_, int CLUSTER_> struct WgradTile {
  using E = E_;
  static constexpr int STRIP = STRIP_, CLUSTER = CLUSTER_;  // pixels of a buffer; blocks that have a unit in common
  static constexpr int BM = BM_, TAP = TAP_, TAPS = TAPS_, BN = TAP * TAPS, BK = 64, PLANES = PLANES_, STAGES = STAGES_;
  static constexpr bool A_MN = true, B_MN = true;
  static constexpr int B_WIDTH = TAP % 64 ? 32 : 64;                       // channels of a box of x
  static constexpr int A_STEP = 128, B_STEP = 2 * B_WIDTH;                 // 16 of k, in 16 bytes
  static constexpr int BOX = 64 * 128, B_BOX = 64 * 2 * B_WIDTH;           // bytes
  static constexpr int A_BOXES = BM / 64, TAP_BOXES = TAP / B_WIDTH;
  static constexpr int A_PIXEL = A_BOXES * BOX, A_PLANE = STRIP * A_PIXEL;
  static constexpr int TAP_BYTES = TAP_BOXES * B_BOX, B_PLANE = (TAPS + STRIP - 1) * TAP_BYTES;
  static constexpr int B_AT = PLANES * A_PLANE, STAGE = PLANES * (A_PLANE + B_PLANE);
  static constexpr bool HALVES = BM == 64 && TAPS == 1 && BN >= 128;       // a consumer has half of the columns
  static constexpr bool IN_TURN = BM == 64 && !HALVES;                     // consumers take buffers in turn
  static constexpr int WIDTH = HALVES ? TAP / 2 : TAP;                     // columns of a tap that a consumer has
  static constexpr int SUMS = TAPS * WIDTH / 2, TAP_SUMS = WIDTH / 2;      // accumulators of a thread
  static constexpr int CONSUMERS = BM == 64 ? 2 : A_BOXES, THREADS = 128 * (1 + CONSUMERS);
  static_assert(BM % 64 == 0 && BM <= 256, "a consumer has 64 rows");
  static_assert(PLANES == 1 || STRIP == 1, "two planes did not gain by strips");
  // Registers: those of the launch, of which consumers get what the producer gives away. Three consumers of several
  // taps need so many that the producer reads its tables again and again.
  static constexpr bool LEAN = CONSUMERS > 2 && TAPS > 1;
  using TableInt = std::conditional_t<LEAN, const int &, const int>;
  static constexpr int REGISTERS = 65536 / THREADS / 8 * 8 * (1 + CONSUMERS);
  static constexpr int PRODUCER_REGISTERS = LEAN ? 32 : PLANES * SUMS > 160 ? 40 : TAPS > 2 || PLANES > 1 ? 72 : 56;
  static constexpr bool CUT = PRODUCER_REGISTERS > 40 && A_BOXES + TAP_BOXES > 2;  // boxes beyond the channels stay out
  static constexpr int CONSUMER_REGISTERS = (REGISTERS - PRODUCER_REGISTERS) / CONSUMERS / 8 * 8;
};

constexpr int MOST_TAPS = 4;

// What a unit is, in one piece of memory that arrives at once: Unit, then its tile's segments.
struct Unit {
  int next;                        // the block's next unit, or -1
  int row, col;                    // first output and input channel
  int rows, cols;                  // of the tile that exist
  int begin, end, step;            // every step-th block of k from begin on, counted over the segments
  int slot;                        // of the workspace that gets the sums, two where consumers take turns; -1: complete
  int taps;                        // of the tile that exist
  int shift[MOST_TAPS];            // pixel of x that output (0, 0) meets; negative where it meets padding. With boxes
                                   // of positions: the number of the tap, which has maps of its own
  int out[MOST_TAPS];              // element of dw that element (0, 0) of the tap's columns is
};

struct Segment {
  int blocks;                      // of k, or strips: of all images
  int h, w, height, width;         // outputs, whole strips of them or one narrow strip
  int tap, taps;                   // the taps of the tile that meet an input here
  int unused;

  template <int STRIP> INLINE int side() const {  // pixels of a strip
    return STRIP > 1 ? min(STRIP, width) : 1;
  }
};

// Calls body(segment, first block in it, number of blocks) for the parts of a unit; read: of a number in it, its value.
template <class Read, class Body> INLINE void for_each_part(const Unit *unit, Read read, Body body) {
  int begin = read(unit->begin), end = read(unit->end);
  const int step = read(unit->step);
  for (const Segment *s = reinterpret_cast<const Segment *>(unit + 1); begin < end; s++) {
    const int blocks = read(s->blocks), count = (min(end, blocks) - begin + step - 1) / step;
    if (begin < blocks) {
      body(s, begin, count);
      begin += count * step;
    }
    begin -= blocks;
    end -= blocks;
  }
}

// ---- producer ------------------------------------------------------------------------------------------------------

// An operand as the producer sees it. A box has WIDTH channels of one pixel of `images` images; where all boxes have 64
// rows and WIDTH channels, one has those of all of a tile's channels: map[0], or map[1] for those of the last tile. Boxes
// of positions have coordinates (channel, column, row, image, chunk), and both maps for each tap and plane: of the outputs
// in which the tap meets an input, and of these inputs. Both operands have zeros beyond them.
struct Source {
  const CUtensorMap *map;
  int rows;  // of a box
  bool wide, boxed;
  uint64_t policy;  // of L2

  // Loads the first `boxes` of BOXES * WIDTH channels of slice `j` of a block; `to` is where slice 0 begins. at: a pixel;
  // of boxes: row * 65536 + column.
  // first_map: of the tap, of boxes.
  template <int BOXES, int WIDTH>
  INLINE void load(char *to, int j, int channel, int boxes, int at, int image, int plane, int first_map,
                   uint64_t *landed) const {
    const int first = boxed ? at & 0xffff : at, second = boxed ? at >> 16 : image;
    const CUtensorMap *from = map + (boxed ? first_map + 2 * plane : 0);
    if (wide) {
      const int chunk = channel / WIDTH;
      ptx::tma_load_5d(to, from[boxes < BOXES], 0, first, second, boxed ? image : chunk, boxed ? chunk : plane, landed,
                       policy);
    } else {
      UNROLL for (int b = 0; b < BOXES; b++)
        if (b < boxes)
          ptx::tma_load_5d(to + (b * 64 + j * rows) * (2 * WIDTH), *from, channel + b * WIDTH, first, second,
                           boxed ? image : 0, boxed ? 0 : plane, landed, policy);
    }
  }
};

struct Walk {            // over the outputs of a segment, or boxes of them; a distance is what is added to `at`
  int images;            // of a box
  int g_row, x_row;      // distance of rows of outputs, in g and in x
  int g_step, x_step;    // and of outputs
};

struct Position {        // of a segment: images, row, column
  int group, h, w;

  INLINE void add(const Position &by, int height, int width) {  // by: itself a position
    w += by.w;
    h += by.h + (w >= width);
    w -= w >= width ? width : 0;
    group += by.group + (h >= height);
    h -= h >= height ? height : 0;
  }
};

INLINE Position position(int number, int height, int width) {
  const int row = number / width;
  return {row / height, row % height, number % width};
}

// filled: bit s says that buffer s has had all of its boxes. far: the maps lie in device memory, those of boxes may.
template <class T>
INLINE void load_unit(Ring<T> &ring, const Source &g, const Source &x, const Walk &walk, const Unit *unit,
                      unsigned &filled, bool far) {
  constexpr int MAPS = 2 * T::PLANES;  // of a tap
  const int maps = T::TAPS == 1 ? unit->shift[0] * MAPS : 0;
  if (T::TAPS == 1 && far)
    for (int m = maps; m < maps + MAPS; m++) ptx::tensor_map_acquire(g.map + m), ptx::tensor_map_acquire(x.map + m);
  typename T::TableInt row = unit->row, col = unit->col, step = unit->step;
  const int pixels = 64 / g.rows;
  const int rows = unit->rows, cols = unit->cols;
  int shifts[T::TAPS], turn = 0;
  UNROLL for (int t = 0; t < T::TAPS; t++) shifts[t] = unit->shift[t];
  const int *shift = T::LEAN ? unit->shift : shifts;
  for_each_part(unit, [](int number) { return number; }, [&](const Segment *s, int begin, int count) {
    typename T::TableInt h0 = s->h, w0 = s->w, tap = s->tap;
    const int height = s->height, taps = s->taps;
    const int side = s->side<T::STRIP>(), width = s->width / side;  // in strips
    const Position leap = position((step - 1) * pixels, height, width);  // from behind a block to the next one
    Position at = position(begin * pixels, height, width);
    const int boxes = taps + side - 1;  // of x, in a strip
    for (int k = 0; k < count; k++) {
      // A box beyond the channels takes TMA three times as long as another: it comes once, for it is multiplied.
      const bool whole = !T::CUT || !(filled >> ring.stage & 1);
      if (T::CUT && boxes == T::TAPS + T::STRIP - 1) filled |= 1u << ring.stage;
      const int of_g = whole ? T::A_BOXES : min(T::A_BOXES, (rows + 63) / 64);
      const int of_x = whole ? T::TAP_BOXES : min(T::TAP_BOXES, (cols + T::B_WIDTH - 1) / T::B_WIDTH);
      const int bytes = T::PLANES * (side * of_g * T::BOX + boxes * of_x * T::B_BOX);
      ptx::mbarrier_wait(ring.barriers.empty + ring.stage, ring.phase ^ 1);
      uint64_t *landed = ring.barriers.full + (T::IN_TURN ? turn * T::STAGES : 0) + ring.stage;
      turn ^= 1;
      ptx::mbarrier_arrive_expect(landed, bytes);
      char *a = ring.buffers + ring.stage * T::STAGE, *b = a + T::B_AT;
      ring.advance();
      for (int j = 0; j < pixels; j++) {
        const int h = h0 + at.h, w = w0 + at.w * T::STRIP, image = at.group * walk.images;  // beyond: zeros
        const int at_g = h * walk.g_row + w * walk.g_step, at_x = h * walk.x_row + w * walk.x_step;
        UNROLL for (int p = 0; p < T::PLANES; p++) {
          UNROLL for (int i = 0; i < T::STRIP; i++)
            if (i < side)
              g.load<T::A_BOXES, 64>(a + p * T::A_PLANE + i * T::A_PIXEL, j, row, of_g, at_g + i, image, p, maps,
                                      landed);
          const auto load_x = [&](int box, int pixel) {
            x.load<T::TAP_BOXES, T::B_WIDTH>(b + p * T::B_PLANE + box * T::TAP_BYTES, j, col, of_x, pixel, image, p,
                                             maps, landed);
          };
          if constexpr (T::STRIP == 1) {
            UNROLL for (int t = 0; t < T::TAPS; t++)
              if (t >= tap && t < tap + taps) load_x(t, at_x + (T::TAPS == 1 && x.boxed ? 0 : shift[t]));
          } else {
            for (int i = tap; i < tap + boxes; i++) load_x(i, at_x + shift[0] + i * walk.x_step);
          }
        }
        at.add({0, 0, 1}, height, width);
      }
      if (step > 1) at.add(leap, height, width);
    }
  });
}
