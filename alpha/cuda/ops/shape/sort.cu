// What:     y[r, k] = which element of row r is the k-th in order; equals keep their order, NaN counts as the largest
// Layout:   x and y (rows, columns), C-contiguous
// Numbers:  floats compare as float32; integers in a type that has them all
// Requires: nothing
// Threads:  an element each, which counts the elements of its row that come before it: columns steps, so for rows of
//           up to some ten thousand columns
// Measured: not by itself
#include "elementwise.cuh"

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
