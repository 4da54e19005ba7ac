// What:    y[n, o] = bias[o] + sum_i x[n, i] * w[o, i], then optionally relu, for a batch too small to repay packing w.
// Layout:  x (N, I), w (O, I), both read along I as they are: nothing is packed, so each weight is read once.
// Zeros:   none to skip.  Requires: a 1x1 filter on 1x1 maps.
// Tile:    up to 4 rows of x by up to 3 rows of w; LANES partial sums each, which are added up in double every CHUNK
//          products, in a fixed order.
#include "../conv.hpp"

namespace {

constexpr int X_ROWS = 4, W_ROWS = 3;
constexpr int64_t CHUNK = 64 * LANES;

template <int P, int Q>
void dot_tile(const float* x, const float* w, int64_t depth, int64_t outputs, const float* bias, float* y, bool cut) {
  double sums[P][Q] = {};
  for (int64_t first = 0; first < depth; first += CHUNK) {
    vfloat acc[P][Q] = {};
    for (int64_t i = first; i < std::min(depth, first + CHUNK); i += LANES) {
      vfloat a[P];
      const int64_t left = depth - i;
      UNROLL for (int p = 0; p < P; p++) {
        a[p] = left >= LANES ? load(x + p * depth + i) : load_part(x + p * depth + i, left);
      }
      UNROLL for (int q = 0; q < Q; q++) {
        const vfloat b = left >= LANES ? load(w + q * depth + i) : load_part(w + q * depth + i, left);
        UNROLL for (int p = 0; p < P; p++) acc[p][q] += a[p] * b;
      }
    }
    UNROLL for (int p = 0; p < P; p++) UNROLL for (int q = 0; q < Q; q++) sums[p][q] += sum_lanes(acc[p][q]);
  }
  for (int p = 0; p < P; p++) {
    for (int q = 0; q < Q; q++) {
      const float sum = float(sums[p][q]) + (bias ? bias[q] : 0);
      y[p * outputs + q] = cut ? relu(sum) : sum;
    }
  }
}

template <int P>
void dot_row(const Operands& op, const float* x, int64_t depth, int64_t outputs, int64_t o, float* y) {
  const float* w = op.w + o * depth;
  const float* bias = op.bias ? op.bias + o : nullptr;
  const int64_t left = outputs - o;
  if (left >= 3) return dot_tile<P, 3>(x, w, depth, outputs, bias, y + o, op.relu);
  if (left == 2) return dot_tile<P, 2>(x, w, depth, outputs, bias, y + o, op.relu);
  dot_tile<P, 1>(x, w, depth, outputs, bias, y + o, op.relu);
}

}  // namespace

void linear_dot(const Geometry& g, const Operands& op) {
  const int64_t depth = g.in_c, outputs = g.out_c, x_tiles = ceil_div(g.n, X_ROWS), w_tiles = ceil_div(outputs, W_ROWS);
#pragma omp parallel for schedule(static) num_threads(team(g.multiply_adds(), 200000))
  for (int64_t job = 0; job < w_tiles * x_tiles; job++) {
    const int64_t o = job / x_tiles * W_ROWS, n = job % x_tiles * X_ROWS;
    const float* x = op.in + n * depth;
    float* y = op.out + n * outputs;
    switch (std::min<int64_t>(X_ROWS, g.n - n)) {
      case 4: dot_row<4>(op, x, depth, outputs, o, y); break;
      case 3: dot_row<3>(op, x, depth, outputs, o, y); break;
      case 2: dot_row<2>(op, x, depth, outputs, o, y); break;
      default: dot_row<1>(op, x, depth, outputs, o, y);
    }
  }
}
