// What:    layer norm of the rows of (rows, n)
//          forward   y = xhat * gamma + beta,  xhat = (x - mean - rest) * istd,  istd = 1 / sqrt(var + eps),
//                    rest: what rounding has left out of mean
//          backward  v = g * gamma;  dx = istd * (v - mean(v) - xhat * mean(v * xhat))
//                    dgamma = sum(g * xhat), dbeta = sum(g), over the rows
// Source:  arXiv 1607.06450.
// Layout:  contiguous rows; a piece is 16 bytes of a row, or 1 element where n is not a multiple of that.
// Passes:  a row is read once and stays in registers, if HELD pieces per thread suffice. In the backward pass 32
//          elements do, or 4 single ones; its blocks walk over many rows and keep their dgamma and dbeta in registers
//          too, while the next rows arrive in shared memory. So a warp has a row of 1,024 elements, and waits for none.
//          Longer rows are forward for group_norm.cu: samples of one pixel. Backward they are read twice, but for the
//          first time from the cache; dgamma and dbeta are then a pass of their own.
//          partial[block][dgamma, dbeta][n] is added up by the last kernel; where a block has more than CHAIN rows per
//          thread, partial[blocks + block] is what rounding has left out.
// Accuracy: the mean is of distances from the row's first element; var by two passes. No chain of float32 has more than
//          CHAIN terms: what these are is added to a sum that keeps what rounding leaves out.
// Shared:  backward, pieces of 16 bytes: [stage][piece][g, x][thread].
// Requires: 16-byte aligned tensors.
// Threads: `width` threads, a power of two up to a block, per row; see reduce.cuh for the columns.
// Measured: H100 SXM, 134 MB tensors of rows of 1,024: the backward pass has 87 % of the bandwidth of a copy, in float32
//          and in 16 bits.
#include "reduce.cuh"

// The sum of v - origin, as a tree; v is lost.
template <int N> INLINE float sum_of(float (&v)[N], float origin = 0) {
  UNROLL for (int k = 0; k < N; k++) v[k] -= origin;
  UNROLL for (int half = N / 2; half; half /= 2)
    UNROLL for (int k = 0; k < half; k++) v[k] += v[k + half];
  return v[0];
}

template <class T, int N>
INLINE void normalize(const T *__restrict__ x, const SampleNorm<T> &norm, T *__restrict__ y, float eps, i64 rows, i64 n,
                      int width) {
  const i64 row = i64(blockIdx.x) * (THREADS / width) + threadIdx.x / width;
  const int lane = threadIdx.x % width;
  x += row * n, y += row * n;
  Lanes<N, T> held[HELD];
  auto each = [&](const auto &f) {
    UNROLL for (int j = 0; j < HELD; j++) {
      const int column = (lane + j * width) * N;
      if (row < rows && column < n) f(j, column);
    }
  };
  each([&](int j, int column) { held[j] = load<N>(x + column); });
  const float origin = row < rows ? origin_at(x) : 0;
  float sum = 0, squares = 0;
  each([&](int j, int) {
    float v[N];
    unpack(v, held[j]);
    sum += sum_of(v, origin);
  });
  Rounded middle(origin, fold_group(sum, width, Add()) / n);
  each([&](int j, int) {
    float v[N];
    unpack(v, held[j]);
    UNROLL for (int k = 0; k < N; k++) v[k] -= middle.value, v[k] = (v[k] - middle.rest) * (v[k] - middle.rest);
    squares += sum_of(v);
  });
  const float var = fold_group(squares, width, Add()) / n;
  float root = 1 / sqrtf(var + eps);
  const bool beyond = !(var < INFINITY);
  if (width > 32 ? __syncthreads_or(beyond) : __any_sync(~0u, beyond)) {  // of small multiples, beside which eps is 0
    constexpr float SMALL = 0x1p-100f;
    sum = squares = 0;
    each([&](int j, int) {
      float v[N];
      unpack(v, held[j]);
      UNROLL for (int k = 0; k < N; k++) v[k] *= SMALL;
      sum += sum_of(v, origin * SMALL);
    });
    sum = fold_group(sum, width, Add()) / n / SMALL;
    if (beyond) middle = Rounded(origin, sum);
    each([&](int j, int) {
      float v[N];
      unpack(v, held[j]);
      UNROLL for (int k = 0; k < N; k++) v[k] = (v[k] - middle.value - middle.rest) * SMALL, v[k] *= v[k];
      squares += sum_of(v);
    });
    const float scaled = SMALL / sqrtf(fold_group(squares, width, Add()) / n);
    if (beyond) root = scaled;
  }
  if (lane == 0 && row < rows) norm.put(row, middle, root);
  each([&](int j, int column) {
    float v[N], scale[N], shift[N];
    norm.load_scale(scale, column);
    norm.load_shift(shift, column);
    unpack(v, held[j]);
    UNROLL for (int k = 0; k < N; k++) v[k] = (v[k] - middle.value - middle.rest) * root * scale[k] + shift[k];
    store_floats(y + column, v);
  });
}

// ---- backward of rows of up to P pieces per thread, which has its next rows in flight

constexpr int CHAIN = 16;  // rows whose terms of dgamma and dbeta a thread adds up in registers

// Adds a sum to *to, or puts it there first; to[rests], if rests > 0, is what rounding leaves out.
INLINE void keep_sum(float *to, i64 rests, float v, bool first) {
  if (rests == 0) {
    *to = v;
    return;
  }
  ExactSum s = {v, 0};
  if (!first) {
    s = {to[0], to[rests]};
    s.add(v);
  }
  to[0] = s.sum;
  to[rests] = s.rest == s.rest ? s.rest : 0;
}

// What a thread has in flight: COUNT pieces of 16 bytes in shared memory, where they cost no registers; or single
// elements, in registers.
template <class T, int N, int COUNT> struct ThreadPieces {
  T *mine;
  INLINE explicit ThreadPieces(void *shared) : mine(static_cast<T *>(shared) + threadIdx.x * N) {}
  INLINE void fetch(int j, const T *from, bool there) {  // else zeros
    ptx::cp_async<16>(mine + j * THREADS * N, from, there ? 16 : 0);
  }
  INLINE void commit() { ptx::cp_async_commit(); }
  template <int PENDING> INLINE void wait() {
    ptx::cp_async_wait<PENDING>();  // a thread reads what it has copied itself
  }
  INLINE void get(float (&v)[N], int j) const {
    Lanes<N, T> piece = load<N>(mine + j * THREADS * N);
    unpack(v, piece);
  }
};
template <class T, int COUNT> struct ThreadPieces<T, 1, COUNT> {
  T mine[COUNT];
  INLINE explicit ThreadPieces(void *) {}
  INLINE void fetch(int j, const T *from, bool there) { mine[j] = there ? *from : from_float<T>(0); }
  INLINE void commit() {}
  template <int> INLINE void wait() {}
  INLINE void get(float (&v)[1], int j) const { v[0] = to_float(mine[j]); }
};

// How many rows a thread has in flight: as many as fit into 64 KiB of an H100's multiprocessor.
template <class T, int N> constexpr int DEPTH = N > 1 && sizeof(T) == 2 ? 2 : 1;

// Every thread of a row gets the row's sums. All threads of the block call it, with 0 and 1 as `turn` by turns.
INLINE Pair fold_row(Pair s, int width, int turn) {
  __shared__ Pair warps[2][THREADS / 32];
  for (int bits = (width < 32 ? width : 32) / 2; bits; bits /= 2) {
    s.sum += __shfl_xor_sync(~0u, s.sum, bits);
    s.dot += __shfl_xor_sync(~0u, s.dot, bits);
  }
  if (width <= 32) return s;
  if (threadIdx.x % 32 == 0) warps[turn][threadIdx.x / 32] = s;
  __syncthreads();
  const int first = threadIdx.x / width * (width / 32);  // warp of the row
  s = warps[turn][first];
  for (int warp = 1; warp < width / 32; warp++) s = MergePairs()(s, warps[turn][first + warp]);
  return s;
}

template <class T, int N, int P>
INLINE void gradient(const T *__restrict__ g, const T *__restrict__ x, const SampleNorm<T> &norm, T *__restrict__ dx,
                     float *__restrict__ partial, i64 rows, i64 n, int width) {
  DYNAMIC_SHARED(unsigned char, shared);
  constexpr int ROWS = DEPTH<T, N>;
  ThreadPieces<T, N, ROWS * P * 2> flight(shared);  // [stage][piece][g, x]
  unsigned lane = threadIdx.x % width;
  const int team = threadIdx.x / width, teams = THREADS / width, count = n;
  const float share = 1.0f / count;
  const i64 step = i64(gridDim.x) * teams;
  float scale[P][N];
  UNROLL for (int p = 0; p < P; p++) {
    UNROLL for (int k = 0; k < N; k++) scale[p][k] = 0;
    const int column = (int(lane) + p * width) * N;
    if (column < count) norm.load_scale(scale[p], column);
  }
  const auto fetch = [&](int stage, i64 row) {
    const i64 offset = row * n;
    UNROLL for (int p = 0; p < P; p++) {
      const int column = (int(lane) + p * width) * N;
      const bool there = row < rows && column < count;
      const i64 at = there ? offset + column : 0;
      flight.fetch((stage * P + p) * 2, g + at, there);
      flight.fetch((stage * P + p) * 2 + 1, x + at, there);
    }
    flight.commit();
  };
  i64 block = i64(blockIdx.x) * teams;
  UNROLL for (int stage = 0; stage < ROWS; stage++) fetch(stage, block + team + stage * step);
  float middle = block + team < rows ? norm.mean[block + team] : 0;
  float root = block + team < rows ? norm.istd[block + team] : 0;
  Walk w = {};
  w.width = width, w.step = teams;
  partial += 2 * blockIdx.x * n;
  const i64 rests = rows > CHAIN * step ? 2 * gridDim.x * n : 0, first_row = block;
  int stage = 0, turn = 0;
  Pair total[P][N] = {};
  const auto take_row = [&] {
    const i64 row = block + team;
    if constexpr (ALPHA_ARCH < 80 || ALPHA_ARCH >= 100) ptx::forget(lane);  // else places of all pieces would be kept, and spill
    const float rest = row < rows ? norm.rest_of(row) : 0;
    flight.template wait<ROWS - 1>();
    float v[P][N], xhat[P][N];
    UNROLL for (int p = 0; p < P; p++) {
      flight.get(v[p], (stage * P + p) * 2);
      flight.get(xhat[p], (stage * P + p) * 2 + 1);
    }
    fetch(stage, row + ROWS * step);  // on its way while this row is worked on
    stage = stage + 1 == ROWS ? 0 : stage + 1;
    Pair s = {0, 0};
    UNROLL for (int p = 0; p < P; p++) {
      Pair of = {0, 0};
      UNROLL for (int k = 0; k < N; k++) {
        xhat[p][k] = (xhat[p][k] - middle - rest) * root;
        total[p][k].sum += v[p][k];
        total[p][k].dot += v[p][k] * xhat[p][k];
        v[p][k] *= scale[p][k];
        of.sum += v[p][k];
        of.dot += v[p][k] * xhat[p][k];
      }
      s = MergePairs()(s, of);
    }
    const bool more = row + step < rows;
    const float next_middle = more ? norm.mean[row + step] : 0, next_root = more ? norm.istd[row + step] : 0;
    s = fold_row(s, width, turn);
    const float shift = s.sum * share * root, slope = s.dot * share * root;
    UNROLL for (int p = 0; p < P; p++) {
      const int column = (int(lane) + p * width) * N;
      if (row >= rows || column >= count) break;
      UNROLL for (int k = 0; k < N; k++) v[p][k] = v[p][k] * root - (xhat[p][k] * slope + shift);
      store_floats(dx + row * n + column, v[p]);
    }
    middle = next_middle, root = next_root;
    block += step, turn ^= 1;
  };
  UNROLL_BY(1) while (block < rows) {
    const i64 before = block;
    UNROLL_BY(1) for (const i64 end = min(rows, block + CHAIN * step); block < end;) take_row();
    UNROLL for (int p = 0; p < P; p++) {
      fold_rows<N>(total[p], w, MergePairs());
      const int column = (int(lane) + p * width) * N;
      if (threadIdx.x < width && column < count) {
        UNROLL for (int k = 0; k < N; k++) {
          keep_sum(partial + column + k, rests, total[p][k].dot, before == first_row);
          keep_sum(partial + n + column + k, rests, total[p][k].sum, before == first_row);
        }
      }
      UNROLL for (int k = 0; k < N; k++) total[p][k] = {0, 0};
    }
  }
  flight.template wait<0>();  // for the zeros behind the last row
}

// ---- backward of longer rows

template <class T, int N>
INLINE void gradient_long(const T *__restrict__ g, const T *__restrict__ x, const SampleNorm<T> &norm,
                          T *__restrict__ dx, i64 n) {
  const i64 row = blockIdx.x;
  const float middle = norm.mean[row], root = norm.istd[row], rest = norm.rest_of(row);
  g += row * n, x += row * n, dx += row * n;
  ExactSum sum = {0, 0}, dot = {0, 0};
  UNROLL_BY(2) for (i64 k = threadIdx.x * N; k < n; k += THREADS * N) {
    const auto gradient = load<N>(g + k), piece = load<N>(x + k);
    float scale[N];
    norm.load_scale(scale, k);
    Pair of = {0, 0};
    UNROLL for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane];
      of.sum += v;
      of.dot += v * ((to_float(piece.v[lane]) - middle - rest) * root);
    }
    sum.add(of.sum);
    dot.add(of.dot);
  }
  const Pair s = fold_group(Pair{sum.value(), dot.value()}, THREADS, MergePairs());
  const float shift = s.sum / n, slope = s.dot / n;
  UNROLL_BY(2) for (i64 k = threadIdx.x * N; k < n; k += THREADS * N) {
    auto gradient = load<N>(g + k);
    const auto piece = load<N>(x + k);
    float scale[N];
    norm.load_scale(scale, k);
    UNROLL for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]) * scale[lane];
      const float xhat = (to_float(piece.v[lane]) - middle - rest) * root;
      gradient.v[lane] = from_float<T>(root * (v - shift - xhat * slope));
    }
    store_piece(dx + k, gradient);
  }
}

template <class T, int N>
INLINE void parameter_sums(const T *__restrict__ g, const T *__restrict__ x, const SampleNorm<T> &norm,
                           float *__restrict__ partial, const Walk &w) {
  const Place at(w);
  const i64 first = at.column * N, n = w.columns * N;
  ExactSum sum[N] = {}, dot[N] = {};
  UNROLL_BY(4) for (i64 r = at.begin; r < at.end; r += w.step) {
    const auto gradient = load<N>(g + r * n + first), piece = load<N>(x + r * n + first);
    const float middle = norm.mean[r], root = norm.istd[r], rest = norm.rest_of(r);
    UNROLL for (int lane = 0; lane < N; lane++) {
      const float v = to_float(gradient.v[lane]);
      sum[lane].add(v);
      dot[lane].add(v * ((to_float(piece.v[lane]) - middle - rest) * root));
    }
  }
  Pair s[N];
  UNROLL for (int lane = 0; lane < N; lane++) s[lane] = {sum[lane].value(), dot[lane].value()};
  fold_rows<N>(s, w, MergePairs());
  if (threadIdx.x >= w.width || at.column >= w.columns) return;
  partial += 2 * at.chunk * n;
  UNROLL for (int lane = 0; lane < N; lane++) {
    partial[first + lane] = s[lane].dot;
    partial[n + first + lane] = s[lane].sum;
  }
}

// ---- dgamma and dbeta from partial[chunk][dgamma, dbeta][n]; a block adds up 8 columns

INLINE void totals(const float *__restrict__ partial, float *dgamma, float *dbeta, i64 chunks, i64 n) {
  constexpr int WIDTH = 8;
  const i64 column = i64(blockIdx.x) * WIDTH + threadIdx.x % WIDTH;
  double s[1] = {0};
  if (column < 2 * n) {
    UNROLL_BY(8) for (i64 chunk = threadIdx.x / WIDTH; chunk < chunks; chunk += THREADS / WIDTH)
      s[0] += partial[chunk * 2 * n + column];
  }
  Walk w = {};
  w.width = WIDTH, w.step = THREADS / WIDTH;
  fold_rows<1>(s, w, Add());
  if (threadIdx.x >= WIDTH || column >= 2 * n) return;
  (column < n ? dgamma : dbeta - n)[column] = float(s[0]);
}

// ---- entries, see PIECE_KERNELS

#define GRADIENT(T, suffix, N, P) \
  ALPHA_ENTRY(gradient_##P##suffix, (THREADS, P * N > 16 ? 1 : P * N > 8 ? 2 : 3), \
              (const T *g, const T *x, const SampleNorm<T> norm, T *dx, float *partial, i64 rows, i64 n, int width), \
              gradient<T, N, P>(g, x, norm, dx, partial, rows, n, width))
#define PIECES(T, suffix, N) \
  ALPHA_ENTRY(normalize##suffix, (THREADS, 3), \
              (const T *x, const SampleNorm<T> norm, T *y, float eps, i64 rows, i64 n, int width), \
              normalize<T, N>(x, norm, y, eps, rows, n, width)) \
  GRADIENT(T, suffix, N, 1) \
  GRADIENT(T, suffix, N, 2) \
  GRADIENT(T, suffix, N, 4) \
  ALPHA_ENTRY(gradient_long##suffix, (THREADS, 3), (const T *g, const T *x, const SampleNorm<T> norm, T *dx, i64 n), \
              gradient_long<T, N>(g, x, norm, dx, n)) \
  ALPHA_ENTRY(parameter_sums##suffix, (THREADS, N > 4 ? 2 : 3), \
              (const T *g, const T *x, const SampleNorm<T> norm, float *partial, const Walk w), \
              parameter_sums<T, N>(g, x, norm, partial, w))
PIECE_KERNELS(PIECES)
GRADIENT(float, _float32, LANES<float>, 8)
ALPHA_ENTRY(parameter_totals, (THREADS, 4), (const float *partial, float *dgamma, float *dbeta, i64 chunks, i64 n),
            totals(partial, dgamma, dbeta, chunks, n))
