"""inference: a trained model as a callable that gives the model's results in inference mode, folded and fast.

    run = alpha.inference(model, x)     # x: an example of the input: shape, dtype and device count
    y = run(x)
    print(run)                          # folds and fusions, launches, memory
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from alpha.capture import capture
from alpha.core import versions
from alpha.core.config import config
from alpha.core.device import FLOAT_DTYPES, get_backend
from alpha.core.errors import ArgumentError, DeviceError, DTypeError, GraphError, ShapeError, message, shown
from alpha.core.graph import grad_enabled, no_grad
from alpha.core.inputs.arguments import bound
from alpha.core.precision import mode
from alpha.core.tensor import Tensor
from alpha.inference.branches import Replay
from alpha.inference.passes import improve, layer
from alpha.inference.report import MIB, Report
from alpha.inference.trace import WHERE, examples_of, trace
from alpha.nn import Module

ARRAY = operator.attrgetter("array")


@bound
def inference(model: Module, example: Tensor | Sequence[Tensor]) -> Runner:
    """Returns a function that gives a model's results in inference mode, for inputs like the example.

    Three calls of the model are traced, on the example and on other data. Batch norms are folded into the convolution
    or the linear layer in front of them where nothing else reads its result, relu and additions are made by
    the convolution before them, weights are prepared once. What is left is recorded and repeated (alpha.capture): as
    one launch on a GPU, by kernels one after the other on the CPU, between buffers that are planned once.
    Args:
        model: a module, on its device; its mode (training or not) does not matter and is left as it is.
        example: a tensor, or a tuple of the model's inputs; its shape, dtype and device are those of all calls.
    Returns:
        a Runner: `run(x)` returns new tensors, without a graph. It keeps the precision in which it was made. If weights
        or running statistics are changed, the next call folds them again.
    Raises:
        ArgumentError: model or example are something else.
        ConfigError: the model has hooks, changes or draws something in its forward pass, or returns no tensors.
        ShapeError: the example has no elements.
        DeviceError: model and example are on two devices, or the model moves tensors.
        GraphError: the model's calls depend on the elements of its input.
    """
    examples = examples_of(WHERE, model, example)
    if not all(t.size for t in examples):
        raise ShapeError(message(WHERE, f"the example has shape {next(t.shape for t in examples if not t.size)}, which "
                                 "has no elements", "pass an input with at least one sample"))
    for t in (*model.parameters(), *(b for _, b in model.named_buffers())):
        if t.device != examples[0].device:
            raise DeviceError(message(WHERE, f"the model is on {t.device}, the example on {examples[0].device}",
                                      f'move one of them: x.to("{t.device}")'))
    return Runner(model, [t.detach() for t in examples])


class Runner:
    """A model made ready for inference; see `inference`.  May be called by several threads, one after the other."""

    _captured: Any

    def __init__(self, model: Module, examples: Sequence[Tensor]) -> None:
        self.model, self.examples = model, examples
        self.specs = [(t.shape, t.dtype, t.device) for t in examples]
        self.precision = config.precision
        self._lock = threading.RLock()
        self._build()

    def __call__(self, *inputs: Tensor, **named: Any) -> Any:
        """Returns the model's results for inputs of the shapes, dtypes and device of the example, without names.

        Raises ArgumentError, ShapeError, DTypeError or DeviceError for others; GraphError where a gradient is wanted.
        """
        if named:
            raise ArgumentError(message(WHERE, f"an input is given by name, {', '.join(named)}",
                                        "pass the inputs in the order of the example: run(x)"))
        self._check(inputs)
        with self._lock:
            if self._is_stale():
                self._build()
            results = self._run(inputs)
        return results[0] if self.program.single else tuple(results)

    def report(self) -> Report:
        """Returns what was folded and fused, the launches that are left, and the memory planned."""
        return self._report

    def __str__(self) -> str:
        return str(self._report)

    def __repr__(self) -> str:
        return f"<inference of {self._report.title}>"

    def _check(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self.specs):
            raise ArgumentError(message(WHERE, f"{len(inputs)} inputs are given, the example had {len(self.specs)}",
                                        "pass as many tensors as the model takes"))
        for x, (shape, dtype, device) in zip(inputs, self.specs):
            if not isinstance(x, Tensor):
                raise ArgumentError(message(WHERE, f"the input is {shown(x)}, a Tensor is needed",
                                            "wrap it: alpha.tensor(x)"))
            if x.shape != shape:
                raise ShapeError(message(WHERE, f"the input has shape {x.shape}, the example had {shape}",
                                         "pass inputs of one shape, or make a runner for each: inference(model, x)"))
            if x.dtype != dtype:
                raise DTypeError(message(WHERE, f"the input has dtype {x.dtype}, the example had {dtype}",
                                         f'convert it: x.astype("{dtype}")'))
            if x.device != device:
                raise DeviceError(message(WHERE, f"the input is on {x.device}, the example was on {device}",
                                          f'move it: x.to("{device}")'))
            if x.requires_grad and grad_enabled():
                raise GraphError(message(WHERE, "the input requires a gradient, and a runner makes no graph",
                                         "call the model itself, or pass x.detach()"))

    # ---- making ------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """Traces the model, rewrites the program, and prepares it for its device."""
        device = self.specs[0][2]
        self._made = False      # until the end: the next call tries again after a failure
        with config(precision=self.precision), no_grad():
            self._seen, self._contents = versions.newest, Module.contents_version
            self.program, expected = trace(self.model, self.examples)
            self._owned = self.program.owned
            self._arrays = [t.array for t in self._owned]
            self._versions = [t._version for t in self._owned]
            improve(self.program, kernels=device != "cpu" or _compiled())
            self._settings = self._settings_now()
            self._captured = self._capture()
            results = self._run(self.examples)
            self._report = self._describe(device, _distance(results, expected))
        self._made = True

    @staticmethod
    def _settings_now() -> tuple[Any, ...]:
        """Returns the settings of the CPU's kernels that decide how a program is rewritten."""
        return config.cpu_kernels, config.conv_sparsity, config.conv_workspace_mib

    def _capture(self) -> Any:
        run = capture(Replay(self.program))  # constants are no state: the forms that kernels read are made once
        for _ in range(2):      # capture records the third call
            run(*self.examples)
        return run

    def _run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        device, values = self.specs[0][2], self.program.outputs
        arrays = self._captured.repeated([x.array for x in inputs])
        if arrays is not None:
            return [Tensor(a, v.shape, v.dtype, device) for a, v in zip(arrays, values)]
        if self._made and self._settings != self._settings_now():
            self._build()   # settings of the CPU decide about the program, too
            values = self.program.outputs
        with config(precision=self.precision), no_grad():
            return list(self._captured(*[x.detach() for x in inputs]))

    def _is_stale(self) -> bool:
        """Tells whether the model, or a setting that the plan depends on, is not what it was."""
        if not self._made:
            return True
        if self._seen == versions.newest and self._contents == Module.contents_version:
            return False
        if any(map(operator.is_not, map(ARRAY, self._owned), self._arrays)):
            return True
        if [t._version for t in self._owned] != self._versions:
            return True
        if self._contents != Module.contents_version:
            now = {id(t) for t in (*self.model.parameters(), *(b for _, b in self.model.named_buffers()))}
            if any(id(t) not in now for t in self._owned):
                return True
        self._seen, self._contents = versions.newest, Module.contents_version
        return False

    def _describe(self, device: str, error: float) -> Report:
        shapes = ", ".join(f"{'x'.join(map(str, shape))} {dtype}" for shape, dtype, _ in self.specs)
        title = f"{type(self.model).__name__} on {device}, {mode()}, input {shapes}"
        facts = [("error", f"{error:.1e} of the largest result, beside the model's own forward pass")]
        found = self._captured.found
        launches = [(layer(call), call.op.name + " + addition" * (call.residual is not None)
                     + " + relu" * (call.attrs.get("activation") == "relu")) for call in self.program.calls]
        facts.append(("launch", "all in one recording" if found else "op by op: capture is off"))
        if found and device == "cpu":
            recording = found.recording
            launches = [(name, f"{what} ({kernels})") for (name, what), (_, kernels) in zip(launches, recording.lines)
                        if kernels]
            apart = f"{recording.unshared_nbytes / MIB:.2f} if none were shared"
            facts += [("buffers", f"{recording.nbytes / MIB:.2f} MiB, {apart}"),
                      ("prepared weights", f"{recording.prepared_nbytes / MIB:.2f} MiB")]
        return Report(title, self.program.notes, launches, facts)


def _compiled() -> bool:
    """Tells whether the CPU has compiled kernels."""
    from alpha.cpu import native  # not before a tensor asks for the CPU's kernels
    return native.library() is not None


def _distance(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Returns the largest difference of floating results, as a part of the largest expected element."""
    worst = 0.0
    for y, e in zip(results, expected):
        if e.dtype in FLOAT_DTYPES and e.size:
            a, b = (get_backend(t.device).to_numpy(t.astype("float32").array).astype(np.float64) for t in (y, e))
            with np.errstate(all="ignore"):
                worst = max(worst, float(np.abs(a - b).max() / max(float(np.abs(b).max()), 1e-30)))
    return worst
