// Explicit im2col, and its adjoint, to compare with: the products are convolutions of 1x1 maps.
//
// What:     im2col   columns[p][group][fh][fw][c] = x[p moved by the tap][group][c], 0 for padding; p = (image, oh, ow)
//           col2im   dx[n][ih][iw][ic] = the sum of the columns that were taken from there, taps ascending
// Source:   the definition; every window is written out, zeros of the padding included
// Layout:   x, dx NHWC, float32
// GEMM:     columns (N OH OW, FH FW IC / groups) of a group times w, OHWI as it is
// Zeros:    padding is written out and multiplied, which is what the direct kernels save
// Requires: an image of x, and a pixel's columns, have fewer than 2^31 elements
// Threads:  one per element that is written, in turn
// Measured: benchmarks/results/h200/algorithms.jsonl
#include "ptx.cuh"

constexpr int THREADS = 256;

struct Windows {
  long long pixels;                             // of all images: outputs in im2col, inputs in col2im
  int ih, iw, ic, oh, ow, fh, fw;
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int group;                                    // channels of one
  int unused[2];
};

ALPHA_GLOBAL(im2col, (THREADS), (const float *x, float *columns, Windows t)) {
  ptx::follow();
  const int row = t.fh * t.fw * t.ic;
  for (long long at = blockIdx.x * (long long)THREADS + threadIdx.x; at < t.pixels * row;
       at += gridDim.x * (long long)THREADS) {
    const long long p = at / row, image = p / (t.oh * t.ow);
    const int k = at - p * row, pixel = p - image * (t.oh * t.ow), taps = t.fh * t.fw * t.group;
    const int group = k / taps, tap = k % taps / t.group, c = k % t.group;
    const int h = pixel / t.ow * t.stride_h - t.pad_h + tap / t.fw * t.dilation_h;
    const int w = pixel % t.ow * t.stride_w - t.pad_w + tap % t.fw * t.dilation_w;
    const bool inside = (unsigned)h < (unsigned)t.ih && (unsigned)w < (unsigned)t.iw;
    columns[at] = inside ? x[image * t.ih * t.iw * t.ic + ((h * t.iw + w) * t.ic + group * t.group + c)] : 0.f;
  }
}

ALPHA_GLOBAL(col2im, (THREADS), (const float *columns, float *dx, Windows t)) {
  ptx::follow();
  const int row = t.fh * t.fw * t.ic;
  for (long long at = blockIdx.x * (long long)THREADS + threadIdx.x; at < t.pixels * t.ic;
       at += gridDim.x * (long long)THREADS) {
    const long long p = at / t.ic, image = p / (t.ih * t.iw);
    const int channel = at - p * t.ic, pixel = p - image * (t.ih * t.iw), h = pixel / t.iw, w = pixel % t.iw;
    const int group = channel / t.group;
    const float *from = columns + (group * (t.fh * t.fw - 1) * t.group + channel);
    float sum = 0.f;
    for (int i = 0; i < t.fh; i++) {
      const int y = h + t.pad_h - i * t.dilation_h;
      if (y < 0 || y % t.stride_h || y / t.stride_h >= t.oh) continue;
      for (int j = 0; j < t.fw; j++) {
        const int z = w + t.pad_w - j * t.dilation_w;
        if (z < 0 || z % t.stride_w || z / t.stride_w >= t.ow) continue;
        sum += from[((image * t.oh + y / t.stride_h) * t.ow + z / t.stride_w) * row + (i * t.fw + j) * t.group];
      }
    }
    dx[at] = sum;
  }
}
