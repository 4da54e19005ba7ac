// Depthwise convolution: every group has one input channel and MULTIPLIER output channels; no sum over channels.
//
// What:     depthwise_gather  out[p][c] = sum over taps and j < terms of
//                                 in[p moved by the tap][c / divisor * terms + j] * w[c * terms + j][tap]
//                             fprop: in = x, out = y, divisor = multiplier, terms = 1, and bias and relu on top;
//                             dgrad: in = g, out = dx, divisor = 1, terms = multiplier
//           depthwise_wgrad   slices[s][tap][oc] = sum over the slice's outputs p of
//                                 g[p][oc] * x[p moved by the tap][oc / multiplier]
//           depthwise_sum     dw[oc][tap] = sum of slices[s][tap][oc]
// Source:   the definition, with the tap lists of arXiv 2306.15951
// Layout:   activations (N, H, W, C), NHWC; w (OC, FH, FW, 1); float32
// GEMM:     none: nothing is summed over channels, memory limits
// Zeros:    for each position of an axis a table holds {first tap, number of taps, where the first tap reads}
//           (alpha/ops/conv_desc.py: TapClass); for each tap wgrad gets the rectangle of outputs that it serves. The
//           loops run over these: padded and inserted zeros are never reached
// Requires: all positions of a tensor, and the elements of an image, are fewer than 2^31
// Threads:  `lanes` neighbouring threads side by side along the channels; the rest along positions
// Measured: no file of results has it; the rates in depthwise/__init__.py are estimates
#include "ptx.cuh"

constexpr int THREADS = 256;

struct Gather {
  const float *in, *w, *bias;
  float *out;
  const int4 *table_h, *table_w;  // per position: first tap, number of taps, where the first one reads
  int positions, height, width;   // of out; positions: of all images
  int in_height, in_width, in_channels, channels;
  int fw, taps, tap_step_h, tap_step_w, step_h, step_w;  // from tap to tap: in the filter, in the tensor that is read
  int divisor, terms, lanes, relu, unused;
};

ALPHA_GLOBAL(depthwise_gather, (THREADS, 4), (Gather t)) {
  ptx::follow();
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes;
  const int c = blockIdx.y * t.lanes + lane;
  if (c >= t.channels) return;
  const float bias = t.bias ? t.bias[c] : 0.f;
  for (int p = blockIdx.x * rows + row; p < t.positions; p += gridDim.x * rows) {
    const int line = p / t.width, image = line / t.height;
    const int4 h = t.table_h[line - image * t.height], w = t.table_w[p - line * t.width];
    const float *in = t.in + ((long long)image * t.in_height + h.z) * t.in_width * t.in_channels +
                      ((long long)w.z * t.in_channels + c / t.divisor * t.terms);
    float sum = bias;
    for (int i = 0; i < h.y; i++)
      UNROLL_BY(3) for (int j = 0; j < w.y; j++) {
        const float *from = in + (long long)(i * t.step_h * t.in_width + j * t.step_w) * t.in_channels;
        const int tap = (h.x + i * t.tap_step_h) * t.fw + w.x + j * t.tap_step_w;
        for (int k = 0; k < t.terms; k++) sum = fmaf(from[k], t.w[(c * t.terms + k) * t.taps + tap], sum);
      }
    t.out[(long long)p * t.channels + c] = t.relu && sum < 0.f ? 0.f : sum;
  }
}

struct TapOutputs {  // a rectangle of an image; conv/ffma/schedule_wgrad.py writes it
  int pixels, width;  // pixels: 0 of a tap that meets no input
  int g, x;           // elements of an image up to the first pixel, and to the one that it reads
  int unused[4];
};

struct DepthwiseWgrad {
  const float *x, *g;
  float *slices;
  const TapOutputs *tap_table;
  long long x_image, g_image;     // elements of an image
  int images, channels, multiplier;
  int x_h, x_w, g_h;              // elements of x between outputs along h and w; of g along h
  int lanes, share;               // share: rows of a rectangle, all images counted, that a slice takes at most
};

// Grid (slices, channel tiles, taps). A thread has every so-many-th row of a rectangle, all images counted.
ALPHA_GLOBAL(depthwise_wgrad, (THREADS, 4), (DepthwiseWgrad t)) {
  ptx::follow();
  __shared__ float partial[THREADS];
  const int lane = threadIdx.x % t.lanes, row = threadIdx.x / t.lanes, rows = THREADS / t.lanes;
  const int c = blockIdx.y * t.lanes + lane;
  const TapOutputs r = t.tap_table[blockIdx.z];
  const int height = r.pixels / r.width;
  const int begin = blockIdx.x * t.share, end = min(begin + t.share, t.images * height);
  float sum = 0.f;
  if (c < t.channels)
    for (int line = begin + row; line < end; line += rows) {
      const int image = line / height, h = line - image * height;
      const float *g = t.g + (image * t.g_image + ((long long)r.g + h * t.g_h + c));
      const float *x = t.x + (image * t.x_image + ((long long)r.x + h * t.x_h + c / t.multiplier));
      UNROLL_BY(4) for (int w = 0; w < r.width; w++) sum = fmaf(g[w * t.channels], x[w * t.x_w], sum);
    }
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (row > 0 || c >= t.channels) return;
  for (int s = 1; s < rows; s++) sum += partial[s * t.lanes + lane];
  t.slices[((long long)blockIdx.x * gridDim.z + blockIdx.z) * t.channels + c] = sum;
}

// Threads: LANES elements side by side, and every so-many-th slice for the rest; their sums are added in a fixed order.
constexpr int LANES = 32, SUMMANDS = 16;
ALPHA_GLOBAL(depthwise_sum, (LANES * SUMMANDS), (const float *slices, float *dw, int count, int taps, int channels)) {
  ptx::follow();
  __shared__ float partial[SUMMANDS][LANES];
  const int lane = threadIdx.x % LANES, first = threadIdx.x / LANES, element = blockIdx.x * LANES + lane;
  float sum = 0.f;
  if (element < taps * channels)
    UNROLL_BY(8) for (int s = first; s < count; s += SUMMANDS) sum += slices[(long long)s * taps * channels + element];
  partial[first][lane] = sum;
  __syncthreads();
  if (first > 0 || element >= taps * channels) return;
  UNROLL for (int s = 1; s < SUMMANDS; s++) sum += partial[s][lane];
  dw[element % channels * taps + element / channels] = sum;
}
