// What:    y[o, i, c] = sum over t of weights[i, t] * x[o, index[i, t], c]: rows of maps that are resized, and, with weights
//          of 1 and as many terms as there are, the gradient of rows that were taken
// Layout:  x (outer, rows, inner), y (outer, count, inner), tables (count, terms); or terms of i from starts[i] on.
// Zeros:   where an index is negative nothing is read; what has a weight of 0 is, as a NaN stays one.
// Sums:    of taken rows, which may be many, in double.   Threads: rows of y.
#include "functions.hpp"

namespace {

typedef double vwide __attribute__((vector_size(LANES * 8)));
constexpr int64_t ALONE_BELOW = 16384, UNITS = 4;

// Up to UNITS vectors of a row; all of them if WHOLE
template <bool WHOLE>
INLINE void mix(const float* x, const int64_t* index, const float* weights, int64_t terms, int64_t inner, float* y,
                int64_t left) {
  vfloat sums[UNITS] = {};
  for (int64_t t = 0; t < terms; t++) {
    if (index[t] < 0) continue;
    const float* from = x + index[t] * inner;
    const vfloat weight = broadcast(weights[t]);
    UNROLL for (int k = 0; k < UNITS; k++)
      sums[k] += weight * (WHOLE ? load(from + k * LANES) : load_part(from + k * LANES, left - k * LANES));
  }
  UNROLL for (int k = 0; k < UNITS; k++)
    WHOLE ? store(y + k * LANES, sums[k]) : store_part(y + k * LANES, sums[k], left - k * LANES);
}

INLINE void add(const float* x, const int64_t* index, int64_t terms, int64_t inner, float* y, int64_t left) {
  vwide sum = {};
  for (int64_t t = 0; t < terms; t++) sum += __builtin_convertvector(get(x + index[t] * inner, left), vwide);
  put(y, __builtin_convertvector(sum, vfloat), left);
}

}  // namespace

EXPORT void mix_rows(const float* x, const int64_t* starts, const int64_t* index, const float* weights, float* y,
                     int64_t outer, int64_t rows, int64_t count, int64_t terms, int64_t inner) {
#pragma omp parallel for collapse(2) schedule(dynamic, 16) num_threads(team(outer * count * inner, ALONE_BELOW))
  for (int64_t o = 0; o < outer; o++)
    for (int64_t i = 0; i < count; i++) {
      const int64_t first = starts ? starts[i] : i * terms, last = starts ? starts[i + 1] : first + terms;
      const float *from = x + o * rows * inner, *shares = weights + first;
      const int64_t* places = index + first;
      float* to = y + (o * count + i) * inner;
      int64_t c = 0;
      if (!weights)
        for (; c < inner; c += LANES) add(from + c, places, last - first, inner, to + c, inner - c);
      for (; c + UNITS * LANES <= inner; c += UNITS * LANES)
        mix<true>(from + c, places, shares, last - first, inner, to + c, inner - c);
      if (c < inner) mix<false>(from + c, places, shares, last - first, inner, to + c, inner - c);
    }
}
