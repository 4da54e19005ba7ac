"""Which op rides on the op that made its argument: bias, addition, relu and max pool in the pass that writes a result.

    follow(producer, reader)    the decision: one call that does what two would, or None; no tensor is looked at

alpha.inference asks it of calls that were written down. Op by op, a layer calls its op by `later`: the result is a
tensor whose elements are computed at the first read, and the next op of the thread either rides on that call or
has it computed first. So `relu(norm(x))`, `F.relu(norm(x))` and `Sequential(norm, relu)` are one call of one op.

What was called is computed in any case, whether its result is read or not: running statistics move. At most one call
waits in a thread. Two readers of one result get the same elements: an op rides only where the tensor between it and the
producer is gone by the time that its own result is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from alpha.core import versions
from alpha.core.graph import recording, state
from alpha.core.op import Op, observers
from alpha.core.table import here, provides, registry, settle
from alpha.core.tensor import Tensor, made

# Op -> the op that computes it with a bias and an activation
PRODUCTS = {"conv2d": "conv2d_bias_act", "conv2d_bias_act": "conv2d_bias_act", "coconv2d": "coconv2d_bias_act",
            "coconv2d_bias_act": "coconv2d_bias_act", "linear": "linear"}
NORMS = ("batch_norm_act", "batch_norm_add_act")
FUNCTION = "function"   # stands for the op where a layer calls `later_function`
TOGETHER = ("add",)     # readers that ride with a relu behind them alone: by itself a sum is a chain of pointwise ops

_array: Any = Tensor.__dict__["array"]  # the place for it that every tensor has
_node: Any = Tensor.__dict__["_node"]


class Step(NamedTuple):
    """An op, what it is called with, and its canonical attributes; the args may be tensors or what stands for them."""

    op: str
    args: Sequence[Any]
    attrs: dict[str, Any]


RELU = Step("relu", [None], {})


# ---- the decision ----------------------------------------------------------------------------------------------------


def follow(producer: Step, reader: Step) -> Step | None:
    """Returns the call that does what a producer and the reader of its result do; None where no op does both.

    Args:
        reader: its first arg stands for the result.  The second arg of `add` is the other operand, of the
            result's shape, dtype and device.
    """
    op, args, attrs = producer
    if reader.op == "relu":
        return _with_relu(producer)
    if reader.op == "add" and op == "batch_norm_act" and attrs["activation"] is None:
        return Step("batch_norm_add_act", [*args, reader.args[1]], attrs)
    if (reader.op == "max_pool2d" and op == "conv2d_bias_act" and attrs["activation"] == "relu"
            and attrs["groups"] == 1 and attrs["dilation"] == (1, 1)):
        kept = {name: attrs[name] for name in ("stride", "padding", "algorithm")}
        window = {f"pool_{name}": reader.attrs[name] for name in ("kernel_size", "stride", "padding")}
        return Step("conv_relu_pool", args, {**kept, **window})
    return None


def _with_relu(producer: Step) -> Step | None:
    op, args, attrs = producer
    if attrs.get("activation") is not None:
        return None
    if op in PRODUCTS:
        return Step(PRODUCTS[op], [*args, None] if len(args) == 2 else args, {**attrs, "activation": "relu"})
    return Step(op, args, {**attrs, "activation": "relu"}) if op in (*NORMS, FUNCTION) else None


# ---- op by op --------------------------------------------------------------------------------------------------------


def _settled(slot: Any) -> Any:
    """Returns the property that computes a tensor before a slot of it is read or written."""
    def get(t: Tensor) -> Any:
        _array.__get__(t).settle()
        return slot.__get__(t)

    def put(t: Tensor, value: Any) -> None:
        _array.__get__(t).settle()
        slot.__set__(t, value)
    return property(get, put)


class Waiting(Tensor):
    """A tensor whose elements are computed, and its place in the graph found, when either is read."""

    __slots__ = ()

    array = _settled(_array)
    _node = _settled(_node)


class Call:
    """A call that waits.

    Attributes:
        op, args, attrs: what computes it all, attrs in canonical form; or `run`, with the same arguments.
        kept: whether a call of the same settings gets the same attrs.
        ready: what Op.finish takes, where nothing rides on the call.
        before, reader: the call that this one reads, with the op that reads it, where it rides on one.
        tensor: the result, held weakly; result: the same, once it is there, for a call that rides on this one.
        recorded: whether the graph was recorded.
        layers: which were being called; first: of the first call that this call rides on, for all.
    """

    __slots__ = ("args", "attrs", "before", "first", "kept", "layers", "lock", "op", "reader", "ready", "recorded",
                 "result", "run", "tensor")

    def __init__(self, op: Any, args: Sequence[Any], attrs: dict[str, Any], kept: bool, ready: Any = None,
                 before: Call | None = None, reader: Step | None = None) -> None:
        self.op, self.args, self.attrs, self.kept = op, args, attrs, kept
        self.ready, self.before, self.reader = ready, before, reader
        self.recorded, self.lock = recording.get(), here.lock
        self.layers = self.first = state.layers
        self.result: Tensor | None = None
        self.tensor: Any = None
        self.run: Callable[..., Tensor] | None = None
        if before is not None:
            self.first, self.run = before.first, before.run

    @property
    def step(self) -> Step:
        return Step(self.op.name if self.run is None else FUNCTION, self.args, self.attrs)

    def begin(self, shape: Any, dtype: str, device: str, needs: bool) -> Tensor:
        """Returns the result, which waits, as the one thing that waits in this thread.

        needs: whether anything that is read wants a gradient.
        """
        t = made(Tensor, self, shape, dtype, device)
        t._requires_grad = needs and self.recorded
        t.__class__ = Waiting
        self.tensor, here.call = ref(t), self
        return t

    def settle(self) -> None:
        """Computes the result, which is a plain tensor from then on."""
        with self.lock:
            if here.call is self:
                here.call = None
            if self.args is None:
                return
            layers, state.layers = state.layers, self.layers
            token = None if recording.get() == self.recorded else recording.set(self.recorded)
            try:
                y = self._computed()
            finally:
                state.layers = layers
                if token is not None:
                    recording.reset(token)
            self.args = self.ready = self.before = self.reader = self.run = None  # type: ignore[assignment]
            t = self.tensor()
            if t is not None:
                _array.__set__(t, y.array)
                _node.__set__(t, y._node)
                t._requires_grad, t.__class__ = y._requires_grad, Tensor
                self.result = t

    def _computed(self) -> Tensor:
        if self.ready is not None:
            return self.op.finish(*self.ready)[0]  # type: ignore[no-any-return]
        if self.before is not None and self.reader is not None:
            between = self.before.there(self.reader.op in TOGETHER)
            state.layers = self.first if between is None else self.layers
            if between is not None:
                args = [between if x is None else x for x in self.reader.args]
                return registry[self.reader.op]._run(args, dict(self.reader.attrs))[0]  # type: ignore[no-any-return]
        if self.run is not None:
            return self.run(*self.args, **self.attrs)
        return self.op.finish(*self.op.prepare(self.args, self.attrs, self.kept))[0]  # type: ignore[no-any-return]

    def there(self, wanted: bool = False) -> Tensor | None:
        """Returns the result, computed, where it, or its summand, has another reader, or it is wanted; else None."""
        t = self.tensor() if self.result is None else self.result
        if t is None:
            if wanted or (self.before is not None and self.before.there() is not None):
                state.layers = self.layers
                self.result = self._computed()
            return self.result
        if t.__class__ is Waiting:
            self.settle()
        return t


def later(op: Any, *args: Any, **attrs: Any) -> Tensor:
    """Calls an op of one result, for a layer: what is wrong is refused now; the result may wait for its first reader.

    It does not wait where each op is observed, or where other libraries may change its arguments. A check for NaN
    looks at the joined call, so that the kernels are the same with it.
    """
    if here.call is not None:
        _counted(here.call, op, args, attrs)
        here.call.settle()
    if observers:
        return op(*args, **attrs)  # type: ignore[no-any-return]
    bound, canonical, kept = op.bind(args, attrs)
    ready = op.prepare(bound, canonical, kept)
    settled, needs = ready[0], ready[4] is not None
    if settled is None:
        return op(*bound, **canonical)  # type: ignore[no-any-return]
    if settled.empty or not _has_followers(op.name, canonical, needs and recording.get()) or (
            versions.are_any_shared() and _shared(bound)):
        return op.finish(*ready)[0]  # type: ignore[no-any-return]
    shape, dtype = settled.outs[0]
    return Call(op, bound, canonical, kept, ready).begin(shape, dtype, settled.where, needs)


def later_function(run: Callable[..., Tensor], x: Tensor, *args: Any) -> Tensor:
    """Calls run(x, *args, activation=None) or, where a relu reads its result, activation="relu".

    The result has the shape, dtype and device of x.
    """
    settle()
    if observers:
        return run(x, *args, activation=None)
    needs = any(isinstance(t, Tensor) and t.requires_grad for t in (x, *args))
    call = Call(None, (x, *args), {"activation": None}, False)
    call.run = run
    return call.begin(x.shape, x.dtype, x.device, needs)


def _has_followers(op: str, attrs: dict[str, Any], graph: bool) -> bool:
    """Tells whether anything may ride on a call; graph: whether it leaves a node."""
    if attrs.get("activation") is not None:
        return op == "conv2d_bias_act" and not graph    # a max pool
    return not attrs.get("for_norm")    # a norm reads it, and has asked already


def _shared(args: Sequence[Any]) -> bool:
    """Tells whether other libraries may change what a call reads."""
    return versions.shared([(t.device, t.array) for t in args if isinstance(t, Tensor)])


@provides("ride")
def ride(op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> Tensor | None:
    """Returns the result of an op that rides on the call that waits; else has that computed, and returns None."""
    call: Call = here.call
    rides = RIDERS.get(op.name)
    found = rides(call, op, args, attrs) if rides and call.recorded == recording.get() and not observers else None
    if found is None:
        call.settle()
    return found


_known: dict[tuple[str, str, int], tuple[dict[str, Any], dict[str, Any], bool]] = {}   # see `_canonical`
MOST = 1024


def _canonical(call: Call, step: Step, reader: str) -> tuple[dict[str, Any], bool]:
    """Returns the canonical attrs of a step that follows a call, and whether the next such call gets the same dict."""
    key = step.op, reader, id(call.attrs)
    found = _known.get(key)
    if found is not None and found[0] is call.attrs:
        return found[1:]
    attrs, kept = registry[step.op].bind(step.args, dict(step.attrs))[1:]
    if call.kept and kept and reader != "max_pool2d":
        if len(_known) >= MOST:
            _known.clear()
        _known[key] = call.attrs, attrs, kept
    return attrs, kept


def _joined(call: Call, reader: Step, shape: Any, needs: bool, args: Sequence[Any] | None = None) -> Tensor | None:
    """Returns the result of a reader that rides on a call; None where it cannot.

    args: of the reader, None for the result of the call, where they stand in another order.
    """
    step, t = follow(call.step, reader), call.tensor()
    if step is None or t is None:
        return None
    if call.run is not None:
        op, attrs, kept = None, step.attrs, False
    else:
        op, (attrs, kept) = registry[step.op], _canonical(call, step, reader.op)
    made_of = Call(op, step.args, attrs, kept, None, call, reader if args is None else reader._replace(args=args))
    return made_of.begin(shape, t.dtype, t.device, needs)


def _relu(call: Call, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> Tensor | None:
    t = call.tensor()
    if attrs or len(args) != 1 or args[0] is not t or t is None:
        return None
    return _joined(call, RELU, t.shape, t._requires_grad)


def _add(call: Call, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> Tensor | None:
    t = call.tensor()
    if attrs or len(args) != 2 or t is None or (args[0] is t) == (args[1] is t):
        return None
    other = args[1] if args[0] is t else args[0]
    if not isinstance(other, Tensor) or other.__class__ is Waiting:     # the latter is another thread's
        return None
    if (other.shape, other.dtype, other.device) != (t.shape, t.dtype, t.device):
        return None
    return _joined(call, Step("add", [None, other], {}), t.shape, t._requires_grad or other._requires_grad,
                   [None if x is t else x for x in args])


def _pool(call: Call, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> Tensor | None:
    t = call.tensor()
    if not args or args[0] is not t or t is None or t._requires_grad or call.step.op != "conv2d_bias_act":
        return None
    _, window, _ = op.bind(args, dict(attrs))
    return _joined(call, Step("max_pool2d", [None], window), op.shape(t, **window)[0], False)


def _counted(call: Call, op: Op, args: Sequence[Any], attrs: dict[str, Any]) -> None:
    """Has a convolution count what a batch norm in training, which reads it, begins with."""
    if (op.name in NORMS and attrs.get("training", True) and args and args[0] is call.tensor()
            and call.before is None and call.attrs.get("for_norm") is False):
        step = call.step._replace(attrs={**call.attrs, "for_norm": True})
        (call.attrs, call.kept), call.ready = _canonical(call, step, op.name), None


RIDERS: dict[str, Any] = {"relu": _relu, "add": _add, "max_pool2d": _pool, **dict.fromkeys(NORMS, _counted)}
