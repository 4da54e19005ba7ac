// The first layer in FFMA, forward; and the gradient of filters of few channels. The products' tiles of other kernels
// would be mostly empty: 5x5 filters from 3 to 6 channels make 6 columns of 64, or 6 rows of 75 sums.
//
// What:     few_fprop  y[p][oc] = activation(b[oc] + sum over taps, ic of x[p moved by the tap][ic] * w[oc][tap][ic])
//           few_wgrad  dw[oc][tap][ic] = sum over positions p of g[p][oc] * x[p moved by the tap][ic]
// Source:   our own
// Layout:   x (N, IH, IW, IC), y and g (N, OH, OW, OC), NHWC of T; w and dw (OC, FH, FW, IC), b (OC,), float32
//           workspace of few_wgrad [tile][block][groups * MOST][32 / groups * CHANNELS], blocks added by sum_slices.cu
// GEMM:     fprop: rows: positions, columns: oc, sum over taps and ic; wgrad: rows: oc, columns: taps and ic, sum over
//           positions. A tile of wgrad is `groups` times MOST of oc by 32 / groups columns, CHANNELS of a tap each
// Zeros:    of the padding are skipped: a position leaves out the taps that read none of x
// Requires: one group; a position's patch has at most PATCH floats; fprop: IC = CHANNELS, MOST filters have at most
//           FILTERS floats; wgrad: IC a multiple of CHANNELS, tiles of at most POSITIONS / groups positions
// Threads:  a block has tile after tile, of tile_h x tile_w positions of an image. What they read of x lies in shared
//           memory as float32, in lines of `pitch`, at which the taps of a warp are in different banks.
//           fprop: grid (blocks, OC / MOST). A thread has 4 positions and MOST channels; results leave by shared
//           memory, line by line.
//           wgrad: grid (tiles of columns, blocks, tiles of oc). A lane has a column and MOST of oc, and a warp a
//           quarter of the positions, whose g all lanes of a group read together. Sums of a tile of positions are added
//           to those of the block, so that no chain is long
// Measured: H200, 512 images of 32x32, 5x5, 3 to 6 channels: fprop 27 us in any dtype, where stem_mma_fprop took 65 in
//           bfloat16; wgrad 40; of 6 to 16 channels, 14x14, 30. Not measured: more than 8 outputs forward
#include "lanes.cuh"

constexpr int EACH = 4;  // positions of a thread, forward
constexpr int MOST = 8, POSITIONS = 512, PATCH = 5120, FILTERS = 3072;  // channels, positions; floats of x and of w
constexpr int THREADS = POSITIONS / EACH, WARPS = THREADS / 32;

struct FewShape {
  int ih, iw, oh, ow, oc, fh, fw;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int tile_h, tile_w, tiles_h, tiles_w;  // positions of a tile, tiles of an image
  int lines, pixels, pitch;              // of a patch; floats from a line to the next
  int ic, groups;                        // groups of MOST outputs that a block of few_wgrad has
};

// Where a tile begins, and how much of it there is.
struct FewTile {
  int image, h, w, height, width, count, ih, iw;  // ih, iw: of x, and less than 0 in the padding
  INLINE FewTile(const FewShape &s, int number) {
    image = number / (s.tiles_h * s.tiles_w);
    number -= image * (s.tiles_h * s.tiles_w);
    h = number / s.tiles_w * s.tile_h, w = number % s.tiles_w * s.tile_w;
    height = min(s.tile_h, s.oh - h), width = min(s.tile_w, s.ow - w), count = height * width;
    ih = h * s.stride_h - s.pad_h, iw = w * s.stride_w - s.pad_w;
  }
  INLINE long long line(const FewShape &s, int r) const {  // elements of y up to its line r
    return (((long long)image * s.oh + h + r) * s.ow + w) * s.oc;
  }
};

// *to(c) = the element at place(c) of a line, for the c of `count` for which that is not below 0. float32 is there by
// the cp_async_wait; of 16 bits four are read at once.
template <class T, class Place, class To>
INLINE void copy_line(const T *line, int count, const Place &place, const To &to) {
  for (int c0 = threadIdx.x % 32; c0 < count; c0 += 128) {
    T v[4];
    int at[4];
    UNROLL for (int q = 0; q < 4; q++) {
      const int c = c0 + q * 32;
      at[q] = c < count ? place(c) : -1;
      if (at[q] < 0) continue;
      if constexpr (sizeof(T) == 4) ptx::cp_async<4>(to(c), line + at[q]);
      else v[q] = line[at[q]];
    }
    if constexpr (sizeof(T) < 4) {
      UNROLL for (int q = 0; q < 4; q++)
        if (at[q] >= 0) *to(c0 + q * 32) = to_float(v[q]);
    }
  }
}

// What is not in x is not written, and nobody reads it.
template <class T>
INLINE void copy_patch(const FewShape &s, int ic, const FewTile &tile, const T *x, float *patch) {
  const int width = s.iw * ic, first = tile.iw * ic;
  UNROLL_BY(2) for (int r = threadIdx.x / 32; r < s.lines; r += WARPS) {
    const bool there = (unsigned)(tile.ih + r) < (unsigned)s.ih;
    const T *line = x + ((long long)tile.image * s.ih + (there ? tile.ih + r : 0)) * width;
    float *to = patch + r * s.pitch;
    copy_line(line, there ? s.pixels * ic : 0, [&](int c) { return first + c < width ? first + c : -1; },
              [&](int c) { return to + c; });
  }
}

template <class T>
INLINE void few_fprop(const T *x, const float *w, const float *b, T *y, const FewShape &s, int tiles, int relu) {
  __shared__ float patch[PATCH];
  __shared__ __align__(16) float filters[FILTERS];  // [tap][IC][MOST]
  __shared__ T results[POSITIONS * MOST];
  constexpr int IC = CHANNELS;
  const int depth = s.fh * s.fw * IC, oc0 = blockIdx.y * MOST, count = min(MOST, s.oc - oc0);
  const int stored = min(MOST, s.oc);  // results of a position in shared memory
  const bool padded = s.pad_h > 0 || s.pad_w > 0;
  for (int e = threadIdx.x; e < depth * MOST; e += THREADS) {
    const int oc = e % MOST;
    filters[e] = oc < count ? to_float(from_float<T>(w[(oc0 + oc) * depth + e / MOST])) : 0.f;
  }
  for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
    const FewTile tile(s, number);
    __syncthreads();  // the tile before has been read, and its results
    copy_patch(s, IC, tile, x, patch);
    int from[EACH], row[EACH], column[EACH];
    UNROLL for (int i = 0; i < EACH; i++) {
      const int p = min((int)threadIdx.x + i * THREADS, tile.count - 1), r = p / tile.width;
      row[i] = tile.ih + r * s.stride_h, column[i] = tile.iw + (p - r * tile.width) * s.stride_w;
      from[i] = r * s.stride_h * s.pitch + (p - r * tile.width) * s.stride_w * IC;
    }
    ptx::cp_async_done();
    float sum[EACH][MOST] = {};
    const float *f = filters;
    for (int h = 0; h < s.fh; h++)
      for (int k = 0; k < s.fw; k++) {
        const int offset = h * s.dilation_h * s.pitch + k * s.dilation_w * IC;
        Lanes<MOST, float> u[IC];
        UNROLL for (int ic = 0; ic < IC; ic++, f += MOST) u[ic] = load<MOST>(f);
        UNROLL for (int i = 0; i < EACH; i++) {
          if (padded && ((unsigned)(row[i] + h * s.dilation_h) >= (unsigned)s.ih ||
                         (unsigned)(column[i] + k * s.dilation_w) >= (unsigned)s.iw)) continue;
          UNROLL for (int ic = 0; ic < IC; ic++) {
            const float v = patch[from[i] + offset + ic];
            UNROLL for (int oc = 0; oc < MOST; oc++) sum[i][oc] = fmaf(v, u[ic].v[oc], sum[i][oc]);
          }
        }
      }
    UNROLL for (int i = 0; i < EACH; i++) {
      const int p = threadIdx.x + i * THREADS;
      if (p >= tile.count) continue;
      UNROLL for (int oc = 0; oc < MOST; oc++) {
        if (oc >= count) break;
        const float v = sum[i][oc] + (b ? b[oc0 + oc] : 0.f);
        results[p * stored + oc] = from_float<T>(relu && v < 0.f ? 0.f : v);
      }
    }
    __syncthreads();
    const int line = tile.width * stored;
    for (int r = threadIdx.x / 32; r < tile.height; r += WARPS) {
      T *to = y + tile.line(s, r);
      if (gridDim.y == 1) {
        for (int e = threadIdx.x % 32; e < line; e += 32) to[e] = results[r * line + e];
      } else {
        for (int e = threadIdx.x % 32; e < line; e += 32)
          if (e % MOST < count) to[e / MOST * s.oc + oc0 + e % MOST] = results[r * line + e];
      }
    }
  }
}

template <class T>
INLINE void few_wgrad(const T *x, const T *g, float *work, const FewShape &s, int tiles) {
  constexpr int IC = CHANNELS;  // of a column
  __shared__ __align__(16) float shared[PATCH + POSITIONS * MOST];
  float *patch = shared, *gradients = shared + PATCH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lanes = 32 / s.groups;  // of a group
  const int parts = s.ic / IC, column = min((int)blockIdx.x * lanes + lane % lanes, s.fh * s.fw * parts - 1);
  const int tap = column / parts, tap_h = tap / s.fw * s.dilation_h, tap_w = tap % s.fw * s.dilation_w;
  const int outputs = s.groups * MOST, oc0 = blockIdx.z * outputs, count = min(outputs, s.oc - oc0);
  const int share = ((1 << 18) - 1) / count + 1;  // k / count = k * share >> 18 for what a tile has of g
  const float *taps = patch + (tap_h * s.pitch + tap_w * s.ic + (column - tap * parts) * IC);
  const float *mine = gradients + lane / lanes * MOST;
  float sum[MOST][IC] = {};
  for (int e = threadIdx.x; e < POSITIONS * MOST; e += THREADS) gradients[e] = 0.f;  // of channels that are none
  for (int number = blockIdx.y; number < tiles; number += gridDim.y) {
    const FewTile tile(s, number);
    __syncthreads();  // the tile before has been read
    copy_patch(s, s.ic, tile, x, patch);
    for (int r = warp; r < tile.height; r += WARPS) {
      float *to = gradients + r * tile.width * outputs;
      copy_line(g + (tile.line(s, r) + oc0), tile.width * count,
                [&](int e) { return e + (e * share >> 18) * (s.oc - count); },
                [&](int e) { return to + e + (e * share >> 18) * (outputs - count); });
    }
    ptx::cp_async_done();
    float part[MOST][IC] = {};
    const int each = (tile.count + WARPS - 1) / WARPS, end = min((warp + 1) * each, tile.count);
    for (int p = warp * each; p < end;) {  // a line of positions at a time
      const int h = p / tile.width, w = p - h * tile.width, stop = min(end, p + tile.width - w);
      const float *from = taps + (h * s.stride_h * s.pitch + w * s.stride_w * s.ic);
      const bool read = (unsigned)(tile.ih + h * s.stride_h + tap_h) < (unsigned)s.ih;
      int at = tile.iw + w * s.stride_w + tap_w;
      UNROLL_BY(2) for (; p < stop; p++, from += s.stride_w * s.ic, at += s.stride_w) {
        if (!read || (unsigned)at >= (unsigned)s.iw) continue;
        const Lanes<MOST, float> u = load<MOST>(mine + p * outputs);
        UNROLL for (int ic = 0; ic < IC; ic++) {
          const float v = from[ic];
          UNROLL for (int oc = 0; oc < MOST; oc++) part[oc][ic] = fmaf(u.v[oc], v, part[oc][ic]);
        }
      }
    }
    UNROLL for (int oc = 0; oc < MOST; oc++)
      UNROLL for (int ic = 0; ic < IC; ic++) sum[oc][ic] += part[oc][ic];
  }
  __syncthreads();
  constexpr int SUMS = MOST * IC * 32;
  static_assert(WARPS * SUMS <= PATCH + POSITIONS * MOST, "the warps' sums lie where the tiles were");
  UNROLL for (int oc = 0; oc < MOST; oc++)
    UNROLL for (int ic = 0; ic < IC; ic++) shared[warp * SUMS + (oc * IC + ic) * 32 + lane] = sum[oc][ic];
  __syncthreads();
  work += ((long long)(blockIdx.z * gridDim.x + blockIdx.x) * gridDim.y + blockIdx.y) * SUMS;
  for (int e = threadIdx.x; e < SUMS; e += THREADS) {
    float total = 0.f;
    for (int k = 0; k < WARPS; k++) total += shared[k * SUMS + e];
    const int oc = e / (32 * IC), ic = e / 32 % IC, of = e % 32;
    work[((of / lanes * MOST + oc) * lanes + of % lanes) * IC + ic] = total;
  }
}

#define FEW(T, dtype) \
  ALPHA_ENTRY(few_fprop_##dtype, (THREADS, 4), \
              (const T *x, const float *w, const float *b, T *y, const FewShape shape, int tiles, int relu), \
              few_fprop(x, w, b, y, shape, tiles, relu)) \
  ALPHA_ENTRY(few_wgrad_##dtype, (THREADS, 4), \
              (const T *x, const T *g, float *work, const FewShape shape, int tiles), \
              few_wgrad(x, g, work, shape, tiles))
FLOAT_KERNELS(FEW)
