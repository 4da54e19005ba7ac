// The first layer in FFMA: fprop and dgrad for images with up to 4 channels, too few for a product over channels.
//
// What:     stem_fprop  y[p][oc] = activation(b[oc] + sum over taps, ic of x[p moved by the tap][ic] * w[oc][tap][ic])
//           stem_dgrad  dx[p][ic] = sum over taps and oc of g[p moved by the tap][oc] * w[oc][tap][ic]
// Source:   arXiv 2306.15951, Algorithms 1B and 2B; the blocking of registers is our own
// Layout:   x (N, IH, IW, IC), y and g (N, OH, OW, OC), both NHWC; w (OC, FH, FW, IC); float32
// GEMM:     rows: positions of a class; fprop: columns oc, sum over taps and ic; dgrad: columns ic, sum over taps, oc
// Zeros:    positions that read the same taps form a class (conv_slab.cuh: SlabClass); a block works on one class,
//           and its loops run over the taps of that class: padded and inserted zeros are never reached
// Requires: one group, IC = CHANNELS <= 4; x has fewer than 2^30 elements, an image of y fewer than 2^31;
//           FW * IC * 64 <= FILTER_FLOATS
// Threads:  {class, first tile, tiles, column tile} per block; a tile is a run of positions, images slowest. The
//           filters lie in shared memory, loaded once per block where all of them fit.
//           fprop: LANES neighbouring threads share 8 positions and have 8 output channels each: a value of x serves 8
//           products, a value of w as many. dgrad: 16 neighbouring threads share 8 positions and have every 16th quad
//           of output channels each; their sums meet in 4 exchanges, each of which halves the sums that a thread holds
// Measured: H100, 512 images of 32x32x3 to 64 channels, 3x3: fprop 91 us, with y at the speed of a copy 47
#include "conv/ffma/conv_slab.cuh"
#include "lanes.cuh"

constexpr int IC = CHANNELS, THREADS = 128, POSITIONS = 8, FILTER_FLOATS = 8192;

// elements of a filter up to tap number `tap`, counted from tap line h0 of the class
INLINE int tap_offset(const SlabClass &c, int h0, int tap) {
  const int h = tap / c.taps_w;
  return c.w + (h0 + h) * c.tap_w_h + (tap - h * c.taps_w) * c.tap_w_w;
}

template <class Bytes> INLINE const float *at(const float *from, Bytes offset) {
  return reinterpret_cast<const float *>(reinterpret_cast<const char *>(from) + offset);
}

struct StemTensors {
  const float *in, *w, *b;          // in: x or g; b: of fprop, or null
  float *out;
  const SlabClass *classes;
  const int4 *work;
  long long in_image, out_image;    // elements of an image
  int images, channels, w_row, relu;  // channels: OC
};

template <int LANES> INLINE void stem_fprop(const StemTensors t) {
  constexpr int COLS = 8 * LANES, GROUPS = THREADS / LANES, TILE = GROUPS * POSITIONS;
  __shared__ __align__(16) float filter[FILTER_FLOATS];  // [tap, ic][COLS]
  __shared__ unsigned read[TILE];  // bytes from the start of in
  __shared__ long long write[TILE];
  __shared__ SlabClass c;                // kept out of the registers, like the three that follow
  __shared__ int4 item;
  __shared__ volatile int line, lines;   // elements of a line of taps; lines that fit into `filter`
  if (threadIdx.x == 0) {
    item = t.work[blockIdx.x];
    c = t.classes[item.x];
    line = c.taps_w * IC * COLS;
    lines = line ? min(FILTER_FLOATS / line, c.taps_h) : 1;
  }
  __syncthreads();
  const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
  for (int tile = item.y; tile < item.y + item.z; tile++) {
    __syncthreads();
    const int pixels = c.rows / t.images;
    for (int r = threadIdx.x; r < TILE; r += THREADS) {
      const int position = tile * TILE + r, m = min(position, c.rows - 1), image = m / pixels;
      const int oh = (m - image * pixels) / c.width, ow = m - image * pixels - oh * c.width;
      read[r] = 4u * (unsigned)(image * t.in_image + (c.in + oh * c.in_h + ow * c.in_w));
      write[r] = position < c.rows ? image * t.out_image + (c.out + oh * c.out_h + ow * c.out_w) : -1;
    }
    float acc[POSITIONS][8] = {};
    for (int h0 = 0; h0 < c.taps_h; h0 += lines) {
      if (tile == item.y || lines < c.taps_h) {
        __syncthreads();
        for (int e = threadIdx.x; e < min((int)lines, c.taps_h - h0) * line; e += THREADS) {
          const int col = item.w * COLS + e % COLS, ic = e / COLS % IC, tap = e / COLS / IC;
          filter[e] = col < t.channels ? t.w[(long long)col * t.w_row + tap_offset(c, h0, tap) + ic] : 0.f;
        }
      }
      __syncthreads();
      const float *f = filter + lane * 4;
      unsigned from = 4 * h0 * c.tap_in_h;
      for (int th = min((int)lines, c.taps_h - h0); th > 0; th--, from += 4 * (c.tap_in_h - c.taps_w * c.tap_in_w))
        for (int tw = c.taps_w; tw > 0; tw--, from += 4 * c.tap_in_w) {
          Lanes<IC, float> v[POSITIONS];
          UNROLL for (int i = 0; i < POSITIONS; i++) {
            const float *p = at(t.in, read[group + i * GROUPS] + from);
            if constexpr (IC == 4) v[i] = load<IC>(p);
            else UNROLL for (int ic = 0; ic < IC; ic++) v[i].v[ic] = p[ic];
          }
          UNROLL for (int ic = 0; ic < IC; ic++, f += COLS) {
            const Lanes<4, float> u[2] = {load<4>(f), load<4>(f + COLS / 2)};
            UNROLL for (int i = 0; i < POSITIONS; i++)
              UNROLL for (int j = 0; j < 8; j++) acc[i][j] = fmaf(v[i].v[ic], u[j / 4].v[j % 4], acc[i][j]);
          }
        }
    }
    __syncthreads();
    UNROLL for (int half = 0; half < 8; half += 4) {
      const int col = item.w * COLS + lane * 4 + half / 4 * (COLS / 2);
      float add[4];
      UNROLL for (int q = 0; q < 4; q++) add[q] = t.b && col + q < t.channels ? t.b[col + q] : 0.f;
      UNROLL for (int i = 0; i < POSITIONS; i++) {
        const long long row = write[group + i * GROUPS];
        if (row < 0) continue;
        float v[4];
        UNROLL for (int q = 0; q < 4; q++) {
          v[q] = acc[i][half + q] + add[q];
          if (t.relu && v[q] < 0.f) v[q] = 0.f;
        }
        if (t.channels % 4 == 0) {  // store_quad would spill registers
          if (col < t.channels) *reinterpret_cast<float4 *>(t.out + row + col) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
          UNROLL for (int q = 0; q < 4; q++)
            if (col + q < t.channels) t.out[row + col + q] = v[q];
        }
      }
    }
  }
}

// Of 4 * BIT sums a lane keeps the half that its bit names, with the other lane's part of it, and gives the rest away.
template <int BIT> INLINE void give_half(float (&sum)[POSITIONS * 4], int lane) {
  constexpr int HALF = 2 * BIT;
  const bool upper = lane & BIT;
  UNROLL for (int j = 0; j < HALF; j++) {
    const float keep = upper ? sum[j + HALF] : sum[j], give = upper ? sum[j] : sum[j + HALF];
    sum[j] = keep + __shfl_xor_sync(~0u, give, BIT);
  }
}

INLINE void stem_dgrad_block(const StemTensors t) {
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
            const float *from = t.in + (th * c.tap_in_h + tw * c.tap_in_w + oc);
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
      if (row >= 0 && ic < IC) t.out[row + ic] = sum[j];
    }
  }
}

// stem_fprop_64: up to 64 output channels at a time, 128 positions; stem_fprop_16: up to 16, 512
#define STEM(name, ...) ALPHA_ENTRY(name, (THREADS, IC < 4 ? 4 : 3), (StemTensors t), __VA_ARGS__)
STEM(stem_fprop_64, stem_fprop<8>(t))
STEM(stem_fprop_16, stem_fprop<2>(t))
STEM(stem_dgrad, stem_dgrad_block(t))
