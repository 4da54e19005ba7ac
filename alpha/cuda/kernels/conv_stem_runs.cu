// The first layer again, for filters that shared memory holds whole: positions side by side share what they read.
//
//   what      stem_runs_fprop and stem_runs_dgrad compute what stem_fprop and stem_dgrad do (conv_stem.cu), in the same
//             layouts, and take the same classes and work lists; a tile is a number of runs
//   run       RUN neighbouring positions of a line of a class, or all of a shorter one. The last run of a line begins
//             so early that it is whole, and leaves what the run before it has stored. Where neighbouring taps read
//             neighbouring positions a run goes through TAPS taps of a line at once: RUN + TAPS - 1 pixels in registers
//             serve RUN * TAPS pairs of position and tap
//   ahead     a register that has been used for the last time gets the pixel that takes its place in the next step,
//             which may be the first one of the next tile: memory is never waited for, and there is no barrier
//   fprop     8 neighbouring threads share a run and have 8 output channels each
//   dgrad     16 neighbouring threads share a run and have a quad of output channels each; their sums meet in exchanges
//             that halve the positions that a thread still holds
//   requires  one group, IC = CHANNELS <= 4; all taps of IC and COLS (64) channels fit into the dynamic shared memory;
//             dgrad: OC is a multiple of 4, at most 64
#include "conv_slab.cuh"

constexpr int IC = CHANNELS, THREADS = 128, RUN = 8;
constexpr int FPROP_LANES = 8, DGRAD_LANES = 16, COLS = 64;  // threads of a run; output channels of a block

struct StemTensors {
  const float *in;
  float *out;
  long long in_image, out_image;  // elements of an image
  int images;
};

struct StemPlace {  // of a run in the tensor that is written
  long long first;  // elements up to its first position
  unsigned stored;  // bit i: position i is stored by this run
};

// What a block works on. Read anew whenever it is needed: what is made of it beforehand takes registers that the
// accumulators need.
struct StemWork {
  SlabClass c;
  int tile, end, column_tile;       // the tiles of the block
  int lines, height, runs_of_line;  // of the class: lines of all images, of one; runs of a line

  __device__ __forceinline__ void fill(const SlabClass *classes, const int4 &item, int images) {
    c = classes[item.x];
    tile = item.y, end = item.y + item.z, column_tile = item.w;
    lines = c.rows / c.width, height = lines / images, runs_of_line = (c.width + RUN - 1) / RUN;
  }
};
using Work = const volatile StemWork;

// Goes through the steps of all tiles of a block: where a step begins to read, and how many pixels of it there are.
template <int TAPS, int RUNS> struct StemWalk {
  const float *from;
  int there;               // 0 behind the last tile
  int steps, lines, tile;  // steps left of the line, lines left of the tile

  // of a tile: begins with its first step; `offset`: channels to the left of this thread's
  __device__ __forceinline__ void start(const StemTensors &t, Work &s, int offset, StemPlace *places) {
    const unsigned run = tile * RUNS + threadIdx.x / (THREADS / RUNS), row = run / (unsigned)s.runs_of_line;
    const unsigned image = row / (unsigned)s.height;
    const int first = (run - row * s.runs_of_line) * RUN, width = s.c.width, w = max(0, min(first, width - RUN));
    const int h = row - image * s.height, end = tile < s.end && row < s.lines ? min(RUN, width - w) : 0;
    places[tile % 2 * THREADS + threadIdx.x] = {
        image * t.out_image + (s.c.out + h * s.c.out_h + w * s.c.out_w),
        (1u << end) - (1u << min(end, first - w))};
    steps = s.c.taps_w / TAPS, lines = s.c.taps_h;
    there = end && steps ? end + TAPS - 1 : 0;
    from = t.in + (image * t.in_image + (s.c.in + h * s.c.in_h + w * s.c.in_w) + offset);
  }
  __device__ __forceinline__ void next(const StemTensors &t, Work &s, int offset, StemPlace *places) {
    if (--steps > 0) {
      from += TAPS * s.c.tap_in_w;
    } else if (--lines > 0) {
      steps = s.c.taps_w / TAPS;
      from += s.c.tap_in_h - (s.c.taps_w - TAPS) * s.c.tap_in_w;
    } else {
      tile++;
      start(t, s, offset, places);
    }
  }
};

// Copies the filters of COLS output channels to shared memory: element (tap, ic) of channel col to the place that
// `place` says. Channels that do not exist get zeros.
template <class Place>
__device__ __forceinline__ void stem_filters(const float *w, const SlabClass &c, int first, int columns, int w_row,
                                             Place place) {
  for (int e = threadIdx.x; e < c.taps_h * c.taps_w * IC * COLS; e += THREADS) {
    const int ic = e % IC, tap = e / IC % (c.taps_h * c.taps_w), col = e / (IC * c.taps_h * c.taps_w);
    const int h = tap / c.taps_w, offset = c.w + h * c.tap_w_h + (tap - h * c.taps_w) * c.tap_w_w + ic;
    place(tap, ic, col) = first + col < columns ? w[(long long)(first + col) * w_row + offset] : 0.f;
  }
  __syncthreads();
}

// The columns of one thread of a run, to be added and stored.
struct StemColumns {
  const float *bias;
  int columns, col[2];

  __device__ __forceinline__ void start(float (&acc)[RUN][8]) const {
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int at = col[j / 4] + j % 4;
      const float b = bias && at < columns ? bias[at] : 0.f;
#pragma unroll
      for (int i = 0; i < RUN; i++) acc[i][j] = b;
    }
  }
  __device__ __forceinline__ void store(float (&acc)[RUN][8], float *to, const StemPlace &place, int out_w, bool relu) const {
    if (relu) {
#pragma unroll
      for (int i = 0; i < RUN; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) acc[i][j] = acc[i][j] < 0.f ? 0.f : acc[i][j];  // keeps NaN
    }
#pragma unroll
    for (int i = 0; i < RUN; i++) {
      if (!(place.stored >> i & 1)) continue;
      float *out = to + (place.first + i * out_w);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float *v = acc[i] + half * 4;
        if (columns % 4 == 0) {
          if (col[half] < columns) *reinterpret_cast<float4 *>(out + col[half]) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
#pragma unroll
          for (int q = 0; q < 4; q++)
            if (col[half] + q < columns) out[col[half] + q] = v[q];
        }
      }
    }
  }
};

// AHEAD: runs are whole and their positions are neighbouring pixels, so that every address is a constant away from the
// first. Addresses of other runs take the registers that reading ahead would need: these, at borders, wait.
template <int TAPS, bool AHEAD>
__device__ __forceinline__ void fprop_runs(const StemTensors &t, Work &s, StemPlace *places,
                                           const float *filter, const StemColumns &columns, bool relu) {
  constexpr int SPAN = RUN + TAPS - 1;
  StemWalk<TAPS, THREADS / FPROP_LANES> walk;
  walk.tile = s.tile;
  walk.start(t, s, 0, places);
  float v[SPAN][IC];
  auto load = [&](int ic) {
    const float *from = walk.from + ic;
#pragma unroll
    for (int e = 0; e < SPAN; e++, from += AHEAD ? IC : s.c.in_w)
      if ((AHEAD ? 0 : e) < walk.there) v[e][ic] = *from;
  };
#pragma unroll
  for (int ic = 0; ic < IC; ic++) {
#pragma unroll
    for (int e = 0; e < SPAN; e++) v[e][ic] = 0.f;
    if constexpr (AHEAD) load(ic);
  }
  for (int tile = s.tile; tile < s.end; tile++) {
    float acc[RUN][8];
    columns.start(acc);
    const float *f = filter;
    for (int left = s.c.taps_h * (s.c.taps_w / TAPS); left > 0; left--, f += TAPS * IC * COLS) {
      if constexpr (!AHEAD) {
#pragma unroll
        for (int ic = 0; ic < IC; ic++) load(ic);
      }
      walk.next(t, s, 0, places);
#pragma unroll
      for (int ic = 0; ic < IC; ic++) {
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) {
          const float *at = f + (tap * IC + ic) * COLS;
          const float4 a = *reinterpret_cast<const float4 *>(at), b = *reinterpret_cast<const float4 *>(at + COLS / 2);
          const float u[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
          for (int i = 0; i < RUN; i++)
#pragma unroll
            for (int j = 0; j < 8; j++) acc[i][j] = fmaf(v[i + tap][ic], u[j], acc[i][j]);
        }
        if constexpr (AHEAD) load(ic);
      }
    }
    if (s.c.taps_w == 0) walk.next(t, s, 0, places);
    columns.store(acc, t.out, places[tile % 2 * THREADS + threadIdx.x], s.c.out_w, relu);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
stem_runs_fprop(const float *x, const float *w, const float *b, float *y, const SlabClass *classes, const int4 *work,
                long long x_image, long long y_image, int images, int columns, int w_row, int relu) {
  DYNAMIC_SHARED(float, filter);  // [tap][IC][COLS]
  __shared__ StemWork s;
  __shared__ StemPlace places[2 * THREADS];  // of this tile and the next: a thread reads what it has written
  if (threadIdx.x == 0) s.fill(classes, work[blockIdx.x], images);
  __syncthreads();
  const SlabClass &c = s.c;
  const StemTensors t = {x, y, x_image, y_image, images};
  const int lane = threadIdx.x % FPROP_LANES, first = s.column_tile * COLS;
  stem_filters(w, c, first, columns, w_row,
               [&](int tap, int ic, int col) -> float & { return filter[(tap * IC + ic) * COLS + col]; });
  const StemColumns mine = {b, columns, {first + lane * 4, first + lane * 4 + COLS / 2}};
  if (c.tap_in_w == IC && c.in_w == IC && c.taps_w % 3 == 0 && c.width >= RUN)
    fprop_runs<3, true>(t, s, places, filter + lane * 4, mine, relu);
  else
    fprop_runs<1, false>(t, s, places, filter + lane * 4, mine, relu);
}
ALPHA_KERNEL(stem_runs_fprop)

// Of 2 * HALF positions a lane keeps those that its bit names, with the other lane's part of them, and gives the rest.
template <int HALF> __device__ __forceinline__ void give_half(float (&sum)[RUN][IC], int lane) {
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

// DENSE: runs are whole, and COLS channels of neighbouring positions are neighbours, as in fprop_runs.
template <int TAPS, bool DENSE>
__device__ __forceinline__ void dgrad_runs(const StemTensors &t, Work &s, StemPlace *places,
                                           const float *filter, int oc, bool active) {
  constexpr int SPAN = RUN + TAPS - 1;
  const int lane = threadIdx.x % DGRAD_LANES;
  StemWalk<TAPS, THREADS / DGRAD_LANES> walk;
  walk.tile = s.tile;
  walk.start(t, s, oc, places);
  float v[SPAN][4];
  auto load = [&](int e, int step) {
    if ((DENSE ? 0 : e) >= walk.there || !active) return;
    const float4 a = *reinterpret_cast<const float4 *>(walk.from + e * step);
    v[e][0] = a.x, v[e][1] = a.y, v[e][2] = a.z, v[e][3] = a.w;
  };
#pragma unroll
  for (int e = 0; e < SPAN; e++) {
    v[e][0] = v[e][1] = v[e][2] = v[e][3] = 0.f;
    load(e, DENSE ? COLS : s.c.in_w);
  }
  for (int tile = s.tile; tile < s.end; tile++) {
    float sum[RUN][IC];
#pragma unroll
    for (int i = 0; i < RUN; i++)
#pragma unroll
      for (int ic = 0; ic < IC; ic++) sum[i][ic] = 0.f;
    const float *f = filter;
    for (int left = s.c.taps_h * (s.c.taps_w / TAPS); left > 0; left--, f += TAPS * COLS * IC) {
      walk.next(t, s, oc, places);
      float u[TAPS][4 * IC];
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int q = 0; q < 4 * IC; q += 4) {
          const float4 a = *reinterpret_cast<const float4 *>(f + tap * COLS * IC + q);
          u[tap][q] = a.x, u[tap][q + 1] = a.y, u[tap][q + 2] = a.z, u[tap][q + 3] = a.w;
        }
      const int step = DENSE ? COLS : s.c.in_w;
#pragma unroll
      for (int e = 0; e < SPAN; e++) {
#pragma unroll
        for (int q = 0; q < 4; q++)
#pragma unroll
          for (int tap = 0; tap < TAPS; tap++)
            if (e - tap >= 0 && e - tap < RUN) {
#pragma unroll
              for (int ic = 0; ic < IC; ic++)
                sum[e - tap][ic] = fmaf(v[e][q], u[tap][q * IC + ic], sum[e - tap][ic]);
            }
        load(e, step);
      }
    }
    if (s.c.taps_w == 0) walk.next(t, s, oc, places);
    give_half<4>(sum, lane);
    give_half<2>(sum, lane);
    give_half<1>(sum, lane);
    const int position = lane / 2;
    const StemPlace place = places[tile % 2 * THREADS + threadIdx.x];
#pragma unroll
    for (int ic = 0; ic < IC; ic++) {
      const float total = sum[0][ic] + __shfl_xor_sync(~0u, sum[0][ic], 1);
      if ((place.stored >> position & 1) && (lane & 1) == (ic & 1)) t.out[place.first + position * s.c.out_w + ic] = total;
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
stem_runs_dgrad(const float *g, const float *w, float *dx, const SlabClass *classes, const int4 *work,
                long long g_image, long long x_image, int images, int channels, int w_row) {
  DYNAMIC_SHARED(float, filter);  // [tap][COLS][IC]
  __shared__ StemWork s;
  __shared__ StemPlace places[2 * THREADS];  // of this tile and the next: a thread reads what it has written
  if (threadIdx.x == 0) s.fill(classes, work[blockIdx.x], images);
  __syncthreads();
  const SlabClass &c = s.c;
  stem_filters(w, c, 0, channels, w_row,
               [&](int tap, int ic, int col) -> float & { return filter[(tap * COLS + col) * IC + ic]; });
  const StemTensors t = {g, dx, g_image, x_image, images};
  const int oc = threadIdx.x % DGRAD_LANES * 4;
  const bool slides = c.tap_in_w == c.in_w, active = oc < channels;
  filter += oc * IC;
  if (slides && c.taps_w % 3 == 0 && c.in_w == COLS && c.width >= RUN)
    dgrad_runs<3, true>(t, s, places, filter, oc, active);
  else if (slides && c.taps_w % 3 == 0)
    dgrad_runs<3, false>(t, s, places, filter, oc, active);
  else if (slides && c.taps_w % 2 == 0)
    dgrad_runs<2, false>(t, s, places, filter, oc, active);
  else
    dgrad_runs<1, false>(t, s, places, filter, oc, active);
}
ALPHA_KERNEL(stem_runs_dgrad)
