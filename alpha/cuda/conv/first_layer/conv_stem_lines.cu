// fprop of the first layer on FMA units, for 3x3 filters: lines of x lie in shared memory, a thread slides along them.
//
//   what      y[n][oh][ow][oc] = activation(b[oc] + sum over fh, fw, ic of x[n][ih][iw][ic] * w[oc][fh][fw][ic])
//   layout    x (N, IH, IW, IC), y (N, OH, OW, OC), both NHWC; w (OC, 3, 3, IC); all of them float32
//   run       RUN neighbouring outputs of a line; what a line of taps reads, RUN + 2 pixels, goes to registers as
//             a whole, 16 bytes at a time, and serves 3 * RUN pairs of output and tap
//   tile      tile_lines lines of tile_runs runs, as many as a block has room for, of one image. tile_runs = 4 gives a
//             warp runs of a single line; other tiles waste less where lines are short
//   patch     what a tile reads of x, line by line. Its first pixel is the first one that the first run reads, padding
//             or not, so that every run begins at a multiple of 16 bytes. The next tile's is copied while one is
//             multiplied: memory is not waited for, and there is one barrier per tile
//   filters   lie in shared memory, [tap, ic][COLS], for all tiles of a block; lines are PITCH floats long, or w, which
//             is read along its rows, would all go to one bank
//   threads   LANES neighbouring ones share a run and have 8 output channels each, two quads COLS / 2 apart: a store
//             of 16 bytes a thread covers whole lines of the cache. Grid (blocks, columns in COLS); a block has
//             neighbouring tiles
//   zeros     lines of padding are neither copied nor gone through. Pixels of padding are zeros of a patch; products
//             with them are predicated: not made, at no instruction more, but their issue slots stay. WHOLE: lines of y
//             are whole runs, and only the outermost pixels of a run can be padding. Otherwise any pixel can, outputs
//             behind the end of a line are multiplied and not stored, and BLOCKS is less
//   sums      begin with the bias, and go through (fh, fw, ic) in order
//   requires  one group, IC = CHANNELS <= 4, stride 1, dilation 1, padding <= 2, OC a multiple of 4; x has fewer than
//             2^30 elements, N * OH * OW < 2^31
//   measured  H100 SXM, nvcc 13.0, bursts, 512 images of 32x32x3 to 64 channels: 60 us, stem_fprop 91; what is moved
//             takes 47 at the speed of a copy. Blocks of 128 threads took 61.5 (three of them on a multiprocessor in
//             the place of four as long), with tiles of two runs a line 62 and of one 64; blocks of 64 threads 67
#include "ptx.cuh"

constexpr int IC = CHANNELS, TAPS = 3, RUN = 8, LANES = 8, COLS = 8 * LANES, PITCH = COLS + 4;
constexpr int DEPTH = TAPS * TAPS * IC, PIXELS = RUN + TAPS - 1, SPAN = PIXELS * IC;  // products of a sum; of a run
constexpr int PATCH = TAPS * (((THREADS / LANES * RUN + TAPS - 1) * IC + 3) / 4 * 4);  // floats: a tile of one line

struct Operands {
  const float *x, *w, *b;
  float *y;
};

struct LinesShape {
  int ih, iw, oh, ow, oc, pad_h, pad_w;
  int tile_lines, tile_runs;  // their product is THREADS / LANES
  int span, line;             // floats of a line of a patch; from one to the next, a multiple of 4
};

struct LinesTile {
  int image, h, w;  // of its first output

  PTX_FN LinesTile(const LinesShape &s, int number) {
    const int width = s.tile_runs * RUN, per_line = (s.ow + width - 1) / width, line = number / per_line;
    const int per_image = (s.oh + s.tile_lines - 1) / s.tile_lines;
    image = line / per_image;
    h = (line - image * per_image) * s.tile_lines, w = (number - line * per_line) * width;
  }
  PTX_FN void advance(const LinesShape &s) {
    w += s.tile_runs * RUN;
    if (w < s.ow) return;
    w = 0, h += s.tile_lines;
    if (h < s.oh) return;
    h = 0, image++;
  }
};

// Starts to copy what x has of a tile's patch, lines that exist; a thread has a column of it.
PTX_FN void copy_patch(const LinesShape &s, const LinesTile &tile, const float *x, float *patch) {
  const int width = s.iw * IC, h = tile.h - s.pad_h, first = (tile.w - s.pad_w) * IC;
  const int begin = max(0, -h), end = min(s.tile_lines + TAPS - 1, s.ih - h);
  for (int c = threadIdx.x; c < s.span; c += THREADS) {
    const bool there = (unsigned)(first + c) < (unsigned)width;
    const float *from = x + (there ? (tile.image * s.ih + (h + begin)) * width + (first + c) : 0);
    float *to = patch + begin * s.line + c;
#pragma unroll 1
    for (int r = begin; r < end; r++, from += width, to += s.line) ptx::cp_async<4>(to, from, there ? 4 : 0);
  }
}

// Starts to copy the filters of COLS channels; those that do not exist get zeros.
PTX_FN void copy_filters(const float *w, int col0, int columns, float *filter) {
  for (int e = threadIdx.x; e < COLS * DEPTH; e += THREADS) {
    const bool there = col0 + e / DEPTH < columns;
    ptx::cp_async<4>(filter + e % DEPTH * PITCH + e / DEPTH, w + (there ? col0 * DEPTH + e : 0), there ? 4 : 0);
  }
}

PTX_FN void load_span(float (&v)[SPAN], const float *from) {
#pragma unroll
  for (int e = 0; e + 4 <= SPAN; e += 4) {
    const float4 q = *reinterpret_cast<const float4 *>(from + e);
    v[e] = q.x, v[e + 1] = q.y, v[e + 2] = q.z, v[e + 3] = q.w;
  }
  if constexpr (SPAN % 4) {
    const float2 q = *reinterpret_cast<const float2 *>(from + SPAN - 2);
    v[SPAN - 2] = q.x, v[SPAN - 1] = q.y;
  }
}

PTX_FN void load_columns(float (&u)[8], const float *from) {
  const float4 a = *reinterpret_cast<const float4 *>(from), d = *reinterpret_cast<const float4 *>(from + COLS / 2);
  u[0] = a.x, u[1] = a.y, u[2] = a.z, u[3] = a.w, u[4] = d.x, u[5] = d.y, u[6] = d.z, u[7] = d.w;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
stem_lines_fprop(Operands o, LinesShape s, int tiles, int relu) {
  __shared__ __align__(16) float filter[DEPTH * PITCH], bias[COLS], patches[2 * PATCH];
  const int col0 = blockIdx.y * COLS, lane = threadIdx.x % LANES, col = col0 + lane * 4;
  const int group = threadIdx.x / LANES, line = group / s.tile_runs, run = group - line * s.tile_runs;
  int number = (int)((long long)tiles * blockIdx.x / gridDim.x);
  const int end = (int)((long long)tiles * (blockIdx.x + 1) / gridDim.x);
  LinesTile next(s, number);
  copy_patch(s, next, o.x, patches);
  copy_filters(o.w, col0, s.oc, filter);
  ptx::cp_async_commit();
  for (int e = threadIdx.x; e < COLS; e += THREADS) bias[e] = o.b && col0 + e < s.oc ? o.b[col0 + e] : 0.f;
  for (int buffer = 0; number < end; buffer ^= 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    const LinesTile tile = next;
    next.advance(s);
    if (++number < end) copy_patch(s, next, o.x, patches + (buffer ^ 1) * PATCH);
    ptx::cp_async_commit();
    const int oh = tile.h + line, ow = tile.w + run * RUN, first = ow - s.pad_w;
    if (oh >= s.oh || ow >= s.ow) continue;
    const int begin = max(0, s.pad_h - oh);
    int left = min(TAPS, s.ih + s.pad_h - oh) - begin;  // lines of taps, at least one
    const unsigned inside = (1u << min(PIXELS, s.iw - first)) - (1u << max(0, -first));  // bit e: pixel e exists
    const float *from = patches + buffer * PATCH + (line + begin) * s.line + run * (RUN * IC);
    const float *f = filter + begin * (TAPS * IC * PITCH) + lane * 4;
    float sum[RUN][8];
#pragma unroll
    for (int i = 0; i < RUN; i++) load_columns(sum[i], bias + lane * 4);
#pragma unroll 1
    do {
      float v[SPAN];
      load_span(v, from);
#pragma unroll
      for (int k = 0; k < TAPS * IC; k++) {
        float u[8];
        load_columns(u, f + k * PITCH);
#pragma unroll
        for (int i = 0; i < RUN; i++) {
          const int e = i + k / IC;
          if (!(WHOLE && e >= TAPS - 1 && e < RUN) && !(inside >> e & 1)) continue;
#pragma unroll
          for (int j = 0; j < 8; j++) sum[i][j] = fmaf(v[i * IC + k], u[j], sum[i][j]);
        }
      }
      from += s.line, f += TAPS * IC * PITCH;
    } while (--left > 0);
    if (relu) {
#pragma unroll
      for (int i = 0; i < RUN; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) sum[i][j] = ptx::max_nan(sum[i][j], 0.f);
    }
    float *to = o.y + (long long)((tile.image * s.oh + oh) * s.ow + ow) * s.oc + col;
#pragma unroll
    for (int i = 0; i < RUN; i++, to += s.oc) {
      if (!WHOLE && ow + i >= s.ow) break;
#pragma unroll
      for (int half = 0; half < 2; half++)
        if (col + half * (COLS / 2) < s.oc)
          *reinterpret_cast<float4 *>(to + half * (COLS / 2)) =
              make_float4(sum[i][4 * half], sum[i][4 * half + 1], sum[i][4 * half + 2], sum[i][4 * half + 3]);
    }
  }
}
ALPHA_KERNEL(stem_lines_fprop)
