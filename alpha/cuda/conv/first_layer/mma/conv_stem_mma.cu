// The first layer forward on tensor cores, by mma.sync: what a filter reads of a few channels is a row of one product.
//
// What:     y[n][oh][ow][oc] = activation(b[oc] + sum over fh, fw, ic of x[n][ih][iw][ic] * w[oc][fh][fw][ic])
// Source:   our own
// Layout:   x (N, IH, IW, IC), y (N, OH, OW, OC), both NHWC of ELEMENT; w (OC, FH, FW, IC), b (OC,), float32
// GEMM:     rows: positions of a tile; columns: output channels, COLUMNS at a time; sum: k = (fh, fw, ic), the order
//           of w's rows, filled up to a multiple of CHUNK. Sums of several chunks meet in registers, in proper
//           float32: a tensor core cuts off what it adds
// Zeros:    those of the padding are multiplied: K = 27 becomes 32 with or without them; see stem_mma.cuh
// Filters:  lie in shared memory as the lanes' fragments, [chunk][step][block of 8 columns][lane][2]. One chunk
//           (SHORT) of a single product goes to registers, once per block. A fragment's columns are chosen so that a
//           lane has VEC neighbouring channels of VEC / 2 neighbouring blocks: 16 bytes a store, and whole sectors
// Requires: sm_80, float16 sm_75; one group; an image of x or y has fewer than 2^31 elements; OH < 2^15 - 1; a patch has at
//           most PATCH elements; SHORT: one chunk
// Threads:  8 warps, 16 or 32 rows x 32 or 64 columns a warp at a time; persistent blocks, grid (blocks, column
//           tiles). The next tile's patch is copied while one is multiplied. Its elements are read one by one: lanes
//           of a fragment are 8 neighbouring positions times STEP / 2 of k, which share most of what they read
// Measured: H100 SXM, nvcc 13.0, bursts, 512 images of 32x32x3 to 64 channels: 65 us in fp32, 57 in tf32, 41 in 16
//           bits, where y takes 47 and 24 at the speed of a copy, multiply-adds 91, and padded channels on wgmma 172;
//           5x5, 128 images: 47, 30, 22
#include "stem_mma.cuh"

constexpr int COLUMNS = 64, VEC = LANES<ELEMENT>;
constexpr bool KEPT = SHORT && PRODUCTS == 1;  // filters, in registers
constexpr int NT = SHORT && !WIDE ? 8 : 4, MT = SHORT && !KEPT ? 2 : 1;  // blocks of a warp at a time
constexpr int COLUMN_WARPS = COLUMNS / (8 * NT), ROWS = 16 * MT;  // of a warp, at a time
constexpr int CHUNK_WORDS = STEPS * COLUMNS / 8 * 64;

// The column that block j of 8 has in place n.
INLINE int column_of(int j, int n) { return j / (VEC / 2) * (4 * VEC) + n / 2 * VEC + j % (VEC / 2) * 2 + n % 2; }

struct Operands {
  const ELEMENT *x;
  const float *w, *b;
  ELEMENT *y;
};

INLINE float filter_at(const StemShape &s, const float *w, int col, int k, int depth) {
  return col < s.oc && k < depth ? w[(long long)col * depth + k] : 0.f;
}

template <class E> INLINE void load_filters(const StemShape &s, const float *w, unsigned *filter, int chunks) {
  const int depth = s.fh * s.fw * s.ic;
  for (int e = threadIdx.x; e < chunks * CHUNK_WORDS; e += THREADS) {
    const int half = e % 2, lane = e / 2 % 32, block = e / 64 % (COLUMNS / 8), step = e / (64 * (COLUMNS / 8));
    const int col = blockIdx.y * COLUMNS + block / NT * (8 * NT) + column_of(block % NT, lane / 4);
    const int k = step * STEP + half * (STEP / 2) + lane % 4 * (WIDE ? 1 : 2);
    const float v = filter_at(s, w, col, k, depth);
    if constexpr (sizeof(E) == 4) filter[e] = __float_as_uint(v);
    else filter[e] = pair_of_floats<E>(v, filter_at(s, w, col, k + 1, depth));
  }
}

INLINE void set_fragment(Fragment<2> &b, const unsigned *words) {
  const uint2 v = *reinterpret_cast<const uint2 *>(words);
  if constexpr (WIDE) b.set(0, __uint_as_float(v.x)), b.set(1, __uint_as_float(v.y));
  else b.set(0, v.x), b.set(1, v.y);
}

// a: of rows `first` and `second` of the patch, offsets: those of the step
template <class E> INLINE void set_fragment(Fragment<4> &a, const E *first, const E *second, const int *offsets) {
  UNROLL for (int half = 0; half < 2; half++) {
    if constexpr (sizeof(E) == 4) {
      a.set(2 * half, first[offsets[half]]), a.set(2 * half + 1, second[offsets[half]]);
    } else {
      const int one = offsets[2 * half], two = offsets[2 * half + 1];
      a.set(2 * half, pair_of(first[one], first[two])), a.set(2 * half + 1, pair_of(second[one], second[two]));
    }
  }
}

// What a sum is without zeros of the padding.
INLINE float exact(const StemShape &s, const Operands &o, int image, int oh, int ow, int col) {
  float sum = 0.f;
  const float *w = o.w + (long long)col * (s.fh * s.fw * s.ic);
  UNROLL_BY(1) for (int fh = 0; fh < s.fh; fh++)
    UNROLL_BY(1) for (int fw = 0; fw < s.fw; fw++) {
      const int ih = oh * s.stride_h - s.pad_h + fh * s.dilation_h, iw = ow * s.stride_w - s.pad_w + fw * s.dilation_w;
      if ((unsigned)ih >= (unsigned)s.ih || (unsigned)iw >= (unsigned)s.iw) continue;
      const ELEMENT *x = o.x + ((long long)image * s.ih * s.iw + (ih * s.iw + iw)) * s.ic;
      UNROLL_BY(1) for (int ic = 0; ic < s.ic; ic++)
        sum = fmaf(to_float(x[ic]), to_float(from_float<ELEMENT>(w[(fh * s.fw + fw) * s.ic + ic])), sum);
    }
  return sum;
}

INLINE float activated(float v, float bias, int relu) {
  v += bias;
  return relu && v < 0.f ? 0.f : v;  // keeps NaN
}

ALPHA_GLOBAL(stem_mma_fprop, (THREADS, 2), (Operands o, StemShape s, int tiles, int chunks, int relu)) {
  ptx::follow();
  DYNAMIC_SHARED(unsigned, filter);
  __shared__ StemRow rows[POSITIONS];
  __shared__ __align__(16) float bias[COLUMNS];
  if (SHORT) chunks = 1;
  int *offsets = reinterpret_cast<int *>(filter + chunks * CHUNK_WORDS);
  ELEMENT *patches = reinterpret_cast<ELEMENT *>(offsets + chunks * CHUNK);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, col0 = blockIdx.y * COLUMNS;
  const int warp_col = warp % COLUMN_WARPS * (8 * NT), warp_row = warp / COLUMN_WARPS * ROWS;
  const unsigned *fragments = filter + warp_col * 8 + lane * 2;
  load_filters<ELEMENT>(s, o.w, filter, chunks);
  stem_tables(s, rows, offsets, 0, chunks * CHUNK);
  for (int e = threadIdx.x; e < COLUMNS; e += THREADS) bias[e] = o.b && col0 + e < s.oc ? o.b[col0 + e] : 0.f;
  copy_patch(s, StemTile(s, blockIdx.x), o.x, patches);
  ptx::cp_async_commit();
  __syncthreads();
  Fragment<2> b[KEPT ? STEPS : 1][NT];
  int at[8];  // offsets of the chunk, for this lane
  auto take_offsets = [&](int chunk) {
    UNROLL for (int i = 0; i < 8; i++)
      at[i] = offsets[chunk * CHUNK + (WIDE ? i * 4 + lane % 4 : i / 2 * 8 + lane % 4 * 2 + i % 2)];
  };
  auto take_filters = [&](Fragment<2> (&to)[NT], int step) {
    UNROLL for (int j = 0; j < NT; j++) set_fragment(to[j], fragments + step * (CHUNK_WORDS / STEPS) + j * 64);
  };
  if constexpr (SHORT) take_offsets(0);
  if constexpr (KEPT)
    UNROLL for (int step = 0; step < STEPS; step++) take_filters(b[step], step);
  int buffer = 0;
  for (int number = blockIdx.x; number < tiles; number += gridDim.x, buffer ^= 1) {
    ptx::cp_async_wait<0>();
    __syncthreads();
    const int next = number + gridDim.x;
    if (next < tiles) copy_patch(s, StemTile(s, next), o.x, patches + (buffer ^ 1) * PATCH);
    ptx::cp_async_commit();
    const StemTile tile(s, number);
    const ELEMENT *patch = patches + buffer * PATCH;
    ELEMENT *to_tile = o.y + tile.at(s, {0, 0, 0}) + col0;
    for (int row = warp_row; row < s.tile_h * s.tile_w; row += WARPS / COLUMN_WARPS * ROWS) {
      const StemRow *mine = rows + row + lane / 4;
      const ELEMENT *from[2 * MT];
      UNROLL for (int i = 0; i < 2 * MT; i++) from[i] = patch + mine[i * 8].from;
      float sum[MT][NT][4] = {};
      for (int chunk = 0; chunk < chunks; chunk++) {
        float part[MT][NT][4] = {};
        if constexpr (!SHORT) take_offsets(chunk);
        UNROLL for (int step = 0; step < STEPS; step++) {
          Fragment<4> a[MT];
          UNROLL for (int i = 0; i < MT; i++) set_fragment(a[i], from[2 * i], from[2 * i + 1], at + step * (8 / STEPS));
          if constexpr (!KEPT) take_filters(b[0], chunk * STEPS + step);
          multiply(part, a, b[KEPT ? step : 0]);
        }
        UNROLL for (int i = 0; i < MT; i++)
          UNROLL for (int j = 0; j < NT; j++)
            UNROLL for (int q = 0; q < 4; q++) sum[i][j][q] = SHORT ? part[i][j][q] : sum[i][j][q] + part[i][j][q];
      }
      if (__any_sync(~0u, !all_finite(sum))) {
        UNROLL_BY(1) for (int e = lane; e < ROWS * 8 * NT; e += 32) {
          const StemRow r = rows[row + e / (8 * NT)];
          const int col = warp_col + e % (8 * NT);
          if (!tile.has(s, r) || col0 + col >= s.oc) continue;
          const float v = exact(s, o, tile.image, tile.h + r.h, tile.w + r.w, col0 + col);
          o.y[tile.at(s, r) + col0 + col] = from_float<ELEMENT>(activated(v, bias[col], relu));
        }
        continue;
      }
      UNROLL for (int i = 0; i < 2 * MT; i++) {
        const StemRow r = mine[i * 8];
        if (!tile.has(s, r)) continue;
        ELEMENT *to = to_tile + (r.h * s.ow + r.w) * s.oc;
        UNROLL for (int group = 0; group < 2 * NT / VEC; group++) {
          const int col = warp_col + group * (4 * VEC) + lane % 4 * VEC;
          float v[VEC];
          UNROLL for (int q = 0; q < VEC; q++)
            v[q] = activated(sum[i / 2][group * (VEC / 2) + q / 2][i % 2 * 2 + q % 2], bias[col + q], relu);
          if (s.oc % VEC == 0) {
            if (col0 + col < s.oc) store_floats<VEC>(to + col, v);
          } else {
            UNROLL for (int q = 0; q < VEC; q++)
              if (col0 + col + q < s.oc) to[col + q] = from_float<ELEMENT>(v[q]);
          }
        }
      }
    }
  }
}
