// What:    group norm: x of (samples, pixels, C), statistics of each (sample, group of k neighbouring channels); and layer
//          norm of long rows: samples of one pixel and one group
//          forward   y = (x - mean) * (gamma * istd) + (beta - rest * gamma * istd),  istd = 1 / sqrt(var + eps)
//          backward  dx = istd * (v + (x - mean) * slope + offset), v = g * gamma,
//                    slope = -istd * mean(v * xhat),  offset = -mean(v) - rest * slope,
//                    xhat = (x - mean - rest) * istd,  rest: what rounding has left out of mean
//                    A group of one channel has v = g, and dx = gamma * istd * (...): equal pixels give 0 exactly.
//                    dgamma, dbeta: sums of g * xhat and of g over samples and pixels
// Source:  arXiv 1803.08494.
// Layout:  contiguous; a piece is 16 bytes of a pixel, or 1 element where C is not a multiple of that.
// Passes:  as batch_norm.cu has them, of all samples: statistics (or sums) per chunk of pixels; a kernel that finishes
//          them, a team of threads per group, in double; the pass that writes, beginning where the first one ended.
//          Backward the chunks have partial[sample][chunk][dgamma, dbeta][C], which layer_norm.cu adds up.
// Requires: 16-byte aligned tensors; k times the chunks of a sample less than 2^31.
// Threads: as in a walk down columns (reduce.cuh).
// Measured: H200, 128 maps of 32x32x256 in 32 groups, us, forward / backward: float32 116 / 185, bfloat16 69 / 109
#include "channel_norm.cuh"

// Which threads finish a group of a sample.
struct Teams {
  i64 items;     // samples * groups
  int k, width;  // channels of a group; threads of a team, a power of two
};
struct Team {
  i64 item, sample, channel;  // channel: the group's first
  int lane;
  bool there;                 // else the last group is some other team's
  INLINE Team(const Teams &of, i64 channels) : lane(threadIdx.x % of.width) {
    const i64 mine = i64(blockIdx.x) * (THREADS / of.width) + threadIdx.x / of.width, groups = channels / of.k;
    there = mine < of.items, item = there ? mine : of.items - 1;
    sample = item / groups, channel = item % groups * of.k;
  }
};

template <class T, int N>
INLINE void finish(const T *x, const float *partial, const SampleNorm<T> &norm, float eps, const Walk &w,
                   const Teams &teams) {
  const i64 channels = w.columns * N;
  const Team team(teams, channels);
  const float *means = partial + (2 * team.sample * channels + team.channel) * w.chunks;
  const Chunks chunks{means, means + channels * w.chunks, w};
  const MeanAndVariance of(chunks, teams.k * w.chunks, w.rows * teams.k, team.lane, teams.width, FoldGroup<1>());
  if (team.lane || !team.there) return;
  const float origin = origin_at(x + team.sample * w.rows * channels + team.channel);
  Rounded middle(origin, of.mean);
  float root = float(1 / sqrt(of.var + eps));
  if (!(of.var < double(INFINITY)))
    root = wide_statistics(x + team.sample * w.rows * channels + team.channel, w.rows, channels, teams.k, eps, origin,
                           middle);
  norm.put(team.item, middle, root);
}

template <class T, int N>
INLINE void group_sums(const T *g, const T *x, const SampleNorm<T> &norm, float *partial, const Walk &w, int k) {
  const Place at(w);
  const i64 first = at.column * N, channels = w.columns * N;
  sum_gradient<Pair, N, false, true>(Pitched<T>{g, channels}, x, norm, w, at, k, [&](Pair (&s)[N]) {
    fold_rows<N>(s, w, MergePairs());
    if (threadIdx.x >= w.width || at.column >= w.columns) return;
    const Sharing shared(at.sample, channels, k);
    float *dgamma = partial + 2 * (i64(at.sample) * w.chunks + at.chunk) * channels + first, *dbeta = dgamma + channels;
    UNROLL for (int lane = 0; lane < N; lane++) {
      const i64 item = shared(first + lane);
      dgamma[lane] = s[lane].dot - s[lane].sum * (norm.rest_of(item) * norm.istd[item]);
      dbeta[lane] = s[lane].sum;
    }
  });
}

// coefficients[2][sample, group] = slope, offset, of gradients to be multiplied by istd (and by gamma, if k is 1)
template <class T, int N>
INLINE void finish_gradient(const float *partial, const SampleNorm<T> &norm, float *coefficients, const Walk &w,
                            const Teams &teams) {
  const i64 channels = w.columns * N;
  const Team team(teams, channels);
  partial += 2 * team.sample * w.chunks * channels + team.channel;
  double from = 0, dot = 0;
  UNROLL_BY(4) for (int j = team.lane; j < teams.k * w.chunks; j += teams.width) {
    const int chunk = j / teams.k, channel = j - chunk * teams.k;
    const float *dgamma = partial + 2 * chunk * channels + channel;
    float scale[1] = {1};
    if (teams.k > 1) norm.load_scale(scale, team.channel + channel);
    dot += double(scale[0]) * dgamma[0];
    from += double(scale[0]) * dgamma[channels];
  }
  dot = fold_group(dot, teams.width, Add());
  from = fold_group(from, teams.width, Add());
  if (team.lane || !team.there) return;
  const double count = double(w.rows) * teams.k, slope = -norm.istd[team.item] * dot / count;
  coefficients[team.item] = float(slope);
  coefficients[teams.items + team.item] = float(-from / count - slope * norm.rest_of(team.item));
}

// Differences of the size of g come before the product with istd, which may be 1 / sqrt(eps), or beyond float32 squared.
template <class T, int N>
INLINE void group_gradient(const T *g, const T *x, const SampleNorm<T> &norm, const float *coefficients, T *dx,
                           const Walk &w, const Place &at, i64 items, int k) {
  if (at.begin >= at.end) return;
  const i64 first = at.column * N, stride = w.columns * N;
  const Sharing shared(at.sample, stride, k);
  Channels<N> c(norm, first, shared);
  float slope[N], offset[N], by[N];
  if (k > 1) norm.load_scale(by, first);
  UNROLL for (int lane = 0; lane < N; lane++) {
    const i64 item = shared(first + lane);
    slope[lane] = coefficients[item], offset[lane] = coefficients[items + item];
    if (k > 1) c.scale[lane] = norm.istd[item];
    else by[lane] = 1;
  }
  const Pitched<T> rows{g, stride};
  each_gradient<false, AHEAD / 2>(rows, x, c, at, w, [&](const float (&v)[N], const float (&away)[N], i64 r) {
    float out[N];
    UNROLL for (int lane = 0; lane < N; lane++)
      out[lane] = c.scale[lane] * __fmaf_rn(away[lane], slope[lane], __fmaf_rn(by[lane], v[lane], offset[lane]));
    store_floats(dx + r * stride + first, out);
  });
}

// ---- entries, see PIECE_KERNELS

#define PIECES(T, suffix, N) \
  ALPHA_ENTRY(statistics##suffix, (THREADS, 4), (const T *x, float *partial, const Walk w, int k), \
              statistics<T, N>(x, partial, w, Place(w), k)) \
  ALPHA_ENTRY(finish##suffix, (THREADS, 4), \
              (const T *x, const float *partial, const SampleNorm<T> norm, float eps, const Walk w, \
               const Teams teams), \
              finish<T, N>(x, partial, norm, eps, w, teams)) \
  ALPHA_ENTRY(apply##suffix, (THREADS, 3), (const T *x, const SampleNorm<T> norm, T *y, const Walk w, int k), \
              apply<T, N>(x, Nothing(), norm, Results<T, N>{y}, -INFINITY, w, BACKWARDS, k)) \
  ALPHA_ENTRY(sums##suffix, SUMMERS, \
              (const T *g, const T *x, const SampleNorm<T> norm, float *partial, const Walk w, int k), \
              group_sums<T, N>(g, x, norm, partial, w, k)) \
  ALPHA_ENTRY(finish_gradient##suffix, (THREADS, 4), \
              (const float *partial, const SampleNorm<T> norm, float *coefficients, const Walk w, const Teams teams), \
              finish_gradient<T, N>(partial, norm, coefficients, w, teams)) \
  ALPHA_ENTRY(gradient##suffix, (THREADS, 3), \
              (const T *g, const T *x, const SampleNorm<T> norm, const float *coefficients, i64 items, T *dx, \
               const Walk w, int k), \
              group_gradient<T, N>(g, x, norm, coefficients, dx, w, BACKWARDS, items, k))
PIECE_KERNELS(PIECES)
