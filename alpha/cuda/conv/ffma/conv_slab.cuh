// The frame that fprop and dgrad (conv_slab.cu) share on every unit but wgmma: one tile of the product of a tap class.
//
// Class:    the positions that read the same taps (alpha/ops/conv_desc.py: TapClass, one per axis). Positions, starts
//           and taps are evenly spaced, so it is a few integers; padding, stride and dilation are gone before the
//           kernel starts. No product with such a zero is made, and none is tested for
// Units:    T says what is read and written and what multiplies: gemm_ffma.cuh or gemm_mma.cuh
// Levels:   of a contextual convolution. In fprop columns differ from class to class. In dgrad a sum is a list of
//           segments, taps x channels of one level each, one after the other: entries of the table that follow each
//           other. The first one says where the rows lie; neighbouring pixels are as far apart in every segment. A
//           convolution has one level, and its sums have one segment
// Requires: an image of in, an image of out and w have fewer than 2^31 elements, and so do the rows of a class
// Threads:  a block per slice of a tile (SlabItem), the longest sums first: block b takes entry b of the work list.
//           Most tiles have one slice; see split.cuh for the others, and T for the threads of a tile
#pragma once
#include "conv/exact/exact_sum.cuh"
#include "gemm_ffma.cuh"
#include "split.cuh"

struct SlabClass {  // all in elements; alpha/cuda/conv/schedule.py writes it
  int rows;                            // pixels * images
  int width;                           // pixels along the width; pixel = h * width + w
  int in, in_h, in_w;                  // in an image: start of pixel (0, 0), distance of pixels along h and w
  int out, out_h, out_w;               // likewise, of the pixel that is written
  int taps_h, taps_w;                  // taps along h and w; the sum has taps_h * taps_w * channels terms
  int tap_in_h, tap_in_w;              // distance of taps in the image
  int w, tap_w_h, tap_w_w;             // in the filter: first tap, distance of taps
  int channels, columns;               // of a group
  int first;                           // channel of out that its columns begin at, of all groups
  int segments;                        // entries from this one on that are parts of the sum
};

struct alignas(16) SlabItem {
  int cls, row_tile, column_tile, group;
  Slice slice;
  int unused;
};

template <class T> struct SlabTensors {
  const typename T::In *in, *w;
  const float *bias;                   // of all channels of out, or null; of fprop, as is relu
  typename T::Out *out;
  Workspace partial;                   // of tiles with several slices
  const SlabClass *classes;
  const SlabItem *work;
  long long in_image, out_image;       // elements of an image
  int images, columns;                 // columns: what divides those of all classes
  int w_row;                           // elements of w from one output channel to the next
  int relu;
  long long in_plane, w_plane;         // elements from a plane to the next, and scales, where T reads such
  const float *in_scale, *w_scale;
};

template <class T> using CopyIn = typename T::RowsA;
template <class T> using CopyColumns = typename T::RowsB;  // w of fprop: (column, tap, k)
template <class T> using CopyLines = typename T::LinesB;   // w of dgrad: (k, tap, column)

struct SlabSegment {
  int a, b;                            // from where rows begin to the first tap: in the image, in the filter
  int channels, taps_w;
  int taps_left, slabs_left;           // its own, and those of all segments behind it
  int tap_in, tap_w;                   // from behind the channels of a tap to the next tap: in the image, in the filter
  int line_in, line_w;                 // and what is to be added where that tap begins a line
};

// Elements of w from one k to the next.
template <class T> INLINE int k_step(const SlabTensors<T> &t) { return T::B_KMAJOR ? 1 : t.w_row; }

template <class T> struct SlabShared {  // what is fixed for a tile; registers are for accumulators
  static constexpr int MOST = T::B_KMAJOR ? 1 : 8;  // segments, as in slab.py
  const typename T::In *in[T::BM];     // rows of in, in the buffer's order
  const typename T::In *w[T::B_KMAJOR ? T::BN : 1];
  typename T::Out *out[T::BM];         // rows of out; null beyond the class
  SlabSegment segments[MOST];
  int count;                           // of them
  int columns, first;                  // of the class; with the item what is left to know after the last product
  SlabItem item;

  INLINE void fill(const SlabTensors<T> &t, const SlabClass &c, const SlabItem &work) {
    if (threadIdx.x == 0) {
      item = work;
      count = c.segments, columns = c.columns, first = c.first;
    }
    if (int(threadIdx.x) < min(c.segments, MOST)) {
      const SlabClass *classes = t.classes + work.cls;
      const SlabClass s = classes[threadIdx.x];
      int taps = 0, slabs = 0;
      for (int i = threadIdx.x; i < c.segments; i++) {
        const int more = classes[i].taps_h * classes[i].taps_w;
        taps += more;
        slabs += more * slabs_of_tap(classes[i].channels);
      }
      const int k = slabs_of_tap(s.channels) * T::BK, before = work.group * s.channels;  // before: channels of in
      segments[threadIdx.x] = {s.in - c.in + before, s.w - c.w + (T::B_KMAJOR ? 0 : before * t.w_row), s.channels,
                               s.taps_w, taps, slabs, s.tap_in_w - k, s.tap_w_w - k * k_step(t),
                               s.tap_in_h - s.taps_w * s.tap_in_w, s.tap_w_h - s.taps_w * s.tap_w_w};
    }
    for (int r = threadIdx.x; r < T::BM; r += T::THREADS) {
      const int at = CopyIn<T>::row_in_buffer(r);
      const int row0 = work.row_tile * T::BM, m = row0 + row_to_copy(at, c.rows - row0);
      const int pixel = m / t.images, image = m - pixel * t.images;
      const int h = pixel / c.width, w = pixel - h * c.width;
      in[r] = t.in + image * t.in_image + (c.in + h * c.in_h + w * c.in_w);
      out[at] = row0 + at >= c.rows ? nullptr : t.out + image * t.out_image +
                (c.out + h * c.out_h + w * c.out_w + work.group * c.columns + work.column_tile * T::BN);
    }
    if constexpr (T::B_KMAJOR)
      for (int r = threadIdx.x; r < T::BN; r += T::THREADS) {
        const int column0 = work.column_tile * T::BN;
        const int col = column0 + row_to_copy(CopyColumns<T>::row_in_buffer(r), c.columns - column0);
        w[r] = t.w + (c.w + (work.group * c.columns + col) * t.w_row);
      }
  }
  INLINE int segment_count() const { return MOST > 1 ? count : 1; }
  static INLINE int slabs_of_tap(int channels) { return (channels + T::BK - 1) / T::BK; }
};

// Where the next slab starts: displacement in the image (a) and in the filter (b), the channels left in its tap, the
// taps left in its line and in its sum.
template <class T> struct TapWalk {
  int a, b, k_left, line_left, taps_left;

  INLINE explicit TapWalk(const SlabShared<T> &s) { start(s.segments[0]); }

  INLINE void skip(const SlabTensors<T> &t, const SlabShared<T> &s, int slabs) {  // from the beginning
    if (slabs == 0) return;
    const int left = s.segments[0].slabs_left - slabs;
    int i = 0;
    while (i + 1 < s.segment_count() && left <= s.segments[i + 1].slabs_left) i++;
    const SlabSegment &g = s.segments[i];
    start(g);
    const int slab = g.slabs_left - left;
    const int per_tap = s.slabs_of_tap(g.channels), tap = slab / per_tap, line = tap / g.taps_w;
    const int k = (slab - tap * per_tap) * T::BK, behind = per_tap * T::BK;  // g.tap_in begins behind a tap's channels
    a += tap * (g.tap_in + behind) + line * g.line_in + k;
    b += tap * (g.tap_w + behind * k_step(t)) + line * g.line_w + k * k_step(t);
    k_left -= k;
    line_left -= tap - line * g.taps_w;
    taps_left -= tap;
  }
  INLINE void next(const SlabTensors<T> &t, const SlabShared<T> &s) {
    k_left -= T::BK;
    a += T::BK;
    b += T::BK * k_step(t);
    if (k_left > 0) return;
    int i = 0;
    taps_left--;
    while (i + 1 < s.segment_count() && taps_left <= s.segments[i + 1].taps_left) i++;
    const SlabSegment &g = s.segments[i];
    if (i > 0 && taps_left == g.taps_left) return start(g);
    k_left = g.channels;
    a += g.tap_in;
    b += g.tap_w;
    if (--line_left > 0) return;
    line_left = g.taps_w;
    a += g.line_in;
    b += g.line_w;
  }

private:
  INLINE void start(const SlabSegment &g) {
    a = g.a, b = g.b, k_left = g.channels, line_left = g.taps_w, taps_left = g.taps_left;
  }
};

// One tile or slice, as slab_block has it. EXACT: see conv/exact/exact_sum.cuh; all of its code is its own, as registers are short.
template <class T, bool SPLIT, bool EXACT>
INLINE void slab_tile(const SlabTensors<T> &t, typename T::In *smem, const Exact &exact, const SlabClass &c,
                      const SlabItem &item, SlabShared<T> &shared) {
  using In = typename T::In;
  const int thread = threadIdx.x, column0 = item.column_tile * T::BN;
  typename T::Product product(thread);
  SlabRange slabs = {0, shared.segments[0].slabs_left};
  TapWalk<T> walk(shared);
  if constexpr (SPLIT) {
    slabs = slabs_of(item.slice, slabs.count);
    walk.skip(t, shared, slabs.begin);
  }
  CopyIn<T> copy_in(thread, t.in_plane);
  if constexpr (EXACT) {
    exact_slabs<T>(smem, slabs.count, product, [&](float *a, float *b) {
      const int depth = min(walk.k_left, T::BK), left = c.columns - column0, first = walk.b + c.w + column0;
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
    CopyColumns<T> copy_w(thread, t.w_plane);
    gemm_pipeline<T>(smem, slabs.count, [&](In *a, In *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, shared.w, walk.b, walk.k_left);
      walk.next(t, shared);
    }, [&](In *a, In *b) { copy_in.land(a), copy_w.land(b); }, product);
  } else {
    const int line = CopyLines<T>::line0(thread);
    CopyLines<T> copy_w(thread, t.w + (c.w + line * t.w_row + column0), c.columns - column0, t.w_plane);
    gemm_pipeline<T>(smem, slabs.count, [&](In *a, In *b) {
      copy_in(a, shared.in, walk.a, walk.k_left);
      copy_w(b, [&](int i) { return walk.b + i * (CopyLines<T>::STEP * t.w_row); }, walk.k_left);
      walk.next(t, shared);
    }, [&](In *a, In *b) { copy_in.land(a), copy_w.land(b); }, product);
  }
  const SlabItem &done = shared.item;
  if constexpr (SPLIT)
    if (done.slice.count > 1 && !add_slices<T::THREADS>(product.acc, done.slice, t.partial)) return;
  if constexpr (!EXACT) product.scale(t.in_scale, t.w_scale);
  const int first = done.column_tile * T::BN, columns = shared.columns;
  const float *bias = T::B_KMAJOR && t.bias ? t.bias + (shared.first + done.group * columns + first) : nullptr;
  gemm_store(product, [&](int r) { return shared.out[r]; }, bias, columns - first, t.columns % 4 == 0,
             T::B_KMAJOR && t.relu);
}

// One block: entry blockIdx.x of the work list. T::B_KMAJOR says which way round w is read; SPLIT, whether tiles may
// have several slices. Tensors come by value: parameters of a kernel that were read where they are would be read again
// and again, and take registers. exact: where T reads planes.
template <class T, bool SPLIT>
INLINE void slab_block(const SlabTensors<T> t, typename T::In *smem, const Exact exact) {
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
