"""Pictures of benchmarks.algorithms: expected against measured time, time against kernel size, errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.plots import panels
from benchmarks.results import Row

# ends of names of pictures by classes of machines
SETS = {"cpu16": "_avx512", "cpu8": "_avx2", "cpu16_intel": "_avx512", "cpu8_intel": "_avx2"}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draws three pictures of the cells that were timed, of each instruction set of a CPU; returns their files."""
    machines: dict[str, list[Row]] = {}
    for row in rows:
        if "ms" in row:
            machines.setdefault(SETS.get(row.get("machine", ""), ""), []).append(row)
    paths = []
    for machine, run in machines.items():
        for name, picture in (("algorithms_model", model_and_clock), ("algorithms_kernels", by_kernel),
                              ("algorithms_errors", errors)):
            figure = picture(run)
            path = folder / f"{name}{machine}.png"
            figure.savefig(path, dpi=120, bbox_inches="tight")
            paths.append(path)
    return paths


def _names(rows: Sequence[Row]) -> list[str]:
    return sorted({name for row in rows for name in row["algorithms"]})


def model_and_clock(rows: Sequence[Row]) -> object:
    """Expected against measured time of each algorithm, log-log, with the line of equals."""
    figure, axes_of = panels(len(names := _names(rows)))
    for name in names:
        axes = axes_of(title=name)
        pairs = [(row["ms"][name], row["algorithms"][name]["expected_ms"]) for row in rows if name in row["algorithms"]]
        axes.loglog(*zip(*pairs), ".", markersize=3)
        ends = [min(map(min, pairs)), max(map(max, pairs))]
        axes.loglog(ends, ends, "k:", linewidth=0.8)
        axes.set_xlabel("measured, ms")
        axes.set_ylabel("model, ms")
    return figure


def by_kernel(rows: Sequence[Row]) -> object:
    """Time of the forward pass against kernel size, a panel per map and channels that have several."""
    cells: dict[tuple[int, int, str], list[Row]] = {}
    for row in rows:
        if row["pass"] == "fprop":
            kind = " depthwise" * (row.get("groups", 1) > 1) + (f", {row['units']}" if "units" in row else "")
            cells.setdefault((row["hw"], row["channels"], kind), []).append(row)
    kept = {key: found for key, found in cells.items() if len({row["f"] for row in found}) > 1} or cells
    figure, axes_of = panels(max(1, len(kept)))
    for (hw, channels, kind), found in kept.items():
        axes = axes_of(title=f"{hw}x{hw}, {channels} channels{kind}")
        peers = {name for row in found for name in row["ms"] if name.startswith("torch")}
        for name in [*_names(found), *sorted(peers)]:
            points = sorted((row["f"], row["ms"][name] / row["n"]) for row in found if name in row["ms"])
            if points:
                axes.loglog(*zip(*points), marker=".", label=name)
        axes.set_xlabel("kernel size")
        axes.set_ylabel("ms an image")
        axes.legend(fontsize=6)
    return figure


def errors(rows: Sequence[Row]) -> object:
    """Errors against float64 beside the promise of fp32."""
    figure, axes_of = panels(1)
    axes = axes_of(title="relative error")
    for name in _names(rows):
        values = [row["errors"][name] for row in rows if name in row["errors"]]
        axes.semilogy(range(len(values)), sorted(values), ".", markersize=3, label=name)
    axes.axhline(2e-6, color="k", linestyle=":", linewidth=0.8)
    axes.legend(fontsize=6)
    return figure
