// What:    dw = G^T [ sum over tiles of (B^T x B) * (A g A^T) ] G for filters of a convolution.
// Source:  Winograd's minimal filtering, as in winograd.cpp, whose transposes these are.
// Layout:  NHWC and OHWI; tiles and sums as in winograd.hpp, in the workspace of the caller.
// Zeros:   tiles reach over the border, where zeros are multiplied.
// Requires: stride and groups of 1; padding a multiple of the dilation.
// Threads: first tiles, then points x channels. Sums are made of 64 terms at a time, and of 64 such sums, in an order
//          that depends on the shape alone.
#include "winograd_tiles.hpp"

namespace {

// sums[oc][ic padded] += Y^T V over `tiles` tiles of a chunk, for channels out of one block and one spectral point.
void add_products(const Blocked& in, const Blocked& out, int64_t block, int64_t tiles, const float* y, const float* v,
                  float* sums, bool add) {
  const int64_t outputs = out.valid(block);
  for (int64_t c = 0; c < in.padded; c += TILE_WIDTH) {
    const int64_t width = std::min<int64_t>(TILE_WIDTH, in.padded - c), from = c / BLOCK;
    const int vectors = static_cast<int>(width / LANES), most = most_rows(vectors);
    for (int64_t o = 0; o < outputs; o += most) {
      const int rows = static_cast<int>(std::min<int64_t>(most, outputs - o));
      for (int64_t p = 0; p < tiles; p += BLOCK)
        product_of(vectors, rows, true)(y + out.at(block) + p * out.width(block) + o, out.width(block),
                                        v + in.at(from) + p * in.width(from) + c % BLOCK, in.width(from),
                                        std::min(BLOCK, tiles - p), sums + o * in.padded + c, in.padded, add || p > 0);
    }
  }
}

template <class X>
void write_filter(const X& t, const Map& map, const float* sums, int64_t o, float* dw) {
  constexpr int R = X::R, N = X::N;
  const int64_t pad = map.in_pad(), step = map.sums();
  for (int64_t c = 0; c < map.in_c; c += LANES) {
    vfloat v[N][N], out[R][R];
    for (int i = 0; i < N; i++)
      UNROLL for (int j = 0; j < N; j++) v[i][j] = load(sums + (i * N + j) * step + o * pad + c);
    both_axes(v, out, [&](const vfloat* d, vfloat* w) { t.filters_t(d, w); });
    for (int i = 0; i < R; i++)
      for (int j = 0; j < R; j++)
        store_part(dw + ((o * R + i) * R + j) * map.in_c + c, out[i][j], map.in_c - c);
  }
}

template <class X>
void wgrad(const X& t, const Map& map, const float* x, const float* g, float* dw, float* workspace) {
  const int64_t chunk = wgrad_tiles(map), tiles = map.tiles(), points = map.points();
  const Blocked in(map.in_c, chunk), out(map.out_c, chunk);
  const int64_t each = map.sums(), size = points * each;
  float *recent = workspace, *total = recent + size, *v = tiles > LEVEL ? total + size : total;
  float* y = v + points * in.floats();
#pragma omp parallel num_threads(static_cast<int>(map.threads))
  {
    for (int64_t first = 0; first < tiles; first += chunk) {
      const int64_t count = std::min(chunk, tiles - first);
      const bool starts = first % LEVEL == 0, ends = first + count == tiles || (first + count) % LEVEL == 0;
#pragma omp for schedule(static)
      for (int64_t k = 0; k < count; k++) {
        put_input(t, map, x, in, first + k, k, v);
        put_gradient(t, map, g, out, first + k, k, y);
      }
#pragma omp for schedule(dynamic, 1)
      for (int64_t job = 0; job < points * out.blocks(); job++) {
        const int64_t k = job / out.blocks(), block = job % out.blocks(), at = k * each + block * BLOCK * map.in_pad();
        add_products(in, out, block, count, y + k * out.floats(), v + k * in.floats(), recent + at, !starts);
        if (!ends || tiles <= LEVEL) continue;
        for (int64_t i = at; i < at + out.valid(block) * map.in_pad(); i += LANES)
          store(total + i, first < LEVEL ? load(recent + i) : load(total + i) + load(recent + i));
      }
    }
#pragma omp for schedule(static)
    for (int64_t o = 0; o < map.out_c; o++) write_filter(t, map, tiles > LEVEL ? total : recent, o, dw);
  }
}

}  // namespace

EXPORT void winograd_wgrad(const int64_t* map_of, const float* table, const float* x, const float* g, float* dw,
                           float* workspace) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  dispatch(map, table, [&](auto t) { wgrad(t, map, x, g, dw, workspace); });
}
