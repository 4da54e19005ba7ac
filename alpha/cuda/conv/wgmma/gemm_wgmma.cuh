// The matrix product behind all kernels for Hopper's tensor cores (sm_90a): one warp loads by TMA, two warpgroups, or
// as many as T::CONSUMERS says, multiply by wgmma, a ring of buffers in shared memory lies between them.
//
// What:     sum[BM][BN] = sum over blocks of up to 64 of k of A[BM][64] * B[64][BN], accumulated in float32
// Planes:   1: one product of 16-bit elements. 2: an operand is the sum of two 16-bit planes, hi + lo, and three
//           products are made of each 16 of k, the small ones first. A tensor core cuts its accumulator off instead of
//           rounding it, an error that grows with the length of the sum; so after every block the three products' sum
//           is added to registers, in proper float32
// Layout:   a buffer: [A plane 0][A plane 1][B plane 0][B plane 1]. A plane is made of boxes, rows of 128 bytes (64
//           elements) in TMA's 128-byte swizzle, 1024-byte aligned:
//             K-major   row = a row of A or a column of B, 64 of k; BM rows of A, BN of B, one after the other
//             MN-major  row = a k, 64 rows of A or columns of B; 64 rows a box (8 KB), one for each 64 of BM or BN
//           Results pass through boxes of 64 rows x 128 bytes, some per consumer, used in turn; see OutBoxes
// Requires: sm_90a; planes and tensor maps as ptx_sm90.cuh says
// Threads:  384, one block per multiprocessor: warpgroup 0 gives its registers away and its first warp loads,
//           warpgroups 1 and 2 are consumers 0 and 1, with 64 of each 128 rows. Tiles of 64 rows have one consumer, 256
//           threads, and registers enough. sum[d][i] of a thread is element
//           (128 d + row(i), col(i)) of the tile, see Place
// Measured: see the kernels that use it
#pragma once
#include "ptx_wgmma.cuh"
#include "scale.cuh"

template <class E_, int BM_, int BN_, int PLANES_, bool B_MN_, int STAGES_, int OUT_BOXES_, bool PAIRS_, int HELD_,
          int CLUSTER_>
struct WgmmaTile {
  using E = E_;
  static constexpr int BM = BM_, DEPTH = (BM + 127) / 128, BN = BN_, BK = 64, PLANES = PLANES_, STAGES = STAGES_;
  static constexpr int OUT_BOXES = OUT_BOXES_;                         // of a consumer
  static constexpr bool A_MN = false, B_MN = B_MN_;
  static constexpr int BOX = 64 * 128;                                 // bytes of 64 rows
  static constexpr bool PAIRS = PAIRS_;                                // see pair_sum.cuh
  static constexpr int A_ROWS = PAIRS ? BM / 2 : BM;                   // of a buffer
  static constexpr int A_PLANE = A_ROWS * BK * 2;                      // bytes
  static constexpr int B_PLANE = (B_MN ? (BN + 63) / 64 * 64 : BN) * BK * 2;
  static constexpr int A_STEP = 2, B_STEP = B_MN ? 128 : 2;            // 16 of k, in 16 bytes
  static constexpr int HELD = HELD_;                                   // blocks of B, see held_filters.cuh
  static constexpr int CLUSTER = CLUSTER_;                             // blocks that share a tile, a slice each
  static constexpr int B_BLOCK = PLANES * B_PLANE, STAGE = PLANES * A_PLANE + (HELD ? 0 : B_BLOCK);
  static constexpr int B_AT = HELD ? STAGES * STAGE : PLANES * A_PLANE;   // in a buffer; held: behind them all
  static constexpr int OUT_AT = STAGES * STAGE + HELD * B_BLOCK;
  static constexpr int SUMS = BN / 2;                                  // accumulators of a thread, DEPTH times
  using Sums = float[DEPTH][SUMS];
  static constexpr int CONSUMERS = BM == 64 ? 1 : 2, THREADS = 128 * (1 + CONSUMERS);
  static constexpr bool IN_TURN = false;                               // both consumers read each buffer
  static constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = 224;
  static_assert(BM <= 128 || (BM == 256 && PLANES == 1), "a consumer has 64 or twice 64 rows");
  static_assert(DEPTH * BN * PLANES <= 256, "two planes need a second set of accumulators");
  static_assert(!PAIRS || !HELD, "pairs read the filters of the buffer before");
};

// ---- the ring -------------------------------------------------------------------------------------------------------

// Consumers that read buffers in turn have a barrier each for a full one: it changes only for the one that reads.
template <class T> struct RingBarriers {  // in shared memory
  static constexpr int READERS = T::IN_TURN ? 1 : T::CONSUMERS;  // of a buffer
  uint64_t full[T::CONSUMERS / READERS * T::STAGES], empty[T::STAGES];

  // By one thread; then __syncthreads().
  INLINE void init() {
    for (int s = 0; s < T::CONSUMERS / READERS * T::STAGES; s++) ptx::mbarrier_init(full + s, 1);
    for (int s = 0; s < T::STAGES; s++) ptx::mbarrier_init(empty + s, 4 * READERS);  // an arrival per warp
    ptx::fence_mbarrier_init();
  }
};

template <class T> struct Ring {
  char *const buffers;
  RingBarriers<T> &barriers;
  uint64_t *const full;  // consumer: its own barriers
  int stage = 0;
  unsigned phase = 0;    // producer: of the buffer of the next turn
  unsigned phases = 0;   // consumer: bit s is that of buffer s
  bool fresh = true;     // producer: the buffer of the next turn has never been filled

  INLINE Ring(char *smem, RingBarriers<T> &b)
      : buffers(smem), barriers(b), full(b.full + (T::IN_TURN && threadIdx.x >= 256 ? T::STAGES : 0)) {}

  struct Buffer { char *a; uint64_t *landed; };
  // Producer, its whole warp: waits until the next buffer is empty and announces `bytes` to come. Its lanes then load.
  INLINE Buffer next(int bytes) {
    ptx::mbarrier_wait(barriers.empty + stage, phase ^ 1);
    const Buffer found = {buffers + stage * T::STAGE, barriers.full + stage};
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_expect(found.landed, bytes);
    __syncwarp();
    advance();
    return found;
  }
  // Consumer, all of its threads: waits until the buffer of this turn is full.
  INLINE void wait() { ptx::mbarrier_wait(full + stage, phases >> stage & 1); }
  // Consumer: has read the buffer of turn `s`; the warp's lanes are together.
  INLINE void release(int s) { if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barriers.empty + s); }
  // Consumer: leaves out a buffer that is the other one's.
  INLINE void skip() { stage = stage + 1 < T::STAGES ? stage + 1 : 0; }
  INLINE void advance() {
    phases ^= 1u << stage;
    if (++stage < T::STAGES) return;
    stage = 0;
    phase ^= 1;
    fresh = false;
  }
};

// ---- the product ----------------------------------------------------------------------------------------------------

INLINE int consumer_number() { return ptx::uniform(threadIdx.x / 128) - 1; }  // from 0

// Which element of the tile is sum[i]; `consumer` counts from 0.
struct Place {
  int consumer, thread;  // thread of the consumer

  INLINE Place() : Place(threadIdx.x / 128 - 1, threadIdx.x % 128) {}
  INLINE Place(int c, int t) : consumer(c), thread(t) {}
  INLINE int row_in_box(int i) const { return thread / 32 * 16 + thread % 32 / 4 + (i / 2 & 1) * 8; }  // 64 rows
  INLINE int row(int i) const { return consumer * 64 + row_in_box(i); }
  INLINE int col(int i) const { return i / 4 * 8 + thread % 4 * 2 + (i & 1); }
};

// Issues the products of one buffer with N columns, of its first STEPS times 16 of k; a, b: descriptors of plane 0.
template <class T, int N, int STEPS> INLINE void wgmma_buffer(float (&sum)[N / 2], uint64_t a, uint64_t b, bool add) {
  constexpr int A_STEP = T::A_STEP, B_STEP = T::B_STEP;
  constexpr int A_LO = T::A_PLANE / 16, B_LO = T::B_PLANE / 16;
  if constexpr (T::PLANES == 2) {
    UNROLL for (int k = 0; k < STEPS; k++) {
      ptx::wgmma<typename T::E, N, T::A_MN, T::B_MN>(sum, a + A_LO + k * A_STEP, b + k * B_STEP, add || k > 0);
      ptx::wgmma<typename T::E, N, T::A_MN, T::B_MN>(sum, a + k * A_STEP, b + B_LO + k * B_STEP, true);
    }
  }
  UNROLL for (int k = 0; k < STEPS; k++)
    ptx::wgmma<typename T::E, N, T::A_MN, T::B_MN>(sum, a + k * A_STEP, b + k * B_STEP, T::PLANES == 2 || add || k > 0);
}

// Consumer: adds up buffers and releases them. One plane: a group of products stays in flight while the next is issued.
template <class T> struct Summation {
  Ring<T> &ring;
  const uint64_t a0, b0;
  int flying = 0;  // 1 + the buffer in flight
  int held = 0;    // the next block of filters, where they are held

  INLINE explicit Summation(Ring<T> &r)
      : ring(r), a0(ptx::wgmma_desc(r.buffers + consumer_number() * T::BOX, T::BOX)),
        b0(ptx::wgmma_desc(r.buffers + T::B_AT, T::BOX)) {}

  // Of each block the products of the first STEPS times 16 of k.
  template <int STEPS> INLINE void add(int blocks, typename T::Sums &sum) {
    constexpr int DEEPER = 2 * T::BOX / 16;  // 128 rows further down
    UNROLL_BY(1) for (int k = 0; k < blocks; k++) {
      ring.wait();
      const int at = ring.stage * (T::STAGE / 16), b_at = T::HELD ? held++ * (T::B_BLOCK / 16) : at;
      ptx::wgmma_fence();
      if constexpr (T::PLANES == 2) {
        float part[T::SUMS];
        wgmma_buffer<T, T::BN, STEPS>(part, a0 + at, b0 + b_at, false);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        ring.release(ring.stage);
        UNROLL for (int i = 0; i < T::SUMS; i++) sum[0][i] += part[i];
      } else {
        UNROLL for (int d = 0; d < T::DEPTH; d++)
          wgmma_buffer<T, T::BN, STEPS>(sum[d], a0 + at + d * DEEPER, b0 + b_at, flying > 0);
        ptx::wgmma_commit();
        if (flying > 0) {
          ptx::wgmma_wait<1>();
          ring.release(flying - 1);
        }
        flying = ring.stage + 1;
      }
      ring.advance();
    }
  }
  INLINE void finish() {
    if (T::PLANES == 2) return;
    ptx::wgmma_wait<0>();
    if (flying > 0) ring.release(flying - 1);
  }
};

template <class T> INLINE void clear(typename T::Sums &sum) {
  UNROLL for (int d = 0; d < T::DEPTH; d++) {
    UNROLL for (int i = 0; i < T::SUMS; i++) sum[d][i] = 0.f;
  }
}

// Consumer: the sum over the next buffers, `whole` of them and `tails`, of which the first tail_steps (1 to 3) times 16 of
// k are multiplied; 0 where there are none.
template <class T> INLINE void wgmma_sum(Ring<T> &ring, int whole, int tails, int tail_steps, typename T::Sums &sum) {
  if (T::PLANES == 2) clear<T>(sum);
  Summation<T> total(ring);
  total.template add<4>(whole, sum);
  if (tail_steps == 1) total.template add<1>(tails, sum);
  else if (tail_steps == 2) total.template add<2>(tails, sum);
  else total.template add<3>(tails, sum);
  total.finish();
  if (T::PLANES == 1 && whole + tails == 0) {
    ptx::branch();
    clear<T>(sum);
  }
}

// ---- results --------------------------------------------------------------------------------------------------------

// What happens to a sum before it is stored: v = sum * scale + bias, then relu.
struct Finish {
  Scale scale;
  const float *bias;  // of the tile's column 0, or null
  int columns;        // of the tile that exist, an even number
  bool relu;

  // Whether one multiplication is all, or not even that. Most sums have no more to them, and their way is as short as
  // it can be.
  INLINE bool is_plain(bool scaled) const {
    return !bias && !relu && scale.second == 1.f && (scaled || scale.first == 1.f);
  }
  template <bool PLAIN> INLINE float2 bias_at(int col) const {
    return !PLAIN && bias && col < columns ? *reinterpret_cast<const float2 *>(bias + col) : make_float2(0.f, 0.f);
  }
  template <bool PLAIN, bool SCALED = true> INLINE float apply(float sum, float add) const {
    if (PLAIN) return SCALED ? sum * scale.first : sum;
    const float half = sum * scale.first;
    const float v = bias ? fmaf(half, scale.second, add) : half * scale.second;  // where nothing is added -0 stays
    return relu && v < 0.f ? 0.f : v;                                            // so does NaN
  }
};

// A consumer's results in boxes of 64 rows x 128 bytes on their way to memory. They take turns across tiles too: a tile of
// one box would overwrite what the store of the tile before still reads. Three or more are looked after one ahead: where
// all threads meet once a box is written, the store that had the next box has read it. With two that would wait for the
// last store.
template <class T, class O> struct OutBoxes {
  static constexpr int COLS = 128 / sizeof(O);  // columns of a box
  static constexpr bool SCALED = sizeof(O) == 4, AHEAD = T::OUT_BOXES > 2;
  char *const boxes;
  int turn = 0;

  INLINE explicit OutBoxes(char *smem) : boxes(smem + T::OUT_AT + (threadIdx.x / 128 - 1) * (T::OUT_BOXES * T::BOX)) {}

  // Consumer: stores 64 of its rows. store(box, col): issues the TMA stores of a box whose first column is col, by
  // lanes of the consumer's first warp, all of which are called. Row r of the box is r * 128 bytes behind its start.
  // also(box, b): what all threads do with box number b besides, who only read it. then(box, col): what they make of a
  // box before it leaves.
  template <class Store, class Also, class... Then>
  INLINE void operator()(const float (&sum)[T::SUMS], const Finish &finish, Store store, Also also, Then... then) {
    UNROLL for (int b = 0; b < (T::BN + COLS - 1) / COLS; b++) {
      if (b * COLS >= finish.columns) break;
      const auto change = [&](char *box) { (then(box, b * COLS), ...); };
      also(put(sum, b * (COLS / 2), finish, [&](const char *from) { store(from, b * COLS); }, change), b);
    }
  }
  // Stores the sums of the columns of box number b alone.
  template <class Store, class... Then>
  INLINE void one(const float (&sum)[COLS / 2], int b, const Finish &finish, Store store, Then... then) {
    const float *bias = finish.bias ? finish.bias + b * COLS : nullptr;
    const Finish here = {finish.scale, bias, finish.columns - b * COLS, finish.relu};
    const auto change = [&](char *box) { (then(box, b * COLS), ...); };
    if (here.columns > 0) put(sum, 0, here, [&](const char *from) { store(from, b * COLS); }, change);
  }
  // Once, at the end: memory has everything.
  INLINE void drain() const { if (threadIdx.x % 128 < 32) ptx::bulk_wait<0>(); }

private:
  // All threads write a box, those of the first warp store it. Nobody writes it before all meet again.
  template <int N, class Store, class Then>
  INLINE const char *put(const float (&sum)[N], int first, const Finish &finish, Store store, Then then) {
    const Place place;
    char *box = boxes + turn * T::BOX;
    turn = turn + 1 < T::OUT_BOXES ? turn + 1 : 0;
    if (!AHEAD) {
      if (place.thread < 32) ptx::bulk_wait_read<T::OUT_BOXES - 1>();  // the store that had this box has read it
      ptx::bar_sync(1 + place.consumer, 128);
    }
    if (finish.is_plain(SCALED)) write<true>(box, place, sum, finish, first, O());
    else write<false>(box, place, sum, finish, first, O());
    then(box);
    ptx::fence_proxy_async_shared();
    if (AHEAD && place.thread < 32) ptx::bulk_wait_read<T::OUT_BOXES - 2>();
    ptx::bar_sync(1 + place.consumer, 128);
    if (place.thread < 32) {
      store(box);
      ptx::bulk_commit();
    }
    return box;
  }
  // 16-bit: of the 16 matrices of 8 x 8 that a warp has in a box stmatrix stores four at once, two below each other and
  // their neighbours on the right; lane l gives the place of row l % 8 of matrix l / 8.
  template <bool PLAIN, int N, class H>
  static INLINE void write(char *box, const Place &place, const float (&sum)[N], const Finish &finish, int first, H) {
    const int lane = place.thread % 32, row = place.thread / 32 * 16 + lane % 16, chunk = lane / 16 ^ row & 7;
    UNROLL for (int j = 0; j < 8; j += 2) {
      unsigned words[4] = {};  // the last box of 96 columns is half empty
      UNROLL for (int k = 0; k < 2; k++) {
        const int i = first + 4 * (j + k);
        if (i >= N) break;
        const float2 add = finish.bias_at<PLAIN>(place.col(i));
        const auto pair = [&](int at) {
          return pair_of_floats<H>(finish.apply<PLAIN, SCALED>(sum[at], add.x),
                                   finish.apply<PLAIN, SCALED>(sum[at + 1], add.y));
        };
        words[2 * k] = pair(i), words[2 * k + 1] = pair(i + 2);
      }
      ptx::stmatrix_x4(box + row * 128 + ((chunk ^ j) << 4), words);
    }
  }
  // float: of two neighbouring rows one stores the other half of the box first, else their chunks would collide. Sums
  // i + 2 and i + 3 lie 8 rows further on, 1024 bytes.
  template <bool PLAIN, int N>
  static INLINE void write(char *box, const Place &place, const float (&sum)[N], const Finish &finish, int first, float) {
    const int row = place.row_in_box(0), q = place.thread % 4;
    float v[16];
    UNROLL for (int j = 0; j < 4; j++) {
      const float2 add = finish.bias_at<PLAIN>(place.col(first + 4 * j));
      UNROLL for (int i = 0; i < 4; i++)
        v[4 * j + i] = finish.apply<PLAIN, SCALED>(sum[first + 4 * j + i], i & 1 ? add.y : add.x);
    }
    char *at = box + row * 128 + (q & 1) * 8;
    const bool odd = row & 1;
    UNROLL for (int j = 0; j < 4; j++) {
      const int other = j ^ 2, chunk = (odd ? other : j) * 2 + q / 2;
      float2 *to = reinterpret_cast<float2 *>(at + ((chunk ^ (row & 7)) << 4));
      to[0] = odd ? make_float2(v[4 * other], v[4 * other + 1]) : make_float2(v[4 * j], v[4 * j + 1]);
      to[128] = odd ? make_float2(v[4 * other + 2], v[4 * other + 3]) : make_float2(v[4 * j + 2], v[4 * j + 3]);
    }
  }
};
