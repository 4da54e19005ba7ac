// Sk-dilated on Hopper's tensor cores: the gradient of a convolution with respect to its filters.
//
// What:     dw[oc][tap][ic] = scale * sum over k of g[k][oc] * x[k moved by the tap][ic],  k = (output pixel, image)
//           over the outputs for which the tap meets a real input: 0 <= oh*sh - ph + fh*dh < IH, and likewise along w
// Source:   arXiv 2306.15951, Sk-dilated-V2, Algorithm 3B, as in sk_dilated.cu; the form of the sum is our own
// Layout:   x [plane] (N, IH, IW, IC), g [plane] (N, OH, OW, OC), 16-bit, NHWC; dw (OC, FH, FW, IC), float32
// GEMM:     rows oc (A = g), columns (tap, ic) (B = x), both MN-major as they lie in memory. A block of 64 k is 64 / R
//           pixels x R images: R images of one pixel and 64 channels are one TMA box, or all channels of the tile where
//           R = 64. Of few images a box has positions side by side, and its tile one tap (taps.py)
// Taps:     a tile has the columns of TAPS_TOGETHER taps, TAP_COLUMNS input channels of each, which share the box of g.
//           TAP_COLUMNS is a multiple of 64, or of 32: then rows of x's boxes have 64 bytes
// Zeros:    padding is outside of the ranges. Where taps of a tile differ in their ranges, the outputs are divided
//           into segments, rectangles in which the same taps meet an input. The products of the others are not made.
//           An image or pixel beyond the end is beyond the end in both operands, which TMA fills with zeros: never
//           0 * Inf
// Strips:   a buffer may hold STRIP neighbouring outputs of a row (taps.py), 64 images of each. A box of x is there once
//           for all taps that meet it: three pixels of three taps have 3 boxes of g and 5 of x instead of 3 and 9
// Requires: sm_90a; IC and OC of a group multiples of 8. A tile is of one group: beyond its channels it has those of
//           the next group, which are not stored
// Threads:  a unit is some of the blocks of k of one tile (schedule_wgrad.py). A tile of several units is added up by
//           sum_slices.cu, in order. A consumer has 64 rows; of 64 rows by 128 columns or more of one tap, each of two
//           has half of the columns. Fewer, or several taps: two consumers take turns, and their sums are added up like
//           those of two units. A slot has the accumulators of each consumer: those of rows and columns that exist, in
//           steps of 16 and 8
// Exact:    where planes do not hold an operand, conv/exact/wgrad_sum.cuh makes the sums
// Clusters: CLUSTER blocks may have a unit in common (schedule_wgrad.py). At the end they show each other their sums
//           where the buffers were, and each adds up a part of all
// Cache:    of 1x1 filters, what one tile alone reads is the first to leave the L2 cache: g and the slots stay
// Measured: H100 SXM, bursts, 3x3, batch 512, useful TFLOP/s and times as fast as cuDNN. bfloat16, beside its bfloat16:
//           8x8x256 614, 1.27; 16x16x128 612, 1.23; 32x32x64 461, 1.14; 4x4x512 485, 1.13. Two planes, beside its
//           strict float32: 226, 2.4; 220; 206, 8.2; 213, at relative errors of 1.6e-7 to 2.3e-7. The rest is in
//           benchmarks/results/h100/tried.md
#include "conv/exact/wgrad_sum.cuh"
#include "conv/slices.cuh"

using Tile =
    WgradTile<ELEMENT, TILE_ROWS, TAP_COLUMNS, TAPS_TOGETHER, OPERAND_PLANES, PIPELINE, STRIP_PIXELS, BLOCKS_TOGETHER>;
constexpr bool EXACT_TOO = HAS_EXACT_WAY<ELEMENT, float>;

// ---- consumers -----------------------------------------------------------------------------------------------------

// The sum of a unit; with 64 rows, of the blocks that are this consumer's turn.
template <class T> struct UnitSum {
  Ring<T> &ring;
  const uint64_t a0, b0;
  int turn;  // 0: the next buffer is this consumer's

  INLINE UnitSum(Ring<T> &r, int consumer)
      : ring(r), a0(ptx::wgmma_desc(r.buffers + (T::BM == 64 ? 0 : consumer * T::BOX), T::BOX)),
        b0(ptx::wgmma_desc<2 * T::B_WIDTH>(
            r.buffers + T::B_AT + (T::HALVES ? consumer * (T::WIDTH / T::B_WIDTH) * T::B_BOX : 0), T::B_BOX)),
        turn(consumer) {}

  INLINE bool others_turn() {
    if (!T::IN_TURN) return false;
    turn ^= 1;
    if (turn == 1) return false;
    ring.skip();
    return true;
  }

  // Adds the products of N columns to sum, those at `b` and behind.
  template <int N> INLINE void add(int blocks, int side, uint64_t b, float (&sum)[N / 2]) {
    constexpr int A_PIXEL = T::A_PIXEL / 16, B_PIXEL = T::TAP_BYTES / 16;
    int before = -1;
    UNROLL_BY(1) for (int k = 0; k < blocks; k++) {
      if (others_turn()) continue;
      ring.wait();
      const uint64_t at = ring.stage * (T::STAGE / 16), a = a0 + at, c = b + at;
      if constexpr (T::PLANES == 2) {
        float part[N / 2];
        ptx::wgmma_fence();
        wgmma_buffer<T, N, 4>(part, a, c, false);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ring.release(ring.stage);
        UNROLL for (int i = 0; i < N / 2; i++) sum[i] += part[i];
      } else if constexpr (T::STRIP > 1) {  // copies are what takes long: a buffer is given back at once
        int j = 0;
        UNROLL_BY(1) do {
          ptx::wgmma_fence();
          wgmma_buffer<T, N, 4>(sum, a + j * A_PIXEL, c + j * B_PIXEL, true);
          ptx::wgmma_commit();
          ptx::wgmma_wait<1>();
        } while (++j < side);
        ptx::wgmma_wait<0>();
        ring.release(ring.stage);
      } else {
        ptx::wgmma_fence();
        wgmma_buffer<T, N, 4>(sum, a, c, true);
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
  template <int TAP, int TAPS> INLINE void add(int blocks, int side, float (&sum)[T::SUMS]) {
    if constexpr (T::PLANES == 2 || TAPS == T::TAPS) {
      add<TAPS * T::WIDTH>(blocks, side, b0 + TAP * (T::TAP_BYTES / 16),
                         reinterpret_cast<float(&)[TAPS * T::TAP_SUMS]>(sum[TAP * T::TAP_SUMS]));
    } else {
      float some[TAPS * T::TAP_SUMS] = {};
      add<TAPS * T::WIDTH>(blocks, side, b0 + TAP * (T::TAP_BYTES / 16), some);
      UNROLL for (int i = 0; i < TAPS * T::TAP_SUMS; i++) sum[TAP * T::TAP_SUMS + i] += some[i];
    }
  }

  // The same, where the taps are known at run time: any neighbours; of more than two consumers, which have no registers
  // for the sums of two taps beside those of three, all or one.
  template <int TAP = 0, int TAPS = T::TAPS>
  INLINE void add(int blocks, int side, int tap, int taps, float (&sum)[T::SUMS]) {
    if (taps == TAPS && tap == TAP) add<TAP, TAPS>(blocks, side, sum);
    else if constexpr (TAP + TAPS < T::TAPS) add<TAP + 1, TAPS>(blocks, side, tap, taps, sum);
    else if constexpr (TAPS > 1) add<0, (T::CONSUMERS > 2 ? 1 : TAPS - 1)>(blocks, side, tap, taps, sum);
  }
};

// A thread's part of 64 rows of a tile, or of those of half of its columns, in quads of accumulators.
template <class T> struct Part {
  const Place place;
  const Unit *unit;
  float *dw;
  float4 *slot;           // of the consumer, [quad][thread]; null: the sums are complete, and go to dw
  const int dw_row;
  const Scale &scale;
  const int first, left;  // row and column of the tile that it begins with

  INLINE bool rows_exist() const { return first + place.thread / 32 * 16 < unit->rows; }
  INLINE bool cols_exist(int quad) const { return left + quad * 8 % T::WIDTH < unit->cols; }

  INLINE void put(int quad, float4 v) const {
    const float scale_x = scale.first, scale_g = scale.second;
    v = make_float4(v.x * scale_x * scale_g, v.y * scale_x * scale_g, v.z * scale_x * scale_g, v.w * scale_x * scale_g);
    if (slot) {
      if (cols_exist(quad)) slot[quad * 128 + place.thread] = v;
      return;
    }
    const int row = first + place.row_in_box(0), col = left + place.col(4 * quad), tap = col / T::TAP, ic = col % T::TAP;
    if (tap >= unit->taps || ic >= unit->cols) return;
    float *to = dw + unit->out[tap] + row * (long long)dw_row + ic;
    if (row < unit->rows) *reinterpret_cast<float2 *>(to) = make_float2(v.x, v.y);
    if (row + 8 < unit->rows) *reinterpret_cast<float2 *>(to + 8 * (long long)dw_row) = make_float2(v.z, v.w);
  }
};

// Stores a unit's sums, from quad `first` of the part on; those of a cluster, whose blocks have it in common, added up.
template <class T, int N> INLINE void store_unit(const float (&sum)[N], char *buffers, const Part<T> &to, int first) {
  if constexpr (T::CLUSTER > 1) {
    static_assert(!T::IN_TURN, "consumers have different rows or columns");
    add_together<T>(sum, buffers, to.place, to.rows_exist(), [&](int q) { return to.cols_exist(first + q); },
                    [&](int q, const float4 &all) { to.put(first + q, all); });
  } else if (to.rows_exist()) {
    UNROLL for (int q = 0; q < N / 4; q++) to.put(first + q, quad(sum, q));
  }
}

// A consumer: sums, and stores its part of the units. EXACT: see exact_sum.cuh.
template <bool EXACT, class Next>
INLINE void sum_units(Ring<Tile> &ring, const Unit *unit, const Next &next, float *dw, float4 *work, int dw_row,
                      const Scale &scale, const Exact &exact, const WgradShape &shape, bool boxed) {
  const int consumer = consumer_number();
  const auto same = [](int number) { return ptx::uniform(number); };
  for (;; unit = next(unit)) {
    const auto store = [&](const auto &sum, int first) {
      float4 *slot = work + ((long long)unit->slot * Tile::CONSUMERS + consumer) * (Tile::SUMS * 32);
      store_unit<Tile>(sum, ring.buffers, {Place(), unit, dw, unit->slot < 0 ? nullptr : slot, dw_row, scale,
                       Tile::BM == 64 ? 0 : consumer * 64, Tile::HALVES ? consumer * Tile::WIDTH : 0}, first);
    };
    if constexpr (EXACT) {
      exact_unit<Tile>(exact, shape, boxed, ring.buffers, unit, store);
    } else {
      float sum[Tile::SUMS] = {};
      UnitSum<Tile> blocks(ring, consumer);
      for_each_part(unit, same, [&](const Segment *s, int, int count) {
        blocks.add(count, same(s->side<Tile::STRIP>()), same(s->tap), same(s->taps), sum);
      });
      store(sum, 0);
    }
    if (same(unit->next) < 0) break;
  }
}

// A unit has unit_ints integers; unit b is the first of block b. It is copied to shared memory while everything else is
// set up: from a cold start the chain of tables is what a small layer would wait for.
ALPHA_GLOBAL(sk_dilated_wgmma, (Tile::THREADS, 1) CLUSTERS,
             (const __grid_constant__ ptx::TensorMaps few, const CUtensorMap *more, int first_g, float *dw,
              float4 *work, const int *units, int unit_ints, const float *scale_x, const float *scale_g, int images,
              int rows, int boxed, int wide_x, int wide_g, int x_once, int g_once, int g_row, int g_step, int x_row,
              int x_step, int dw_row, Exact exact, WgradShape shape)) {
  ptx::follow();
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ RingBarriers<Tile> barriers;
  const CUtensorMap *const map_x = ptx::maps_of(few, more), *const map_g = map_x + first_g;
  int *first = reinterpret_cast<int *>(smem + Tile::STAGES * Tile::STAGE);
  const bool flagged = EXACT_TOO && exact.flags.any();
  if (threadIdx.x == 0) barriers.init();
  for (int i = threadIdx.x - 128; i < unit_ints; i += Tile::THREADS - 128)
    if (i >= 0) first[i] = units[blockIdx.x * unit_ints + i];
  __syncthreads();
  Ring<Tile> ring(smem, barriers);
  const auto next = [&](const Unit *unit) {
    return reinterpret_cast<const Unit *>(unit->next < 0 ? nullptr : units + unit->next * unit_ints);
  };
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x > 0 || flagged) return;  // a thread alone: lanes that wait would hold up the one that issues
    const Source g = {map_g, rows, wide_g != 0, Tile::TAPS == 1 && boxed, g_once ? ptx::L2_EVICT_FIRST : ptx::L2_NORMAL};
    const Source x = {map_x, rows, wide_x != 0, Tile::TAPS == 1 && boxed, x_once ? ptx::L2_EVICT_FIRST : ptx::L2_NORMAL};
    unsigned filled = 0;
    for (auto unit = reinterpret_cast<const Unit *>(first); unit; unit = next(unit))
      load_unit(ring, g, x, {images, g_row, x_row, g_step, x_step}, unit, filled, more != nullptr);
  } else {
    ptx::setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    const auto unit = reinterpret_cast<const Unit *>(first);
    if constexpr (EXACT_TOO) {
      if (flagged) return sum_units<true>(ring, unit, next, dw, work, dw_row, Scale(), exact, shape, boxed);
    }
    sum_units<false>(ring, unit, next, dw, work, dw_row, Scale(scale_x, scale_g), exact, shape, boxed);
  }
#endif
}
