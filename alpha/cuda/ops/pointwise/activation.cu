// What:     activations, and their gradients from g, the gradient of y: the equations of the ops, a kernel for each
// Source:   written by equations.py; gelu: arXiv 1606.08415; elu: 1511.07289; hardswish: 1905.02244
// Layout:   flat, C-contiguous; see elementwise.cuh for the thread map
// NaN:      no comparison holds, which chooses the piece of a gradient; docs/numerics.md has the table
// Requires: 16-byte aligned tensors
// Threads:  see elementwise.cuh
// Measured: H100, share of a copy's bandwidth (benchmarks.cuda_bandwidth): relu, sigmoid, gelu 96 %, their gradients
//           99 %
#include "elementwise.cuh"
#include "ops/pointwise/equation.cuh"

EQUATION float relu_of(number x_) { return select(((x_ < number(0.0f))), number(0.0f), x_).v; }
MAP1(relu, x, relu_of(x))
EQUATION float relu_grad_of(number g_, number y_) { return select(((y_ <= number(0.0f))), number(0.0f), g_).v; }
MAP2(relu_grad, g, y, relu_grad_of(g, y))
EQUATION float relu6_of(number x_) { return select(((x_ < number(0.0f))), number(0.0f), select(((x_ > number(6.0f))), number(6.0f), x_)).v; }
MAP1(relu6, x, relu6_of(x))
EQUATION float relu6_grad_of(number g_, number y_) { return select((((y_ <= number(0.0f))) | ((y_ >= number(6.0f)))), number(0.0f), g_).v; }
MAP2(relu6_grad, g, y, relu6_grad_of(g, y))
EQUATION float leaky_relu_of(number x_, number slope_) { return select(((x_ > number(0.0f))), x_, (slope_ * x_)).v; }
MAP1(leaky_relu, x, leaky_relu_of(x, slope), float slope)
EQUATION float leaky_relu_grad_of(number g_, number x_, number slope_) { return select(((x_ > number(0.0f))), g_, (slope_ * g_)).v; }
MAP2(leaky_relu_grad, g, x, leaky_relu_grad_of(g, x, slope), float slope)
EQUATION float sigmoid_grad_of(number g_, number y_) { return (((number(1.0f) - y_) * y_) * g_).v; }
MAP2(sigmoid_grad, g, y, sigmoid_grad_of(g, y))
EQUATION float tanh_grad_of(number g_, number y_) { return ((number(1.0f) - (y_ * y_)) * g_).v; }
MAP2(tanh_grad, g, y, tanh_grad_of(g, y))
EQUATION float silu_grad_of(number g_, number x_) { const auto p_ = logistic(x_); return ((p_ * (number(1.0f) + (x_ * (number(1.0f) - p_)))) * g_).v; }
MAP2(silu_grad, g, x, silu_grad_of(g, x))
EQUATION float gelu_grad_of(number g_, number x_) { return ((normal_cdf(x_) + (x_ * normal_pdf(x_))) * g_).v; }
MAP2(gelu_grad, g, x, gelu_grad_of(g, x))
EQUATION float elu_grad_of(number g_, number x_, number alpha_) { return select(((x_ <= number(0.0f))), ((alpha_ * exp(x_)) * g_), g_).v; }
MAP2(elu_grad, g, x, elu_grad_of(g, x, alpha), float alpha)
EQUATION float hardswish_grad_of(number g_, number x_) { return select(((x_ <= (-number(3.0f)))), number(0.0f), select(((x_ < number(3.0f))), (((x_ * (number(1.0f) / number(3.0f))) + number(0.5f)) * g_), g_)).v; }
MAP2(hardswish_grad, g, x, hardswish_grad_of(g, x))
EQUATION float softplus_grad_of(number g_, number x_) { return (logistic(x_) * g_).v; }
MAP2(softplus_grad, g, x, softplus_grad_of(g, x))
EQUATION float sigmoid_of(number x_) { return logistic(x_).v; }
MAP1(sigmoid, x, sigmoid_of(x))
EQUATION float tanh_of(number x_) { return tanh(x_).v; }
MAP1(tanh, x, tanh_of(x))
EQUATION float silu_of(number x_) { return (x_ * logistic(x_)).v; }
MAP1(silu, x, silu_of(x))
EQUATION float gelu_of(number x_) { return (x_ * normal_cdf(x_)).v; }
MAP1(gelu, x, gelu_of(x))
EQUATION float elu_of(number x_, number alpha_) { return select(((x_ > number(0.0f))), x_, (alpha_ * expm1(x_))).v; }
MAP1(elu, x, elu_of(x, alpha), float alpha)
EQUATION float softplus_of(number x_) { return (maximum(x_, number(0.0f)) + log1p(exp((-absolute(x_))))).v; }
MAP1(softplus, x, softplus_of(x))
EQUATION float hardswish_of(number x_) { return ((minimum(maximum((x_ + number(3.0f)), number(0.0f)), number(6.0f)) * x_) / number(6.0f)).v; }
MAP1(hardswish, x, hardswish_of(x))
