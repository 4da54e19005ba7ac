// Tiles of pixels, transformed: V of x, Y of g; and the choice of a transform.
#pragma once

#include "winograd.hpp"
#include "winograd_transform.hpp"

// Channels of A x A pixels, `down` and `right` floats apart, to V or Y at `dst`, transformed: `width` of them, whole vectors,
// a point `step` floats behind the one before.
template <class X, int A, class Row>
INLINE void put_block(const float* pixels, int64_t down, int64_t right, int64_t width, float* dst, int64_t step,
                      Row transform) {
  for (int64_t c = 0; c < width; c += LANES) {
    vfloat half[X::N][A];
    UNROLL for (int j = 0; j < A; j++) {
      vfloat from[A], out[X::N];
      UNROLL for (int i = 0; i < A; i++) from[i] = load(pixels + c + i * down + j * right);
      transform(from, out);
      UNROLL for (int i = 0; i < X::N; i++) half[i][j] = out[i];
    }
    UNROLL for (int i = 0; i < X::N; i++) {
      vfloat out[X::N];
      transform(half[i], out);
      UNROLL for (int j = 0; j < X::N; j++) store(dst + c + (i * X::N + j) * step, out[j]);
    }
  }
}

// Copies a block's channels of a tile that reaches over the border, or whose last vector is not whole, with zeros there.
template <int A>
INLINE void copy_block(const float* map, const Pixels& at, int64_t row, int64_t col, int64_t valid, int64_t width, float* to) {
  for (int i = 0; i < A; i++)
    for (int j = 0; j < A; j++, to += BLOCK) {
      const bool there = row + i >= 0 && row + i < at.h && col + j >= 0 && col + j < at.w;
      const float* pixel = map + (there ? at(row + i, col + j) : 0);
      for (int64_t c = 0; c < width; c += LANES)
        store(to + c, !there ? vfloat{} : valid - c >= LANES ? load(pixel + c) : load_part(pixel + c, valid - c));
    }
}

// Writes one tile of A x A pixels to V or Y, transformed: slot `slot` of the chunk.
template <class X, int A, class Row>
inline void put_tile(const float* map, const Pixels& at, const Blocked& b, int64_t row, int64_t col, int64_t slot, float* to,
              Row transform) {
  alignas(64) float copy[A * A * BLOCK];
  const bool inside = row >= 0 && col >= 0 && row + A <= at.h && col + A <= at.w;
  for (int64_t block = 0; block < b.blocks(); block++) {
    const int64_t width = b.width(block), valid = b.valid(block);
    float* dst = to + b.at(block) + slot * width;
    if (inside && valid == width) {
      put_block<X, A>(map + at(row, col) + block * BLOCK, at.down, at.right, width, dst, b.floats(), transform);
    } else {
      copy_block<A>(map + block * BLOCK, at, row, col, valid, width, copy);
      put_block<X, A>(copy, A * BLOCK, BLOCK, width, dst, b.floats(), transform);
    }
  }
}

template <class X>
inline void put_input(const X& t, const Map& map, const float* x, const Blocked& b, int64_t tile, int64_t slot, float* v) {
  const Place at(map, tile);
  put_tile<X, X::N>(x, Pixels(at, map.d, map.in_h, map.in_w, map.in_pitch), b, at.row - map.pad_h,
                    at.col - map.pad_w, slot, v, [&](const vfloat* d, vfloat* o) { t.inputs(d, o); });
}

template <class X>
inline void put_gradient(const X& t, const Map& map, const float* g, const Blocked& b, int64_t tile, int64_t slot, float* y) {
  const Place at(map, tile);
  put_tile<X, X::M>(g, Pixels(at, map.d, map.out_h, map.out_w, map.out_pitch), b, at.row, at.col, slot, y,
                    [&](const vfloat* d, vfloat* o) { t.outputs_t(d, o); });
}

// Calls run with the transform of F(m x m, r x r); false if there is none.
template <class Run>
inline bool dispatch(const Map& map, const float* table, Run run) {
  if (map.m == 2 && map.r == 3) return run(Transform<1, 2, 3>{table}), true;
  if (map.m == 4 && map.r == 3) return run(Transform<2, 4, 3>{table}), true;
  if (map.m == 6 && map.r == 3) return run(Transform<3, 6, 3>{table}), true;
  if (map.m == 2 && map.r == 5) return run(Transform<2, 2, 5>{table}), true;
  return false;
}
