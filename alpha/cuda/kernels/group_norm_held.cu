// What:    group norm of samples that fit into the registers of a cluster of blocks: x of (samples, pixels, C),
//          y = (x - mean) * (gamma * istd) + beta, mean and istd of each (sample, group of k neighbouring channels)
// Source:  arXiv 1803.08494.
// Layout:  contiguous; a piece is N elements of a pixel: 16 bytes, or 1 element where C is not a multiple of that.
// Traffic: x is read once: each thread keeps 32 elements, each block 8,192, while the statistics are made. A cluster of
//          8 blocks holds 65,536 of them, whose blocks read each other's sums in distributed shared memory. Larger
//          samples, and GPUs without clusters, are for group_norm.cu, which reads x twice.
// Requires: 16-byte aligned tensors; a walk (reduce.cuh) of one tile, whose chunks are the blocks of the cluster and have
//          at most pieces_held<N> rows for each thread.
// Shared:  float2 statistic[C / k], then Moments sums[C].
// Order:   a thread's rows, then the rows of a block, then the channels of a group block after block: fixed.
// Threads: a cluster per sample; threads as in a walk down columns.
#include "channel_norm.cuh"
#include "ptx_sm90.cuh"

#if !defined(__CUDACC__) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTERS 1  // the emulated device has them too
#else
#define CLUSTERS 0
#endif

template <int N> constexpr int pieces_held = N == 8 ? 4 : 8;

// The mean of my rows, and their squared distances from it, of which registers hold each; per lane.
template <int N, class T>
__device__ __forceinline__ void moments_of(Moments (&s)[N], Lanes<N, T> (&held)[pieces_held<N>], int rows) {
  float v[N];
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane] = {0, 0, float(rows)};
#pragma unroll
  for (int j = 0; j < pieces_held<N>; j++) {
    unpack(v, held[j]);
#pragma unroll
    for (int lane = 0; lane < N; lane++) s[lane].mean += j < rows ? v[lane] : 0;
  }
  const float share = rows ? 1.0f / rows : 0;
#pragma unroll
  for (int lane = 0; lane < N; lane++) s[lane].mean *= share;
#pragma unroll
  for (int j = 0; j < pieces_held<N>; j++) {
    unpack(v, held[j]);
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float away = v[lane] - s[lane].mean;
      s[lane].m2 += j < rows ? away * away : 0;
    }
  }
}

template <class T, int N, int BLOCKS>
__device__ __forceinline__ void normalize_held(const T *__restrict__ x, const Affine<T> &affine, T *__restrict__ y,
                                               float *mean, float *istd, float eps, const Walk &w, int k) {
  DYNAMIC_SHARED(float2, statistic);
  const Place at(w);
  const int first = at.column * N, channels = w.columns * N, stride = w.step * channels;  // of rows of a thread
  const i64 offset = at.begin * channels + first;
  const int groups = channels / k, rank = BLOCKS > 1 ? ptx::cluster_rank() : 0;
  Moments *sums = reinterpret_cast<Moments *>(statistic + groups);

  Lanes<N, T> held[pieces_held<N>] = {};
  int rows = 0;
#pragma unroll
  for (int j = 0; j < pieces_held<N>; j++) {
    if (at.begin + j * w.step < at.end) held[j] = load<N>(x + offset + j * stride), rows++;
  }
  Moments s[N];
  moments_of(s, held, rows);
  fold_rows<N>(s, w, MergeMoments());
  if (threadIdx.x < w.width) {
#pragma unroll
    for (int lane = 0; lane < N; lane++) sums[first + lane] = s[lane];
  }
  if constexpr (BLOCKS > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }

  int team = 1;  // threads that share the channels of a group, in all blocks
  while (team < k * BLOCKS && team < 32) team *= 2;
  for (int begin = 0; begin < groups; begin += THREADS / team) {
    const int group = begin + threadIdx.x / team, mine = group < groups ? group : groups - 1;
    Moments of = {0, 0, 0};
    for (int j = threadIdx.x % team; j < k * BLOCKS; j += team) {
      const Moments *there = sums;
      if constexpr (BLOCKS > 1) there = ptx::cluster_map(sums, j / k);
      of = merge_moments(of, there[mine * k + j % k]);
    }
    of = fold_group(of, team, MergeMoments());
    if (group != mine || threadIdx.x % team) continue;
    const float root = 1 / sqrtf(of.m2 / of.count + eps);
    statistic[group] = make_float2(of.mean, root);
    if (rank) continue;
    mean[i64(at.sample) * groups + group] = of.mean;
    istd[i64(at.sample) * groups + group] = root;
  }
  if constexpr (BLOCKS > 1) ptx::cluster_arrive();  // nobody reads this block's sums any more
  __syncthreads();

  if (rows) {
    float middle[N], scale[N], shift[N], v[N];
    affine.gamma.load(scale, first);
    affine.beta.load(shift, first);
#pragma unroll
    for (int lane = 0; lane < N; lane++) {
      const float2 of = statistic[(first + lane) / k];
      middle[lane] = of.x;
      scale[lane] *= of.y;
    }
#pragma unroll
    for (int j = 0; j < pieces_held<N>; j++) {
      if (j >= rows) break;
      unpack(v, held[j]);
#pragma unroll
      for (int lane = 0; lane < N; lane++) v[lane] = standardized(v[lane] - middle[lane], scale[lane], shift[lane]);
      store_floats(y + offset + j * stride, v);
    }
  }
  if constexpr (BLOCKS > 1) ptx::cluster_wait();  // distributed shared memory is there until all have read it
}

// ---- entries: <name>_<dtype> reads pieces of 16 bytes, <name>_single_<dtype> single elements

#if CLUSTERS
#define CLUSTER __cluster_dims__(8, 1, 1)
#define BODY(T, N, BLOCKS) normalize_held<T, N, BLOCKS>(x, {gamma, beta, wide}, y, mean, istd, eps, w, k)
#else
#define CLUSTER
#define BODY(T, N, BLOCKS) static_cast<void>(x)  // never launched
#endif
#define ENTRY(name, T, attribute, body) \
  extern "C" __global__ void attribute __launch_bounds__(THREADS, 3) \
      name(const T *x, const void *gamma, const void *beta, int wide, T *y, float *mean, float *istd, float eps, \
           const Walk w, int k) { \
    body; \
  } \
  ALPHA_KERNEL(name)
#define PIECES(T, suffix, N) \
  ENTRY(block##suffix, T, , (normalize_held<T, N, 1>(x, {gamma, beta, wide}, y, mean, istd, eps, w, k))) \
  ENTRY(cluster##suffix, T, CLUSTER, (BODY(T, N, 8)))
#define KERNELS(T, dtype) \
  PIECES(T, _##dtype, LANES<T>) \
  PIECES(T, _single_##dtype, 1)
FLOAT_KERNELS(KERNELS)
