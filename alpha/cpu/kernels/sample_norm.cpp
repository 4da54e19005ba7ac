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

// 1 / sqrt(var + eps). A var beyond float32 counts as it is, as its istd is a float32.
INLINE float inverse_deviation(double squares, double rest, double count, double eps) {
  const double exact = squares / count - rest / count * (rest / count);
  const double var = std::fabs(exact) > std::numeric_limits<float>::max() ? exact : float(exact);
  return float(1 / std::sqrt((var < 0 ? 0 : var) + eps));  // a NaN stays one
}
// The sum of a row, where float32 has no sums of a few
double wide_sum(const float* row, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += row[i];
  return sum;
}
// The sum of squares of the row less its middle, where float32 has no such squares
double wide_squares(const float* row, float middle, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (double(row[i]) - middle) * (double(row[i]) - middle);
  return sum;
}
INLINE float at(const float* a, int64_t i) { return a ? a[i] : 0; }
INLINE vfloat or_one(const float* gamma, int64_t i, int64_t left) { return gamma ? get(gamma + i, left) : number(1); }

// Which of the sums of a channel a value is for, known when the kernel is compiled
template <int K>
using Sum = std::integral_constant<int, K>;

// Per sample and channel, into [N][K][C]: the sum over the pixels of value(Sum<k>, index in x, pixel,
// sample, channel, how many are left), of a vector of channels. before(pixel, count, channel) comes before a few pixels.
template <int K, class Value, class Before>
std::vector<double> per_channel(int64_t n, int64_t pixels, int64_t channels, const Value& value, const Before& before) {
  std::vector<double> sums(n * K * channels);
  const auto add = [&](auto rows, const Place& place, int64_t row, int64_t, float(*into)[WIDTH]) {
    const int64_t first = (place.matrix * pixels + row) * channels;
    before(row, rows.value, place.column);
    for_vectors(place.width, [&](int64_t c, int64_t left) INLINED {
      const int64_t channel = place.column + c;
      const auto at = [&](auto k) INLINED {
        return tree<rows.value>([&](int64_t r) INLINED {
          return value(k, first + r * channels + channel, row + r, place.matrix, channel, left);
        });
      };
      store(into[0] + c, load(into[0] + c) + at(Sum<0>()));
      if constexpr (K > 1) store(into[1] + c, load(into[1] + c) + at(Sum<1>()));
    });
  };
  const auto finish = [&](const Place& place, const double(*totals)[WIDTH]) {
    for (int k = 0; k < K; k++)
      std::copy_n(totals[k], place.width, sums.data() + (place.matrix * K + k) * channels + place.column);
  };
  fold_rows<K>(Cut(n, pixels, channels), team(n * pixels * channels, ALONE_BELOW), add, finish, Plain());
  return sums;
}

// y = (x - middle) * a + c, or of two ((x - middle) * a + (g * b + c)) * scale, with coefficients per sample and channel:
// (N, C). What is equal in all pixels goes to 0 within the brackets, before a scale of up to 1 / sqrt(eps).
template <bool TWO>
void combine(const float* x, const float* g, float* y, const std::vector<float>& a, const std::vector<float>& b,
             const std::vector<float>& c, const std::vector<float>& middle, const std::vector<float>& scale, int64_t n,
             int64_t pixels, int64_t channels) {
#pragma omp parallel for schedule(static) num_threads(team(n * pixels * channels, ALONE_BELOW))
  for (int64_t row = 0; row < n * pixels; row++) {
    const int64_t at = row / pixels * channels, from = row * channels;
    for_vectors(channels, [&](int64_t i, int64_t left) INLINED {
      vfloat v = get(&c[at + i], left);
      if (TWO) v = fma(get(g + from + i, left), get(&b[at + i], left), v);
      v = fma(get(x + from + i, left) - get(&middle[at + i], left), get(&a[at + i], left), v);
      if (TWO) v = v * get(&scale[at + i], left);
      put(y + from + i, v, left);
    });
  }
}

// Layer norm of R neighbouring rows from `first` on: the sums of one are added while those of the others wait.
template <int R>
INLINE void layer_norm_rows(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                            float* rest, int64_t first, int64_t n, double eps) {
  const float* in = x + first * n;
  double sum[R], away[2 * R];
  sum_row(n, sum, [&](int64_t i, int64_t left, vfloat(&sums)[R]) INLINED {
    UNROLL for (int r = 0; r < R; r++) sums[r] += get(in + r * n + i, left);
  });
  UNROLL for (int r = 0; r < R; r++)
    if (!std::isfinite(sum[r])) sum[r] = wide_sum(in + r * n, n);
  vfloat middle[R], scale[R], back[R];
  UNROLL for (int r = 0; r < R; r++) middle[r] = number(mean[first + r] = float(sum[r] / n));
  sum_row(n, away, [&](int64_t i, int64_t left, vfloat(&sums)[2 * R]) INLINED {
    UNROLL for (int r = 0; r < R; r++) {
      const vfloat v = before_end(get(in + r * n + i, left) - middle[r], left);
      sums[2 * r] += v;
      sums[2 * r + 1] += v * v;
    }
  });
  UNROLL for (int r = 0; r < R; r++) {
    if (!std::isfinite(away[2 * r + 1])) away[2 * r + 1] = wide_squares(in + r * n, mean[first + r], n);
    const float inverse = inverse_deviation(away[2 * r + 1], away[2 * r], n, eps), left_out = float(away[2 * r] / n);
    istd[first + r] = inverse;
    rest[first + r] = left_out;
    scale[r] = number(inverse);
    back[r] = number(-left_out * inverse);
  }
  for_vectors(n, [&](int64_t i, int64_t left) INLINED {
    UNROLL for (int r = 0; r < R; r++) {
      vfloat v = fma(get(in + r * n + i, left) - middle[r], scale[r], back[r]);
      if (gamma) v *= get(gamma + i, left);
      if (beta) v += get(beta + i, left);
      put(y + (first + r) * n + i, v, left);
    }
  });
}

}  // namespace

EXPORT void layer_norm_fwd(const float* x, const float* gamma, const float* beta, float* y, float* mean, float* istd,
                           float* rest, int64_t rows, int64_t n, double eps) {
#pragma omp parallel for schedule(static) num_threads(team(rows * n, ALONE_BELOW))
  for (int64_t pair = 0; pair < rows / 2; pair++)
    layer_norm_rows<2>(x, gamma, beta, y, mean, istd, rest, 2 * pair, n, eps);
  if (rows % 2) layer_norm_rows<1>(x, gamma, beta, y, mean, istd, rest, rows - 1, n, eps);
}

EXPORT void layer_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           const float* rest, float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t n) {
  const int threads = team(rows * n, ALONE_BELOW);
  const auto row_of = [=](int64_t r) INLINED {
    const float *gs = g + r * n, *in = x + r * n;
    float* out = dx + r * n;
    const vfloat middle = number(mean[r]), scale = number(istd[r]), back = number(-at(rest, r) * istd[r]);
    double sums[2];
    sum_row(n, sums, [&](int64_t i, int64_t left, vfloat(&into)[2]) INLINED {
      const vfloat v = get(gs + i, left) * or_one(gamma, i, left);
      into[0] += before_end(v, left);
      into[1] += before_end(v * fma(get(in + i, left) - middle, scale, back), left);
    });
    const vfloat of_v = number(float(sums[0] / n)), of_product = number(float(sums[1] / n));
    for_vectors(n, [&](int64_t i, int64_t left) INLINED {
      const vfloat v = get(gs + i, left) * or_one(gamma, i, left);
      const vfloat xhat = fma(get(in + i, left) - middle, scale, back);
      put(out + i, (v - of_v - xhat * of_product) * scale, left);
    });
  };
  const bool together = Cut(1, rows, n).parts >= threads;  // rows are read once, where their parts keep all threads busy
  if (!together) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t r = 0; r < rows; r++) row_of(r);
  }
  const auto before = [=](int64_t first, int64_t count, int64_t column) INLINED {
    if (together && !column)
      for (int64_t r = first; r < first + count; r++) row_of(r);
  };
  const auto product = [=](auto k, int64_t i, int64_t r, int64_t, int64_t, int64_t left) INLINED {
    const vfloat v = get(g + i, left);
    return k ? v * fma(get(x + i, left) - mean[r], number(istd[r]), number(-at(rest, r) * istd[r])) : v;
  };
  const std::vector<double> sums = per_channel<2>(1, rows, n, product, before);
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
  combine<false>(x, nullptr, y, scale, scale, shift, middle, scale, n, pixels, channels);
}

EXPORT void group_norm_bwd(const float* g, const float* x, const float* gamma, const float* mean, const float* istd,
                           const float* rest, float* dx, float* dgamma, float* dbeta, int64_t n, int64_t pixels, int64_t channels,
                           int64_t groups) {
  const int64_t width = channels / groups;
  const double count = double(pixels) * width;
  std::vector<float> middle(n * channels), slope(n * channels), by(n * channels), offset(n * channels);
  std::vector<float> scale(n * channels);
  const bool alone = width == 1;  // gamma is then that of the group, and multiplies last
  for (int64_t k = 0; k < n * groups; k++) std::fill_n(&middle[k * width], width, mean[k]);
  const float* middles = middle.data();
  const auto product = [=](auto k, int64_t i, int64_t, int64_t s, int64_t c, int64_t left) INLINED {
    const vfloat v = get(g + i, left);
    return k ? v * (get(x + i, left) - get(middles + s * channels + c, left)) : v;
  };
  const std::vector<double> sums = per_channel<2>(n, pixels, channels, product, [](int64_t, int64_t, int64_t) {});
  std::vector<double> totals(2 * channels, 0.0);
  for (int64_t k = 0; k < n * groups; k++) {
    const int64_t s = k / groups, first = k % groups * width;
    double of_v = 0, of_product = 0;
    for (int64_t c = first; c < first + width; c++) {
      const double sum = sums[s * 2 * channels + c];
      const double dot = (sums[(s * 2 + 1) * channels + c] - sum * at(rest, k)) * istd[k];
      totals[c] += sum;
      totals[channels + c] += dot;
      of_v += (gamma && !alone ? gamma[c] : 1) * sum;
      of_product += (gamma && !alone ? gamma[c] : 1) * dot;
    }
    const double of_x = -of_product / count * istd[k];
    for (int64_t c = first; c < first + width; c++) {
      by[s * channels + c] = gamma && !alone ? gamma[c] : 1;
      scale[s * channels + c] = (gamma && alone ? gamma[c] : 1) * istd[k];
      slope[s * channels + c] = float(of_x);
      offset[s * channels + c] = float(-of_v / count - of_x * at(rest, k));
    }
  }
  combine<true>(x, g, dx, slope, by, offset, middle, scale, n, pixels, channels);
  for (int64_t c = 0; c < channels; c++) {
    dbeta[c] = float(totals[c]);
    dgamma[c] = float(totals[channels + c]);
  }
}
