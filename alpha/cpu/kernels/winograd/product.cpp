// What:    tiles of matrix products: rows x channels in by channels in x channels out, and, for the gradient of filters,
//          channels out x rows by rows x channels in. For a spectral point of Winograd's convolution rows are tiles, for
//          filters of one tap pixels.
// Layout:  see product.hpp; operands are packed by the caller.   Zeros: none are skipped.
// Tile:    up to ACCUMULATORS vectors, rows x up to TILE_VECTORS vectors; sums start at 0.
#include <array>
#include <utility>

#include "product.hpp"

namespace {

constexpr int tile_rows(int vectors) { return std::min(12, ACCUMULATORS / vectors); }

template <bool WGRAD, int P, int V>
__attribute__((noinline)) void tile(const float* in, int64_t ld_in, const float* panel, int64_t ld_panel, int64_t count,
                                    float* out, int64_t ld_out, bool add) {
  vfloat acc[P][V] = {};
  for (int64_t k = 0; k < count; k++, panel += ld_panel) {
    vfloat weight[V];
    UNROLL for (int v = 0; v < V; v++) weight[v] = load(panel + v * LANES);
    UNROLL for (int p = 0; p < P; p++) {
      const vfloat value = broadcast(WGRAD ? in[k * ld_in + p] : in[p * ld_in + k]);
      UNROLL for (int v = 0; v < V; v++) acc[p][v] += value * weight[v];
    }
  }
  UNROLL for (int p = 0; p < P; p++)
    UNROLL for (int v = 0; v < V; v++) {
      float* to = out + p * ld_out + v * LANES;
      store(to, add ? load(to) + acc[p][v] : acc[p][v]);
    }
}

using Row = std::array<Product, ACCUMULATORS + 1>;

template <bool WGRAD, int V, int... P>
constexpr Row tiles_of(std::integer_sequence<int, P...>) {
  return {nullptr, tile<WGRAD, P + 1, V>...};
}

template <bool WGRAD, int... V>
constexpr std::array<Row, TILE_VECTORS> all_tiles(std::integer_sequence<int, V...>) {
  return {tiles_of<WGRAD, V + 1>(std::make_integer_sequence<int, tile_rows(V + 1)>())...};
}

constexpr auto FORWARD = all_tiles<false>(std::make_integer_sequence<int, TILE_VECTORS>());
constexpr auto GRADIENT = all_tiles<true>(std::make_integer_sequence<int, TILE_VECTORS>());

}  // namespace

int most_rows(int vectors) { return tile_rows(vectors); }

Product product_of(int vectors, int rows, bool wgrad) { return (wgrad ? GRADIENT : FORWARD)[vectors - 1][rows]; }
