// What:     the sums of conv_wgmma.cu's tiles in float32 (conv/exact/exact_sum.cuh), from the same entries of the work list
// Slabs:    what a block has of one tap; rows that it moves out of `in`, as boxes of positions have them, are left out
#pragma once
#include "conv/wgmma/conv_wgmma_producer.cuh"

// Consumers, all of their threads: adds up 128 rows of an entry, those of `depth`; of a pair, output number `depth`. left:
// the first of PIECE columns.
template <class Tile>
INLINE void exact_sum(const ConvOperands &t, char *smem, const int *entry, int depth, int left, float (&sum)[PIECE / 2]) {
  constexpr int ROWS = Tile::A_ROWS < 128 ? 64 : 128, COLS = PIECE, THREADS = 128 * Tile::CONSUMERS;
  static_assert(EXACT_BYTES<ROWS, COLS> + 16 * ROWS <= Tile::OUT_AT, "slabs and rows lie in the buffers");
  float *const a = reinterpret_cast<float *>(smem), *const b = a + EXACT_K * ROWS;
  int4 *const rows = reinterpret_cast<int4 *>(b + EXACT_K * COLS);  // where they begin to read: h, w, image or -1
  const Stored in = t.exact.a.stored(), filters = t.exact.b.stored();
  const Place place;
  const int thread = threadIdx.x - 128, runs_w = entry[RUNS_W], taps = max(entry[RUNS_H] * runs_w, 1);
  const int channels = max(entry[LENGTH] / max(entry[RUN], 1), 1), in_group = entry[GROUP] * channels;
  const int pair = Tile::PAIRS ? entry[PAIR] : 0, of_in = t.groups * channels, width = entry[WIDTH];
  const int column = entry[COLUMN] + left, columns = t.columns - column, out_group = entry[GROUP] * t.columns + column;
  ptx::bar_sync(EXACT_BARRIER, THREADS);
  for (int i = thread; i < ROWS; i += THREADS) {
    const int r = Tile::PAIRS ? i : depth * ROWS + i;
    const int pixel = entry[PIXEL] + (r >> t.box.rows_log2()), image = entry[IMAGE] + t.box.image(r), h = pixel / width;
    rows[i] = make_int4(entry[IN_H] + h * entry[IN_H_STEP] + t.box.h(r, 1 << t.box.log2(3) + t.box.height_log2()),
                        entry[IN_W] + (pixel - h * width) * entry[IN_W_STEP] +
                            t.box.w(r, 1 << t.box.log2(4) + t.box.width_log2()),
                        pixel < entry[PIXELS] && image < t.batch ? image : -1, 0);
  }
  UNROLL_BY(1) for (int block = entry[BLOCK], end = block + entry[BLOCKS]; block < end; block++) {
    const int first = block / taps * 64, h = block % taps / runs_w, w = block % taps % runs_w;
    UNROLL_BY(1) for (int v = first, next; v < min(first + 64, entry[LENGTH]); v = next) {
      const int tap = v / channels, c = v - tap * channels;
      next = min(min(first + 64, entry[LENGTH]), (tap + 1) * channels);
      const int y = h * entry[TAP_IN_H], x = w * entry[TAP_IN_W] + tap;
      const auto pixel = [&](int r) {  // of `in`, or -1
        const int4 at = rows[r];
        const bool there = at.z >= 0 && unsigned(at.x + y) < unsigned(t.shape.height) &&
                           unsigned(at.y + x) < unsigned(t.shape.width);
        return there ? (at.z * t.shape.height + at.x + y) * t.shape.width + at.y + x : -1;
      };
      if (pair && (depth ? w == 0 : w + 1 == runs_w)) continue;  // the second output is a tap behind the first
      const int filter_h = entry[TAP_H] + h * entry[TAP_H_STEP];
      const int filter_w = entry[TAP_W] + (w + tap - (pair ? depth : 0)) * entry[TAP_W_STEP];
      const auto filter = [&](int o) {  // where the tap of one begins
        const i64 number = (i64(o) * t.shape.filter_h + filter_h) * t.shape.filter_w + filter_w;
        return t.exact.first + number * (Tile::B_MN ? t.columns : channels);
      };
      ptx::bar_sync(EXACT_BARRIER, THREADS);
      fill_rows<ROWS, THREADS>(a, in, thread, next - v, [&](int r) {
        const int at = pixel(r);
        return at < 0 ? i64(-1) : i64(at) * of_in + in_group + c;
      });
      if constexpr (Tile::B_MN)
        fill_lines<COLS, THREADS>(b, filters, thread, next - v, [&](int k, int col) {
          return col < columns ? filter(in_group + c + k) + column + col : -1;
        });
      else
        fill_rows<COLS, THREADS>(b, filters, thread, next - v,
                                 [&](int col) { return col < columns ? filter(out_group + col) + c : -1; });
      ptx::bar_sync(EXACT_BARRIER, THREADS);
      multiply_slab<COLS / 8, ROWS, COLS>(sum, a + place.row(0), b + place.col(0), next - v,
                                          pixel(place.row(0)) >= 0, pixel(place.row(2)) >= 0);
    }
  }
}
