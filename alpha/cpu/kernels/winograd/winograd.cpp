// What:    y = A^T [ sum over ic of (G w G^T) * (B^T x B) ] A for tiles of y, the same for dgrad, with turned filters.
// Source:  Winograd's minimal filtering; points and matrices in alpha/ops/algorithms/tile_transform.py.
// Layout:  NHWC and OHWI; tiles and filters as in winograd.hpp, in the workspace of the caller.
// Zeros:   tiles reach over the border, where zeros are multiplied.
// Requires: stride and groups of 1; padding a multiple of the dilation.
// Threads: a chunk of tiles per job, whose V and M stay in cache. Of several levels a job has a few images, and all
//          levels of them: x is read from memory once, and what levels add to dx stays in cache. Sums are made of 64
//          terms at a time, in an order that depends on the shape alone.
#include <vector>

#include "winograd_tiles.hpp"

extern "C" int omp_get_thread_num();

namespace {

constexpr int64_t CACHE_BYTES = 1 << 20, FEW_TILES = 48, MANY_TILES = 96;

// Tiles of a chunk of the forward pass.
int64_t forward_tiles(const Map& map) {
  const int64_t each = 4 * map.points() * (map.in_pad() + map.out_pad());
  const bool large = 4 * map.points() * map.in_c * map.out_pad() > LARGE_FILTERS;
  const int64_t fits = std::max(CACHE_BYTES / each, large ? MANY_TILES : FEW_TILES);
  const int64_t share = round_up(ceil_div(map.tiles(), map.threads), 12);
  return std::min({fits / 12 * 12, share, int64_t(480)});
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

// Tiles [first, first + count) of y.  v: room for V and M of a chunk.
template <class X>
void forward_chunk(const X& t, const Map& map, const Forward& f, const Blocked& in, const Blocked& out,
                   const float* filters, int64_t first, int64_t count, float* v) {
  const int64_t points = map.points();
  float* m = v + points * in.floats();
  for (int64_t k = 0; k < count; k++) put_input(t, map, f.x, in, first + k, k, v);
  for (int64_t k = 0; k < points; k++)
    multiply(in, out, count, v + k * in.floats(), filters + k * map.filters(), m + k * out.floats());
  for (int64_t k = 0; k < count; k++) write_output(t, map, out, first + k, k, m, f);
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
      const int64_t first = job * chunk;
      forward_chunk(t, map, f, in, out, filters, first, std::min(chunk, tiles - first),
                    chunks + each * omp_get_thread_num());
    }
  }
}

// Levels of a contextual convolution, of one m; each with its operands, whose workspace has its U.
struct Levels {
  const Map* maps;
  int64_t count;

  int64_t threads() const { return maps->threads; }
  int64_t filters() const {
    int64_t floats = 0;
    for (int64_t k = 0; k < count; k++) floats += maps[k].points() * maps[k].filters();
    return floats;
  }
  int64_t chunk() const {  // floats of V and M, for each thread
    int64_t floats = 0;
    for (int64_t k = 0; k < count; k++) {
      const Map& map = maps[k];
      floats = std::max(floats, map.points() * (forward_tiles(map) * (map.in_pad() + map.out_pad()) + 2 * APART));
    }
    return floats;
  }
  // Images of a job: so many that each level has tiles for a chunk. 0: levels go one after the other, as filters do not
  // fit the cache, or there are too few jobs.
  int64_t images() const {
    int64_t least = maps->tiles() / maps->n;
    for (int64_t k = 1; k < count; k++) least = std::min(least, maps[k].tiles() / maps->n);
    const int64_t images = ceil_div(FEW_TILES, least), jobs = ceil_div(maps->n, images);
    const bool even = jobs % threads() == 0 || jobs >= 4 * threads();
    return even && filters() * 4 <= LARGE_FILTERS ? images : 0;
  }
};

template <class X>
void forward_levels(const X& t, const Levels& levels, const Forward* forwards, float* chunks) {
  const int64_t images = levels.images(), n = levels.maps->n, each = levels.chunk();
#pragma omp parallel num_threads(static_cast<int>(levels.threads()))
  {
    for (int64_t k = 0; k < levels.count; k++)
      put_all_filters(t, levels.maps[k], forwards[k].w, forwards[k].turned, forwards[k].workspace);
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < ceil_div(n, images); job++)
      for (int64_t k = 0; k < levels.count; k++) {
        const Map& map = levels.maps[k];
        const int64_t of_image = map.tiles() / n, begin = job * images * of_image;
        const int64_t end = std::min(n, (job + 1) * images) * of_image, most = forward_tiles(map);
        const int64_t chunk = std::min(most, round_up(ceil_div(end - begin, ceil_div(end - begin, most)), 12));
        const Blocked in(map.in_c, chunk), out(map.out_c, chunk);
        for (int64_t first = begin; first < end; first += chunk)
          forward_chunk(t, map, forwards[k], in, out, forwards[k].workspace, first, std::min(chunk, end - first),
                        chunks + each * omp_get_thread_num());
      }
  }
}

}  // namespace

EXPORT int vector_lanes() { return LANES; }

EXPORT int made_by_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return 0;
#endif
}

// Sets the number of threads, and returns the floats of workspace that the next one needs with it.
EXPORT int64_t winograd_floats(int64_t* map_of) {
  Map& map = *reinterpret_cast<Map*>(map_of);
  map.threads = team(map.tiles() * map.points() * map.in_c * map.out_c, 100000);
  const int64_t channels = map.in_pad() + map.out_pad();
  return map.points() * (map.filters() + (forward_tiles(map) * channels + 2 * APART) * map.threads);
}

// If `accumulate`, y += before the relu.
EXPORT void winograd_forward(const int64_t* map_of, const float* table, const float* x, const float* w,
                             const float* bias, float* y, float* workspace, int relu, int turned, int accumulate) {
  const Map& map = *reinterpret_cast<const Map*>(map_of);
  const Forward f = {x, w, bias, nullptr, y, workspace, relu != 0, turned != 0, accumulate != 0, false};
  dispatch(map, table, [&](auto t) { forward(t, map, f); });
}

// Sets the number of threads of all levels, and returns the floats of workspace of winograd_levels.
EXPORT int64_t winograd_levels_floats(int64_t* maps_of, int64_t count) {
  Map* maps = reinterpret_cast<Map*>(maps_of);
  int64_t work = 0;
  for (int64_t k = 0; k < count; k++) work += maps[k].tiles() * maps[k].points() * maps[k].in_c * maps[k].out_c;
  for (int64_t k = 0; k < count; k++) maps[k].threads = team(work, 100000);
  const Levels levels = {maps, count};
  return levels.filters() + levels.chunk() * levels.threads();
}

// All levels of a contextual convolution, of one m: level k has the channels from firsts[k] on. y is its output, of dgrad
// (turned) dx, to which each level but the first adds.
EXPORT void winograd_levels(const int64_t* maps_of, int64_t count, const int64_t* firsts, const float* table,
                            const float* x, const float* w, const float* bias, float* y, float* workspace, int relu,
                            int turned) {
  const Levels levels = {reinterpret_cast<const Map*>(maps_of), count};
  std::vector<Forward> forwards;
  float* filters = workspace;
  for (int64_t k = 0; k < count; k++) {
    const Map& map = levels.maps[k];
    const int64_t first = firsts[k], row = map.r * map.r * (turned ? map.out_c : map.in_c);
    forwards.push_back({turned ? x + first : x, w + first * row, bias ? bias + first : nullptr, nullptr,
                        turned ? y : y + first, filters, relu != 0, turned != 0, turned && k > 0, false});
    filters += map.points() * map.filters();
  }
  if (levels.images()) {
    dispatch(*levels.maps, table, [&](auto t) { forward_levels(t, levels, forwards.data(), filters); });
    return;
  }
  for (int64_t k = 0; k < count; k++) {
    const Map& map = levels.maps[k];
    forwards[k].workspace = workspace;
    dispatch(map, table, [&](auto t) { forward(t, map, forwards[k]); });
  }
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

