// The register tiles of conv.cpp: pixels of a class by vectors of channels out, over runs of inputs.
#pragma once

#include <array>
#include <utility>

#include "conv.hpp"

namespace {

constexpr int64_t LINE = 16;  // floats of a line of a cache

struct Epilogue {
  const float* bias;
  bool accumulate, relu;
};

// Of AVX2's tiles of one vector 10 pixels are faster than 12, whose addresses do not fit the registers.
constexpr int tile_pixels(int vectors) { return std::min(LANES == 8 ? 10 : 12, ACCUMULATORS / vectors); }

template <int P, int V>
INLINE void start_tile(vfloat (&acc)[P][V], int64_t valid, const Epilogue& e) {
  UNROLL for (int v = 0; v < V; v++) {
    const vfloat bias = e.bias ? load_part(e.bias + v * LANES, valid - v * LANES) : vfloat{};
    UNROLL for (int p = 0; p < P; p++) acc[p][v] = bias;
  }
}

template <int P, int V>
INLINE void finish_tile(vfloat (&acc)[P][V], float* const* y, int64_t valid, const Epilogue& e) {
  if (e.accumulate) {
    UNROLL for (int p = 0; p < P; p++)
      UNROLL for (int v = 0; v < V; v++) acc[p][v] += load_part(y[p] + v * LANES, valid - v * LANES);
  }
  if (e.relu) {
    UNROLL for (int p = 0; p < P; p++) UNROLL for (int v = 0; v < V; v++) acc[p][v] = relu(acc[p][v]);
  }
  if (valid == V * LANES) {
    UNROLL for (int p = 0; p < P; p++) UNROLL for (int v = 0; v < V; v++) store(y[p] + v * LANES, acc[p][v]);
  } else {
    UNROLL for (int p = 0; p < P; p++)
      UNROLL for (int v = 0; v < V; v++) store_part(y[p] + v * LANES, acc[p][v], valid - v * LANES);
  }
}

// acc[P pixels][V vectors] over all runs: one vector of weights meets P broadcast inputs. Where a 1x1 filter has no more
// outputs than inputs, memory sets the pace, so what the next tile reads is fetched meanwhile, `ahead` floats on.
template <int P, int V>
__attribute__((noinline)) void tile(const float* const* x, float* const* y, const Run* runs, int64_t n_runs,
                                    const float* panel, int64_t valid, const Epilogue& e, int64_t ahead) {
  vfloat acc[P][V];
  start_tile<P, V>(acc, valid, e);
  for (int64_t r = 0; r < n_runs; r++) {
    const float* w = panel + runs[r].panel * (V * LANES);
    const float* in[P];
    UNROLL for (int p = 0; p < P; p++) in[p] = x[p] + runs[r].in;
    const int64_t length = runs[r].length;
    for (int64_t first = 0; first < length; first += LINE) {  // by lines, as a test per input costs as much as a load
      if (ahead) {
        UNROLL for (int p = 0; p < P; p++) __builtin_prefetch(in[p] + ahead + first);
      }
      const int64_t last = std::min(length, first + LINE);
      for (int64_t k = first; k < last; k++, w += V * LANES) {
        vfloat weight[V];
        UNROLL for (int v = 0; v < V; v++) weight[v] = load(w + v * LANES);
        UNROLL for (int p = 0; p < P; p++) {
          const vfloat value = broadcast(in[p][k]);
          UNROLL for (int v = 0; v < V; v++) acc[p][v] += value * weight[v];
        }
      }
    }
  }
  finish_tile<P, V>(acc, y, valid, e);
}

// Whether so many channels out fit half of a vector, whose lanes 2 o and 2 o + 1 then hold two terms of channel o.
constexpr bool in_pairs(int64_t channels) { return channels <= LANES / 2; }

// As tile, for channels in pairs: half as many multiply-adds. Of the last term of an odd run nothing else is multiplied,
// as what lies beside it may be infinite or no number.
template <int P>
__attribute__((noinline)) void tile_of_pairs(const float* const* x, float* const* y, const Run* runs, int64_t n_runs,
                                             const float* panel, int64_t valid, const Epilogue& e, int64_t) {
  vint even, first, second;
  UNROLL for (int i = 0; i < LANES; i++) {
    even[i] = i % 2 - 1;
    first[i] = 2 * i % LANES;
    second[i] = first[i] + 1;
  }
  vfloat acc[P][1] = {};
  for (int64_t r = 0; r < n_runs; r++) {
    const float* w = panel + runs[r].panel * LANES;
    const float* in[P];
    UNROLL for (int p = 0; p < P; p++) in[p] = x[p] + runs[r].in;
    const int64_t length = runs[r].length;
    int64_t k = 0;
    for (; k + 1 < length; k += 2) {
      const vfloat weight = load(w + k * LANES);
      UNROLL for (int p = 0; p < P; p++) acc[p][0] += broadcast_pair(in[p] + k) * weight;
    }
    if (k == length) continue;
    const vfloat weight = (vfloat)((vint)load(w + k * LANES) & even);
    UNROLL for (int p = 0; p < P; p++) acc[p][0] += (vfloat)((vint)broadcast(in[p][k]) & even) * weight;
  }
  const vfloat bias = e.bias ? load_part(e.bias, valid) : vfloat{};
  UNROLL for (int p = 0; p < P; p++) acc[p][0] = permuted(acc[p][0], first) + permuted(acc[p][0], second) + bias;
  finish_tile<P, 1>(acc, y, valid, e);
}

using Tile = void (*)(const float* const*, float* const*, const Run*, int64_t, const float*, int64_t, const Epilogue&,
                      int64_t);

template <int... P>
constexpr std::array<Tile, ACCUMULATORS + 1> tiles_of_pairs(std::integer_sequence<int, P...>) {
  return {nullptr, tile_of_pairs<P + 1>...};
}

// PAIRS[pixels]
constexpr auto PAIRS = tiles_of_pairs(std::make_integer_sequence<int, tile_pixels(1)>());

template <int V, int... P>
constexpr std::array<Tile, ACCUMULATORS + 1> tiles_of(std::integer_sequence<int, P...>) {
  return {nullptr, tile<P + 1, V>...};
}

template <int... V>
constexpr std::array<std::array<Tile, ACCUMULATORS + 1>, TILE_VECTORS> all_tiles(std::integer_sequence<int, V...>) {
  return {tiles_of<V + 1>(std::make_integer_sequence<int, tile_pixels(V + 1)>())...};
}

// TILES[vectors - 1][pixels]
constexpr auto TILES = all_tiles(std::make_integer_sequence<int, TILE_VECTORS>());

}  // namespace
