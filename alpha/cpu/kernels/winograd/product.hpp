// Tiles of matrix products in registers, for Winograd's spectral points and for filters of one tap.
#pragma once

#include "../vec.hpp"

constexpr int TILE_WIDTH = LANES * TILE_VECTORS;

using Product = void (*)(const float*, int64_t, const float*, int64_t, int64_t, float*, int64_t, bool);

// [vectors - 1][rows]; both start their sums at 0 and, if `add`, add them to what is there.
// forward:  out[p][v] = sum over k < count of in[p * ld_in + k] * panel[k * ld_panel + v]
// wgrad:    out[p][v] = sum over k < count of in[k * ld_in + p] * panel[k * ld_panel + v]
Product product_of(int vectors, int rows, bool wgrad);
int most_rows(int vectors);
