// The frame that fprop and dgrad share on every unit but wgmma: one tile of the dense product of a tap class.
//
// What:     out[row][col] = sum over taps and channels k of  in[start(row) + tap][k] * w[tap][col, k]
// Source:   arXiv 2306.15951, Algorithms 1B and 2B. Differs: positions with the same taps are one product
// Layout:   in (images, height, width, groups * channels), out (.., groups * columns), both NHWC; w: OHWI
// GEMM:     rows: (pixel of a class, image), images fastest; sum: taps of the class x channels; columns: of a group
// Zeros:    a class has the positions that read the same taps (alpha/ops/conv_desc.py: TapClass, one per axis).
//           Positions, starts and taps are evenly spaced, so a class is a few integers; padding, stride and dilation
//           are gone before the kernel starts. No product with such a zero is made, and none is tested for
// Units:    T says what is read and written and what multiplies: gemm_ffma.cuh or gemm_mma.cuh
// Levels:   LEVELS 1: columns differ from class to class; LEVELS 2: a sum has segments, see conv/coconv/levels.cuh
// Requires: an image of in, an image of out and w have fewer than 2^31 elements, and so do the rows of a class
// Threads:  a block per slice of a tile (SlabItem), the longest sums first: block b takes entry b of the work list.
//           Most tiles have one slice; see split.cuh for the others, and T for the threads of a tile
// Measured: see the kernels that use it
#pragma once
#include "conv/exact/exact_sum.cuh"
#include "gemm_ffma.cuh"
#include "split.cuh"

#ifndef LEVELS
#define LEVELS 0
#endif

struct SlabClass {  // all in elements; alpha/cuda/conv/schedule.py writes it
  int rows;                            // pixels * images
  int width;                           // pixels along the width; pixel = h * width + w
  int in, in_h, in_w;                  // in an image: start of pixel (0, 0), distance of pixels along h and w
  int out, out_h, out_w;               // likewise, of the pixel that is written
  int taps_h, taps_w;                  // taps along h and w; the sum has taps_h * taps_w * channels terms
  int tap_in_h, tap_in_w;              // distance of taps in the image
  int w, tap_w_h, tap_w_w;             // in the filter: first tap, distance of taps
  int unused;
#if LEVELS  // alpha/cuda/conv/coconv/schedule.py
  int channels, columns;               // of a group, in the place of those of SlabTensors
  int first;                           // channel of out, of all groups
  int segments;                        // entries from this one on that are parts of the sum
#endif
};

struct alignas(16) SlabItem {
  int cls, row_tile, column_tile, group;
  Slice slice;
  int unused;
};

template <class T> struct SlabTensors {
  const typename T::In *in, *w;
  const float *bias;                   // (groups * columns), or null; of fprop, as is relu
  typename T::Out *out;
  Workspace partial;                   // of tiles with several slices
  const SlabClass *classes;
  const SlabItem *work;
  long long in_image, out_image;       // elements of an image
  int images, channels, columns;       // channels, columns: of one group
  int w_row;                           // elements of w from one output channel to the next
  int relu;
  long long in_plane, w_plane;         // elements from a plane to the next, and scales, where T reads such
  const float *in_scale, *w_scale;
};

template <class T> using CopyIn = typename T::RowsA;
template <class T> using CopyColumns = typename T::RowsB;  // w of fprop: (column, tap, k)
template <class T> using CopyLines = typename T::LinesB;   // w of dgrad: (k, tap, column)

template <class T> INLINE int columns_of(const SlabTensors<T> &t, const SlabClass &c) {
#if LEVELS == 1
  return c.columns;
#else
  return t.columns;
#endif
}

#if LEVELS == 2
#include "conv/coconv/levels.cuh"
#else
template <class T> struct SlabShared {  // what is fixed for a tile; registers are for accumulators
  const typename T::In *in[T::BM];     // rows of in, in the buffer's order
  const typename T::In *w[T::B_KMAJOR ? T::BN : 1];
  typename T::Out *out[T::BM];         // rows of out; null beyond the class
  int tap_in, tap_w;                   // from behind the channels of a tap to the next tap: in the image, in the filter
  int line_in, line_w;                 // and what is to be added where that tap begins a line
  int taps_w;
  SlabItem item;                       // what is left to know after the last product

  INLINE void fill(const SlabTensors<T> &t, const SlabClass &c, const SlabItem &work) {
    const int columns = columns_of(t, c);
    if (threadIdx.x == 0) {
      item = work;
      const int k = (t.channels + T::BK - 1) / T::BK * T::BK;
      tap_in = c.tap_in_w - k;
      tap_w = c.tap_w_w - (T::B_KMAJOR ? k : k * t.w_row);
      line_in = c.tap_in_h - c.taps_w * c.tap_in_w;
      line_w = c.tap_w_h - c.taps_w * c.tap_w_w;
      taps_w = c.taps_w;
    }
    for (int r = threadIdx.x; r < T::BM; r += T::THREADS) {
      const int at = CopyIn<T>::row_in_buffer(r);
      const int row0 = work.row_tile * T::BM, m = row0 + row_to_copy(at, c.rows - row0);
      const int pixel = m / t.images, image = m - pixel * t.images;
      const int h = pixel / c.width, w = pixel - h * c.width;
      in[r] = t.in + image * t.in_image + (c.in + h * c.in_h + w * c.in_w + work.group * t.channels);
      out[at] = row0 + at >= c.rows ? nullptr : t.out + image * t.out_image +
                (c.out + h * c.out_h + w * c.out_w + work.group * columns + work.column_tile * T::BN);
    }
    if constexpr (T::B_KMAJOR)
      for (int r = threadIdx.x; r < T::BN; r += T::THREADS) {
        const int column0 = work.column_tile * T::BN;
        const int col = column0 + row_to_copy(CopyColumns<T>::row_in_buffer(r), columns - column0);
        w[r] = t.w + (c.w + (work.group * columns + col) * t.w_row);
      }
  }
};

template <class T> INLINE int slab_count(const SlabTensors<T> &t, const SlabClass &c, const SlabShared<T> &) {
  return c.taps_h * c.taps_w * ((t.channels + T::BK - 1) / T::BK);
}

// Where the next slab starts: displacement in the image (a) and in the filter (b), and the channels left in its tap.
template <class T> struct TapWalk {
  int a, b, k_left, taps_left;

  INLINE TapWalk(const SlabTensors<T> &t, const SlabClass &c, const SlabShared<T> &, int slab)
      : a(0), b(0), k_left(t.channels), taps_left(c.taps_w) {
    if (slab == 0) return;
    const int per_tap = (t.channels + T::BK - 1) / T::BK;
    const int tap = slab / per_tap, k = slab % per_tap * T::BK, h = tap / c.taps_w, w = tap % c.taps_w;
    a = h * c.tap_in_h + w * c.tap_in_w + k;
    b = h * c.tap_w_h + w * c.tap_w_w + (T::B_KMAJOR ? k : k * t.w_row);
    k_left -= k;
    taps_left -= w;
  }
  INLINE void next(const SlabTensors<T> &t, const SlabShared<T> &s) {
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
#endif

// One tile or slice, as slab_block has it. EXACT: see conv/exact/exact_sum.cuh; all of its code is its own, as registers are short.
template <class T, bool SPLIT, bool EXACT>
INLINE void slab_tile(const SlabTensors<T> &t, typename T::In *smem, const Exact &exact, const SlabClass &c,
                      const SlabItem &item, SlabShared<T> &shared) {
  using In = typename T::In;
  const int thread = threadIdx.x, column0 = item.column_tile * T::BN;
  typename T::Product product(thread);
  SlabRange slabs = {0, slab_count(t, c, shared)};
  if constexpr (SPLIT) slabs = slabs_of(item.slice, slabs.count);
  TapWalk<T> walk(t, c, shared, slabs.begin);
  const CopyIn<T> copy_in(thread, t.in_plane);
  if constexpr (EXACT) {
    exact_slabs<T>(smem, slabs.count, product, [&](float *a, float *b) {
      const int depth = min(walk.k_left, T::BK), left = t.columns - column0;
      const int first = walk.b + c.w + item.group * t.channels * t.w_row + column0;
      fill_rows<T::BM, T::THREADS>(a, exact.a.stored(), thread, depth,
                                   [&](int r) { return i64(shared.in[r] - t.in) + walk.a; });
      if constexpr (T::B_KMAJOR)
        fill_rows<T::BN, T::THREADS>(b, exact.b.stored(), thread, depth,
                                     [&](int col) { return i64(shared.w[col] - t.w) + walk.b; });
      else
        fill_lines<T::BN, T::THREADS>(b, exact.b.stored(), thread, depth, [&](int k, int col) {
          return col < left ? first + k * t.w_row + col : -1;
        });
      walk.next(t, shared);
      return depth;
    });
  } else if constexpr (T::B_KMAJOR) {
    const CopyColumns<T> copy_w(thread, t.w_plane);
    gemm_pipeline<T>(smem, slabs.count, [&](In *a, In *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, shared.w, walk.b, walk.k_left);
      walk.next(t, shared);
    }, product);
  } else {
    const int line = item.group * t.channels + CopyLines<T>::line0(thread);
    const CopyLines<T> copy_w(thread, t.w + (c.w + line * t.w_row + column0), t.columns - column0, t.w_plane);
    gemm_pipeline<T>(smem, slabs.count, [&](In *a, In *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, [&](int i) { return walk.b + i * (CopyLines<T>::STEP * t.w_row); }, walk.k_left);
      walk.next(t, shared);
    }, product);
  }
  const SlabItem &done = SPLIT ? shared.item : item;
  if constexpr (SPLIT)
    if (done.slice.count > 1 && !add_slices<T::THREADS>(product.acc, done.slice, t.partial)) return;
  if constexpr (!EXACT) product.scale(t.in_scale, t.w_scale);
  const int first = done.column_tile * T::BN, columns = columns_of(t, t.classes[done.cls]);
  const float *bias = T::B_KMAJOR && t.bias ? t.bias + done.group * columns + first : nullptr;
#if LEVELS == 1
  if (bias) bias += t.classes[done.cls].first;
#endif
  gemm_store(product, [&](int r) { return shared.out[r]; }, bias, columns - first, t.columns % 4 == 0,
             T::B_KMAJOR && t.relu);
}

// One block: entry blockIdx.x of the work list. T::B_KMAJOR says which way round w is read; SPLIT, whether tiles may have
// several slices: without them the registers hold more. Tensors come by value: parameters of a kernel that were read where
// they are would be read again and again, and take registers. exact: where T reads planes.
template <class T, bool SPLIT>
INLINE void slab_block(const SlabTensors<T> t, typename T::In *smem, const Exact exact = {}) {
  __shared__ SlabShared<T> shared;
  const SlabItem item = t.work[blockIdx.x];
  const SlabClass c = t.classes[item.cls];
  shared.fill(t, c, item);
  __syncthreads();
  if constexpr (HAS_EXACT_WAY<typename T::In, typename T::Out>) {
    if (exact.flags.any()) return slab_tile<T, SPLIT, true>(t, smem, exact, c, item, shared);
  }
  slab_tile<T, SPLIT, false>(t, smem, exact, c, item, shared);
}
