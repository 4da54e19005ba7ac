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
// Runs:     the channels of a tap, or of all taps of a filter's row, and the `lead` before them (schedule.py). Tensor
//           maps of rows of taps overlap: pixel i begins `channels` values behind pixel i - 1 and is `run` times as
//           long; a map for each `run`. To TMA a lead is outside of the tensor: it arrives as zeros, in both operands
// Loads:    a TMA box is {64 of a run, 1, 1, `images` images, 1}: one pixel. Padding, stride and dilation are
//           coordinates; what is beyond a run, the columns or the batch arrives as zeros (images beyond plane 0's as
//           those of plane 1; their rows are not stored). MN-major filters come in boxes of `unit` values of k, a
//           divisor of the channels of a tap. The last tile of K-major filters has a shorter box, as rows beyond the
//           tensor take long; behind it lie filters of another tile, whose sums nobody stores
// Zeros:    taps that meet padding, or inserted zeros of a strided dgrad, are in no class: they are neither loaded nor
//           multiplied. A position without taps gets a sum of 0 blocks
// Statistics: where batch norm will follow, the means and variances that it begins with are made of what is stored
//           (tile_statistics.cuh), but for sums in slices
// Requires: sm_90a; channels and columns of a group multiples of 8 (groups are the fifth coordinate of all maps)
// Threads:  see gemm_wgmma.cuh. A list of tiles per block, made by schedule.py; conv_wgmma_slices adds up slices of sums.
//           Results larger than the L2 cache are stored with an evict-first hint
// Measured: H100 SXM, nvcc 13.0, us in bursts, operands made before (benchmarks/cuda_conv_modes.py), beside cuDNN 9.19
//           in the same run; 3x3, batch 512 (fprop / dgrad); more in benchmarks/results/h100/tried.md:
//                                          float16x2      float16      bfloat16     cuDNN TF32    cuDNN bfloat16
//             32x32,  64 -> 64             194 / 195    100 / 100      83 /  85     200 / 214      100 /  99
//             8x8,   256 -> 256            133 / 136     52 /  52      47 /  47     100 / 106       55 /  55
//             4x4,   512 -> 512            111 / 110     42 /  42      39 /  39      95 /  99       75 /  52
//             4x4 -> 2x2, 512, stride 2     39 /  41     19 /  17      18 /  14      38 /  47       26 /  27
#include "conv_wgmma_producer.cuh"
#include "tile_statistics.cuh"

// Which of 64 rows that a consumer has in an entry's tile are stored: those whose pixel and image exist.
struct StoredRows {
  const int images_log2, pixels, batch, first;  // pixels, batch: that exist, from those of the tile's first row on

  PTX_FN StoredRows(const ConvOperands &t, int item, int depth)
      : images_log2(t.images_log2), pixels(field(item, PIXELS) - field(item, PIXEL)),
        batch(t.batch - field(item, IMAGE)),
        first((Tile::PAIRS ? 0 : depth * 128) + (threadIdx.x / 128 - 1) * 64) {}
  PTX_FN bool all() const { return pixels >= Tile::A_ROWS >> images_log2 && batch >= 1 << images_log2; }
  PTX_FN bool operator()(int row_of_consumer) const {
    const int row = first + row_of_consumer;
    return (row >> images_log2) < pixels && (row & (1 << images_log2) - 1) < batch;
  }
};

// How a consumer's results leave: store(box, col) issues the TMA stores of a box. Counted where asked for.
template <class O> struct Results {
  const ConvOperands &t;
  const bool counts;
  OutBoxes<Tile, O> boxes;

  PTX_FN Results(const ConvOperands &t, char *smem)
      : t(t), counts(t.statistics && (!t.rewritten.a || spared(t.rewritten))), boxes(smem) {}
  template <class Store>
  PTX_FN void operator()(const float (&sum)[Tile::SUMS], const Finish &finish, int item, int depth, Store store) {
    if (counts) {
      const StoredRows rows(t, item, depth);
      const int column = field(item, COLUMN);
      const TileStatistics<O> statistics = {t.statistics, t.counted, field(item, GROUP) * t.columns + column,
                                            t.columns - column, rows.all(), rows};
      boxes(sum, finish, store, [&](const char *box, int b) { statistics.add(box, b); });
    } else {
      boxes(sum, finish, store, [](const char *, int) {});
    }
  }
  PTX_FN void drain() const { boxes.drain(); }
};
// How an entry's blocks are multiplied.
PTX_FN Blocks blocks_of(int item) {
  const int heads = field(item, HEADS), whole = field(item, WHOLE), lead = field(item, LEAD);
  const int steps = (lead + field(item, LENGTH) + 15) / 16;
  return {heads, lead / 16, min(steps, 4) - lead / 16, whole, field(item, BLOCKS) - heads - whole, steps % 4};
}

// Where a lane's box of results goes, if there is one.
struct Target {
  int image, h, w;
  bool exists;

  // depth: of the sums; row: of 128
  PTX_FN void find(const ConvOperands &t, int item, int depth, int row, bool has_box) {
    if (!Tile::PAIRS) row += depth * 128;
    const int pixel = field(item, PIXEL) + (row >> t.images_log2), width = field(item, WIDTH), y = pixel / width;
    image = field(item, IMAGE) + (row & (1 << t.images_log2) - 1);
    h = field(item, OUT_H) + y * field(item, OUT_H_STEP);
    w = field(item, OUT_W) + (pixel - y * width) * field(item, OUT_W_STEP);
    const int pixels = field(item, PIXELS);
    if (Tile::PAIRS && depth) w += field(item, PAIR);
    exists = has_box && pixel < pixels;
  }
};

// A consumer: sums, and stores 64 of each 128 rows of its tiles.
PTX_FN void sum_tiles(const ConvOperands &t, Ring<Tile> &ring, HeldFilters<Tile> &held) {
  const Scale scale(t.scale_in, t.scale_w);
  const int lane = threadIdx.x % 32, rows = min(1 << t.images_log2, 64);  // of a box
  const int row = (threadIdx.x / 128 - 1) * 64 + lane * rows;
  Results<OUT> out(t, ring.buffers);
  Tile::Sums sum;
  const int *list = t.list();
  int ahead = *list;
#pragma unroll 1
  for (;;) {
    const int item = ahead;
    if (field(item, BLOCKS) < 0) break;
    ahead = *(list += FIELDS);
    const int column = field(item, COLUMN), slices = field(item, SLICE), group = field(item, GROUP);
    const int slot = field(item, SLOT) + (slices >> 16);
    Target to[Tile::DEPTH];
#pragma unroll
    for (int d = 0; d < Tile::DEPTH; d++) to[d].find(t, item, d, row, lane * rows < 64);
    const bool both = field(item, PAIR) > 0;
    if (Tile::HELD && field(item, FILTERS)) held.wait();
    if constexpr (Tile::PAIRS) pair_sum<Tile>(ring, field(item, BLOCKS), field(item, RUNS_W), both, sum);
    else wgmma_sum<Tile>(ring, blocks_of(item), sum);
    if (Tile::HELD && field(ahead, FILTERS)) held.release();
    const float *bias = t.bias ? t.bias + group * t.columns + column : nullptr;
    const Finish finish = {scale, bias, t.columns - column, t.relu != 0};
    const uint64_t policy = t.streams ? ptx::L2_EVICT_FIRST : ptx::L2_NORMAL;
    const auto store = [&](int d, const float (&rows_of_sum)[Tile::SUMS], const Target &at) {
      if ((slices & 0xffff) > 1) {
        store_slice<Tile>(rows_of_sum, d, t.slots, slot);
        return;
      }
      out(rows_of_sum, finish, item, d, [&](const char *box, int col) {
        const char *from = box + lane * rows * 128;
        if (at.exists && t.adds) ptx::tma_add_5d(*t.out, from, column + col, at.w, at.h, at.image, group, policy);
        else if (at.exists) ptx::tma_store_5d(*t.out, from, column + col, at.w, at.h, at.image, group, policy);
      });
    };
    store(0, sum[0], to[0]);
    if constexpr (Tile::DEPTH > 1) {
      if (!Tile::PAIRS || both) store(1, sum[1], to[1]);
    }
  }
  out.drain();
}

extern "C" __global__ void __launch_bounds__(Tile::THREADS, 1)
conv_wgmma(const CUtensorMap *in, const CUtensorMap *w, const CUtensorMap *out, const float *bias,
           const float *scale_in, const float *scale_w, float *slots, float *statistics, const int *work, int entries,
           int images_log2, int batch, int groups, int columns, int counted, int least_run, int most_run, int unit,
           int relu, int adds, int streams, const int *flag_in, const int *flag_w) {
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ RingBarriers<Tile> barriers;
  __shared__ HeldBarriers held_barriers;
  const ConvOperands t = {in,         w,                 out,  bias,    scale_in,    scale_w, slots,
                          statistics, {flag_in, flag_w}, work, entries, images_log2, batch,   groups,
                          columns,    counted,           least_run, most_run - least_run + 1, unit, relu, adds, streams};
  if (statistics) clear_slots(statistics, counted, groups * columns, Tile::THREADS);
  if (threadIdx.x == 0) {
    barriers.init();
    if (Tile::HELD) held_barriers.init(4 * Tile::CONSUMERS);
  }
  if (threadIdx.x < 32) {
    for (int r = 0; r <= most_run - least_run; r++) {
      ptx::tensor_map_acquire(in + r);
      if (r == 0 || !Tile::B_MN) ptx::tensor_map_acquire(w + r);
      if (!Tile::B_MN && columns % Tile::BN) ptx::tensor_map_acquire(w + most_run - least_run + 1 + r);
    }
  } else if (threadIdx.x % 128 < 32) {
    ptx::tensor_map_acquire(out);
  }
  __syncthreads();
  Ring<Tile> ring(smem, barriers);
  HeldFilters<Tile> held(smem, held_barriers);
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<Tile::PRODUCER_REGISTERS>();
    if (threadIdx.x < 32) load_tiles(t, ring, held);
  } else {
    ptx::setmaxnreg_inc<Tile::CONSUMER_REGISTERS>();
    sum_tiles(t, ring, held);
  }
#endif
}
ALPHA_KERNEL(conv_wgmma)

// Adds up the slices of the tiles that were cut. Grid (parts of a tile, tiles): a thread makes one float4 of a slot, two
// neighbours in each of two rows. tiles: [tile][FIELDS]; in SLICE is the number of its slices. channels: of out, of which
// these columns may be a part.
extern "C" __global__ void __launch_bounds__(256)
conv_wgmma_slices(const float *slots, const int *tiles, const float *bias, const float *scale_in, const float *scale_w,
                  OUT *out, int batch, int height, int width, int channels, int columns, int images_log2, int relu,
                  int adds) {
  const Scale scale(scale_in, scale_w);
  const int *tile = tiles + blockIdx.y * FIELDS, at = blockIdx.x * 256 + threadIdx.x;
  const int depth = at / SLOT_ROWS<Tile>;
  const Place place(at / (Tile::SUMS * 32) % 2, at % 128);
  const int i = at % (Tile::SUMS * 32) / 128 * 4, col = place.col(i), first = tile[GROUP] * columns + tile[COLUMN];
  const Finish finish = {scale, bias ? bias + first : nullptr, columns - tile[COLUMN], relu != 0};
  if (col >= finish.columns) return;
  const float4 sum = add_slices<Tile>(slots, tile[SLOT], tile[SLICE], at);
  const float2 add = finish.bias_at<false>(col);
  for (int half = 0; half < 2; half++) {
    const int row = depth * 128 + place.row(i + 2 * half), pixel = tile[PIXEL] + (row >> images_log2);
    const int image = tile[IMAGE] + (row & (1 << images_log2) - 1);
    if (pixel >= tile[PIXELS] || image >= batch) continue;
    const int y = pixel / tile[WIDTH], h = tile[OUT_H] + y * tile[OUT_H_STEP];
    const int w = tile[OUT_W] + (pixel - y * tile[WIDTH]) * tile[OUT_W_STEP];
    OUT *to = out + ((image * (i64)height + h) * width + w) * channels + first + col;
    float2 v = {finish.apply<false>(half ? sum.z : sum.x, add.x), finish.apply<false>(half ? sum.w : sum.y, add.y)};
    if (adds) v = {to_float(to[0]) + to_float((OUT)v.x), to_float(to[1]) + to_float((OUT)v.y)};
    store_pair(to, v.x, v.y);
  }
}
ALPHA_KERNEL(conv_wgmma_slices)
