// Winograd's transforms of tiles, a vector of channels at a time, by the table of tile_transform.py.
//
// Points are 0, Q pairs +-p and infinity. Rows of a pair share their even and their odd part.
#pragma once

#include "../vec.hpp"

#define MEMBER inline __attribute__((always_inline))

// Table: Z (Q), then per pair Q_k (Q - 1), p, p^i (M), p^j / N (R), then 1 / N of point 0.
template <int Q, int M_, int R_>
struct Transform {
  static constexpr int M = M_, R = R_, N = 2 * Q + 2;
  static_assert(N == M + R - 1, "points");
  const float* table;

  const float* pair(int k) const { return table + Q + k * (Q + M + R); }

  // v = B^T d
  MEMBER void inputs(const vfloat* d, vfloat* v) const {
    v[0] = d[2 * Q];
    v[N - 1] = d[2 * Q + 1];
    UNROLL for (int j = 0; j < Q; j++) {
      v[0] += table[j] * d[2 * j];
      v[N - 1] += table[j] * d[2 * j + 1];
    }
    UNROLL for (int k = 0; k < Q; k++) {
      const float* c = pair(k);
      vfloat even = d[2 * Q], odd = d[2 * Q - 1];
      UNROLL for (int j = 0; j < Q - 1; j++) {
        even += c[j] * d[2 * j + 2];
        odd += c[j] * d[2 * j + 1];
      }
      v[1 + 2 * k] = even + c[Q - 1] * odd;
      v[2 + 2 * k] = even - c[Q - 1] * odd;
    }
  }

  // Values at all points of the polynomial with L coefficients a, scaled by the powers at `at` of each pair.
  template <int L>
  MEMBER void evaluate(const vfloat* a, vfloat* v, int at) const {
    v[0] = a[0];
    v[N - 1] = a[L - 1];
    UNROLL for (int k = 0; k < Q; k++) {
      const float* power = pair(k) + at;
      vfloat even = power[0] * a[0], odd = power[1] * a[1];
      UNROLL for (int j = 2; j < L; j += 2) even += power[j] * a[j];
      UNROLL for (int j = 3; j < L; j += 2) odd += power[j] * a[j];
      v[1 + 2 * k] = even + odd;
      v[2 + 2 * k] = even - odd;
    }
  }

  // The transpose of evaluate.
  template <int L>
  MEMBER void combine(const vfloat* v, vfloat* a, int at, float first) const {
    UNROLL for (int j = 0; j < L; j++) a[j] = vfloat{};
    a[0] = first * v[0];
    a[L - 1] += v[N - 1];
    UNROLL for (int k = 0; k < Q; k++) {
      const float* power = pair(k) + at;
      const vfloat even = v[1 + 2 * k] + v[2 + 2 * k], odd = v[1 + 2 * k] - v[2 + 2 * k];
      UNROLL for (int j = 0; j < L; j++) a[j] += power[j] * (j % 2 ? odd : even);
    }
  }

  float first() const { return table[Q + Q * (Q + M + R)]; }

  MEMBER void filters(const vfloat* w, vfloat* u) const {  // u = G w
    evaluate<R>(w, u, Q + M);
    u[0] = first() * w[0];
  }
  MEMBER void outputs(const vfloat* v, vfloat* y) const { combine<M>(v, y, Q, 1.0f); }              // y = A^T v
  MEMBER void outputs_t(const vfloat* g, vfloat* v) const { evaluate<M>(g, v, Q); }                 // v = A g
  MEMBER void filters_t(const vfloat* v, vfloat* w) const { combine<R>(v, w, Q + M, first()); }     // w = G^T v
};

// out[B][B] = row transform along both axes of in[A][A].
template <int A, int B, class Row>
INLINE void both_axes(const vfloat (&in)[A][A], vfloat (&out)[B][B], Row row) {
  vfloat half[B][A];
  for (int j = 0; j < A; j++) {
    vfloat from[A], to[B];
    UNROLL for (int i = 0; i < A; i++) from[i] = in[i][j];
    row(from, to);
    UNROLL for (int i = 0; i < B; i++) half[i][j] = to[i];
  }
  for (int i = 0; i < B; i++) row(half[i], out[i]);
}
