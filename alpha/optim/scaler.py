"""Loss scaling, without which float16 loses small gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from alpha import ops
from alpha.core.errors import CheckpointError, ConfigError, message
from alpha.core.graph import no_grad
from alpha.core.inputs.arguments import bound_methods, checked
from alpha.core.inputs.kinds import Count, Limit, Positive
from alpha.core.inputs.schema import check_names, fitted
from alpha.core.tensor import Tensor
from alpha.interop import twins
from alpha.ops.update import LARGEST_SCALE
from alpha.optim.optimizer import Optimizer

LARGEST_COUNT = 1 << 30     # of steps, in a checkpoint: int32 has room for as many more


@bound_methods()
class LossScaler:
    """Multiplies the loss by a scale, so that its gradients stay within float16, and takes the scale out of the step.

        with alpha.precision("fp16"):
            loss = ops.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)

    A step whose gradients have an infinity or a NaN is skipped, with no parameter or state changed, and halves the
    scale; `growth_interval` steps in a row without one double it. All that is decided on the device: the host never
    waits, so `value` and `skipped`, which do wait, are for reports.
    Args:
        device: where the scale begins; it follows the loss, and the gradients, to theirs.
        initial: scale to begin with, in [1, 2^24]; a power of two costs no digit.
        growth_interval: at least 1.
    Raises:
        ConfigError: a setting is out of range.
    Source: Micikevicius et al., arXiv 1710.03740, section 3.2; the numbers are those of PyTorch's GradScaler.
    """

    @checked
    def __init__(self, device: str = "cpu", initial: Positive = 65536.0, *, growth_interval: Count = 2000) -> None:
        if not 1 <= initial <= LARGEST_SCALE:
            raise ConfigError(message("LossScaler", f"initial is {initial}, a number in [1, {LARGEST_SCALE:.0f}] is "
                                      "needed", "pass a power of two in that range"))
        self.growth_interval = growth_interval
        self._scale = ops.full((), initial, device=device)
        self._counts = ops.zeros((2,), dtype="int32", device=device)    # finite steps in a row, steps skipped in all

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            return twins.attribute(self, "LossScaler", name, twins.SCALER)

    @property
    def value(self) -> float:
        """The scale of the next step."""
        return float(self._scale.item())

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        return int(self._counts.tolist()[1])

    @checked
    def scale(self, loss: Tensor) -> Tensor:
        """Returns loss * scale, of which backward is to be called.  loss: float32, any shape."""
        self._follow(loss.device)
        return loss * self._scale

    @checked
    def step(self, optimizer: Optimizer, max_norm: Limit = 0.0) -> None:
        """Makes the optimizer's step with the gradients of the true loss, or skips it; and moves the scale.

        Args:
            optimizer: its parameters hold the gradients of the scaled loss.
            max_norm: largest common 2-norm of the true gradients, to which they are scaled down; 0 sets no limit.
        Raises:
            ConfigError: max_norm is below 0.
        """
        if not max_norm >= 0:
            raise ConfigError(message("LossScaler.step", f"max_norm={max_norm} is below 0",
                                      "pass a positive max_norm, or 0 for none"))
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        factor = None
        if grads:
            self._follow(grads[0].device)
            with no_grad():
                factor = ops.loss_scale_step(ops.sums_of_squares(grads), self._scale, self._counts,
                                             growth_interval=self.growth_interval, max_norm=max_norm)
        optimizer.step(factor)

    def _follow(self, device: str) -> None:
        """Moves the scale and the counts to the device of the model."""
        if self._scale.device != device:
            self._scale, self._counts = self._scale.to(device), self._counts.to(device)

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the scale and the counts by name; they share their elements with the scaler, until it moves."""
        return {"scale": self._scale.detach(), "counts": self._counts.detach()}

    def load_state_dict(self, values: Mapping[str, Tensor]) -> None:
        """Continues from what `state_dict` returned.

        Raises CheckpointError if it is something else, or out of range; then nothing has been loaded.
        """
        self.prepare_state_dict(values)()

    def prepare_state_dict(self, values: Mapping[str, Tensor]) -> Callable[[], None]:
        """Looks at what `load_state_dict` is to load, raises what that does, and returns the function that loads it."""
        check_names("LossScaler", values)
        own = self.state_dict()
        if {name: tuple(t.shape) for name, t in values.items()} != {name: t.shape for name, t in own.items()}:
            raise CheckpointError(message("LossScaler", f"the state has {sorted(values) or 'nothing'}, not "
                                          f"{sorted(own)}", "resume with a checkpoint of a run in fp16"))
        ready = fitted("LossScaler", values, own)
        scale, counts = float(ready["scale"]), np.asarray(ready["counts"]).tolist()
        if not 1 <= scale <= LARGEST_SCALE or not all(0 <= count < LARGEST_COUNT for count in counts):
            raise CheckpointError(message("LossScaler", f"the scale is {scale:g}, the counts are {counts}: they must "
                                          f"be in [1, {LARGEST_SCALE:.0f}] and in [0, {LARGEST_COUNT})",
                                          "resume with a checkpoint of a run in fp16"))

        def load() -> None:
            for name, t in own.items():
                t.copy_(ready[name])

        return load
