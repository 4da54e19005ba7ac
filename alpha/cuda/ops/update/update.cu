// What:     the sum of squares of every tensor, and what becomes of a step whose loss was scaled.
// Layout:   flat tensors, in a list that a table has.
// Requires: 16-byte aligned tensors; CHUNK a multiple of 8.
// Threads:  a block per chunk of a tensor (multi_tensor.cuh), a packet of 16 bytes per thread at a time.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): float32 87 %
#include "multi_tensor.cuh"
#include "reduce.cuh"

// partial[block] = sum of the squares of the chunk's elements: those of a packet in float, a thread's in float with what
// rounding leaves out, the threads' in double.
template <class T> INLINE void squares(const Table &table, int count, int chunk, float *partial) {
  const Chunk here = find_chunk<1>(table, count, chunk);
  const T *x = tensor_of<const T>(table, count, 0, here.tensor);
  const i64 whole = here.end - here.end % LANES<T>;
  ExactSum sum = {0, 0};
  UNROLL_BY(4) for (i64 i = here.begin + threadIdx.x * LANES<T>; i < whole; i += THREADS * LANES<T>) {
    const Lanes<LANES<T>, T> packet = load<LANES<T>>(x + i);
    float of = 0;
    UNROLL for (int lane = 0; lane < LANES<T>; lane++) of += to_float(packet.v[lane]) * to_float(packet.v[lane]);
    sum.add(of);
  }
  for (i64 i = whole + threadIdx.x; i < here.end; i += THREADS) sum.add(to_float(x[i]) * to_float(x[i]));
  const double total = fold_group(double(sum.value()), THREADS, Add());
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<float>(total);
}

#define KERNELS(T, dtype) \
  ALPHA_ENTRY(squares_##dtype, (THREADS), (const __grid_constant__ Table table, int count, int chunk, float *partial), \
              squares<T>(table, count, chunk, partial))
FLOAT_KERNELS(KERNELS)

// y[k] = sum of the partial sums of tensor k; a block per tensor, `blocks` partial sums in all.
ALPHA_GLOBAL(totals, (THREADS),
             (const __grid_constant__ Table table, int count, const float *partial, int blocks, float *y)) {
  ptx::follow();
  const i64 *first = table.words + 2 * count;
  const i64 end = blockIdx.x + 1 < count ? first[blockIdx.x + 1] : blocks;
  double sum = 0;
  UNROLL_BY(4) for (i64 i = first[blockIdx.x] + threadIdx.x; i < end; i += THREADS) sum += partial[i];
  sum = fold_group(sum, THREADS, Add());
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<float>(sum);
}

// What becomes of a step whose loss was multiplied by *scale. counts: finite steps since the scale changed, skipped ones.
//   factor = min(1, max_norm / norm) / scale with norm = sqrt(sum(squares)) / scale;  0 where the sum is not finite
//   finite:      after growth_interval such steps scale = min(2 * scale, largest)
//   not finite:  scale = max(scale / 2, 1)
ALPHA_GLOBAL(decide, (THREADS),
             (const float *squares, int count, float *scale, int *counts, float *factor, int growth_interval,
              float largest, float max_norm)) {
  ptx::follow();
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) sum += squares[i];
  sum = fold_group(sum, THREADS, Add());
  if (threadIdx.x) return;
  const float before = *scale;
  if (!(sum <= 1e300)) {  // squares are float: infinite or NaN
    *factor = 0;
    *scale = before > 2 ? before / 2 : 1;
    counts[0] = 0;
    counts[1]++;
    return;
  }
  const double norm = sqrt(sum) / before;
  *factor = static_cast<float>((max_norm > 0 && norm > max_norm ? max_norm / norm : 1) / before);
  if (++counts[0] < growth_interval) return;
  *scale = before < largest / 2 ? 2 * before : largest;
  counts[0] = 0;
}
