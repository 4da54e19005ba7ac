"""The kernels whose time is spent on moving bytes: arguments, how often each must be read, and PyTorch's way.

A large tensor has `images` x 32 x 32 x 64 elements, also as rows of 1024. Where a kernel must read an argument again,
because a sum over all of it comes first and no cache holds it, `reads` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

ROW, CHANNELS, MAP = 1024, 64, 32
TENSORS = 8  # into which a large tensor is divided for the optimizers
EPS = 1e-5
LOSS_SCALE = 2.0 ** 15  # of a gradient: without one, most of the gradient of a mean is 0 in float16


class Job(NamedTuple):
    """One kernel.

    Attributes:
        op, attrs: the op and its attributes.
        make: returns its arguments as PyTorch tensors, lists of them, numbers or None; further values are for
            PyTorch alone.
        peer: PyTorch's way from all of these to the op's outputs (None: it is not compared); None: there is none, and
            the CPU's implementation defines the right result.
        reads: times that an argument must be read, where not once.
        bound: relative error that is allowed in float32.
        exact_peer: whether the values of `peer` equal the op's.
    """

    op: str
    make: Callable[[], list[Any]]
    peer: Callable[..., Any] | None
    attrs: dict[str, Any] = {}
    reads: dict[str, int] = {}
    label: str = ""
    bound: float = 1e-5
    exact_peer: bool = True


class Data:
    """Random tensors of one dtype."""

    def __init__(self, torch: Any, device: str, dtype: str, images: int) -> None:
        self.torch, self.device, self.dtype, self.images = torch, device, getattr(torch, dtype), images

    def normal(self, *shape: int) -> Any:
        return self.torch.randn(shape, device=self.device, dtype=self.dtype)

    def positive(self, *shape: int) -> Any:
        return self.torch.rand(shape, device=self.device, dtype=self.dtype) + 0.5

    def maps(self) -> Any:
        return self.normal(self.images, MAP, MAP, CHANNELS)

    def rows(self) -> Any:
        return self.normal(self.images * MAP * MAP * CHANNELS // ROW, ROW)

    def labels(self) -> Any:
        return self.torch.randint(0, ROW, (self.images * MAP * MAP * CHANNELS // ROW,), device=self.device)

    def tensors(self, positive: bool = False) -> list[Any]:
        size = self.images * MAP * MAP * CHANNELS // TENSORS
        return [self.positive(size) if positive else self.normal(size) for _ in range(TENSORS)]


def nchw(t: Any) -> Any:
    """Returns NHWC as PyTorch names its axes: channels_last, the same memory."""
    return t.permute(0, 3, 1, 2)


def nhwc(t: Any) -> Any:
    return t.permute(0, 2, 3, 1)


def elementwise(d: Data) -> Iterator[Job]:
    torch, aten, f = d.torch, d.torch.ops.aten, d.torch.nn.functional
    yield Job("relu", lambda: [d.maps()], f.relu)
    yield Job("relu_grad", lambda: [d.maps(), d.maps().relu_()], lambda g, y: aten.threshold_backward(g, y, 0))
    yield Job("add", lambda: [d.maps(), d.maps()], torch.add)
    yield Job("add", lambda: [d.maps(), d.normal(CHANNELS)], torch.add, label="to a vector of channels")
    yield Job("mul", lambda: [d.maps(), 1.5], torch.mul, label="by a number")
    yield Job("sigmoid", lambda: [d.maps()], torch.sigmoid)
    yield Job("gelu", lambda: [d.maps()], f.gelu)
    yield Job("gelu_grad", lambda: [d.maps(), d.maps()], aten.gelu_backward)
    yield Job("where", lambda: [d.maps() > 0, d.maps(), d.maps()], torch.where)
    yield Job("keyed_dropout", lambda: [d.maps()], lambda x: f.dropout(x, 0.5), dict(p=0.5, seed=1, offset=0),
              exact_peer=False)
    other = "bfloat16" if d.dtype == torch.float32 else "float32"
    yield Job("cast", lambda: [d.maps()], lambda x: x.to(getattr(torch, other)), dict(dtype=other), label=f"to {other}",
              bound=1e-2)


def pooling(d: Data) -> Iterator[Job]:
    torch, aten, f = d.torch, d.torch.ops.aten, d.torch.nn.functional
    for size, stride, padding in ((2, 2, 0), (3, 2, 1)):
        window, label = dict(kernel_size=size, stride=stride, padding=padding), f"{size}x{size} stride {stride}"

        def forward(x: Any, window: Any = window) -> Any:
            return tuple(map(nhwc, f.max_pool2d(nchw(x), **window, return_indices=True)))

        def backward_arguments(forward: Any = forward) -> list[Any]:
            x = d.maps()
            y, index = forward(x)
            return [torch.randn_like(y), index.to(torch.int32), nchw(x), nchw(index)]

        def backward(g: Any, index: Any, x: Any, index64: Any, k: int = size, s: int = stride, p: int = padding) -> Any:
            return nhwc(aten.max_pool2d_with_indices_backward(nchw(g), x, [k, k], [s, s], [p, p], [1, 1], False,
                                                              index64))
        yield Job("max_pool2d", lambda: [d.maps()], forward, window, label=label)
        yield Job("max_pool2d_backward", backward_arguments, backward, dict(hw=(MAP, MAP), **window), label=label)
    yield Job("avg_pool2d", lambda: [d.maps()], lambda x: nhwc(f.avg_pool2d(nchw(x), 2)), dict(kernel_size=2),
              label="2x2 stride 2")
    yield Job("avg_pool2d_backward", lambda: [d.normal(d.images, MAP // 2, MAP // 2, CHANNELS), nchw(d.maps())],
              lambda g, x: nhwc(aten.avg_pool2d_backward(nchw(g), x, [2, 2], [2, 2], [0, 0], False, True, None)),
              dict(hw=(MAP, MAP), kernel_size=2), label="2x2 stride 2")
    yield Job("adaptive_avg_pool2d", lambda: [d.maps()], lambda x: x.mean((1, 2), keepdim=True), dict(output_size=1))


def normalisation(d: Data) -> Iterator[Job]:
    aten, f = d.torch.ops.aten, d.torch.nn.functional

    def parameters() -> list[Any]:
        c = CHANNELS
        return [d.positive(c), d.normal(c), d.normal(c), d.positive(c)]

    def norm(x: Any, gamma: Any, beta: Any, mean: Any, var: Any, residual: Any = None, training: bool = True) -> Any:
        y = nhwc(f.batch_norm(nchw(x), mean, var, gamma, beta, training, 0.1, EPS))
        return f.relu(y if residual is None else y + residual), None, None

    def gradient_arguments() -> list[Any]:
        x, (gamma, beta, _, _) = d.maps(), parameters()
        wide = x.float()
        mean, istd = wide.mean((0, 1, 2)), (wide.var((0, 1, 2), correction=0) + EPS).rsqrt()
        y = ((wide - mean) * istd * gamma + beta).to(x.dtype)
        return [d.maps(), x, gamma, beta, mean, istd, y]

    def gradient(g: Any, x: Any, gamma: Any, beta: Any, mean: Any, istd: Any, y: Any, relu: bool = False) -> Any:
        v = aten.threshold_backward(g, y, 0) if relu else g
        dx, dgamma, dbeta = aten.native_batch_norm_backward(nchw(v), nchw(x), gamma, None, None, mean, istd, True, EPS,
                                                            [True] * 3)
        return nhwc(dx), dgamma, dbeta

    again = dict(reads={"x": 2}, bound=1e-4)
    yield Job("batch_norm_act", lambda: [d.maps(), *parameters()], norm, dict(activation="relu"), label="relu", **again)
    yield Job("batch_norm_add_act", lambda: [d.maps(), *parameters(), d.maps()], norm, dict(activation="relu"),
              label="relu", **again)
    yield Job("batch_norm_act", lambda: [d.maps(), *parameters()], lambda *a: norm(*a, training=False),
              dict(activation="relu", training=False), label="relu, inference", bound=1e-4)
    # A value near 0 may fall on either side of relu's kink: the bounds of the gradients allow for a few.
    for relu in (False, True):
        yield Job("batch_norm_grad", gradient_arguments, lambda *a, relu=relu: gradient(*a, relu=relu),
                  dict(activation="relu" if relu else None), {"g": 2, "x": 2}, label="relu" if relu else "", bound=2e-3)
    yield Job("layer_norm", lambda: [d.rows(), d.positive(ROW), d.normal(ROW)],
              lambda x, gamma, beta: (f.layer_norm(x, (ROW,), gamma, beta, EPS), None, None), bound=1e-4)

    def row_gradient_arguments() -> list[Any]:
        x = d.rows()
        wide = x.float()
        mean, istd = wide.mean(1, keepdim=True), (wide.var(1, correction=0, keepdim=True) + EPS).rsqrt()
        return [d.rows(), x, d.positive(ROW), mean, istd, d.torch.zeros_like(mean), d.normal(ROW)]

    def row_gradient(g: Any, x: Any, gamma: Any, mean: Any, istd: Any, rest: Any, beta: Any) -> Any:
        return aten.native_layer_norm_backward(g, x, [ROW], mean, istd, gamma, beta, [True] * 3)

    yield Job("sample_norm_grad", row_gradient_arguments, row_gradient, dict(axes=(1,), params_ndim=1),
              label="of layer_norm", bound=1e-4)
    yield Job("group_norm", lambda: [d.maps(), d.positive(CHANNELS), d.normal(CHANNELS)],
              lambda x, gamma, beta: (nhwc(f.group_norm(nchw(x), 32, gamma, beta, EPS)), None, None), dict(groups=32),
              bound=1e-4)


def losses(d: Data) -> Iterator[Job]:
    torch, aten, f = d.torch, d.torch.ops.aten, d.torch.nn.functional
    yield Job("softmax", lambda: [d.rows()], lambda x: torch.softmax(x, 1))
    yield Job("log_softmax", lambda: [d.rows()], lambda x: torch.log_softmax(x, 1))
    yield Job("softmax_grad", lambda: [d.rows(), d.rows().softmax(1)],
              lambda g, y: aten._softmax_backward_data(g, y, 1, y.dtype), dict(axis=1), bound=1e-4)
    yield Job("label_cross_entropy", lambda: [d.rows(), d.labels()], lambda x, t: (f.cross_entropy(x, t), None, None))

    def gradient_arguments() -> list[Any]:
        x, t = d.rows(), d.labels()
        g = torch.full((), LOSS_SCALE, device=d.device, dtype=d.dtype)
        largest, others = x.float().amax(1), 1 - x.float().softmax(1).gather(1, t[:, None]).squeeze(1)
        stats = torch.stack([largest, x.float().logsumexp(1) - largest, others])
        count = torch.full((), len(t), device=d.device)
        return [g, x, t, stats, count.float(), x.log_softmax(1), torch.ones_like(g)]

    def gradient(g: Any, x: Any, t: Any, stats: Any, count: Any, logp: Any, weight: Any) -> Any:
        from_loss = aten.nll_loss_backward(g / len(t), logp, t, None, 2, -100, weight)  # a sum: float16 holds no count
        return aten._log_softmax_backward_data(from_loss, logp, 1, logp.dtype)

    yield Job("cross_entropy_grad", gradient_arguments, gradient, dict(label_smoothing=0.0, reduction="mean"),
              bound=1e-4)


def optimizers(d: Data) -> Iterator[Job]:
    torch = d.torch
    adam = dict(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2)
    sgd = dict(lr=1e-2, momentum=0.9, dampening=0.0, nesterov=False, weight_decay=5e-4)

    def fused_adam(w: Any, g: Any, m: Any, v: Any, none: Any, factor: None, steps: Any) -> None:
        torch._fused_adamw_(w, g, m, v, [], steps, amsgrad=False, maximize=False, **adam)

    def state(*positive: bool) -> list[Any]:
        return [d.tensors(p) for p in positive]

    def adaptive(*positive: bool) -> list[Any]:     # parameters, gradients, and states, which are float32
        return [*state(False, False), *[[t.float() for t in tensors] for tensors in state(*positive)]]

    def steps() -> list[Any]:
        return [torch.full((), 10.0, device=d.device) for _ in range(TENSORS)]

    yield Job("sgd_step", lambda: [*state(False, False, False), None],
              lambda w, g, v, factor: torch._fused_sgd_(w, g, v, maximize=False, is_first_step=False, **sgd),
              dict(sgd, first=False), label="momentum")
    yield Job("adam_step", lambda: [*adaptive(False, True), [], None, steps()],
              fused_adam if d.dtype == torch.float32 else None,     # PyTorch's states have the parameters' dtype
              dict(adam, step=10, decoupled=True), label="AdamW")
    yield Job("ema_step", lambda: state(False, False), lambda a, w: torch._foreach_lerp_(a, w, 1e-3), dict(decay=0.999))
    yield Job("rmsprop_step", lambda: [*adaptive(True), [], [], None], None, dict(lr=1e-3))
    yield Job("adamax_step", lambda: [*adaptive(False, True), None], None, dict(lr=1e-3, step=10))
    yield Job("radam_step", lambda: [*adaptive(False, True), None], None, dict(lr=1e-3, step=10))
    yield Job("adamod_step", lambda: [*adaptive(False, True, True), None], None, dict(lr=1e-3, step=10))
    yield Job("sums_of_squares", lambda: state(False), lambda x: torch.stack(torch._foreach_norm(x)).square())


def movement(d: Data) -> Iterator[Job]:
    """Reductions and copies in another order."""
    torch = d.torch
    yield Job("sum", lambda: [d.maps()], torch.sum, bound=1e-2, label="of everything")  # the sum itself is near 0
    yield Job("sum", lambda: [d.maps()], lambda x: x.sum((0, 1, 2)), dict(axis=(0, 1, 2)), label="per channel",
              bound=1e-3)
    yield Job("mean", lambda: [d.rows()], lambda x: x.mean(1), dict(axis=(1,)), label="per row", bound=1e-3)
    yield Job("argmax", lambda: [d.rows()], lambda x: x.argmax(1), dict(axis=1), label="per row")
    yield Job("permute", lambda: [d.maps()], lambda x: nchw(x).contiguous(), dict(axes=(0, 3, 1, 2)),
              label="NHWC to NCHW")
    yield Job("concat", lambda: [[d.maps(), d.maps()]], lambda xs: torch.cat(xs, 3), dict(axis=3), label="channels")


FAMILIES = {"elementwise": elementwise, "pooling": pooling, "normalisation": normalisation, "loss": losses,
            "optimizer": optimizers, "movement": movement}
HALF_FAMILIES = ("elementwise", "pooling", "normalisation", "loss")  # kernels that also store 16 bits
BAR_FAMILIES = ("elementwise", "pooling", "normalisation", "loss", "optimizer")
