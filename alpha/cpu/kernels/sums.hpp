// Sums over the rows of matrices, in an order that follows from the shape alone, whatever the number of threads.
//
// Rows are cut into parts, columns into blocks of WIDTH: a job is one block of one part of one matrix. Within it STEP
// rows are added as a tree, STEP such trees in one float chain, and what a BLOCK of rows has become is merged in double.
// So no float chain is longer than STEP, and the parts are merged in order.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "vec.hpp"

constexpr int64_t STEP = 8, BLOCK_ROWS = STEP * STEP, WIDTH = 512;
constexpr int64_t PART_ROWS = 4 * BLOCK_ROWS, MOST_PARTS = 64, KEPT = 4 << 20;

// How many rows a call of `add` takes: STEP, or one where fewer are left.
template <int64_t N>
using Rows = std::integral_constant<int64_t, N>;

// `outer` matrices of `rows` rows and `columns` columns.
struct Cut {
  int64_t outer, rows, columns, parts, blocks;

  Cut(int64_t outer, int64_t rows, int64_t columns)
      : outer(outer), rows(rows), columns(columns),
        parts(std::max<int64_t>(1, std::min(MOST_PARTS, rows / PART_ROWS))), blocks(ceil_div(columns, WIDTH)) {}

  int64_t start(int64_t part) const { return part_start(rows, part, parts); }
};

// Where a job works: the matrix, its columns [column, column + width), and the rows of its part.
struct Place {
  int64_t matrix, column, width, first, last;
};

template <int K>
struct Block {
  alignas(64) float sums[K][WIDTH];
};
template <int K>
struct Totals {
  double sums[K][WIDTH];
};

// What a block of rows adds to the totals of its part, and a part to those before it: a sum.
struct Plain {
  template <int K>
  static void add_block(Totals<K>& total, const Block<K>& block, const Place& place, int64_t, int64_t) {
    for (int k = 0; k < K; k++)
      for (int64_t c = 0; c < place.width; c++) total.sums[k][c] += block.sums[k][c];
  }
  template <int K>
  static void add_part(Totals<K>& total, const Totals<K>& part, const Place& place, int64_t, int64_t) {
    for (int k = 0; k < K; k++)
      for (int64_t c = 0; c < place.width; c++) total.sums[k][c] += part.sums[k][c];
  }
};

// add(Rows<n>, place, row, sums) adds n rows to float sums [K][WIDTH]. finish(place, sums) gets double sums [K][WIDTH].
template <int K, class Add, class Finish, class Merge>
void fold_rows(const Cut& cut, int threads, const Add& add, const Finish& finish, const Merge& merge) {
  const int64_t blocks = cut.outer * cut.blocks;
  const auto place_of = [&](int64_t block, int64_t part) {
    const int64_t column = block % cut.blocks * WIDTH;
    return Place{block / cut.blocks, column, std::min(WIDTH, cut.columns - column), cut.start(part),
                 cut.start(part + 1)};
  };
  // [block][part]. A fresh array, which the system clears, takes longer than many a sum: up to KEPT bytes stay.
  const int64_t count = cut.parts > 1 ? blocks * cut.parts : 0, bytes = count * sizeof(Totals<K>);
  std::vector<Totals<K>> many(bytes > KEPT ? count : 0);
  auto* parts = bytes > KEPT ? many.data() : reinterpret_cast<Totals<K>*>(scratch<10>(bytes / 4));
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t job = 0; job < blocks * cut.parts; job++) {
      const Place place = place_of(job / cut.parts, job % cut.parts);
      Totals<K> mine;
      Totals<K>& total = cut.parts > 1 ? parts[job] : mine;
      for (int k = 0; k < K; k++) std::fill_n(total.sums[k], place.width, 0.0);
      Block<K> block;
      for (int64_t first = place.first; first < place.last; first += BLOCK_ROWS) {
        for (int k = 0; k < K; k++) std::fill_n(block.sums[k], place.width, 0.0f);
        const int64_t last = std::min(place.last, first + BLOCK_ROWS);
        int64_t row = first;
        for (; row + STEP <= last; row += STEP) add(Rows<STEP>(), place, row, first, block.sums);
        for (; row < last; row++) add(Rows<1>(), place, row, first, block.sums);
        merge.add_block(total, block, place, first, last - first);
      }
      if (cut.parts == 1) finish(place, total.sums);
    }
    if (cut.parts > 1) {
#pragma omp for schedule(static)
      for (int64_t block = 0; block < blocks; block++) {
        Totals<K>& total = parts[block * cut.parts];
        for (int64_t part = 1; part < cut.parts; part++) {
          const Place place = place_of(block, part);
          merge.add_part(total, parts[block * cut.parts + part], place, place.first, place.last - place.first);
        }
        finish(place_of(block, 0), total.sums);
      }
    }
  }
}

// f(0) + .. + f(n - 1) as a tree; n is a power of two
template <int64_t N, class F>
INLINE auto tree(const F& f, int64_t first = 0) {
  if constexpr (N == 1) return f(first);
  else return tree<N / 2>(f, first) + tree<N / 2>(f, first + N / 2);
}

// ---- moments of columns --------------------------------------------------------------------------------------------
//
// Mean and squared distances from it, in one pass that does not cancel: values are shifted by the mean of some of their
// block before they are squared, and blocks are merged by Chan's formula.

// What the values of a channel have been: their mean, and m2 = sum((x - mean)^2). A block of rows comes as the sums of
// x - x0 and of its square, and x0, the mean of its first rows.
struct Moments {
  static void merge(double& mean, double& m2, int64_t before, double added_mean, double added_m2, int64_t added) {
    const double away = added_mean - mean, share = double(added) / double(before + added);
    mean += away * share;
    m2 += added_m2 + away * away * share * before;
  }
  static void add_block(Totals<3>& total, const Block<3>& block, const Place& place, int64_t first, int64_t rows) {
    const float* x0 = block.sums[2];
    const int64_t before = first - place.first;
    const double inverse = 1.0 / rows;
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const double sum = block.sums[0][c], shifted = sum * inverse;
      merge(total.sums[0][c], total.sums[1][c], before, x0[c] + shifted, block.sums[1][c] - sum * shifted, rows);
    }
  }
  static void add_part(Totals<3>& total, const Totals<3>& part, const Place& place, int64_t before, int64_t rows) {
    for (int64_t c = 0; c < place.width; c++)
      merge(total.sums[0][c], total.sums[1][c], before, part.sums[0][c], part.sums[1][c], rows);
  }
  // Of a channel in which a difference or its square has overflowed, or that holds a NaN or an infinity: as defined.
  static void plain(const float* x, int64_t rows, int64_t channels, double& mean, double& m2) {
    mean = m2 = 0;
    for (int64_t r = 0; r < rows; r++) mean += x[r * channels];
    mean /= rows;
    for (int64_t r = 0; r < rows; r++) m2 += (x[r * channels] - mean) * (x[r * channels] - mean);
  }
};

// Calls finish(matrix, channel, mean, m2) for every channel of `outer` matrices, from any thread.
template <class Finish>
void moments(const float* x, int64_t outer, int64_t rows, int64_t channels, int threads, const Finish& finish) {
  const auto add = [=](auto n, const Place& place, int64_t row, int64_t first, float(*sums)[WIDTH]) {
    const float* from = x + (place.matrix * rows + row) * channels + place.column;
    float *sum = sums[0], *squares = sums[1], *x0 = sums[2];
    if (row == first) {
#pragma omp simd
      for (int64_t c = 0; c < place.width; c++)
        x0[c] = tree<n.value>([&](int64_t k) { return from[k * channels + c]; }) * (1.0f / n.value);
    }
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++) {
      const auto away = [&](int64_t k) { return from[k * channels + c] - x0[c]; };
      sum[c] += tree<n.value>(away);
      squares[c] += tree<n.value>([&](int64_t k) { return away(k) * away(k); });
    }
  };
  const auto each = [=](const Place& place, const double(*totals)[WIDTH]) {
    for (int64_t k = 0; k < place.width; k++) {
      const int64_t c = place.column + k;
      double mean = totals[0][k], m2 = totals[1][k];
      if (!std::isfinite(m2)) Moments::plain(x + place.matrix * rows * channels + c, rows, channels, mean, m2);
      finish(place.matrix, c, mean, m2);
    }
  };
  fold_rows<3>(Cut(outer, rows, channels), threads, add, each, Moments());
}
