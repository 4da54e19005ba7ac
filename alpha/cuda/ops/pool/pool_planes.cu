// What:     max and average pooling (pool.cu) of a float32 tensor that may consist of planes (planes.cu), into planes
//           or elements: no convolution behind a pool has to measure and split its map.
// Layout:   NHWC; hi of all pixels, then lo. header_of_x: null where x has elements
// Scale:    of y: from the bound of |x| that is in the header, as no |y| is larger, but for the rounding of a mean; and
//           of dx where windows do not overlap: x stands for g, and y for dx then
// Exact:    hi + lo is a float32 number, so the largest is found among what merging x would give, and is what y has
// Flag:     see planes.cuh; what follows behind it is name_stored
// Requires: C a multiple of 8; an image below 2^31 elements
// Threads:  as pool.cu, of 4 channels; fewer blocks: each of them ends with three atomics on one header
// Measured: not by itself
#include "lazy/planes.cuh"
#include "pool_backward.cuh"

constexpr int V = 4;

INLINE i64 input_size(const Pool &p) { return p.input_image(p.images); }
INLINE i64 output_size(const Pool &p) { return p.output_image(p.images); }

// name_planes writes y as planes; name_stored writes its elements, if there is no flag, or it is set.
#define POOL(name, call, size_of_x, size_of_y, ...) \
  ALPHA_ENTRY(name##_planes, (THREADS), (const __grid_constant__ Pool p, __VA_ARGS__, const void *x, \
                                         const OperandHeader *header_of_x, void *y, OperandHeader *header, \
                                         int *lost_ranges), \
              const int k = blockIdx.x * THREADS + threadIdx.x; \
              const Stored from = stored_or_not(x, header_of_x, size_of_x(p)); \
              PlaneWriter to(y, size_of_y(p), header); \
              if (k < threads) call; \
              to.finish(header, lost_ranges)) \
  ALPHA_ENTRY(name##_stored, (THREADS), (const __grid_constant__ Pool p, __VA_ARGS__, const void *x, \
                                         const OperandHeader *header_of_x, float *y, const int *flag), \
              if (flag && !*flag) return; \
              const int k = blockIdx.x * THREADS + threadIdx.x; \
              const Stored from = stored_or_not(x, header_of_x, size_of_x(p)); \
              const Output<V, float> to{y}; \
              if (k < threads) call)
#define FORWARD(name, call, ...) POOL(name, call, input_size, output_size, __VA_ARGS__)
FORWARD(max_pool, max_pool<V>(p, k, from, to, index), int threads, unsigned char *index)
FORWARD(max_pool_wide, max_pool<V>(p, k, from, to, index), int threads, int *index)
FORWARD(max_pool_rows, (max_pool_rows<V, float>(p, k, from, to, index)), int threads, unsigned char *index)
FORWARD(avg_pool, avg_pool<V>(p, k, from, to), int threads)
POOL(max_pool_backward, max_pool_backward<V>(p, k, from, to, index), output_size, input_size, int threads,
     const unsigned char *index)
