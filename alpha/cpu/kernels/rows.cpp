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

#if defined(__AVX__) && !defined(__AVX512F__)
// The processor's own, which of a NaN and a number may take the number
template <bool LARGEST>
INLINE vfloat better_number(vfloat a, vfloat b) { return LARGEST ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b); }

// The best element of a row of at least LANES; where the last vector would end behind the row it overlaps the one before.
template <bool LARGEST>
INLINE float best_of_vectors(const float* x, int64_t n) {
  vfloat m[2] = {load(x), load(x)}, nan = {};
  const auto meet = [&](int64_t i, int chain) INLINED {
    const vfloat v = load(x + i);
    m[chain] = better_number<LARGEST>(m[chain], v);
    nan = _mm256_or_ps(nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  };
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    meet(i, 0);
    meet(i + LANES, 1);
  }
  for (; i < n; i += LANES) meet(std::min(i, n - LANES), 0);
  if (_mm256_movemask_ps(nan)) return __builtin_nanf("");
  vfloat best = better_number<LARGEST>(m[0], m[1]);
  best = better_number<LARGEST>(best, _mm256_permute2f128_ps(best, best, 1));
  best = better_number<LARGEST>(best, _mm256_permute_ps(best, 0x4e));
  return better_number<LARGEST>(best, _mm256_permute_ps(best, 0xb1))[0];
}
#else
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

template <bool LARGEST>
INLINE float best_of_vectors(const float* x, int64_t n) {
  vfloat m = load(x);
  for (int64_t i = LANES; i < n; i += LANES) m = better<LARGEST>(m, load(x + std::min(i, n - LANES)));
  return best_lane<LARGEST>(m);
}
#endif

template <bool LARGEST>
INLINE float best_of(const float* x, int64_t n) {
  if (n >= LANES) return best_of_vectors<LARGEST>(x, n);
  vfloat m = number(x[0]);
  for (int64_t i = 1; i < n; i++) m = better<LARGEST>(m, number(x[i]));
  return m[0];
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

// R rows, n elements apart: the sums of one are added while those of the others wait.
template <int R, bool LOG>
INLINE void softmax_rows(const float* x, float* y, int64_t n) {
  vfloat m[R], last[R];
  double sum[R];
  UNROLL for (int r = 0; r < R; r++) m[r] = number(best_of<true>(x + r * n, n));
  sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[R]) INLINED {
    UNROLL for (int r = 0; r < R; r++) {
      const vfloat away = get(x + r * n + i, left) - m[r], e = exp(away);
      put(y + r * n + i, LOG ? away : e, left);
      sums[r] += before_end(e, left);
    }
  });
  UNROLL for (int r = 0; r < R; r++) last[r] = number(LOG ? float(std::log(sum[r])) : float(1 / sum[r]));
  for_vectors(n, [&](int64_t i, int64_t left) INLINED {
    UNROLL for (int r = 0; r < R; r++) {
      const vfloat v = get(y + r * n + i, left);
      put(y + r * n + i, LOG ? v - last[r] : v * last[r], left);
    }
  });
}

template <bool LOG>
void softmax(const float* x, float* y, int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t pair = 0; pair < rows / 2; pair++) softmax_rows<2, LOG>(x + 2 * pair * n, y + 2 * pair * n, n);
  if (rows % 2) softmax_rows<1, LOG>(x + (rows - 1) * n, y + (rows - 1) * n, n);
}

}  // namespace

EXPORT void softmax_fwd(const float* x, float* y, int64_t rows, int64_t n, int log_of) {
  log_of ? softmax<true>(x, y, rows, n) : softmax<false>(x, y, rows, n);
}

EXPORT void softmax_bwd(const float* g, const float* y, float* dx, int64_t rows, int64_t n, int log_of) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *gs = g + r * n, *ys = y + r * n;
    float* out = dx + r * n;
    double sum[1];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) INLINED {
      const vfloat v = get(gs + i, left);
      sums[0] += log_of ? v : v * get(ys + i, left);
    });
    const vfloat total = number(float(sum[0]));
    for_vectors(n, [&](int64_t i, int64_t left) INLINED {
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
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) INLINED { sums[0] += get(in + i, left); });
    if (narrow) narrow[r] = float(sum[0]);
    else wide[r] = sum[0];
  }
}
