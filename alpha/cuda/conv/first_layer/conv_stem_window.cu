// The gradient of the first layer's filters again, for 3x3 taps at stride 1: a window of x slides along the lines of g.
//
//   what      dw[oc][fh][fw][ic] = sum over n, oh, ow of g[n][oh][ow][oc] * x[n][oh - pad_h + fh][ow - pad_w + fw][ic]
//   layout    x (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC; dw (OC, 3, 3, IC)
//   work      a warp goes through a range of pixels of g, one after the other, and all warps have equally many. Its
//             halves have the same range of two images, N / 2 apart, so that every branch is common to both
//   threads   a lane has 4 output channels and all taps of all input channels: TAPS * TAPS * IC * 4 sums in registers,
//             to which a pixel adds the products of one quad of g and a window of x, of which it brings one column
//   g         every element is read once, and by one lane: it is copied to that lane's place in a ring in shared
//             memory, DEPTH pixels ahead. The ring knows nothing of lines: these follow each other in memory
//   x         in runs of at most RUN pixels of a line, copied one run ahead. A column is a record of what three lines
//             have there, and 16 lanes read it at once. There is no barrier: warps have nothing in common
//   zeros     where the window is whole, pixels go by threes, in which it has turned once. The others, at borders, and
//             what is left over by the threes, come one by one, and pass over taps and lines that do not exist: no
//             product with padding is made. An image that the second half of a warp lacks is zeros: N is odd
//   end       the sums of a block meet in shared memory. A block has a slot of the workspace, laid out as dw of COLS
//             channels, and sum_slices.cu adds these up; the order is always the same
//   requires  one group, IC = CHANNELS <= 4, OC a multiple of 4 and at most COLS; run <= RUN; an image of x or of g has
//             fewer than 2^31 elements, N * OH * OW < 2^31
//   measured  H100 SXM, nvcc 13.0, bursts, 512 images of 32x32x3 to 64 channels: 67 us, stem_wgrad 85; what is moved
//             takes 47 at the speed of a copy. Three blocks on a multiprocessor in the place of two took 71, and 69
//             with 8 pixels copied ahead in the place of 16; one block of 12 warps 70 and 68
#include "ptx.cuh"

constexpr int IC = CHANNELS, TAPS = 3, RUN = 32, THREADS = 32 * WARPS;
constexpr int LANES = 16, COLS = 4 * LANES;                                  // of half a warp
constexpr int VALUES = TAPS * IC, RECORD = (VALUES + 3) / 4 * 4;             // of a column: floats, and their place
constexpr int PIXEL = 32 * 16, RING = DEPTH * PIXEL;                         // bytes of what a warp has of g
constexpr int COLUMN = 4 * RECORD, COLUMNS = (RUN + TAPS - 1) * COLUMN;      // bytes of what half a warp has of x
constexpr int WARP_BYTES = RING + 4 * COLUMNS, DW = COLS * TAPS * VALUES;
static_assert((DEPTH & (DEPTH - 1)) == 0 && DEPTH > TAPS, "places follow each other in a ring");
static_assert(WARP_BYTES >= 4 * DW, "the sums of a warp take the place of what it reads");

struct Images {
  const float *x;  // the first image of this half of the warp
  int count;       // images from there on
  int ih, iw, oh, ow, pad_h, pad_w, run;
};

struct Run {  // of pixels of a line of g; none behind the last one
  int image, h, w, count;

  __device__ __forceinline__ void cut(const Images &s, int left) { count = min(min(s.run, s.ow - w), left); }
  __device__ __forceinline__ Run next(const Images &s, int left) const {  // left: pixels behind this run
    Run r = {image, h, w + count, 0};
    if (r.w == s.ow) {
      r.w = 0;
      if (++r.h == s.oh) r.h = 0, r.image++;
    }
    r.cut(s, left);
    return r;
  }
};

// Columns that do not exist are left as they are, for nobody reads them; lines and images that do not exist are zeros.
__device__ __forceinline__ void copy_columns(const Images &s, const Run &r, int lane, char *to) {
  const int h = r.h - s.pad_h, left = max(s.pad_w - r.w, 0), end = min(r.count + TAPS - 1, s.iw + s.pad_w - r.w);
  const bool there = r.image < s.count;
  const float *from = s.x + (long long)min(r.image, s.count - 1) * (s.ih * s.iw * IC) +
                      (h * s.iw + r.w - s.pad_w + left + lane) * IC;
#pragma unroll 1
  for (int column = left + lane; column < end; column += LANES, from += LANES * IC)
#pragma unroll
    for (int line = 0; line < TAPS; line++)
#pragma unroll
      for (int ic = 0; ic < IC; ic++)
        ptx::cp_async<4>(to + column * COLUMN + (line * IC + ic) * 4, from + line * s.iw * IC + ic,
                         there && (unsigned)(h + line) < (unsigned)s.ih ? 4 : 0);
}

__device__ __forceinline__ void read_column(float (&v)[VALUES], const char *record) {
  const float *from = reinterpret_cast<const float *>(record);
#pragma unroll
  for (int q = 0; q < VALUES; q += 4) {
    if (VALUES - q >= 4) {
      const float4 a = *reinterpret_cast<const float4 *>(from + q);
      v[q] = a.x, v[q + 1] = a.y, v[q + 2] = a.z, v[q + 3] = a.w;
    } else if (VALUES - q >= 2) {
      const float2 a = *reinterpret_cast<const float2 *>(from + q);
      v[q] = a.x, v[q + 1] = a.y;
    }
    if (VALUES - q < 4 && VALUES % 2 == 1) v[VALUES - 1] = from[VALUES - 1];
  }
}

__device__ __forceinline__ void multiply(float (&sum)[4], float x, const float4 &g) {
  sum[0] = fmaf(g.x, x, sum[0]), sum[1] = fmaf(g.y, x, sum[1]);
  sum[2] = fmaf(g.z, x, sum[2]), sum[3] = fmaf(g.w, x, sum[3]);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
stem_window_wgrad(const float *x, const float *g, float *work, int images, int ih, int iw, int oh, int ow, int oc,
                  int pad_h, int pad_w, int run) {
  DYNAMIC_SHARED(char, smem);
  const int warp = threadIdx.x / 32, half = threadIdx.x % 32 / LANES, lane = threadIdx.x % LANES;
  const int apart = (images + 1) / 2, pixels = oh * ow, warps = gridDim.x * WARPS, number = blockIdx.x * WARPS + warp;
  const int first = (long long)apart * pixels * number / warps;
  int left = (int)((long long)apart * pixels * (number + 1) / warps) - first;
  const Images s = {x + (long long)half * apart * ih * iw * IC, images - half * apart, ih, iw, oh, ow,
                    pad_h, pad_w, run};
  char *ring = smem + warp * WARP_BYTES + threadIdx.x % 32 * 16;
  const int columns = warp * WARP_BYTES + RING + half * COLUMNS;
  const float *ahead = g + ((long long)half * apart * pixels + first) * oc + lane * 4;
  int there = lane * 4 < oc ? max(0, min(left, s.count * pixels - first)) : 0;  // to copy; says where in the ring, too
  auto place_of = [&](int i) { return reinterpret_cast<float4 *>(ring + ((there - i) * PIXEL & (RING - PIXEL))); };
  auto copy_pixels = [&](int count) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      ptx::cp_async<16>(place_of(i), ahead + i * oc, there > i ? 16 : 0);
      ptx::cp_async_commit();
    }
    ahead += count * oc, there -= count;
  };
  float sum[TAPS][VALUES][4] = {};  // [fw][fh, ic][channel]
  Run r = {first / pixels, first % pixels / ow, first % ow, 0};
  r.cut(s, left);
  copy_columns(s, r, lane, smem + columns);
  copy_pixels(DEPTH);
  ptx::cp_async_wait<DEPTH - 1>();
  for (int buffer = 0; r.count > 0; buffer ^= 2 * COLUMNS) {
    __syncwarp();
    int w = r.w - pad_w;  // column of x that the first tap meets
    const int h = r.h - pad_h, stop = w + r.count;
    unsigned lines = 0, at = columns + buffer;
#pragma unroll
    for (int line = 0; line < TAPS; line++) lines |= (unsigned)(h + line) < (unsigned)ih ? 1u << line : 0u;
    ptx::forget(lines), ptx::forget(at);  // kept, and not made again at every tap
    const int inside = lines + 1 == 1 << TAPS ? min(stop, iw - TAPS + 1) : 0;
    const Run behind = r.next(s, left - r.count);
    if (behind.count > 0) copy_columns(s, behind, lane, smem + columns + (buffer ^ 2 * COLUMNS));
    while (w < stop) {
      if (w >= 0 && w + TAPS <= inside) {
        float v[TAPS][VALUES];
#pragma unroll
        for (int t = 0; t < TAPS - 1; t++) read_column(v[t], smem + at + t * COLUMN);
        do {
          ptx::cp_async_wait<DEPTH - TAPS>();
          float4 a[TAPS];
#pragma unroll
          for (int i = 0; i < TAPS; i++) a[i] = *place_of(i);
          copy_pixels(TAPS);
#pragma unroll
          for (int i = 0; i < TAPS; i++) {
            read_column(v[(i + TAPS - 1) % TAPS], smem + at + (i + TAPS - 1) * COLUMN);
#pragma unroll
            for (int t = 0; t < TAPS; t++)
#pragma unroll
              for (int k = 0; k < VALUES; k++) multiply(sum[t][k], v[(i + t) % TAPS][k], a[i]);
          }
          w += TAPS, at += TAPS * COLUMN;
        } while (w + TAPS <= inside);
      } else {
        ptx::cp_async_wait<DEPTH - 1>();
        const float4 a = *place_of(0);
        copy_pixels(1);
#pragma unroll
        for (int t = 0; t < TAPS; t++)
          if ((unsigned)(w + t) < (unsigned)iw) {
            float v[VALUES];
            read_column(v, smem + at + t * COLUMN);
#pragma unroll
            for (int line = 0; line < TAPS; line++)
              if (lines >> line & 1) {
#pragma unroll
                for (int k = line * IC; k < (line + 1) * IC; k++) multiply(sum[t][k], v[k], a);
              }
          }
        w++, at += COLUMN;
      }
    }
    if (r.count < DEPTH) ptx::cp_async_wait<0>();  // else the next run's columns come before its first pixel
    ptx::cp_async_wait<DEPTH - 1>();
    left -= r.count;
    r = r.next(s, left);
  }
  ptx::cp_async_wait<0>();
  __syncwarp();
  float *sums = reinterpret_cast<float *>(smem + warp * WARP_BYTES);  // as dw has them
#pragma unroll
  for (int t = 0; t < TAPS; t++)
#pragma unroll
    for (int k = 0; k < VALUES; k++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        const float both = sum[t][k][q] + __shfl_xor_sync(~0u, sum[t][k][q], LANES);
        if (half == 0) sums[((lane * 4 + q) * TAPS + k / IC) * VALUES + t * IC + k % IC] = both;
      }
  __syncthreads();
  for (int i = threadIdx.x; i < DW; i += THREADS) {
    float total = 0.f;
#pragma unroll
    for (int from = 0; from < WARPS; from++) total += reinterpret_cast<float *>(smem + from * WARP_BYTES)[i];
    work[(long long)blockIdx.x * DW + i] = total;
  }
}
ALPHA_KERNEL(stem_window_wgrad)
