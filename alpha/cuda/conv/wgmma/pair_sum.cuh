// The sums of pairs of neighbouring outputs on Hopper's tensor cores (gemm_wgmma.cuh), which share what they read.
//
// What:     neighbouring outputs of a row whose taps are as far apart as they are: what one output's tap j meets, the
//           next one's tap j - 1 meets. So of a row of T taps a pair reads T + 1 pixels of `in` and T boxes of filters,
//           where two outputs alone read 2T of each
// Layout:   buffer j of a row: [128 rows of A: pixel j of each pair][B: filters of tap j, but in the last one].
//           sum[0] takes pixel j with the filters of its own buffer, sum[1] with those of the buffer before. So a
//           buffer is given back when the products of the next one are done
// Requires: whole blocks of 64 of k, and one plane
// Measured: H100 SXM, bursts, batch 512, bfloat16, 3x3: 32x32, 64 -> 64 takes 76 us, with outputs alone 86
#pragma once
#include "gemm_wgmma.cuh"

template <class T> struct PairSum {
  Ring<T> &ring;
  typename T::Sums &sum;
  const uint64_t a0, b0;
  int older = -1, last = -1;  // the last two buffers: products in flight, or filters that the next ones read

  INLINE PairSum(Ring<T> &r, typename T::Sums &s)
      : ring(r), sum(s), a0(ptx::wgmma_desc(r.buffers + consumer_number() * T::BOX, T::BOX)),
        b0(ptx::wgmma_desc(r.buffers + T::B_AT, T::BOX)) {}

  // The products of the next buffer that have a part in the FIRST and in the SECOND output.
  template <bool FIRST, bool SECOND> INLINE void step() {
    constexpr int STAGE = T::STAGE / 16;
    ring.wait();
    const uint64_t a = a0 + ring.stage * STAGE;
    const uint64_t own = b0 + ring.stage * STAGE, before = b0 + last * STAGE;
    ptx::wgmma_fence();
    if constexpr (SECOND) wgmma_buffer<T, T::BN, 4>(sum[1], a, before, true);
    if constexpr (FIRST) wgmma_buffer<T, T::BN, 4>(sum[0], a, own, true);
    ptx::wgmma_commit();
    if (last >= 0) ptx::wgmma_wait<1>();
    if (older >= 0) ring.release(older);
    older = last, last = ring.stage;
    ring.advance();
  }
  INLINE void finish() {
    ptx::wgmma_wait<0>();
    if (older >= 0) ring.release(older);
    if (last >= 0) ring.release(last);
  }
};

// Consumer: the sums over the next `blocks` buffers, `width` of them for a row of taps; of both outputs, or of the first
// alone. 0 where there are none.
template <class T> INLINE void pair_sum(Ring<T> &ring, int blocks, int width, bool both, typename T::Sums &sum) {
  clear<T>(sum);
  PairSum<T> pair(ring, sum);
  if (both) {
    UNROLL_BY(1) for (int at = 0; at < blocks; at += width) {
      pair.template step<true, false>();
      UNROLL_BY(1) for (int j = 2; j < width; j++) pair.template step<true, true>();
      pair.template step<false, true>();
    }
  } else {
    UNROLL_BY(1) for (int at = 0; at < blocks; at++) pair.template step<true, false>();
  }
  pair.finish();
}
