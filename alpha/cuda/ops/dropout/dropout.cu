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
    const bool whole = n - i >= E;
    Lanes<E, T> piece;
    if (whole) piece = load<E>(x + i);
    UNROLL for (int e = 0; e < E; e++)
      if (!whole && i + e < n) piece.v[e] = x[i + e];
    float u[E];
    uniforms(u, seed, stream, offset + i);
    UNROLL for (int e = 0; e < E; e++) piece.v[e] = from_float<T>(u[e] >= p ? to_float(piece.v[e]) * factor : 0);
    if (whole) store(y + i, piece);
    UNROLL for (int e = 0; e < E; e++)
      if (!whole && i + e < n) y[i + e] = piece.v[e];
  }
}

#define DROPOUT(T, dtype) \
  ALPHA_ENTRY(keyed_dropout_##dtype, (THREADS), (const T *x, T *y, i64 n, float p, float factor, u64 seed, u32 stream, \
                                                 u64 offset, const u64 *from), \
              dropout<T>(x, y, n, p, factor, seed, stream, offset, from))
FLOAT_KERNELS(DROPOUT)
