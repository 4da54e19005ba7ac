// What:    batch norm over the rows of a (rows, C) matrix (N, H, W flattened), with optional residual and relu
//          forward    y = relu(x * scale + shift + residual),  scale = gamma * istd,  shift = beta - mean * scale
//          backward   dx = gamma * istd * (v - mean(v) - xhat * mean(v * xhat)),  v = g where relu passed, else 0
//          column sum out[c] = sum_r x[r, c]  (the gradient of a bias)
// Source:  arXiv 1502.03167, Algorithms 1 and 2. Variances are biased, but for the running variance (N - 1).
// Layout:  rows are contiguous, vectors run over channels.
// Sums:    BLOCK_ROWS rows in float, blocks in double, parts of the rows (one per thread) in order. Values are shifted
//          by the first row before they are squared, so one pass is enough and does not cancel.
// Mask:    the backward pass computes x * scale + shift again, with the same instruction as the forward pass, and reads
//          no y. It knows no residual: where there was one, g comes masked and relu is off.
#include <cmath>
#include <vector>

#include "vec.hpp"

namespace {

constexpr int64_t BLOCK_ROWS = 64, ALONE_BELOW = 16384;

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

// Returns K sums per channel, [K][channels]. add(row, sums) adds one row to float sums [K][channels].
template <int K, class Add>
std::vector<double> sum_rows(int64_t rows, int64_t channels, int threads, Add add) {
  const int64_t size = K * channels;
  std::vector<double> sums(threads * size, 0.0);
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < threads; part++) {
    double* total = sums.data() + part * size;
    std::vector<float> block(size);
    const int64_t last = part_start(rows, part + 1, threads);
    for (int64_t first = part_start(rows, part, threads); first < last; first += BLOCK_ROWS) {
      std::fill(block.begin(), block.end(), 0.0f);
      for (int64_t r = first; r < std::min(last, first + BLOCK_ROWS); r++) add(r, block.data());
      for (int64_t i = 0; i < size; i++) total[i] += block[i];
    }
  }
  for (int64_t part = 1; part < threads; part++)
    for (int64_t i = 0; i < size; i++) sums[i] += sums[part * size + i];
  return sums;
}

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

// dgamma, dbeta and the two coefficients of dx = v * scale + (x - mean) * slope + offset
struct Coefficients {
  std::vector<float> slope, offset;

  Coefficients(const Backward& b, const std::vector<double>& sums) : slope(b.channels), offset(b.channels) {
    for (int64_t c = 0; c < b.channels; c++) {
      const double scale = (b.gamma ? double(b.gamma[c]) : 1.0) * b.istd[c];
      const double sum = sums[c], dot = sums[b.channels + c] * b.istd[c];  // of v, of v * xhat
      if (b.dbeta) b.dbeta[c] = float(sum);
      if (b.dgamma) b.dgamma[c] = float(dot);
      slope[c] = float(-scale * dot / b.rows * b.istd[c]);
      offset[c] = float(-scale * sum / b.rows);
    }
  }
};

template <bool RELU>
void backward(const Backward& b, const Affine& a) {
  const int64_t channels = b.channels;
  const float *scale = a.scale.data(), *shift = a.shift.data(), *mean = b.mean;
  const int threads = team(b.rows * channels, ALONE_BELOW);
  const auto sums = sum_rows<2>(b.rows, channels, threads, [&](int64_t r, float* s) {
    const float *g = b.g + r * channels, *x = b.x + r * channels;
    float* dot = s + channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
      const float v = masked<RELU>(g[c], x[c], scale[c], shift[c]);
      s[c] += v;
      dot[c] += v * (x[c] - mean[c]);
    }
  });
  const Coefficients k(b, sums);
  const float *slope = k.slope.data(), *offset = k.offset.data();
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t r = 0; r < b.rows; r++) {
    const float *g = b.g + r * channels, *x = b.x + r * channels;
    float* dx = b.dx + r * channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++)
      dx[c] = masked<RELU>(g[c], x[c], scale[c], shift[c]) * scale[c] + ((x[c] - mean[c]) * slope[c] + offset[c]);
  }
}

}  // namespace

EXPORT void bn_fwd(const float* x, const float* residual, const float* gamma, const float* beta, float* running_mean,
                   float* running_var, float* y, float* mean, float* istd, int64_t rows, int64_t channels, double eps,
                   double momentum, int cut) {
  const int threads = team(rows * channels, ALONE_BELOW);
  const auto sums = sum_rows<2>(rows, channels, threads, [=](int64_t r, float* s) {
    const float* row = x + r * channels;
    float* squares = s + channels;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++) {
      const float d = row[c] - x[c];
      s[c] += d;
      squares[c] += d * d;
    }
  });
  for (int64_t c = 0; c < channels; c++) {
    const double shifted = sums[c] / rows, var = std::max(0.0, sums[channels + c] / rows - shifted * shifted);
    mean[c] = float(shifted + x[c]);
    istd[c] = float(1 / std::sqrt(var + eps));
    if (running_mean) running_mean[c] = float((1 - momentum) * running_mean[c] + momentum * (shifted + x[c]));
    if (running_var) running_var[c] = float((1 - momentum) * running_var[c] + momentum * var * rows / (rows - 1.0));
  }
  const Affine a(gamma, beta, mean, istd, channels);
  cut ? normalize<true>(x, residual, a, y, rows, channels) : normalize<false>(x, residual, a, y, rows, channels);
}

EXPORT void bn_inference(const float* x, const float* residual, const float* gamma, const float* beta,
                         const float* running_mean, const float* running_var, float* y, int64_t rows, int64_t channels,
                         double eps, int cut) {
  std::vector<float> istd(channels);
  for (int64_t c = 0; c < channels; c++) istd[c] = float(1 / std::sqrt(running_var[c] + eps));
  const Affine a(gamma, beta, running_mean, istd.data(), channels);
  cut ? normalize<true>(x, residual, a, y, rows, channels) : normalize<false>(x, residual, a, y, rows, channels);
}

EXPORT void bn_bwd(const float* g, const float* x, const float* gamma, const float* beta, const float* mean,
                   const float* istd, float* dx, float* dgamma, float* dbeta, int64_t rows, int64_t channels, int cut) {
  const Affine a(gamma, beta, mean, istd, channels);
  const Backward b = {g, x, gamma, mean, istd, dx, dgamma, dbeta, rows, channels};
  cut ? backward<true>(b, a) : backward<false>(b, a);
}

// Few channels: `fold` rows are taken as one, so that vectors are filled; the rows left over are added at the end.
EXPORT void column_sum(const float* x, float* out, int64_t rows, int64_t channels) {
  const int64_t fold = std::max<int64_t>(1, std::min(rows, 64 / channels)), wide = fold * channels;
  auto sums = sum_rows<1>(rows / fold, wide, team(rows * channels, ALONE_BELOW), [=](int64_t r, float* s) {
    const float* row = x + r * wide;
#pragma omp simd
    for (int64_t c = 0; c < wide; c++) s[c] += row[c];
  });
  for (int64_t i = rows / fold * wide; i < rows * channels; i++) sums[i % channels] += x[i];
  for (int64_t c = 0; c < channels; c++) {
    double total = 0;
    for (int64_t k = 0; k < fold; k++) total += sums[k * channels + c];
    out[c] = float(total);
  }
}
