"""What the convolutions on matrix tiles share on the host, whichever pass they compute: their limits."""

from __future__ import annotations

from alpha.cuda.conv.costs import device
from alpha.cuda.conv.ffma.gemm import Tile
from alpha.cuda.conv.mma.gemm import MmaTile
from alpha.cuda.conv.planner import Candidate
from alpha.cuda.conv.schedule import oversized
from alpha.cuda.runtime.context import context
from alpha.cuda.runtime.kernel import Kernel
from alpha.ops.conv_desc import ConvDesc

RESERVED = 1024  # bytes of shared memory that a block takes beside its own


class ConvTile(Candidate):
    """A kernel with one tile.  `copied` names the channels, "input" or "output", that it copies 16 bytes of at a time;
    `static_shared` is the shared memory that it has beside the tiles, in bytes; `b_kmajor` tells how operand B lies."""

    takes_guard = True
    b_kmajor = False
    copied: tuple[str, ...] = ("input", "output")

    def __init__(self, tile: Tile | MmaTile, name: str, kernel: Kernel, static_shared: int) -> None:
        self.tile, self.name, self.kernel, self.shared = tile, name, kernel, kernel.shared + static_shared

    @property
    def resident(self) -> int:
        """How many blocks of it a multiprocessor holds, as registers and this device's shared memory allow."""
        if not context.max_shared:  # no device yet
            return self.tile.blocks
        return max(1, min(self.tile.blocks, (context.max_shared + RESERVED) // (self.shared + RESERVED)))

    def slab_clocks(self) -> float:
        """Returns the clocks that a full multiprocessor spends on a slab."""
        raise NotImplementedError

    def least_us(self, desc: ConvDesc) -> float:
        """Returns the time of the products alone, shared evenly among multiprocessors that are full."""
        tile, on = self.tile, device()
        clocks = self.slab_clocks() / (tile.rows * tile.columns * tile.k) * desc.useful_flops / 2
        return clocks / on.sm_count / on.clocks_per_us

    def rejection(self, desc: ConvDesc) -> str | None:
        """Returns why the kernel cannot compute desc, or None."""
        channels = {"input": desc.ic // desc.groups, "output": desc.oc // desc.groups}
        if any(channels[name] % self.tile.vector for name in self.copied):
            numbers = " and ".join(f"{channels[name]} {name}" for name in self.copied)
            return f"{numbers} channels of a group are no multiples of {self.tile.vector}"
        if self.shared > context.max_shared:
            return f"{self.shared} bytes of shared memory, the device has {context.max_shared}"
        return oversized(desc)
