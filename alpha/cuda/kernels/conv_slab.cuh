// The convolution kernels' common frame: one tile of the dense product that belongs to a tap class.
//
//   what      out[row][col] = sum over taps and channels k of  in[start(row) + tap][k] * w[tap][col, k]
//   class     the positions that read the same taps (alpha/ops/conv_desc.py: TapClass, one per axis). Its rows are
//             (pixel, image), images fastest; its sum is taps x channels. Positions, starts and taps are evenly spaced,
//             so a class is a few integers, and padding, stride and dilation are gone before the kernel starts: no
//             product with a padded or inserted zero is made, and none is tested for.
//   work      one entry per tile, {class, row tile, column tile, group}, the longest sums first: block b takes entry b,
//             and the device hands the entries to its multiprocessors as these fall idle
//   layout    in (images, height, width, groups * channels), out (.., groups * columns), both NHWC; w: OHWI
//   requires  an image of in, an image of out and w have fewer than 2^31 elements, and so do the rows of a class
#pragma once
#include "gemm_ffma.cuh"

struct SlabClass {  // all in elements; alpha/cuda/conv/schedule.py writes it
  int rows;                            // pixels * images
  int width;                           // pixels along the width; pixel = h * width + w
  int in, in_h, in_w;                  // in an image: start of pixel (0, 0), distance of pixels along h and w
  int out, out_h, out_w;               // likewise, of the pixel that is written
  int taps_h, taps_w;                  // taps along h and w; the sum has taps_h * taps_w * channels terms
  int tap_in_h, tap_in_w;              // distance of taps in the image
  int w, tap_w_h, tap_w_w;             // in the filter: first tap, distance of taps
  int unused;
};

struct SlabTensors {
  const float *in, *w, *bias;          // bias: (groups * columns), or null
  float *out;
  const SlabClass *classes;
  const int4 *work;
  long long in_image, out_image;       // elements of an image
  int images, channels, columns;       // channels, columns: of one group
  int w_row;                           // elements of w from one output channel to the next
  int relu;
};

template <class T> using CopyIn = KMajorCopy<T, T::BM, T::LANE_ROWS>;
template <class T> using CopyColumns = KMajorCopy<T, T::BN, T::LANE_COLS>;  // w of fprop: (column, tap, k)
template <class T> using CopyLines = MnMajorCopy<T, T::BN>;                 // w of dgrad: (k, tap, column)

template <class T> struct SlabShared {  // what is fixed for a tile; registers are for accumulators
  const float *in[T::BM];              // rows of in, in the buffer's order
  const float *w[T::B_KMAJOR ? T::BN : 1];
  float *out[T::BM];                   // rows of out; null beyond the class
  int tap_in, tap_w;                   // from behind the channels of a tap to the next tap: in the image, in the filter
  int line_in, line_w;                 // and what is to be added where that tap begins a line
  int taps_w;

  __device__ __forceinline__ void fill(const SlabTensors &t, const SlabClass &c, int4 item) {
    if (threadIdx.x == 0) {
      const int k = (t.channels + T::BK - 1) / T::BK * T::BK;
      tap_in = c.tap_in_w - k;
      tap_w = c.tap_w_w - (T::B_KMAJOR ? k : k * t.w_row);
      line_in = c.tap_in_h - c.taps_w * c.tap_in_w;
      line_w = c.tap_w_h - c.taps_w * c.tap_w_w;
      taps_w = c.taps_w;
    }
    for (int r = threadIdx.x; r < T::BM; r += T::THREADS) {
      const int at = CopyIn<T>::row_in_buffer(r);
      const int row = item.y * T::BM + at, m = min(row, c.rows - 1);   // beyond the end: the last row once more
      const int pixel = m / t.images, image = m - pixel * t.images;
      const int h = pixel / c.width, w = pixel - h * c.width;
      in[r] = t.in + image * t.in_image + (c.in + h * c.in_h + w * c.in_w + item.w * t.channels);
      out[at] = row >= c.rows ? nullptr : t.out + image * t.out_image +
                (c.out + h * c.out_h + w * c.out_w + item.w * t.columns + item.z * T::BN);
    }
    if constexpr (T::B_KMAJOR)
      for (int r = threadIdx.x; r < T::BN; r += T::THREADS) {
        const int col = min(item.z * T::BN + CopyColumns<T>::row_in_buffer(r), t.columns - 1);
        w[r] = t.w + (c.w + (item.w * t.columns + col) * t.w_row);
      }
  }
};

// Where the next slab starts: displacement in the image (a) and in the filter (b), and the channels left in its tap.
template <class T> struct TapWalk {
  int a, b, k_left, taps_left;

  __device__ __forceinline__ TapWalk(int channels, int taps_w) : a(0), b(0), k_left(channels), taps_left(taps_w) {}
  __device__ __forceinline__ void next(const SlabTensors &t, const SlabShared<T> &s) {
    k_left -= T::BK;
    a += T::BK;
    b += T::B_KMAJOR ? T::BK : T::BK * t.w_row;
    if (k_left > 0) return;
    k_left = t.channels;
    a += s.tap_in;
    b += s.tap_w;
    if (--taps_left > 0) return;
    taps_left = s.taps_w;
    a += s.line_in;
    b += s.line_w;
  }
};

// One block: entry blockIdx.x of the work list. T::B_KMAJOR says which way round w is read.
template <class T> __device__ __forceinline__ void slab_block(const SlabTensors &t, float *smem) {
  __shared__ SlabShared<T> shared;
  const int4 item = t.work[blockIdx.x];
  const SlabClass c = t.classes[item.x];
  const int thread = threadIdx.x;
  shared.fill(t, c, item);
  __syncthreads();
  Ffma<T> product(thread);
  const int slabs = c.taps_h * c.taps_w * ((t.channels + T::BK - 1) / T::BK);
  TapWalk<T> walk(t.channels, c.taps_w);
  const CopyIn<T> copy_in(thread);
  if constexpr (T::B_KMAJOR) {
    const CopyColumns<T> copy_w(thread);
    gemm_pipeline<T>(smem, slabs, [&](float *a, float *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, shared.w, walk.b, walk.k_left);
      walk.next(t, shared);
    }, product);
  } else {
    const float *first = t.w + (c.w + (item.w * t.channels + CopyLines<T>::line0(thread)) * t.w_row + item.z * T::BN);
    const CopyLines<T> copy_w(thread, first, t.columns - item.z * T::BN);
    gemm_pipeline<T>(smem, slabs, [&](float *a, float *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, [&](int i) { return walk.b + i * (CopyLines<T>::STEP * t.w_row); }, walk.k_left);
      walk.next(t, shared);
    }, product);
  }
  const float *bias = t.bias ? t.bias + item.w * t.columns + item.z * T::BN : nullptr;
  gemm_store<T>(product, [&](int r) { return shared.out[r]; }, bias, t.columns - item.z * T::BN, t.columns % 4 == 0,
                t.relu);
}
