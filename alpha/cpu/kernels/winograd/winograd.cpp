// What:    y = A^T [ sum over ic of (G w G^T) * (B^T x B) ] A for tiles of y, the same for dgrad, with turned filters, and
//          dw = G^T [ sum over tiles of (B^T x B) * (A g A^T) ] G.
// Source:  Winograd's minimal filtering; points and matrices in alpha/ops/algorithms/tile_transform.py.
// Layout:  NHWC and OHWI; tiles and filters as in winograd.hpp, in the workspace of the caller.
// Zeros:   tiles reach over the border, where zeros are multiplied.
// Requires: stride and groups of 1; padding a multiple of the dilation.
// Threads: forward, a chunk of tiles per job, whose V and M stay in cache; wgrad, first tiles, then points x channels.
//          Sums are made of 64 terms at a time, in an order that depends on the shape alone.
#include "winograd.hpp"
#include "winograd_transform.hpp"

extern "C" int omp_get_thread_num();

namespace {

constexpr int64_t CACHE_BYTES = 1 << 20, FEW_TILES = 48, MANY_TILES = 96, LARGE_FILTERS = 4 << 20;
constexpr int64_t WGRAD_BYTES = 8 << 20, WGRAD_MOST_BYTES = 32 << 20;

// Tiles of a chunk of the forward pass.
int64_t forward_tiles(const Map& map) {
  const int64_t each = 4 * map.points() * (map.in_pad() + map.out_pad());
  const bool large = 4 * map.points() * map.in_c * map.out_pad() > LARGE_FILTERS;
  const int64_t fits = std::max(CACHE_BYTES / each, large ? MANY_TILES : FEW_TILES);
  const int64_t share = round_up(ceil_div(map.tiles(), map.threads), 12);
  return std::min({fits / 12 * 12, share, int64_t(480)});
}

// Tiles of a chunk of wgrad: a power of two of blocks, so that levels end with chunks.
int64_t wgrad_tiles(const Map& map) {
  const int64_t each = 4 * map.points() * (map.in_pad() + map.out_pad());
  const bool large = 4 * map.points() * map.in_c * map.out_c > LARGE_FILTERS;
  int64_t tiles = BLOCK;
  while (tiles < LEVEL && tiles < map.tiles() && 2 * tiles * each <= (large ? WGRAD_MOST_BYTES : WGRAD_BYTES)) tiles *= 2;
  return tiles;
}

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
void copy_block(const float* map, const Pixels& at, int64_t row, int64_t col, int64_t valid, int64_t width, float* to) {
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
void put_tile(const float* map, const Pixels& at, const Blocked& b, int64_t row, int64_t col, int64_t slot, float* to,
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
void put_input(const X& t, const Map& map, const float* x, const Blocked& b, int64_t tile, int64_t slot, float* v) {
  const Place at(map, tile);
  put_tile<X, X::N>(x, Pixels(at, map.d, map.in_h, map.in_w, map.in_pitch), b, at.row - map.pad_h,
                    at.col - map.pad_w, slot, v, [&](const vfloat* d, vfloat* o) { t.inputs(d, o); });
}

template <class X>
void put_gradient(const X& t, const Map& map, const float* g, const Blocked& b, int64_t tile, int64_t slot, float* y) {
  const Place at(map, tile);
  put_tile<X, X::M>(g, Pixels(at, map.d, map.out_h, map.out_w, map.out_pitch), b, at.row, at.col, slot, y,
                    [&](const vfloat* d, vfloat* o) { t.outputs_t(d, o); });
}

// U for LANES channels out from `o` on, and channels in [first, last).
template <class X>
void put_filters(const X& t, const Map& map, const float* w, bool turned, int64_t o, int64_t first, int64_t last,
                 float* u) {
  constexpr int R = X::R, N = X::N;
  const int64_t panel = o / TILE_WIDTH * TILE_WIDTH, left = map.out_c - o, taps = R * R;
  const int64_t width = std::min<int64_t>(TILE_WIDTH, map.out_pad() - panel), step = map.filters();
  float* dst = u + panel * map.in_c + (o - panel);
  alignas(64) float rows[R * R][LANES][LANES];
  for (int64_t i = first; i < last; i += LANES) {
    const int64_t count = std::min<int64_t>(LANES, last - i);
    for (int64_t tap = 0; tap < taps; tap++) {
      const int64_t from = turned ? taps - 1 - tap : tap;
      if (turned) {
        for (int64_t k = 0; k < count; k++)
          store(rows[tap][k], load_part(w + ((i + k) * taps + from) * map.out_c + o, left));
      } else if (count == LANES) {
        transpose(w + (o * taps + from) * map.in_c + i, taps * map.in_c, left, rows[tap][0], LANES);
      } else {
        for (int64_t k = 0; k < count; k++)
          for (int64_t l = 0; l < LANES; l++)
            rows[tap][k][l] = l < left ? w[((o + l) * taps + from) * map.in_c + i + k] : 0;
      }
    }
    for (int64_t k = 0; k < count; k++) {
      vfloat d[R][R], v[N][R], out[N];
      for (int a = 0; a < R; a++) UNROLL for (int b = 0; b < R; b++) d[a][b] = load(rows[a * R + b][k]);
      for (int b = 0; b < R; b++) {
        vfloat from[R];
        UNROLL for (int a = 0; a < R; a++) from[a] = d[a][b];
        t.filters(from, out);
        UNROLL for (int a = 0; a < N; a++) v[a][b] = out[a];
      }
      for (int a = 0; a < N; a++) {
        t.filters(v[a], out);
        UNROLL for (int b = 0; b < N; b++) store(dst + (a * N + b) * step + (i + k) * width, out[b]);
      }
    }
  }
}

// U, all of it: for the threads of a parallel region.
template <class X>
void put_all_filters(const X& t, const Map& map, const float* w, bool turned, float* u) {
  const int64_t vectors = map.out_pad() / LANES;
#pragma omp for schedule(static)
  for (int64_t job = 0; job < vectors * ceil_div(map.in_c, BLOCK); job++) {
    const int64_t first = job / vectors * BLOCK;
    put_filters(t, map, w, turned, job % vectors * LANES, first, std::min(map.in_c, first + BLOCK), u);
  }
}

// M = V U for `tiles` tiles of a chunk and one spectral point.
void multiply(const Blocked& in, const Blocked& out, int64_t tiles, const float* v, const float* u, float* m) {
  for (int64_t o = 0; o < out.padded; o += TILE_WIDTH) {
    const int64_t width = std::min<int64_t>(TILE_WIDTH, out.padded - o), block = o / BLOCK;
    const int vectors = static_cast<int>(width / LANES), most = most_rows(vectors);
    float* to = m + out.at(block) + o % BLOCK;
    for (int64_t c = 0; c < in.blocks(); c++) {
      const float* panel = u + o * in.count + c * BLOCK * width;
      for (int64_t p = 0; p < tiles; p += most) {
        const int rows = static_cast<int>(std::min<int64_t>(most, tiles - p));
        product_of(vectors, rows, false)(v + in.at(c) + p * in.width(c), in.width(c), panel, width, in.valid(c),
                                         to + p * out.width(block), out.width(block), c > 0);
      }
    }
  }
}

struct Forward {
  const float *x, *w, *bias, *filters;  // filters: U, made before; or null
  float *y, *workspace;
  bool relu, turned, accumulate;        // accumulate: y += the result, before relu
  bool halved;                          // y has the largest of each 2 x 2 outputs: tiles hold whole windows, M is even
};

INLINE vfloat larger(vfloat a, vfloat b) { return (b > a) | (b != b) ? b : a; }

// The largest of each 2 x 2 outputs of a tile and channels [channel, channel + left), plus shift, then relu.
template <int M>
INLINE void write_halved(const vfloat (&out)[M][M], const Map& map, const Place& at, int64_t channel, int64_t left,
                         vfloat shift, float* y) {
  const int64_t height = map.out_h / 2, width = map.out_w / 2;
  for (int64_t i = 0; i < std::min<int64_t>(M / 2, height - at.row / 2); i++)
    for (int64_t j = 0; j < std::min<int64_t>(M / 2, width - at.col / 2); j++) {
      const vfloat above = larger(out[2 * i][2 * j], out[2 * i][2 * j + 1]);
      const vfloat below = larger(out[2 * i + 1][2 * j], out[2 * i + 1][2 * j + 1]);
      float* pixel = y + ((at.image * height + at.row / 2 + i) * width + at.col / 2 + j) * map.out_c + channel;
      store_part(pixel, relu(larger(above, below) + shift), left);
    }
}

// The outputs of a tile that lies in the map, and whole vectors: what write_output does, without a look at each pixel.
template <int M>
INLINE void write_whole(vfloat (&out)[M][M], vfloat shift, const Pixels& to, float* y, const Forward& f) {
  UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < M; j++) out[i][j] += shift;
  if (f.accumulate) {
    UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < M; j++)
      out[i][j] += load(y + i * to.down + j * to.right);
  }
  if (f.relu) {
    UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < M; j++) out[i][j] = relu(out[i][j]);
  }
  UNROLL for (int i = 0; i < M; i++) UNROLL for (int j = 0; j < M; j++) store(y + i * to.down + j * to.right, out[i][j]);
}

template <class X>
void write_output(const X& t, const Map& map, const Blocked& b, int64_t tile, int64_t slot, const float* m,
                  const Forward& f) {
  constexpr int M = X::M, N = X::N;
  const Place at(map, tile);
  const Pixels to(at, map.d, map.out_h, map.out_w, map.out_pitch);
  const int64_t rows = std::min<int64_t>(M, to.h - at.row), cols = std::min<int64_t>(M, to.w - at.col);
  for (int64_t block = 0; block < b.blocks(); block++)
    for (int64_t c = 0; c < b.width(block); c += LANES) {
      const float* src = m + b.at(block) + slot * b.width(block) + c;
      const int64_t channel = block * BLOCK + c, left = b.valid(block) - c, step = b.floats();
      vfloat half[M][N], out[M][M];
      UNROLL for (int j = 0; j < N; j++) {
        vfloat from[N], column[M];
        UNROLL for (int i = 0; i < N; i++) from[i] = load(src + (i * N + j) * step);
        t.outputs(from, column);
        UNROLL for (int i = 0; i < M; i++) half[i][j] = column[i];
      }
      UNROLL for (int i = 0; i < M; i++) t.outputs(half[i], out[i]);
      const vfloat shift = f.bias ? load_part(f.bias + channel, left) : vfloat{};
      if (f.halved) {
        write_halved(out, map, at, channel, left, shift, f.y);
      } else if (rows == M && cols == M && left >= LANES) {
        write_whole(out, shift, to, f.y + to(at.row, at.col) + channel, f);
      } else {
        for (int i = 0; i < rows; i++)
          for (int j = 0; j < cols; j++) {
            float* pixel = f.y + to(at.row + i, at.col + j) + channel;
            vfloat sum = out[i][j] + shift;
            if (f.accumulate) sum += load_part(pixel, left);
            store_part(pixel, f.relu ? relu(sum) : sum, left);
          }
      }
    }
}

template <class X>
void forward(const X& t, const Map& map, const Forward& f) {
  const int64_t chunk = forward_tiles(map), tiles = map.tiles(), points = map.points();
  const Blocked in(map.in_c, chunk), out(map.out_c, chunk);
  const int64_t each = points * (in.floats() + out.floats());
  const float* filters = f.filters ? f.filters : f.workspace;
  float* chunks = f.workspace + (f.filters ? 0 : points * map.filters());
#pragma omp parallel num_threads(static_cast<int>(map.threads))
  {
    if (!f.filters) put_all_filters(t, map, f.w, f.turned, f.workspace);
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < ceil_div(tiles, chunk); job++) {
      float* v = chunks + each * omp_get_thread_num();
      float* m = v + points * in.floats();
      const int64_t first = job * chunk, count = std::min(chunk, tiles - first);
      for (int64_t k = 0; k < count; k++) put_input(t, map, f.x, in, first + k, k, v);
      for (int64_t k = 0; k < points; k++)
        multiply(in, out, count, v + k * in.floats(), filters + k * map.filters(), m + k * out.floats());
      for (int64_t k = 0; k < count; k++) write_output(t, map, out, first + k, k, m, f);
    }
  }
}

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

// Calls run with the transform of F(m x m, r x r); false if there is none.
template <class Run>
bool dispatch(const Map& map, const float* table, Run run) {
  if (map.m == 2 && map.r == 3) return run(Transform<1, 2, 3>{table}), true;
  if (map.m == 4 && map.r == 3) return run(Transform<2, 4, 3>{table}), true;
  if (map.m == 6 && map.r == 3) return run(Transform<3, 6, 3>{table}), true;
  if (map.m == 2 && map.r == 5) return run(Transform<2, 2, 5>{table}), true;
  return false;
}

}  // namespace

EXPORT int vector_lanes() { return LANES; }

// Sets the number of threads, and returns the floats of workspace that the next two need with it.
EXPORT int64_t winograd_floats(int64_t* map_of, int gradient) {
  Map& map = *reinterpret_cast<Map*>(map_of);
  map.threads = team(map.tiles() * map.points() * map.in_c * map.out_c, 100000);
  const int64_t channels = map.in_pad() + map.out_pad(), points = map.points();
  if (gradient)
    return points * (map.sums() * (map.tiles() > LEVEL ? 2 : 1) + wgrad_tiles(map) * channels + 2 * APART);
  return points * (map.filters() + (forward_tiles(map) * channels + 2 * APART) * map.threads);
}

// If `accumulate`, y += before the relu.
EXPORT void winograd_forward(const int64_t* map_of, const float* table, const float* x, const float* w,
                             const float* bias, float* y, float* workspace, int relu, int turned, int accumulate) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  const Forward f = {x, w, bias, nullptr, y, workspace, relu != 0, turned != 0, accumulate != 0, false};
  dispatch(map, table, [&](auto t) { forward(t, map, f); });
}

// Floats of U.
EXPORT int64_t winograd_filter_floats(const int64_t* map_of) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  return map.points() * map.filters();
}

EXPORT void winograd_filters(const int64_t* map_of, const float* table, const float* w, float* filters) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
#pragma omp parallel num_threads(static_cast<int>(map.threads))
  dispatch(map, table, [&](auto t) { put_all_filters(t, map, w, false, filters); });
}

// As winograd_forward, with filters that winograd_filters has made: the workspace is smaller by them.
EXPORT void winograd_run(const int64_t* map_of, const float* table, const float* x, const float* filters,
                         const float* bias, float* y, float* workspace, int relu, int accumulate) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  const Forward f = {x, nullptr, bias, filters, y, workspace, relu != 0, false, accumulate != 0, false};
  dispatch(map, table, [&](auto t) { forward(t, map, f); });
}

// As winograd_run, with relu, of which y has the largest of each 2 x 2 outputs: (n, out_h / 2, out_w / 2, out_c).
EXPORT void winograd_pool(const int64_t* map_of, const float* table, const float* x, const float* filters,
                          const float* bias, float* y, float* workspace) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  const Forward f = {x, nullptr, bias, filters, y, workspace, true, false, false, true};
  dispatch(map, table, [&](auto t) { forward(t, map, f); });
}

EXPORT void winograd_wgrad(const int64_t* map_of, const float* table, const float* x, const float* g, float* dw,
                           float* workspace) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  dispatch(map, table, [&](auto t) { wgrad(t, map, x, g, dw, workspace); });
}
