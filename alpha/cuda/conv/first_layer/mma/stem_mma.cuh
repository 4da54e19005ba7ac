// What the first layer's kernels on tensor cores share (conv_stem_mma*.cu): their tiles of positions, what x has for one
// of them, and products of float32 by TF32.
//
// What:     a tile is tile_h x tile_w outputs of an image, up to POSITIONS; row p of its product is output
//           (p / tile_w, p % tile_w). Its patch is what they read of x: `lines` lines of `line` elements
// Layout:   element k of a filter is `offsets[k]` behind the place where the position's first tap reads in the patch
// Zeros:    a patch has zeros where there is padding. K = 27 of a 3x3 filter of 3 channels becomes 32 in any case:
//           leaving them out would save nothing
// Modes:    ELEMENT float: PRODUCTS 3: x = hi + lo, two TF32 numbers that hold 23 or 24 bits of it; lo * hi, hi * lo,
//           hi * hi, the small ones first. 1: hi * hi. TF32 has float32's range, so that nothing is scaled. 16 bits:
//           one product of elements as they are stored
// Not finite: an infinity has no hi and lo, a zero of the padding times infinity is NaN, and what rounds to hi may
//           overflow: a sum that is not finite is made again with multiply-adds, and without the padding
#pragma once
#include "fragments.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, POSITIONS = 256, CHUNK = 32;  // CHUNK: of k
constexpr int STEPS = CHUNK / STEP;

struct StemShape {
  int images, ih, iw, ic, oh, ow, oc, fh, fw;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int tile_h, tile_w, tiles_h, tiles_w;  // positions of a tile, tiles of an image
  int lines, line;                       // of a patch; elements from a line to the next
};

// A row of a tile: where its first tap reads in the patch, and its position there.
struct StemRow {
  int from;
  short h, w;
};

struct StemTile {
  int image, h, w;  // of the first position
  INLINE StemTile(const StemShape &s, int number) {
    const int per_image = s.tiles_h * s.tiles_w;
    image = number / per_image;
    number -= image * per_image;
    h = number / s.tiles_w * s.tile_h, w = number % s.tiles_w * s.tile_w;
  }
  INLINE bool has(const StemShape &s, const StemRow &r) const { return h + r.h < s.oh && w + r.w < s.ow; }
  INLINE long long at(const StemShape &s, const StemRow &r) const {  // elements of y up to a row
    return ((long long)image * s.oh * s.ow + ((h + r.h) * s.ow + w + r.w)) * s.oc;
  }
};

// Tables that every tile shares; offsets: of `count` k from `first` on, of which those beyond the last read what the
// first one reads.
template <int N> INLINE void stem_tables(const StemShape &s, StemRow (&rows)[N], int *offsets, int first, int count) {
  for (int p = threadIdx.x; p < N; p += THREADS) {
    const int h = p / s.tile_w, w = p - h * s.tile_w;
    rows[p] = h < s.tile_h ? StemRow{h * s.stride_h * s.line + w * s.stride_w * s.ic, (short)h, (short)w}
                           : StemRow{0, 0x7fff, 0};
  }
  for (int e = threadIdx.x; e < count; e += THREADS) {
    const int k = first + e, c = k % s.ic, tap = k / s.ic, h = tap / s.fw, w = tap - h * s.fw;
    offsets[e] = h < s.fh ? h * s.dilation_h * s.line + w * s.dilation_w * s.ic + c : 0;
  }
}

// Starts to copy a tile's patch: float32 arrives by the cp_async_wait, 16 bits are too small for it and are there.
INLINE void copy_patch(const StemShape &s, const StemTile &tile, const ELEMENT *x, ELEMENT *patch) {
  const int h0 = tile.h * s.stride_h - s.pad_h, first = (tile.w * s.stride_w - s.pad_w) * s.ic, width = s.iw * s.ic;
  for (int r = threadIdx.x / 32; r < s.lines; r += WARPS) {
    const bool inside = (unsigned)(h0 + r) < (unsigned)s.ih;
    const ELEMENT *from = x + ((long long)tile.image * s.ih + (inside ? h0 + r : 0)) * width;
    ELEMENT *to = patch + r * s.line;
    for (int c0 = threadIdx.x % 32; c0 < s.line; c0 += 128) {
      ELEMENT v[4];
      UNROLL for (int q = 0; q < 4; q++) {
        const int c = c0 + q * 32;
        const bool there = inside && c < s.line && (unsigned)(first + c) < (unsigned)width;
        if constexpr (WIDE) {
          if (c < s.line) ptx::cp_async<4>(to + c, from + (there ? first + c : 0), there ? 4 : 0);
        } else {
          v[q] = there ? from[first + c] : from_float<ELEMENT>(0.f);
        }
      }
      if constexpr (!WIDE) {
        UNROLL for (int q = 0; q < 4; q++)
          if (c0 + q * 32 < s.line) to[c0 + q * 32] = v[q];
      }
    }
  }
}

template <int M, int N> INLINE bool all_finite(const float (&sum)[M][N][4]) {
  float zero = 0.f;
  UNROLL for (int i = 0; i < M; i++)
    UNROLL for (int j = 0; j < N; j++)
      UNROLL for (int q = 0; q < 4; q++) zero = fmaf(sum[i][j][q], 0.f, zero);
  return zero == 0.f;
}
