// dgrad of a first layer of 3x3 filters, 3 channels and 64 filters on tensor cores, by mma.sync: g goes from memory to the
// fragments, and only once.
//
// What:     dx[n][ih][iw][ic] = sum over fh, fw, oc of g[n][ih + pad_h - fh][iw + pad_w - fw][oc] * w[oc][fh][fw][ic]
// Source:   our own
// Layout:   g (N, OH, OW, OC), dx (N, IH, IW, IC), both NHWC of ELEMENT; w (OC, FH, FW, IC), float32
// GEMM:     rows: a segment of a line of g; columns: (fw, ic) of one fh; sum: output channels. Line r of g adds to
//           lines r - pad_h + fh of dx, so that three lines of sums are in registers: with each line of g one of them is
//           complete, and the others move on. What is left is to add three shifted columns, in shared memory
// Zeros:    lines of g that do not exist are left out; zeros stand for the positions beyond both ends of a line. A sum
//           that is not finite is made again with multiply-adds, without them: see stem_mma.cuh
// Operands: g: a lane reads 16 bytes of a position, which are two steps of a fragment as they lie there: which channel
//           an element of the sum is was chosen so, for w as well. While these are multiplied what comes next is
//           read: half the channels in float32, all in 16 bits. w lies in shared memory as the lanes' fragments,
//           [place][step][lane][WORDS], rounded or split once
// Columns:  a line of filters has 9, which would be two blocks of 8 for each fh. The ninth columns of all fh share one
//           block instead: line m of dx has place m % 3 in it, and w has these in 3 rotations
// Requires: sm_80; one group; stride and dilation 1; FH = FW = IC = 3, OC = 64. An image of g or dx has fewer than 2^31
//           elements
// Threads:  a warp has a band of lines, a segment wide; every other band goes upwards, so that neighbours, which are
//           in one block, read at the same time what they share. Warps share nothing else but w
// Measured: H100 SXM, nvcc 13.0, bursts, 512 images of 32x32x3 from 64 channels: 67 us in fp32, 64 in tf32, 36 in 16
//           bits, where g and dx take 47 and 24 at the speed of a copy; 128 images: 26, 25, 17
#include "stem_mma.cuh"

constexpr int VEC = LANES<ELEMENT>, CHANNELS = 64, SEGMENT = 32, MT = SEGMENT / 16;
constexpr int BAND_WARPS = 4, BAND_THREADS = 32 * BAND_WARPS, BLOCKS = PRODUCTS == 1 ? 3 : 2;
constexpr int TAPS = 3, TILES = TAPS + 1;   // FH and FW; blocks of columns, the shared one last
constexpr int LOADS = 2;                    // of 16 bytes of a position, each for two steps
constexpr int STAGES = CHANNELS / (4 * VEC * LOADS), STEPS_OF_LINE = STAGES * LOADS * 2;
constexpr int WORDS = PRODUCTS == 3 ? 4 : 2, PLACES = 2 * TAPS;  // of w: a lane's; taps and tails
constexpr int PLACE_WORDS = STEPS_OF_LINE * 32 * WORDS;
constexpr int LINE = 24, ZEROS = TAPS - 1;  // of sums in shared memory: floats of a position, zeros at either end
constexpr int MOST_OUT = 4;                 // elements of a line of dx that a lane adds up

struct BandShape {
  int images, ih, iw, ic, oh, ow, oc, fh, fw, pad_h, pad_w;
  int height, bands, segments, first;  // lines of a band, bands and segments of an image, g's first position with use
};

struct Operands {
  const ELEMENT *g;
  const float *w;
  ELEMENT *dx;
};

// Fragments of w: place f < TAPS has the columns of tap f, place TAPS + r the tails of tap (p + r) % 3 in column 2p.
template <class E> INLINE void load_filters(const BandShape &s, const float *w, unsigned *to) {
  UNROLL_BY(4) for (int e = threadIdx.x; e < PLACES * PLACE_WORDS / WORDS * 2; e += BAND_THREADS) {
    const int half = e % 2, lane = e / 2 % 32, step = e / 64 % STEPS_OF_LINE, place = e / (64 * STEPS_OF_LINE);
    const int n = lane / 4;
    const bool tail = place >= TAPS;
    const int fh = tail ? (n / 2 + place) % TAPS : place, column = tail ? 8 : n;
    const int oc = (step / 2 * 4 + lane % 4) * VEC + (step % 2 * 2 + half) * (VEC / 4);
    const bool there = fh < s.fh && column < s.fw * s.ic && !(tail && (n % 2 || n >= 2 * TAPS)) && oc < s.oc;
    const int row = s.fh * s.fw * s.ic, at = there ? oc * row + fh * (s.fw * s.ic) + column : 0;
    unsigned *words = to + place * PLACE_WORDS + (step * 32 + lane) * WORDS + half;
    Fragment<1> f;
    if constexpr (sizeof(E) == 4) f.set(0, there ? w[at] : 0.f);
    else f.set(0, there ? pair_of_floats<E>(w[at], w[at + row]) : 0u);
    words[0] = f.hi[0];
    if constexpr (PRODUCTS == 3) words[2] = f.lo[0];
  }
}

INLINE void set_fragment(Fragment<2> &b, const unsigned *from) {  // of a place and step
  if constexpr (PRODUCTS == 3) {
    const uint4 v = *reinterpret_cast<const uint4 *>(from);
    b.hi[0] = v.x, b.hi[1] = v.y, b.lo[0] = v.z, b.lo[1] = v.w;
  } else {
    const uint2 v = *reinterpret_cast<const uint2 *>(from);
    b.hi[0] = v.x, b.hi[1] = v.y;
  }
}

// An element of dx, of products with elements of g that are there.
INLINE float exact(const BandShape &s, const Operands &o, int image, int ih, int iw, int ic) {
  float sum = 0.f;
  UNROLL_BY(1) for (int fh = 0; fh < s.fh; fh++)
    UNROLL_BY(1) for (int fw = 0; fw < s.fw; fw++) {
      const int oh = ih + s.pad_h - fh, ow = iw + s.pad_w - fw;
      if ((unsigned)oh >= (unsigned)s.oh || (unsigned)ow >= (unsigned)s.ow) continue;
      const ELEMENT *g = o.g + ((long long)image * s.oh * s.ow + (oh * s.ow + ow)) * s.oc;
      const float *w = o.w + (fh * s.fw + fw) * s.ic + ic;
      UNROLL_BY(1) for (int oc = 0; oc < s.oc; oc++)
        sum = fmaf(to_float(g[oc]), to_float(from_float<ELEMENT>(w[oc * s.fh * s.fw * s.ic])), sum);
    }
  return sum;
}

ALPHA_GLOBAL(stem_mma_dgrad, (BAND_THREADS, BLOCKS), (Operands o, BandShape s)) {
  ptx::follow();
  DYNAMIC_SHARED(unsigned, filter);
  __shared__ __align__(16) float lines[BAND_WARPS][(ZEROS + SEGMENT + ZEROS) * LINE];
  s.fh = s.fw = s.ic = 3, s.oc = CHANNELS;  // constants
  const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), last_tap = s.fh - 1;
  float *const columns = lines[warp] + ZEROS * LINE;
  const int units = s.images * s.segments * s.bands;
  bool begun = false;
  for (int number = blockIdx.x * BAND_WARPS + warp; !begun || number < units; number += gridDim.x * BAND_WARPS) {
    const int unit = min(number, units - 1), band = unit % s.bands, segment = unit / s.bands % s.segments;
    const int image = unit / (s.bands * s.segments);
    const int h0 = band * s.height, height = min(s.height, s.ih - h0), way = band % 2 ? -1 : 1;
    const int ow0 = s.first + segment * (SEGMENT + 1 - s.fw), there = min(SEGMENT, s.ow - ow0);  // of g
    const int iw0 = segment ? ow0 - s.pad_w + s.fw - 1 : 0;                                      // of dx
    const int count = ((segment == s.segments - 1 ? s.iw : ow0 + SEGMENT - s.pad_w) - iw0) * s.ic;
    int line = way > 0 ? h0 + s.pad_h - last_tap : h0 + height - 1 + s.pad_h;  // of g
    const ELEMENT *from = o.g + (((long long)image * s.oh + min(max(line, 0), s.oh - 1)) * s.ow + ow0) * s.oc;
    // For positions and channels that do not exist others are read: their filters are zero, their sums become so
    int at[MT * 2];
    UNROLL for (int i = 0; i < MT * 2; i++) at[i] = min(i * 8 + lane / 4, there - 1) * s.oc;
    uint4 v[LOADS][MT * 2];
    auto load = [&](int j, int stage) {
      const int channel = ((stage * LOADS + j) * 4 + lane % 4) * VEC, offset = channel < s.oc ? channel : 0;
      UNROLL for (int i = 0; i < MT * 2; i++) v[j][i] = *reinterpret_cast<const uint4 *>(from + at[i] + offset);
    };
    UNROLL for (int j = 0; j < LOADS; j++) load(j, 0);
    if (!begun) {
      load_filters<ELEMENT>(s, o.w, filter);
      __syncthreads();
      begun = true;
    }
    if (number >= units) break;
    for (int e = lane; e < (ZEROS + SEGMENT + ZEROS) * LINE; e += 32) lines[warp][e] = 0.f;
    __syncwarp();
    const unsigned *const fragments = filter + lane * WORDS;
    const unsigned *const taps = fragments + (way > 0 ? 0 : last_tap) * PLACE_WORDS;
    float sum[MT][TILES][4] = {};
    int place = way > 0 ? 1 : 2;  // of the complete line in the tail
    ELEMENT *to = o.dx + (((long long)image * s.ih + (way > 0 ? h0 : h0 + height - 1)) * s.iw + iw0) * s.ic + lane;
    for (int k = -last_tap; k < height; k++, line += way) {  // line k of the band, from where it begins, is complete
      if ((unsigned)line < (unsigned)s.oh) {
        const bool more = k + 1 < height && (unsigned)(line + way) < (unsigned)s.oh;
        const unsigned *const tails = fragments + (TAPS + (way > 0 ? 3 - place : 5 - place) % 3) * PLACE_WORDS;
        UNROLL_BY(1) for (int stage = 0; stage < STAGES; stage++) {
          const int next = (stage + 1) % STAGES;
          if (next == 0 && more) from += way * s.ow * s.oc;
          UNROLL for (int j = 0; j < LOADS; j++) {
            Fragment<4> a[2][MT];
            UNROLL for (int i = 0; i < MT * 2; i++) {
              const unsigned words[] = {v[j][i].x, v[j][i].y, v[j][i].z, v[j][i].w};
              UNROLL for (int q = 0; q < 4; q++) {
                Fragment<4> &to = a[q / 2][i / 2];
                if constexpr (WIDE) to.set(q % 2 * 2 + i % 2, __uint_as_float(words[q]));
                else to.set(q % 2 * 2 + i % 2, words[q]);
              }
            }
            load(j, next);
            const int first = (stage * LOADS + j) * 2;  // step
            if (first * 2 * VEC >= s.oc) continue;
            float part[MT][TILES][4] = {};
            UNROLL for (int step = 0; step < 2; step++) {
              Fragment<2> b[TILES];
              UNROLL for (int tap = 0; tap < TILES; tap++)
                set_fragment(b[tap], (tap < TAPS ? taps + tap * way * PLACE_WORDS : tails) + (first + step) * 32 * WORDS);
              if constexpr (PRODUCTS == 3) multiply(part, a[step], b);
              else multiply(sum, a[step], b, 0);
            }
            if constexpr (PRODUCTS == 3) add_part(sum, part, 0);
          }
        }
      }
      if (k >= 0) {
        UNROLL for (int i = 0; i < MT * 2; i++) {
          const bool exists = i * 8 + lane / 4 < there;
          float *position = columns + (i * 8 + lane / 4) * LINE;
          auto value = [&](int tile, int q) { return exists ? sum[i / 2][tile][i % 2 * 2 + q] : 0.f; };
          *reinterpret_cast<float2 *>(position + lane % 4 * 2) = make_float2(value(0, 0), value(0, 1));
          if (lane % 4 == place) position[8] = value(TILES - 1, 0);
        }
        __syncwarp();
        const float *from = columns + (iw0 + lane / s.ic + s.pad_w - ow0) * LINE + lane % s.ic;  // for fw = 0
        int ic = lane % s.ic;
        float zero = 0.f;
        UNROLL for (int i = 0; i < MOST_OUT; i++) {
          if (i * 32 + lane < count) {
            float total = from[0];
            UNROLL for (int fw = 1; fw < TAPS; fw++)
              if (fw < s.fw) total += from[fw * (s.ic - LINE)];
            to[i * 32] = from_float<ELEMENT>(total);
            zero = fmaf(total, 0.f, zero);
          }
          ic += 32 % s.ic;
          from += 32 / s.ic * LINE + 32 % s.ic + (ic >= s.ic ? LINE - s.ic : 0);
          ic -= ic >= s.ic ? s.ic : 0;
        }
        if (zero != 0.f) {
          UNROLL_BY(1) for (int e = 0; e + lane < count; e += 32)
            if (to_float(to[e]) * 0.f != 0.f)
              to[e] = from_float<ELEMENT>(exact(s, o, image, way > 0 ? h0 + k : h0 + height - 1 - k,
                                                iw0 + (e + lane) / s.ic, (e + lane) % s.ic));
        }
        to += way * s.iw * s.ic;
        __syncwarp();  // all have read what was here
      }
      UNROLL for (int i = 0; i < MT; i++)
        UNROLL for (int t = 0; t < TAPS; t++)
          UNROLL for (int q = 0; q < 4; q++) sum[i][t][q] = t + 1 < TAPS ? sum[i][t + 1][q] : 0.f;
      UNROLL for (int i = 0; i < MT * 2; i++)
        if (lane % 4 == place) sum[i / 2][TILES - 1][i % 2 * 2] = 0.f;
      place = (place + way + 3) % 3;
    }
  }
}
