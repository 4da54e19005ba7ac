"""Which constants the tiles of convolutions need: every table of alpha/cuda/conv/costs has exactly these records."""

from __future__ import annotations

from alpha.cuda.conv import as_stored, wgmma
from alpha.cuda.conv.costs import check
from alpha.cuda.conv.ffma import gemm, sk_dilated
from alpha.cuda.conv.first_layer import few
from alpha.cuda.conv.first_layer.mma import stem_mma
from alpha.cuda.conv.transformed import products, transforms
from alpha.cuda.conv.wgmma import wgrad

PASSES, PLANES = ("fprop", "dgrad", "wgrad"), (1, 2)


def check_all() -> None:
    """Compares the tables with the tiles that are declared.  Raises ValueError: a record is missing or of no use."""
    check("ffma.tiles", ((tile.key, str(tile)) for tile in gemm.TILES))
    check("ffma.wgrad", ((one.tile.key, str(one.tile)) for one in (*sk_dilated.CANDIDATES, *products.GRADIENT)))
    stored = [(one.tile.mode, one.tile.tile) for one in as_stored.CANDIDATES]
    tiles = [*((mode, tile) for mode, tiles in wgmma.TILES.items() for tile in tiles), *stored]
    check("wgmma.tiles", ((tile.key(mode), f"{tile._replace(cluster=1)} in {mode.timed_as}") for mode, tile in tiles))
    check("wgmma_wgrad.tiles", ((tile.key(planes), f"{tile} of {planes} planes")
                                for planes, tiles in wgrad.TILES.items() for tile in tiles))
    check("transformed.fft", (((edge,), f"edge {edge}") for edge in transforms.LANES))
    passes = [(pass_name, number) for pass_name in ("fprop", "wgrad") for number in few.ALL_CHANNELS]
    check("stem.few", ((key, f"{key[0]} of {key[1]} channels") for key in passes))
    modes = dict.fromkeys(mode.timed_as for mode in stem_mma.MODES)
    for place, kinds in (("stem_mma.clocks", ("fprop", "wgrad")), ("grouped.clocks", ("maps", "wgrad"))):
        check(place, (((kind, mode), f"{kind} in {mode}") for kind in kinds for mode in modes))
    keyed = {"depthwise.multiplied": PASSES, "depthwise.strips": ("fma", *PASSES), "coconv.busy": PLANES,
             "wgmma_wgrad.flops_per_us": PLANES, "wgmma_wgrad.streamed": PLANES,
             "wgmma_wgrad.strip": {tile.rows for tiles in wgrad.TILES.values() for tile in tiles if tile.taps > 1},
             **{f"{room}.{name}": ("fprop", "wgrad") for room in ("stem_mma",) for name in ("launches", "depth")},
             **{f"grouped.{name}": ("maps", "wgrad") for name in ("launches", "depth", "dram")}}
    for place, keys in keyed.items():
        check(place, ((key, str(key)) for key in keys))
