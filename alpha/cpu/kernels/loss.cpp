// What:    softmax cross-entropy over rows of logits with integer labels and label smoothing s
//          loss[r] = lse[r] - (1 - s) * x[r, label] - s / C * sum_c x[r, c],   lse = log sum_c exp(x[r, c])
//          dx[r, c] = g[r] * (exp(x[r, c] - lse[r]) - (1 - s) * [c == label] - s / C)
// Layout:  logits (rows, C), labels int64.  stats (3, rows): the largest logit, lse - that, 1 - softmax at the label.
// Labels:  both passes return the first row whose label is outside [0, C) and not the ignored one, before they write
//          anything, or -1. Rows with the ignored one have loss, stats and dx 0.
// Sums:    CHUNK classes in float per lane, chunks in double; the largest logit is subtracted before exp, so nothing
//          overflows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 4096, CHUNK = 8 * LANES;

// exp(x) for x <= 0, within 2 ulp, 0 from -88 on: 2^k * e^r with |r| <= log(2) / 2. 2^-127 counts as 0.
INLINE float exponential(float x) {
  x = x < -88.0f ? -88.0f : x;
  const float k = __builtin_nearbyintf(x * 1.44269504f);
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;  // log(2) in two parts, the first one exact
  const float tail = 1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)));
  const float e = 1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * tail)));
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(k) + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return e * power;
}

int64_t first_bad(const int64_t* labels, int64_t rows, int64_t classes, int64_t ignored) {
  for (int64_t r = 0; r < rows; r++)
    if ((labels[r] < 0 || labels[r] >= classes) && labels[r] != ignored) return r;
  return -1;
}

}  // namespace

EXPORT int64_t cross_entropy_fwd(const float* x, const int64_t* labels, float* loss, float* stats, int64_t rows,
                                 int64_t classes, double smoothing, int64_t ignored) {
  const int64_t bad = first_bad(labels, rows, classes, ignored);
  if (bad >= 0) return bad;
  const float on = float(1 - smoothing), off = float(smoothing / classes);
#pragma omp parallel for schedule(static) num_threads(team(rows * classes, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* row = x + r * classes;
    const int64_t label = labels[r];
    if (label == ignored) {
      loss[r] = stats[r] = stats[rows + r] = stats[2 * rows + r] = 0;
      continue;
    }
    float largest = -std::numeric_limits<float>::infinity();  // a NaN shows in the sums
    for (int64_t c = 0; c < classes; c++) largest = row[c] > largest ? row[c] : largest;
    double others = 0, total = 0;
    for (int64_t first = 0; first < classes; first += CHUNK) {
      const float* part = row + first;
      const int32_t left = int32_t(std::min(CHUNK, classes - first));
      const int32_t at = label >= first && label < first + left ? int32_t(label - first) : -1;
      float sum = 0, away = 0;
#pragma omp simd reduction(+ : sum, away)
      for (int32_t c = 0; c < left; c++) {
        const float d = part[c] - largest, e = exponential(d);
        sum += c == at ? 0 : e;
        away += d;
      }
      others += sum;
      total += away;
    }
    const float below = row[label] - largest;
    const double sum = others + exponential(below);
    const float log_sum = float(below == 0 ? std::log1p(others) : std::log(sum));
    stats[r] = largest;
    stats[rows + r] = log_sum;
    stats[2 * rows + r] = float(others / sum);
    loss[r] = log_sum - on * below - (off > 0 ? off * float(total) : 0);
  }
  return -1;
}

// g has one element per row, g_step apart: 0 gives every row the same gradient. The result is multiplied by scale.
EXPORT int64_t cross_entropy_bwd(const float* g, int64_t g_step, const float* x, const int64_t* labels,
                                 const float* stats, float* dx, int64_t rows, int64_t classes, double smoothing,
                                 double scale, int64_t ignored) {
  const int64_t bad = first_bad(labels, rows, classes, ignored);
  if (bad >= 0) return bad;
  const float off = float(smoothing / classes);
#pragma omp parallel for schedule(static) num_threads(team(rows * classes, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *row = x + r * classes, gradient = g[r * g_step] * float(scale);
    const float largest = stats[r], log_sum = stats[rows + r];
    float* out = dx + r * classes;
    if (labels[r] == ignored) {
      std::fill(out, out + classes, 0.0f);
      continue;
    }
#pragma omp simd
    for (int64_t c = 0; c < classes; c++) out[c] = gradient * (exponential(row[c] - largest - log_sum) - off);
    out[labels[r]] = gradient * (float(smoothing - smoothing / classes) - stats[2 * rows + r]);
  }
  return -1;
}
