// What:    products of matrices, many of equal shape: y = a b^T (kind 0), a b (1), a^T b (2), each (m, n), sums over `depth`
// Layout:  matrices are contiguous; from one to the next there are so many floats, 0 where one serves all.
// Tile:    DEPTH rows of b are packed at a time, [block of TILE_WIDTH columns][row][column], and stay in the second-level
//          cache while tiles of product.cpp meet them. Sums over DEPTH rows start at 0 and are added in order.
// Threads: a job is a matrix, or part of its rows where there are few: no sum is cut.
#include "../winograd/product.hpp"

namespace {

constexpr int64_t DEPTH = 192, PANEL_COLUMNS = 1024, LEAST_ROWS = 48;
constexpr int64_t ALONE_BELOW = 400000;  // multiply-adds

struct Matrices {
  int64_t m, n, depth;
  int kind;

  // panel[block][row][column]: `count` rows of b from `row` on, columns [first, first + columns); the last block is filled
  // up with zeros.
  void pack(const float* b, int64_t row, int64_t count, int64_t first, int64_t columns, float* panel) const {
    for (int64_t c = 0; c < columns; c += TILE_WIDTH, panel += count * TILE_WIDTH) {
      const int64_t left = columns - c, vectors = std::min<int64_t>(TILE_VECTORS, ceil_div(left, LANES));
      for (int64_t v = 0; v < vectors; v++) {
        const int64_t valid = left - v * LANES, column = first + c + v * LANES;
        float* to = panel + v * LANES;
        if (kind) {
          for (int64_t i = 0; i < count; i++) store(to + i * TILE_WIDTH, load_part(b + (row + i) * n + column, valid));
          continue;
        }
        const float* from = b + column * depth + row;
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES) transpose(from + i, depth, valid, to + i * TILE_WIDTH, TILE_WIDTH);
        for (; i < count; i++)
          for (int64_t j = 0; j < LANES; j++) to[i * TILE_WIDTH + j] = j < valid ? from[j * depth + i] : 0;
      }
    }
  }

  // Rows [from, to) of a block of up to TILE_WIDTH columns; y[.][column ..] = or +=
  void block(const float* a, int64_t row, int64_t count, const float* panel, int64_t from, int64_t to, int64_t columns,
             float* y, bool add) const {
    const int vectors = static_cast<int>(std::min<int64_t>(TILE_VECTORS, ceil_div(columns, LANES)));
    const int64_t tiles = ceil_div(to - from, most_rows(vectors));
    const bool whole = columns >= vectors * LANES;
    for (int64_t t = 0; t < tiles; t++) {
      const int64_t i = from + part_start(to - from, t, tiles), rows = from + part_start(to - from, t + 1, tiles) - i;
      const Product run = product_of(vectors, static_cast<int>(rows), kind == 2);
      const float* in = kind == 2 ? a + row * m + i : a + i * depth + row;
      const int64_t ld = kind == 2 ? m : depth;
      if (whole) {
        run(in, ld, panel, TILE_WIDTH, count, y + i * n, n, add);
        continue;
      }
      float edge[ACCUMULATORS * LANES];
      run(in, ld, panel, TILE_WIDTH, count, edge, vectors * LANES, false);
      for (int64_t p = 0; p < rows; p++)
        for (int64_t c = 0; c < columns; c += LANES) {
          float* out = y + (i + p) * n + c;
          const vfloat sum = load(edge + p * vectors * LANES + c);
          store_part(out, add ? load_part(out, columns - c) + sum : sum, columns - c);
        }
    }
  }

  void run(const float* a, const float* b, float* y, int64_t from, int64_t to) const {
    const int64_t chunks = std::max<int64_t>(1, ceil_div(depth, DEPTH));
    float* panel = scratch(ceil_div(depth, chunks) * round_up(std::min(n, PANEL_COLUMNS), TILE_WIDTH));
    for (int64_t first = 0; first < n; first += PANEL_COLUMNS) {
      const int64_t columns = std::min(PANEL_COLUMNS, n - first);
      for (int64_t k = 0; k < chunks; k++) {
        const int64_t row = part_start(depth, k, chunks), count = part_start(depth, k + 1, chunks) - row;
        pack(b, row, count, first, columns, panel);
        for (int64_t c = 0; c < columns; c += TILE_WIDTH)
          block(a, row, count, panel + c * count, from, to, std::min<int64_t>(TILE_WIDTH, columns - c), y + first + c,
                k > 0);
      }
    }
  }
};

}  // namespace

EXPORT void matrix_products(const float* a, const float* b, float* y, int64_t a_step, int64_t b_step, int64_t count,
                            int64_t m, int64_t n, int64_t depth, int kind) {
  const Matrices all{m, n, depth, kind};
  const int threads = team(count * m * n * depth, ALONE_BELOW);
  const int64_t parts = std::max<int64_t>(1, std::min(ceil_div(2 * threads, count), m / LEAST_ROWS));
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t job = 0; job < count * parts; job++) {
    const int64_t k = job / parts, part = job % parts;
    all.run(a + k * a_step, b + k * b_step, y + k * m * n, part_start(m, part, parts), part_start(m, part + 1, parts));
  }
}
