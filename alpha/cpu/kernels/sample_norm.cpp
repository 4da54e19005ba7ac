// What:    layer norm over rows, and group norm over the pixels and a group of channels of each sample, with gradients
//          y = (x - mean) * istd * gamma + beta
//          dx = istd * (v - mean(v) - xhat * mean(v * xhat)),  v = g * gamma,  xhat = (x - mean) * istd
//          dbeta = sum(g),  dgamma = sum(g * xhat)
// Source:  arXiv 1607.06450, arXiv 1803.08494
// Layout:  rows (rows, n), samples (N, P, G * C); mean and istd one per row, or (N, G); gamma, beta, and their gradients
//          n, or G * C elements.
// Sums:    rows.hpp within a row, sums.hpp over rows and pixels. Variances are of distances from the mean, which was
//          rounded: what that has left out is taken off.
// Threads: rows, or what sums.hpp cuts.
#include <cmath>

#include "rows.hpp"
#include "sums.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 8192;

INLINE float inverse_deviation(double squares, double rest, double count, double eps) {
  const double var = float(squares / count - rest / count * (rest / count));
  return float(1 / std::sqrt((var < 0 ? 0 : var) + eps));  // a NaN stays one
}
INLINE vfloat or_one(const float* gamma, int64_t i, int64_t left) { return gamma ? part(gamma + i, left) : number(1); }

// Per sample and channel, into [N][K][C]: what add(row of x, sample, channel) gives, over the pixels.
template <int K, class Add>
std::vector<double> per_channel(int64_t n, int64_t pixels, int64_t channels, const Add& value) {
  std::vector<double> sums(n * K * channels);
  const auto add = [&](auto rows, const Place& place, int64_t row, int64_t, float(*into)[WIDTH]) {
    const int64_t first = (place.matrix * pixels + row) * channels;
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const int64_t channel = place.column + c;
      const auto at = [&](int k) {
        return tree<rows.value>([&](int64_t r) { return value(k, first + r * channels, place.matrix, channel); });
      };
      for (int k = 0; k < K; k++) into[k][c] += at(k);
    }
  };
  const auto finish = [&](const Place& place, const double(*totals)[WIDTH]) {
    for (int k = 0; k < K; k++)
      std::copy_n(totals[k], place.width, sums.data() + (place.matrix * K + k) * channels + place.column);
  };
  fold_rows<K>(Cut(n, pixels, channels), team(n * pixels * channels, ALONE_BELOW), add, finish, Plain());
  return sums;
}

// y = x * a + (g * b) + c, with coefficients per sample and channel: (N, C)
template <bool TWO>
void combine(const float* x, const float* g, float* y, const std::vector<float>& a, const std::vector<float>& b,
             const std::vector<float>& c, const std::vector<float>& middle, int64_t n, int64_t pixels,
             int64_t channels) {
#pragma omp parallel for schedule(static) num_threads(team(n * pixels * channels, ALONE_BELOW))
  for (int64_t row = 0; row < n * pixels; row++) {
    const int64_t at = row / pixels * channels, from = row * channels;
    for_vectors(channels, [&](int64_t i, int64_t left) {
      vfloat v = fma(part(x + from + i, left) - part(&middle[at + i], left), part(&a[at + i], left),
                     part(&c[at + i], left));
      if (TWO) v = fma(part(g + from + i, left), part(&b[at + i], left), v);
      put(y + from + i, v, left);
    });
  }
}

}  // namespace

EXPORT void layer_norm_fwd(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                           int64_t rows, int64_t n, double eps) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * n;
    float* out = y + r * n;
    double sum[1], away[2];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) { sums[0] += part(in + i, left); });
    const vfloat middle = number(mean[r] = float(sum[0] / n));
    sum_row(n, away, [&](int64_t i, int64_t left, vfloat(&sums)[2]) {
      const vfloat v = before_end(part(in + i, left) - middle, left);
      sums[0] += v;
      sums[1] += v * v;
    });
    const vfloat scale = number(istd[r] = inverse_deviation(away[1], away[0], n, eps));
    for_vectors(n, [&](int64_t i, int64_t left) {
      vfloat v = (part(in + i, left) - middle) * scale;
      if (gamma) v *= part(gamma + i, left);
      if (beta) v += part(beta + i, left);
      put(out + i, v, left);
    });
  }
}

EXPORT void layer_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *gs = g + r * n, *in = x + r * n;
    float* out = dx + r * n;
    const vfloat middle = number(mean[r]), scale = number(istd[r]);
    double sums[2];
    sum_row(n, sums, [&](int64_t i, int64_t left, vfloat(&into)[2]) {
      const vfloat v = part(gs + i, left) * or_one(gamma, i, left);
      into[0] += before_end(v, left);
      into[1] += before_end(v * ((part(in + i, left) - middle) * scale), left);
    });
    const vfloat of_v = number(float(sums[0] / n)), of_product = number(float(sums[1] / n));
    for_vectors(n, [&](int64_t i, int64_t left) {
      const vfloat v = part(gs + i, left) * or_one(gamma, i, left), xhat = (part(in + i, left) - middle) * scale;
      put(out + i, (v - of_v - xhat * of_product) * scale, left);
    });
  }
  const std::vector<double> sums = per_channel<2>(1, rows, n, [=](int k, int64_t row, int64_t, int64_t c) {
    const int64_t r = row / n;
    return k ? g[row + c] * ((x[row + c] - mean[r]) * istd[r]) : g[row + c];
  });
  for (int64_t i = 0; i < n; i++) {
    dbeta[i] = float(sums[i]);
    dgamma[i] = float(sums[n + i]);
  }
}

EXPORT void group_norm_fwd(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                           int64_t n, int64_t pixels, int64_t channels, int64_t groups, double eps) {
  const int64_t width = channels / groups;
  const double count = double(pixels) * width;
  std::vector<float> middle(n * channels), scale(n * channels), shift(n * channels);
  const std::vector<double> plain = per_channel<1>(
      n, pixels, channels, [=](int, int64_t row, int64_t, int64_t c) { return x[row + c]; });
  for (int64_t k = 0; k < n * groups; k++) {
    double sum = 0;
    for (int64_t c = 0; c < width; c++) sum += plain[k * width + c];
    mean[k] = float(sum / count);
    std::fill_n(&middle[k * width], width, mean[k]);
  }
  const float* middles = middle.data();
  const std::vector<double> away = per_channel<2>(n, pixels, channels, [=](int k, int64_t row, int64_t s, int64_t c) {
    const float v = x[row + c] - middles[s * channels + c];
    return k ? v * v : v;
  });
  for (int64_t k = 0; k < n * groups; k++) {
    const int64_t s = k / groups, first = k % groups * width;
    double rest = 0, squares = 0;
    for (int64_t c = first; c < first + width; c++) {
      rest += away[s * 2 * channels + c];
      squares += away[(s * 2 + 1) * channels + c];
    }
    istd[k] = inverse_deviation(squares, rest, count, eps);
    for (int64_t c = first; c < first + width; c++) {
      scale[s * channels + c] = (gamma ? gamma[c] : 1) * istd[k];
      shift[s * channels + c] = beta ? beta[c] : 0;
    }
  }
  combine<false>(x, nullptr, y, scale, scale, shift, middle, n, pixels, channels);
}

EXPORT void group_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           float* dx, float* dgamma, float* dbeta, int64_t n, int64_t pixels, int64_t channels,
                           int64_t groups) {
  const int64_t width = channels / groups;
  const double count = double(pixels) * width;
  std::vector<float> middle(n * channels), slope(n * channels), scale(n * channels), offset(n * channels);
  for (int64_t k = 0; k < n * groups; k++) std::fill_n(&middle[k * width], width, mean[k]);
  const float* middles = middle.data();
  const std::vector<double> sums = per_channel<2>(n, pixels, channels, [=](int k, int64_t row, int64_t s, int64_t c) {
    return k ? g[row + c] * (x[row + c] - middles[s * channels + c]) : g[row + c];
  });
  std::vector<double> totals(2 * channels, 0.0);
  for (int64_t k = 0; k < n * groups; k++) {
    const int64_t s = k / groups, first = k % groups * width;
    double of_v = 0, of_product = 0;
    for (int64_t c = first; c < first + width; c++) {
      const double sum = sums[s * 2 * channels + c], dot = sums[(s * 2 + 1) * channels + c] * istd[k];
      totals[c] += sum;
      totals[channels + c] += dot;
      of_v += (gamma ? gamma[c] : 1) * sum;
      of_product += (gamma ? gamma[c] : 1) * dot;
    }
    for (int64_t c = first; c < first + width; c++) {
      scale[s * channels + c] = (gamma ? gamma[c] : 1) * istd[k];
      slope[s * channels + c] = float(-of_product / count * istd[k] * istd[k]);
      offset[s * channels + c] = float(-of_v / count * istd[k]);
    }
  }
  combine<true>(x, g, dx, slope, scale, offset, middle, n, pixels, channels);
  for (int64_t c = 0; c < channels; c++) {
    dbeta[c] = float(totals[c]);
    dgamma[c] = float(totals[channels + c]);
  }
}
