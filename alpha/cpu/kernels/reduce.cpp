// What:    out[o, i] = sum over r of x[o, r, i], in double, rounded once; and the sum of squares
// Layout:  x (outer, count, inner), contiguous; vectors run over i. Where inner is small, several rows are taken as one
//          wide row, so that vectors are filled; what is left over is added at the end.
// Sums:    sums.hpp; of small matrices, and of squares, in double throughout.
#include "sums.hpp"

namespace {

constexpr int64_t ALONE_BELOW = 16384, SMALL = 256, FILLED = 64, CHUNK = 4096, WIDE = 4096;

struct Result {
  float* narrow;  // one of them is null
  double* wide;

  void put(int64_t at, double sum) const {
    if (narrow) narrow[at] = float(sum);
    else wide[at] = sum;
  }
};

void sum_small(const float* x, const Result& out, int64_t outer, int64_t count, int64_t inner) {
#pragma omp parallel for schedule(static) num_threads(team(outer * count * inner, ALONE_BELOW))
  for (int64_t o = 0; o < outer; o++) {
    const float* matrix = x + o * count * inner;
    for (int64_t i = 0; i < inner; i++) {
      double sum = 0;
      for (int64_t r = 0; r < count; r++) sum += matrix[r * inner + i];
      out.put(o * inner + i, sum);
    }
  }
}

// Few rows of many columns: a float chain of trees, as of a block of sums.hpp, in wider blocks
template <int64_t N>
INLINE void add_rows(const float* from, int64_t step, float* to, int64_t width, bool first) {
#pragma omp simd
  for (int64_t c = 0; c < width; c++) {
    const float sum = tree<N>([=](int64_t k) { return from[k * step + c]; });
    to[c] = (first ? 0.0f : to[c]) + sum;
  }
}
void sum_short(const float* x, float* out, int64_t outer, int64_t count, int64_t inner) {
  const int64_t blocks = ceil_div(inner, WIDE);
#pragma omp parallel for schedule(static) num_threads(team(outer * count * inner, ALONE_BELOW))
  for (int64_t job = 0; job < outer * blocks; job++) {
    const int64_t column = job % blocks * WIDE, width = std::min(WIDE, inner - column);
    const float* from = x + job / blocks * count * inner + column;
    float* to = out + job / blocks * inner + column;
    int64_t r = 0;
    for (; r + STEP <= count; r += STEP) add_rows<STEP>(from + r * inner, inner, to, width, r == 0);
    for (; r < count; r++) add_rows<1>(from + r * inner, inner, to, width, r == 0);
  }
}

}  // namespace

EXPORT void sum_middle(const float* x, float* narrow, double* wide, int64_t outer, int64_t count, int64_t inner) {
  const Result out = {narrow, wide};
  if (count * inner <= SMALL) return sum_small(x, out, outer, count, inner);
  if (narrow && count <= BLOCK_ROWS && inner >= FILLED) return sum_short(x, narrow, outer, count, inner);
  const int64_t fold = std::max<int64_t>(1, std::min(count, FILLED / inner)), columns = fold * inner;
  const Cut cut(outer, count / fold, columns);
  const auto add = [=](auto rows, const Place& place, int64_t row, int64_t, float(*sums)[WIDTH]) {
    const float* from = x + place.matrix * count * inner + row * columns + place.column;
    float* s = sums[0];
#pragma omp simd
    for (int64_t c = 0; c < place.width; c++)
      s[c] += tree<rows.value>([=](int64_t k) { return from[k * columns + c]; });
  };
  const auto finish = [=](const Place& place, const double(*sums)[WIDTH]) {
    const int64_t width = fold > 1 ? inner : place.width;
    for (int64_t c = 0; c < width; c++) {
      double sum = 0;
      for (int64_t k = 0; k < fold; k++) sum += sums[0][k * inner + c];
      for (int64_t r = count / fold * fold; r < count; r++) sum += x[(place.matrix * count + r) * inner + c];
      out.put(place.matrix * inner + place.column + c, sum);
    }
  };
  fold_rows<1>(cut, team(outer * count * inner, ALONE_BELOW), add, finish, Plain());
}

// Over `count` arrays: x[k] has sizes[k] elements.
EXPORT double sum_of_squares(const float* const* x, const int64_t* sizes, int64_t count) {
  double total = 0;
  for (int64_t k = 0; k < count; k++) {
    const int64_t chunks = ceil_div(sizes[k], CHUNK);
    std::vector<double> sums(chunks);
#pragma omp parallel for schedule(static) num_threads(team(sizes[k], 2 * ALONE_BELOW))
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const float* from = x[k] + chunk * CHUNK;
      const int64_t n = std::min(CHUNK, sizes[k] - chunk * CHUNK);
      double sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < n; i++) sum += double(from[i]) * from[i];
      sums[chunk] = sum;
    }
    for (const double sum : sums) total += sum;
  }
  return total;
}
