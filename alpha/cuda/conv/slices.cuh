// Sums of tiles on wgmma (conv/wgmma/gemm_wgmma.cuh) that several blocks make: slices in slots, and clusters.
#pragma once
#include "conv/wgmma/gemm_wgmma.cuh"

// Where a sum is cut into slices that different blocks make, each stores its own in a slot of BM * BN floats, in the
// registers' own order: [128 rows][consumer][quad of sums][thread] float4. Another kernel adds the slots up.
template <class T> constexpr int SLOT_ROWS = T::CONSUMERS * T::SUMS * 32;  // float4 of 128 rows of a slot, or of 64
template <class T, int N>
INLINE void store_slice(const float (&sum)[N], int depth, float *slots, int slot, int first = 0) {  // first: quad
  const Place place;
  float4 *to = reinterpret_cast<float4 *>(slots) + ((long long)slot * T::DEPTH + depth) * SLOT_ROWS<T> +
               place.consumer * (T::SUMS * 32) + place.thread + first * 128;
  UNROLL for (int i = 0; i < N; i += 4) to[i / 4 * 128] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
}

INLINE void add(float4 &sum, const float4 &v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// Float4 number `at` of `count` slots that follow each other, added up in their order.
template <class T> INLINE float4 add_slices(const float *slots, int first, int count, int at) {
  const float4 *from = reinterpret_cast<const float4 *>(slots) + (long long)first * T::DEPTH * SLOT_ROWS<T> + at;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  UNROLL_BY(4) for (int s = 0; s < count; s++, from += T::DEPTH * SLOT_ROWS<T>) add(sum, *from);
  return sum;
}

template <int N> INLINE float4 quad(const float (&sum)[N], int q) {
  return make_float4(sum[4 * q], sum[4 * q + 1], sum[4 * q + 2], sum[4 * q + 3]);
}

// The blocks of a cluster have a tile in common: each shows the others its sum where its buffers were, adds up every
// CLUSTER-th quad of all, in the order of the blocks, and puts that, if it exists: put(q, float4). What no thread needs,
// where its rows do not exist say, is not read: a read on its way when the block that it is from returns is a fault.
template <class T, int N, class Exists, class Put>
INLINE void add_together(const float (&sum)[N], char *buffers, const Place &place, bool rows_exist,
                         const Exists &exists, const Put &put) {
  constexpr int QUADS = N / 4;
  static_assert(T::CONSUMERS * QUADS * 2048 <= T::STAGES * T::STAGE, "sums lie in the buffers");
  float4 *mine = reinterpret_cast<float4 *>(buffers) + place.consumer * (QUADS * 128) + place.thread;
  ptx::bar_sync(1, 128 * T::CONSUMERS);  // all have read the buffers
  UNROLL for (int q = 0; q < QUADS; q++) mine[q * 128] = quad(sum, q);
  ptx::cluster_arrive();
  ptx::cluster_wait();
  if (rows_exist) {
    UNROLL_BY(2) for (int q = ptx::cluster_rank(); q < QUADS; q += T::CLUSTER) {
      if (!exists(q)) continue;
      float4 all = make_float4(0.f, 0.f, 0.f, 0.f);
      UNROLL for (int b = 0; b < T::CLUSTER; b++) add(all, ptx::cluster_map(mine, b)[q * 128]);
      put(q, all);
    }
  }
  __syncwarp();
  ptx::cluster_arrive();  // no block returns before all have read what it shows
  ptx::cluster_wait();
}
