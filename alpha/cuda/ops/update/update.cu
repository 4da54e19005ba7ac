// What:     one step of an optimizer over all parameters at once, in place; and the sum of squares of every tensor.
//           The equation stands in each step; w is the parameter, g its gradient, d the gradient with weight decay.
// Source:   Adam, Adamax: arXiv 1412.6980; AMSGrad: 1904.09237; AdamW: 1711.05101; RAdam: 1908.03265; AdaMod:
//           1910.12249; SGD, RMSprop: as PyTorch has them.
// Layout:   flat tensors, in lists: the parameters, the states in the order of the step, and last the gradients. States
//           of adaptive steps are float32 beside parameters of 16 bits, where squares would underflow. The coefficients
//           are computed by the caller in double. A struct of them by value is laid out as they would be one by one. A
//           step that is recorded finds them in memory, in *kept, which each replay writes.
// Factor:   where the loss was scaled, the gradients are multiplied by *factor, and a factor of 0 skips the step: `decide`
//           makes it on the device, so that the host need not wait for the gradients.
// Requires: 16-byte aligned tensors; CHUNK a multiple of 8.
// Threads:  a block per chunk of a tensor (multi_tensor.cuh), a packet of 16 bytes per thread and list at a time.
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): SGD 95 %, AdamW 94 %, moving average 95 %
#include "multi_tensor.cuh"
#include "reduce.cuh"

// w = w - lr * d, or with momentum: v = keep * v + take * d;  w = w - lr * (now * d + ahead * v): ahead is the momentum
// with Nesterov's, else 1 and now 0
template <bool MOMENTUM> struct Sgd {
  static constexpr int CHANGED = 1 + MOMENTUM;
  float lr, weight_decay, keep, take, now, ahead;
  __device__ void operator()(float (&a)[CHANGED], float g) const {
    float &w = a[0], &v = a[CHANGED - 1];
    const float d = g + weight_decay * w;
    if (MOMENTUM) v = keep * v + take * d;
    w -= lr * (MOMENTUM ? now * d + ahead * v : d);
  }
};

// m = beta1 * m + take1 * d;  v = beta2 * v + take2 * d^2;  u = max(u, v) with AMSGrad, else v
// w = shrink * w - rate * m / (sqrt(u) * inverse_root + eps),  with rate = lr / (1 - beta1^t) and
// inverse_root = 1 / sqrt(1 - beta2^t); AdamW decays by shrink instead of by d
template <bool AMSGRAD> struct Adam {
  static constexpr int CHANGED = AMSGRAD ? 4 : 3;
  float rate, inverse_root, beta1, take1, beta2, take2, eps, weight_decay, shrink;
  __device__ void operator()(float (&a)[CHANGED], float g) const {
    float &w = a[0], &m = a[1], &v = a[2], &u = a[CHANGED - 1];
    const float d = g + weight_decay * w;
    m = beta1 * m + take1 * d;
    v = beta2 * v + take2 * d * d;
    if (AMSGRAD) u = v > u ? v : u;
    w = shrink * w - rate * m / (sqrtf(u) * inverse_root + eps);
  }
};

// v = alpha * v + take * d^2;  centered: c = alpha * c + take * d, and max(v - c^2, 0) instead of v below
// q = d / (sqrt(v) + eps);  w = w - lr * q, or with momentum: b = momentum * b + q;  w = w - lr * b
template <bool CENTERED, bool MOMENTUM> struct RmsProp {
  static constexpr int CHANGED = 2 + CENTERED + MOMENTUM;
  float lr, alpha, take, eps, weight_decay, momentum;
  __device__ void operator()(float (&a)[CHANGED], float g) const {
    float &w = a[0], &v = a[1], &c = a[1 + CENTERED], &b = a[CHANGED - 1];
    const float d = g + weight_decay * w;
    v = alpha * v + take * d * d;
    if (CENTERED) c = alpha * c + take * d;
    float spread = CENTERED ? v - c * c : v;
    if (CENTERED && spread < 0) spread = 0;  // by rounding; a NaN stays
    float q = d / (sqrtf(spread) + eps);
    if (MOMENTUM) q = b = momentum * b + q;
    w -= lr * q;
  }
};

// m = beta1 * m + take1 * d;  u = max(beta2 * u, |d| + eps);  w = w - rate * m / u,  rate = lr / (1 - beta1^t)
struct Adamax {
  static constexpr int CHANGED = 3;
  float rate, beta1, take1, beta2, eps, weight_decay;
  __device__ void operator()(float (&a)[3], float g) const {
    float &w = a[0], &m = a[1], &u = a[2];
    const float d = g + weight_decay * w, size = fabsf(d) + eps, old = beta2 * u;
    m = beta1 * m + take1 * d;
    u = old > size ? old : size;
    w -= rate * m / u;
  }
};

// m, v as in Adam;  w = shrink * w - rate * (rectified ? m / (sqrt(v) + eps) : m)
struct RAdam {
  static constexpr int CHANGED = 3;
  float rate, beta1, take1, beta2, take2, eps, weight_decay, shrink, rectified;  // the last: 1 or 0
  __device__ void operator()(float (&a)[3], float g) const {
    float &w = a[0], &m = a[1], &v = a[2];
    const float d = g + weight_decay * w;
    m = beta1 * m + take1 * d;
    v = beta2 * v + take2 * d * d;
    w = shrink * w - rate * (rectified != 0 ? m / (sqrtf(v) + eps) : m);
  }
};

// m, v as in Adam;  q = lr / (sqrt(v / correction2) + eps);  s = beta3 * s + take3 * q
// w = shrink * w - min(q, s) * m * rate,  with correction2 = 1 - beta2^t and rate = 1 / (1 - beta1^t)
struct AdaMod {
  static constexpr int CHANGED = 4;
  float lr, rate, correction2, beta1, take1, beta2, take2, beta3, take3, eps, shrink;
  __device__ void operator()(float (&a)[4], float g) const {
    float &w = a[0], &m = a[1], &v = a[2], &s = a[3];
    m = beta1 * m + take1 * g;
    v = beta2 * v + take2 * g * g;
    const float q = lr / (sqrtf(v / correction2) + eps);
    s = beta3 * s + take3 * q;
    w = shrink * w - (q < s ? q : s) * m * rate;
  }
};

// average = decay * average + take * w
struct Ema {
  static constexpr int CHANGED = 1;
  float decay, take;
  __device__ void operator()(float (&a)[1], float w) const { a[0] = decay * a[0] + take * w; }
};

// On sm_75 nvcc keeps to fewer registers than three blocks have, and spills, unless it is told.
#if ALPHA_ARCH < 80
#define UPDATE_BOUNDS (THREADS, 3)
#else
#define UPDATE_BOUNDS (THREADS)
#endif
// S: what the states are stored as
#define STEP(name, T, S, dtype, ...) \
  ALPHA_ENTRY(name##_##dtype, UPDATE_BOUNDS, \
              (const __grid_constant__ Table table, int count, int chunk, const float *factor, \
               const __VA_ARGS__ *kept, const __VA_ARGS__ step), \
              update_all<T, S>(table, count, chunk, factor, kept ? *kept : step))

// partial[block] = sum of the squares of the chunk's elements: those of a packet in float, a thread's in float with what
// rounding leaves out, the threads' in double.
template <class T> INLINE void squares(const Table &table, int count, int chunk, float *partial) {
  const Chunk here = find_chunk<1>(table, count, chunk);
  const T *x = tensor_of<const T>(table, count, 0, here.tensor);
  const i64 whole = here.end - here.end % LANES<T>;
  ExactSum sum = {0, 0};
  UNROLL_BY(4) for (i64 i = here.begin + threadIdx.x * LANES<T>; i < whole; i += THREADS * LANES<T>) {
    const Lanes<LANES<T>, T> packet = load<LANES<T>>(x + i);
    float of = 0;
    UNROLL for (int lane = 0; lane < LANES<T>; lane++) of += to_float(packet.v[lane]) * to_float(packet.v[lane]);
    sum.add(of);
  }
  for (i64 i = whole + threadIdx.x; i < here.end; i += THREADS) sum.add(to_float(x[i]) * to_float(x[i]));
  const double total = fold_group(double(sum.value()), THREADS, Add());
  if (threadIdx.x == 0) partial[blockIdx.x] = static_cast<float>(total);
}

#define KERNELS(T, dtype) \
  STEP(sgd, T, T, dtype, Sgd<false>) \
  STEP(sgd_momentum, T, T, dtype, Sgd<true>) \
  STEP(adam, T, float, dtype, Adam<false>) \
  STEP(adam_amsgrad, T, float, dtype, Adam<true>) \
  STEP(rmsprop, T, float, dtype, RmsProp<false, false>) \
  STEP(rmsprop_momentum, T, float, dtype, RmsProp<false, true>) \
  STEP(rmsprop_centered, T, float, dtype, RmsProp<true, false>) \
  STEP(rmsprop_centered_momentum, T, float, dtype, RmsProp<true, true>) \
  STEP(adamax, T, float, dtype, Adamax) \
  STEP(radam, T, float, dtype, RAdam) \
  STEP(adamod, T, float, dtype, AdaMod) \
  STEP(ema, T, T, dtype, Ema) \
  ALPHA_ENTRY(squares_##dtype, (THREADS), (const __grid_constant__ Table table, int count, int chunk, float *partial), \
              squares<T>(table, count, chunk, partial))
FLOAT_KERNELS(KERNELS)

// y[k] = sum of the partial sums of tensor k; a block per tensor, `blocks` partial sums in all.
ALPHA_GLOBAL(totals, (THREADS),
             (const __grid_constant__ Table table, int count, const float *partial, int blocks, float *y)) {
  ptx::follow();
  const i64 *first = table.words + 2 * count;
  const i64 end = blockIdx.x + 1 < count ? first[blockIdx.x + 1] : blocks;
  double sum = 0;
  UNROLL_BY(4) for (i64 i = first[blockIdx.x] + threadIdx.x; i < end; i += THREADS) sum += partial[i];
  sum = fold_group(sum, THREADS, Add());
  if (threadIdx.x == 0) y[blockIdx.x] = static_cast<float>(sum);
}

// What becomes of a step whose loss was multiplied by *scale. counts: finite steps since the scale changed, skipped ones.
//   factor = min(1, max_norm / norm) / scale with norm = sqrt(sum(squares)) / scale;  0 where the sum is not finite
//   finite:      after growth_interval such steps scale = min(2 * scale, largest)
//   not finite:  scale = max(scale / 2, 1)
ALPHA_GLOBAL(decide, (THREADS),
             (const float *squares, int count, float *scale, int *counts, float *factor, int growth_interval,
              float largest, float max_norm)) {
  ptx::follow();
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += THREADS) sum += squares[i];
  sum = fold_group(sum, THREADS, Add());
  if (threadIdx.x) return;
  const float before = *scale;
  if (!(sum <= 1e300)) {  // squares are float: infinite or NaN
    *factor = 0;
    *scale = before > 2 ? before / 2 : 1;
    counts[0] = 0;
    counts[1]++;
    return;
  }
  const double norm = sqrt(sum) / before;
  *factor = static_cast<float>((max_norm > 0 && norm > max_norm ? max_norm / norm : 1) / before);
  if (++counts[0] < growth_interval) return;
  *scale = before < largest / 2 ? 2 * before : largest;
  counts[0] = 0;
}
