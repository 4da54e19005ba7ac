// ConvV2 and KS-deconv on Hopper's tensor cores: no product with a padded or inserted zero is made.
//
// What:     fprop  y[n, oh, ow, oc] = relu(b[oc] + sum_{fh, fw, ic} x[n, ih, iw, ic] * w[oc, fh, fw, ic]),
//                  ih = oh*stride - padding + fh*dilation, iw likewise
//           dgrad  dx[n, ih, iw, ic] = sum_{fh, fw, oc} g[n, oh, ow, oc] * w[oc, fh, fw, ic], the same ih, iw.
//           Both fill the positions of one tensor, `out`, from those of another, `in`; with `adds` what is in out
//           already is added, both rounded first, by TMA's reduction: each element once, so in a fixed order
// Source:   arXiv 2306.15951, ConvV2 and KS-deconv, Algorithms 1B and 2B. Differs: positions that read the same taps
//           form a class (alpha/ops/conv_desc.py: TapClass), of which a tile computes a part
// Layout:   in, w: planes of 16-bit elements, NHWC and OHWI; out: NHWC, OUT = float, bf16 or f16
// GEMM:     rows: (pixels of a class, images), BM of them: `images` neighbouring images of BM / images pixels;
//           sum: runs of the class x chunks of 64 of a run; columns: channels of out.
//           fprop: A and B are K-major. dgrad: B is MN-major, w is read as it lies
// Runs:     the channels of a tap, or of all taps of a filter's row (pixels.py); a tensor map for each number of taps in
//           a run
// Loads:    a TMA box is {64 of a run, width, height, `images`, 1}: one pixel, or of few images positions side by side
//           (boxes.py). Padding, stride and dilation are coordinates. What does not exist arrives as zeros, or as images
//           of the other plane and filters of another tile, whose sums are not stored
// Clusters: BLOCKS_TOGETHER blocks may share a tile, of whose sum each makes a slice (schedule.py); they add up
//           what the others show in shared memory, and store it from registers
// Zeros:    taps that meet padding, or inserted zeros of a strided dgrad, are in no class: they are neither loaded nor
//           multiplied, but in boxes at a map's border. A position without taps gets a sum of 0 blocks
// Joins:    a shortcut's map, of the same places, is added before relu to what would be stored, in inference
// Pools:    POOLED: of each 2 x 2 of `out`, whole windows of a box, the largest is stored
// Exact:    where planes do not hold an operand of float32 results, conv/exact/conv_wgmma_sum.cuh makes the sums
// Statistics: where batch norm will follow, the means and variances that it begins with are made of what is stored
//           (tile_statistics.cuh), but for sums in slices and clusters
// Requires: sm_90a; channels and columns of a group multiples of 8 (groups are the fifth coordinate of all maps)
// Threads:  see gemm_wgmma.cuh. A list of tiles per block, made by schedule.py; conv_wgmma_slices adds up slices of sums.
//           Results larger than the L2 cache are stored with an evict-first hint
// Measured: H100 SXM, 3x3, batch 512, us (fprop / dgrad): 32x32, 64 -> 64 float16x2 194 / 195, bfloat16 83 / 85, cuDNN
//           TF32 200 / 214, bfloat16 100 / 99; 4x4, 512 -> 512 111 / 110 and 39 / 39, cuDNN 95 / 99 and 75 / 52
//           (benchmarks/cuda_conv_modes.py). More shapes in benchmarks/results/h100/conv_modes.jsonl, one image in
//           h200/small_batch.jsonl, what each part gave in h100/tried.md
#include "conv/exact/conv_wgmma_sum.cuh"
#include "conv/slices.cuh"
#include "tile_statistics.cuh"

constexpr bool EXACT_TOO = HAS_EXACT_WAY<ELEMENT, OUT>;

template <class Tile> constexpr bool JOINS = !Tile::B_MN && !Tile::PAIRS && !POOLED;  // fprop may

// Which of 64 rows that a consumer has in an entry's tile are stored: those whose position and image exist.
template <class Tile> struct StoredRows {
  const ConvOperands &t;
  const int *const tile;     // its entry of the list: what lanes ask each other for, all of them have to ask for
  const int pixels, first;   // pixels: that exist, from the tile's first on

  INLINE StoredRows(const ConvOperands &t, const int *tile, int item, int depth)
      : t(t), tile(tile), pixels(field(item, PIXELS) - field(item, PIXEL)),
        first((Tile::PAIRS ? 0 : depth * 128) + (threadIdx.x / 128 - 1) * 64) {}
  INLINE bool all(int item) const {
    return pixels >= Tile::A_ROWS >> t.box.rows_log2() && t.batch - field(item, IMAGE) >= t.box.image(~0) + 1 &&
           t.box.height_log2() + t.box.width_log2() == 0;
  }
  INLINE bool operator()(int row_of_consumer) const { return position(row_of_consumer) >= 0; }
  // The number of its position among all of `out`, or -1.
  INLINE i64 position(int row_of_consumer) const {
    const int row = first + row_of_consumer, pixel = row >> t.box.rows_log2();
    const int at = tile[PIXEL] + pixel, width = tile[WIDTH], y = at / width, image = tile[IMAGE] + t.box.image(row);
    const int h = tile[OUT_H] + y * tile[OUT_H_STEP] + t.box.h(row, tile[OUT_H_STEP]);
    const int w = tile[OUT_W] + (at - y * width) * tile[OUT_W_STEP] + t.box.w(row, tile[OUT_W_STEP]);
    const bool exists = pixel < pixels && image < t.batch && h < t.height && w < t.width;
    return exists ? (image * (i64)t.height + h) * t.width + w : -1;
  }
};

// Consumer, all threads: what was written into a box, 64 rows (image, h, w), 2^width_log2 of them side by side, is replaced
// by the largest of each window of 2 x 2, 16 rows in the order of `out`; NaN is the largest.
template <class H> INLINE void pool_box(char *box, int width_log2) {
  const Place place;
  const int chunk = place.thread % 8, window = place.thread / 8, side = (1 << width_log2 - 1) - 1;
  const int first = window >> width_log2 - 1 << width_log2 + 1 | (window & side) << 1;
  const auto at = [&](int row) { return reinterpret_cast<uint4 *>(box + row * 128 + ((chunk ^ row & 7) << 4)); };
  ptx::bar_sync(1 + place.consumer, 128);
  unsigned most[4];
  UNROLL for (int k = 0; k < 4; k++) {
    const uint4 v = *at(first + (k & 1) + (k >> 1 << width_log2));
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    UNROLL for (int i = 0; i < 4; i++) {
      const auto larger = [&](bool second) {
        const float a = float_of_pair<H>(most[i], second), b = float_of_pair<H>(words[i], second);
        return b > a || b != b ? b : a;
      };
      most[i] = k == 0 ? words[i] : pair_of_floats<H>(larger(false), larger(true));
    }
  }
  ptx::bar_sync(1 + place.consumer, 128);
  *at(window) = make_uint4(most[0], most[1], most[2], most[3]);
}

// Consumer, all threads: adds `joined` to what was written into a box, whose first column is `col` of the tile, and goes
// through relu.
template <class O, class Tile>
INLINE void join_box(const ConvOperands &t, const StoredRows<Tile> &rows, char *box, int item, int col) {
  constexpr int LANES = 16 / sizeof(O);
  const Place place;
  const int chunk = place.thread % 8, column = field(item, COLUMN) + col + chunk * LANES;
  const i64 from = field(item, GROUP) * t.columns + column;
  ptx::bar_sync(1 + place.consumer, 128);
  if (column >= t.columns) return;
  UNROLL for (int row = place.thread / 8; row < 64; row += 16) {
    const i64 position = rows.position(row);
    if (position < 0) continue;
    Lanes<LANES, O> &mine = *reinterpret_cast<Lanes<LANES, O> *>(box + row * 128 + ((chunk ^ row & 7) << 4));
    const Lanes<LANES, O> other = ::load<LANES>(static_cast<const O *>(t.joined) + position * t.counted + from);
    UNROLL for (int e = 0; e < LANES; e++) {
      const float v = to_float(mine.v[e]) + to_float(other.v[e]);
      mine.v[e] = (O)(t.relu && v < 0.f ? 0.f : v);
    }
  }
}

// How a consumer's results leave: store(box, col) issues the TMA stores of a box. Counted where asked for.
template <class Tile, class O> struct Results {
  const ConvOperands &t;
  const bool counts;
  OutBoxes<Tile, O> boxes;

  // exact: nothing is counted, as the squares of what planes do not hold may exceed float32
  INLINE Results(const ConvOperands &t, char *smem, bool exact) : t(t), counts(t.statistics && !exact), boxes(smem) {}
  // number: of the box that alone is stored, of whose columns the sums are
  template <int N, class Store>
  INLINE void operator()(const float (&sum)[N], const Finish &finish, const int *tile, int item, int depth, Store store,
                         int number = 0) {
    const auto join = [&](char *box, int col) {
      if (JOINS<Tile> && t.joined) join_box<O>(t, StoredRows<Tile>(t, tile, item, depth), box, item, col);
    };
    if constexpr (N != Tile::SUMS) {
      boxes.one(sum, number, finish, store, join);
    } else if (counts) {
      const StoredRows<Tile> rows(t, tile, item, depth);
      const int column = field(item, COLUMN);
      const TileStatistics<O> statistics = {t.statistics, t.counted, field(item, GROUP) * t.columns + column,
                                            t.columns - column, rows.all(item), rows};
      boxes(sum, finish, store, [&](const char *box, int b) { statistics.add(box, b); });
    } else {
      boxes(sum, finish, store, [](const char *, int) {}, [&](char *box, int col) {
        if constexpr (POOLED) pool_box<O>(box, t.box.width_log2());
        else join(box, col);
      });
    }
  }
  INLINE void drain() const { boxes.drain(); }
};

// Where a lane's box of results goes, if there is one.
template <class Tile> struct Target {
  int image, h, w, map;
  bool exists;

  // depth: of the sums; row: of 128
  INLINE void find(const ConvOperands &t, int item, int depth, int row, bool has_box) {
    if (!Tile::PAIRS) row += depth * 128;
    const int pixel = field(item, PIXEL) + (row >> t.box.rows_log2()), width = field(item, WIDTH), y = pixel / width;
    const int apart_h = field(item, OUT_H_STEP), apart_w = field(item, OUT_W_STEP);
    image = field(item, IMAGE) + t.box.image(row);
    h = field(item, OUT_H) + y * apart_h + t.box.h(row, apart_h);
    w = field(item, OUT_W) + (pixel - y * width) * apart_w + t.box.w(row, apart_w);
    const int pixels = field(item, PIXELS);
    if (Tile::PAIRS && depth) w += field(item, PAIR);
    map = residue_class(h, w, t.box.log2(5), t.box.log2(6));
    if (POOLED) h >>= 1, w >>= 1;
    exists = has_box && pixel < pixels;
  }
};

// Where results go that are stored as they lie in registers: in fours, two neighbours in each of two rows.
struct Direct {
  OUT *to[2];  // column 0 of the tile in these rows, or null
  const Finish finish;
  const i64 joined;  // how far behind what is stored lies what is added to it before relu, in bytes; NOTHING: nothing
  const bool relu;   // behind that
  static constexpr i64 NOTHING = 1;

  // added: like out, out itself, or null. tile: its entry of the list; depth: of the rows; columns, channels: of a
  // group, and of out
  INLINE Direct(OUT *out, const OUT *added, const int *tile, int depth, const Place &place, BoxShape box, int batch,
                int height, int width, int columns, int channels, const Finish &finish)
      : finish{finish.scale, finish.bias, finish.columns, finish.relu && !added},
        joined(added ? reinterpret_cast<i64>(added) - reinterpret_cast<i64>(out) : NOTHING), relu(finish.relu) {
    UNROLL for (int half = 0; half < 2; half++) {
      const int row = depth * 128 + place.row(2 * half), pixel = tile[PIXEL] + (row >> box.rows_log2());
      const int y = pixel / tile[WIDTH], image = tile[IMAGE] + box.image(row);
      const int h = tile[OUT_H] + y * tile[OUT_H_STEP] + box.h(row, tile[OUT_H_STEP]);
      const int w = tile[OUT_W] + (pixel - y * tile[WIDTH]) * tile[OUT_W_STEP] + box.w(row, tile[OUT_W_STEP]);
      const bool exists = pixel < tile[PIXELS] && image < batch && h < height && w < width;
      to[half] = exists ? out + ((image * (i64)height + h) * width + w) * channels + tile[GROUP] * columns + tile[COLUMN]
                        : nullptr;
    }
  }
  INLINE bool exists(int col) const { return col < finish.columns && (to[0] || to[1]); }
  INLINE void put(int col, const float4 &sum) const {
    const float2 add = finish.bias_at<false>(col);
    if (to[0]) put(to[0] + col, finish.apply<false>(sum.x, add.x), finish.apply<false>(sum.y, add.y));
    if (to[1]) put(to[1] + col, finish.apply<false>(sum.z, add.x), finish.apply<false>(sum.w, add.y));
  }
  INLINE void put(OUT *at, float a, float b) const {
    if (joined != NOTHING) {
      const OUT *other = reinterpret_cast<const OUT *>(reinterpret_cast<const char *>(at) + joined);
      a = to_float(other[0]) + to_float((OUT)a), b = to_float(other[1]) + to_float((OUT)b);
      if (relu) a = a < 0.f ? 0.f : a, b = b < 0.f ? 0.f : b;
    }
    store_pair(at, a, b);
  }
};

// A consumer: sums, and stores 64 of each 128 rows of its tiles. ahead: the list's first entry; EXACT: see exact_sum.cuh.
// It has code of its own: accumulators of wgmma that others write too are waited for.
template <bool EXACT, class Tile>
INLINE void sum_tiles(const ConvOperands &t, Ring<Tile> &ring, HeldFilters<Tile> &held, int ahead) {
  const Scale scale = EXACT ? Scale() : Scale(t.scale_in, t.scale_w);
  if (Tile::CLUSTER == 1 && t.slots && blockIdx.x == 0 && threadIdx.x == 128)
    tell_scales(t.slots, EXACT ? 1 : *t.scale_in, EXACT ? 1 : *t.scale_w);
  const int lane = threadIdx.x % 32, rows = min(t.box.rows(), 64);  // of a box that is stored
  const int row = (threadIdx.x / 128 - 1) * 64 + lane * rows;
  Results<Tile, OUT> out(t, ring.buffers, EXACT);
  typename Tile::Sums sum;
  const int *list = t.list();
  UNROLL_BY(1) for (;;) {
    const int item = ahead;
    if (field(item, BLOCKS) < 0) break;
    ahead = *(list += FIELDS);
    const int column = field(item, COLUMN), slices = field(item, SLICE), group = field(item, GROUP);
    const int slot = field(item, SLOT) + (slices >> 16);
    const bool both = field(item, PAIR) > 0;
    Target<Tile> to;
    const auto find = [&](int d) { to.find(t, item, d, row, lane * rows < 64); };
    if (Tile::DEPTH == 1) find(0);  // where registers are, before the sum
    if constexpr (!EXACT) {
      if (Tile::HELD && field(item, FILTERS)) held.wait();
      if constexpr (Tile::PAIRS) {
        pair_sum<Tile>(ring, field(item, BLOCKS), field(item, RUNS_W), both, sum);
      } else {
        const int whole = field(item, WHOLE), steps = (field(item, LENGTH) + 15) / 16;
        wgmma_sum<Tile>(ring, whole, field(item, BLOCKS) - whole, steps % 4, sum);
      }
      if (Tile::HELD && field(ahead, FILTERS)) held.release();
    }
    const float *bias = t.bias ? t.bias + group * t.columns + column : nullptr;
    const Finish finish = {scale, bias, t.columns - column, t.relu && !(JOINS<Tile> && t.joined)};
    const uint64_t policy = t.streams ? ptx::L2_EVICT_FIRST : ptx::L2_NORMAL;
    const auto store = [&](int d, const auto &rows_of_sum, int first = 0) {  // first: box of 32 columns, of some alone
      if constexpr (Tile::CLUSTER > 1) {
        const Place place;
        OUT *const to = static_cast<OUT *>(t.slots);
        const Direct direct(to, t.adds ? to : static_cast<const OUT *>(t.joined), list - FIELDS - lane, 0, place, t.box,
                            t.batch, t.height, t.width, t.columns, t.counted,
                            {scale, bias, finish.columns, t.relu != 0});
        const auto col = [&](int q) { return place.col(4 * q) + first * PIECE; };
        add_together<Tile>(rows_of_sum, ring.buffers, place, true, [&](int q) { return direct.exists(col(q)); },
                           [&](int q, const float4 &v) { direct.put(col(q), v); });
        return;
      }
      if ((slices & 0xffff) > 1) {
        store_slice<Tile>(rows_of_sum, d, static_cast<float *>(t.slots), slot, first * (PIECE / 8));
        return;
      }
      out(rows_of_sum, finish, list - FIELDS - lane, item, d, [&](const char *box, int col) {
        const char *from = box + lane * rows * 128;
        const CUtensorMap &map = t.out[to.map];
        if (to.exists && t.adds) ptx::tma_add_5d(map, from, column + col, to.w, to.h, to.image, group, policy);
        else if (to.exists) ptx::tma_store_5d(map, from, column + col, to.w, to.h, to.image, group, policy);
      }, first);
    };
    if constexpr (EXACT) {
      UNROLL_BY(1) for (int part = 0; part < (both || !Tile::PAIRS ? Tile::DEPTH : 1) * (Tile::BN / PIECE); part++) {
        const int d = part / (Tile::BN / PIECE), first = part % (Tile::BN / PIECE);
        float some[PIECE / 2] = {};
        exact_sum<Tile>(t, ring.buffers, list - FIELDS - lane, d, first * PIECE, some);
        if (Tile::DEPTH > 1) find(d);
        store(d, some, first);
      }
    } else {
      if (Tile::DEPTH > 1) find(0);
      store(0, sum[0]);
      if constexpr (Tile::DEPTH > 1) {
        find(1);
        if (!Tile::PAIRS || both) store(1, sum[1]);
      }
    }
    if (Tile::CLUSTER > 1) break;
  }
  out.drain();
}

// One block: its list of tiles. more: whether the maps lie in device memory.
template <class Tile> INLINE void conv_block(const ConvOperands &t, bool more) {
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ RingBarriers<Tile> barriers;
  __shared__ HeldBarriers held_barriers;
  const int first = *t.list();  // on its way while barriers and maps are made ready, as is the flags' answer
  const bool flagged = EXACT_TOO && t.exact.flags.any();
  if (t.statistics) clear_slots(t.statistics, t.counted, t.groups * t.columns, Tile::THREADS);
  if (threadIdx.x == 0) {
    barriers.init();
    if (Tile::HELD) held_barriers.init(4 * Tile::CONSUMERS);
  }
  if (more && threadIdx.x < 32) {
    for (const CUtensorMap *map = t.in; map < t.out; map++) ptx::tensor_map_acquire(map);
  } else if (more && threadIdx.x >= 128 && threadIdx.x % 128 < 32) {
    for (int m = 0; m < t.box.out_maps(); m++) ptx::tensor_map_acquire(t.out + m);
  }
  __syncthreads();
  Ring<Tile> ring(smem, barriers);
  HeldFilters<Tile> held(smem, held_barriers);
  if (threadIdx.x < 128) {
    if (Tile::CONSUMERS > 1) ptx::setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x < 32 && !flagged) load_tiles(t, ring, held, first);
  } else {
    if (Tile::CONSUMERS > 1) ptx::setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    if constexpr (EXACT_TOO) {
      if (flagged) return sum_tiles<true>(t, ring, held, first);
    }
    sum_tiles<false>(t, ring, held, first);
  }
#endif
}

template <bool FPROP>
using TileOf = WgmmaTile<ELEMENT, TILE_M, TILE_N, OPERAND_PLANES, !FPROP, RING_STAGES, OUTPUT_BOXES, OF_PAIRS,
                         FILTERS_HELD, BLOCKS_TOGETHER>;

#define CONV(name, FPROP) \
  ALPHA_ENTRY(name, (TileOf<FPROP>::THREADS, 1) CLUSTERS, \
              (const __grid_constant__ ptx::TensorMaps few, const CUtensorMap *more, int first_w, int first_out, \
               const float *bias, const float *scale_in, const float *scale_w, void *slots, float *statistics, \
               const void *joined, const int *work, int entries, int box, int batch, int height, int width, \
               int groups, int columns, int counted, int least_run, int most_run, int unit, int relu, int adds, \
               int streams, Exact exact, ConvShape shape), \
              const CUtensorMap *const in = ptx::maps_of(few, more); \
              conv_block<TileOf<FPROP>>( \
                  {in, in + first_w, in + first_out, bias, scale_in, scale_w, slots, statistics, joined, work, entries, \
                   {box}, batch, height, width, groups, columns, counted, least_run, most_run - least_run + 1, unit, \
                   relu, adds, streams, exact, shape}, more))
CONV(conv_v2_wgmma, true)
CONV(ks_deconv_wgmma, false)

// Adds up the slices of the tiles that were cut. Grid (parts of a tile, tiles): a thread makes one float4 of a slot, two
// neighbours in each of two rows. tiles: [tile][FIELDS]; in SLICE is the number of its slices. channels: of out, of which
// these columns may be a part. added: see Direct.
ALPHA_GLOBAL(conv_wgmma_slices, (256),
             (const float *slots, const int *tiles, const float *bias, OUT *out, int batch, int height, int width,
              int channels, int columns, int box, int relu, const OUT *added)) {
  ptx::follow();
  using Tile = TileOf<true>;  // slots are the same in either pass
  const Scale scale = told_scale(slots);
  const int *tile = tiles + blockIdx.y * FIELDS, at = blockIdx.x * 256 + threadIdx.x;
  const Place place(at / (Tile::SUMS * 32) % 2, at % 128);
  const int col = place.col(at % (Tile::SUMS * 32) / 128 * 4), first = tile[GROUP] * columns + tile[COLUMN];
  const Finish finish = {scale, bias ? bias + first : nullptr, columns - tile[COLUMN], relu != 0};
  if (col >= finish.columns) return;
  const Direct direct(out, added, tile, at / SLOT_ROWS<Tile>, place, {box}, batch, height, width, columns, channels,
                      finish);
  direct.put(col, add_slices<Tile>(slots, tile[SLOT], tile[SLICE], at));
}
