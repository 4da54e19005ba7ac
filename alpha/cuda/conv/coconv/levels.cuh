// Sums of several segments, for dgrad of contextual convolutions: what conv/ffma/conv_slab.cuh has for sums of one.
//
// What:     a sum is a list of segments, taps x channels of one level each, one after the other; dx is written once
// Classes:  positions that agree on the taps of all levels. The entries of their segments follow each other in the
//           table; the first one says where the rows lie, and neighbouring pixels are as far apart in every segment.
//           SlabTensors has no channels (0): segments have theirs
// Requires: at most MOST_SEGMENTS segments; w is MN-major
#pragma once

constexpr int MOST_SEGMENTS = 8;

struct SlabSegment {
  int a, b;                            // from where rows begin to the first tap: in the image, in the filter
  int channels, taps, taps_w, slabs;
  int tap_in, tap_w, line_in, line_w;  // as of SlabShared of conv_slab.cuh
};

template <class T> struct SlabShared {
  static_assert(!T::B_KMAJOR, "columns of w are found by lines of k");
  const typename T::In *in[T::BM];     // rows of in, in the buffer's order
  typename T::Out *out[T::BM];         // rows of out; null beyond the class
  SlabSegment segments[MOST_SEGMENTS];
  int count;
  SlabItem item;

  INLINE void fill(const SlabTensors<T> &t, const SlabClass &c, const SlabItem &work) {
    if (threadIdx.x == 0) {
      item = work;
      count = c.segments;
    }
    if (int(threadIdx.x) < c.segments) {
      const SlabClass s = t.classes[work.cls + threadIdx.x];
      const int per_tap = (s.channels + T::BK - 1) / T::BK, k = per_tap * T::BK;
      const int before = work.group * s.channels, taps = s.taps_h * s.taps_w;
      segments[threadIdx.x] = {s.in - c.in + before, s.w - c.w + before * t.w_row, s.channels, taps, s.taps_w,
                               taps * per_tap, s.tap_in_w - k, s.tap_w_w - k * t.w_row,
                               s.tap_in_h - s.taps_w * s.tap_in_w, s.tap_w_h - s.taps_w * s.tap_w_w};
    }
    for (int r = threadIdx.x; r < T::BM; r += T::THREADS) {
      const int at = CopyIn<T>::row_in_buffer(r);
      const int row0 = work.row_tile * T::BM, m = row0 + row_to_copy(at, c.rows - row0);
      const int pixel = m / t.images, image = m - pixel * t.images;
      const int h = pixel / c.width, w = pixel - h * c.width;
      in[r] = t.in + image * t.in_image + (c.in + h * c.in_h + w * c.in_w);
      out[at] = row0 + at >= c.rows ? nullptr : t.out + image * t.out_image +
                (c.out + h * c.out_h + w * c.out_w + work.group * t.columns + work.column_tile * T::BN);
    }
  }
};

template <class T> INLINE int slab_count(const SlabTensors<T> &, const SlabClass &, const SlabShared<T> &s) {
  int slabs = 0;
  for (int i = 0; i < s.count; i++) slabs += s.segments[i].slabs;
  return slabs;
}

// Where the next slab starts: displacement in the image (a) and in the filter (b), the channels left in its tap, the
// taps left in its line and in its segment.
template <class T> struct TapWalk {
  int a, b, k_left, line_left, taps_left, segment;

  INLINE TapWalk(const SlabTensors<T> &t, const SlabClass &, const SlabShared<T> &s, int slab) : segment(0) {
    while (segment + 1 < s.count && slab >= s.segments[segment].slabs) slab -= s.segments[segment++].slabs;
    start(s);
    const SlabSegment &g = s.segments[segment];
    const int per_tap = (g.channels + T::BK - 1) / T::BK, tap = slab / per_tap;
    for (int i = 0; i < tap; i++) step(g);
    const int k = (slab - tap * per_tap) * T::BK;
    // step() moves from behind a tap's channels to the next tap: they are added here
    a += tap * per_tap * T::BK + k;
    b += (tap * per_tap * T::BK + k) * t.w_row;
    k_left -= k;
  }
  INLINE void next(const SlabTensors<T> &t, const SlabShared<T> &s) {
    k_left -= T::BK;
    a += T::BK;
    b += T::BK * t.w_row;
    if (k_left > 0) return;
    const SlabSegment &g = s.segments[segment];
    k_left = g.channels;
    if (taps_left > 1) return step(g);
    if (segment + 1 < s.count) {
      segment++;
      start(s);
    }
  }

private:
  INLINE void start(const SlabShared<T> &s) {
    const SlabSegment &g = s.segments[segment];
    a = g.a, b = g.b, k_left = g.channels, line_left = g.taps_w, taps_left = g.taps;
  }
  INLINE void step(const SlabSegment &g) {
    a += g.tap_in;
    b += g.tap_w;
    taps_left--;
    if (--line_left > 0) return;
    line_left = g.taps_w;
    a += g.line_in;
    b += g.line_w;
  }
};
