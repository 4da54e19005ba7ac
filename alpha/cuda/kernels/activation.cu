// What:     activations, and their gradients from g, the gradient of y; one line per op
// Source:   gelu: arXiv 1606.08415; elu: 1511.07289; hardswish: 1905.02244
// Layout:   flat, C-contiguous; see elementwise.cuh for the thread map
#include "elementwise.cuh"

__device__ __forceinline__ float logistic(float x) { return 1 / (1 + expf(-x)); }  // e^-x = inf gives 0, as it should
__device__ __forceinline__ float normal_distribution(float x) { return 0.5f * (erff(x * 0.70710678f) + 1); }
__device__ __forceinline__ float normal_density(float x) { return expf(-0.5f * x * x) * 0.39894228f; }
__device__ __forceinline__ float silu_slope(float x, float p) { return p * (1 + x * (1 - p)); }
__device__ __forceinline__ float hardswish_slope(float x) { return x >= 3 ? 1 : x * (1 / 3.0f) + 0.5f; }

// ---- piecewise linear -----------------------------------------------------------------------------------------------

MAP1(relu, x, larger(x, 0.0f))
MAP2(relu_grad, g, y, y > 0 ? g : 0)
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
MAP1(gelu, x, x * normal_distribution(x))
MAP2(gelu_grad, g, x, (normal_distribution(x) + x * normal_density(x)) * g)
MAP1(elu, x, x > 0 ? x : alpha * expm1f(x), float alpha)
MAP2(elu_grad, g, x, x > 0 ? g : alpha * expf(x) * g, float alpha)
MAP1(softplus, x, fmaxf(x, 0) + log1pf(expf(-fabsf(x))))
MAP2(softplus_grad, g, x, logistic(x) * g)
MAP1(hardswish, x, smaller(larger(x + 3, 0.0f), 6.0f) * x / 6)
MAP2(hardswish_grad, g, x, x <= -3 ? 0 : hardswish_slope(x) * g)
