// Contextual convolution on Hopper's tensor cores: what a tile reads is copied once, with its halo, for all levels.
//
// What:     fprop  y[n, h, w, o] = relu(b[o] + sum_{fh, fw, ic} x[n, h + d fh, w + d fw, ic] * filter[o, fh, fw, ic])
//           dgrad  dx[n, h, w, ic] = sum_{fh, fw, o} g[n, h - d fh, w - d fw, o] * filter[o, fh, fw, ic]
//           fh, fw = -side / 2 ... side / 2; d is the dilation of the level to which channel o belongs
// Source:   arXiv 2108.07387, levels; arXiv 2306.15951 is departed from: zeros of the padding are multiplied
// Layout:   in, w: planes of 16-bit elements, NHWC and OHWI; out: NHWC, OUT = float, bf16 or f16
// GEMM:     rows: 8 x 8 pixels of an image; sum: taps x chunks of 64 channels of `in`; columns: TILE_N channels of out.
//           fprop: units of `unit` columns, of one level each, are products of their own: they read other rows of the
//           halo. dgrad: 16 channels of g are of one level, and say which rows a step of the product reads
// Halo:     a box of (8 + 2 reach)^2 pixels x 64 channels, which TMA copies; what is beyond the image are zeros. Rows
//           of 128 bytes are pixels. A tap reads eights of rows, one `pitch` of pixels behind the other, from any row
//           on: the swizzle goes by addresses
// Zeros:    those that a tile's halo has of the padding are multiplied; where that costs more than reading taps one by
//           one, another kernel is chosen
// Filters:  a block is those of a tap and a chunk, TILE_N columns. All stay in shared memory where they have room
// Exact:    where planes do not hold an operand of float32 results, `exact_sum` makes the sums; it leaves the padding out
// Requires: sm_90a; stride 1; one group; channels multiples of 8; levels begin at multiples of 16 and of `unit`
// Threads:  384: warps 0 and 1 copy the halos of consumers 0 and 1, warp 2 filters; each consumer has TILE_DEPTH tiles
// Measured: benchmarks/results/h200/coconv.jsonl
#include "conv/exact/exact_sum.cuh"
#include "conv/wgmma/gemm_wgmma.cuh"
#include "conv/wgmma/tile_statistics.cuh"

constexpr bool EXACT_TOO = HAS_EXACT_WAY<ELEMENT, OUT>;

struct Tile {
  using E = ELEMENT;
  static constexpr int BN = TILE_N, DEPTH = TILE_DEPTH, PLANES = OPERAND_PLANES, SUMS = BN / 2, THREADS = 384;
  using Sums = float[DEPTH][SUMS];
  static constexpr int BOX = 64 * 128, CONSUMERS = 2, OUT_BOXES = 1, OUT_AT = 0;
  static constexpr int RING_AT = CONSUMERS * OUT_BOXES * BOX;
  static constexpr int B_PLANE = BN * 128, B_BLOCK = PLANES * B_PLANE;
  static constexpr int MOST_STAGES = 12;  // of filters
};

struct Barriers {  // in shared memory; of halos by consumer
  uint64_t full[2][2], empty[2][2], filters_full[Tile::MOST_STAGES], filters_empty[Tile::MOST_STAGES];

  INLINE void init() {
    for (int i = 0; i < 4; i++) ptx::mbarrier_init(full[0] + i, 1), ptx::mbarrier_init(empty[0] + i, 4);
    for (int s = 0; s < Tile::MOST_STAGES; s++)
      ptx::mbarrier_init(filters_full + s, 1), ptx::mbarrier_init(filters_empty + s, 4 * Tile::CONSUMERS);
    ptx::fence_mbarrier_init();
  }
};

struct Turn {  // of a ring's buffers
  const int stages;
  int stage = 0, phase = 0;

  INLINE explicit Turn(int count) : stages(count) {}
  INLINE void advance() { if (++stage == stages) stage = 0, phase ^= 1; }
};

struct Levels {
  const CUtensorMap *in, *w, *out;
  const float *bias, *scale_in, *scale_w;
  float *statistics;      // [block][consumer][mean, m2, count][columns], or null
  const uint2 *dilations;  // a byte each: fprop: units of a tile of columns; dgrad: sixteens of a chunk
  int images, height, width, channels, columns, side, reach, unit, halo_stages, stages, relu, streams;
  Exact exact;             // a: in
  int tiles_w, per_image, tiles, column_tiles, items, chunks, pitch, halo_bytes, blocks;
  bool held;

  INLINE void derive() {
    tiles_w = (width + 7) / 8, per_image = (height + 7) / 8 * tiles_w, tiles = images * per_image;
    column_tiles = (columns + Tile::BN - 1) / Tile::BN;
    items = (tiles + 2 * Tile::DEPTH - 1) / (2 * Tile::DEPTH) * column_tiles;
    chunks = (channels + 63) / 64, pitch = 8 + 2 * reach, halo_bytes = (pitch * pitch * 128 + 1023) / 1024 * 1024;
    blocks = chunks * side * side, held = column_tiles == 1 && stages == blocks;
  }
  // Bytes of a consumer's halos, and where those of a stage lie.
  INLINE int stage_bytes() const { return Tile::DEPTH * Tile::PLANES * halo_bytes; }
  INLINE int halos_at(int consumer, int stage) const {
    return Tile::RING_AT + (consumer * halo_stages + stage) * stage_bytes();
  }
  INLINE int filters_at(int stage) const { return halos_at(2, 0) + stage * Tile::B_BLOCK; }
  INLINE int column(int item) const { return item % column_tiles * Tile::BN; }
  INLINE int tile(int item, int consumer, int depth) const {
    return (item / column_tiles * 2 + consumer) * Tile::DEPTH + depth;
  }
};

struct Place8x8 {  // where a tile lies; the last one again for those that do not exist
  int image, h, w;
  bool exists;

  INLINE Place8x8(const Levels &t, int tile) : exists(tile < t.tiles) {
    const int number = min(tile, t.tiles - 1), at = number % t.per_image;
    image = number / t.per_image, h = at / t.tiles_w * 8, w = at % t.tiles_w * 8;
  }
};

// ---- copies: a warp each --------------------------------------------------------------------------------------------

INLINE void load_halos(const Levels &t, char *smem, Barriers &barriers, int consumer) {
  const int lane = threadIdx.x % 32, depth = lane / Tile::PLANES, plane = lane % Tile::PLANES;
  Turn turn(t.halo_stages);
  for (int item = blockIdx.x; item < t.items; item += gridDim.x) {
    const Place8x8 at(t, t.tile(item, consumer, depth));
    for (int chunk = 0; chunk < t.chunks; chunk++) {
      uint64_t *const landed = barriers.full[consumer] + turn.stage;
      ptx::mbarrier_wait(barriers.empty[consumer] + turn.stage, turn.phase ^ 1);
      if (lane == 0)
        ptx::mbarrier_arrive_expect(landed, Tile::DEPTH * Tile::PLANES * t.pitch * t.pitch * 128);
      __syncwarp();
      if (depth < Tile::DEPTH)
        ptx::tma_load_4d(smem + t.halos_at(consumer, turn.stage) + lane * t.halo_bytes, *t.in, chunk * 64,
                         at.w - t.reach, at.h - t.reach, at.image + plane * t.images, landed);
      turn.advance();
    }
  }
}

template <bool DGRAD> INLINE void load_filters(const Levels &t, char *smem, Barriers &barriers) {
  constexpr int PARTS = DGRAD ? (Tile::BN + 63) / 64 : 1;  // boxes side by side
  const int lane = threadIdx.x % 32, part = lane % PARTS, plane = lane / PARTS;
  Turn turn(t.stages);
  for (int item = blockIdx.x; item < t.items; item += gridDim.x) {
    const int column = t.column(item) + part * 64;
    for (int chunk = 0; chunk < t.chunks; chunk++) {
      for (int tap = 0; tap < t.side * t.side; tap++) {
        uint64_t *const landed = barriers.filters_full + turn.stage;
        ptx::mbarrier_wait(barriers.filters_empty + turn.stage, turn.phase ^ 1);
        if (lane == 0) ptx::mbarrier_arrive_expect(landed, Tile::B_BLOCK);
        __syncwarp();
        if (plane < Tile::PLANES)
          ptx::tma_load_5d(smem + t.filters_at(turn.stage) + plane * Tile::B_PLANE + part * Tile::BOX, *t.w,
                           DGRAD ? column : chunk * 64, tap % t.side, tap / t.side,
                           DGRAD ? chunk * 64 : column, plane, landed);
        turn.advance();
      }
    }
    if (t.held) break;
  }
}

// ---- sums -----------------------------------------------------------------------------------------------------------

// Issues the products of 64 of k. a: descriptors of each 16, b: of the first, of plane 0; a_low: how far plane 1 lies
// behind it, in 16 bytes. Of two planes the small products come first.
template <bool DGRAD, int N>
INLINE void products(float (&sum)[N / 2], const uint64_t (&a)[4], uint64_t b, int a_low, bool add) {
  constexpr int B_STEP = DGRAD ? 128 : 2, B_LOW = Tile::B_PLANE / 16;
  if constexpr (Tile::PLANES == 2) {
    UNROLL for (int k = 0; k < 4; k++) ptx::wgmma<Tile::E, N, 0, DGRAD>(sum, a[k] + a_low, b + B_STEP * k, k > 0);
    UNROLL for (int k = 0; k < 4; k++) ptx::wgmma<Tile::E, N, 0, DGRAD>(sum, a[k], b + B_STEP * k + B_LOW, true);
  }
  UNROLL for (int k = 0; k < 4; k++)
    ptx::wgmma<Tile::E, N, 0, DGRAD>(sum, a[k], b + B_STEP * k, Tile::PLANES == 2 || add || k > 0);
}

// Issues the products of a block with all columns of a tile. a: the halo's row that the tap in the middle reads first;
// tap: how far the tap lies from that one where the dilation is 1, in 16 bytes; dilations: a byte each.
template <bool DGRAD, int UNIT>
INLINE void multiply(float (&sum)[Tile::SUMS], uint64_t a, uint64_t b, int a_low, int tap, uint2 dilations, bool add) {
  uint64_t from[4];
  if constexpr (DGRAD) {
    UNROLL for (int k = 0; k < 4; k++) from[k] = a + int(dilations.x >> 8 * k & 255) * tap + 2 * k;
    products<DGRAD, Tile::BN>(sum, from, b, a_low, add);
  } else {
    UNROLL for (int u = 0; u < Tile::BN / UNIT; u++) {
      const uint64_t row = a + int((u < 4 ? dilations.x : dilations.y) >> 8 * (u % 4) & 255) * tap;
      UNROLL for (int k = 0; k < 4; k++) from[k] = row + 2 * k;
      float(&of_unit)[UNIT / 2] = reinterpret_cast<float(&)[UNIT / 2]>(sum[u * (UNIT / 2)]);
      products<DGRAD, UNIT>(of_unit, from, b + u * UNIT * 8, a_low, add);
    }
  }
}

// What a consumer has to read, and the sums of its tiles.
template <bool DGRAD, int UNIT> struct Consumer {
  const Levels &t;
  char *const smem;
  Barriers &barriers;
  const int number = Tile::DEPTH == 2 && !DGRAD ? threadIdx.x / 128 - 1 : consumer_number();  // or it spills
  Turn halo, filters;
  int flying = -1;  // the stage of filters that a product in flight reads

  INLINE Consumer(const Levels &t, char *smem, Barriers &barriers)
      : t(t), smem(smem), barriers(barriers), halo(t.halo_stages), filters(t.stages) {}

  INLINE void release(uint64_t *empty) const { if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty); }
  INLINE void release_filters(int stage) const { if (!t.held) release(barriers.filters_empty + stage); }
  // The sums of an item's tiles.
  INLINE void operator()(Tile::Sums &sum, int item) {
    const int half = t.side / 2;
    uint2 dilations = ptx::uniform(t.dilations[DGRAD ? 0 : item % t.column_tiles]);
    if (Tile::PLANES == 2) clear<Tile>(sum);
    for (int chunk = 0; chunk < t.chunks; chunk++) {
      if (DGRAD) dilations = ptx::uniform(t.dilations[chunk]);
      ptx::mbarrier_wait(barriers.full[number] + halo.stage, halo.phase);
      const uint64_t a = ptx::wgmma_desc(smem + t.halos_at(number, halo.stage), 16, t.pitch * 128) +
                         t.reach * (t.pitch + 1) * 8;
      UNROLL_BY(1) for (int h = -half; h <= half; h++) {
        UNROLL_BY(1) for (int w = -half; w <= half; w++) {
          block(sum, a, (DGRAD ? -8 : 8) * (h * t.pitch + w), dilations, chunk > 0 || h > -half || w > -half);
        }
      }
      if (Tile::PLANES == 1) {
        ptx::wgmma_wait<0>();
        release_filters(flying);
        flying = -1;
      }
      release(barriers.empty[number] + halo.stage);
      halo.advance();
    }
  }

private:
  // One block of filters. One plane: a group of products stays in flight while the next is issued.
  INLINE void block(Tile::Sums &sum, uint64_t a, int tap, uint2 dilations, bool add) {
    ptx::mbarrier_wait(barriers.filters_full + filters.stage, t.held ? 0 : filters.phase);
    const uint64_t b = ptx::wgmma_desc(smem + t.filters_at(filters.stage), Tile::BOX);
    const int low = t.halo_bytes / 16, tile = Tile::PLANES * low;
    if constexpr (Tile::PLANES == 2) {
      UNROLL for (int d = 0; d < Tile::DEPTH; d++) {
        float part[Tile::SUMS];
        ptx::wgmma_fence();
        multiply<DGRAD, UNIT>(part, a + d * tile, b, low, tap, dilations, false);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        if (d == Tile::DEPTH - 1) release_filters(filters.stage);
        UNROLL for (int i = 0; i < Tile::SUMS; i++) sum[d][i] += part[i];
      }
    } else {
      ptx::wgmma_fence();
      UNROLL for (int d = 0; d < Tile::DEPTH; d++)
        multiply<DGRAD, UNIT>(sum[d], a + d * tile, b, low, tap, dilations, add);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (flying >= 0) release_filters(flying);
      flying = filters.stage;
    }
    filters.advance();
  }
};

// The sums of SOME columns of a tile, all of one level, in float32 (conv/exact/exact_sum.cuh), by all threads of a consumer; left:
// the first.
template <bool DGRAD, int SOME>
INLINE void exact_sum(const Levels &t, char *smem, int consumer, int tile, int column_tile, int left, float *sum) {
  constexpr int BYTES = EXACT_BYTES<64, SOME>, THREADS = 128;
  float *const a = reinterpret_cast<float *>(smem + Tile::RING_AT + consumer * BYTES), *const b = a + 64 * EXACT_K;
  const Stored in = t.exact.a.stored(), filters = t.exact.b.stored();
  const Place8x8 at(t, tile);
  const Place place;
  const int thread = threadIdx.x % 128, row = place.row_in_box(0), taps = t.side * t.side;
  const int column = column_tile * Tile::BN + left, columns = t.columns - column;
  const int deep = DGRAD ? 16 : 64, blocks = (t.channels + deep - 1) / deep * taps;  // deep: of one dilation
  UNROLL_BY(1) for (int block = 0; block < blocks; block++) {
    const int tap = block % taps, first = block / taps * deep, count = min(deep, t.channels - first);
    const int byte = DGRAD ? first / 16 % 4 : left / t.unit;
    const uint2 dilations = t.dilations[DGRAD ? first / 64 : column_tile];
    const int apart = (DGRAD ? -1 : 1) * int((byte < 4 ? dilations.x : dilations.y) >> 8 * (byte % 4) & 255);
    const int h = at.h + (tap / t.side - t.side / 2) * apart, w = at.w + (tap % t.side - t.side / 2) * apart;
    const auto pixel = [&](int r) {  // of `in`, or -1
      const int y = h + r / 8, x = w + r % 8;
      const bool there = unsigned(y) < unsigned(t.height) && unsigned(x) < unsigned(t.width);
      return there ? (at.image * t.height + y) * t.width + x : -1;
    };
    ptx::bar_sync(EXACT_BARRIER + consumer, THREADS);
    fill_rows<64, THREADS>(a, in, thread, count, [&](int r) {
      const int from = pixel(r);
      return from < 0 ? i64(-1) : i64(from) * t.channels + first;
    });
    if constexpr (DGRAD)
      fill_lines<SOME, THREADS>(b, filters, thread, count, [&](int k, int c) {
        return c < columns ? (i64(first + k) * taps + tap) * t.columns + column + c : -1;
      });
    else
      fill_rows<SOME, THREADS>(b, filters, thread, count, [&](int c) {
        return c < columns ? (i64(column + c) * taps + tap) * t.channels + first : -1;
      });
    ptx::bar_sync(EXACT_BARRIER + consumer, THREADS);
    multiply_slab<SOME / 8, 64, SOME>(sum, a + row, b + place.col(0), count, pixel(row) >= 0, pixel(row + 8) >= 0);
  }
}

// Stores a tile of an item.
template <int N>
INLINE void store_tile(const Levels &t, OutBoxes<Tile, OUT> &out, const float (&sum)[N], const Scale &scale, int item,
                       int consumer, int depth, int number = 0) {  // number: of the box that alone is stored
  const Place8x8 at(t, t.tile(item, consumer, depth));
  if (!at.exists) return;
  const int column = t.column(item);
  const Finish finish = {scale, t.bias ? t.bias + column : nullptr, t.columns - column, t.relu != 0};
  const uint64_t policy = t.streams ? ptx::L2_EVICT_FIRST : ptx::L2_NORMAL;
  const auto store = [&](const char *box, int col) {
    if (threadIdx.x % 32 == 0) ptx::tma_store_4d(*t.out, box, column + col, at.w, at.h, at.image, policy);
  };
  if constexpr (N != Tile::SUMS) {  // nothing is counted: squares of what planes do not hold may exceed float32
    out.one(sum, number, finish, store);
  } else if (t.statistics) {
    const int height = t.height - at.h, width = t.width - at.w;  // of the tile that exist
    const TileStatistics<OUT> statistics = {t.statistics, t.columns, column, t.columns - column,
                                            height >= 8 && width >= 8,
                                            [&](int row) { return row / 8 < height && row % 8 < width; }};
    out(sum, finish, store, [&](const char *box, int b) { statistics.add(box, b); });
  } else {
    out(sum, finish, store, [](const char *, int) {});
  }
}

template <bool DGRAD, int UNIT> INLINE void sum_tiles(const Levels &t, char *smem, Barriers &barriers) {
  const Scale scale(t.scale_in, t.scale_w);
  OutBoxes<Tile, OUT> out(smem);
  Consumer<DGRAD, UNIT> consumer(t, smem, barriers);
  Tile::Sums sum;
  UNROLL_BY(1) for (int item = blockIdx.x; item < t.items; item += gridDim.x) {
    consumer(sum, item);
    UNROLL for (int d = 0; d < Tile::DEPTH; d++) store_tile(t, out, sum[d], scale, item, consumer.number, d);
  }
  out.drain();
}
template <bool DGRAD> INLINE void exact_tiles(const Levels &t, char *smem) {
  constexpr int PIECES = Tile::BN / PIECE, SOME = DGRAD || Tile::BN / 4 > PIECE ? PIECE : Tile::BN / 4;
  OutBoxes<Tile, OUT> out(smem);
  const int consumer = threadIdx.x / 128 - 1;
  UNROLL_BY(1) for (int item = blockIdx.x; item < t.items; item += gridDim.x) {
    UNROLL_BY(1) for (int part = 0; part < Tile::DEPTH * PIECES; part++) {
      float sum[PIECE / 2] = {};
      const int depth = part / PIECES, number = part % PIECES;
      UNROLL for (int some = 0; some < PIECE; some += SOME)
        exact_sum<DGRAD, SOME>(t, smem, consumer, t.tile(item, consumer, depth), item % t.column_tiles,
                               number * PIECE + some, sum + some / 2);
      store_tile(t, out, sum, Scale(), item, consumer, depth, number);
    }
  }
  out.drain();
}

// One block: items blockIdx.x, blockIdx.x + gridDim.x ...
template <bool DGRAD> INLINE void coconv_block(Levels &t) {
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ Barriers barriers;
  t.derive();
  const bool flagged = EXACT_TOO && t.exact.flags.any();
  if (t.statistics) clear_slots(t.statistics, t.columns, t.columns, Tile::THREADS);
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<40>();
    if (flagged) return;
    if (threadIdx.x < 64) load_halos(t, smem, barriers, threadIdx.x / 32);
    else if (threadIdx.x < 96) load_filters<DGRAD>(t, smem, barriers);
  } else {
    ptx::setmaxnreg_inc<232>();
    if constexpr (EXACT_TOO) {
      if (flagged) return exact_tiles<DGRAD>(t, smem);
    }
    if (DGRAD || t.unit >= Tile::BN) sum_tiles<DGRAD, Tile::BN>(t, smem, barriers);
    else if (t.unit == Tile::BN / 2) sum_tiles<DGRAD, Tile::BN / 2>(t, smem, barriers);
    else sum_tiles<DGRAD, Tile::BN / 4>(t, smem, barriers);
  }
#endif
}

#define COCONV(name, DGRAD) \
  ALPHA_ENTRY(name, (Tile::THREADS, 1), \
              (const __grid_constant__ ptx::TensorMaps maps, const float *bias, const float *scale_in, \
               const float *scale_w, float *statistics, const uint2 *dilations, int images, int height, int width, \
               int channels, int columns, int side, int reach, int unit, int halo_stages, int stages, int relu, \
               int streams, Exact exact), \
              const CUtensorMap *const in = maps.few; \
              Levels t = {in, in + 1, in + 2, bias, scale_in, scale_w, statistics, dilations, images, height, width, \
                          channels, columns, side, reach, unit, halo_stages, stages, relu, streams, exact}; \
              coconv_block<DGRAD>(t))
COCONV(conv_coconv_fprop, false)
COCONV(conv_coconv_dgrad, true)
