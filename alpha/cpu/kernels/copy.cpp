// What:    y[at_y(i)] = x[at_x(i)] for every index i of a box: padding, slices, permutations, repetition; concatenation
// Layout:  any strides. Axes are merged, the innermost of y comes first. Where runs of x lie along another axis than those
//          of y, tiles of the two axes are transposed, in registers if elements have 4 bytes.
// Threads: runs, or strips of tiles; every element is written once.
#include "vec.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 65536, TILE = 16;

// As alpha/cpu/shape.py packs it; strides are in elements.
struct Box {
  int64_t rank, size;
  const int64_t *sizes, *to, *from;

  explicit Box(const int64_t* table)
      : rank(table[0]), size(table[1]), sizes(table + 2), to(sizes + rank), from(to + rank) {}
};

// Walks through the axes from `first` on, but for `skipped`: where an index has its elements in y and x.
struct Walk {
  const Box& box;
  int64_t first, skipped, at[64], to = 0, from = 0;

  Walk(const Box& box, int64_t first, int64_t skipped, int64_t index) : box(box), first(first), skipped(skipped) {
    for (int64_t k = first; k < box.rank; k++) {
      at[k] = k == skipped ? 0 : index % box.sizes[k];
      if (k != skipped) index /= box.sizes[k];
      to += at[k] * box.to[k];
      from += at[k] * box.from[k];
    }
  }
  // Goes `count` steps along axis 1, which has as many left
  void skip(int64_t count) {
    at[1] += count;
    to += count * box.to[1];
    from += count * box.from[1];
  }
  void next() {
    for (int64_t k = first; k < box.rank; k++) {
      if (k == skipped) continue;
      to += box.to[k];
      from += box.from[k];
      if (++at[k] < box.sizes[k]) return;
      to -= at[k] * box.to[k];
      from -= at[k] * box.from[k];
      at[k] = 0;
    }
  }
};

template <class T>
INLINE void copy_run(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n) {
  if (to_step == 1 && from_step == 1) copy_elements(to, from, n);
  else if (to_step == 1 && from_step == -1)
    for (int64_t i = 0; i < n; i++) to[i] = from[-i];
  else if (to_step == 1 && from_step == 0)
    std::fill_n(to, n, *from);
  else if (to_step == 1)
    for (int64_t i = 0; i < n; i++) to[i] = from[i * from_step];
  else
    for (int64_t i = 0; i < n; i++) to[i * to_step] = from[i * from_step];
}

// `count` runs, as far apart as elements of axis 1
template <class T>
INLINE void copy_neighbours(const Box& box, T* to, const T* from, int64_t count) {
  const int64_t n = box.sizes[0], to_step = count > 1 ? box.to[1] : 0, from_step = count > 1 ? box.from[1] : 0;
  if (box.to[0] == 1 && box.from[0] == 1) {
    for (int64_t k = 0; k < count; k++) copy_elements(to + k * to_step, from + k * from_step, n);
    return;
  }
  for (int64_t k = 0; k < count; k++)
    copy_run(to + k * to_step, box.to[0], from + k * from_step, box.from[0], n);
}

template <class T>
void copy_runs(const Box& box, T* y, const T* x, int threads) {
  const int64_t runs = box.size / box.sizes[0];
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t part = 0; part < threads; part++) {
    const int64_t begin = part_start(runs, part, threads), end = part_start(runs, part + 1, threads);
    Walk walk(box, 1, -1, begin);
    for (int64_t run = begin, count; run < end; run += count, walk.next()) {  // neighbours along axis 1 together
      count = box.rank > 1 ? std::min(end - run, box.sizes[1] - walk.at[1]) : 1;
      copy_neighbours(box, y + walk.to, x + walk.from, count);
      if (count > 1) walk.skip(count - 1);
    }
  }
}

// to[j * to_step + i] = from[i * from_step + j], for i below n and j below m, both at most TILE
template <class T>
INLINE void transpose_tile(T* to, int64_t to_step, const T* from, int64_t from_step, int64_t n, int64_t m) {
  if constexpr (sizeof(T) == 4) {
    if (n == TILE && m == TILE) {
      const float* source = reinterpret_cast<const float*>(from);
      float* target = reinterpret_cast<float*>(to);
      for (int64_t i = 0; i < TILE; i += LANES)
        for (int64_t j = 0; j < TILE; j += LANES)
          transpose(source + i * from_step + j, from_step, LANES, target + j * to_step + i, to_step);
      return;
    }
  }
  for (int64_t j = 0; j < m; j++)
    for (int64_t i = 0; i < n; i++) to[j * to_step + i] = from[i * from_step + j];
}

// y runs along axis 0, x along `axis`
template <class T>
void copy_transposed(const Box& box, int64_t axis, T* y, const T* x, int threads) {
  const int64_t n = box.sizes[0], m = box.sizes[axis], strips = ceil_div(m, TILE);
  const int64_t jobs = box.size / (n * m) * strips;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t job = 0; job < jobs; job++) {
    const Walk walk(box, 1, axis, job / strips);
    const int64_t j = job % strips * TILE, columns = std::min(TILE, m - j);
    T* to = y + walk.to + j * box.to[axis];
    const T* from = x + walk.from + j;
    for (int64_t i = 0; i < n; i += TILE)
      transpose_tile(to + i, box.to[axis], from + i * box.from[0], box.from[0], std::min(TILE, n - i), columns);
  }
}

template <class T>
void copy(const Box& box, void* y, const void* x) {
  const int threads = team(box.size * static_cast<int64_t>(sizeof(T)) / 4, ALONE_BELOW);
  int64_t axis = 0;
  if (box.to[0] == 1 && box.from[0] != 1)
    for (int64_t k = 1; k < box.rank; k++)
      if (box.from[k] == 1) axis = k;
  if (axis) copy_transposed(box, axis, static_cast<T*>(y), static_cast<const T*>(x), threads);
  else copy_runs(box, static_cast<T*>(y), static_cast<const T*>(x), threads);
}

}  // namespace

EXPORT void copy_box(const int64_t* table, void* y, const void* x, int itemsize) {
  const Box box(table);
  if (itemsize == 1) copy<uint8_t>(box, y, x);
  else if (itemsize == 2) copy<uint16_t>(box, y, x);
  else if (itemsize == 4) copy<uint32_t>(box, y, x);
  else copy<uint64_t>(box, y, x);
}

// Row r of y is row r of each of `count` arrays in turn, whose rows have widths[k] elements of 4 bytes. In one pass: the
// lines of y that two arrays share are written once.
EXPORT void concat_rows(const void* const* x, const int64_t* widths, int64_t count, uint32_t* y, int64_t rows) {
  int64_t width = 0;
  for (int64_t k = 0; k < count; k++) width += widths[k];
#pragma omp parallel for schedule(static) num_threads(team(rows * width, ALONE_BELOW))
  for (int64_t r = 0; r < rows; r++) {
    uint32_t* to = y + r * width;
    for (int64_t k = 0; k < count; to += widths[k++])
      copy_elements(to, static_cast<const uint32_t*>(x[k]) + r * widths[k], widths[k]);
  }
}
