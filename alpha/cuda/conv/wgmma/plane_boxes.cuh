// How a kernel on Hopper's tensor cores (gemm_wgmma.cuh) writes both float16 planes of its result instead of
// float32 (operand_header.cuh), for a convolution that reads them.
//
// What:     the elements are those that the kernel would store as float32; the scale is from the bound in the header,
//           which is there before the launch. The flag is set as by a split, for rows that exist; and where an operand
//           of the product is flagged: what is written is of no use then. Consumers report to the header at their ends
// Layout:   boxes of 64 rows, as OutBoxes has them, one of plane 0 and one of plane 1 in turn: of 64 columns, or of
//           32 in rows of 64 bytes where a tile's columns are no multiple of 64. With the swizzle of either a store
//           of 4 bytes puts 8 rows x 16 bytes into 8 different chunks of 16 bytes, hence all 32 banks
// Measured: some 12 instructions for an element, beside those of the product. On an H100 about as much as it saves
//           where few passes are saved; see alpha/cuda/conv/deferred.py
#pragma once
#include "gemm_wgmma.cuh"
#include "guard.cuh"
#include "lazy/operand_header.cuh"

struct Planes {};  // OUT of a kernel that writes them

// To whom planes are reported, and by how many.
struct PlaneReport {
  OperandHeader *header;
  int *lost_ranges;
  int reporters;
  Guard operands;  // their flags

  PTX_FN float factor() const { return power_of_two(shift_of(header->bound)); }
  PTX_FN void hand_in(Tally tally) const {
    if (!spared(operands)) tally.largest = INFINITE;
    report(header, tally, reporters, lost_ranges);
  }
};

// The tally of a warp, in all of its lanes.
PTX_FN Tally fold_warp(Tally tally) {
#pragma unroll
  for (int d = 16; d; d /= 2) {
    const Tally other = {__shfl_xor_sync(~0u, tally.balance, d), __shfl_xor_sync(~0u, tally.largest, d)};
    tally = MergeTallies()(tally, other);
  }
  return tally;
}
PTX_FN Tally fold_warps(const Tally *warps, int count) {
  Tally tally = warps[0];
  for (int k = 1; k < count; k++) tally = MergeTallies()(tally, warps[k]);
  return tally;
}

template <class T> struct PlaneBoxes {
  static constexpr int COLS = T::BN % 64 ? 32 : 64, ROW = 2 * COLS;  // columns of a box, and bytes of its rows
  BoxTurns<T> turns;
  const PlaneReport &report;
  Tally *const warps;  // of all consumers, in shared memory: registers are short beside the sums

  PTX_FN PlaneBoxes(char *smem, Tally *warps, const PlaneReport &report) : turns(smem), report(report), warps(warps) {
    if (threadIdx.x % 32 == 0) *warp() = {};
  }

  // Consumer: stores 64 of its rows. store(box, col, ROW, plane): as of OutBoxes. is_stored: whether the thread's rows
  // exist, row(0) and the one 8 rows further on.
  template <class Store>
  PTX_FN void operator()(const float (&sum)[T::SUMS], const Finish &finish, const bool (&is_stored)[2], Store store) {
    const Place place;
    const float factor = report.factor();
    Tally rows[2] = {};
#pragma unroll
    for (int b = 0; b < T::BN / COLS; b++) {
      if (b * COLS >= finish.columns) break;
      unsigned words[2][COLS / 4];
      split(words, place, sum, finish, factor, b * (COLS / 2), rows);
#pragma unroll
      for (int p = 0; p < 2; p++)
        turns.next([&](char *box) { write(box, place, words[p]); },
                   [&](const char *box) { store(box, b * COLS, ROW, p); });
    }
    const Tally none = {};
    const Tally tile = fold_warp(MergeTallies()(is_stored[0] ? rows[0] : none, is_stored[1] ? rows[1] : none));
    if (place.thread % 32 == 0) *warp() = MergeTallies()(*warp(), tile);
  }
  // Once, at the end: memory has everything, and the header knows of it.
  PTX_FN void drain() const {
    const Place place;
    ptx::bar_sync(1 + place.consumer, 128);
    if (place.thread == 0) report.hand_in(fold_warps(warp(), 4));
    turns.drain();
  }

private:
  PTX_FN Tally *warp() const { return warps + threadIdx.x / 32 - 4; }
  // The words of both planes that the thread has in a box: two columns of a chunk of 16 bytes, and those 8 rows further
  // on; `first`: its first sum there.
  static PTX_FN void split(unsigned (&words)[2][COLS / 4], const Place &place, const float (&sum)[T::SUMS],
                           const Finish &finish, float factor, int first, Tally (&rows)[2]) {
#pragma unroll
    for (int j = 0; j < COLS / 8; j++) {
      const int col = place.col(first + 4 * j);
      const float2 add = finish.bias_at<false>(col);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = first + 4 * j + 2 * half, k = 2 * j + half;
        const bool exists = col < finish.columns;  // else the sum is of filters of another tile
        split_pair<Float16x2>(exists ? finish.apply<false>(sum[i], add.x) : 0.f,
                              exists ? finish.apply<false>(sum[i + 1], add.y) : 0.f, factor, words[0][k], words[1][k],
                              rows[half]);
      }
    }
  }
  static PTX_FN void write(char *box, const Place &place, const unsigned (&words)[COLS / 4]) {
    const int row = place.row_in_box(0), swizzle = ROW == 128 ? row & 7 : row >> 1 & 3;
    char *at = box + row * ROW + place.thread % 4 * 4;
#pragma unroll
    for (int j = 0; j < COLS / 8; j++) {
      unsigned *to = reinterpret_cast<unsigned *>(at + ((j ^ swizzle) << 4));
      to[0] = words[2 * j];
      to[8 * ROW / 4] = words[2 * j + 1];
    }
  }
};
