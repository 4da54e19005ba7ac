"""The records of a profiler."""

from __future__ import annotations

from dataclasses import dataclass, field

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
PHASES = (FORWARD, BACKWARD, UPDATE)


@dataclass(slots=True)
class Launch:
    """One launch of a kernel on a GPU; seconds since the profiler's begin, and of duration."""

    kernel: str
    device: str
    begin: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Call:
    """One call of an op.

    Attributes:
        op, shapes: its name, the shapes of its arguments.
        phase: "forward", "backward", or "update" for the ops of optimizers.
        layer: path of the layer for which it ran; "" outside of layers.
        begin, seconds: when the host began with it, since the profiler's begin, and for how long.
        within: seconds of that in which other ops ran.
        launches: its kernels.
        live, added: bytes live after it, and how many more than before.
    """

    op: str
    phase: str
    layer: str
    device: str
    shapes: str
    begin: float
    seconds: float = 0.0
    within: float = 0.0
    launches: list[Launch] = field(default_factory=list)
    live: int = 0
    added: int = 0

    @property
    def spent(self) -> float:
        """Seconds that it took: of its kernels on a GPU, else of the host, less the time of ops within."""
        return self.seconds - self.within if self.device == "cpu" else sum(k.seconds for k in self.launches)
