// The gradient of the first layer's filters on tensor cores, by mma.sync: g goes from memory to the fragments.
//
// What:     dw[oc][fh][fw][ic] = sum over n, oh, ow of g[n][oh][ow][oc] * x[n][ih][iw][ic]
// Source:   our own
// Layout:   x (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC of ELEMENT; dw (OC, FH, FW, IC), float32
// GEMM:     rows: COLUMNS output channels; columns: CHUNK of k = (fh, fw, ic); sum: positions, BATCH at a time, which
//           are added to registers in proper float32: a tensor core cuts off what it adds
// Zeros:    those of the padding are multiplied, see stem_mma.cuh
// Operands: every element of g is an operand once, so it is not brought to shared memory: a lane reads 4 neighbouring
//           channels of a position, 8 lanes 32, and these are its rows of two blocks of 16. Which channel a row is,
//           and which position an element of the sum, is chosen so; 16 bits of two positions are paired in registers.
//           What positions read of x is a patch; the next tile's is copied while one is multiplied
// Requires: sm_80, float16 sm_75; one group; an image of x or g has fewer than 2^31 elements; OH < 2^15 - 1; a patch has at
//           most PATCH elements; OC is a multiple of 4
// Threads:  8 warps: two halves of the channels, four batches of positions; persistent blocks, grid (chunks of k,
//           blocks, tiles of channels). The four sums meet in shared memory. A block has a slot of the workspace,
//           [channel tile][chunk][block][channel][k], and sum_slices.cu adds these up, in order
// Measured: H100 SXM, nvcc 13.0, bursts, 512 images of 32x32x3 to 64 channels: 70 us in fp32, 58 in tf32, 44 in 16
//           bits, where g takes 47 and 24 at the speed of a copy, and padded channels on wgmma 175;
//           5x5, 128 images: 52, 38, 32
#include <type_traits>

#include "stem_mma.cuh"

constexpr int COLUMNS = 64, MT = 2, NT = CHUNK / 8, GROUPS = WARPS / 2;
constexpr int BATCH = 2 * STEP;                             // positions that are read while others are multiplied
constexpr int PIECES = 2 * STEP / 8, LOADS = 2 * PIECES;    // positions that a lane has: of a step, of a batch

// Four neighbouring channels of a position. Elements of 16 bits stay in pairs: each by itself would take a register.
struct Piece { unsigned word[sizeof(ELEMENT)]; };

INLINE Piece load_piece(const ELEMENT *from, int left) {  // left: channels that exist
  using Words = std::conditional_t<WIDE, uint4, uint2>;
  const Words words = left > 0 ? *reinterpret_cast<const Words *>(from) : Words{};
  Piece piece;
  memcpy(piece.word, &words, sizeof(words));
  return piece;
}

// Channel v of two positions, which follow each other in a sum.
INLINE unsigned pair_of_channel(const Piece &first, const Piece &second, int v) {
  const unsigned a = first.word[v / 2], b = second.word[v / 2];
  return v % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
}

// The place among a step's positions of a lane's piece i.
INLINE int position_of(int lane, int i) { return WIDE ? i * 4 + lane % 4 : i / 2 * 8 + lane % 4 * 2 + i % 2; }

INLINE void set_fragment(Fragment<4> (&a)[MT], const Piece *pieces) {
  UNROLL for (int i = 0; i < MT; i++)
    UNROLL for (int r = 0; r < 4; r++) {
      const int v = i * 2 + r % 2, k = r / 2;
      if constexpr (WIDE) a[i].set(r, __uint_as_float(pieces[k].word[v]));
      else a[i].set(r, pair_of_channel(pieces[2 * k], pieces[2 * k + 1], v));
    }
}
template <class E> INLINE void set_fragment(Fragment<2> &b, const E *patch, const int *from, int offset) {
  UNROLL for (int k = 0; k < 2; k++) {
    if constexpr (sizeof(E) == 4) b.set(k, patch[from[k] + offset]);
    else b.set(k, pair_of(patch[from[2 * k] + offset], patch[from[2 * k + 1] + offset]));
  }
}

// What sums of a block are without zeros of the padding: those of `k` and every WARPS-th channel from oc on.
INLINE void exact(const StemShape &s, const ELEMENT *x, const ELEMENT *g, int tiles, const StemRow *rows, int oc, int k,
                  float (&sum)[COLUMNS / WARPS]) {
  const int ic = k % s.ic, tap = k / s.ic, fh = tap / s.fw, fw = tap - fh * s.fw;
  UNROLL for (int i = 0; i < COLUMNS / WARPS; i++) sum[i] = 0.f;
  UNROLL_BY(1) for (int number = blockIdx.y; number < tiles; number += gridDim.y) {
    const StemTile tile(s, number);
    UNROLL_BY(1) for (int p = 0; p < s.tile_h * s.tile_w; p++) {
      const int ih = (tile.h + rows[p].h) * s.stride_h - s.pad_h + fh * s.dilation_h;
      const int iw = (tile.w + rows[p].w) * s.stride_w - s.pad_w + fw * s.dilation_w;
      if (!tile.has(s, rows[p]) || fh >= s.fh || (unsigned)ih >= (unsigned)s.ih || (unsigned)iw >= (unsigned)s.iw)
        continue;
      const float v = to_float(x[((long long)tile.image * s.ih * s.iw + (ih * s.iw + iw)) * s.ic + ic]);
      const ELEMENT *from = g + tile.at(s, rows[p]) + oc;
      UNROLL for (int i = 0; i < COLUMNS / WARPS; i++)
        if (oc + i * WARPS < s.oc) sum[i] = fmaf(to_float(from[i * WARPS]), v, sum[i]);
    }
  }
}

ALPHA_GLOBAL(stem_mma_wgrad, (THREADS, 2),
             (const ELEMENT *x, const ELEMENT *g, float *work, StemShape s, int tiles)) {
  ptx::follow();
  DYNAMIC_SHARED(float, smem);
  __shared__ StemRow rows[POSITIONS + GROUPS * BATCH];  // those behind the last one lie outside of every image
  __shared__ int offsets[CHUNK];
  ELEMENT *patches = reinterpret_cast<ELEMENT *>(smem);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 2;
  const int oc0 = blockIdx.z * COLUMNS, channel = warp % 2 * 32 + lane / 4 * 4;
  stem_tables(s, rows, offsets, blockIdx.x * CHUNK, CHUNK);
  copy_patch(s, StemTile(s, blockIdx.y), x, patches);
  ptx::cp_async_commit();
  __syncthreads();
  int at[NT];
  UNROLL for (int j = 0; j < NT; j++) at[j] = offsets[j * 8 + lane / 4];
  float sum[MT][NT][4] = {};
  int buffer = 0;
  for (int number = blockIdx.y; number < tiles; number += gridDim.y, buffer ^= 1) {
    const StemTile tile(s, number);
    const ELEMENT *first = g + tile.at(s, {0, 0, 0}) + oc0 + channel;
    auto load = [&](Piece (&pieces)[LOADS], int p) {
      UNROLL for (int i = 0; i < LOADS; i++) {
        const StemRow r = rows[p + i / PIECES * STEP + position_of(lane, i % PIECES)];
        const bool there = tile.has(s, r);
        pieces[i] = load_piece(first + (there ? (r.h * s.ow + r.w) * s.oc : 0), there ? s.oc - oc0 - channel : 0);
      }
    };
    Piece pieces[LOADS], ahead[LOADS];
    load(pieces, group * BATCH);
    ptx::cp_async_wait<0>();
    __syncthreads();
    const int next = number + gridDim.y;
    if (next < tiles) copy_patch(s, StemTile(s, next), x, patches + (buffer ^ 1) * PATCH);
    ptx::cp_async_commit();
    const ELEMENT *patch = patches + buffer * PATCH;
    for (int p = group * BATCH; p < s.tile_h * s.tile_w; p += GROUPS * BATCH) {
      load(ahead, p + GROUPS * BATCH);
      float part[MT][NT][4] = {};
      UNROLL for (int step = 0; step < 2; step++) {
        int from[PIECES];
        UNROLL for (int i = 0; i < PIECES; i++) from[i] = rows[p + step * STEP + position_of(lane, i)].from;
        Fragment<4> a[MT];
        set_fragment(a, pieces + step * PIECES);
        UNROLL for (int j = 0; j < NT; j += 2) {
          Fragment<2> b[2];
          set_fragment(b[0], patch, from, at[j]), set_fragment(b[1], patch, from, at[j + 1]);
          multiply(part, a, b, j);
        }
      }
      UNROLL for (int i = 0; i < MT; i++)
        UNROLL for (int j = 0; j < NT; j++)
          UNROLL for (int q = 0; q < 4; q++) sum[i][j][q] += part[i][j][q];
      UNROLL for (int i = 0; i < LOADS; i++) pieces[i] = ahead[i];
    }
  }
  __syncthreads();  // everything of the patches is read: sums take their place, [group][channel][k]
  UNROLL for (int i = 0; i < MT; i++)
    UNROLL for (int j = 0; j < NT; j++)
      UNROLL for (int half = 0; half < 2; half++)
        *reinterpret_cast<float2 *>(smem + (group * COLUMNS + channel + i * 2 + half) * CHUNK + j * 8 + lane % 4 * 2) =
            make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
  __syncthreads();
  float total[COLUMNS / WARPS], zero = 0.f;
  UNROLL for (int i = 0; i < COLUMNS / WARPS; i++) {
    total[i] = 0.f;
    UNROLL for (int from = 0; from < GROUPS; from++)
      total[i] += smem[(from * COLUMNS + i * WARPS + warp) * CHUNK + lane];
    zero = fmaf(total[i], 0.f, zero);
  }
  if (__syncthreads_or(zero != 0.f)) exact(s, x, g, tiles, rows, oc0 + warp, blockIdx.x * CHUNK + lane, total);
  float *slot = work + ((long long)(blockIdx.z * gridDim.x + blockIdx.x) * gridDim.y + blockIdx.y) * (COLUMNS * CHUNK);
  UNROLL for (int i = 0; i < COLUMNS / WARPS; i++) slot[(i * WARPS + warp) * CHUNK + lane] = total[i];
}
