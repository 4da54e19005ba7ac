// What:     elements that move and do not change: boxes, transposed matrices, rows by their numbers; the gradient of
//           the last, a sum in a fixed order; and orders. Any number of blocks does; the callers ask for one pass
// Layout:   C-contiguous. Moved is a unit of 1, 2, 4, 8 or 16 bytes: an element, or as many as stay together.
// Requires: tensors aligned to the unit
// Threads:  a unit each, neighbours beside each other in what is written
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): concat 94 %, NHWC to NCHW 75 %
#include "elementwise.cuh"
#include "moments.cuh"

constexpr int UNITS = 4;  // independent units of a thread

// to[read(i, unit)] = unit, as read(i, unit) has filled it, for the n units of what is moved.
// Threads: UNITS units per thread, THREADS apart.
template <class T, class Read> INLINE void move(T *to, i64 n, const Read &read) {
  constexpr i64 BLOCK = THREADS * UNITS;
  for (i64 first = blockIdx.x * BLOCK + threadIdx.x; first < n; first += gridDim.x * BLOCK) {
    T unit[UNITS];
    i64 target[UNITS];
    UNROLL for (int k = 0; k < UNITS; k++) {
      if (first + k * THREADS >= n) break;
      target[k] = read(first + k * THREADS, unit[k]);
    }
    UNROLL for (int k = 0; k < UNITS; k++)
      if (first + k * THREADS < n) to[target[k]] = unit[k];
  }
}

// to[place 1 of i] = from[place 0 of i] for the n units of a box, which lies in both with strides of its own.
template <class T> INLINE void copy_box(const T *from, T *to, i64 n, const Layout<2> &layout) {
  move(to, n, [&](i64 i, T &unit) {
    i64 place[2];
    layout.locate(i, place);
    unit = from[place[0]];
    return place[1];
  });
}

// A box in which another one lies: of each axis the units [low, high).
struct Frame {
  Layout<1> whole;  // with the strides of the inner box
  i64 low[RANK], high[RANK];

  // Returns whether unit i of the whole is in the inner box, and where: counted from where unit 0 of the whole would be.
  INLINE bool inside(i64 i, i64 &place) const {
    bool found = true;
    place = 0;
    UNROLL_BY(1) for (int axis = 0; axis < whole.rank; axis++) {
      const i64 rest = axis + 1 < whole.rank ? __umul64hi(i, whole.magic[axis]) >> whole.shift[axis] : 0;
      const i64 at = i - rest * whole.size[axis];
      found = found && at >= low[axis] && at < high[axis];
      place += at * whole.stride[0][axis];
      i = rest;
    }
    return found;
  }
};

// to = a box of n units with `from` inside, and around it the bits of one number, `pattern` of 8 bytes.
template <class T> INLINE void pad(const T *from, T *to, u64 pattern, i64 n, const Frame &frame) {
  const u64 patterns[2] = {pattern, pattern};
  T around;
  memcpy(&around, patterns, sizeof(T));
  move(to, n, [&](i64 i, T &unit) {
    i64 place;
    unit = frame.inside(i, place) ? from[place] : around;
    return i;
  });
}

// y[b, c, r] = x[b, r, c].  Threads: a block per tile of TILE x TILE; both sides are read and written along rows.
template <int TILE, class T> INLINE void transpose(const T *x, T *y, i64 batches, i64 rows, i64 columns) {
  __shared__ T tile[TILE][TILE + 1];  // [row][column], a column more against bank conflicts
  constexpr int WARPS = THREADS / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 across = (columns + TILE - 1) / TILE, down = (rows + TILE - 1) / TILE;
  for (i64 k = blockIdx.x; k < batches * down * across; k += gridDim.x) {
    const i64 batch = k / (across * down), row = k / across % down * TILE, column = k % across * TILE;
    const T *from = x + (batch * rows + row) * columns + column;
    T *to = y + (batch * columns + column) * rows + row;
    UNROLL for (int r = warp; r < TILE; r += WARPS)
      UNROLL for (int c = lane; c < TILE; c += 32)
        if (row + r < rows && column + c < columns) tile[r][c] = from[r * columns + c];
    __syncthreads();
    UNROLL for (int c = warp; c < TILE; c += WARPS)
      UNROLL for (int r = lane; r < TILE; r += 32)
        if (row + r < rows && column + c < columns) to[c * rows + r] = tile[r][c];
    __syncthreads();
  }
}

// i / n by what `division` of pointwise/layout.py gives for n.
INLINE i64 quotient(i64 i, i64 n, u64 magic, i64 shift) { return n == 1 ? i : __umul64hi(i, magic) >> shift; }

// y[i, u] = x[index[i], u] for rows of `units` units; an index outside of x makes floats NaN, else it is the nearest row.
// magic, shift: of units.
template <class T>
INLINE void take(const T *x, const i64 *index, T *y, i64 n, i64 units, u64 magic, int shift, i64 rows, int nan) {
  move(y, n, [&](i64 i, T &unit) {
    const i64 place = quotient(i, units, magic, shift);
    const i64 row = index[place], inside = min(max(row, i64(0)), rows - 1);
    unit = x[i + (inside - place) * units];
    if (row != inside && nan) memset(&unit, 255, sizeof(T));
    return i;
  });
}

constexpr int PARTS = 8;  // of a launch; alpha/cuda/ops/shape/concat.py knows it too
template <class T> struct Parts {
  const T *from[PARTS];
  i64 first[PARTS + 1];  // column of the whole where a part begins, and where the last one ends
  u64 magic;             // of the columns of all parts
  i64 shift;
};

// y[r, first[p] + c] = from[p][r, c] for the n units of parts that lie side by side in the rows of y.
template <class T> INLINE void join(const Parts<T> &parts, T *y, i64 n, i64 columns, i64 pitch) {
  move(y, n, [&](i64 i, T &unit) {
    const i64 row = quotient(i, columns, parts.magic, parts.shift);
    const i64 column = parts.first[0] + i - row * columns;
    int p = 0;
    while (column >= parts.first[p + 1]) p++;
    unit = parts.from[p][row * (parts.first[p + 1] - parts.first[p]) + column - parts.first[p]];
    return row * pitch + column;
  });
}

#define MOVES(size, T, TILE) \
  ALPHA_ENTRY(copy_box_##size, (THREADS), (const T *from, T *to, i64 n, const __grid_constant__ Layout<2> layout), \
              copy_box(from, to, n, layout)) \
  ALPHA_ENTRY(join_##size, (THREADS), (const __grid_constant__ Parts<T> parts, T *y, i64 n, i64 columns, i64 pitch), \
              join(parts, y, n, columns, pitch)) \
  ALPHA_ENTRY(pad_##size, (THREADS), (const T *from, T *to, u64 pattern, i64 n, const __grid_constant__ Frame frame), \
              pad(from, to, pattern, n, frame)) \
  ALPHA_ENTRY(transpose_##size, (THREADS), (const T *x, T *y, i64 batches, i64 rows, i64 columns), \
              transpose<TILE>(x, y, batches, rows, columns)) \
  ALPHA_ENTRY(take_##size, (THREADS), (const T *x, const i64 *index, T *y, i64 n, i64 units, u64 magic, int shift, \
              i64 rows, int nan), take(x, index, y, n, units, magic, shift, rows, nan))
MOVES(1, u8, 64)
MOVES(2, u16, 64)
MOVES(4, u32, 32)
MOVES(8, uint2, 32)
MOVES(16, uint4, 32)

// dx[r, c] = sum of g[i, c] over the i with index[i] = r, added in the order of i, with what rounding leaves out.
// Threads: a warp per row r and 32 * COLUMNS columns. It looks through all indices, 32 * AHEAD at a time: a ballot
// tells every lane which of them are r. So the order is fixed, and no element is written twice.
constexpr int COLUMNS = 4, AHEAD = 4;
template <class T> INLINE void take_grad(const T *g, const i64 *index, T *dx, i64 count, i64 rows, i64 columns) {
  const int lane = threadIdx.x % 32;
  const i64 parts = (columns + 32 * COLUMNS - 1) / (32 * COLUMNS), warps = static_cast<i64>(gridDim.x) * THREADS / 32;
  for (i64 warp = (static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x) / 32; warp < rows * parts; warp += warps) {
    const i64 row = warp / parts, column = warp % parts * (32 * COLUMNS) + lane;
    ExactSum sum[COLUMNS] = {};
    for (i64 first = 0; first < count; first += 32 * AHEAD) {
      i64 mine[AHEAD];
      UNROLL for (int k = 0; k < AHEAD; k++) {
        const i64 i = first + k * 32 + lane;
        mine[k] = i < count ? index[i] : -1;
      }
      UNROLL for (int k = 0; k < AHEAD; k++)
        for (u32 found = __ballot_sync(~0u, mine[k] == row); found; found &= found - 1) {
          const i64 i = first + k * 32 + __ffs(found) - 1;
          UNROLL for (int j = 0; j < COLUMNS; j++)
            if (column + j * 32 < columns) sum[j].add(to_float(g[i * columns + column + j * 32]));
        }
    }
    UNROLL for (int j = 0; j < COLUMNS; j++)
      if (column + j * 32 < columns) dx[row * columns + column + j * 32] = from_float<T>(sum[j].value());
  }
}

#define TAKE_GRAD(T, dtype) \
  ALPHA_ENTRY(take_grad_##dtype, (THREADS), (const T *g, const i64 *index, T *dx, i64 count, i64 rows, i64 columns), \
              take_grad(g, index, dx, count, rows, columns))
FLOAT_KERNELS(TAKE_GRAD)

// y[r, k] = which element of row r is the k-th in order; equals keep their order, NaN counts as the largest.
// Floats compare as float32; integers in a type that has them all.
// Threads: an element each, which counts the elements of its row that come before it: columns steps, so for rows of up to
//          some ten thousand columns
template <class C> INLINE bool below(C a, C b) { return a < b; }
template <> INLINE bool below(float a, float b) { return a < b || (b != b && a == a); }

template <class C, class T> INLINE void argsort(const T *x, i64 *y, i64 n, i64 columns, int descending) {
  for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < n; i += static_cast<i64>(gridDim.x) * THREADS) {
    const i64 column = i % columns;
    const T *row = x + (i - column);
    const C mine = widen<C>(row[column]);
    i64 place = 0;
    for (i64 k = 0; k < columns; k++) {
      const C other = widen<C>(row[k]);
      const bool less = below(other, mine), more = below(mine, other);
      place += (descending ? more : less) || (k < column && !less && !more);
    }
    y[i - column + place] = column;
  }
}

#define ARGSORT(T, dtype) ARGSORT_AS(float, T, dtype)
#define ARGSORT_AS(C, T, dtype) \
  ALPHA_ENTRY(argsort_##dtype, (THREADS), (const T *x, i64 *y, i64 n, i64 columns, int descending), \
              argsort<C>(x, y, n, columns, descending))
FLOAT_KERNELS(ARGSORT)
ARGSORT_AS(int, int, int32)
ARGSORT_AS(i64, i64, int64)
ARGSORT_AS(int, u8, uint8)
