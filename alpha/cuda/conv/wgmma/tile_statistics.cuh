// Statistics of the channels of a tensor, counted by the kernel that stores it tile by tile (gemm_wgmma.cuh).
//
// What:     parts[slot][mean, m2, count][C], float32: of all rows that one consumer of one block stored, in slot
//           2 * block + consumer. A count of 0: none of the channel. finalize_tiles in batch_norm.cu merges the slots.
//           The values are those in memory, bias and rounding included: a box of 64 rows is read from shared memory
//           while TMA stores it, so nothing waits
// Accuracy: a thread subtracts one of its 16 rows from all before it squares: sum((v - one)^2) is at most 16 m2, so
//           that 4 bits are lost at worst. Threads and tiles merge by Chan's formula, in the order of the block's work
//           list. A channel's place in its tile is fixed, and with it the thread that merges into its slot: it reads
//           what it wrote itself, so tiles need no barrier
// Threads:  of a consumer: warp w has words 8w to 8w + 7 of a row, a word being one float or two of 16 bits; of them
//           lanes 8g to 8g + 7 have rows 8k + 2g and 8k + 2g + 1. The swizzle has these four rows in all 32 banks
// Measured: benchmarks/results/h100/tried.md
#pragma once
#include "gemm_wgmma.cuh"
#include "moments.cuh"

template <class O> INLINE float float_of_word(unsigned word, int) { return __uint_as_float(word); }
template <> INLINE float float_of_word<bf16>(unsigned word, int half) { return float_of_pair<bf16>(word, half); }
template <> INLINE float float_of_word<f16>(unsigned word, int half) { return float_of_pair<f16>(word, half); }

// By all threads of a block, before a __syncthreads() and its first tile: its slots are empty, in the first `columns`.
INLINE void clear_slots(float *parts, int channels, int columns, int threads) {
  float *mine = parts + 6ll * blockIdx.x * channels;
  for (int i = threadIdx.x; i < 6 * columns; i += threads) mine[i / columns * channels + i % columns] = 0.f;
}

// Of one tile, by all threads of a consumer. Registers are short beside the sums: little is kept from box to box.
template <class O> struct TileStatistics {
  static constexpr int ROWS = 16, IN_WORD = 4 / sizeof(O), COLS = 128 / sizeof(O);  // ROWS: of a thread; COLS: of a box
  float *const parts;                  // of all slots
  const int channels, first, columns;  // of the tensor; of it the tile's column 0; those of the tile that exist
  const bool whole;                    // all rows are stored; else
  unsigned rows = 0;                   // bit i: row i of the thread is
  float before = 0;                    // rows of the channel that are in the slot

  // is_stored(row): of row 0 to 63 of the consumer, where they are not whole
  template <class IsStored>
  INLINE TileStatistics(float *parts, int channels, int first, int columns, bool whole, const IsStored &is_stored)
      : parts(parts), channels(channels), first(first), columns(columns), whole(whole) {
    UNROLL_BY(1) for (int i = 0; i < ROWS && !whole; i++) rows |= unsigned(is_stored(row(i))) << i;
    if (merges(column())) before = slot(0)[2 * channels];
  }
  // Adds the rows of box `b` of the tile.
  INLINE void add(const char *box, int b) const {
    if (whole) add<true>(box, b);
    else add<false>(box, b);
  }

private:
  static INLINE int word() { return threadIdx.x % 128 / 32 * 8 + threadIdx.x % 8; }
  static INLINE int row(int i) { return i / 2 * 8 + threadIdx.x % 32 / 8 * 2 + i % 2; }
  // Of a box: whose moments the thread has in the end, and one or three others.
  static INLINE int column() { return word() * IN_WORD + (IN_WORD == 2 ? threadIdx.x / 8 % 2 : 0); }
  // Whether the thread is the one of them that merges what a column of the tile has into its slot; and where that is.
  INLINE bool merges(int col) const { return threadIdx.x % 32 < 8 * IN_WORD && col < columns; }
  INLINE float *slot(int b) const {
    const int number = 2 * blockIdx.x + threadIdx.x / 128 - 1;
    return parts + 3ll * number * channels + first + b * COLS + column();
  }

  template <bool WHOLE> INLINE void add(const char *box, int b) const {
    const bool writes = merges(b * COLS + column());
    float *to = slot(b);
    Moments all = {0, 0, before};
    if (writes) all.mean = to[0], all.m2 = to[channels];  // asked for now, there when they are needed
    unsigned words[ROWS];
    UNROLL for (int i = 0; i < ROWS; i++) {
      const int chunk = word() / 4 ^ row(i) % 8;
      words[i] = *reinterpret_cast<const unsigned *>(box + row(i) * 128 + chunk * 16 + word() % 4 * 4);
    }
    Moments of[IN_WORD];
    UNROLL for (int half = 0; half < IN_WORD; half++) of[half] = moments<WHOLE>(words, half);
    if constexpr (IN_WORD == 2) {  // of two lanes one goes on with the first half of the words, one with the second
      const bool second = threadIdx.x & 8;
      const Moments kept = second ? of[1] : of[0], sent = second ? of[0] : of[1];
      of[0] = merged<WHOLE>(kept, sent, 8);
    } else {
      of[0] = merged<WHOLE>(of[0], of[0], 8);
    }
    of[0] = merged<WHOLE>(of[0], of[0], 16);
    all = merge_moments(all, of[0]);
    if (writes) to[0] = all.mean, to[channels] = all.m2, to[2 * channels] = all.count;
  }
  // Of the thread's rows of a column. Distances from one of them lose no more digits than 16 rows can.
  template <bool WHOLE> INLINE Moments moments(const unsigned (&words)[ROWS], int half) const {
    const float count = WHOLE ? ROWS : __popc(rows);
    float one = float_of_word<O>(words[0], half), sums[4] = {}, squares[4] = {};
    if (!WHOLE) {
      UNROLL for (int i = 1; i < ROWS; i++)
        one = rows << 32 - i ? one : float_of_word<O>(words[i], half);  // the first stored
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
      const float away = WHOLE || rows >> i & 1 ? float_of_word<O>(words[i], half) - one : 0.f;
      sums[i % 4] += away;
      squares[i % 4] += away * away;
    }
    const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]), mean = WHOLE || count > 0 ? sum / count : 0.f;
    const float m2 = ((squares[0] + squares[1]) + (squares[2] + squares[3])) - sum * mean;
    return {WHOLE || count > 0 ? one + mean : 0.f, m2, count};
  }
  // Merges what the lane has, and what another one sends.
  template <bool WHOLE> static INLINE Moments merged(const Moments &mine, const Moments &sent, int distance) {
    const float mean = __shfl_xor_sync(~0u, sent.mean, distance), m2 = __shfl_xor_sync(~0u, sent.m2, distance);
    return merge_moments(mine, {mean, m2, WHOLE ? mine.count : __shfl_xor_sync(~0u, sent.count, distance)});
  }
};
