// What:    layer norm over rows, and group norm over the pixels and a group of channels of each sample, with gradients
//          y = xhat * gamma + beta,  xhat = (x - mean - rest) * istd
//          dx = istd * (v - mean(v) - xhat * mean(v * xhat)),  v = g * gamma
//          dbeta = sum(g),  dgamma = sum(g * xhat)
// Source:  arXiv 1607.06450, arXiv 1803.08494
// Layout:  rows (rows, n), samples (N, P, G * C); mean, istd and rest one per row, or (N, G); gamma, beta, and their
//          gradients n, or G * C elements.
// Sums:    rows.hpp within a row, sums.hpp over rows and pixels, forward its moments. rest is what rounding
//          has left out of the mean; backward may be given none.
// Threads: rows, or what sums.hpp cuts.
#include "rows.hpp"
#include "sums.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 8192;

INLINE float inverse_deviation(double squares, double rest, double count, double eps) {
  const double var = float(squares / count - rest / count * (rest / count));
  return float(1 / std::sqrt((var < 0 ? 0 : var) + eps));  // a NaN stays one
}
INLINE float at(const float* a, int64_t i) { return a ? a[i] : 0; }
INLINE vfloat or_one(const float* gamma, int64_t i, int64_t left) { return gamma ? get(gamma + i, left) : number(1); }

// Which of the sums of a channel a value is for, known when the kernel is compiled
template <int K>
using Sum = std::integral_constant<int, K>;

// Per sample and channel, into [N][K][C]: the sum over the pixels of value(Sum<k>, index in x, pixel,
// sample, channel, how many are left), of a vector of channels
template <int K, class Value>
std::vector<double> per_channel(int64_t n, int64_t pixels, int64_t channels, const Value& value) {
  std::vector<double> sums(n * K * channels);
  const auto add = [&](auto rows, const Place& place, int64_t row, int64_t, float(*into)[WIDTH]) {
    const int64_t first = (place.matrix * pixels + row) * channels;
    const int64_t width = place.width;
    for (int64_t c = 0; c < width; c += LANES) {
      const int64_t channel = place.column + c;
      const auto at = [&](auto k) INLINED {
        return tree<rows.value>([&](int64_t r) INLINED {
          return value(k, first + r * channels + channel, row + r, place.matrix, channel, width - c);
        });
      };
      store(into[0] + c, load(into[0] + c) + at(Sum<0>()));
      if constexpr (K > 1) store(into[1] + c, load(into[1] + c) + at(Sum<1>()));
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
      vfloat v = fma(get(x + from + i, left) - get(&middle[at + i], left), get(&a[at + i], left),
                     get(&c[at + i], left));
      if (TWO) v = fma(get(g + from + i, left), get(&b[at + i], left), v);
      put(y + from + i, v, left);
    });
  }
}

}  // namespace

EXPORT void layer_norm_fwd(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                           float* rest, int64_t rows, int64_t n, double eps) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float* in = x + r * n;
    float* out = y + r * n;
    double sum[1], away[2];
    sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[1]) { sums[0] += get(in + i, left); });
    const vfloat middle = number(mean[r] = float(sum[0] / n));
    sum_row(n, away, [&](int64_t i, int64_t left, vfloat(&sums)[2]) {
      const vfloat v = before_end(get(in + i, left) - middle, left);
      sums[0] += v;
      sums[1] += v * v;
    });
    const vfloat scale = number(istd[r] = inverse_deviation(away[1], away[0], n, eps));
    const vfloat back = number(-(rest[r] = float(away[0] / n)) * istd[r]);
    for_vectors(n, [&](int64_t i, int64_t left) {
      vfloat v = fma(get(in + i, left) - middle, scale, back);
      if (gamma) v *= get(gamma + i, left);
      if (beta) v += get(beta + i, left);
      put(out + i, v, left);
    });
  }
}

EXPORT void layer_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           const float* rest, float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t n) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *gs = g + r * n, *in = x + r * n;
    float* out = dx + r * n;
    const vfloat middle = number(mean[r]), scale = number(istd[r]), back = number(-at(rest, r) * istd[r]);
    double sums[2];
    sum_row(n, sums, [&](int64_t i, int64_t left, vfloat(&into)[2]) {
      const vfloat v = get(gs + i, left) * or_one(gamma, i, left);
      into[0] += before_end(v, left);
      into[1] += before_end(v * fma(get(in + i, left) - middle, scale, back), left);
    });
    const vfloat of_v = number(float(sums[0] / n)), of_product = number(float(sums[1] / n));
    for_vectors(n, [&](int64_t i, int64_t left) {
      const vfloat v = get(gs + i, left) * or_one(gamma, i, left);
      const vfloat xhat = fma(get(in + i, left) - middle, scale, back);
      put(out + i, (v - of_v - xhat * of_product) * scale, left);
    });
  }
  const auto product = [=](auto k, int64_t i, int64_t r, int64_t, int64_t, int64_t left) INLINED {
    const vfloat v = get(g + i, left);
    return k ? v * fma(get(x + i, left) - mean[r], number(istd[r]), number(-at(rest, r) * istd[r])) : v;
  };
  const std::vector<double> sums = per_channel<2>(1, rows, n, product);
  for (int64_t i = 0; i < n; i++) {
    dbeta[i] = float(sums[i]);
    dgamma[i] = float(sums[n + i]);
  }
}

EXPORT void group_norm_fwd(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                           float* rest, int64_t n, int64_t pixels, int64_t channels, int64_t groups, double eps) {
  const int64_t width = channels / groups;
  const double count = double(pixels) * width;
  std::vector<float> middle(n * channels), scale(n * channels), shift(n * channels);
  std::vector<double> means(n * channels), squares(n * channels);
  moments(x, n, pixels, channels, team(n * pixels * channels, ALONE_BELOW),
          [&](int64_t s, int64_t c, double mean_of, double m2) {
            means[s * channels + c] = mean_of;
            squares[s * channels + c] = m2;
          });
  for (int64_t k = 0; k < n * groups; k++) {
    const int64_t first = k * width;
    double sum = 0, m2 = 0;
    for (int64_t c = first; c < first + width; c++) sum += means[c];
    const double whole = sum / width;
    for (int64_t c = first; c < first + width; c++)
      m2 += squares[c] + pixels * (means[c] - whole) * (means[c] - whole);
    mean[k] = float(whole);
    rest[k] = float(whole - mean[k]);
    istd[k] = inverse_deviation(m2, 0, count, eps);
    for (int64_t c = first; c < first + width; c++) {
      const int64_t channel = c % channels;
      middle[c] = mean[k];
      scale[c] = (gamma ? gamma[channel] : 1) * istd[k];
      shift[c] = at(beta, channel) - rest[k] * scale[c];
    }
  }
  combine<false>(x, nullptr, y, scale, scale, shift, middle, n, pixels, channels);
}

EXPORT void group_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           const float* rest, float* dx, float* dgamma, float* dbeta, int64_t n, int64_t pixels, int64_t channels,
                           int64_t groups) {
  const int64_t width = channels / groups;
  const double count = double(pixels) * width;
  std::vector<float> middle(n * channels), slope(n * channels), scale(n * channels), offset(n * channels);
  for (int64_t k = 0; k < n * groups; k++) std::fill_n(&middle[k * width], width, mean[k]);
  const float* middles = middle.data();
  const auto product = [=](auto k, int64_t i, int64_t, int64_t s, int64_t c, int64_t left) INLINED {
    const vfloat v = get(g + i, left);
    return k ? v * (get(x + i, left) - get(middles + s * channels + c, left)) : v;
  };
  const std::vector<double> sums = per_channel<2>(n, pixels, channels, product);
  std::vector<double> totals(2 * channels, 0.0);
  for (int64_t k = 0; k < n * groups; k++) {
    const int64_t s = k / groups, first = k % groups * width;
    double of_v = 0, of_product = 0;
    for (int64_t c = first; c < first + width; c++) {
      const double sum = sums[s * 2 * channels + c];
      const double dot = (sums[(s * 2 + 1) * channels + c] - sum * at(rest, k)) * istd[k];
      totals[c] += sum;
      totals[channels + c] += dot;
      of_v += (gamma ? gamma[c] : 1) * sum;
      of_product += (gamma ? gamma[c] : 1) * dot;
    }
    const double of_x = -of_product / count * istd[k] * istd[k];
    for (int64_t c = first; c < first + width; c++) {
      scale[s * channels + c] = (gamma ? gamma[c] : 1) * istd[k];
      slope[s * channels + c] = float(of_x);
      offset[s * channels + c] = float(-of_v / count * istd[k] - of_x * at(rest, k));
    }
  }
  combine<true>(x, g, dx, slope, scale, offset, middle, n, pixels, channels);
  for (int64_t c = 0; c < channels; c++) {
    dbeta[c] = float(totals[c]);
    dgamma[c] = float(totals[channels + c]);
  }
}
