// Winograd's convolution: geometry, and where tiles and filters lie.
//
// Layouts, K = N^2 spectral points k, T tiles of a chunk, channels in blocks of BLOCK (the last one narrower):
//   V, M, Y  [k][block][tile][channels of the block]          tiles: of x, of the product, of g
//   U        [k][panel of TILE_WIDTH channels out][channel in][channels of the panel]
// A block is what a sum adds up from 0 (docs/explanation/numerics.md), and a row of it is one stretch of memory.
#pragma once

#include "product.hpp"

constexpr int64_t BLOCK = 64;           // terms of a sum before it is added to others
constexpr int64_t APART = 16;           // floats between spectral points: else they fall on one set of the cache
constexpr int64_t LEVEL = 64 * BLOCK;   // tiles after which wgrad starts a new sum, which is then added

// From Python: n, height, width and channels of the tensor read, those of the tensor written (wgrad: of g), padding, m, r,
// dilation d, and floats from a pixel to the next of each tensor, which may be a slice of the channels of a wider one.
// Every d-th pixel of a map, by rows and columns, is a map of its own, of a convolution without dilation: there are d x d
// of them. Tiles are places of these maps, padding too is in their pixels.
// winograd_floats sets how many threads work, so that the workspace fits them.
struct Map {
  int64_t n, in_h, in_w, in_c, out_h, out_w, out_c, pad_h, pad_w, m, r, d, in_pitch, out_pitch, threads;

  int64_t rows() const { return ceil_div(ceil_div(out_h, d), m); }
  int64_t cols() const { return ceil_div(ceil_div(out_w, d), m); }
  int64_t tiles() const { return n * d * d * rows() * cols(); }
  int64_t points() const { return (m + r - 1) * (m + r - 1); }
  int64_t in_pad() const { return round_up(in_c, LANES); }
  int64_t out_pad() const { return round_up(out_c, LANES); }
  int64_t filters() const { return in_c * out_pad() + APART; }  // floats of U of one point
};

constexpr int64_t LARGE_FILTERS = 4 << 20, WGRAD_BYTES = 8 << 20, WGRAD_MOST_BYTES = 32 << 20;

// Tiles of a chunk of wgrad: a power of two of blocks, so that levels end with chunks.
inline int64_t wgrad_tiles(const Map& map) {
  const int64_t each = 4 * map.points() * (map.in_pad() + map.out_pad());
  const bool large = 4 * map.points() * map.in_c * map.out_c > LARGE_FILTERS;
  int64_t tiles = BLOCK;
  while (tiles < LEVEL && tiles < map.tiles() && 2 * tiles * each <= (large ? WGRAD_MOST_BYTES : WGRAD_BYTES)) tiles *= 2;
  return tiles;
}

// Channels of tiles: `count` of them, padded to whole vectors; `tiles` in a chunk.
struct Blocked {
  int64_t count, padded, tiles;

  Blocked(int64_t channels, int64_t t) : count(channels), padded(round_up(channels, LANES)), tiles(t) {}
  int64_t blocks() const { return ceil_div(padded, BLOCK); }
  int64_t width(int64_t block) const { return std::min(BLOCK, padded - block * BLOCK); }
  int64_t valid(int64_t block) const { return std::min(BLOCK, count - block * BLOCK); }
  int64_t floats() const { return tiles * padded + APART; }  // of one spectral point
  int64_t at(int64_t block) const { return block * BLOCK * tiles; }
};

// One tile: its first pixel, which may be outside, in the map of pixels d apart that begins at (down, right).
struct Place {
  int64_t image, down, right, row, col;

  Place(const Map& map, int64_t tile)
      : image(tile / (map.d * map.d * map.rows() * map.cols())), down(tile / (map.d * map.rows() * map.cols()) % map.d),
        right(tile / (map.rows() * map.cols()) % map.d), row(tile / map.cols() % map.rows() * map.m),
        col(tile % map.cols() * map.m) {}
};

// The pixels of a tensor of height x width that belong to a place: a map of h x w, `down` and `right` floats apart.
struct Pixels {
  int64_t first, h, w, down, right;

  Pixels(const Place& at, int64_t d, int64_t height, int64_t width, int64_t pitch)
      : first(((at.image * height + at.down) * width + at.right) * pitch), h(ceil_div(height - at.down, d)),
        w(ceil_div(width - at.right, d)), down(d * width * pitch), right(d * pitch) {}
  int64_t operator()(int64_t row, int64_t col) const { return first + row * down + col * right; }
};
