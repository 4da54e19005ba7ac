// The sums of pairs of neighbouring outputs on Hopper's tensor cores (gemm_wgmma.cuh), which share what they read.
//
//   what      neighbouring outputs of a row whose taps are as far apart as they are: what one output's tap j meets, the
//             next one's tap j - 1 meets. So of a row of T taps a pair reads T + 1 pixels of `in` and T boxes of filters,
//             where two outputs alone read 2T of each
//   layout    buffer j of a row: [128 rows of A: pixel j of each pair][B: filters of tap j, but in the last one]
//   order     sum[0] takes pixel j with the filters of its own buffer, sum[1] with those of the buffer before. So a
//             buffer is given back when the products of the next one are done
//   few       of 16, 32 or 48 channels 4 pixels are one run of values, and so are rows of 3 taps: buffer j has chunk j
//             of both. Step s of 16 of the run meets step s of the filters in sum[0], and step s - channels / 16 in sum[1],
//             which is in the same buffer or in the one before. Nothing is multiplied that one of the outputs does not
//             read. Rows of 128 bytes, which limit such layers, are half as many as for outputs alone, or less
//   requires  whole blocks of 64 of k or, K-major, such channels and 3 taps in a row; one plane
//   measured  H100 SXM, bursts, batch 512, bfloat16, us beside those of the best tile of outputs alone, 3x3: 32x32,
//             64 -> 64 76 of 86 (dgrad 78 of 87), 16x16, 128 -> 128 55.5 of 57; dgrad at stride 2 to 32x32x64 53 of 57,
//             to 16x16x128 35 of 35; 5x5, likewise, 101 of 110 and 67 of 70. 8x8 and smaller maps have more outputs
//             alone, at their ends: 52 of 47. Of two planes, 64 columns: 190 of 191, 124 of 120; so they have none
#pragma once
#include "gemm_wgmma.cuh"

constexpr int FEW_TAPS = 3;  // of a row, where there are few channels

template <class T> struct PairSum {
  Ring<T> &ring;
  typename T::Sums &sum;
  const uint64_t a0, b0;
  int older = -1, last = -1;  // the last two buffers: products in flight, or filters that the next ones read

  PTX_FN PairSum(Ring<T> &r, typename T::Sums &s)
      : ring(r), sum(s), a0(ptx::wgmma_desc(r.buffers + (threadIdx.x / 128 - 1) * T::BOX, T::BOX)),
        b0(ptx::wgmma_desc(r.buffers + T::B_AT, T::BOX)) {}

  // The products of the next buffer: its first OWN steps of 16 for the first output, and those from BEGIN to END for the
  // second one, whose filters are SHIFT steps before, in the buffer before or in this one.
  template <int OWN, int BEGIN, int END, int SHIFT = 4> PTX_FN void step() {
    constexpr int STAGE = T::STAGE / 16;
    ring.wait();
    const uint64_t a = a0 + ring.stage * STAGE;
    const uint64_t own = b0 + ring.stage * STAGE, before = b0 + last * STAGE;
    ptx::wgmma_fence();
#pragma unroll
    for (int s = BEGIN; s < END; s++)
      product(sum[1], a + s * T::A_STEP, (s < SHIFT ? before + 4 * T::B_STEP : own) + (s - SHIFT) * T::B_STEP);
    if constexpr (OWN > 0) wgmma_buffer<T, OWN>(sum[0], a, own, true);
    ptx::wgmma_commit();
    if (last >= 0) ptx::wgmma_wait<1>();
    if (older >= 0) ring.release(older);
    older = last, last = ring.stage;
    ring.advance();
  }
  // All buffers of rows of taps of 16 * SHIFT channels. No products are left in flight: where paths meet the compiler
  // would take those of all of them one by one.
  template <int SHIFT> PTX_FN void rows_of_few(int rows) {
#pragma unroll 1
    for (int k = 0; k < rows; k++) row_of_few<SHIFT>();
    finish();
  }
  PTX_FN void finish() {
    ptx::wgmma_wait<0>();
    if (older >= 0) ring.release(older);
    if (last >= 0) ring.release(last);
  }

private:
  template <int SHIFT, int AT = 0> PTX_FN void row_of_few() {  // from step AT on
    constexpr int STEPS = FEW_TAPS * SHIFT;
    step<within(STEPS - AT), within(SHIFT - AT), within(STEPS + SHIFT - AT), SHIFT>();
    if constexpr (AT + 4 < STEPS + SHIFT) row_of_few<SHIFT, AT + 4>();
  }
  static PTX_FN constexpr int within(int steps) { return steps < 0 ? 0 : steps < 4 ? steps : 4; }  // a buffer
  static PTX_FN void product(float (&of)[T::SUMS], uint64_t a, uint64_t b) {
    ptx::wgmma<typename T::E, T::BN, T::A_MN, T::B_MN>(of, a, b, true);
  }
};

// Consumer: the sums over the next `blocks` buffers, `width` of them for a row of taps; both: of both outputs, or of the
// first alone; few: 0, or how many times 16 channels there are. 0 where there are no blocks.
template <class T>
PTX_FN void pair_sum(Ring<T> &ring, int blocks, int width, bool both, int few, typename T::Sums &sum) {
#pragma unroll
  for (int i = 0; i < T::SUMS; i++) sum[0][i] = sum[1][i] = 0.f;
  PairSum<T> pair(ring, sum);
  if (!T::B_MN && few) {
    if (few == 1) pair.template rows_of_few<1>(blocks / width);
    else if (few == 2) pair.template rows_of_few<2>(blocks / width);
    else pair.template rows_of_few<3>(blocks / width);
    return;
  }
  if (both) {
#pragma unroll 1
    for (int at = 0; at < blocks; at += width) {
      pair.template step<4, 0, 0>();
#pragma unroll 1
      for (int j = 2; j < width; j++) pair.template step<4, 0, 4>();
      pair.template step<0, 0, 4>();
    }
  } else {
#pragma unroll 1
    for (int at = 0; at < blocks; at++) pair.template step<4, 0, 0>();
  }
  pair.finish();
}
