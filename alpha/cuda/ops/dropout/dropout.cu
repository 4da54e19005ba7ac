// What:     y[k] = x[k] * factor where number offset + k of the stream is at least p, else 0; the numbers are those of
//           alpha/random.py, so a mask is the same on every device
//           A launch that is recorded and repeated (runtime/recording.py) reads the seed, and what is added to offset,
//           from memory: from[0], from[1].
// Source:   inverted dropout, as PyTorch has it
// Layout:   flat, C-contiguous
// Requires: 16-byte aligned tensors
// Threads:  a packet of 16 bytes per thread, in a grid of any size; the numbers of a packet come from its Philox
//           blocks, and from one more where offset is no multiple of 4
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): 96 %, 1.3 times PyTorch's
#include "elementwise.cuh"
#include "philox.cuh"

template <class T>
INLINE void dropout(const T *x, T *y, i64 n, float p, float factor, u64 seed, u32 stream, u64 offset, const u64 *from) {
  if (from) seed = from[0], offset += from[1];
  constexpr int E = LANES<T>;
  const i64 step = static_cast<i64>(gridDim.x) * THREADS * E;
  for (i64 i = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) * E; i < n; i += step) {
    const Vec<T, E> in = load_part<E>(x + i, n - i);
    float u[E];
    uniforms(u, seed, stream, offset + i);
    Vec<T, E> out;
    UNROLL for (int e = 0; e < E; e++) out.v[e] = from_float<T>(u[e] >= p ? to_float(in.v[e]) * factor : 0);
    store_part<E>(y + i, out, n - i);
  }
}

#define DROPOUT(T, dtype) \
  ALPHA_ENTRY(keyed_dropout_##dtype, (THREADS), (const T *x, T *y, i64 n, float p, float factor, u64 seed, u32 stream, \
                                                 u64 offset, const u64 *from), \
              dropout<T>(x, y, n, p, factor, seed, stream, offset, from))
FLOAT_KERNELS(DROPOUT)
