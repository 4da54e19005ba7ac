// What:    group norm of samples that a block, or a cluster of blocks, keeps: x of (samples, pixels, C), y as in
//          group_norm.cu, mean, rest and istd of each (sample, group of k neighbouring channels)
// Source:  arXiv 1803.08494.
// Layout:  contiguous; a piece is N elements of a pixel: 16 bytes, or 1 element where C is not a multiple of that.
//          Shared memory has the pieces, but not single elements; float2 statistic[C / k], float2 moments[C / k]; as in
//          add_up float sums[rows][columns].
// Traffic: x is read once: a block keeps 8 pieces per thread while the statistics are made, 32 KiB where these have 16
//          bytes. The 2, 4 or 8 blocks of a cluster read each other's moments in distributed shared memory. Larger
//          samples, and GPUs without clusters, are for group_norm.cu, which reads x twice.
// Accuracy: means are of distances from a group's first element, a block's variance by two passes over what it keeps;
//          those of a cluster are merged by Chan's formula. The order is fixed: a thread's rows, its channels of a
//          column, the rows of a warp, those of a block and the columns of a group by their team, block after block.
// Requires: 16-byte aligned tensors; a walk (reduce.cuh) of one tile, whose chunks are the blocks of the cluster and
//          have at most HELD rows for each thread.
// Threads: a cluster per sample; threads as in a walk down columns.
// Measured: H100 SXM, 134 MB of maps in 32 groups: 91 % of the bandwidth of a copy in float32, 89 % in bfloat16.
#include "channel_norm.cuh"
#include "ptx_sm90.cuh"
#include "thread_pieces.cuh"

#if !defined(__CUDACC__) || !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTERS 1  // the emulated device has them too
#else
#define HAS_CLUSTERS 0
#endif

// How the threads of a block add up the channels of a group; from the host, as it costs no registers so.
struct Adding {
  int k, groups;        // channels of a group, and how many groups
  int groups_of_teams;  // these, up to a multiple of what the teams of a warp take
  int columns;          // of sums:
  int column_bits;      // 2^column_bits neighbouring channels that lie in one piece and one group
  int in_warps;         // whether the threads of a warp have whole rows of a power of two of pieces
  int team_bits;        // 2^team_bits threads add up a group,
  int side_bits;        // 2^side_bits of them side by side in a row of sums
};

// The sums of s over the rows of a warp or of a thread, a column of STEP channels each, in shared memory.
template <int STEP, int N>
INLINE void add_rows(float (&s)[N], float *sums, const Walk &w, const Adding &by, int row, int column) {
  UNROLL for (int half = 1; half < STEP; half *= 2)
    UNROLL for (int lane = 0; lane < N; lane += 2 * half) s[lane] += s[lane + half];
  int rows = w.step;
  if (by.in_warps) {
    for (int bits = 16; bits >= w.width; bits /= 2)
      UNROLL for (int lane = 0; lane < N; lane += STEP) s[lane] += __shfl_xor_sync(~0u, s[lane], bits);
    row = threadIdx.x % 32 < w.width ? threadIdx.x / 32 : THREADS, rows = THREADS / 32;
  }
  if (row >= rows) return;
  sums += row * by.columns + column / STEP;
  UNROLL for (int lane = 0; lane < N; lane += STEP) sums[lane / STEP] = s[lane];
}

// use(group, the sum of s over its channels and the block's rows) in one thread; s is lost. All threads call it.
template <int N, class Use>
INLINE void add_up(float (&s)[N], float *sums, const Walk &w, const Adding &by, int row, int column, const Use &use) {
  if (by.column_bits == 0) add_rows<1>(s, sums, w, by, row, column);
  if constexpr (N >= 2)
    if (by.column_bits == 1) add_rows<2>(s, sums, w, by, row, column);
  if constexpr (N >= 4)
    if (by.column_bits == 2) add_rows<4>(s, sums, w, by, row, column);
  if constexpr (N >= 8)
    if (by.column_bits == 3) add_rows<8>(s, sums, w, by, row, column);
  __syncthreads();

  const int member = threadIdx.x & ((1 << by.team_bits) - 1), side = 1 << by.side_bits;
  const int of_group = by.k >> by.column_bits, rows = by.in_warps ? THREADS / 32 : w.step;
  for (int group = threadIdx.x >> by.team_bits; group < by.groups_of_teams; group += THREADS >> by.team_bits) {
    float sum = 0;
    if (group < by.groups) {
      for (int c = member & (side - 1); c < of_group; c += side) {
        const float *at = sums + group * of_group + c;
        UNROLL_BY(4) for (int r = member >> by.side_bits; r < rows; r += 1 << (by.team_bits - by.side_bits))
          sum += at[r * by.columns];
      }
    }
    for (int bits = 1 << by.team_bits >> 1; bits; bits /= 2) sum += __shfl_xor_sync(~0u, sum, bits);
    if (group < by.groups && !member) use(group, sum);
  }
}

// f(channel - first, its group) for `N` channels
template <int N, class F> INLINE void each_group(int first, const Adding &by, const F &f) {
  unsigned channel = first;
  ptx::forget(channel);  // the groups are found anew each time: kept, they would take registers
  int group = channel / unsigned(by.k), left = by.k - int(channel - group * by.k);
  UNROLL for (int lane = 0; lane < N; lane++) {
    f(lane, group);
    if (--left == 0) left = by.k, group++;
  }
}

// Where that block of the cluster has what this one has at p.
template <int BLOCKS, class P> INLINE const P *peer(const P *p, int block) {
  if constexpr (BLOCKS > 1) return ptx::cluster_map(p, block);
  return p;
}

template <class T, int N, int BLOCKS>
INLINE void normalize_held(const T *__restrict__ x, const SampleNorm<T> &norm, T *__restrict__ y, float eps,
                           const Walk &w, const Adding &by) {
  DYNAMIC_SHARED(unsigned char, shared);
  ThreadPieces<T, N, HELD> held(shared);
  float2 *statistic = reinterpret_cast<float2 *>(shared + (N == 1 ? 0 : HELD * THREADS * 16));
  float2 *moments = statistic + by.groups;  // the means over this block's rows, the squared distances from them
  float *sums = reinterpret_cast<float *>(moments + by.groups);
  const int sample = blockIdx.x / BLOCKS, block = blockIdx.x % BLOCKS, pixels = w.rows, chunk = w.chunk;
  const auto rows_of = [&](int k) { return max(0, min(chunk, pixels - k * chunk)); };
  const auto origin = [&](int group) { return origin_at(x + i64(sample) * pixels * w.width * N + group * by.k); };
  const int row = threadIdx.x / w.width, first = (threadIdx.x - row * w.width) * N, stride = w.step * w.width * N;
  const int behind = row < w.step ? rows_of(block) : 0;  // rows row, row + w.step, ... before it are mine
  const i64 offset = (i64(sample) * pixels + block * chunk + row) * w.width * N + first;

  UNROLL for (int j = 0; j < HELD; j++) {
    const bool there = row + j * w.step < behind;
    held.fetch(j, there ? x + offset + j * stride : x, there);
  }
  held.commit();
  float s[N] = {}, v[N], middle[N];
  each_group<N>(first, by, [&](int lane, int group) { middle[lane] = origin(group); });
  held.template wait<0>();
  UNROLL for (int j = 0; j < HELD; j++) {
    if (row + j * w.step >= behind) break;
    held.get(v, j);
    UNROLL for (int lane = 0; lane < N; lane++) s[lane] += v[lane] - middle[lane];
  }
  add_up(s, sums, w, by, row, first,
         [&](int group, float sum) { moments[group].x = sum / (max(1, rows_of(block)) * by.k); });
  __syncthreads();
  each_group<N>(first, by, [&](int lane, int group) { middle[lane] = origin(group) + moments[group].x; });
  UNROLL for (int lane = 0; lane < N; lane++) s[lane] = 0;
  UNROLL for (int j = 0; j < HELD; j++) {
    if (row + j * w.step >= behind) break;
    held.get(v, j);
    UNROLL for (int lane = 0; lane < N; lane++) s[lane] += (v[lane] - middle[lane]) * (v[lane] - middle[lane]);
  }
  add_up(s, sums, w, by, row, first, [&](int group, float sum) {
    const float rest = Rounded(origin(group), moments[group].x).rest, more = rest * rest * (rows_of(block) * by.k);
    moments[group].y = sum < more ? 0 : sum - more;
  });
  if constexpr (BLOCKS > 1) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  } else {
    __syncthreads();
  }
  UNROLL_BY(1) for (int group = threadIdx.x; group < by.groups; group += THREADS) {
    const float size = float(pixels) * by.k;
    float center = 0, squares = 0;
    UNROLL for (int k = 0; k < BLOCKS; k++) center += peer<BLOCKS>(moments + group, k)->x * (rows_of(k) * by.k);
    center /= size;
    UNROLL_BY(1) for (int k = 0; k < BLOCKS; k++) {
      const float2 of = *peer<BLOCKS>(moments + group, k);
      squares += of.y + (of.x - center) * ((of.x - center) * (rows_of(k) * by.k));
    }
    const float root = 1 / sqrtf(squares / size + eps);
    statistic[group] = make_float2(center, root);
    if (!block) norm.put(i64(sample) * by.groups + group, Rounded(origin(group), center), root);
  }
  __syncthreads();
  if constexpr (BLOCKS > 1) ptx::cluster_arrive_relaxed();  // `statistic` has what was read: no read is on its way

  if (row < behind) {
    float scale[N], shift[N];
    norm.load_scale(scale, first);
    norm.load_shift(shift, first);
    each_group<N>(first, by, [&](int lane, int group) {
      const float2 of = statistic[group];
      const Rounded mean(origin(group), of.x);
      middle[lane] = mean.value;
      scale[lane] *= of.y, shift[lane] -= mean.rest * scale[lane];
    });
    UNROLL for (int j = 0; j < HELD; j++) {
      if (row + j * w.step >= behind) break;
      held.get(v, j);
      UNROLL for (int lane = 0; lane < N; lane++)
        v[lane] = standardized(v[lane] - middle[lane], scale[lane], shift[lane]);
      store_floats(y + offset + j * stride, v);
    }
  }
  if constexpr (BLOCKS > 1) ptx::cluster_wait();  // distributed shared memory is there until all have read it
}

// ---- entries, see PIECE_KERNELS

#if HAS_CLUSTERS
#define CLUSTER(BLOCKS) __cluster_dims__(BLOCKS, 1, 1)
#define HOLDERS(BLOCKS) BLOCKS
#else
#define CLUSTER(BLOCKS)
#define HOLDERS(BLOCKS) 1  // never launched
#endif
#define RESIDENT(N, BLOCKS) (THREADS, N == 1 || N * BLOCKS > 32 ? 4 : 5)  // blocks that registers suffice for
#define ENTRY(name, T, N, BLOCKS, attribute) \
  ALPHA_ENTRY(name, RESIDENT(N, BLOCKS) attribute, \
              (const T *x, const SampleNorm<T> norm, T *y, float eps, const Walk w, const Adding by), \
              normalize_held<T, N, HOLDERS(BLOCKS)>(x, norm, y, eps, w, by))
#define PIECES(T, suffix, N) \
  ENTRY(block##suffix, T, N, 1, ) \
  ENTRY(cluster_2##suffix, T, N, 2, CLUSTER(2)) \
  ENTRY(cluster_4##suffix, T, N, 4, CLUSTER(4)) \
  ENTRY(cluster_8##suffix, T, N, 8, CLUSTER(8))
PIECE_KERNELS(PIECES)
