// What:    one step of an optimizer over all parameters at once; the equations stand beside each kernel.
// Source:  Adam, Adamax: arXiv 1412.6980; AMSGrad: 1904.09237; AdamW: 1711.05101; SGD, RMSprop: as PyTorch has them.
// Layout:  `count` flat arrays each of parameters w, gradients g and states, given as arrays of pointers and of sizes.
//          Bias corrections and learning rates are computed by the caller in double.
// Threads: chunks of CHUNK elements of each array; elements are independent, so any split gives the same bits.
#include <cmath>

#include "vec.hpp"

namespace {

constexpr int64_t CHUNK = 8192;

// Calls body(k, first, last) for chunks of every array.
template <class Body>
INLINE void for_each_chunk(const int64_t* sizes, int64_t count, Body body) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; k++) total += sizes[k];
#pragma omp parallel num_threads(team(total, 4 * CHUNK))
  for (int64_t k = 0; k < count; k++) {
#pragma omp for schedule(static) nowait
    for (int64_t chunk = 0; chunk < ceil_div(sizes[k], CHUNK); chunk++)
      body(k, chunk * CHUNK, std::min(sizes[k], (chunk + 1) * CHUNK));
  }
}

}  // namespace

// d = g + weight_decay * w;  v = momentum * v + (1 - dampening) * d  (v = d on the first step)
// w -= lr * (nesterov ? d + momentum * v : v);  without momentum (v null): w -= lr * d
EXPORT void sgd_step(float* const* w, const float* const* g, float* const* v, const int64_t* sizes, int64_t count,
                     float lr, float momentum, float dampening, float weight_decay, int nesterov, int first_step) {
  const float keep = first_step ? 0 : momentum, take = first_step ? 1 : 1 - dampening;
  for_each_chunk(sizes, count, [=](int64_t k, int64_t first, int64_t last) {
    float *wk = w[k], *vk = v ? v[k] : nullptr;
    const float* gk = g[k];
    if (!vk) {
#pragma omp simd
      for (int64_t i = first; i < last; i++) wk[i] -= lr * (gk[i] + weight_decay * wk[i]);
      return;
    }
    const float ahead = nesterov ? momentum : 1, now = nesterov ? 1 : 0;
#pragma omp simd
    for (int64_t i = first; i < last; i++) {
      const float d = gk[i] + weight_decay * wk[i], velocity = keep * vk[i] + take * d;
      vk[i] = velocity;
      wk[i] -= lr * (now * d + ahead * velocity);
    }
  });
}

// m = beta1 * m + (1 - beta1) * d;  v = beta2 * v + (1 - beta2) * d^2;  u = amsgrad ? max(u, v) : v
// w = shrink * w - step_size * m / (sqrt(u) / root_correction2 + eps),  d = g + decay * w
// with step_size = lr / (1 - beta1^t) and root_correction2 = sqrt(1 - beta2^t); AdamW decays by shrink instead of by d
EXPORT void adam_step(float* const* w, const float* const* g, float* const* m, float* const* v, float* const* v_max,
                      const int64_t* sizes, int64_t count, float step_size, float root_correction2,
                      double decay1, double decay2, float eps, float decay, float shrink) {
  const float beta1 = float(decay1), beta2 = float(decay2), inverse = 1 / root_correction2;
  const float take1 = float(1 - decay1), take2 = float(1 - decay2);  // 1 - 0.999f would be off by 1.3e-5 of itself
  for_each_chunk(sizes, count, [=](int64_t k, int64_t first, int64_t last) {
    float *wk = w[k], *mk = m[k], *vk = v[k], *uk = v_max ? v_max[k] : nullptr;
    const float* gk = g[k];
    if (uk) {
#pragma omp simd
      for (int64_t i = first; i < last; i++) {
        const float d = gk[i] + decay * wk[i];
        mk[i] = beta1 * mk[i] + take1 * d;
        vk[i] = beta2 * vk[i] + take2 * d * d;
        uk[i] = vk[i] > uk[i] ? vk[i] : uk[i];
        wk[i] = shrink * wk[i] - step_size * mk[i] / (std::sqrt(uk[i]) * inverse + eps);
      }
      return;
    }
#pragma omp simd
    for (int64_t i = first; i < last; i++) {
      const float d = gk[i] + decay * wk[i];
      mk[i] = beta1 * mk[i] + take1 * d;
      vk[i] = beta2 * vk[i] + take2 * d * d;
      wk[i] = shrink * wk[i] - step_size * mk[i] / (std::sqrt(vk[i]) * inverse + eps);
    }
  });
}

// d = g + weight_decay * w;  v = alpha * v + (1 - alpha) * d^2;  q = d / (sqrt(v) + eps)
// w -= lr * q, or with momentum: b = momentum * b + q;  w -= lr * b
EXPORT void rmsprop_step(float* const* w, const float* const* g, float* const* v, float* const* b, const int64_t* sizes,
                         int64_t count, float lr, double decay, float eps, float weight_decay, float momentum) {
  const float alpha = float(decay), take = float(1 - decay);
  for_each_chunk(sizes, count, [=](int64_t k, int64_t first, int64_t last) {
    float *wk = w[k], *vk = v[k], *bk = b ? b[k] : nullptr;
    const float* gk = g[k];
    for (int64_t i = first; i < last; i++) {
      const float d = gk[i] + weight_decay * wk[i];
      vk[i] = alpha * vk[i] + take * d * d;
      float q = d / (std::sqrt(vk[i]) + eps);
      if (bk) q = bk[i] = momentum * bk[i] + q;
      wk[i] -= lr * q;
    }
  });
}

// d = g + weight_decay * w;  m = beta1 * m + (1 - beta1) * d;  u = max(beta2 * u, |d| + eps)
// w -= step_size * m / u,  step_size = lr / (1 - beta1^t)
EXPORT void adamax_step(float* const* w, const float* const* g, float* const* m, float* const* u, const int64_t* sizes,
                        int64_t count, float step_size, double decay1, float beta2, float eps, float weight_decay) {
  const float beta1 = float(decay1), take1 = float(1 - decay1);
  for_each_chunk(sizes, count, [=](int64_t k, int64_t first, int64_t last) {
    float *wk = w[k], *mk = m[k], *uk = u[k];
    const float* gk = g[k];
#pragma omp simd
    for (int64_t i = first; i < last; i++) {
      const float d = gk[i] + weight_decay * wk[i], size = std::fabs(d) + eps, old = beta2 * uk[i];
      mk[i] = beta1 * mk[i] + take1 * d;
      uk[i] = old > size ? old : size;
      wk[i] -= step_size * mk[i] / uk[i];
    }
  });
}
