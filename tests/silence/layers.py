"""Base calls of layers, of methods of modules, of functions that fill parameters, and of optimizers and schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import alpha
from alpha import nn, optim
from alpha.errors import AlphaError
from tests.silence.ops import FILTERS, LABELS, LINE, MAP, POSITIVE, SHARE, SIGNS, SPREAD, VOLUME, A, B, Call
from tests.silence.seen import backward, layer, method, real
from tests.silence.values import Array

SEQUENCE = Array(4, 2, 8)


def into_torch(f: Callable[..., Any], **given: Any) -> Any:
    """A Linear as PyTorch has it, whose columns `flattened` puts into another order."""
    made = f(12, 3, **given)
    return {name: np.asarray(value) for name, value in alpha.checkpoint.to_torch_state_dict(made).items()}


LAYERS: dict[str, list[Call]] = {
    **{name: [layer(on=A)] for name in ("CELU", "ELU", "GELU", "SELU", "Hardsigmoid", "Hardswish", "Hardtanh", "Mish",
                                        "LeakyReLU", "ReLU", "ReLU6", "SiLU", "Hardshrink", "Softshrink",
                                        "LogSoftmax", "Softmax", "Softmin", "Dropout")},
    "GLU": [layer(on=Array(4, 4))], "Threshold": [layer(0.2, 3.0, on=A)], "PReLU": [layer(on=MAP)],
    "Dropout1d": [layer(on=LINE)], "Dropout2d": [layer(on=MAP)], "Flatten": [layer(on=Array(2, 3, 4))],
    "AvgPool1d": [layer(3, on=LINE), layer(2, on=LINE), layer(3, 2, 1, on=LINE)], "MaxPool1d": [layer(3, on=LINE),
    layer(2, on=LINE), layer(3, 2, 1, on=LINE)],
    **{name: [layer(2, on=MAP), layer(3, on=MAP), layer(3, 2, 1, on=MAP), layer(2, on=Array(2, 7, 7, 2))]
       for name in ("AvgPool2d", "MaxPool2d")},
    "BatchNorm1d": [layer(4, on=Array(5, 4))], "BatchNorm2d": [layer(4, on=MAP)], "InstanceNorm2d": [layer(4, on=MAP)],
    "GroupNorm": [layer(2, 4, on=MAP)], "LayerNorm": [layer(4, on=MAP)], "RMSNorm": [layer(4, on=MAP)],
    "LocalResponseNorm": [layer(3, on=MAP)], "LayerNorm2d": [layer(4, on=MAP)],
    "SqueezeExcite": [layer(4, on=MAP), layer(4, 2, on=MAP)], "DropPath": [layer(0.4, on=A), layer(on=A)],
    "ArcFace": [layer(4, 4, on=[A, LABELS])],
    "Conv1d": [layer(4, 4, 3, on=LINE), layer(4, 4, 3, padding=1, on=LINE)],
    "Conv2d": [layer(4, 4, 3, on=MAP), layer(4, 4, 3, padding=1, on=MAP)],
    "CoConv2d": [layer(4, 8, on=MAP)],
    "ConvTranspose2d": [layer(4, 4, 3, on=MAP), layer(4, 4, 3, 2, on=MAP)],
    "ConvTranspose1d": [layer(4, 4, 3, on=LINE), layer(4, 4, 3, 2, on=LINE)],
    "Conv3d": [layer(2, 2, 3, on=VOLUME), layer(2, 2, 3, padding=1, on=VOLUME)],
    "ConvTranspose3d": [layer(2, 2, 3, on=VOLUME), layer(2, 2, 3, 2, on=VOLUME)],
    **{name: [layer(2, on=VOLUME), layer(3, 2, 1, on=VOLUME), layer(3, on=VOLUME)] for name in ("MaxPool3d",
                                                                                                "AvgPool3d")},
    **{name: [layer(2, on=VOLUME)] for name in ("BatchNorm3d", "InstanceNorm3d")},
    "InstanceNorm1d": [layer(4, on=LINE)], "Dropout3d": [layer(on=VOLUME)],
    "Linear": [layer(4, 3, on=A), into_torch],
    "Embedding": [layer(4, 3, on=LABELS)], "Unfold": [layer(2, on=MAP)],
    "Fold": [layer((6, 6), 2, on=Array(2, 25, 16)), layer((6, 6), 2, stride=2, on=Array(2, 9, 16)),
             layer((4, 4), 2, stride=2, on=Array(2, 4, 16))],
    "Upsample": [layer(size=(9, 9), on=MAP), layer(scale_factor=2, on=MAP),
                 layer(size=(9, 9), mode="bilinear", on=MAP)],
    "CosineSimilarity": [layer(on=[A, B]), layer(on=[Array(3, 4, low=-1e-3, high=1e-3), B])],
    "PairwiseDistance": [layer(on=[A, B])],
    "MaxUnpool2d": [layer(2, on=[Array(2, 3, 3, 1), Array(
        values=(np.arange(9).reshape(3, 3) * 2 + np.zeros((2, 1, 1), int))[..., None], dtype="int64")])],
    **{name: [layer(4, 3, on=LINE), layer(4, 3, num_layers=2, on=LINE)] for name in ("RNN", "LSTM", "GRU")},
    **{name: [layer(4, 3, on=A)] for name in ("RNNCell", "LSTMCell", "GRUCell")},
    # losses
    **{name: [layer(on=[A, B])] for name in ("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss")},
    "BCELoss": [layer(on=[SHARE, SHARE])], "BCEWithLogitsLoss": [layer(on=[A, SHARE])],
    "KLDivLoss": [layer(on=[A, SHARE])], "HingeEmbeddingLoss": [layer(on=[A, SIGNS])],
    **{name: [layer(on=[A, LABELS])] for name in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss")},
    "CosineEmbeddingLoss": [layer(on=[A, A, Array(values=[-1, -1, -1])])],
    "GaussianNLLLoss": [layer(on=[A, B, SHARE])], "MarginRankingLoss": [layer(on=[A, B, SIGNS])],
    "SoftMarginLoss": [layer(on=[A, SIGNS])],
    "FocalLoss": [layer(on=[A, SHARE])], "DiceLoss": [layer(on=[SHARE, SHARE])],
    "CTCLoss": [layer(on=[Array(4, 2, 4), [[1, 1], [2, 1]], [4, 4], [2, 2]]),
                layer(on=[Array(4, 2, 4), [[1, 1], [2, 1]], [2, 4], [2, 2]])],
    "PoissonNLLLoss": [layer(on=[A, Array(values=[[0, 1, 2, 3], [4, 0, 1, 2], [3, 3, 1, 0]], grad=False)]),
                       layer(log_input=False, on=[POSITIVE, B])],
    "TripletMarginLoss": [layer(margin=4.0, on=[A, B, Array(3, 4, seed=7)])],
    # attention, containers
    "MultiheadAttention": [layer(8, 2, on=[SEQUENCE] * 3),
                           layer(8, 2, kdim=6, on=[SEQUENCE, Array(4, 2, 6), SEQUENCE]),
                           layer(8, 2, kdim=6, vdim=6, on=[SEQUENCE, Array(4, 2, 6), Array(4, 2, 6)])],
    "TransformerEncoderLayer": [layer(8, 2, on=SEQUENCE)],
    "ModuleDict": [lambda f, **given: f(**given)], "ModuleList": [lambda f, **given: f(**given)],
    "ParameterDict": [lambda f, **given: f(**given)], "ParameterList": [lambda f, **given: f(**given)],
    "Parameter": [lambda f, **given: f(real(A), **given)],
}


def encoder() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2)


LAYERS["TransformerEncoder"] = [
    lambda f, **given: (made := f(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, **given),
                        made(real(SEQUENCE)))]

ATTENTION: list[Call] = [method(lambda: nn.MultiheadAttention(8, 2), SEQUENCE, SEQUENCE, SEQUENCE),
                         method(lambda: nn.MultiheadAttention(8, 2), SEQUENCE, SEQUENCE, SEQUENCE,
                                attn_mask=alpha.tensor(np.triu(np.ones((4, 4)), 1) > 0))]


def loaded(f: Callable[..., Any], **given: Any) -> Any:
    """Loads a state that lacks a parameter."""
    model = nn.Linear(2, 3)
    state = model.state_dict()
    del state["bias"]
    try:
        return f(model, state, **given), model
    except AlphaError as error:
        return str(error)


def zeroed(f: Callable[..., Any], **given: Any) -> Any:
    """Drops the gradients of a model."""
    model = nn.Linear(2, 3)
    backward(model(real(Array(2, 2))))
    return f(model, **given), model, [p.grad is None for p in model.parameters()]


METHODS: dict[str, list[Call]] = {
    "MultiheadAttention.forward": ATTENTION,
    "TransformerEncoderLayer.forward": [method(lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), SEQUENCE)],
    "TransformerEncoder.forward": [method(encoder, SEQUENCE)],
    "BatchNorm2d.forward": [method(lambda: nn.BatchNorm2d(4), MAP)],
    "MaxUnpool2d.forward": [method(lambda: nn.MaxUnpool2d(2), Array(2, 3, 3, 1), Array(
        values=np.arange(9).reshape(1, 3, 3, 1).repeat(2, 0) * 2, dtype="int64"))],
    "Module.register_buffer": [lambda f, **given: (made := nn.Linear(2, 3), f(made, "a", alpha.ops.ones((2,)),
    **given))],
    "Module.train": [method(lambda: nn.Sequential(nn.Dropout()))],
    "Module.requires_grad_": [method(lambda: nn.Linear(2, 3))],
    "Module.to": [method(lambda: nn.Linear(2, 3))],
    "Module.zero_grad": [zeroed], "Module.load_state_dict": [loaded], "Module.prepare_state_dict": [loaded],
}

INIT: dict[str, list[Call]] = {
    **{name: [lambda f, **given: f(nn.Parameter(alpha.ops.zeros((6, 5))), **given)]
       for name in ("uniform_", "normal_", "trunc_normal_", "orthogonal_", "xavier_uniform_", "xavier_normal_",
                    "kaiming_uniform_", "kaiming_normal_")},
    "gain": [lambda f, **given: f("leaky_relu", **given)],
    "calculate_gain": [lambda f, **given: f("leaky_relu", **given)],
}


def computed(f: Callable[..., Any], **given: Any) -> Any:
    """A layer whose weight is computed, over maps, and what it is then made of."""
    made = f(nn.Conv2d(4, 4, 3), **{"name": "weight", **given})
    results = made(real(MAP))
    backward(results)
    return results, {name: p.grad for name, p in made.named_parameters()}, made.state_dict()


def plain_again(f: Callable[..., Any], **given: Any) -> Any:
    """A weight that was computed."""
    made = f(nn.utils.spectral_norm(nn.Linear(4, 3), given.get("name", "weight")), **given)
    return made.state_dict()


UTILS: dict[str, list[Call]] = {"weight_norm": [computed], "spectral_norm": [computed],
                                "remove_parametrizations": [plain_again]}


def nearby(f: Callable[..., Any], **given: Any) -> Any:
    """SAM around SGD."""
    p = nn.Parameter(real(A))
    made = f(optim.SGD([p], lr=0.1), **given)
    for _ in range(2):
        made.zero_grad()
        (p * p * p).sum().backward()
        made.step(lambda: (p * p * p).sum().backward())
    return p.detach()


def stepped(*, matrices: bool = False, hidden_too: bool = False, first: float = 1.0, falls: bool = False,
            steps: int = 3, **fixed: Any) -> Call:
    """Returns a call that makes an optimizer and takes steps: the parameters, and the state."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        shapes = ((4, 3), (2, 5)) if matrices else ((4, 3), (5,))
        params = [nn.Parameter(real(Array(*shape, seed=k, grad=False))) for k, shape in enumerate(shapes)]
        groups = [{"params": [p], "hidden": k > 0} for k, p in enumerate(params)] if hidden_too else params
        made = f(groups, **{**fixed, **given})
        for step in range(steps):
            for k, p in enumerate(params):
                p.grad = real(Array(*p.shape, seed=10 * step + k, low=-first * 0.1 ** (step * falls),
                                    high=first * 0.1 ** (step * falls), grad=False))
            made.step()
        return [p.detach() for p in params]
    return call


def inside(f: Callable[..., Any], **given: Any) -> Any:
    """Lookahead around SGD."""
    params = [nn.Parameter(real(A))]
    made = f(optim.SGD(params, lr=0.1), **given)
    for step in range(7):
        params[0].grad = real(Array(3, 4, seed=step, grad=False))
        made.step()
    return params[0].detach()


def averaged(f: Callable[..., Any], **given: Any) -> Any:
    """An average of weights that move."""
    model = nn.Linear(2, 3)
    made = f(model, **given)
    for p in model.parameters():
        p.copy_(p.detach() + 1.0)
    made.update()
    return made.state_dict()


def plateau(*values: float, **fixed: Any) -> Call:
    """Returns a call that sees values: the learning rates behind each."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        optimizer = optim.SGD([nn.Parameter(real(A))], lr=0.1)
        made = f(optimizer, **{**fixed, **given})
        rates = []
        for value in values:
            made.step(value)
            rates.append(optimizer.param_groups[0]["lr"])
        return rates
    return call


def scaled(f: Callable[..., Any], **given: Any) -> Any:
    """A scaled loss, and a step with it."""
    p = nn.Parameter(real(A))
    made = f(**given)
    for _ in range(4):
        made.scale((p * p).sum()).backward()
        made.step(optim.SGD([p], lr=0.1))
    return p, made.state_dict()


def bounded(f: Callable[..., Any], **given: Any) -> Any:
    """LossScaler.step with a largest norm."""
    p, made = nn.Parameter(real(A)), optim.LossScaler()
    made.scale((p * p).sum()).backward()
    f(made, optim.SGD([p], lr=0.1), **given)
    return p


def driven(make: Callable[..., Any]) -> Call:
    """Returns a call of a method of an optimizer around one parameter."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        p = nn.Parameter(real(A))
        p.grad = real(B)
        optimizer = make([p])
        return f(optimizer, **given), p.detach(), p.grad is None, p.grad
    return call


def plain(params: list[Any]) -> Any:
    return optim.SGD(params, lr=0.1)


def ruled(f: Callable[..., Any], **given: Any) -> Any:
    """A step of an optimizer with a rule, of 16 bits: the parameter and its state."""
    class Own(optim.Optimizer):
        rule = f("own", "v = 0.5 * v + g; w = w - lr * v", **given)

        def __init__(self, params: list[Any]) -> None:
            super().__init__(params, lr=0.1)
    p = nn.Parameter(real(A).half())
    p.grad = real(B).half()
    optimizer = Own([p])
    optimizer.step()
    return p.detach(), optimizer.state_dict()["tensors"]["0/v"]


FLAT = [1.0, 0.5, 0.48, 0.48, 0.48, 0.48, 0.475, 0.47]
OPTIMIZERS: dict[str, list[Call]] = {
    **{name: [stepped()] for name in ("LARS", "Adan", "ScheduleFreeSGD", "ScheduleFreeAdamW")},
    **{name: [stepped()] for name in ("LAMB", "AdaMod", "Adadelta", "Adagrad", "Adamax", "Lion",
                                      "NAdam", "RMSprop")},
    "SGD": [stepped(lr=0.1), stepped(lr=0.1, momentum=0.5)], "RAdam": [stepped(steps=9)],
    **{name: [stepped(steps=3), stepped(first=4.0, falls=True)] for name in ("Adam", "AdamW")},
    "Muon": [stepped(matrices=True), stepped(matrices=True, first=1e-9)],
    "Adafactor": [stepped(matrices=True), stepped(matrices=True, first=1e-12)],
    "MuonAdamW": [stepped(matrices=True, hidden_too=True), stepped(matrices=True)], "SAM": [nearby],
    "SAM.zero_grad": [driven(lambda ps: optim.SAM(plain(ps)))],
    "Rule": [ruled], "Lookahead": [inside], "ExponentialMovingAverage": [averaged], "LossScaler": [scaled],
    "ReduceLROnPlateau": [plateau(*FLAT, patience=1), plateau(*FLAT, patience=0, factor=0.5, threshold=0.03)],
    "LossScaler.step": [bounded], "Optimizer.step": [driven(plain)], "Optimizer.zero_grad": [driven(plain)],
    "Lookahead.step": [driven(lambda ps: optim.Lookahead(plain(ps)))],
    "Lookahead.zero_grad": [driven(lambda ps: optim.Lookahead(plain(ps)))],
}


def course(*args: Any, **fixed: Any) -> Call:
    """Returns a call of a schedule: the learning rates of 30 steps."""
    def call(f: Callable[..., Any], **given: Any) -> Any:
        lr = f(*args, **{**fixed, **given})
        return [lr(t) for t in range(30)]
    return call


SCHEDULES: dict[str, list[Call]] = {
    "step": [course(1.0, 5)], "multistep": [course(1.0, [5, 9])], "cosine": [course(1.0, 20)],
    "linear": [course(1.0, 20)], "polynomial": [course(1.0, 20)], "one_cycle": [course(1.0, 20)],
    "warm_restarts": [course(1.0, 5)],
}

VALUES: dict[str, list[Any]] = {
    "Rule.over": ["g w"], "Rule.optional": [{"v": "momentum"}],
    "ScheduleFreeSGD.warmup_steps": [3], "ScheduleFreeAdamW.warmup_steps": [3],
    "BCELoss.weight": [SPREAD], "BCEWithLogitsLoss.weight": [SPREAD],
    "weight_norm.name": ["bias"], "weight_norm.dim": [3, None], "spectral_norm.name": ["bias"],
    "spectral_norm.dim": [3], "spectral_norm.eps": [30.0], "remove_parametrizations.name": ["bias"],
    "SqueezeExcite.squeeze_channels": [3], "SqueezeExcite.activation": ["silu", "gelu"],
    "CrossEntropyLoss.weight": [SPREAD], "NLLLoss.weight": [SPREAD], "MultiMarginLoss.weight": [SPREAD],
    "CrossEntropyLoss.ignore_index": [0, 3], "NLLLoss.ignore_index": [0, 3], "BCEWithLogitsLoss.pos_weight": [SPREAD],
    "MultiMarginLoss.p": [2], "TripletMarginLoss.p": [1.0], "PReLU.num_parameters": [4], "GLU.axis": [0],
    "CosineSimilarity.axis": [0], "Softmax.axis": [0], "Embedding.padding_idx": [1], "Linear.flattened": [(2, 2, 3)],
    "MultiheadAttention.kdim": [6, 5], "MultiheadAttention.vdim": [6, 5],
    "MultiheadAttention.forward.key_padding_mask": [Array(values=[[0, 0, 1, 0], [0, 0, 0, 1]], dtype="bool")],
    "MultiheadAttention.forward.attn_mask": [Array(4, 4, grad=False)],
    "TransformerEncoder.forward.mask": [Array(4, 4, grad=False)], "TransformerEncoder.norm": [nn.LayerNorm(8)],
    "TransformerEncoderLayer.forward.src_mask": [Array(4, 4, grad=False)],
    **{f"{name}.forward.src_key_padding_mask": [Array(values=[[0, 0, 1, 0], [0, 0, 0, 1]], dtype="bool")]
       for name in ("TransformerEncoder", "TransformerEncoderLayer")},
    "TransformerEncoder.forward.is_causal": [True], "TransformerEncoderLayer.activation": ["gelu"],
    "TransformerEncoderLayer.dim_feedforward": [16], "BatchNorm2d.forward.residual": [MAP],
    "MaxUnpool2d.forward.output_size": [(7, 7)], "MaxUnpool2d.stride": [3], "ModuleDict.entries": [{"a": nn.ReLU()}],
    "ModuleList.modules": [[nn.Linear(2, 2)]], "ParameterDict.entries": [{"a": nn.Parameter(alpha.ops.ones((2,)))}],
    "ParameterList.parameters": [[nn.Parameter(alpha.ops.ones((2,)))]], "Module.to.dtype": ["float64"],
    "CoConv2d.dilations": [(1, 2)], "CoConv2d.channels": [(2, 3, 3, 0), (3, 3, 1, 1)], "CoConv2d.kernel_size": [5],
    "Flatten.start": [2], "kaiming_uniform_.nonlinearity": ["tanh"],
    "kaiming_normal_.nonlinearity": ["tanh"], "calculate_gain.param": [0.5], "Muon.ns_steps": [3],
    "Lookahead.k": [3], "LossScaler.growth_interval": [2], "LossScaler.initial": [8.0],
    "Optimizer.step.factor": [Array(values=0.5, grad=False)], "Lookahead.step.factor": [Array(values=0.5, grad=False)],
    "ReduceLROnPlateau.eps": [0.5], "ReduceLROnPlateau.min_lr": [0.06], "ReduceLROnPlateau.threshold": [0.5],
    "LossScaler.step.max_norm": [0.5], "warm_restarts.factor": [2], "PairwiseDistance.p": [1.0], "Upsample.size": [(5,
    5)],
    "linear.final_lr": [0.5],
}
del FILTERS
