// What:    Philox4x32-10 bits, and dropout that draws from them
//          element k is lane (offset + k) % 4 of block (offset + k) / 4;  counter = (block low, block high, stream, 0),
//          key = (seed low, seed high);  dropout keeps x * factor where (bits >> 8) * 2^-24 >= p
// Source:  Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11.
// Layout:  flat arrays; philox.hpp makes blocks of numbers.
// Threads: batches; every element depends on its own counter alone.
#include "philox.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 8192;

// Calls body(first, last, bits): bits[i - first] belongs to element i.
template <class Body>
INLINE void for_each_batch(uint64_t seed, uint32_t stream, uint64_t offset, int64_t n, Body body) {
  const int64_t skipped = offset % 4;  // numbers of the first block that come before element 0
#pragma omp parallel for schedule(static) num_threads(team(n, ALONE_BELOW))
  for (int64_t batch = 0; batch < ceil_div(n + skipped, NUMBERS); batch++) {
    uint32_t bits[NUMBERS];
    philox(seed, stream, offset / 4 + batch * PHILOX_BLOCKS, bits);
    const int64_t start = batch * NUMBERS - skipped, first = std::max<int64_t>(0, start);
    body(first, std::min(n, start + NUMBERS), bits + (first - start));
  }
}

}  // namespace

EXPORT void random_bits(uint64_t seed, uint32_t stream, uint64_t offset, uint32_t* out, int64_t n) {
  for_each_batch(seed, stream, offset, n, [=](int64_t first, int64_t last, const uint32_t* bits) {
    memcpy(out + first, bits, (last - first) * sizeof(uint32_t));
  });
}

EXPORT void dropout(const float* x, float* y, int64_t n, float p, float factor, uint64_t seed, uint32_t stream,
                    uint64_t offset) {
  for_each_batch(seed, stream, offset, n, [=](int64_t first, int64_t last, const uint32_t* bits) {
#pragma omp simd  // a branch would be mispredicted half of the time
    for (int64_t i = first; i < last; i++) {
      const float uniform = uniform_of(bits[i - first]);
      const float kept = x[i] * factor;
      y[i] = uniform >= p ? kept : 0;
    }
  });
}
