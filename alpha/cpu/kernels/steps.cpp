// What:    a run of steps of a plan for inference: calls of kernels, one after the other, whose arguments are known.
// Layout:  a step is WIDTH numbers: its kernel, then the arguments. Of a pointer the step has where it stands, as inputs
//          lie elsewhere in each call; 0 is a null pointer.
// Zeros:   those of the kernels.  Requires: the kernels' own requirements; alpha/inference/cpu_calls.py writes the steps.
#include <type_traits>
#include <utility>

#include "vec.hpp"

extern "C" {
void conv_run(const int64_t*, const float*, const float*, const float*, const float*, float*, int, int);
void winograd_run(const int64_t*, const float*, const float*, const float*, const float*, float*, float*, int, int);
void winograd_pool(const int64_t*, const float*, const float*, const float*, const float*, float*, float*);
void sparse_run(const int64_t*, const float*, float*, const float*, float*, float*, int, int);
void linear_sparse(const float*, const float*, const float*, float*, int64_t, int64_t, int64_t, int);
void bn_apply(const float*, const float*, const float*, const float*, const float*, const float*, float*, int64_t,
              int64_t, int);
void max_pool_fwd(const int64_t*, const float*, float*, int32_t*);
void max_pool_relu(const int64_t*, const float*, float*);
void avg_pool_fwd(const int64_t*, const float*, float*, int);
}

namespace {

constexpr int64_t WIDTH = 12;

template <class T>
INLINE T argument(int64_t word) {
  if constexpr (std::is_pointer_v<T>) return word ? *reinterpret_cast<T*>(word) : nullptr;
  else return static_cast<T>(word);
}

template <class... T, std::size_t... K>
INLINE void call(void (*kernel)(T...), const int64_t* words, std::index_sequence<K...>) {
  static_assert(sizeof...(T) < WIDTH);
  kernel(argument<T>(words[K])...);
}

template <class... T>
INLINE void call(void (*kernel)(T...), const int64_t* words) {
  call(kernel, words, std::index_sequence_for<T...>());
}

}  // namespace

EXPORT void run_steps(const int64_t* steps, int64_t count) {
  for (int64_t k = 0; k < count; k++, steps += WIDTH) {
    switch (steps[0]) {
      case 0: call(conv_run, steps + 1); break;
      case 1: call(winograd_run, steps + 1); break;
      case 2: call(winograd_pool, steps + 1); break;
      case 3: call(sparse_run, steps + 1); break;
      case 4: call(linear_sparse, steps + 1); break;
      case 5: call(bn_apply, steps + 1); break;
      case 6: call(max_pool_fwd, steps + 1); break;
      case 7: call(max_pool_relu, steps + 1); break;
      case 8: call(avg_pool_fwd, steps + 1); break;
    }
  }
}
