// dgrad of the first layer again, for filters that shared memory holds whole: neighbours share what they read.
//
//   what      stem_runs_dgrad computes what stem_dgrad does (conv_stem.cu), in the same layouts, and takes the same
//             classes and work lists; a tile is a number of runs
//   storage   g and dx are ELEMENT: float, bf16 or f16. w and all arithmetic are float32, and sums are rounded once
//   run       RUN neighbouring positions of a line of a class, or all of a shorter one. The last run of a line begins
//             so early that it is whole, and leaves what the run before it has stored. Where neighbouring taps read
//             neighbouring positions a run goes through TAPS taps of a line at once: RUN + TAPS - 1 pixels in registers
//             serve RUN * TAPS pairs of position and tap
//   ahead     a register that has been used for the last time gets the pixel that takes its place in the next step,
//             which may be the first one of the next tile: memory is never waited for, and there is no barrier. Pixels
//             stay as they are stored until they are multiplied: a conversion behind the load would wait for it
//   threads   RUN_LANES neighbouring ones share a run and have a quad of output channels each; their sums meet in
//             exchanges that halve the positions that a thread still holds
//   requires  one group, IC = CHANNELS <= 4, OC a multiple of 4 and at most COLS; all taps of IC and COLS channels fit
//             into the dynamic shared memory
//   measured  H100 SXM, nvcc 13.0, bursts, 512 images of 32x32, 3 channels from 64, 3x3: 82 us, stem_dgrad 120; what is
//             moved takes 47 at the speed of a copy; 79 in 16 bits. fprop in the same manner (8 lanes of 8 channels)
//             took 89 us where stem_fprop takes 92, and is not here
#include "conv/ffma/conv_slab.cuh"
#include "stem_runs.cuh"

constexpr int IC = CHANNELS, THREADS = 128, RUN = 8;
constexpr int RUN_LANES = 16, COLS = 4 * RUN_LANES;  // threads of a run; output channels

struct StemTensors {
  const ELEMENT *in;
  ELEMENT *out;
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
  int tile, end;                    // the tiles of the block
  int lines, height, runs_of_line;  // of the class: lines of all images, of one; runs of a line

  __device__ __forceinline__ void fill(const SlabClass *classes, const int4 &item, int images) {
    c = classes[item.x];
    tile = item.y, end = item.y + item.z;
    lines = c.rows / c.width, height = lines / images, runs_of_line = (c.width + RUN - 1) / RUN;
  }
};
using Work = const volatile StemWork;

// Goes through the steps of all tiles of a block: where a step begins to read, and how many pixels of it there are.
template <int TAPS, int RUNS> struct StemWalk {
  const ELEMENT *from;
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

// Copies the filters to shared memory, [tap][COLS][IC]; channels that do not exist get zeros.
__device__ __forceinline__ void stem_filters(const float *w, const SlabClass &c, int channels, int w_row, float *to) {
  for (int e = threadIdx.x; e < c.taps_h * c.taps_w * IC * COLS; e += THREADS) {
    const int ic = e % IC, tap = e / IC % (c.taps_h * c.taps_w), col = e / (IC * c.taps_h * c.taps_w);
    const int h = tap / c.taps_w, offset = c.w + h * c.tap_w_h + (tap - h * c.taps_w) * c.tap_w_w + ic;
    to[(tap * COLS + col) * IC + ic] = col < channels ? w[(long long)col * w_row + offset] : 0.f;
  }
  __syncthreads();
}

// DENSE: runs are whole, and COLS channels of neighbouring positions are neighbours, so that every address
// is a constant away from the first.
template <int TAPS, bool DENSE>
__device__ __forceinline__ void dgrad_runs(const StemTensors &t, Work &s, StemPlace *places,
                                           const float *filter, int oc, bool active) {
  constexpr int SPAN = RUN + TAPS - 1;
  const int lane = threadIdx.x % RUN_LANES;
  StemWalk<TAPS, THREADS / RUN_LANES> walk;
  walk.tile = s.tile;
  walk.start(t, s, oc, places);
  Quad<ELEMENT> v[SPAN];
  auto load = [&](int e, int step) {
    if ((DENSE ? 0 : e) < walk.there && active) v[e].load(walk.from + e * step);
  };
#pragma unroll
  for (int e = 0; e < SPAN; e++) {
    v[e].clear();
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
                sum[e - tap][ic] = fmaf(v[e].at(q), u[tap][q * IC + ic], sum[e - tap][ic]);
            }
        load(e, step);
      }
    }
    if (s.c.taps_w == 0) walk.next(t, s, oc, places);
    fold_run(sum, lane);
    const int position = lane / 2;
    const StemPlace place = places[tile % 2 * THREADS + threadIdx.x];
#pragma unroll
    for (int ic = 0; ic < IC; ic++) {
      if ((place.stored >> position & 1) && (lane & 1) == (ic & 1))
        t.out[place.first + position * s.c.out_w + ic] = from_float<ELEMENT>(sum[0][ic]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
stem_runs_dgrad(const ELEMENT *g, const float *w, ELEMENT *dx, const SlabClass *classes, const int4 *work,
                long long g_image, long long x_image, int images, int channels, int w_row) {
  DYNAMIC_SHARED(float, filter);  // [tap][COLS][IC]
  __shared__ StemWork s;
  __shared__ StemPlace places[2 * THREADS];  // of this tile and the next: a thread reads what it has written
  if (threadIdx.x == 0) s.fill(classes, work[blockIdx.x], images);
  __syncthreads();
  const SlabClass &c = s.c;
  stem_filters(w, c, channels, w_row, filter);
  const StemTensors t = {g, dx, g_image, x_image, images};
  const int oc = threadIdx.x % RUN_LANES * 4;
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
