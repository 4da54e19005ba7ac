// What:    dw = G^T [ sum over tiles of (B^T x B) * (A g A^T) ] G for filters of a convolution, or of several levels.
// Source:  Winograd's minimal filtering, as in winograd.cpp, whose transposes these are.
// Layout:  NHWC and OHWI; tiles and sums as in winograd.hpp, in the workspace of the caller.
// Zeros:   tiles reach over the border, where zeros are multiplied.
// Requires: stride and groups of 1; padding a multiple of the dilation.
// Threads: first tiles, then points x channels. Sums are made of 64 terms at a time, and of 64 such sums, in an order
//          that depends on the shape alone.
#include <vector>

#include "winograd_tiles.hpp"

namespace {

constexpr int64_t TURN_BYTES = 2 << 20, SUM_BYTES = 10 << 20;

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

// The filter of channel out o, whose sums of the first point begin at `sums`; those of the others follow `step` floats on.
template <class X>
void write_filter(const X& t, const Map& map, const float* sums, int64_t step, int64_t o, float* dw) {
  constexpr int R = X::R, N = X::N;
  for (int64_t c = 0; c < map.in_c; c += LANES) {
    vfloat v[N][N], out[R][R];
    for (int i = 0; i < N; i++)
      UNROLL for (int j = 0; j < N; j++) v[i][j] = load(sums + (i * N + j) * step + c);
    both_axes(v, out, [&](const vfloat* d, vfloat* w) { t.filters_t(d, w); });
    for (int i = 0; i < R; i++)
      for (int j = 0; j < R; j++)
        store_part(dw + ((o * R + i) * R + j) * map.in_c + c, out[i][j], map.in_c - c);
  }
}

// The gradient of the filters of one level: what is read and written, and where its sums are.
struct Level {
  Map map;
  const float *x, *g;
  float *dw, *recent, *total;   // total: sums of whole levels of tiles, where there are several
  int64_t chunk, outputs;       // channels out whose sums are made at a time

  // In the place of `workspace`, which is moved on.
  Level(const Map& of, int64_t tiles, const float* inputs, const float* gradients, float* gradient, float*& workspace)
      : map(of), x(inputs), g(gradients), dw(gradient), recent(workspace), chunk(tiles), outputs(part(of, tiles)) {
    const int64_t size = map.points() * sums(map, outputs);
    total = several() ? recent + size : recent;
    workspace = total + size;
  }
  bool several() const { return map.tiles() > LEVEL; }

  // All; of a single chunk of tiles so few that their sums take about SUM_BYTES.
  static int64_t part(const Map& map, int64_t tiles) {
    const int64_t blocks = SUM_BYTES / (4 * map.points() * BLOCK * map.in_pad());
    return map.tiles() > tiles ? map.out_c : std::min(map.out_c, std::max<int64_t>(1, blocks) * BLOCK);
  }
  // Floats of the sums of one point.
  static int64_t sums(const Map& map, int64_t outputs) { return outputs * map.in_pad() + APART; }
};

// Adds the tiles of a chunk, and writes the filters behind the last: for the threads of a parallel region.  v: room for V
// and Y.
template <class X>
void add_chunk(const X& t, const Level& level, int64_t first, float* v) {
  const Map& map = level.map;
  const Blocked in(map.in_c, level.chunk), out(map.out_c, level.chunk);
  const int64_t count = std::min(level.chunk, map.tiles() - first), last = first + count, pad = map.in_pad();
  const int64_t each = Level::sums(map, level.outputs);
  const bool starts = first % LEVEL == 0, ends = last == map.tiles() || last % LEVEL == 0;
  float* y = v + map.points() * in.floats();
#pragma omp for schedule(static)
  for (int64_t k = 0; k < count; k++) {
    put_input(t, map, level.x, in, first + k, k, v);
    put_gradient(t, map, level.g, out, first + k, k, y);
  }
  for (int64_t from = 0; from < map.out_c; from += level.outputs) {
    const int64_t outputs = std::min(level.outputs, map.out_c - from), blocks = ceil_div(outputs, BLOCK);
#pragma omp for schedule(dynamic, 1)
    for (int64_t job = 0; job < map.points() * blocks; job++) {
      const int64_t k = job / blocks, block = job % blocks, at = k * each + block * BLOCK * pad;
      const int64_t whole = from / BLOCK + block;
      float *recent = level.recent, *total = level.total;
      add_products(in, out, whole, count, y + k * out.floats(), v + k * in.floats(), recent + at, !starts);
      if (!ends || !level.several()) continue;
      for (int64_t i = at; i < at + out.valid(whole) * pad; i += LANES)
        store(total + i, first < LEVEL ? load(recent + i) : load(total + i) + load(recent + i));
    }
    if (last < map.tiles()) continue;
#pragma omp for schedule(static)
    for (int64_t o = 0; o < outputs; o++) write_filter(t, map, level.total + o * pad, each, from + o, level.dw);
  }
}

// All levels take turns, a chunk each, so that they find what they read of x in cache.
template <class X>
void wgrad(const X& t, const std::vector<Level>& levels, float* v) {
#pragma omp parallel num_threads(static_cast<int>(levels[0].map.threads))
  {
    bool left = true;
    for (int64_t turn = 0; left; turn++) {
      left = false;
      for (const Level& level : levels) {
        if (turn * level.chunk >= level.map.tiles()) continue;
        left = true;
        add_chunk(t, level, turn * level.chunk, v);
      }
    }
  }
}

// Tiles of a chunk where levels take turns: V, Y and what of x they are made of stay in cache.
int64_t turn_tiles(const Map& map, int64_t count) {
  const int64_t each = 4 * map.points() * (map.in_pad() + map.out_pad()), tiles = wgrad_tiles(map);
  return count == 1 ? tiles : std::min(tiles, 2 * BLOCK * each <= TURN_BYTES ? 2 * BLOCK : BLOCK);
}

}  // namespace

// Sets the number of threads of all levels, and returns the floats of workspace of winograd_wgrad.
EXPORT int64_t winograd_wgrad_floats(int64_t* maps_of, int64_t count) {
  Map* maps = reinterpret_cast<Map*>(maps_of);
  int64_t work = 0, sums = 0, chunk = 0;
  for (int64_t k = 0; k < count; k++) {
    const Map& map = maps[k];
    work += map.tiles() * map.points() * map.in_c * map.out_c;
    const int64_t channels = map.in_pad() + map.out_pad(), tiles = turn_tiles(map, count);
    sums += map.points() * Level::sums(map, Level::part(map, tiles)) * (map.tiles() > LEVEL ? 2 : 1);
    chunk = std::max(chunk, map.points() * (tiles * channels + 2 * APART));
  }
  for (int64_t k = 0; k < count; k++) maps[k].threads = team(work, 100000);
  return sums + chunk;
}

// Of all levels of a contextual convolution, of one m: level k has the channels of g from firsts[k] on.
EXPORT void winograd_wgrad(const int64_t* maps_of, int64_t count, const int64_t* firsts, const float* table,
                           const float* x, const float* g, float* dw, float* workspace) {
  const Map* maps = reinterpret_cast<const Map*>(maps_of);
  std::vector<Level> levels;
  for (int64_t k = 0; k < count; k++) {
    const int64_t row = maps[k].r * maps[k].r * maps[k].in_c;
    levels.emplace_back(maps[k], turn_tiles(maps[k], count), x, g + firsts[k], dw + firsts[k] * row, workspace);
  }
  dispatch(*maps, table, [&](auto t) { wgrad(t, levels, workspace); });
}
