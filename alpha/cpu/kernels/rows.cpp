// What:    softmax and log-softmax over rows, with their gradients; the largest or smallest elements; sums of rows
//          y = e^(x - m) / s,  y = x - m - log(s),   m = max(x), s = sum(e^(x - m))
//          dx = y * (g - sum(g * y)),  dx = g - e^y * sum(g)
// Layout:  rows are contiguous; of `extreme` x is (outer, count, inner).
// Sums:    rows.hpp.
// NaN:     wins among the largest, and then is everything in its row.
// Threads: rows.
#include <cmath>

#include "rows.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 8192;

template <bool LARGEST>
INLINE vfloat better(vfloat a, vfloat b) { return LARGEST ? maximum(a, b) : minimum(a, b); }

template <bool LARGEST>
INLINE float best_lane(vfloat m) {
#if defined(__AVX512F__)
  if (_mm512_cmp_ps_mask(m, m, _CMP_UNORD_Q)) return __builtin_nanf("");
  return LARGEST ? _mm512_reduce_max_ps(m) : _mm512_reduce_min_ps(m);
#else
  float best = m[0];
  for (int k = 1; k < LANES; k++) best = (LARGEST ? m[k] > best : m[k] < best) || m[k] != m[k] ? m[k] : best;
  return best;
#endif
}

// The best element of a row; where the last vector would end behind the row it overlaps the one before.
template <bool LARGEST>
INLINE float best_of(const float* x, int64_t n) {
  vfloat m = number(x[0]);
  if (n < LANES) {
    for (int64_t i = 1; i < n; i++) m = better<LARGEST>(m, number(x[i]));
    return m[0];
  }
  for (int64_t i = 0; i < n; i += LANES) m = better<LARGEST>(m, load(x + std::min(i, n - LANES)));
  return best_lane<LARGEST>(m);
}

template <bool LARGEST>
void extreme_of(const float* x, float* y, int64_t outer, int64_t count, int64_t inner) {
  const int64_t blocks = ceil_div(inner, LANES);
#pragma omp parallel for schedule(static) num_threads(team(outer * count * inner, 4 * ALONE_BELOW))
  for (int64_t job = 0; job < outer * blocks; job++) {
    const int64_t o = job / blocks, column = job % blocks * LANES, left = inner - column;
    const float* from = x + o * count * inner + column;
    if (inner > 1) {
      vfloat m = get(from, left);
      for (int64_t r = 1; r < count; r++) m = better<LARGEST>(m, get(from + r * inner, left));
      put(y + o * inner + column, m, left);
    } else {
      y[o] = best_of<LARGEST>(from, count);
    }
  }
}

}  // namespace

EXPORT void softmax_fwd(const float* x, float* y, int64_t rows, int64_t n, int log_of) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * n;
    float* out = y + r * n;
    const vfloat m = number(best_of<true>(in, n));
    double sum[1];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) {
      const vfloat away = get(in + i, left) - m, e = exp(away);
      put(out + i, log_of ? away : e, left);
      sums[0] += before_end(e, left);
    });
    if (log_of) {
      const vfloat log_sum = number(float(std::log(sum[0])));
      for_vectors(n, [&](int64_t i, int64_t left) { put(out + i, get(out + i, left) - log_sum, left); });
    } else {
      const vfloat share = number(float(1 / sum[0]));
      for_vectors(n, [&](int64_t i, int64_t left) { put(out + i, get(out + i, left) * share, left); });
    }
  }
}

EXPORT void softmax_bwd(const float* g, const float* y, float* dx, int64_t rows, int64_t n, int log_of) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *gs = g + r * n, *ys = y + r * n;
    float* out = dx + r * n;
    double sum[1];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) {
      const vfloat v = get(gs + i, left);
      sums[0] += log_of ? v : v * get(ys + i, left);
    });
    const vfloat total = number(float(sum[0]));
    for_vectors(n, [&](int64_t i, int64_t left) {
      const vfloat v = get(gs + i, left), w = get(ys + i, left);
      put(out + i, log_of ? v - exp(w) * total : (v - total) * w, left);
    });
  }
}

// y[o, i] = the largest (or smallest) of x[o, :, i]; count is at least 1
EXPORT void extreme(const float* x, float* y, int64_t outer, int64_t count, int64_t inner, int largest) {
  largest ? extreme_of<true>(x, y, outer, count, inner) : extreme_of<false>(x, y, outer, count, inner);
}

// Sums of rows; one of narrow and wide is null
EXPORT void sum_rows(const float* x, float* narrow, double* wide, int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, 2 * ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * n;
    double sum[1];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) { sums[0] += get(in + i, left); });
    if (narrow) narrow[r] = float(sum[0]);
    else wide[r] = sum[0];
  }
}
