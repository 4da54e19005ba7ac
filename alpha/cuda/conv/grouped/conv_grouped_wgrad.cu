// The gradient of the filters of narrow groups on tensor cores, by mma.sync: pieces of 16 x 16 channels at every tap.
//
// What:     dw[o][tap][c] = sum over n, oh, ow of g[n][oh][ow][o] * x[n][ih][iw][c of the group]
// Source:   arXiv 2306.15951, Sk-dilated: g is read in place, x in leaps of the stride; the pieces are our own
// Layout:   x, g NHWC of ELEMENT; slices [slice][channel tile][piece][tap][16 of o][16 of c], dw (OC, FH, FW, IC / groups),
//           float32
// GEMM:     rows: 16 channels of g; columns: 16 channels of x, at each of TAPS taps; sum: positions, DEPTH
//           steps of mma.sync at a time, which are added to registers in proper float32
// Zeros:    inserted zeros are never read; those of the padding are multiplied: they are zeros of the patch
// Requires: sm_80, float16 sm_75; channels of x and g multiples of 16 bytes; a channel tile in whole groups fits 128 bytes of both
// Threads:  8 warps: the pieces of the tile (up to 8 a block), times splits of its positions. A piece is a pair of 16 channels
//           of g and 16 of x with a common group. Persistent blocks, grid (blocks, channel tiles, parts of pieces and of
//           taps). grouped_sum adds the slices in order, and drops what lies between two groups
// Measured: H200, nvcc 13.0, 2026-11-29, us (cuDNN's better time): 256 x 32x32 x 128 channels, 32 groups, bf16 92 (177),
//           tf32 240 (922), fp32 335 (1620); 64 channels, 32 groups 54 (511), 128 (958), 177 (792); 256 x 8x8 x 512
//           channels, 32 groups 47 (35), 82 (195), 107 (423). `python -m benchmarks.conv_ops --sets groups`
#include "conv/grouped/grouped.cuh"
#include "copies.cuh"

constexpr int DEPTH = WIDE ? 2 : 1;                      // steps of mma.sync at a time: registers of 16 bits end at 128
constexpr int BATCH = DEPTH * STEP, MOST = 128, AREA = 256;  // positions of these, of a tile; elements of a piece

struct GroupedMapsBack {
  const ELEMENT *x, *g;
  float *slices;
  const GroupedClass *classes;
  const int2 *pieces;  // block of 16 channels of g, of x
};

INLINE void copy_rows(const GroupedShape &s, const GroupedClass &c, const GroupedTile &tile, const GroupedRow *rows,
                      const ELEMENT *g, ELEMENT *to, int chunks) {
  const int chunk = threadIdx.x % CHUNKS, at = blockIdx.y * s.tile_out + chunk * PER_CHUNK;
  if (chunk >= chunks) return;
  for (int p = threadIdx.x / CHUNKS; p < MOST; p += THREADS / CHUNKS) {
    const bool there = tile.has(s, c, rows[p]) && at < s.out_c;
    ptx::cp_async<16>(to + place(p, chunk), g + (there ? tile.first(s, c) + rows[p].out + at : 0), there ? 16 : 0);
  }
}

// A's fragment: 16 channels from chunk `chunk` on of STEP positions; B's: those of x at the pixels of the positions.
template <class E> INLINE void take(Fragment<4> &a, const E *g, int row, int chunk, int lane) {
  if constexpr (sizeof(E) == 4) {
    UNROLL for (int q = 0; q < 4; q++) {
      const int o = lane / 4 + q % 2 * 8;
      a.set(q, g[place(row + lane % 4 + q / 2 * 4, chunk) + o]);
    }
  } else {
    unsigned word[4];
    ptx::ldmatrix_x4_trans(word, g + place(row + lane / 16 * 8 + lane % 8, chunk + (lane / 8 & 1)));
    UNROLL for (int q = 0; q < 4; q++) a.set(q, word[q]);
  }
}
template <class E> INLINE void take(Fragment<2> (&b)[2], const E *x, const int *pixel, int offset, int lane) {
  if constexpr (sizeof(E) == 4) {
    UNROLL for (int j = 0; j < 2; j++)
      UNROLL for (int q = 0; q < 2; q++) {
        const int k = lane / 4 + j * 8;
        b[j].set(q, x[pixel[q] + offset + k]);
      }
  } else {
    unsigned word[4];
    ptx::ldmatrix_x4_trans(word, x + pixel[0] + offset);
    UNROLL for (int q = 0; q < 4; q++) b[q / 2].set(q % 2, word[q]);
  }
}

ALPHA_GLOBAL(conv_grouped_wgrad, (THREADS, WIDE ? 1 : blocks_here(2)),
             (GroupedMapsBack m, GroupedShape s, int patch_size, int pieces, int out_chunks, int unused)) {
  ptx::follow();
  DYNAMIC_SHARED(ELEMENT, shared);  // two of: a patch of x, positions of g
  __shared__ GroupedRow rows[POSITIONS];
  __shared__ int offsets[TAPS];
  __shared__ GroupedClass shared_class;
  if (threadIdx.x == 0) shared_class = *m.classes;
  __syncthreads();
  const GroupedClass &c = shared_class;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, taps = s.filter_taps;
  const int tap_parts = (taps + TAPS - 1) / TAPS, first_tap = blockIdx.z % tap_parts * TAPS;
  const int first_piece = blockIdx.z / tap_parts * WARPS, here = min(WARPS, pieces - first_piece);
  const int splits = WARPS / here, split = warp / here, piece = first_piece + warp % here;
  const int2 blocks = m.pieces[piece];
  const int out_chunk = blocks.x * (16 / PER_CHUNK), in_chunk = blocks.y * (16 / PER_CHUNK);
  const int size = patch_size + MOST * PITCH, count = c.tile_images * c.tile_h * c.tile_w;
  grouped_rows(s, c, rows);
  for (int t = threadIdx.x; t < TAPS; t += THREADS) {
    const int tap = min(first_tap + t, taps - 1);
    offsets[t] = (tap / c.taps_w * c.tap_h * c.columns + tap % c.taps_w * c.tap_w) * PITCH;
  }
  __syncthreads();
  auto fetch = [&](int number, int buffer) {
    const GroupedTile tile(c, number);
    copy_grouped(s, c, tile, m.x, shared + buffer * size, blockIdx.y * s.tile_in);
    copy_rows(s, c, tile, rows, m.g, shared + buffer * size + patch_size, out_chunks);
  };
  if (blockIdx.x < c.tiles) fetch(blockIdx.x, 0);
  ptx::cp_async_commit();
  float sum[TAPS][2][4] = {};
  int buffer = 0;
  for (int number = blockIdx.x; number < c.tiles; number += gridDim.x, buffer ^= 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (number + gridDim.x < c.tiles) fetch(number + gridDim.x, buffer ^ 1);
    ptx::cp_async_commit();
    const ELEMENT *x = shared + buffer * size, *g = x + patch_size;
    for (int row = split * BATCH; row < count && split < splits; row += splits * BATCH) {
      Fragment<4> a[DEPTH][1];
      int pixel[DEPTH][WIDE ? 2 : 1];
      UNROLL for (int step = 0; step < DEPTH; step++) {
        const int first = row + step * STEP;
        take(a[step][0], g, first, out_chunk, lane);
        UNROLL for (int q = 0; q < (WIDE ? 2 : 1); q++)
          pixel[step][q] = place(rows[first + (WIDE ? lane % 4 + q * 4 : lane % 16)].pixel,
                                 in_chunk + (WIDE ? 0 : lane / 16));
      }
      UNROLL for (int t = 0; t < TAPS; t++) {
        float part[1][2][4] = {};
        UNROLL for (int step = 0; step < DEPTH; step++) {
          Fragment<2> b[2];
          take(b, x, pixel[step], offsets[t], lane);
          multiply(part, a[step], b);
        }
        UNROLL for (int e = 0; e < 8; e++) sum[t][e / 4][e % 4] += part[0][e / 4][e % 4];
      }
    }
  }
  if (split >= splits) return;
  const i64 slice = (i64)blockIdx.x * splits + split, tile_pieces = (i64)gridDim.y * pieces;
  float *to = m.slices + ((slice * tile_pieces + (i64)blockIdx.y * pieces + piece) * taps + first_tap) * AREA;
  UNROLL for (int t = 0; t < TAPS; t++)
    if (first_tap + t < taps)
      UNROLL for (int e = 0; e < 4; e++) {
        const int o = lane / 4 + e % 2 * 8, k = e / 2 * 8 + lane % 4 * 2;
        store_pair(to + t * AREA + o * 16 + k, sum[t][e / 2][e % 2 * 2], sum[t][e / 2][e % 2 * 2 + 1]);
      }
}

// One element of dw, by all threads of a block, of the real products alone.
INLINE float exact_of_block(const GroupedShape &s, const GroupedClass &c, const ELEMENT *x, const ELEMENT *g, int o, int k,
                            int tap, float *partial) {
  const int th = tap / c.taps_w, tw = tap % c.taps_w, area = c.count_h * c.count_w;
  float sum = 0.f;
  UNROLL_BY(1) for (i64 p = threadIdx.x; p < (i64)s.images * area; p += blockDim.x) {
    const int n = int(p / area), at = int(p - (i64)n * area), oh = at / c.count_w, ow = at - oh * c.count_w;
    const int h = c.in_h + oh * c.move_h + th * c.tap_h, w = c.in_w + ow * c.move_w + tw * c.tap_w;
    if ((unsigned)h >= (unsigned)s.in_h || (unsigned)w >= (unsigned)s.in_w) continue;
    sum = fmaf(to_float(g[((i64)n * area + at) * s.out_c + o]),
               to_float(x[(((i64)n * s.in_h + h) * s.in_w + w) * s.in_c + k]), sum);
  }
  __syncthreads();
  partial[threadIdx.x] = sum;
  __syncthreads();
  float total = 0.f;
  for (int i = 0; i < blockDim.x; i++) total += partial[i];
  return total;
}

// Grid (elements of dw / 32); a column of 16 threads adds the slices of an element. slices: how many a part of pieces has.
ALPHA_GLOBAL(grouped_sum, (512), (GroupedMapsBack m, float *dw, GroupedShape s, int pieces, int tiles, int blocks,
                                  int unused)) {
  ptx::follow();
  __shared__ float partial[512];
  __shared__ GroupedClass shared_class;
  if (threadIdx.x == 0) shared_class = *m.classes;
  const int column = threadIdx.x % 32, row = threadIdx.x / 32, e = blockIdx.x * 32 + column;
  const int total = s.out_c * s.filter_taps * s.in_group;
  const int k = e % s.in_group, tap = e / s.in_group % s.filter_taps, o = min(e / s.in_group / s.filter_taps, s.out_c - 1);
  const int tile = o / s.tile_out, local = o - tile * s.tile_out, in = local / s.out_group * s.in_group + k;
  int piece = 0;
  while (m.pieces[piece].x != local / 16 || m.pieces[piece].y != in / 16) piece++;
  const int first = piece / WARPS * WARPS, slices = blocks * (WARPS / min(WARPS, pieces - first));
  const i64 from = (((i64)tile * pieces + piece) * s.filter_taps + tap) * AREA + local % 16 * 16 + in % 16;
  const i64 step = (i64)tiles * pieces * s.filter_taps * AREA;
  float sum = 0.f;
  if (e < total)
    UNROLL_BY(4) for (int slice = row; slice < slices; slice += 16) sum += m.slices[from + slice * step];
  partial[threadIdx.x] = sum;
  __syncthreads();
  float all = 0.f;
  for (int i = 0; i < 16; i++) all += partial[i * 32 + column];
  const bool wrong = row == 0 && e < total && all * 0.f != 0.f;
  if (row == 0 && e < total) dw[e] = all;
  if (!__syncthreads_or(wrong)) return;
  for (int i = 0; i < 32; i++) {
    __syncthreads();
    partial[threadIdx.x] = 0.f;
    __syncthreads();
    if (row == 0 && column == i) partial[0] = wrong ? 1.f : 0.f;
    __syncthreads();
    const bool again = partial[0] != 0.f;
    const int at = blockIdx.x * 32 + i, k2 = at % s.in_group, tap2 = at / s.in_group % s.filter_taps;
    const int o2 = at / s.in_group / s.filter_taps;
    if (!again) continue;
    const float v = exact_of_block(s, shared_class, m.x, m.g, o2, o2 / s.out_group * s.in_group + k2, tap2, partial);
    if (threadIdx.x == 0) dw[at] = v;
  }
}
