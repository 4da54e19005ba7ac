// What:    y[n, o] = bias[o] + sum_i x[n, i] * t[i, o] over the x[n, i] that are not zero, then optionally relu, for few
//          rows of x: what an x behind a relu does not need of t is not read.
// Layout:  x (N, I), t (I, O) = the transposed weights of a linear layer, y (N, O).
// Zeros:   of x; -0 is a zero, NaN is not. A zero times an infinity or a NaN in t is not made.
// Tile:    a job has COLUMNS outputs. Of PART inputs each row of x takes those rows of t that it needs, four at a time;
//          the rows of x after the first find them in cache. Sums of SUM inputs begin at zero, in the order of inputs.
#include "lists.hpp"

namespace {

constexpr int64_t COLUMNS = 512, PART = 32, SUM = 512;

// sum[o] += values[k] * rows[k][o] over k < K, for o < n.
template <int K>
INLINE void add_rows(const float* const* rows, const float* values, int64_t n, float* sum) {
  vfloat value[K];
  UNROLL for (int k = 0; k < K; k++) value[k] = broadcast(values[k]);
  int64_t o = 0;
  for (; o + LANES <= n; o += LANES) {
    vfloat acc = load(sum + o);
    UNROLL for (int k = 0; k < K; k++) acc += value[k] * load(rows[k] + o);
    store(sum + o, acc);
  }
  if (o < n) {
    vfloat acc = load(sum + o);
    UNROLL for (int k = 0; k < K; k++) acc += value[k] * load_part(rows[k] + o, n - o);
    store(sum + o, acc);
  }
}

// Adds what `inputs` elements of one row of x bring to n sums; t points to the first row of t and the first sum.
void add_part(const float* x, int64_t inputs, const float* t, int64_t outputs, int64_t n, float* sum) {
  int32_t index[PART + LANES];
  float value[PART + LANES];
  const int64_t filled = append_nonzeros(x, inputs, 0, index, value);
  for (int64_t k = 0; k < filled; k += 4) {
    const float* rows[4];
    const int64_t count = std::min<int64_t>(4, filled - k);
    for (int64_t j = 0; j < count; j++) rows[j] = t + index[k + j] * outputs;
    switch (count) {
      case 4: add_rows<4>(rows, value + k, n, sum); break;
      case 3: add_rows<3>(rows, value + k, n, sum); break;
      case 2: add_rows<2>(rows, value + k, n, sum); break;
      default: add_rows<1>(rows, value + k, n, sum);
    }
  }
}

}  // namespace

EXPORT void linear_sparse(const float* x, const float* t, const float* bias, float* y, int64_t rows, int64_t inputs,
                          int64_t outputs, int cut) {
#pragma omp parallel for schedule(static) num_threads(team(rows * inputs * outputs, 200000))
  for (int64_t job = 0; job < ceil_div(outputs, COLUMNS); job++) {
    const int64_t first = job * COLUMNS, n = std::min(COLUMNS, outputs - first);
    float* sums = scratch<9>(rows * COLUMNS);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < n; o++) y[r * outputs + first + o] = bias ? bias[first + o] : 0;
    for (int64_t begin = 0; begin < inputs; begin += SUM) {
      memset(sums, 0, rows * COLUMNS * sizeof(float));
      const int64_t end = std::min(inputs, begin + SUM);
      for (int64_t i = begin; i < end; i += PART)
        for (int64_t r = 0; r < rows; r++)
          add_part(x + r * inputs + i, std::min(PART, end - i), t + i * outputs + first, outputs, n, sums + r * COLUMNS);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < n; o++) y[r * outputs + first + o] += sums[r * COLUMNS + o];
    }
    if (!cut) continue;
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < n; o++) y[r * outputs + first + o] = relu(y[r * outputs + first + o]);
  }
}
