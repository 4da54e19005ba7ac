// What:     the 16-bit planes that a tensor core reads in the place of float32 x:
//             float16x2  hi = fp16(x * 2^s), lo = fp16(x * 2^s - hi):  x = (hi + lo) / 2^s
//             float16    hi alone
//             bfloat16   bf16(x), s = 0
//           s is one number per tensor: amax * 2^s lies in [2^14, 2^15), where amax is the largest finite |x|. So
//           nothing overflows, and hi + lo errs by at most max(2^-23 |x|, 2^-25-s): 24 bits down to amax / 2^16.
//           Inf stays Inf in hi with 0 in lo, NaN is NaN, and -0 is -0 in both.
//           flag = 1 where more than half of the nonzero elements are lost, |x * 2^s| < 2^-10 (fewer than 15 bits are
//           left; for hi alone 2^-14, fewer than 11), or where Inf would meet a second plane: Inf * lo is NaN or of
//           the wrong sign. Where s is from a bound that was known before, hi may overflow: that is an Inf, too.
// Source:   splitting in two halves: arXiv 2203.03341 (Ootomo and Yokota), who scale lo and not the tensor
// Layout:   flat, C-contiguous; plane 1 starts where plane 0 ends; then, at a multiple of 256 bytes, the header
//           (OperandHeader), and a partial maximum for every block that reads the tensor
// Requires: x at a multiple of 16 bytes, planes of 256
// Threads:  a block per chunk of a tensor, of one or of many in a table (multi_tensor.cuh); 32 bytes of x per thread
//           at a time. Maxima and counts are integers: their order does not matter. The split goes through its chunk
//           backwards: what the maximum read last is still in the L2 cache.
// Measured: H100, 134 MB of float32, events around 12 calls on 3 sets, 2026-11-21, copy 91.6 us: maximum 46.3 us
//           (99 % of the copy's rate), split float16x2 102.5 (89 %), float16 75.1 (91 %), bfloat16 72.8 (94 %); maximum
//           and split after each other 145.4 and 116.6; more in benchmarks/results/h100/tried.md
#include "multi_tensor.cuh"
#include "planes.cuh"
#include "reduce.cuh"

constexpr int E = 8;               // elements of x that a thread takes at a time
constexpr int STEP = THREADS * E;  // and a block
constexpr int AMAX_TIMES = 4;      // steps whose loads are in flight together
constexpr int SPLIT_TIMES = 2;

// ---- elements in and out --------------------------------------------------------------------------------------------

// x[i .. i + E), with zeros from `end` on; WHOLE: the end is not before i + E
template <bool WHOLE> INLINE void load(float (&v)[E], const float *x, i64 i, i64 end) {
  if (WHOLE || i + E <= end) {
    const Lanes<4, float> low = ::load<4>(x + i), high = ::load<4>(x + i + 4);
    UNROLL for (int e = 0; e < E; e++) v[e] = e < 4 ? low.v[e % 4] : high.v[e % 4];
  } else {
    UNROLL for (int e = 0; e < E; e++) v[e] = i + e < end ? x[i + e] : 0.0f;
  }
}

// plane[i .. i + E), two elements to a word; 16 bytes at once if the plane is aligned to them
template <bool WHOLE, class T>
INLINE void store(T *plane, const unsigned (&words)[E / 2], i64 i, i64 end, bool aligned) {
  if (aligned && (WHOLE || i + E <= end)) {
    *reinterpret_cast<uint4 *>(plane + i) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
    unsigned short *bits = reinterpret_cast<unsigned short *>(plane);
    UNROLL for (int e = 0; e < E; e++)
      if (i + e < end) bits[i + e] = static_cast<unsigned short>(words[e / 2] >> e % 2 * 16);
  }
}

// v[t]: this thread's elements of step t from `begin` on
template <bool WHOLE, int TIMES> INLINE void load_steps(float (&v)[TIMES][E], const float *x, i64 begin, i64 end) {
  UNROLL for (int t = 0; t < TIMES; t++) load<WHOLE>(v[t], x, begin + t * STEP + threadIdx.x * E, end);
}

// ---- what a block works on ------------------------------------------------------------------------------------------

// Elements [begin, end) of a tensor of `size`; begin is a multiple of the chunk.
struct Share {
  const float *x;
  void *planes;
  OperandHeader *header;
  i64 size, begin, end;
};

INLINE Share share_of(const float *x, void *planes, OperandHeader *header, i64 size, int chunk) {
  const i64 begin = static_cast<i64>(blockIdx.x) * chunk;
  return {x, planes, header, size, begin, begin + chunk < size ? begin + chunk : size};
}
// Of many tensors: the lists of the table are x, planes and header.
INLINE Share share_of(const Table &table, int count, int chunk) {
  const Chunk here = find_chunk<3>(table, count, chunk);
  return {tensor_of<const float>(table, count, 0, here.tensor), tensor_of<void>(table, count, 1, here.tensor),
          tensor_of<OperandHeader>(table, count, 2, here.tensor), table.words[3 * count + here.tensor], here.begin,
          here.end};
}

// ---- the scale ------------------------------------------------------------------------------------------------------

template <int TIMES> INLINE unsigned largest(const float (&v)[TIMES][E], unsigned most) {
  UNROLL for (int t = 0; t < TIMES; t++)
    UNROLL for (int e = 0; e < E; e++) most = LargerBits()(most, finite_bits(v[t][e]));
  return most;
}

// partial[block of the tensor] = largest finite_bits of its chunk; and the header made ready for the split
INLINE void measure(const Share &here, int chunk) {
  unsigned most = 0;
  float v[AMAX_TIMES][E];
  i64 begin = here.begin;
  for (; begin + AMAX_TIMES * STEP <= here.end; begin += AMAX_TIMES * STEP) {
    load_steps<true>(v, here.x, begin, here.end);
    most = largest(v, most);
  }
  if (begin < here.end) {
    load_steps<false>(v, here.x, begin, here.end);
    most = largest(v, most);
  }
  most = fold_group(most, THREADS, LargerBits());
  if (threadIdx.x != 0) return;
  reinterpret_cast<unsigned *>(here.header + 1)[here.begin / chunk] = most;
  if (here.begin == 0) here.header->tickets = 0, here.header->balance = 0;
}

// ---- the planes -----------------------------------------------------------------------------------------------------

// Where the planes of a tensor go; all threads of its blocks have the same.
template <class Form> struct Split {
  using T = typename Form::T;
  T *planes;
  i64 size;
  float factor;  // 2^s

  // The steps from `begin` on, of which v holds the elements before `end`, and zeros.
  template <bool WHOLE, int TIMES>
  INLINE void steps(const float (&v)[TIMES][E], i64 begin, i64 end, Tally &tally) const {
    UNROLL for (int t = 0; t < TIMES; t++) step<WHOLE>(v[t], begin + t * STEP + threadIdx.x * E, end, tally);
  }
  template <bool WHOLE> INLINE void step(const float (&v)[E], i64 i, i64 end, Tally &tally) const {
    unsigned high[E / 2], low[E / 2];
    UNROLL for (int e = 0; e < E; e += 2) split_pair<Form>(v[e], v[e + 1], factor, high[e / 2], low[e / 2], tally);
    store<WHOLE>(planes, high, i, end, true);
    if constexpr (Form::PLANES == 2) store<WHOLE>(planes + size, low, i, end, size % E == 0);
  }
};

// known: s is from the bound in the header
template <class Form> INLINE void split_share(const Share &here, int chunk, bool known, int *lost_ranges) {
  OperandHeader *header = here.header;
  Split<Form> split{reinterpret_cast<typename Form::T *>(here.planes), here.size, 1};
  const unsigned blocks = static_cast<unsigned>((split.size + chunk - 1) / chunk);
  int shift = 0;
  if constexpr (Form::SCALED) {
    const unsigned *partial = known ? &header->bound : reinterpret_cast<const unsigned *>(header + 1);
    const unsigned partials = known ? 1 : blocks;
    unsigned most = 0;
    for (unsigned k = threadIdx.x; k < partials; k += THREADS) most = LargerBits()(most, partial[k]);
    most = fold_group(most, THREADS, LargerBits());
    if (!known && here.begin == 0 && threadIdx.x == 0) header->bound = most;  // for the next split
    shift = shift_of(most);
    split.factor = power_of_two(shift);
  }
  Tally tally = {};
  float v[SPLIT_TIMES][E];
  i64 begin = here.end - (here.end - here.begin) % (SPLIT_TIMES * STEP);
  if (begin < here.end) {
    load_steps<false>(v, here.x, begin, here.end);
    split.template steps<false>(v, begin, here.end, tally);
  }
  while (begin > here.begin) {
    begin -= SPLIT_TIMES * STEP;
    load_steps<true>(v, here.x, begin, here.end);
    split.template steps<true>(v, begin, here.end, tally);
  }
  if constexpr (Form::SCALED) {
    tally = fold_group(tally, THREADS, MergeTallies());
    if (threadIdx.x != 0) return;
    hand_in(header, tally, blocks, shift, lost_ranges);
  } else if (threadIdx.x == 0 && here.begin == 0) {
    finish(header, 0, false, lost_ranges);
  }
}

// ---- entries: of one tensor, and <name>_all of those in a table -----------------------------------------------------

ALPHA_ENTRY(planes_amax, (THREADS), (const float *x, OperandHeader *header, i64 size, int chunk),
            measure(share_of(x, nullptr, header, size, chunk), chunk))
ALPHA_ENTRY(planes_amax_all, (THREADS), (const __grid_constant__ Table table, int count, int chunk),
            measure(share_of(table, count, chunk), chunk))
#define SPLIT(Form, name) \
  ALPHA_ENTRY(planes_split_##name, (THREADS), (const float *x, void *planes, OperandHeader *header, i64 size, \
                                               int chunk, int known, int *lost_ranges), \
              split_share<Form>(share_of(x, planes, header, size, chunk), chunk, known, lost_ranges)) \
  ALPHA_ENTRY(planes_split_##name##_all, (THREADS), \
              (const __grid_constant__ Table table, int count, int chunk, int *lost_ranges), \
              split_share<Form>(share_of(table, count, chunk), chunk, false, lost_ranges))
SPLIT(Float16x2, float16x2)
SPLIT(Float16, float16)
SPLIT(BFloat16, bfloat16)

// y = x as TF32 has it: 11 bits, rounded to nearest; a unit ignores the others (conv/as_stored.py)
ALPHA_GLOBAL(planes_tf32, (THREADS), (const float *x, float *y, i64 size)) {
  ptx::follow();
  const i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
  if (i < size) y[i] = __uint_as_float(ptx::to_tf32(x[i]));
}

// ---- what is written in the place of other tensors ------------------------------------------------------------------

// The header of a tensor that has no larger elements than those that have these bounds; some may be null
extern "C" __global__ void planes_bound(OperandHeader *header, const unsigned *a, const unsigned *b, const unsigned *c,
                                        const unsigned *d, const unsigned *e, const unsigned *f, const unsigned *g,
                                        const unsigned *h) {
  ptx::follow();
  const unsigned *bounds[] = {a, b, c, d, e, f, g, h};
  unsigned most = 0;
  UNROLL for (const unsigned *bound : bounds)
    if (bound) most = LargerBits()(most, *bound);
  *header = {1, 0, 0, most};
}
ALPHA_KERNEL(planes_bound)

// ---- what reads planes that stand in the place of a tensor: 4 elements per thread at a time -------------------------

// y = x, and a header with a bound of it or null
ALPHA_GLOBAL(planes_merge, (THREADS),
             (const void *x, const OperandHeader *header, float *y, OperandHeader *header_of_y, i64 size)) {
  ptx::follow();
  if (header_of_y && blockIdx.x == 0 && threadIdx.x == 0) *header_of_y = {1, 0, 0, header->most};
  const Stored stored(x, header, size);
  const i64 stride = static_cast<i64>(gridDim.x) * THREADS * 4;
  UNROLL_BY(2) for (i64 i = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) * 4; i < size; i += stride) {
    float v[4];
    stored.unpack(v, stored.load(i));
    ::store(y + i, Lanes<4, float>{{v[0], v[1], v[2], v[3]}});
  }
}

// ---- parts of a joined tensor ---------------------------------------------------------------------------------------

// Rows of a tensor that may consist of planes, copied to where they belong in the rows of the whole (rows, columns), as
// planes or as elements: w.columns * 4 of its columns from `first` on. Columns of parts are multiples of 8. The scale is
// from the largest bound of all parts, which is in the header before: where a part has another one, an element of planes is
// rounded once more. The last block of all parts tells the flag; what follows behind it is concat_stored. Parts that batch
// norm has not written yet are put there by its own pass (batch_norm_planes.cu).
// Threads: blocks go through a part backwards, as the split does.
constexpr int AHEAD = 4;  // rows that a thread has in flight

template <class Out>
INLINE void copy_rows(const void *x, const OperandHeader *header_of_x, Out &&out, i64 columns, i64 first,
                      const Walk &w) {
  const Stored stored = stored_or_not(x, header_of_x, w.rows * w.columns * 4);
  const Place at(w, gridDim.x - 1 - blockIdx.x);
  each_row<AHEAD>(
      at, w, [&](i64 r) { return stored.load((r * w.columns + at.column) * 4); },
      [&](const Stored::Piece &piece, i64 r) {
        float v[4];
        stored.unpack(v, piece);
        out.put(v, r * columns + first + at.column * 4);
      });
}

// blocks: of the launches for all parts
ALPHA_ENTRY(concat_planes, (THREADS), (const void *x, const OperandHeader *header_of_x, void *y, OperandHeader *header,
                                       i64 columns, i64 first, int blocks, int *lost_ranges, const Walk w),
            PlaneWriter out(y, w.rows * columns, header);
            copy_rows(x, header_of_x, out, columns, first, w);
            out.finish(header, lost_ranges, blocks))

struct Elements {
  float *y;
  INLINE void put(const float (&v)[4], i64 i) const { store_floats(y + i, v); }
};
// behind a flag, or none
ALPHA_ENTRY(concat_stored, (THREADS), (const void *x, const OperandHeader *header_of_x, float *y, i64 columns,
                                       i64 first, const int *flag, const Walk w),
            if (flag && !*flag) return;
            copy_rows(x, header_of_x, Elements{y}, columns, first, w))
