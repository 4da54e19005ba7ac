// dgrad of the first layer in FFMA, for images with up to 4 channels: too few columns for the tiles of a product.
//
// What:     dx[p][ic] = sum over taps and oc of g[p moved by the tap][oc] * w[oc][tap][ic]
// Source:   arXiv 2306.15951, Algorithm 2B; the blocking of registers is our own
// Layout:   dx (N, IH, IW, IC), g (N, OH, OW, OC), both NHWC; w (OC, FH, FW, IC); float32
// GEMM:     rows: positions of a class; columns: ic; sum over taps, oc
// Zeros:    positions that read the same taps form a class (conv_slab.cuh: SlabClass); a block works on one class,
//           and its loops run over the taps of that class: padded and inserted zeros are never reached
// Requires: one group, IC = CHANNELS <= 4; an image of dx or g has fewer than 2^31 elements; FW * IC * 64 <= FILTER_FLOATS
// Threads:  {class, first tile, tiles, unused} per block; a tile is a run of positions, images slowest. The filters lie
//           in shared memory, loaded once per block where all of them fit. 16 neighbouring threads share 8 positions
//           and have every 16th quad of output channels each; their sums meet in 4 exchanges, each of which halves the
//           sums that a thread holds
// Measured: H200, 128 images of 32x32x3 from 64 channels, 3x3, bf16 converted to float32 before: 51 us
#include "conv/ffma/conv_slab.cuh"
#include "lanes.cuh"

constexpr int IC = CHANNELS, THREADS = 128, POSITIONS = 8, FILTER_FLOATS = 8192;

// elements of a filter up to tap number `tap`, counted from tap line h0 of the class
INLINE int tap_offset(const SlabClass &c, int h0, int tap) {
  const int h = tap / c.taps_w;
  return c.w + (h0 + h) * c.tap_w_h + (tap - h * c.taps_w) * c.tap_w_w;
}

INLINE const float *at(const float *from, long long bytes) {
  return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) + bytes);
}

struct StemTensors {
  const float *g, *w;
  float *dx;
  const SlabClass *classes;
  const int4 *work;
  long long in_image, out_image;         // elements of an image of g, of dx
  int images, channels, w_row, unused;   // channels: OC
};

// Of 4 * BIT sums a lane keeps the half that its bit names, with the other lane's part of it, and gives the rest away.
template <int BIT> INLINE void give_half(float (&sum)[POSITIONS * 4], int lane) {
  constexpr int HALF = 2 * BIT;
  const bool upper = lane & BIT;
  UNROLL for (int j = 0; j < HALF; j++) {
    const float keep = upper ? sum[j + HALF] : sum[j], give = upper ? sum[j] : sum[j + HALF];
    sum[j] = keep + __shfl_xor_sync(~0u, give, BIT);
  }
}

ALPHA_GLOBAL(stem_dgrad, (THREADS, IC < 4 ? 4 : 3), (const StemTensors t)) {
  ptx::follow();
  constexpr int LANES = 16, OC = 64, TILE = THREADS / LANES * POSITIONS;
  __shared__ __align__(16) float filter[FILTER_FLOATS];  // [tap][OC][IC]
  __shared__ long long read[TILE], write[TILE];  // read: bytes
  __shared__ SlabClass c;
  const int4 item = t.work[blockIdx.x];
  if (threadIdx.x == 0) c = t.classes[item.x];
  __syncthreads();
  const int lane = threadIdx.x % LANES, first = threadIdx.x / LANES * POSITIONS;
  const int line = c.taps_w * OC * IC, lines = line ? min(FILTER_FLOATS / line, c.taps_h) : 1;
  const bool once = lines == c.taps_h && t.channels <= OC;
  const int pixels = c.rows / t.images;
  for (int tile = item.y; tile < item.y + item.z; tile++) {
    __syncthreads();
    for (int r = threadIdx.x; r < TILE; r += THREADS) {
      const int position = tile * TILE + r, m = min(position, c.rows - 1), image = m / pixels;
      const int ih = (m - image * pixels) / c.width, iw = m - image * pixels - ih * c.width;
      read[r] = 4 * (image * t.in_image + (c.in + ih * c.in_h + iw * c.in_w));
      write[r] = position < c.rows ? image * t.out_image + (c.out + ih * c.out_h + iw * c.out_w) : -1;
    }
    float sum[POSITIONS * 4] = {};  // four for each position, of which IC are used
    for (int oc0 = 0; oc0 < t.channels; oc0 += OC)
      for (int h0 = 0; h0 < c.taps_h; h0 += lines) {
        const int now = min(lines, c.taps_h - h0);
        if (tile == item.y || !once) {
          __syncthreads();
          for (int e = threadIdx.x; e < now * line; e += THREADS) {
            const int ic = e % IC, oc = oc0 + e / IC % OC, tap = e / (IC * OC);
            filter[e] = oc < t.channels ? t.w[(long long)oc * t.w_row + tap_offset(c, h0, tap) + ic] : 0.f;
          }
        }
        __syncthreads();
        const int oc = oc0 + lane * 4;
        if (oc >= t.channels) continue;
        const float *f = filter + lane * (4 * IC);
        for (int th = h0; th < h0 + now; th++)
          for (int tw = 0; tw < c.taps_w; tw++, f += OC * IC) {
            const float *from = t.g + (th * c.tap_in_h + tw * c.tap_in_w + oc);
            const Lanes<4 * IC, float> u = load<4 * IC>(f);
            UNROLL for (int i = 0; i < POSITIONS; i++) {
              const float *p = at(from, read[first + i]);
              Lanes<4, float> v;
              if (t.channels % 4 == 0) v = load<4>(p);
              else UNROLL for (int q = 0; q < 4; q++) v.v[q] = oc + q < t.channels ? p[q] : 0.f;
              UNROLL for (int q = 0; q < 4; q++) UNROLL for (int ic = 0; ic < IC; ic++)
                sum[4 * i + ic] = fmaf(v.v[q], u.v[q * IC + ic], sum[4 * i + ic]);
            }
          }
      }
    __syncthreads();
    give_half<8>(sum, lane);
    give_half<4>(sum, lane);
    give_half<2>(sum, lane);
    give_half<1>(sum, lane);
    UNROLL for (int j = 0; j < 2; j++) {
      const int position = lane / 2, ic = lane % 2 * 2 + j;
      const long long row = write[first + position];
      if (row >= 0 && ic < IC) t.dx[row + ic] = sum[j];
    }
  }
}
