// Windows of 2 x 2 in a box of results, 64 rows x 128 bytes: a box has whole windows, as its sides are powers of two.
#pragma once
#include "gemm_wgmma.cuh"

// Consumer, all threads: what was written is replaced by the largest of each window, 16 rows in the order of `out`; NaN
// is the largest. Rows are (image, h, w), 2^width_log2 of them side by side.
template <class H> PTX_FN void pool_box(char *box, int width_log2) {
  const Place place;
  const int chunk = place.thread % 8, window = place.thread / 8, side = (1 << width_log2 - 1) - 1;
  const int first = window >> width_log2 - 1 << width_log2 + 1 | (window & side) << 1;
  const auto at = [&](int row) { return reinterpret_cast<uint4 *>(box + row * 128 + ((chunk ^ row & 7) << 4)); };
  ptx::bar_sync(1 + place.consumer, 128);
  unsigned most[4];
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const uint4 v = *at(first + (k & 1) + (k >> 1 << width_log2));
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const auto larger = [&](bool second) {
        const float a = float_of_pair<H>(most[i], second), b = float_of_pair<H>(words[i], second);
        return b > a || b != b ? b : a;
      };
      most[i] = k == 0 ? words[i] : pair_of_floats<H>(larger(false), larger(true));
    }
  }
  ptx::bar_sync(1 + place.consumer, 128);
  *at(window) = make_uint4(most[0], most[1], most[2], most[3]);
}
