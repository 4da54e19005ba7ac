// Tiles of a map and where their spectral points lie: what winograd.cu and fft_tile.cu share.
//
// Layout: map: image, row, column, channel, by the distances `image`, `pixel` and `channel`, so that filters, OHWI, are
//         maps too, one tile each. Points: [item][point][part][channel] by the distances given, in float32
#pragma once
#include "ptx.cuh"

struct Tiles {
  long long item, point, part;  // floats from tile to tile, from point to point, and from real to imaginary parts
  long long image;              // floats from image to image
  int h, w, c;                  // of the map
  int pixel, channel;           // floats from column to column, and from channel to channel
  int rows, cols;               // tiles of an image
  int step_h, step_w;           // pixels from tile to tile
  int pad_h, pad_w;             // pixels by which the first tile begins outside
  int size_h, size_w;           // pixels of a tile that are taken, or written
  int first, count;             // tiles of this launch
  int turned;                   // whether pixels of a tile are taken in reverse
};

// Where a tile begins: image, row and column of its first pixel.
struct Place {
  long long image;
  int row, col;

  INLINE Place(const Tiles &t, int tile) {
    const int per_image = t.rows * t.cols, at = tile % per_image;
    image = tile / per_image * t.image;
    row = at / t.cols * t.step_h - t.pad_h;
    col = at % t.cols * t.step_w - t.pad_w;
  }
};

// The pixel (i, j) of a tile, 0 outside of the map and beyond what is taken. map: that channel of the image.
INLINE float pixel_of(const Tiles &t, const float *map, const Place &at, int i, int j) {
  if (i >= t.size_h || j >= t.size_w) return 0.f;
  const int row = at.row + (t.turned ? t.size_h - 1 - i : i), col = at.col + (t.turned ? t.size_w - 1 - j : j);
  return (unsigned)row < (unsigned)t.h && (unsigned)col < (unsigned)t.w ? map[(row * t.w + col) * t.pixel] : 0.f;
}

// Writes the pixel (i, j) of a tile where it exists.
INLINE void put_pixel(const Tiles &t, float *map, const Place &at, int i, int j, float value, int relu) {
  const int row = at.row + i, col = at.col + j;
  if (relu && value < 0.f) value = 0.f;  // keeps NaN
  if (i < t.size_h && j < t.size_w && row < t.h && col < t.w) map[(row * t.w + col) * t.pixel] = value;
}
