// Mean and squared distances from it of each channel of (rows, C) matrices, in one pass that does not cancel: values are
// shifted by the mean of some of their block before they are squared, and blocks are merged by Chan's formula.
#pragma once

#include <cmath>

#include "sums.hpp"

// What the values of a channel have been: their mean, and m2 = sum((x - mean)^2). A block of rows comes as the sums of
// x - x0 and of its square, and x0, the mean of its first rows.
struct Moments {
  static void merge(double& mean, double& m2, int64_t before, double added_mean, double added_m2, int64_t added) {
    const double away = added_mean - mean, share = double(added) / double(before + added);
    mean += away * share;
    m2 += added_m2 + away * away * share * before;
  }
  static void add_block(Totals<3>& total, const Block<3>& block, const Place& place, int64_t first, int64_t rows) {
    const float* x0 = block.sums[2];
    const int64_t before = first - place.first;
    const double inverse = 1.0 / rows;
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const double sum = block.sums[0][c], shifted = sum * inverse;
      merge(total.sums[0][c], total.sums[1][c], before, x0[c] + shifted, block.sums[1][c] - sum * shifted, rows);
    }
  }
  static void add_part(Totals<3>& total, const Totals<3>& part, const Place& place, int64_t before, int64_t rows) {
    for (int64_t c = 0; c < place.width; c++)
      merge(total.sums[0][c], total.sums[1][c], before, part.sums[0][c], part.sums[1][c], rows);
  }
  // Of a channel in which a difference or its square has overflowed, or that holds a NaN or an infinity: as defined.
  static void plain(const float* x, int64_t rows, int64_t channels, double& mean, double& m2) {
    mean = m2 = 0;
    for (int64_t r = 0; r < rows; r++) mean += x[r * channels];
    mean /= rows;
    for (int64_t r = 0; r < rows; r++) m2 += (x[r * channels] - mean) * (x[r * channels] - mean);
  }
};

// Calls finish(matrix, channel, mean, m2) for every channel of `outer` matrices, from any thread.
template <class Finish>
void moments(const float* x, int64_t outer, int64_t rows, int64_t channels, int threads, const Finish& finish) {
  const auto add = [=](auto n, const Place& place, int64_t row, int64_t first, float(*sums)[WIDTH]) {
    const float* from = x + (place.matrix * rows + row) * channels + place.column;
    float *sum = sums[0], *squares = sums[1], *x0 = sums[2];
    if (row == first) {
#pragma omp simd
      for (int64_t c = 0; c < place.width; c++)
        x0[c] = tree<n.value>([&](int64_t k) { return from[k * channels + c]; }) * (1.0f / n.value);
    }
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const auto away = [&](int64_t k) { return from[k * channels + c] - x0[c]; };
      sum[c] += tree<n.value>(away);
      squares[c] += tree<n.value>([&](int64_t k) { return away(k) * away(k); });
    }
  };
  const auto each = [=](const Place& place, const double(*totals)[WIDTH]) {
    for (int64_t k = 0; k < place.width; k++) {
      const int64_t c = place.column + k;
      double mean = totals[0][k], m2 = totals[1][k];
      if (!std::isfinite(m2)) Moments::plain(x + place.matrix * rows * channels + c, rows, channels, mean, m2);
      finish(place.matrix, c, mean, m2);
    }
  };
  fold_rows<3>(Cut(outer, rows, channels), threads, add, each, Moments());
}
