// What:    y = relu(x), dx = 0 where y <= 0, else g, y = a + b.
// Layout:  flat arrays of n floats; outputs may be inputs.
#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 65536;

template <class Body>
INLINE void for_each(int64_t n, Body body) {
#pragma omp parallel for simd schedule(static) num_threads(team(n, ALONE_BELOW))
  for (int64_t i = 0; i < n; i++) body(i);
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
