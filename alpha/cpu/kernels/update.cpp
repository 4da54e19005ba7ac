// What:    runs the kernel of a rule (alpha/cpu/update.py) over lists of arrays: one step of an optimizer.
// Layout:  `lists` lists of `count` flat arrays: what the rule changes, its states, and last the gradients. `table` has
//          the sizes of the arrays, then each list's Python objects, whose elements lie `data_at` bytes from them.
// Factor:  of the gradients, which are multiplied by it, and rounded, before the rule reads them.
// Threads: chunks of CHUNK elements of each array; elements are independent, so any split gives the same bits.
#include "vec.hpp"

namespace {

constexpr int64_t CHUNK = 8192, MOST_LISTS = 16;

using Kernel = void(float* const* lists, const float* numbers, int64_t n);

}  // namespace

EXPORT void update_lists(Kernel* kernel, const int64_t* table, int64_t lists, int64_t count, int64_t data_at,
                         const float* numbers, float factor) {
  const int64_t *sizes = table, *objects = table + count;
  int64_t total = 0;
  for (int64_t k = 0; k < count; k++) total += sizes[k];
#pragma omp parallel num_threads(team(total, 4 * CHUNK))
  for (int64_t array = 0; array < count; array++) {
#pragma omp for schedule(static) nowait
    for (int64_t first = 0; first < sizes[array]; first += CHUNK) {
      const int64_t n = std::min(CHUNK, sizes[array] - first);
      float* at[MOST_LISTS];
      for (int64_t k = 0; k < lists; k++) {
        const char* object = reinterpret_cast<const char*>(objects[k * count + array]);
        at[k] = *reinterpret_cast<float* const*>(object + data_at) + first;
      }
      if (factor != 1) {
        float* scaled = scratch<11>(CHUNK);
        for (int64_t i = 0; i < n; i++) scaled[i] = factor * at[lists - 1][i];
        at[lists - 1] = scaled;
      }
      kernel(at, numbers, n);
    }
  }
}
