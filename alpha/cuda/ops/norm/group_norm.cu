// What:    group norm: x of (samples, pixels, C), statistics of each (sample, group of k neighbouring channels)
//          forward   y = (x - mean) * (gamma * istd) + (beta - rest * gamma * istd),  istd = 1 / sqrt(var + eps)
//          backward  dx = istd * g * gamma + (x - mean) * slope + offset, v = g * gamma,
//                    slope = -istd^2 * mean(v * xhat),  offset = -istd * mean(v) - rest * slope,
//                    xhat = (x - mean - rest) * istd,  rest: what rounding has left out of mean
//                    totals[sample][dgamma, dbeta][C] = sums of g * xhat and of g over the pixels
// Source:  arXiv 1803.08494.
// Layout:  contiguous; a piece is 16 bytes of a pixel, or 1 element where C is not a multiple of that.
// Passes:  of channel_norm.cuh, both in one launch, so that the one that writes finds x in the L2 cache: blocks draw
//          tickets. The first `lag` of them sum, then every other one writes what was summed `lag` tasks before. The
//          last block that sums in a sample computes its statistics; those that write wait for them. A block waits
//          for blocks with lower tickets only, which therefore run and wait for nobody, or are done.
// Requires: 16-byte aligned tensors; tickets[1 + samples] zero, which is how the launch leaves them.
// Threads: as in a walk down columns (reduce.cuh).
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): 92 %, 5.5 times PyTorch's
#include "channel_norm.cuh"

struct Turns { unsigned *tickets, tasks, lag; };

// sum(task) and write(task) for all of `tasks`, `share` per sample, and between them finish(sample).
template <class Sum, class Finish, class Write>
INLINE void in_turns(const Turns &all, unsigned share, const Sum &sum, const Finish &finish, const Write &write) {
  unsigned *const tickets = all.tickets;
  const unsigned tasks = all.tasks, lag = all.lag;
  __shared__ unsigned drawn;
  __shared__ bool last;
  if (threadIdx.x == 0) {
    drawn = atomicAdd(tickets, 1u);
    if (drawn == 2 * tasks - 1) atomicExch(tickets, 0u);
  }
  __syncthreads();
  const unsigned ticket = drawn, later = tasks - lag;  // the sums that take turns with writes
  const bool turns = ticket >= lag && ticket < lag + 2 * later;
  const bool writes = ticket >= lag && (!turns || (ticket - lag) % 2);
  const unsigned task = ticket < lag ? ticket : !turns ? ticket - lag - later : (ticket - lag) / 2 + (writes ? 0 : lag);
  unsigned *arrived = tickets + 1 + task / share;  // counts `share` sums, the finish, and `share` writes
  if (writes) {
    if (threadIdx.x == 0) {
      while (atomicAdd(arrived, 0u) <= share) __nanosleep(100);
      if (atomicAdd(arrived, 1u) == 2 * share) atomicExch(arrived, 0u);
      __threadfence();
    }
    __syncthreads();
    write(task);
    return;
  }
  sum(task);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(arrived, 1u) == share - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  finish(task / share);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
  }
}

// Threads that share the work on one of many short lists: a power of two, up to a warp.
INLINE int team_for(i64 length) {
  int team = 1;
  while (team < length && team < 32) team *= 2;
  return team;
}

template <class T, int N>
INLINE void normalize(const T *__restrict__ x, const SampleNorm<T> &norm, T *__restrict__ y, float eps, float *partial,
                      const Turns &turns, const Walk &w, int k) {
  const i64 channels = w.columns * N;
  const int groups = channels / k;
  auto sum = [&](unsigned task) { statistics<T, N>(x, partial, w, Place(w, task), k); };
  auto finish = [&](unsigned sample) {
    const float *means = partial + 2 * sample * channels * w.chunks, *m2s = means + channels * w.chunks;
    const int length = k * w.chunks, team = team_for(length);
    for (int first = 0; first < groups; first += THREADS / team) {
      const int group = first + threadIdx.x / team, mine = group < groups ? group : groups - 1;
      const Chunks chunks{means + i64(mine) * length, m2s + i64(mine) * length, w};
      const MeanAndVariance of(chunks, length, w.rows * k, threadIdx.x % team, team, FoldGroup<1>());
      if (group != mine || threadIdx.x % team) continue;
      const float origin = origin_at(x + sample * w.rows * channels + group * k);
      norm.put(sample * groups + group, Rounded(origin, of.mean), float(1 / sqrt(of.var + eps)));
    }
  };
  auto write = [&](unsigned task) {
    apply<T, N, true>(x, Nothing(), norm, Results<T, N>{y}, -INFINITY, w, Place(w, task), k);
  };
  in_turns(turns, w.tiles * w.chunks, sum, finish, write);
}

template <class T, int N>
INLINE void gradient(const T *__restrict__ g, const T *__restrict__ x, const SampleNorm<T> &norm, T *__restrict__ dx,
                     float *totals, float *coefficients, float *partial, const Turns &turns, const Walk &w, int k) {
  const i64 channels = w.columns * N, groups = channels / k, share = w.tiles * w.chunks;
  const i64 items = turns.tasks / share * groups;
  auto sum = [&](unsigned task) { sums<T, N, false>({g, w.columns * N}, x, norm, partial, w, Place(w, task), k); };
  auto finish = [&](unsigned sample) {
    const float *sums_of = partial + 2 * sample * channels * w.chunks, *dots_of = sums_of + channels * w.chunks;
    float *dgamma = totals + 2 * sample * channels, *dbeta = dgamma + channels;
    int team = team_for(w.chunks);
    for (i64 first = 0; first < channels; first += THREADS / team) {
      const i64 channel = first + threadIdx.x / team, mine = channel < channels ? channel : channels - 1;
      double from = 0, dot = 0;
      for (int j = threadIdx.x % team; j < w.chunks; j += team) {
        from += sums_of[mine * w.chunks + j];
        dot += dots_of[mine * w.chunks + j];
      }
      from = fold_group(from, team, Add());
      dot = fold_group(dot, team, Add());
      if (channel != mine || threadIdx.x % team) continue;
      const i64 item = sample * groups + channel / k;
      dgamma[channel] = float((dot - from * norm.rest_of(item)) * norm.istd[item]);
      dbeta[channel] = float(from);
    }
    __syncthreads();
    team = team_for(k);
    for (i64 first = 0; first < groups; first += THREADS / team) {
      const i64 group = first + threadIdx.x / team, mine = group < groups ? group : groups - 1;
      double from = 0, dot = 0;
      for (i64 c = mine * k + threadIdx.x % team; c < (mine + 1) * k; c += team) {
        float scale[1];
        norm.load_scale(scale, c);
        from += double(scale[0]) * dbeta[c];
        dot += double(scale[0]) * dgamma[c];
      }
      from = fold_group(from, team, Add());
      dot = fold_group(dot, team, Add());
      if (group != mine || threadIdx.x % team) continue;
      const i64 item = sample * groups + group;
      const double root = norm.istd[item], count = double(w.rows) * k, slope = -root * root * dot / count;
      coefficients[item] = float(slope);
      coefficients[items + item] = float(-root * from / count - slope * norm.rest_of(item));
    }
  };
  auto write = [&](unsigned task) {
    const Pitched<T> rows{g, w.columns * N};
    gradient<T, N, false, true>(rows, x, norm, coefficients, Results<T, N>{dx}, w, Place(w, task), items, k);
  };
  in_turns(turns, share, sum, finish, write);
}

// ---- entries, see PIECE_KERNELS

#define PIECES(T, suffix, N) \
  ALPHA_ENTRY(normalize##suffix, (THREADS, 4), (const T *x, const SampleNorm<T> norm, T *y, float eps, float *partial, \
                                                const Turns turns, const Walk w, int k), \
              normalize<T, N>(x, norm, y, eps, partial, turns, w, k)) \
  ALPHA_ENTRY(gradient##suffix, (THREADS, 3), \
              (const T *g, const T *x, const SampleNorm<T> norm, T *dx, float *totals, float *coefficients, \
               float *partial, const Turns turns, const Walk w, int k), \
              gradient<T, N>(g, x, norm, dx, totals, coefficients, partial, turns, w, k))
PIECE_KERNELS(PIECES)
