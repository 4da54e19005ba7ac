// What:     the sums of sk_dilated_wgmma.cu's units in float32 (conv/exact/exact_sum.cuh), from the same tables
// Slabs:    a block of k of one tap, of consumers that take turns a half each. What lies beyond the end is 0 in both
#pragma once
#include "conv/exact/exact_sum.cuh"
#include "conv/wgmma/wgrad_producer.cuh"

struct alignas(8) WgradShape {           // of x and g in memory, of the filter and of boxes
  int images, x_height, x_width, x_channels, g_height, g_width, g_channels;
  int filter_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int box_images, box_height, box_width;
};

// Consumers, all of their threads: the sums of a unit, PIECE columns of each at a time, which go to store(sum, first quad).
template <class T, class Store>
INLINE void exact_unit(const Exact &exact, const WgradShape &shape, bool boxed, char *smem, const Unit *unit,
                       const Store &store) {
  constexpr int HALVES = 1 + T::HALVES, ROWS = T::BM, COLS = HALVES * PIECE, THREADS = 128 * T::CONSUMERS;
  static_assert(EXACT_BYTES<ROWS, COLS> + 8 * EXACT_K <= T::STAGES * T::STAGE, "slabs and lines lie in the buffers");
  float *const a = reinterpret_cast<float *>(smem), *const b = a + EXACT_K * ROWS;
  int2 *const lines = reinterpret_cast<int2 *>(b + EXACT_K * COLS);  // pixels of g, or -1, and of x
  const Stored x = exact.a.stored(), g = exact.b.stored();
  const Place place;
  const int thread = threadIdx.x - 128, rows = unit->rows, cols = unit->cols;
  const int box_rows = shape.box_images * shape.box_height * shape.box_width, pixels = 64 / box_rows;
  const int tap_h = boxed ? unit->shift[0] / shape.filter_w : 0, tap_w = boxed ? unit->shift[0] % shape.filter_w : 0;
  const int from_h = boxed ? tap_h * shape.dilation_h - shape.padding_h : 0;  // else it is in `shift`
  const int from_w = boxed ? tap_w * shape.dilation_w - shape.padding_w : 0;
  const int first_h = boxed ? max(0, (shape.stride_h - 1 - from_h) / shape.stride_h) : 0;  // outputs that meet inputs
  const int first_w = boxed ? max(0, (shape.stride_w - 1 - from_w) / shape.stride_w) : 0;
  const int row = T::BM == 64 ? place.row_in_box(0) : place.row(0);
  const int col = place.col(0) + (T::HALVES ? place.consumer * PIECE : 0);
  UNROLL_BY(1) for (int piece = 0; piece < T::TAPS * T::WIDTH / PIECE; piece++) {
    const int tap = piece * PIECE / T::WIDTH, left = piece * PIECE % T::WIDTH;
    float sum[PIECE / 2] = {};
    for_each_part(unit, [](int number) { return number; }, [&](const Segment *s, int begin, int count) {
      const int side = s->side<T::STRIP>(), width = s->width / side;
      if (tap < s->tap || tap >= s->tap + s->taps) return;
      UNROLL_BY(1) for (int i = 0; i < count * side; i++) {  // blocks of 64
        const int number = (begin + i / side * unit->step) * pixels;
        ptx::bar_sync(EXACT_BARRIER, THREADS);
        if (thread < EXACT_K) {
          const Position at = position(number + thread / box_rows, s->height, width);
          const int within = thread % box_rows, of_plane = shape.box_height * shape.box_width;
          const int h = first_h + (s->h + at.h) * shape.box_height + within / shape.box_width % shape.box_height;
          const int w = first_w + (s->w + at.w * T::STRIP + i % side) * shape.box_width + within % shape.box_width;
          const int image = at.group * shape.box_images + within / of_plane;
          const int in_h = h * shape.stride_h + from_h, in_w = w * shape.stride_w + from_w;
          const bool there = image < shape.images && (!boxed || (h < shape.g_height && w < shape.g_width &&
                                                                 in_h < shape.x_height && in_w < shape.x_width));
          lines[thread] = make_int2(there ? (image * shape.g_height + h) * shape.g_width + w : -1,
                                    (image * shape.x_height + in_h) * shape.x_width + in_w +
                                        (boxed ? 0 : unit->shift[tap]));
        }
        ptx::bar_sync(EXACT_BARRIER, THREADS);
        fill_lines<ROWS, THREADS>(a, g, thread, EXACT_K, [&](int k, int r) {
          return lines[k].x >= 0 && r < rows ? i64(lines[k].x) * shape.g_channels + exact.first + unit->row + r : -1;
        });
        fill_lines<COLS, THREADS>(b, x, thread, EXACT_K, [&](int k, int c) {
          const int col = left + c % PIECE + c / PIECE * T::WIDTH;
          return lines[k].x >= 0 && col < cols ? i64(lines[k].y) * shape.x_channels + unit->col + col : -1;
        });
        ptx::bar_sync(EXACT_BARRIER, THREADS);
        const int depth = T::IN_TURN ? EXACT_K / 2 : EXACT_K, k = T::IN_TURN ? place.consumer * depth : 0;
        multiply_slab<PIECE / 8, ROWS, COLS>(sum, a + k * ROWS + row, b + k * COLS + col, depth);
      }
    });
    store(sum, piece * (PIECE / 8));
  }
}
