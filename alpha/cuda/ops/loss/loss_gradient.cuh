// The gradient of softmax cross-entropy with respect to a row of logits: loss.cu has the equation.
#pragma once
#include "lanes.cuh"
#include "reduce.cuh"

__device__ __forceinline__ i64 label_of(const void *labels, int long_labels, i64 row) {
  return long_labels ? static_cast<const i64 *>(labels)[row] : static_cast<const int *>(labels)[row];
}

template <class T> struct LossRows {
  const T *g;  // of row r: g[r * g_step]
  int g_step;
  const T *logits;
  const void *labels;
  int long_labels;
  const float *stats;  // (3, rows): the largest logit, lse - that, 1 - softmax at the label
  i64 rows, classes;
  int width;  // threads of a row
  float smoothing, scale;
};

// What the thread has of a row: put(v, i) gets N elements, the first of which is element i of the gradient.
template <class T, int N, class Put>
__device__ __forceinline__ void gradient_of_row(const LossRows<T> &t, i64 row, const Put &put) {
  constexpr int AHEAD = 4;
  const T *x = t.logits + row * t.classes;
  const i64 label = label_of(t.labels, t.long_labels, row);
  const float off = t.smoothing / t.classes, largest = t.stats[row], log_sum = t.stats[t.rows + row],
              at_label = t.smoothing - t.stats[2 * t.rows + row];
  const float factor = 0 <= label && label < t.classes ? to_float(t.g[row * t.g_step]) * t.scale : NAN;
  const i64 step = i64(t.width) * N;
  for (i64 first = threadIdx.x % t.width * N; first < t.classes; first += AHEAD * step) {
    Lanes<N, T> pieces[AHEAD];
#pragma unroll
    for (int p = 0; p < AHEAD; p++)
      if (first + p * step < t.classes) pieces[p] = load<N>(x + first + p * step);
#pragma unroll
    for (int p = 0; p < AHEAD; p++) {
      const i64 c = first + p * step;
      if (c >= t.classes) break;
      float v[N];
#pragma unroll
      for (int k = 0; k < N; k++) v[k] = exp_for<T>(value(pieces[p], k) - largest - log_sum);
      if (c <= label && label < c + N) {
#pragma unroll
        for (int k = 0; k < N; k++)
          if (k == static_cast<int>(label - c)) v[k] = at_label;
      }
#pragma unroll
      for (int k = 0; k < N; k++) v[k] = factor * (v[k] - off);
      put(v, row * t.classes + c);
    }
  }
}
