"""Wrong and right calls of everything public, drawn from the signatures.

Right values come from what a parameter may be (core.inputs.kinds), wrong ones from a pool of nasty ones; a call gives
mostly right ones, so that it gets far. Whatever is called succeeds or raises AlphaError.
"""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np

import alpha
from alpha import checkpoint, data, nn, ops, optim, training
from alpha import random as numbers
from alpha.core.config import config
from alpha.core.inputs import kinds, sizes
from alpha.core.inputs.arguments import kinds_of
from alpha.core.inputs.dtypes import DTYPES
from alpha.core.op import Op, registry
from alpha.errors import AlphaError, shown
from alpha.nn import init
from alpha.ops import conv_desc

ROOM = 1 << 24      # bytes that one tensor may take, so that a right call stays small
LONGEST_AXIS = 64   # positions of a convolution or a pool

Parameter = tuple[str, kinds.Kind | None, bool]  # name, kind, whether there is a default

DTYPE_NAMES = sorted(DTYPES - {"bfloat16"})
SHAPES = [(), (0,), (1,), (2,), (3,), (2, 3), (3, 2), (3, 3), (0, 3), (3, 0), (1, 3), (2, 1), (2, 3, 4), (1, 4, 4, 2),
          (2, 5, 5, 2), (2, 4, 4, 4), (4, 3, 3, 2), (2, 1, 1, 2), (0, 4, 4, 2), (1, 4, 0, 2), (1,) * 9]


def a_tensor(rng: random.Random) -> alpha.Tensor:
    """Returns a tensor: mostly float32 of an ordinary shape, now and then of any other kind."""
    shape = rng.choice(SHAPES)
    dtype = "float32" if rng.random() < 0.7 else rng.choice(DTYPE_NAMES)
    values = np.random.default_rng(rng.getrandbits(32)).normal(0, 2, shape)
    if dtype in ("uint8", "bool"):
        values = np.abs(values)
    if rng.random() < 0.05 and "float" in dtype and values.size:
        values.reshape(-1)[0] = rng.choice([nan, inf, -inf])
    return alpha.tensor(values.astype(dtype), requires_grad="float" in dtype and rng.random() < 0.4)


def a_nasty_value(rng: random.Random) -> Any:
    """Returns what belongs nowhere, or hardly anywhere."""
    make = rng.choice([
        lambda: rng.choice([None, "x", "", "2", b"x", [], (), {}, set(), True, False, Ellipsis, 1j, object(), int,
                            nn.ReLU]),
        lambda: rng.choice([nan, inf, -inf, 1e308, -1e308, 1e-320, 0.0, -0.0, 0.5, 1.5, -1.0, 2.0]),
        lambda: rng.choice([-1, 0, 1, 2, 300, -300, 2 ** 31, 2 ** 40, 2 ** 62, 2 ** 63, -2 ** 63, 2 ** 64, 10 ** 400]),
        lambda: rng.choice([np.int64(2), np.int8(-1), np.float32(0.5), np.float64(nan), np.bool_(True), np.str_("x"),
                            np.array(2), np.ones((2, 3)), np.zeros((0,)), np.array([1, 0]), np.array(["a"]),
                            np.datetime64("2020-01-01"), np.float16(1)]),
        lambda: rng.choice([(1, 2), [0, 1], (1, 2, 3), (0.5, 0.5), ("a", "b"), [None], [[1, 2], [3]], (True, 1),
                            ((1, 1), (0, 2)), (2 ** 40, 2 ** 40), (2 ** 62, 0), range(3), (-1,), (1,) * 70]),
        lambda: slice(*[rng.choice([None, 0, 1, -1, "x", 1.5, 2 ** 64]) for _ in range(3)]),
        lambda: a_tensor(rng),
        lambda: [a_tensor(rng) for _ in range(rng.randrange(3))],
        lambda: (a_tensor(rng), a_tensor(rng)),
        lambda: iter([a_tensor(rng)]),
        lambda: nn.Linear(2, 3),
        lambda: lambda *a: None,
    ])
    return make()


def a_right_value(rng: random.Random, kind: kinds.Kind | None, name: str) -> Any:
    """Returns a value that the kind takes, or that suits the name of the parameter."""
    if isinstance(kind, kinds.Either):
        return a_right_value(rng, rng.choice(list(kind.kinds)), name)
    if isinstance(kind, kinds.Many):
        count = kind.length or rng.randrange(1, 4)
        return [a_right_value(rng, kind.kind, name) for _ in range(count)]
    if isinstance(kind, kinds.Pair_):
        return rng.choice([1, 1, 2, 3, (1, 2), (2, 2), [3, 1], 0])
    if isinstance(kind, kinds.Tuples):
        return [tuple(rng.randrange(3) for _ in range(kind.length)) for _ in range(rng.randrange(5))]
    if isinstance(kind, kinds.Whole):
        return rng.choice([0, 1, 1, 2, 3, 4, -1])
    if isinstance(kind, (kinds.Ints, kinds.Axes_)):
        return rng.choice([None, 0, -1, (0,), (0, 1), [1], rng.choice(SHAPES), (1, 0), (2, -1), 6])
    if isinstance(kind, (kinds.Real, kinds.Number_, kinds.Rate)):
        return rng.choice([0.1, 0.5, 0.9, 1.0, 0, 1, 2.5, 1e-8, -1.0])
    if isinstance(kind, kinds.Flag):
        return rng.random() < 0.5
    if isinstance(kind, kinds.Choice):
        return rng.choice(kind.names)
    if isinstance(kind, kinds.Nothing):
        return None
    if isinstance(kind, kinds.Function):
        return rng.choice([ops.relu, ops.exp, lambda x, *rest: ops.relu(x), lambda *x: list(x), lambda *x: None])
    named = {"dtype": DTYPE_NAMES, "device": ["cpu"], "source": ["cpu"], "where": ["x"],
             "nonlinearity": ["relu", "tanh"], "key": [0, -1, slice(None), (0, 1), [0, 1], slice(0, 4, 2), ...]}
    return rng.choice(named[name]) if name in named else a_tensor(rng)


def draw(rng: random.Random, kind: kinds.Kind | None, name: str, nasty: float) -> Any:
    """Returns a right value or, with probability `nasty`, a nasty one."""
    return a_nasty_value(rng) if rng.random() < nasty else a_right_value(rng, kind, name)


class Case:
    """A call that is being made, and its text."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder = rng, folder
        self.text = ""
        self.nasty = rng.choice([0.0, 0.1, 0.3, 1.0])

    def arguments(self, parameters: list[Parameter], strict: bool) -> tuple[list[Any], dict[str, Any]]:
        """Returns positional and named arguments.  `strict`: seldom too few or too many, which alpha must refuse."""
        args: list[Any] = []
        named: dict[str, Any] = {}
        for name, kind, optional in parameters:
            if self.rng.random() < (0.6 if optional else 0.01 if strict else 0.0):
                continue
            value = draw(self.rng, kind, name, self.nasty)
            if strict and len(args) == [p for p, _, _ in parameters].index(name) and self.rng.random() < 0.7:
                args.append(value)
            else:
                named[name] = value
        if strict and self.rng.random() < 0.02:
            named["unknown"] = 1
        return args, named

    def call(self, name: str, f: Callable[..., Any], parameters: list[Parameter]) -> Any:
        """Calls a function with drawn arguments."""
        made = f.__init__ if isinstance(f, type) else getattr(f, "__self__", f)
        strict = isinstance(made, Op) or hasattr(made, "__wrapped__") or made is nn.Module.__init__
        args, named = self.arguments(parameters, strict)
        self.text += f"{name}({', '.join([shown(a) for a in args] + [f'{k}={shown(v)}' for k, v in named.items()])}) "
        return f(*args, **named)


def parameters_of(f: Any) -> list[Parameter]:
    """Returns the parameters of an op, a function or a class."""
    if isinstance(f, Op):
        tensor = kinds.Instance(alpha.Tensor)
        return [(a.name, kinds.Many(tensor) if a.many else tensor, a.optional) for a in f.args] + [
            (name, f.kinds.get(name), name in f.defaults) for name in f.attr_names]
    signature = f.__init__ if isinstance(f, type) else f
    found = kinds_of(inspect.unwrap(signature))
    return [(p.name, found.get(p.name), p.default is not p.empty) for p in inspect.signature(f).parameters.values()
            if p.name != "self" and p.kind is not p.VAR_POSITIONAL]


def backward(rng: random.Random, result: Any) -> None:
    """Goes back from the tensors of a result that have a gradient."""
    for t in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(t, alpha.Tensor) and t.requires_grad and rng.random() < 0.8:
            t.sum().backward(create_graph=rng.random() < 0.2)


# ---- what is called --------------------------------------------------------------------------------------------------

REGISTERED = {name: op for name, op in registry.items() if op.__module__.startswith("alpha.")}
FUNCTIONS = {name: getattr(ops, name) for name in ops.__all__} | {
    "tensor": alpha.tensor, "manual_seed": alpha.manual_seed, "set_state": numbers.set_state, "grad": alpha.grad,
    "gradcheck": alpha.gradcheck, "capture": alpha.capture, "precision": alpha.precision, "no_grad": alpha.no_grad,
    "from_dlpack": alpha.from_dlpack, "load": checkpoint.load, "to_torch_state_dict": checkpoint.to_torch_state_dict,
    **{f"init.{name}": getattr(init, name) for name in vars(init) if name.endswith("_") and not name.startswith("_")}}
LAYERS = {name: cls for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, nn.Module)}
OPTIMIZERS = {name: cls for name, cls in vars(optim).items() if isinstance(cls, type)
              and issubclass(cls, optim.Optimizer) and cls not in (optim.Optimizer, optim.Composed)}
SCHEDULES = {name: f for name, f in vars(optim.schedule).items() if inspect.isfunction(f)
             and f.__module__ == optim.schedule.__name__ and not name.startswith("_")}
DATA = {name: getattr(data, name) for name in data.__all__ if name not in ("ImageFolder", "register_dataset")}
UFUNCS = [getattr(np, name) for name in ("sin", "add", "multiply", "power", "less", "equal", "maximum", "invert",
                                         "arctan2", "matmul", "bitwise_and", "divmod", "isnan")]
OPERATORS = ("__getitem__", "__add__", "__rsub__", "__mul__", "__truediv__", "__pow__", "__matmul__", "__eq__",
             "__index__", "__setitem__", "__iadd__", "__ifloordiv__", "__imod__", "__ior__", "__rmatmul__")
METHODS = [name for name in dir(alpha.Tensor) if callable(getattr(alpha.Tensor, name)) and (
    not name.startswith("_") or name in OPERATORS) and name not in ("seed", "edge", "register_hook")]


def call_op(case: Case) -> None:
    name = case.rng.choice(sorted(REGISTERED))
    f = REGISTERED[name]
    backward(case.rng, case.call(name, f.full if case.rng.random() < 0.1 else f, parameters_of(f)))


def call_function(case: Case) -> None:
    name = case.rng.choice(sorted(FUNCTIONS))
    backward(case.rng, case.call(name, FUNCTIONS[name], parameters_of(FUNCTIONS[name])))


def call_method(case: Case) -> None:
    name, t = case.rng.choice(METHODS), a_tensor(case.rng)
    case.text = f"{shown(t)}."
    args: list[Any] = []
    named: dict[str, Any] = {}
    for p in list(inspect.signature(getattr(alpha.Tensor, name)).parameters.values())[1:]:
        value = draw(case.rng, kinds_of(getattr(alpha.Tensor, name)).get(p.name), p.name, case.nasty)
        if p.kind is p.VAR_POSITIONAL:
            args += [value] if case.rng.random() < 0.5 else [value, a_nasty_value(case.rng)]
        elif p.default is p.empty or case.rng.random() < 0.5:
            named[p.name] = value
    case.text += f"{name}({', '.join([shown(a) for a in args] + [f'{k}={shown(v)}' for k, v in named.items()])}) "
    backward(case.rng, getattr(t, name)(*args, **named))


def call_data(case: Case) -> None:
    """Makes data sets, loaders and augmentations, and takes from them what a key may name."""
    name, rng = case.rng.choice(sorted(DATA)), case.rng
    items = data.TensorDataset(np.zeros((5, 4, 4, 1), np.uint8), np.arange(5))
    if name in ("TensorDataset", "ConcatDataset", "Subset", "DataLoader", "random_split") and rng.random() < 0.7:
        parts = [items, [1, 2], rng.choice([items, a_nasty_value(rng)])]
        more: list[Any] = {"TensorDataset": parts[2:], "ConcatDataset": [parts], "random_split": [items, [3, 2]]}.get(
            name, [items, rng.choice([[0, 1], range(3), 2, a_nasty_value(rng)])])
        more[-1] = a_nasty_value(rng) if rng.random() < case.nasty else more[-1]
        case.text = f"{name}({', '.join(map(shown, more))}) "
        made = DATA[name](*more)
    else:
        made = case.call(name, DATA[name], parameters_of(DATA[name]))
    key = rng.choice([0, 1, True, a_nasty_value(rng)])
    case.text += f"[{shown(key)}]"
    if hasattr(made, "__getitem__") and not isinstance(made, (list, tuple)):
        with suppress(IndexError):  # NumPy's, by which a loop over items ends
            made[key]
    if isinstance(made, data.DataLoader):
        next(iter(made))


def call_fit(case: Case) -> None:
    """Takes a step of training, with settings some of which are nasty; what may be a function is none that fails."""
    model, few = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), (np.zeros((4, 4, 4, 1), np.uint8), np.arange(4) % 3)
    settings = {}
    for name, kind, _ in parameters_of(training.fit):
        value = draw(case.rng, kind, name, 1.0)
        left_out = name in ("model", "workers", "processes", "max_steps") or callable(value)
        if case.rng.random() < 0.1 and not left_out:
            settings[name] = value
    settings = {"train_data": few, "val_data": few, "max_steps": 1, "progress": False, **settings}
    case.text += f"fit({', '.join(f'{k}={shown(v)}' for k, v in settings.items())}) "
    training.fit(model, **settings)


def call_numpy(case: Case) -> None:
    """Calls a function of NumPy with tensors."""
    ufunc = case.rng.choice(UFUNCS)
    args = [a_nasty_value(case.rng) if case.rng.random() < case.nasty else a_tensor(case.rng) for _ in
            range(ufunc.nin - 1)] + [a_tensor(case.rng)]
    case.text = f"np.{ufunc.__name__}({', '.join(map(shown, args))})"
    backward(case.rng, ufunc(*args))


def call_layer(case: Case) -> None:
    name = case.rng.choice(sorted(LAYERS))
    cls = LAYERS[name]
    layer = case.call(name, cls, parameters_of(cls))
    if case.rng.random() < 0.1:
        case.call(".to", layer.to, [("device", None, True), ("dtype", None, True)])
    if case.rng.random() < 0.2:
        layer.eval()
    xs = [draw(case.rng, None, "x", case.nasty / 2) for _ in range(2 if "Loss" in name else 1)]
    case.text += f"({', '.join(map(shown, xs))})"
    backward(case.rng, layer(*xs))


def call_optimizer(case: Case) -> None:
    rng = case.rng
    name = rng.choice(sorted(OPTIMIZERS))
    params = [nn.Parameter(ops.randn((2, 3))), nn.Parameter(ops.randn((3,)))]
    for p in params:
        p.grad = ops.randn(p.shape)
    _, *settings = parameters_of(OPTIMIZERS[name])
    given = params if rng.random() < 0.8 else a_nasty_value(rng)
    groups = [{"params": given, **case.arguments([(n, k, True) for n, k, _ in settings], False)[1]}]
    case.text += f"{shown(given)}, {[{k: shown(v) for k, v in g.items() if k != 'params'} for g in groups]} "
    optimizer = case.call(name, lambda *a, **k: OPTIMIZERS[name](rng.choice([given, groups]), *a, **k), settings)
    for _ in range(2):
        optimizer.step()
    factor = draw(rng, None, "factor", case.nasty)
    case.text += f".step({shown(factor)})"
    optimizer.step(factor)


def call_schedule(case: Case) -> None:
    name = case.rng.choice(sorted(SCHEDULES))
    lr = case.call(name, SCHEDULES[name], parameters_of(SCHEDULES[name]))
    t = case.rng.choice([0, 1, 5, 100, 10 ** 6])
    case.text += f"({t})"
    assert lr(t) >= 0


def call_helper(case: Case) -> None:
    rng = case.rng
    p = nn.Parameter(ops.randn((2, 3)))
    p.grad = ops.randn((2, 3))
    name, f, parameters = rng.choice([
        ("clip_grad_norm", optim.clip_grad_norm, parameters_of(optim.clip_grad_norm)),
        ("clip_grad_value", optim.clip_grad_value, parameters_of(optim.clip_grad_value)),
        ("ExponentialMovingAverage", optim.ExponentialMovingAverage, parameters_of(optim.ExponentialMovingAverage)),
        ("LossScaler", optim.LossScaler, parameters_of(optim.LossScaler)),
        ("Parameter", nn.Parameter, parameters_of(nn.Parameter))])
    made = case.call(name, f, parameters)
    if isinstance(made, optim.LossScaler):
        case.call("scale", made.scale, [("loss", None, False)])
        case.call("step", lambda max_norm: made.step(optim.SGD([p], lr=0.1), max_norm),
                  [("max_norm", kinds.Number_(), False)])


MODULE_METHODS = ["train", "requires_grad_", "to", "load_state_dict", "get_submodule", "register_buffer",
                  "register_parameter", "add_module", "append", "extend", "insert", "pop", "clear", "update", "get",
                  "register_forward_hook", "register_forward_pre_hook", "register_backward_hook",
                  "__getitem__", "__setitem__", "__delitem__", "__contains__", "__add__", "__iadd__"]


def call_module(case: Case) -> None:
    """Calls a method of a small model, which keeps its parameters whatever it is asked."""
    rng = case.rng
    layers = {"0": nn.Linear(2, 3), "1": nn.BatchNorm2d(3), "2": nn.ReLU()}
    model: Any = nn.ModuleDict(layers) if rng.random() < 0.2 else nn.Sequential(layers)
    before = {name: t.numpy() for name, t in model.state_dict().items()}
    name = rng.choice(MODULE_METHODS)
    method = getattr(model, name if hasattr(model, name) else "to")
    args = [draw(rng, None, "x", 1.0) for p in inspect.signature(method).parameters.values()
            if p.default is p.empty or rng.random() < 0.3]
    if name == "load_state_dict" and rng.random() < 0.7:
        args[0] = {key: a_nasty_value(rng) if rng.random() < 0.2 else value for key, value in before.items()}
    case.text += f"{name}({', '.join(map(shown, args))}) "
    method(*args)


def call_checkpoint(case: Case) -> None:
    """Saves and loads what is no state, by what is no path."""
    rng, place = case.rng, case.folder / "a.safetensors"
    path = place if rng.random() < 0.8 else rng.choice([None, 3, b"\0", "\0", 1.5, [], case.folder, object()])
    state = {rng.choice(["a", "", "a/b", "__metadata__", "\udc80", 3, None]): a_nasty_value(rng) for _ in range(2)}
    tensors = rng.choice([state, {"a": a_tensor(rng)}, a_nasty_value(rng)])
    metadata = rng.choice([None, None, {"a": a_nasty_value(rng)}, a_nasty_value(rng)])
    case.text += f"save({shown(path)}, {shown(tensors)}, {shown(metadata)}) "
    model = nn.Linear(2, 3) if rng.random() < 0.8 else a_nasty_value(rng)
    rng.choice([lambda: checkpoint.save(path, tensors, metadata), lambda: checkpoint.save_torch(path, model),
                lambda: checkpoint.from_torch_state_dict(tensors, model), lambda: checkpoint.load_torch(path, model)])()
    if place.exists():
        checkpoint.load(place)


def call_config(case: Case) -> None:
    """Works in a block with settings, and has the old ones behind it."""
    names = ["precision", "num_threads", "check_nan", "cpu_kernels", "nosuch"]
    chosen = case.rng.sample(names, case.rng.choice([1, 1, 2]))
    settings = {name: draw(case.rng, kinds.Whole(), name, 0.7) for name in chosen}
    case.text += f"config({settings}) "
    before = [getattr(config, name) for name in names[:-1]]
    try:
        with config(**settings):
            (a_tensor(case.rng) * 2).sum()
    finally:
        assert before == [getattr(config, name) for name in names[:-1]]


CALLS = [call_op] * 4 + [call_function] * 4 + [call_method] * 2 + [call_layer] * 3 + [call_data] * 2 + [
    call_fit, call_numpy, call_optimizer, call_schedule, call_helper, call_module, call_checkpoint, call_config]


@contextmanager
def small() -> Iterator[None]:
    """For a block: a host without room for large tensors, which are then refused."""
    before = sizes.host_nbytes, conv_desc.LONGEST_AXIS
    from alpha.cpu import memory  # not before a backend is wanted
    sizes.host_nbytes = memory.host_nbytes = lambda: ROOM  # type: ignore[assignment]
    conv_desc.LONGEST_AXIS = LONGEST_AXIS
    try:
        yield
    finally:
        sizes.host_nbytes = memory.host_nbytes = before[0]
        conv_desc.LONGEST_AXIS = before[1]


def attempt(rng: random.Random, folder: Path) -> str:
    """Makes one call.  Raises what is neither success nor AlphaError, with the text of the call."""
    case = Case(rng, folder)
    outcome = "fine"
    with warnings.catch_warnings(), small():
        warnings.simplefilter("ignore")  # overflows of the arithmetic
        try:
            rng.choice(CALLS)(case)
        except AlphaError as error:
            outcome = str(error)
            assert "\nhelp: " in outcome and len(outcome) < 1500, f"{case.text}: {outcome}"
        except Exception as error:
            error.args = (f"{case.text}: {error}",)
            raise
    return f"{case.text}: {outcome}"
