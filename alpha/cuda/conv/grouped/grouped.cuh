// What the kernels of narrow groups share (conv_grouped*.cu): patches of maps in shared memory, and products of pieces
// of 16 x 16 channels by mma.sync, in which several groups lie side by side.
//
// What:     a tile is images x tile_h x tile_w positions of one class; a class is positions that read the same taps.
//           Position (n, i, j) reads pixel (in_h + i*move_h + th*tap_h, in_w + j*move_w + tw*tap_w) at tap (th, tw).
//           Its patch holds all pixels that the tile reads: `lines` lines of `columns` pixels for each image
// Layout:   a pixel of a patch has ROW bytes: 8 chunks of 16 bytes, of which `chunks` are used, and lies PITCH elements
//           behind the pixel before. One chunk of 8 neighbouring pixels lies in 8 different groups of 4 banks, as
//           ldmatrix reads them; SINGLE: 8 floats of 4 neighbouring pixels lie in 32 banks
// Groups:   a channel tile is a number of whole groups of at most ROW bytes of the channels read. The filters of a piece
//           of 16 outputs are a matrix of 16 columns, with zeros where a row's channel is of another group
// Modes:    as stem_mma.cuh: ELEMENT float: TF32, PRODUCTS 3 (float32's accuracy) or 1; 16 bits: one product
// Not finite: a zero of the padding, or of another group, times infinity is NaN. A sum that is not finite is made again
//           with multiply-adds of the real products
#pragma once
#include "conv/first_layer/mma/stem_mma.cuh"

constexpr int ROW = 128, CHUNKS = ROW / 16, PER_CHUNK = LANES<ELEMENT>;
constexpr int K_STEP = 2 * PER_CHUNK;  // channels of one mma.sync

#ifndef SINGLE
#define SINGLE 0  // whether elements are read one by one: wgrad of float32
#endif
constexpr int PITCH = (ROW + (SINGLE ? 32 : 16)) / sizeof(ELEMENT);

// Where chunk `chunk` of pixel `pixel` begins in a patch.
INLINE int place(int pixel, int chunk) { return pixel * PITCH + chunk * PER_CHUNK; }

struct GroupedShape {
  int images, in_h, in_w, in_c, out_h, out_w, out_c;
  int filter_taps, in_group, out_group;                  // taps of a whole filter; channels of a group, read and written
  int tile_in, tile_out, chunks, k_steps;                // channels of a tile; chunks of a pixel; steps of a piece
  int turned;                                            // w is (in channel, tap, out channel of the group): dgrad
};

struct GroupedClass {
  int first_h, first_w, step_h, step_w, count_h, count_w;  // positions of the output
  int in_h, in_w, move_h, move_w;                          // pixel of the first position; pixels from one to the next
  int taps_h, taps_w, tap_h, tap_w;                        // taps; pixels from one to the next
  int w_first, w_h, w_w;                                   // tap of the filter, and from one to the next
  int tile_h, tile_w, tile_images, tiles_h, tiles_w, tiles, lines, columns;
};

struct GroupedRow {
  int out;    // elements from the tile's first output: within an image, or in a few small ones
  int pixel;  // of the patch, at the first tap
  short h, w;
  int image;
};

struct GroupedTile {
  int image, h, w;
  INLINE GroupedTile(const GroupedClass &c, int number) {
    const int per_images = c.tiles_h * c.tiles_w;
    image = number / per_images * c.tile_images;
    number %= per_images;
    h = number / c.tiles_w * c.tile_h, w = number % c.tiles_w * c.tile_w;
  }
  INLINE bool has(const GroupedShape &s, const GroupedClass &c, const GroupedRow &r) const {
    return image + r.image < s.images && h + r.h < c.count_h && w + r.w < c.count_w;
  }
  INLINE i64 first(const GroupedShape &s, const GroupedClass &c) const {  // elements of the output before the tile's first
    const i64 line = (i64)image * s.out_h + c.first_h + h * c.step_h;
    return (line * s.out_w + c.first_w + w * c.step_w) * s.out_c;
  }
};

template <int N> INLINE void grouped_rows(const GroupedShape &s, const GroupedClass &c, GroupedRow (&rows)[N]) {
  for (int p = threadIdx.x; p < N; p += THREADS) {
    const int w = p % c.tile_w, line = p / c.tile_w, h = line % c.tile_h, image = line / c.tile_h;
    const int out = ((image * s.out_h + h * c.step_h) * s.out_w + w * c.step_w) * s.out_c;
    const int pixel = (image * c.lines + h * c.move_h) * c.columns + w * c.move_w;
    rows[p] = image < c.tile_images ? GroupedRow{out, pixel, (short)h, (short)w, image} : GroupedRow{0, 0, 0x7fff, 0, 0};
  }
}

// Starts to copy the patch of a tile, channels from `channel` on. Outside of the map it is zeros.
INLINE void copy_grouped(const GroupedShape &s, const GroupedClass &c, const GroupedTile &tile, const ELEMENT *in,
                         ELEMENT *patch, int channel) {
  const int chunk = threadIdx.x % CHUNKS, first = threadIdx.x % 32 / CHUNKS, at = channel + chunk * PER_CHUNK;
  const int h0 = c.in_h + tile.h * c.move_h, w0 = c.in_w + tile.w * c.move_w;
  if (chunk >= s.chunks) return;
  for (int l = threadIdx.x / 32; l < c.tile_images * c.lines; l += WARPS) {
    const int n = l / c.lines, h = h0 + l - n * c.lines, image = tile.image + n;
    const bool inside = image < s.images && (unsigned)h < (unsigned)s.in_h && at < s.in_c;
    const ELEMENT *line = in + (inside ? ((i64)image * s.in_h + h) * s.in_w * s.in_c + at : 0);
    for (int k = first; k < c.columns; k += 32 / CHUNKS) {
      const bool there = inside && (unsigned)(w0 + k) < (unsigned)s.in_w;
      ptx::cp_async<16>(patch + place(l * c.columns + k, chunk), line + (there ? (w0 + k) * s.in_c : 0), there ? 16 : 0);
    }
  }
}
