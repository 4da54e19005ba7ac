// What:    batch norm over the rows of a (rows, C) matrix (N, H, W flattened), with optional residual and relu
//          forward    y = relu(x * scale + shift + residual),  scale = gamma * istd,  shift = beta - mean * scale
//          backward   dx = gamma * istd * (v - mean(v) - xhat * mean(v * xhat)),  v = g where relu passed, else 0
// Source:  arXiv 1502.03167, Algorithms 1 and 2. Variances are biased, but for the running variance (N - 1).
// Layout:  rows are contiguous, vectors run over channels.
// Sums:    as sums.hpp has them; forward its moments.
// Mask:    the backward pass computes x * scale + shift again, with the same instruction as the forward pass, and reads
//          no y. It knows no residual: where there was one, g comes masked and relu is off.
#include "sums.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 16384;

// One fused multiply-add where there is one, so that both passes round alike.
INLINE float affine(float x, float scale, float shift) {
#if defined(__FMA__)
  return __builtin_fmaf(x, scale, shift);
#else
  return x * scale + shift;
#endif
}

struct Affine {
  std::vector<float> scale, shift;

  Affine(const float* gamma, const float* beta, const float* mean, const float* istd, int64_t channels)
      : scale(channels), shift(channels) {
    for (int64_t c = 0; c < channels; c++) {
      scale[c] = (gamma ? gamma[c] : 1.0f) * istd[c];
      shift[c] = (beta ? beta[c] : 0.0f) - mean[c] * scale[c];
    }
  }
};

template <bool RELU>
void normalize(const float* x, const float* residual, const Affine& a, float* y, int64_t rows, int64_t channels) {
  const float *scale = a.scale.data(), *shift = a.shift.data();
#pragma omp parallel for schedule(static) num_threads(team(rows * channels, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    const float *in = x + r * channels, *add = residual ? residual + r * channels : nullptr;
    float* out = y + r * channels;
    if (add) {
#pragma omp simd
      for (int64_t c = 0; c < channels; c++) {
        const float v = affine(in[c], scale[c], shift[c]) + add[c];
        out[c] = RELU ? relu(v) : v;
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < channels; c++) {
        const float v = affine(in[c], scale[c], shift[c]);
        out[c] = RELU ? relu(v) : v;
      }
    }
  }
}

template <bool RELU>
INLINE float masked(float g, float x, float scale, float shift) {
  return RELU && affine(x, scale, shift) <= 0 ? 0 : g;
}

struct Backward {
  const float *g, *x, *gamma, *mean, *istd;
  float *dx, *dgamma, *dbeta;
  int64_t rows, channels;
};

// dgamma, dbeta and the two coefficients of dx = ((v + offset) + (x - mean) * slope) * scale: a gradient that is equal in
// all rows goes to 0 before it is multiplied by a scale of up to gamma / sqrt(eps)
struct Coefficients {
  std::vector<float> slope, offset;

  Coefficients(const Backward& b, const std::vector<double>& sums) : slope(b.channels), offset(b.channels) {
    for (int64_t c = 0; c < b.channels; c++) {
      const double sum = sums[c], dot = sums[b.channels + c] * b.istd[c];  // of v, of v * xhat
      if (b.dbeta) b.dbeta[c] = float(sum);
      if (b.dgamma) b.dgamma[c] = float(dot);
      slope[c] = float(-dot / b.rows * b.istd[c]);
      offset[c] = float(-sum / b.rows);
    }
  }
};

template <bool RELU>
void backward(const Backward& b, const Affine& a) {
  const int64_t channels = b.channels;
  const float *scale = a.scale.data(), *shift = a.shift.data(), *mean = b.mean;
  const int threads = team(b.rows * channels, ALONE_BELOW);
  const auto add = [=](auto rows, const Place& place, int64_t row, int64_t, float(*sums)[WIDTH]) {
    const int64_t first = place.column;
    const float *g = b.g + row * channels + first, *x = b.x + row * channels + first;
    const float *scale_of = scale + first, *shift_of = shift + first, *mean_of = mean + first;
    float *sum = sums[0], *dot = sums[1];
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const auto v = [&](int64_t k) {
        return masked<RELU>(g[k * channels + c], x[k * channels + c], scale_of[c], shift_of[c]);
      };
      sum[c] += tree<rows.value>(v);
      dot[c] += tree<rows.value>([&](int64_t k) { return v(k) * (x[k * channels + c] - mean_of[c]); });
    }
  };
  std::vector<double> sums(2 * channels);
  const auto finish = [&](const Place& place, const double(*totals)[WIDTH]) {
    for (int k = 0; k < 2; k++) std::copy_n(totals[k], place.width, sums.data() + k * channels + place.column);
  };
  fold_rows<2>(Cut(1, b.rows, channels), threads, add, finish, Plain());
  const Coefficients k(b, sums);
  const float *slope = k.slope.data(), *offset = k.offset.data();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t r = 0; r < b.rows; r++) {
    const float *g = b.g + r * channels, *x = b.x + r * channels;
    float* dx = b.dx + r * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
      const float v = masked<RELU>(g[c], x[c], scale[c], shift[c]);
      dx[c] = ((v + offset[c]) + (x[c] - mean[c]) * slope[c]) * scale[c];
    }
  }
}

}  // namespace

EXPORT void bn_fwd(const float* x, const float* residual, const float* gamma, const float* beta, float* running_mean,
                   float* running_var, float* y, float* mean, float* istd, int64_t rows, int64_t channels, double eps,
                   double momentum, int cut) {
  const auto finish = [=](int64_t, int64_t c, double middle, double m2) {
    const double var = m2 < 0 ? 0 : m2 / rows;  // a NaN stays one
    mean[c] = float(middle);
    istd[c] = float(1 / std::sqrt(var + eps));
    if (running_mean) running_mean[c] = float((1 - momentum) * running_mean[c] + momentum * middle);
    if (running_var) running_var[c] = float((1 - momentum) * running_var[c] + momentum * var * rows / (rows - 1.0));
  };
  moments(x, 1, rows, channels, team(rows * channels, ALONE_BELOW), finish);
  const Affine a(gamma, beta, mean, istd, channels);
  cut ? normalize<true>(x, residual, a, y, rows, channels) : normalize<false>(x, residual, a, y, rows, channels);
}

EXPORT void bn_apply(const float* x, const float* residual, const float* gamma, const float* beta, const float* mean,
                     const float* istd, float* y, int64_t rows, int64_t channels, int cut) {
  const Affine a(gamma, beta, mean, istd, channels);
  cut ? normalize<true>(x, residual, a, y, rows, channels) : normalize<false>(x, residual, a, y, rows, channels);
}

EXPORT void bn_bwd(const float* g, const float* x, const float* gamma, const float* beta, const float* mean,
                   const float* istd, float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t channels, int cut) {
  const Affine a(gamma, beta, mean, istd, channels);
  const Backward b = {g, x, gamma, mean, istd, dx, dgamma, dbeta, rows, channels};
  cut ? backward<true>(b, a) : backward<false>(b, a);
}
