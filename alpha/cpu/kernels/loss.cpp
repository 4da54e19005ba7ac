// What:    softmax cross-entropy over rows of logits with integer labels and label smoothing s
//          loss[r] = lse[r] - (1 - s) * x[r, label] - s / C * sum_c x[r, c],   lse = log sum_c exp(x[r, c])
//          dx[r, c] = g[r] * (exp(x[r, c] - lse[r]) - (1 - s) * [c == label] - s / C)
// Layout:  logits (rows, C), labels int64.  Returns: the first row whose label is outside [0, C), or -1.
// Sums:    CHUNK classes in float per lane, chunks in double; the largest logit is subtracted before exp, so nothing
//          overflows.
#include <cmath>

#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 4096, CHUNK = 8 * LANES;

// exp(x) for x <= 0, within 2 ulp and not below the smallest normal number: 2^k * e^r with |r| <= log(2) / 2.
INLINE float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float k = __builtin_nearbyintf(x * 1.44269504f);
  const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;  // log(2) in two parts, the first one exact
  const float tail = 1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)));
  const float e = 1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * tail)));
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(k) + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return e * power;
}

}  // namespace

EXPORT int64_t cross_entropy_fwd(const float* x, const int64_t* labels, float* loss, float* lse, int64_t rows,
                                 int64_t classes, double smoothing) {
  for (int64_t r = 0; r < rows; r++)
    if (labels[r] < 0 || labels[r] >= classes) return r;
  const float on = float(1 - smoothing), off = float(smoothing / classes);
#pragma omp parallel for schedule(static) num_threads(team(rows * classes, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* row = x + r * classes;
    float largest = row[0];
    for (int64_t c = 1; c < classes; c++) largest = row[c] > largest ? row[c] : largest;
    double all = 0, below = 0;
    for (int64_t first = 0; first < classes; first += CHUNK) {
      float sum = 0, total = 0;
#pragma omp simd reduction(+ : sum, total)
      for (int64_t c = first; c < std::min(classes, first + CHUNK); c++) {
        sum += exponential(row[c] - largest);
        total += row[c] - largest;
      }
      all += sum;
      below += total;
    }
    const float log_sum = float(std::log(all)), total = float(below);
    lse[r] = largest + log_sum;
    loss[r] = log_sum - on * (row[labels[r]] - largest) - (off > 0 ? off * total : 0);
  }
  return -1;
}

// g has one element per row, g_step apart: 0 gives every row the same gradient. The result is multiplied by scale.
EXPORT void cross_entropy_bwd(const float* g, int64_t g_step, const float* x, const int64_t* labels, const float* lse,
                              float* dx, int64_t rows, int64_t classes, double smoothing, double scale) {
  const float off = float(smoothing / classes);
#pragma omp parallel for schedule(static) num_threads(team(rows * classes, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *row = x + r * classes, gradient = g[r * g_step] * float(scale), shift = lse[r];
    float* out = dx + r * classes;
#pragma omp simd
    for (int64_t c = 0; c < classes; c++) out[c] = gradient * (exponential(row[c] - shift) - off);
    out[labels[r]] -= gradient * float(1 - smoothing);
  }
}
