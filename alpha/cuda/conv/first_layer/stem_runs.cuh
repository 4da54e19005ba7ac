// What the gradients of a first layer on FMA units share, whose threads have runs of positions: four channels as they
// are stored, and sums over the channels of all threads of a run.
#pragma once
#include "storage.cuh"

template <class T> struct Quad {  // four channels as they are stored
  unsigned pairs[2];

  __device__ __forceinline__ void clear() { pairs[0] = pairs[1] = 0; }
  __device__ __forceinline__ void load(const T *from) {
    const uint2 a = *reinterpret_cast<const uint2 *>(from);
    pairs[0] = a.x, pairs[1] = a.y;
  }
  __device__ __forceinline__ float at(int q) const { return float_of_pair<T>(pairs[q / 2], q % 2); }
};
template <> struct Quad<float> {
  float v[4];

  __device__ __forceinline__ void clear() { v[0] = v[1] = v[2] = v[3] = 0.f; }
  __device__ __forceinline__ void load(const float *from) {
    const float4 a = *reinterpret_cast<const float4 *>(from);
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  }
  __device__ __forceinline__ float at(int q) const { return v[q]; }
};

// Of 2 * HALF positions a lane keeps those that its bit names, with the other lane's part of them, and gives the rest.
template <int HALF, int RUN, int IC> __device__ __forceinline__ void give_half(float (&sum)[RUN][IC], int lane) {
  constexpr int BIT = 2 * HALF;
  const bool upper = lane & BIT;
#pragma unroll
  for (int i = 0; i < HALF; i++)
#pragma unroll
    for (int ic = 0; ic < IC; ic++) {
      const float keep = upper ? sum[i + HALF][ic] : sum[i][ic], give = upper ? sum[i][ic] : sum[i + HALF][ic];
      sum[i][ic] = keep + __shfl_xor_sync(~0u, give, BIT);
    }
}

// The sums of a run's eight positions over its 16 lanes: sum[0] of lane l becomes that of position l / 2.
template <int RUN, int IC> __device__ __forceinline__ void fold_run(float (&sum)[RUN][IC], int lane) {
  give_half<4>(sum, lane);
  give_half<2>(sum, lane);
  give_half<1>(sum, lane);
#pragma unroll
  for (int ic = 0; ic < IC; ic++) sum[0][ic] += __shfl_xor_sync(~0u, sum[0][ic], 1);
}
