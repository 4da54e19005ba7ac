// Convolution of narrow groups on tensor cores, by mma.sync, forward and for the gradient of the map: several groups in
// one product.
//
// What:     out[n][position][o] = activation(b[o] + sum over taps, c of the group of in[n][pixel][c] * w[o][tap][c]);
//           fprop: out is y, in is x. dgrad: out is dx, in is g, w is read with its channels turned
// Source:   arXiv 2306.15951, ConvV2 and KS-deconv: dgrad has a class for each residue of the stride, which reads no
//           inserted zero; block-diagonal pieces are our own
// Layout:   maps NHWC of ELEMENT; w (OC, FH, FW, IC / groups), b (OC,), float32
// GEMM:     rows: positions of a tile; columns: pieces of 16 output channels; sum: taps x the channels of the groups
//           that a piece touches, K_STEP at a time. Filters lie in shared memory as mma.sync takes them:
//           [piece][tap][step][lane][4 words], zero between channels of two groups
// Zeros:    inserted zeros are in no class. A line of taps that meets padding alone, above or below the map, is not in
//           the loop of a warp's rows; padding on the left and right is multiplied
// Requires: sm_80, float16 sm_75; channels of in and out multiples of 16 bytes; a channel tile in whole groups fits 128 bytes of in
//           and 64 columns; an image has fewer than 2^31 elements
// Threads:  8 warps: the pieces of the tile, times parts of its rows; MT blocks of 16 rows a warp at a time; persistent
//           blocks, grid (blocks, channel tiles, classes). The next tile's patch is copied while one is multiplied
// Measured: H200, nvcc 13.0, 2026-11-29, us (cuDNN's better time): 256 x 32x32 x 128 channels, 32 groups, fprop bf16 102
//           (121), tf32 230 (180), fp32 335 (857); 64 channels, 32 groups 54 (577), 119 (648), 167 (302); 256 x 8x8 x
//           512 channels, 32 groups 35 (31), 107 (50), 139 (248). `python -m benchmarks.conv_ops --sets groups`
#include "conv/grouped/grouped.cuh"

constexpr int PIECE = 16, MT = WIDE ? 2 : 4, ROWS = 16 * MT;

struct GroupedMaps {
  const ELEMENT *in;
  const float *w, *bias;
  ELEMENT *out;
  const GroupedClass *classes;
};

// The weight between channel k of in and channel o of out of a group, both counted over all groups; 0 of another group.
INLINE float weight(const GroupedShape &s, const float *w, int o, int group, int k, int tap) {
  const int of_group = k - group * s.in_group;
  if (o >= s.out_c || (unsigned)of_group >= (unsigned)s.in_group) return 0.f;
  return s.turned ? w[((i64)k * s.filter_taps + tap) * s.out_group + o - group * s.out_group]
                  : w[((i64)o * s.filter_taps + tap) * s.in_group + of_group];
}

// The first step of a piece's sums, in the tile.
INLINE int first_step(const GroupedShape &s, int piece) {
  const int channel = piece * PIECE / s.out_group * s.in_group;
  return min(channel / K_STEP, s.chunks / 2 - s.k_steps);
}

// A thread makes the four words of a lane, whose elements it reads side by side.
template <class E> INLINE void load_filters(const GroupedShape &s, const GroupedClass &c, const float *w, unsigned *to,
                                            int pieces) {
  const int taps = c.taps_h * c.taps_w;
  for (int e = threadIdx.x; e < pieces * taps * s.k_steps * 32; e += THREADS) {
    const int lane = e % 32, rest = e / 32, step = rest % s.k_steps, tap = rest / s.k_steps % taps;
    const int piece = rest / s.k_steps / taps, t = c.w_first + tap / c.taps_w * c.w_h + tap % c.taps_w * c.w_w;
    const int k0 = blockIdx.y * s.tile_in + (first_step(s, piece) + step) * K_STEP + lane % 4 * (WIDE ? 1 : 2);
    float v[4][WIDE ? 1 : 2];
    UNROLL for (int block = 0; block < 2; block++) {
      const int local = piece * PIECE + block * 8 + lane / 4;
      const int o = local < s.tile_out ? blockIdx.y * s.tile_out + local : s.out_c, group = o / s.out_group;
      UNROLL for (int half = 0; half < 2; half++)
        UNROLL for (int q = 0; q < (WIDE ? 1 : 2); q++)
          v[block * 2 + half][q] = weight(s, w, o, group, k0 + half * PER_CHUNK + q, t);
    }
    uint4 words;
    unsigned *word = &words.x;
    UNROLL for (int i = 0; i < 4; i++) {
      if constexpr (sizeof(E) == 4) word[i] = __float_as_uint(v[i][0]);
      else word[i] = pair_of_floats<E>(v[i][0], v[i][sizeof(E) == 4 ? 0 : 1]);
    }
    reinterpret_cast<uint4 *>(to)[e] = words;
  }
}

INLINE float activated(float v, float bias, int relu) {
  v += bias;
  return relu && v < 0.f ? 0.f : v;  // keeps NaN
}

// The sum of the real products alone.
INLINE float exact(const GroupedShape &s, const GroupedClass &c, const GroupedMaps &m, const GroupedTile &tile,
                   const GroupedRow &r, int o) {
  float sum = 0.f;
  const int group = o / s.out_group;
  UNROLL_BY(1) for (int th = 0; th < c.taps_h; th++)
    UNROLL_BY(1) for (int tw = 0; tw < c.taps_w; tw++) {
      const int h = c.in_h + (tile.h + r.h) * c.move_h + th * c.tap_h;
      const int w = c.in_w + (tile.w + r.w) * c.move_w + tw * c.tap_w;
      if ((unsigned)h >= (unsigned)s.in_h || (unsigned)w >= (unsigned)s.in_w) continue;
      const ELEMENT *in = m.in + (((i64)(tile.image + r.image) * s.in_h + h) * s.in_w + w) * s.in_c;
      UNROLL_BY(1) for (int k = group * s.in_group; k < (group + 1) * s.in_group; k++)
        sum = fmaf(to_float(in[k]), to_float(from_float<ELEMENT>(weight(s, m.w, o, group, k, c.w_first + th * c.w_h
                                                                                      + tw * c.w_w))), sum);
    }
  return sum;
}

template <class E> INLINE void store_row(E *to, const float (&sum)[2][4], int half, const float *bias, int left,
                                         int relu) {
  const int quad = threadIdx.x % 4;
  float v[2][2];
  UNROLL for (int j = 0; j < 2; j++)
    UNROLL for (int q = 0; q < 2; q++)
      v[j][q] = activated(sum[j][half * 2 + q], bias[j * 8 + quad * 2 + q], relu);
  if constexpr (sizeof(E) == 4) {
    UNROLL for (int j = 0; j < 2; j++)
      if (to && j * 8 + quad * 2 < left) store_pair(to + j * 8 + quad * 2, v[j][0], v[j][1]);
  } else {  // neighbours exchange a word: each has four channels of one block then, 8 bytes
    const unsigned first = pair_of_floats<E>(v[0][0], v[0][1]), second = pair_of_floats<E>(v[1][0], v[1][1]);
    const unsigned got = __shfl_xor_sync(~0u, quad % 2 ? first : second, 1);
    const int channel = quad % 2 * 8 + (quad & 2) * 2;
    if (to && channel < left)
      *reinterpret_cast<uint2 *>(to + channel) = quad % 2 ? make_uint2(got, second) : make_uint2(first, got);
  }
}

// What a warp multiplies at one step of one tap, as it lies in shared memory.
struct Operands {
  unsigned a[MT][4];
  uint4 b;
};

// The steps of a warp's sums, one after the other: where the next one reads.
struct Walk {
  const unsigned *filter;
  int left, step, tw, offset;  // steps that are left; of the tap; taps of the line; elements from the first tap
  int k_steps, taps_w, next_tap, next_line;

  INLINE void load(Operands &to, const ELEMENT *const (&from)[MT]) {
    if (left <= 0) return;
    to.b = *reinterpret_cast<const uint4 *>(filter);
    UNROLL for (int i = 0; i < MT; i++) ptx::ldmatrix_x4(to.a[i], from[i] + offset);
    left--, filter += 128, offset += K_STEP;
    if (++step < k_steps) return;
    step = 0, offset += next_tap;
    if (++tw == taps_w) tw = 0, offset += next_line;
  }
};

INLINE void multiply(float (&sum)[MT][2][4], const Operands &from) {
  const unsigned words[2][2] = {{from.b.x, from.b.y}, {from.b.z, from.b.w}};
  Fragment<2> b[2];
  Fragment<4> a[MT];
  UNROLL for (int j = 0; j < 2; j++)
    UNROLL for (int q = 0; q < 2; q++) {
      if constexpr (WIDE) b[j].set(q, __uint_as_float(words[j][q]));
      else b[j].set(q, words[j][q]);
    }
  UNROLL for (int i = 0; i < MT; i++)
    UNROLL for (int q = 0; q < 4; q++) {
      if constexpr (WIDE) a[i].set(q, __uint_as_float(from.a[i][q]));
      else a[i].set(q, from.a[i][q]);
    }
  multiply(sum, a, b);
}

ALPHA_GLOBAL(conv_grouped, (THREADS, 2), (GroupedMaps m, GroupedShape s, int patch_size, int relu, int unused)) {
  ptx::follow();
  DYNAMIC_SHARED(ELEMENT, patches);  // two, and the filters
  __shared__ GroupedRow rows[POSITIONS];
  __shared__ float bias[64];
  __shared__ GroupedClass shared_class;
  if (threadIdx.x == 0) shared_class = m.classes[blockIdx.z];
  __syncthreads();
  const GroupedClass &c = shared_class;
  unsigned *filter = reinterpret_cast<unsigned *>(patches + 2 * patch_size);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pieces = (s.tile_out + PIECE - 1) / PIECE;
  const int piece = warp % pieces, parts = WARPS / pieces, part = warp / pieces, taps = c.taps_h * c.taps_w;
  const int out0 = blockIdx.y * s.tile_out, channel = piece * PIECE, count = c.tile_images * c.tile_h * c.tile_w;
  grouped_rows(s, c, rows);
  load_filters<ELEMENT>(s, c, m.w, filter, pieces);
  for (int e = threadIdx.x; e < 64; e += THREADS) bias[e] = m.bias && out0 + e < s.out_c ? m.bias[out0 + e] : 0.f;
  if (blockIdx.x < c.tiles) copy_grouped(s, c, GroupedTile(c, blockIdx.x), m.in, patches, blockIdx.y * s.tile_in);
  ptx::cp_async_commit();
  const int left = min(s.tile_out, s.out_c - out0) - channel, chunk = first_step(s, piece) * 2 + lane / 16;
  const unsigned *mine = filter + (piece * taps * s.k_steps) * 128 + lane * 4;
  int buffer = 0;
  for (int number = blockIdx.x; number < c.tiles; number += gridDim.x, buffer ^= 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    const int next = number + gridDim.x;
    if (next < c.tiles)
      copy_grouped(s, c, GroupedTile(c, next), m.in, patches + (buffer ^ 1) * patch_size, blockIdx.y * s.tile_in);
    ptx::cp_async_commit();
    const GroupedTile tile(c, number);
    const ELEMENT *patch = patches + buffer * patch_size;
    ELEMENT *to_tile = m.out + tile.first(s, c) + out0 + channel;
    for (int row = part * ROWS; row < count && part < parts; row += parts * ROWS) {
      const ELEMENT *from[MT];
      UNROLL for (int i = 0; i < MT; i++) from[i] = patch + place(rows[row + i * 16 + lane % 16].pixel, chunk);
      const GroupedRow &first = rows[row], &last = rows[min(row + ROWS, count) - 1];
      const bool one = first.image == last.image;  // then lines of taps may lie outside of the map for all of the rows
      const int top = c.in_h + (tile.h + (one ? first.h : 0)) * c.move_h;
      const int bottom = c.in_h + (tile.h + (one ? last.h : c.tile_h - 1)) * c.move_h;
      const int begin = bottom < 0 ? (-bottom + c.tap_h - 1) / c.tap_h : 0;
      const int end = min(c.taps_h, top >= s.in_h ? 0 : (s.in_h - 1 - top) / c.tap_h + 1);
      float sum[MT][2][4] = {};
      const int steps = max(0, end - begin) * c.taps_w * s.k_steps;
      Walk walk{mine + begin * c.taps_w * s.k_steps * 128, steps, 0, 0, begin * c.tap_h * c.columns * PITCH, s.k_steps,
                c.taps_w, c.tap_w * PITCH - s.k_steps * K_STEP, (c.tap_h * c.columns - c.taps_w * c.tap_w) * PITCH};
      Operands one_step, next_step;
      walk.load(one_step, from);
      for (int step = 0; step < steps; step += 2) {  // the next step is read while one is multiplied
        float part[MT][2][4] = {};
        float (&to)[MT][2][4] = PRODUCTS == 3 ? part : sum;
        walk.load(next_step, from);
        multiply(to, one_step);
        walk.load(one_step, from);
        if (step + 1 < steps) multiply(to, next_step);
        if constexpr (PRODUCTS == 3)  // a tensor core cuts off what it adds
          UNROLL for (int i = 0; i < MT * 8; i++) sum[i / 8][i / 4 % 2][i % 4] += part[i / 8][i / 4 % 2][i % 4];
      }
      if (__any_sync(~0u, !all_finite(sum))) {
        UNROLL_BY(1) for (int e = lane; e < ROWS * PIECE; e += 32) {
          const GroupedRow r = rows[row + e / PIECE];
          const int o = e % PIECE;
          if (row + e / PIECE < count && tile.has(s, c, r) && o < left)
            to_tile[r.out + o] =
                from_float<ELEMENT>(activated(exact(s, c, m, tile, r, out0 + channel + o), bias[channel + o], relu));
        }
        continue;
      }
      UNROLL for (int i = 0; i < 2 * MT; i++) {
        const int at = row + i / 2 * 16 + i % 2 * 8 + lane / 4;
        const GroupedRow r = rows[at];
        ELEMENT *to = tile.has(s, c, r) ? to_tile + r.out : nullptr;
        store_row(to, sum[i / 2], i % 2, bias + channel, left, relu);
      }
    }
  }
}
