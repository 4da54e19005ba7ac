// Gradients of pools as gathers: a thread takes a tile of input pixels, and reads each window that holds any of them once.
#pragma once
#include "pool.cuh"

constexpr int TILE = 2;  // pixels of x along an axis that a thread of a gradient takes

// What adds up each element of a packet, in a short chain, or one that is alone
template <int V> using Sum = std::conditional_t<V == 1, ExactSum, ShortSum>;

// The TILE x TILE pixels of x from (row, column) on, and the windows that hold each row and each column of them.
struct Tile {
  int row, column;
  Range rows[TILE], columns[TILE];
  INLINE Tile(const Pool &p, const Site &s) : row(s.row * TILE), column(s.column * TILE) {
    UNROLL for (int t = 0; t < TILE; t++) {
      rows[t] = p.h.covering(min(row + t, p.h.in.n - 1));
      columns[t] = p.w.covering(min(column + t, p.w.in.n - 1));
    }
  }
  // f(row, column) for each window that holds any of the pixels
  template <class F> INLINE void for_each_window(const F &f) const {
    UNROLL_BY(1) for (int row = rows[0].first; row < rows[TILE - 1].last; row++)
      UNROLL_BY(1) for (int column = columns[0].first; column < columns[TILE - 1].last; column++) f(row, column);
  }
  // f(t, offset) for each of the pixels that the map has
  template <class F> INLINE void for_each_pixel(const Pool &p, const F &f) const {
    UNROLL for (int t = 0; t < TILE * TILE; t++)
      if (row + t / TILE < p.h.in.n && column + t % TILE < p.w.in.n)
        f(t, p.input_at(row + t / TILE, column + t % TILE));
  }
};

// dx = the sums of each pixel over windows: add(sum, tile, at, row, column) adds what window (row, column), whose
// elements of g begin at `at`, has for the pixels of a tile; finish(total) is the last step.
template <int V, class Dx, class Add, class Finish>
INLINE void pool_backward(const Pool &p, int k, Dx &&dx, const Add &add, const Finish &finish) {
  const Site s = site_of<V>(p, k);
  const Tile tile(p, s);
  UNROLL_BY(1) for (int image = s.image; image < p.images; image += p.apart) {
    const i64 from = p.output_image(image) + s.c;
    Sum<V> sum[TILE * TILE][V] = {};
    tile.for_each_window([&](int row, int column) { add(sum, tile, from + p.output_at(row, column), row, column); });
    const i64 to = p.input_image(image) + s.c;
    tile.for_each_pixel(p, [&](int t, int at) {
      float total[V];
      UNROLL for (int l = 0; l < V; l++) total[l] = sum[t][l].value();
      finish(total);
      dx.put(total, to + at);
    });
  }
}

// dx = sum of g over the windows that took their maximum at this pixel.
template <int V, class G, class Dx, class Index>
INLINE void max_pool_backward(const Pool &p, int k, const G &g, Dx &&dx, const Index *index) {
  pool_backward<V>(p, k, dx, [&](Sum<V> (&sum)[TILE * TILE][V], const Tile &tile, i64 at, int row, int column) {
    const Naming<Index> name(p, row, column);
    const typename G::Piece share = g.load(at);
    const Lanes<V, Index> where = load<V>(index + at);
    UNROLL for (int t = 0; t < TILE * TILE; t++) {
      const int down = t / TILE, right = t % TILE, here = name(tile.row + down, tile.column + right);
      if (sizeof(Index) > 1 || (tile.rows[down].holds(row) && tile.columns[right].holds(column)))
        UNROLL for (int l = 0; l < V; l++)
          if (where.v[l] == here) sum[t][l].add(g.at(share, l));
    }
  }, [](float (&)[V]) {});
}
