// What:    y = relu(x), dx = 0 where y <= 0, else g, y = a + b, and the sum of squares.
// Layout:  flat arrays of n floats; outputs may be inputs.
// Sums:    sum of squares: BLOCK elements in float per lane, blocks in double, in an order that no thread changes.
#include <vector>

#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 65536, BLOCK = 4096;

template <class Body>
INLINE void for_each(int64_t n, Body body) {
#pragma omp parallel for simd schedule(static) num_threads(team(n, ALONE_BELOW))
  for (int64_t i = 0; i < n; i++) body(i);
}

double block_squares(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  return sum;
}

}  // namespace

EXPORT void relu_fwd(const float* x, float* y, int64_t n) {
  for_each(n, [=](int64_t i) { y[i] = relu(x[i]); });
}

EXPORT void relu_bwd(const float* g, const float* y, float* dx, int64_t n) {
  for_each(n, [=](int64_t i) {
    const float gi = g[i];  // read in any case: a read under a condition would keep the loop from being vectorised
    dx[i] = y[i] <= 0 ? 0 : gi;
  });
}

EXPORT void add(const float* a, const float* b, float* y, int64_t n) {
  for_each(n, [=](int64_t i) { y[i] = a[i] + b[i]; });
}

// Over `count` arrays: x[k] has sizes[k] elements.
EXPORT double sum_of_squares(const float* const* x, const int64_t* sizes, int64_t count) {
  double total = 0;
  for (int64_t k = 0; k < count; k++) {
    const int64_t blocks = ceil_div(sizes[k], BLOCK);
    std::vector<double> sums(blocks);
#pragma omp parallel for schedule(static) num_threads(team(sizes[k], ALONE_BELOW))
    for (int64_t b = 0; b < blocks; b++)
      sums[b] = block_squares(x[k] + b * BLOCK, std::min(BLOCK, sizes[k] - b * BLOCK));
    for (const double sum : sums) total += sum;
  }
  return total;
}
