// Filter gradient of contextual convolution on Hopper's tensor cores: a halo of x is copied once for levels and taps.
//
// What:     dw[o, fh, fw, ic] = sum_{n, h, w} x[n, h + d fh, w + d fw, ic] * g[n, h, w, o],  fh, fw = -1, 0, 1;
//           d is the dilation of the level to which channel o belongs
// Source:   arXiv 2108.07387, levels; arXiv 2306.15951 is departed from: zeros of the padding are multiplied
// Layout:   x, g: planes of 16-bit elements, NHWC; slots: [part][slice][64 channels of g][9 taps][64 of x], float,
//           which sum_slices.cu adds up
// GEMM:     for each tap and unit of channels of g, all of one level: rows: 64 channels of x; columns: the unit; sum:
//           pixels. Both operands are MN-major: they are read as they lie
// Halo:     as in conv_coconv.cu. A tile is 8 x 8 pixels; a tap reads eights of rows of the halo from any row on
// Parts:    64 channels of x by 64 of g, all taps: sums stay in the registers of a block until its pixels are done
// Zeros:    those that a tile's halo has of the padding are multiplied, as are pixels beyond the image
// Exact:    where planes do not hold an operand, `Sums::exact` makes the sums
// Requires: sm_90a; 3x3; stride 1; one group; channels multiples of 8; levels begin at multiples of 16
// Threads:  384: warp 0 copies; consumers have half of the channels of g each, or where a unit is 64 wide, half of the
//           taps. Two planes leave no registers for that: units are 32 wide at most
// Measured: as conv_coconv.cu: bf16 52.5 and 75 us (PyTorch 222 and 190); float16x2 130 of the first (1334, TF32 672)
#include "conv/exact/exact_sum.cuh"
#include "conv/wgmma/gemm_wgmma.cuh"

using E = ELEMENT;
constexpr bool EXACT_TOO = HAS_EXACT_WAY<E, float>;
constexpr int PLANES = OPERAND_PLANES, BOX = 64 * 128, THREADS = 384, CONSUMERS = 2, MOST_STAGES = 6;

struct Barriers {  // in shared memory
  uint64_t full[MOST_STAGES], empty[MOST_STAGES];

  INLINE void init() {
    for (int s = 0; s < MOST_STAGES; s++)
      ptx::mbarrier_init(full + s, 1), ptx::mbarrier_init(empty + s, 4 * CONSUMERS);
    ptx::fence_mbarrier_init();
  }
};

struct Work {
  static constexpr int TAPS = 9;
  const CUtensorMap *x, *g;
  const uint2 *dilations;  // of each 64 channels of g: those of its units, a byte each
  int images, height, width, x_chunks, parts, reach, stages, x_channels, g_channels;
  Exact exact;             // a: x
  int tiles_w, per_image, tiles, part, slice, slices, pitch, halo_bytes;

  INLINE void derive() {
    tiles_w = (width + 7) / 8, per_image = (height + 7) / 8 * tiles_w, tiles = images * per_image;
    part = blockIdx.x % parts, slice = blockIdx.x / parts, slices = gridDim.x / parts;
    pitch = 8 + 2 * reach, halo_bytes = (pitch * pitch * 128 + 1023) / 1024 * 1024;
  }
  INLINE int stage_at(int stage) const { return stage * PLANES * (halo_bytes + BOX); }
  INLINE int g_at(int stage) const { return stage_at(stage) + PLANES * halo_bytes; }
};

INLINE void load_tiles(const Work &t, char *smem, Barriers &barriers) {
  const int lane = threadIdx.x, plane = lane % PLANES, x_first = t.part % t.x_chunks * 64;
  const int g_first = t.part / t.x_chunks * 64;
  int stage = 0, phase = 1;
  for (int tile = t.slice; tile < t.tiles; tile += t.slices) {
    const int at = tile % t.per_image, h = at / t.tiles_w * 8, w = at % t.tiles_w * 8;
    const int image = tile / t.per_image + plane * t.images;
    ptx::mbarrier_wait(barriers.empty + stage, phase);
    if (lane == 0)
      ptx::mbarrier_arrive_expect(barriers.full + stage, PLANES * (t.pitch * t.pitch * 128 + BOX));
    __syncwarp();
    if (lane < PLANES)
      ptx::tma_load_4d(smem + t.stage_at(stage) + plane * t.halo_bytes, *t.x, x_first, w - t.reach, h - t.reach, image,
                       barriers.full + stage);
    else if (lane < 2 * PLANES)
      ptx::tma_load_4d(smem + t.g_at(stage) + plane * BOX, *t.g, g_first, w, h, image, barriers.full + stage);
    if (++stage == t.stages) stage = 0, phase ^= 1;
  }
}

// Sums of a consumer: of COUNT taps from FIRST on, of all 64 channels of g or, in smaller units, of half of them.
template <int UNIT, int FIRST, int COUNT> struct Sums {
  static constexpr int UNITS = UNIT == 64 ? 1 : 32 / UNIT, WIDE = UNITS * UNIT;  // of a consumer
  const int half = UNIT == 64 ? 0 : consumer_number();
  float sum[COUNT][WIDE / 2];

  // Issues the products of a tap: x, g: descriptors of a plane.
  INLINE void multiply(float (&of_tap)[WIDE / 2], uint64_t x, uint64_t g, int from, int step, uint2 dilations,
                       bool add) const {
    UNROLL for (int u = 0; u < UNITS; u++) {
      float(&of_unit)[UNIT / 2] = reinterpret_cast<float(&)[UNIT / 2]>(of_tap[u * (UNIT / 2)]);
      const uint64_t row = x + int(dilations.x >> 8 * u & 255) * from;
      UNROLL for (int k = 0; k < 4; k++)
        ptx::wgmma<E, UNIT, 1, 1>(of_unit, row + k * step, g + u * UNIT / 8 + 128 * k, add || k > 0);
    }
  }
  // Of a slot, [channel of g][tap][channel of x].
  INLINE float *place_of(float *slot, int col, int tap, int row) const {
    return slot + ((col + 32 * half) * Work::TAPS + tap) * 64 + row;
  }
  // Stores the same sums in float32 (conv/exact/exact_sum.cuh), a tap and unit at a time. What moves out of the image is 0 in both.
  INLINE void exact(const Work &t, char *smem, float *slot) const {
    const int consumer = threadIdx.x / 128 - 1, thread = threadIdx.x % 128, x_first = t.part % t.x_chunks * 64;
    float *const a = reinterpret_cast<float *>(smem) + consumer * (EXACT_BYTES<64, UNIT> / 4), *const b = a + 64 * EXACT_K;
    const Stored x = t.exact.a.stored(), g = t.exact.b.stored();
    const uint2 dilations = t.dilations[t.part / t.x_chunks];
    const Place place;
    UNROLL_BY(1) for (int part = 0; part < COUNT * UNITS; part++) {
      const int tap = FIRST + part / UNITS, u = part % UNITS, g_first = t.part / t.x_chunks * 64 + 32 * half + u * UNIT;
      const int apart = dilations.x >> 8 * (UNITS * half + u) & 255;
      const int down = apart * (tap / 3 - 1), right = apart * (tap % 3 - 1);
      float found[UNIT / 2] = {};
      UNROLL_BY(1) for (int tile = t.slice; tile < t.tiles; tile += t.slices) {
        const int at = tile % t.per_image, first_h = at / t.tiles_w * 8, first_w = at % t.tiles_w * 8;
        const auto pixel = [&](int k, int by_h, int by_w) {  // or -1
          const int h = first_h + k / 8, w = first_w + k % 8;
          const bool there = h < t.height && w < t.width && unsigned(h + down) < unsigned(t.height) &&
                             unsigned(w + right) < unsigned(t.width);
          return there ? i64(tile / t.per_image * t.height + h + by_h) * t.width + w + by_w : -1;
        };
        ptx::bar_sync(EXACT_BARRIER + consumer, 128);
        fill_lines<64, 128>(a, x, thread, EXACT_K, [&](int k, int c) {
          const i64 from = pixel(k, down, right);
          return from >= 0 && x_first + c < t.x_channels ? from * t.x_channels + x_first + c : -1;
        });
        fill_lines<UNIT, 128>(b, g, thread, EXACT_K, [&](int k, int c) {
          const i64 from = pixel(k, 0, 0);
          return from >= 0 && g_first + c < t.g_channels ? from * t.g_channels + g_first + c : -1;
        });
        ptx::bar_sync(EXACT_BARRIER + consumer, 128);
        multiply_slab<UNIT / 8, 64, UNIT>(found, a + place.row_in_box(0), b + place.col(0), EXACT_K);
      }
      UNROLL for (int j = 0; j < UNIT / 2; j++) *place_of(slot, u * UNIT + place.col(j), tap, place.row_in_box(j)) = found[j];
    }
  }
  INLINE void operator()(const Work &t, char *smem, Barriers &barriers) {
    uint2 dilations = ptx::uniform(t.dilations[t.part / t.x_chunks]);
    if (half) dilations.x >>= 8 * UNITS;
    const int step = 2 * t.pitch * 8;
    int stage = 0, phase = 0, before = -1;
    UNROLL for (int i = 0; i < COUNT; i++) {
      UNROLL for (int j = 0; j < WIDE / 2; j++) sum[i][j] = 0.f;
    }
    for (int tile = t.slice; tile < t.tiles; tile += t.slices) {
      ptx::mbarrier_wait(barriers.full + stage, phase);
      const uint64_t x = ptx::wgmma_desc(smem + t.stage_at(stage), BOX, t.pitch * 128) + t.reach * (t.pitch + 1) * 8;
      const uint64_t g = ptx::wgmma_desc(smem + t.g_at(stage), BOX) + 4 * half;
      const int x_low = t.halo_bytes / 16, g_low = BOX / 16;
      ptx::wgmma_fence();
      UNROLL for (int i = 0; i < COUNT; i++) {
        const int tap = FIRST + i, from = ((tap / 3 - 1) * t.pitch + tap % 3 - 1) * 8;
        if constexpr (PLANES == 2) {
          float part[WIDE / 2];
          ptx::wgmma_fence();
          multiply(part, x + x_low, g, from, step, dilations, false);
          multiply(part, x, g + g_low, from, step, dilations, true);
          multiply(part, x, g, from, step, dilations, true);
          ptx::wgmma_commit();
          ptx::wgmma_wait<0>();
          UNROLL for (int j = 0; j < WIDE / 2; j++) sum[i][j] += part[j];
        } else {
          multiply(sum[i], x, g, from, step, dilations, true);
        }
      }
      if constexpr (PLANES == 1) {
        ptx::wgmma_commit();
        if (before >= 0) {
          ptx::wgmma_wait<1>();
          release(barriers, before);
        }
        before = stage;
      } else {
        release(barriers, stage);
      }
      if (++stage == t.stages) stage = 0, phase ^= 1;
    }
    if (PLANES == 1) ptx::wgmma_wait<0>();
  }
  INLINE void release(Barriers &barriers, int stage) const {
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barriers.empty + stage);
  }
  INLINE void store(float *slot, const Scale &scale) const {
    const Place place;
    UNROLL for (int i = 0; i < COUNT; i++) {
      UNROLL for (int j = 0; j < WIDE / 2; j++)
        *place_of(slot, place.col(j), FIRST + i, place.row_in_box(j)) = sum[i][j] * scale.first * scale.second;
    }
  }
};

template <int UNIT, int FIRST, int COUNT, bool EXACT>
INLINE void sum_tiles(const Work &t, char *smem, Barriers &barriers, float *slots, const Scale &scale) {
  Sums<UNIT, FIRST, COUNT> sums;
  float *const slot = slots + (long long)(t.part * t.slices + t.slice) * (64 * Work::TAPS * 64);
  if constexpr (EXACT) {
    sums.exact(t, smem, slot);
  } else {
    sums(t, smem, barriers);
    sums.store(slot, scale);
  }
}

template <bool EXACT>
INLINE void sum_parts(const Work &t, char *smem, Barriers &barriers, float *slots, const Scale &scale, int unit) {
  if (unit == 16) sum_tiles<16, 0, Work::TAPS, EXACT>(t, smem, barriers, slots, scale);
  else if (PLANES == 2 || unit == 32) sum_tiles<32, 0, Work::TAPS, EXACT>(t, smem, barriers, slots, scale);
  else if (consumer_number() == 0) sum_tiles<64, 0, 5, EXACT>(t, smem, barriers, slots, scale);
  else sum_tiles<64, 5, 4, EXACT>(t, smem, barriers, slots, scale);
}

ALPHA_GLOBAL(conv_coconv_wgrad, (THREADS, 1),
             (const __grid_constant__ ptx::TensorMaps maps, float *slots, const float *scale_x, const float *scale_g,
              const uint2 *dilations, int images, int height, int width, int x_chunks, int parts, int reach, int unit,
              int stages, int x_channels, int g_channels, Exact exact)) {
  ptx::follow();
#ifdef HAS_WGMMA
  DYNAMIC_SHARED(char, smem);
  __shared__ Barriers barriers;
  Work t = {maps.few, maps.few + 1, dilations, images, height, width, x_chunks, parts, reach, stages,
            x_channels, g_channels, exact};
  t.derive();
  const bool flagged = EXACT_TOO && exact.flags.any();
  if (threadIdx.x == 0) barriers.init();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x < 32 && !flagged) load_tiles(t, smem, barriers);
  } else {
    ptx::setmaxnreg_inc<232>();
    if constexpr (EXACT_TOO) {
      if (flagged) return sum_parts<true>(t, smem, barriers, slots, Scale(), unit);
    }
    sum_parts<false>(t, smem, barriers, slots, Scale(scale_x, scale_g), unit);
  }
#endif
}
