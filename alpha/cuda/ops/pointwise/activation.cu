// What:     activations, and their gradients from g, the gradient of y; one line per op
// Source:   gelu: arXiv 1606.08415; elu: 1511.07289; hardswish: 1905.02244
// Layout:   flat, C-contiguous; see elementwise.cuh for the thread map
// NaN:      no comparison holds, which chooses the piece of a gradient; docs/numerics.md has the table
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): relu, sigmoid, gelu 96 %, their gradients
//           99 %
#include "elementwise.cuh"

// e^-x = inf gives 0, as it should
__device__ __forceinline__ float logistic(float x) { return ptx::reciprocal(1 + expf(-x)); }

// The normal distribution at x and e^(-x^2 / 2), of which the distribution below 0 is made: Abramowitz and Stegun,
// 7.1.26, which errs by 1.5e-7 in erf. Nothing cancels in the lower tail.
struct Normal {
  float distribution, bell;
  __device__ __forceinline__ explicit Normal(float x) {
    const float t = ptx::reciprocal(fmaf(fabsf(x), 0.23164189f, 1));
    const float cubic = fmaf(fmaf(fmaf(0.53070271f, t, -0.72657601f), t, 0.71070687f), t, -0.14224837f);
    const float p = fmaf(cubic, t, 0.12741480f);
    bell = ptx::exp2(x * x * -0.72134752f);
    const float tail = p * t * bell;
    distribution = x > 0 ? 1 - tail : tail;
  }
  __device__ __forceinline__ float gelu_slope(float x) const { return fmaf(x * 0.39894228f, bell, distribution); }
};
__device__ __forceinline__ float silu_slope(float x, float p) { return p * (1 + x * (1 - p)); }
__device__ __forceinline__ float hardswish_slope(float x) { return x < 3 ? x * (1 / 3.0f) + 0.5f : 1; }

// ---- piecewise linear -----------------------------------------------------------------------------------------------

MAP1(relu, x, larger(x, 0.0f))
MAP2(relu_grad, g, y, y <= 0 ? 0 : g)
MAP1(relu6, x, smaller(larger(x, 0.0f), 6.0f))
MAP2(relu6_grad, g, y, y <= 0 || y >= 6 ? 0 : g)
MAP1(leaky_relu, x, x > 0 ? x : slope * x, float slope)
MAP2(leaky_relu_grad, g, x, x > 0 ? g : slope * g, float slope)

// ---- smooth ---------------------------------------------------------------------------------------------------------

MAP1(sigmoid, x, logistic(x))
MAP2(sigmoid_grad, g, y, (1 - y) * y * g)
MAP1(tanh, x, tanhf(x))
MAP2(tanh_grad, g, y, (1 - y * y) * g)
MAP1(silu, x, x * logistic(x))
MAP2(silu_grad, g, x, silu_slope(x, logistic(x)) * g)
MAP1(gelu, x, x * Normal(x).distribution)
MAP2(gelu_grad, g, x, Normal(x).gelu_slope(x) * g)
MAP1(elu, x, x > 0 ? x : alpha * expm1f(x), float alpha)
MAP2(elu_grad, g, x, x <= 0 ? alpha * expf(x) * g : g, float alpha)
MAP1(softplus, x, fmaxf(x, 0) + log1pf(expf(-fabsf(x))))
MAP2(softplus_grad, g, x, logistic(x) * g)
MAP1(hardswish, x, smaller(larger(x + 3, 0.0f), 6.0f) * x / 6)
MAP2(hardswish_grad, g, x, x <= -3 ? 0 : hardswish_slope(x) * g)
