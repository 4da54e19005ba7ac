// Sk-dilated on Hopper's tensor cores: the gradient of a convolution with respect to its filters.
//
//   what      dw[oc][tap][ic] = scale * sum over k of g[k][oc] * x[k moved by the tap][ic],  k = (output pixel, image)
//             over the outputs for which the tap meets a real input: 0 <= oh*sh - ph + fh*dh < IH, and likewise along w
//   source    arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B, as in sk_dilated.cu; the form of the sum is our own
//   layout    x [plane] (N, IH, IW, IC), g [plane] (N, OH, OW, OC), 16-bit, NHWC; dw (OC, FH, FW, IC), float32
//   GEMM view rows oc (A = g), columns (tap, ic) (B = x), both MN-major as they lie in memory. A block of 64 k is
//             64 / R pixels x R images: R images of one pixel and 64 channels are one box of TMA. For R = 64 and
//             channels that are multiples of 64, a box has all channels of the tile: few copies, issued by one thread
//   taps      a tile has the columns of TAPS_TOGETHER taps, TAP_COLUMNS input channels of each. They share the box of
//             g, which is fetched once and read from shared memory once for all of them. TAP_COLUMNS is a multiple of
//             64, or of 32: then boxes of x have 32 channels and rows of 64 bytes, so that 32 and 96 channels fill them
//   zeros     padding is outside of the ranges. Where taps of a tile differ in their ranges, the outputs are divided
//             into segments, rectangles in which the same taps meet an input. The products of the others are not made.
//             An image or pixel beyond the end is beyond the end in both operands, which TMA fills with zeros: never
//             0 * Inf
//   work      a unit is some of the blocks of k of one tile (alpha/cuda/conv/schedule_wgmma_wgrad.py). A tile of
//             several units is added up by sum_units, in order
//   threads   see gemm_wgmma.cuh. 128 rows: a consumer has 64 of them. 64 rows: the consumers take turns, each sums up
//             every second block of k, and their sums are added up like those of two units
//   groups    a tile is of one of them. Beyond its channels it has those of the next group, which are not stored
//   requires  sm_90a; IC and OC of a group multiples of 8
//   measured  H100 SXM, bursts, 3x3, batch 512, useful TFLOP/s and how many times as fast as cuDNN. In bfloat16, beside
//             its bfloat16: 8x8x256 614, 1.30; 16x16x128 594, 1.12; 32x32x64 400, 1.08; 4x4x512 485, 1.19. Two planes,
//             beside its strict float32: 226, 2.4; 220; 206, 8.2; 213, at relative errors of 1.6e-7 to 2.3e-7.
//             Units of neighbouring blocks of k instead of every count-th took 1.1 to 1.8 times as long; tables read
//             one after the other before the first copy, 3 us more. A block takes 0.35 us or more, however small.
//             5x5, stride 2, 32x32x64 to 128: 453, 0.84: L2 is busy for 72 % of the time, with copies of 3 clocks a row.
//             At 32x32x64 L2 is what limits, 87 to 89 % busy (tensor cores 48 %), and at stride 2 from there, 90 % (45 %).
//             Three consumers, one for each tap of a filter row, with 64 input channels as rows and 64 or 128 output
//             channels as columns, so that the taps share what is read of x: 115 us in the place of 89 (32x32x64),
//             120 of 110 (that 5x5), 65 of 54 (3x3, stride 2, 64 to 128), never faster; so it is not here
#include "gemm_wgmma.cuh"

template <class E_, int BM_, int TAP_, int TAPS_, int PLANES_, int STAGES_, int STRIP_, int ADVANCE_> struct WgradTile {
  using E = E_;
  static constexpr int STRIP = STRIP_, ADVANCE = ADVANCE_;
  static constexpr int BM = BM_, TAP = TAP_, TAPS = TAPS_, BN = TAP * TAPS, BK = 64, PLANES = PLANES_, STAGES = STAGES_;
  static constexpr bool A_MN = true, B_MN = true;
  static constexpr int B_WIDTH = TAP % 64 ? 32 : 64;                       // channels of a box of x
  static constexpr int BOX = 64 * 128, B_BOX = 64 * 2 * B_WIDTH;           // bytes
  static constexpr int A_BOXES = BM / 64, TAP_BOXES = TAP / B_WIDTH;
  static constexpr int A_PIXEL = A_BOXES * BOX, A_PLANE = STRIP * A_PIXEL;
  static constexpr int TAP_BYTES = TAP_BOXES * B_BOX, B_PLANE = (TAPS + (STRIP - 1) * ADVANCE) * TAP_BYTES;
  static constexpr int B_AT = PLANES * A_PLANE, STAGE = PLANES * (A_PLANE + B_PLANE);
  static constexpr int SUMS = BN / 2, TAP_SUMS = TAP / 2;                  // accumulators of a thread
  static constexpr int CONSUMERS = 2;
  static constexpr bool IN_TURN = BM == 64;                                // consumers take buffers in turn
  static constexpr bool MANY_SUMS = PLANES * SUMS > 160;                   // registers of a consumer
  static constexpr int PRODUCER_REGISTERS = MANY_SUMS ? 40 : 56, CONSUMER_REGISTERS = MANY_SUMS ? 232 : 224;
};
constexpr int MOST_TAPS = 4;
using Tile = WgradTile<ELEMENT, TILE_ROWS, TAP_COLUMNS, TAPS_TOGETHER, OPERAND_PLANES, PIPELINE, STRIP_PIXELS,
                       STRIP_ADVANCE>;

// What a unit is, in one piece of memory that arrives at once: Unit, then its tile's segments.
struct Unit {
  int next;                        // the block's next unit, or -1
  int row, col;                    // first output and input channel
  int rows, cols;                  // of the tile that exist
  int begin, end, step;            // every step-th block of k from begin on, counted over the segments
  int slot;                        // pair of slots of the workspace that gets the sums; -1: they are complete
  int taps;                        // of the tile that exist
  int shift[MOST_TAPS];            // pixel of x that output (0, 0) meets; negative where it meets padding
  int out[MOST_TAPS];              // element of dw that element (0, 0) of the tap's columns is
};

struct Segment {
  int blocks;                      // of k, or strips: of all images
  int h, w, height, width;         // outputs, whole strips of them or one narrow strip
  int tap, taps;                   // the taps of the tile that meet an input here
  int unused;

  __device__ __forceinline__ int side() const {  // pixels of a strip
    return Tile::STRIP > 1 ? min(Tile::STRIP, width) : 1;
  }
};

struct Sum {
  int slot, step, count;           // a tile's slots
  int rows, cols, taps;            // of the tile that exist
  int unused[2];
  int out[MOST_TAPS];
};

// Element (row, col) of a tile and its right neighbour.
struct Filters {
  float *dw;
  const int *out;
  int rows, cols, taps;            // of the tile that exist
  long long dw_row;

  __device__ __forceinline__ void put(int row, int col, float a, float b, const Scale &scale) const {
    const int tap = col / Tile::TAP, ic = col % Tile::TAP;
    if (row < rows && tap < taps && ic < cols)
      *reinterpret_cast<float2 *>(dw + out[tap] + row * dw_row + ic) =
          make_float2(a * scale.first * scale.second, b * scale.first * scale.second);
  }
};

// Calls body(segment, first block in it, number of blocks) for the parts of a unit.
template <class Body> __device__ __forceinline__ void for_each_part(const Unit *unit, Body body) {
  int begin = unit->begin, end = unit->end;
  const int step = unit->step;
  for (const Segment *s = reinterpret_cast<const Segment *>(unit + 1); begin < end; s++) {
    const int blocks = s->blocks, count = (min(end, blocks) - begin + step - 1) / step;
    if (begin < blocks) {
      body(s, begin, count);
      begin += count * step;
    }
    begin -= blocks;
    end -= blocks;
  }
}

// ---- producer ------------------------------------------------------------------------------------------------------

// An operand as the producer sees it. A box has WIDTH channels of one pixel of `images` images; where all boxes have 64
// images and WIDTH channels, one has those of all of a tile's channels.
struct Source {
  const CUtensorMap &map;
  int images;
  bool wide;

  // Loads BOXES * WIDTH channels of slice `j` of a block; `to` is where slice 0 begins.
  template <int BOXES, int WIDTH>
  __device__ __forceinline__ void load(char *to, int j, int channel, int pixel, int image, int plane,
                                       uint64_t *landed) const {
    if (wide) {
      ptx::tma_load_5d(to, map, 0, pixel, image, channel / WIDTH, plane, landed);
    } else {
#pragma unroll
      for (int b = 0; b < BOXES; b++)
        ptx::tma_load_5d(to + (b * 64 + j * images) * (2 * WIDTH), map, channel + b * WIDTH, pixel, image, 0, plane,
                         landed);
    }
  }
};

struct Walk {            // over the outputs of a segment
  int g_row, x_row;      // pixels from a row of outputs to the next, in g and in x
  int x_step;            // and from an output to the next, in x
};

struct Position {        // of a segment: images, row, column
  int group, h, w;

  __device__ __forceinline__ void add(const Position &by, int height, int width) {  // by: itself a position
    w += by.w;
    h += by.h + (w >= width);
    w -= w >= width ? width : 0;
    group += by.group + (h >= height);
    h -= h >= height ? height : 0;
  }
};

__device__ __forceinline__ Position position(int number, int height, int width) {
  const int row = number / width;
  return {row / height, row % height, number % width};
}

template <class T>
__device__ __forceinline__ void load_unit(Ring<T> &ring, const Source &g, const Source &x, const Walk &walk,
                                          const Unit *unit) {
  const int images = g.images, pixels = 64 / images, row = unit->row, col = unit->col, step = unit->step;
  int shift[T::TAPS], turn = 0;
#pragma unroll
  for (int t = 0; t < T::TAPS; t++) shift[t] = unit->shift[t];
  for_each_part(unit, [&](const Segment *s, int begin, int count) {
    const int height = s->height, h0 = s->h, w0 = s->w, tap = s->tap, taps = s->taps;
    const int side = s->side(), width = s->width / side;  // in strips
    const Position leap = position((step - 1) * pixels, height, width);  // from behind a block to the next one
    Position at = position(begin * pixels, height, width);
    const int boxes = taps + (side - 1) * min(T::ADVANCE, taps);
    const int bytes = T::PLANES * (side * T::A_PIXEL + boxes * T::TAP_BYTES);
    for (int k = 0; k < count; k++) {
      ptx::mbarrier_wait(ring.barriers.empty + ring.stage, ring.phase ^ 1);
      uint64_t *landed = ring.barriers.full + (T::IN_TURN ? turn * T::STAGES : 0) + ring.stage;
      turn ^= 1;
      ptx::mbarrier_arrive_expect(landed, bytes);
      char *a = ring.buffers + ring.stage * T::STAGE, *b = a + T::B_AT;
      ring.advance();
      for (int j = 0; j < pixels; j++) {
        const int h = h0 + at.h, w = w0 + at.w * T::STRIP, image = at.group * images;  // beyond the batch: all zeros
        const int at_g = h * walk.g_row + w, at_x = h * walk.x_row + w * walk.x_step;
#pragma unroll
        for (int p = 0; p < T::PLANES; p++) {
#pragma unroll
          for (int i = 0; i < T::STRIP; i++)
            if (i < side)
              g.load<T::A_BOXES, 64>(a + p * T::A_PLANE + i * T::A_PIXEL, j, row, at_g + i, image, p, landed);
          const auto load_x = [&](int box, int pixel) {
            x.load<T::TAP_BOXES, T::B_WIDTH>(b + p * T::B_PLANE + box * T::TAP_BYTES, j, col, pixel, image, p, landed);
          };
          if constexpr (T::STRIP == 1) {
#pragma unroll
            for (int t = 0; t < T::TAPS; t++)
              if (t >= tap && t < tap + taps) load_x(t, at_x + shift[t]);
          } else {
            for (int i = 0; i < taps + (side - 1) * T::ADVANCE; i++)
              if (i % T::ADVANCE < taps)
                load_x(tap + i, at_x + shift[0] + (tap + i) * (walk.x_step / T::ADVANCE));
          }
        }
        at.add({0, 0, 1}, height, width);
      }
      if (step > 1) at.add(leap, height, width);
    }
  });
}

// ---- consumers -----------------------------------------------------------------------------------------------------

// The sum of a unit; with 64 rows, of the blocks that are this consumer's turn.
template <class T> struct UnitSum {
  Ring<T> &ring;
  const uint64_t a0, b0;
  int turn;  // 0: the next buffer is this consumer's

  __device__ __forceinline__ UnitSum(Ring<T> &r, int consumer)
      : ring(r), a0(ptx::wgmma_desc(r.buffers + (T::IN_TURN ? 0 : consumer * T::BOX), T::BOX)),
        b0(ptx::wgmma_desc<2 * T::B_WIDTH>(r.buffers + T::B_AT, T::B_BOX)), turn(consumer) {}

  __device__ __forceinline__ bool others_turn() {
    if (!T::IN_TURN) return false;
    turn ^= 1;
    if (turn == 1) return false;
    ring.skip();
    return true;
  }

  // Issues the products of one buffer with N columns, those at b and behind.
  template <int N>
  static __device__ __forceinline__ void multiply(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add) {
    constexpr int STEP = 128, B_STEP = 2 * T::B_WIDTH;  // 16 of k, in 16 bytes
    constexpr int A_LO = T::A_PLANE / 16, B_LO = T::B_PLANE / 16;
    if constexpr (T::PLANES == 2) {
#pragma unroll
      for (int k = 0; k < 4; k++) {
        ptx::wgmma<typename T::E, N, 1, 1>(sum, a + A_LO + k * STEP, b + k * B_STEP, add || k > 0);
        ptx::wgmma<typename T::E, N, 1, 1>(sum, a + k * STEP, b + B_LO + k * B_STEP, true);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
      ptx::wgmma<typename T::E, N, 1, 1>(sum, a + k * STEP, b + k * B_STEP, T::PLANES == 2 || add || k > 0);
  }

  // Adds the products of N columns to sum, those at `b` and behind.
  template <int N> __device__ __forceinline__ void add(int blocks, int side, uint64_t b, float (&sum)[N / 2]) {
    constexpr int A_PIXEL = T::A_PIXEL / 16, B_PIXEL = T::ADVANCE * T::TAP_BYTES / 16;
    int before = -1;
#pragma unroll 1
    for (int k = 0; k < blocks; k++) {
      if (others_turn()) continue;
      ring.wait();
      const uint64_t at = ring.stage * (T::STAGE / 16), a = a0 + at, c = b + at;
      if constexpr (T::PLANES == 2) {
#pragma unroll 1
        for (int j = 0; j < side; j++) {
          float block[N / 2];
          ptx::wgmma_fence();
          multiply<N>(block, a + j * A_PIXEL, c + j * B_PIXEL, false);
          ptx::wgmma_commit();
          ptx::wgmma_wait<0>();
          if (j == side - 1) ring.release(ring.stage);
#pragma unroll
          for (int i = 0; i < N / 2; i++) sum[i] += block[i];
        }
      } else if constexpr (T::STRIP > 1) {  // copies are what takes long: a buffer is given back at once
        int j = 0;
#pragma unroll 1
        do {
          ptx::wgmma_fence();
          multiply<N>(sum, a + j * A_PIXEL, c + j * B_PIXEL, true);
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();
        } while (++j < side);
        ptx::wgmma_wait<0>();
        ring.release(ring.stage);
      } else {
        ptx::wgmma_fence();
        multiply<N>(sum, a, c, true);
        ptx::wgmma_commit();
        if (before >= 0) {  // one group stays in flight while the next is issued
          ptx::wgmma_wait<1>();
          ring.release(before);
        }
        before = ring.stage;
      }
      ring.advance();
    }
    if (T::PLANES == 1 && T::STRIP == 1) ptx::wgmma_wait<0>();
    if (before >= 0) ring.release(before);
  }

  // Blocks in which taps TAP .. TAP + TAPS - 1 have products. Accumulators of wgmma are an array of their own, or the
  // compiler takes the products one by one.
  template <int TAP, int TAPS> __device__ __forceinline__ void add(int blocks, int side, float (&sum)[T::SUMS]) {
    if constexpr (T::PLANES == 2 || TAPS == T::TAPS) {
      add<TAPS * T::TAP>(blocks, side, b0 + TAP * (T::TAP_BYTES / 16),
                         reinterpret_cast<float(&)[TAPS * T::TAP_SUMS]>(sum[TAP * T::TAP_SUMS]));
    } else {
      float some[TAPS * T::TAP_SUMS];
#pragma unroll
      for (int i = 0; i < TAPS * T::TAP_SUMS; i++) some[i] = 0.f;
      add<TAPS * T::TAP>(blocks, side, b0 + TAP * (T::TAP_BYTES / 16), some);
#pragma unroll
      for (int i = 0; i < TAPS * T::TAP_SUMS; i++) sum[TAP * T::TAP_SUMS + i] += some[i];
    }
  }

  // The same, where the taps are known at run time.
  template <int TAP = 0, int TAPS = T::TAPS>
  __device__ __forceinline__ void add(int blocks, int side, int tap, int taps, float (&sum)[T::SUMS]) {
    if (taps == TAPS && tap == TAP) add<TAP, TAPS>(blocks, side, sum);
    else if constexpr (TAP + TAPS < T::TAPS) add<TAP + 1, TAPS>(blocks, side, tap, taps, sum);
    else if constexpr (TAPS > 1) add<0, TAPS - 1>(blocks, side, tap, taps, sum);
  }
};

// Slots are [quad of accumulators][thread of the consumer], float4: 64 rows of a tile in the registers' own order.
template <class T>
__device__ __forceinline__ void store_unit(const float (&sum)[T::SUMS], int slot, const Filters &filters, float4 *work,
                                           const Scale &scale) {
  const Place place;
  if (slot >= 0) {
    float4 *to = work + (2ll * slot + place.consumer) * (T::SUMS * 32) + place.thread;
#pragma unroll
    for (int i = 0; i < T::SUMS; i += 4) to[i / 4 * 128] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    return;
  }
  const int row = place.row(0);
#pragma unroll
  for (int i = 0; i < T::SUMS; i += 2) filters.put(row + (i & 2) * 4, place.col(i), sum[i], sum[i + 1], scale);
}

// A unit has unit_ints integers; unit b is the first of block b. It is copied to shared memory while everything else is
// set up: from a cold start the chain of tables is what a small layer would wait for.
extern "C" __global__ void __launch_bounds__(384, 1)
sk_dilated_wgmma(const CUtensorMap *map_x, const CUtensorMap *map_g, float *dw, float4 *work, const int *units,
                 int unit_ints, const float *scale_x, const float *scale_g, int images, int wide_x, int wide_g,
                 int g_row, int x_row, int x_step, int dw_row) {
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ RingBarriers<Tile> barriers;
  int *first = reinterpret_cast<int *>(smem + Tile::STAGES * Tile::STAGE);
  if (threadIdx.x == 0) {
    barriers.init();
    ptx::tensor_map_acquire(map_x);
    ptx::tensor_map_acquire(map_g);
  }
  for (int i = threadIdx.x - 128; i < unit_ints; i += 256)
    if (i >= 0) first[i] = units[blockIdx.x * unit_ints + i];
  __syncthreads();
  Ring<Tile> ring(smem, barriers);
  const auto next = [&](const Unit *unit) {
    return reinterpret_cast<const Unit *>(unit->next < 0 ? nullptr : units + unit->next * unit_ints);
  };
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x > 0) return;  // a thread alone: lanes that wait would hold up the one that issues
    const Source g = {*map_g, images, wide_g != 0}, x = {*map_x, images, wide_x != 0};
    for (auto unit = reinterpret_cast<const Unit *>(first); unit; unit = next(unit))
      load_unit(ring, g, x, {g_row, x_row, x_step}, unit);
  } else {
    ptx::setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    const int consumer = threadIdx.x / 128 - 1;
    const Scale scale(scale_x, scale_g);
    for (auto unit = reinterpret_cast<const Unit *>(first); unit; unit = next(unit)) {
      float sum[Tile::SUMS];
#pragma unroll
      for (int i = 0; i < Tile::SUMS; i++) sum[i] = 0.f;
      UnitSum<Tile> blocks(ring, consumer);
      for_each_part(unit, [&](const Segment *s, int, int count) { blocks.add(count, s->side(), s->tap, s->taps, sum); });
      const Filters filters = {dw, unit->out, unit->rows, unit->cols, unit->taps, dw_row};
      store_unit<Tile>(sum, unit->slot, filters, work, scale);
    }
  }
#endif
}
ALPHA_KERNEL(sk_dilated_wgmma)

// Adds up the slots of tiles cut into several units. Grid (parts of a slot, tiles of 64 rows): a thread adds one float4
// of every split-th slot; the partial sums of an element meet in shared memory, always in the same order.
extern "C" __global__ void __launch_bounds__(256)
sum_units(const float4 *work, float *dw, const Sum *sums, const float *scale_x, const float *scale_g, int dw_row,
          int split) {
  __shared__ float4 partial[256];
  constexpr int SLOT = Tile::SUMS * 32;  // float4
  const Scale scale(scale_x, scale_g);
  const Sum &tile = sums[blockIdx.y];
  const int width = 256 / split, lane = threadIdx.x % width, part = threadIdx.x / width;
  const int element = blockIdx.x * width + lane, thread = element % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4, col = element / 128 * 8 + thread % 4 * 2;
  const float4 *from = work + (long long)tile.slot * SLOT + element;
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 8
  for (int s = part; s < tile.count; s += split) {
    const float4 v = from[(long long)s * tile.step * SLOT];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (part > 0) return;
  for (int p = 1; p < split; p++) {
    const float4 v = partial[p * width + lane];
    sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
  }
  const Filters filters = {dw, tile.out, tile.rows, tile.cols, tile.taps, dw_row};
  filters.put(row, col, sum.x, sum.y, scale);
  filters.put(row + 8, col, sum.z, sum.w, scale);
}
ALPHA_KERNEL(sum_units)
