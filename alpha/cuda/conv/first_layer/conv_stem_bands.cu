// dgrad of the first layer, 3x3 filters that move by one: a line of g is read once, for the three of dx it adds to.
//
//   what      dx[n][ih][iw][ic] = sum over fh, fw, oc of g[n][ih + pad_h - fh][iw + pad_w - fw][oc] * w[oc][fh][fw][ic]
//   layout    g (N, OH, OW, OC), dx (N, IH, IW, IC), both NHWC of ELEMENT (float, bf16 or f16); w (OC, 3, 3, IC) and
//             all arithmetic are float32, and sums are rounded once
//   run       RUN neighbouring positions of a line of dx, which read RUN + 2 of one of g. What the last run of a line
//             has beyond the line's end is not stored
//   band      the lines of dx that a run goes through. A line of g completes one of them; adds to the next one, whose
//             sums thereby move to where those of the complete one were; and begins the one behind that, where those of
//             the next one were. So two lines of sums are in registers, and nothing is moved; what the last but one
//             line of g begins belongs to the next band, and is dropped. Every other band goes upwards, so that
//             neighbours read at the same time what they share
//   sums      of a position: the lines of taps in the order of its band's way, within one the pixels of g from left to
//             right, within one the channels of a thread; then those of the threads, by exchanges
//   zeros     lines of g that do not exist are left out. Pixels beyond both ends of a line are zeros in registers, and
//             are multiplied: to leave them out takes branches in the inner loop. Where a weight is not finite that
//             makes NaN: then positions that such pixels are next to are summed up beforehand, from what exists alone
//   ahead     a register that has been used for the last time gets what takes its place in the next line: pixels stay
//             as they are stored until they are multiplied
//   threads   RUN_LANES neighbouring ones share a run and have a quad of output channels each; their sums meet in
//             exchanges that halve the positions that a thread still holds. A warp has a unit: a band of two runs, of
//             one image or of two. Bands of the same runs are neighbours, so that blocks share what they read
//   filter    w in shared memory, [fh][2 - fw][ic][STEP], COLS of them used: read without conflicts, written with few
//   requires  one group; 3x3 filters, stride and dilation 1; IC = CHANNELS <= 4; OC a multiple of 4 and at most COLS:
//             with fewer some threads have no work; an image of g or dx has fewer than 2^31 elements
//   measured  H100 SXM, nvcc 13.0, bursts, 512 images of 32x32, 3 channels from 64: 57 us, stem_dgrad 120; what is
//             moved takes 47 at the speed of a copy, and stem_runs_dgrad 82
#include <string.h>

#include "stem_runs.cuh"

constexpr int IC = CHANNELS, THREADS = 128, WARPS = THREADS / 32, RUN = 8, TAPS = 3, SPAN = RUN + TAPS - 1;
constexpr int BLOCKS = IC < 4 ? 4 : 3;                              // on a multiprocessor
constexpr int RUN_LANES = 16, COLS = 4 * RUN_LANES;                 // threads of a run; output channels
constexpr int STEP = COLS + 4, TAP = IC * STEP, LINE = TAPS * TAP;  // floats of an ic, of a tap, of a line of taps

struct BandShape {
  int images, ih, iw, oh, ow, oc, pad_h, pad_w;
  int runs, height, bands;  // of a line; lines of a band; bands of an image
};

using Sums = float[RUN][IC];

// Returns whether what this thread copies is finite.
__device__ __forceinline__ bool copy_filters(const float *w, int channels, float *to) {
  constexpr int ROW = TAPS * TAPS * IC, EACH = (COLS * ROW + THREADS - 1) / THREADS;
  float mine[EACH], zero = 0.f;
#pragma unroll
  for (int i = 0; i < EACH; i++) mine[i] = w[min(i * THREADS + (int)threadIdx.x, channels * ROW - 1)];
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int e = i * THREADS + threadIdx.x, oc = e / ROW, tap = e % ROW / IC, ic = e % IC;
    const int mirrored = tap / TAPS * TAPS + TAPS - 1 - tap % TAPS;
    if (oc < COLS) to[mirrored * TAP + ic * STEP + oc] = oc < channels ? mine[i] : 0.f;
    zero = fmaf(mine[i], 0.f, zero);
  }
  return zero == 0.f;
}

// sum = before + products of a line of g with a line of taps; behind(e): pixel e has been used for the last time
template <class Behind>
__device__ __forceinline__ void add_products(Sums &sum, const Sums &before, const Quad<ELEMENT> (&v)[SPAN],
                                             const float *taps, Behind behind) {
  Quad<float> u[TAPS][IC];
#pragma unroll
  for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
    for (int ic = 0; ic < IC; ic++) u[tap][ic].load(taps + tap * TAP + ic * STEP);
#pragma unroll
  for (int e = 0; e < SPAN; e++) {
#pragma unroll
    for (int q = 0; q < 4; q++)
#pragma unroll
      for (int tap = 0; tap < TAPS; tap++)
        if (e - tap >= 0 && e - tap < RUN) {
          const bool first = tap == 0 && q == 0;
#pragma unroll
          for (int ic = 0; ic < IC; ic++)
            sum[e - tap][ic] = fmaf(v[e].at(q), u[tap][ic].at(q), (first ? before : sum)[e - tap][ic]);
        }
    behind(e);
  }
}

// The element of dx at (image, h, w, ic), without a product of what does not exist.
__device__ __forceinline__ float exact_sum(const BandShape &s, const ELEMENT *g, const float *weights, int image, int h,
                                           int w, int ic) {
  float sum = 0.f;
#pragma unroll 1
  for (int tap = 0; tap < TAPS * TAPS; tap++) {
    const int oh = h + s.pad_h - tap / TAPS, ow = w + s.pad_w - tap % TAPS;
    if ((unsigned)oh >= (unsigned)s.oh || (unsigned)ow >= (unsigned)s.ow) continue;
    const ELEMENT *from = g + (((long long)image * s.oh + oh) * s.ow + ow) * s.oc;
#pragma unroll 1
    for (int oc = 0; oc < s.oc; oc++)
      sum = fmaf(to_float(from[oc]), weights[(oc * TAPS * TAPS + tap) * IC + ic], sum);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
stem_bands_dgrad(const ELEMENT *g, const float *w, ELEMENT *dx, BandShape s) {
  __shared__ __align__(16) float filter[TAPS * LINE];
  const int lane = threadIdx.x % RUN_LANES, unit = blockIdx.x * WARPS + threadIdx.x / 32, band = unit % s.bands;
  const int asked = unit / s.bands * 2 + threadIdx.x % 32 / RUN_LANES, column = min(asked, s.images * s.runs - 1);
  const int image = column / s.runs, w0 = (column - image * s.runs) * RUN, ow0 = w0 + s.pad_w - (TAPS - 1);
  const int h0 = band * s.height, height = min(s.height, s.ih - h0), way = band % 2 ? -1 : 1;
  const int begin = way > 0 ? h0 : h0 + height - 1;       // line of dx
  int line = begin + s.pad_h - (way > 0 ? TAPS - 1 : 0);  // of g: the first one to add to it
  // bit e: pixel e exists; SPAN, SPAN + 1: the channels of dx with even or odd numbers are stored
  unsigned there = lane * 4 < s.oc ? ((1u << min(SPAN, s.ow - ow0)) - 1) & ~0u << max(0, -ow0) : 0;
  const ELEMENT *from = g + (((long long)image * s.oh + min(max(line, 0), s.oh - 1)) * s.ow + ow0) * s.oc + lane * 4;
  Quad<ELEMENT> v[SPAN] = {};
  const ELEMENT *pixel;
  auto load = [&](int e) {  // from left to right
    if (e == 0) pixel = from;
    if (there >> e & 1) v[e].load(pixel);
    unsigned step = s.oc;
    ptx::forget(step);  // else all ten addresses are in registers before they are needed
    pixel += step;
  };
#pragma unroll
  for (int e = 0; e < SPAN; e++) load(e);
  const bool finite = __syncthreads_and(copy_filters(w, s.oc, filter));
  const float *const taps = filter + (way > 0 ? 0 : (TAPS - 1) * LINE) + lane * 4;  // of the line that is completed
  const int position = lane / 2;
  if (asked == column && w0 + position < s.iw) {
    if (finite || (ow0 + position >= 0 && ow0 + position + TAPS <= s.ow)) {
      there |= 1u << (SPAN + lane % 2);
    } else {
#pragma unroll 1
      for (int h = h0; h < h0 + height; h++)
#pragma unroll 1
        for (int ic = lane % 2; ic < IC; ic += 2)
          dx[(((long long)image * s.ih + h) * s.iw + w0 + position) * IC + ic] =
              from_float<ELEMENT>(exact_sum(s, g, w, image, h, w0 + position, ic));
    }
  }
  ELEMENT *to = dx + (((long long)image * s.ih + begin) * s.iw + w0 + position) * IC;
  Sums done = {}, next = {};
  for (int k = 1 - TAPS; k < height; k++) {
    const bool read = (unsigned)line < (unsigned)s.oh;
    line += way;
    if (k >= 0) {
      if (read) add_products(done, done, v, taps, [](int) {});
      fold_run(done, lane);
#pragma unroll
      for (int ic = 0; ic < IC; ic++) {
        if (there >> (SPAN + ic % 2) & 1) to[ic] = from_float<ELEMENT>(done[0][ic]);
      }
      to += way * s.iw * IC;
    }
    if (read && k + 1 < height) {
      if (k + 1 >= 0) add_products(done, next, v, taps + way * LINE, [](int) {});
      if ((unsigned)line < (unsigned)s.oh) from += way * s.ow * s.oc;
      const Sums zero = {};
      add_products(next, zero, v, taps + way * 2 * LINE, load);
    } else {
      memcpy(done, next, sizeof(Sums));
    }
  }
}
ALPHA_KERNEL(stem_bands_dgrad)
