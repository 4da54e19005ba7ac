"""Pictures of results, from nothing but the JSON lines of a folder.

    python -m benchmarks.plots benchmarks/results/h100

    zeros.png          share of padded zeros, and of products with them, against the size of the map
    conv_speed.png     the paper's cases: speed of both libraries, a panel for each pass and filter
    speedups.png       times as fast as PyTorch's best, and memory beside it: the picture to begin with
    steps.png          time of a training step, alpha beside every configuration of PyTorch
    memory.png         peak memory of a training step
    losses.png         loss over the first updates, both libraries
    live_bytes.png     bytes in alpha's pool over one step
    accuracy.png       a whole training in both libraries: loss over the epochs, test accuracy of each seed

matplotlib is an extra (pip install ".[plot]"); without it the folder is left as it is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alpha.ops.conv_desc import ConvDesc
from benchmarks import compare_tables, results
from benchmarks.results import Row
from benchmarks.shapes import PASSES
from train.report import blank_figure, can_plot, save_figure

MAPS = (128, 64, 32, 16, 8, 4, 2, 1)
COLOURS = {"alpha": "#c0392b", "torch_nchw": "#2c6fbb", "torch_nhwc": "#6fa8dc", "torch_graph": "#674ea7",
           "torch_compile": "#8e9aaf"}
SHADES = ("#c0392b", "#e08e79", "#7f8c8d", "#bdc3c7")  # of precisions
MIB = 1 << 20


def draw(folder: Path) -> list[Path]:
    """Draws every picture that the files of a folder have rows for, and returns the paths."""
    if not can_plot("no pictures are drawn"):
        return []
    compared = results.latest(results.read(folder / "compare.jsonl"), compare_tables.KEY)
    conv = results.latest(results.read(folder / "conv_ops.jsonl"), ("set", "shape", "pass", "precision", "settings"))
    accuracy = results.read(folder / "accuracy.jsonl")
    compared.sort(key=compare_tables.order)
    groups = compare_tables.networks(compared)
    traces = [row for row in compared if row["kind"] == "memory" and row["configuration"] == "alpha"]
    largest = max((row["batch"] for row in compared if row["kind"] == "step"), default=0)
    shown = [rows for rows in groups if rows[0]["batch"] == largest or rows[0]["device"] == "cpu"]
    made = [(zeros, MAPS, "zeros", []), (speedups, shown, "speedups", compared),
            (steps, groups, "steps", compared), (memory, groups, "memory", compared),
            (losses, groups, "losses", compared), (live_bytes, traces, "live_bytes", compared),
            (conv_speed, [row for row in conv if row["set"].startswith("paper")], "conv_speed", conv),
            (accuracies, accuracy, "accuracy", accuracy)]
    paths = []
    for picture, rows, name, measured in made:
        rows = [row for row in rows if not (isinstance(row, dict) and "failed" in row)]
        if rows:
            paths.append(folder / f"{name}.png")
            figure = picture(rows)
            if measured:
                figure.supxlabel(caption(measured[-1]), x=0.99, ha="right", fontsize=7, color="gray")
            save_figure(figure, paths[-1])
    return paths


def caption(row: Row) -> str:
    """Returns where and when a row was measured, beside which PyTorch."""
    torch = row.get("torch_version", row.get("torch"))
    return "; ".join(v for v in (row.get("name", row.get("cpu")), f"PyTorch {torch}", row.get("date")) if v)


def panels(count: int, height: float = 2.8, columns: int = 0) -> tuple[Any, Callable[..., Any]]:
    """Returns a figure and a function that adds the next of `count` panels."""
    columns = min(columns or (2 if count == 4 else 3), count)
    rows = -(-count // columns)
    made = blank_figure(4.2 * columns, height * rows)
    places = iter(range(1, count + 1))

    def add(**labels: Any) -> Any:
        axes = made.add_subplot(rows, columns, next(places), **labels)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        if labels.get("xlabel") in ("update", "epoch"):
            axes.xaxis.get_major_locator().set_params(integer=True)
        return axes
    return made, add


# ---- zeros -----------------------------------------------------------------------------------------------------------


def shares(size: int, f: int = 3, padding: int = 1) -> tuple[float, float]:
    """Returns the share of zeros in a padded map, and of products with them, for stride 1."""
    desc = ConvDesc.fprop((1, size, size, 1), (1, f, f, 1), stride=(1, 1), padding=(padding,) * 2, dilation=(1, 1),
                          groups=1)
    return 1 - (size / (size + 2 * padding)) ** 2, 1 - desc.useful_flops / desc.nominal_flops


def zeros(maps: Sequence[int]) -> Any:
    made, add = panels(1, 3.2)
    axes = add(xlabel="height and width of the map", ylabel="share, %", title="3x3 filters, padding 1, stride 1")
    for k, label in enumerate(("zeros in the padded input", "products with a zero")):
        axes.plot(range(len(maps)), [100 * shares(size)[k] for size in maps], marker="o", label=label)
    axes.set_xticks(range(len(maps)), [str(size) for size in maps])
    axes.legend()
    return made


# ---- convolutions ----------------------------------------------------------------------------------------------------


def conv_speed(rows: Sequence[Row]) -> Any:
    """Speed by the paper's formulas in each case: its products with zeros are counted as done."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(results.key_of(row, ("precision", "settings", "f", "pass")), []).append(row)
    made, add = panels(len(groups))
    for (precision, settings, f, pass_name), cases in sorted(
            groups.items(), key=lambda item: (*item[0][:3], PASSES.index(item[0][3]))):
        axes = add(xlabel="map", ylabel="TFLOP/s",
                   title=f"{pass_name}, {f}x{f} filters, stride {cases[0]['stride']}, {precision} {settings}".strip())
        cases = sorted(cases, key=lambda row: -row["hw"])
        for side in cases[0]["table2_tflops"]:
            axes.plot(range(len(cases)), [row["table2_tflops"][side] for row in cases], marker="o", label=side,
                      color=COLOURS.get(side))
        axes.set_xticks(range(len(cases)), [str(row["hw"]) for row in cases])
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    return made


# ---- steps -----------------------------------------------------------------------------------------------------------


def title(row: Row) -> str:
    return f"{row['model']}, batch {row['batch']}, {row['precision']} {row.get('settings') or ''}".strip()


def bars(axes: Any, values: dict[str, float | None]) -> None:
    """Draws a bar for each name whose value is known, with the value on it."""
    known = {name: v for name, v in values.items() if v is not None}
    drawn = axes.bar(range(len(known)), list(known.values()), color=[COLOURS.get(name) for name in known])
    axes.bar_label(drawn, fmt="%.4g", fontsize=8)
    axes.set_xticks(range(len(known)), [name.removeprefix("torch_") for name in known], fontsize=8)
    axes.margins(y=0.15)


def speedups(groups: Sequence[Sequence[Row]]) -> Any:
    """One row of bars per network, one bar per precision: times as fast as PyTorch's best, and share of its memory.

    Memory is of the configuration of PyTorch that takes least, not of the fastest.
    """
    plain = [rows for rows in groups if not rows[0].get("settings")]
    models = list(dict.fromkeys(rows[0]["model"] for rows in plain))
    precisions = list(dict.fromkeys(rows[0]["precision"] for rows in plain))
    batches = sorted({rows[0]["batch"] for rows in plain})
    made, add = panels(2, 0.55 * len(models) * max(2, len(precisions)) * 0.45 + 1.3)
    what = f"batch {' and '.join(map(str, batches))}"
    for key, label in (("ms", "times as fast as the best of PyTorch"), ("memory", "share of PyTorch's least memory")):
        axes = add(xlabel=label, title=f"training step, {what}" if key == "ms" else f"peak memory, {what}")
        for k, precision in enumerate(precisions):
            found = {rows[0]["model"]: rows for rows in plain if rows[0]["precision"] == precision}
            values = [_ratio(found[model], key) if model in found else 0.0 for model in models]
            places = [m + (k - (len(precisions) - 1) / 2) * 0.8 / len(precisions) for m in range(len(models))]
            drawn = axes.barh(places, values, 0.8 / len(precisions), label=precision, color=SHADES[k % len(SHADES)])
            axes.bar_label(drawn, [f"{v:.2f}" if v else "" for v in values], fontsize=7, padding=2)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(models)), [compare_tables.title(m) for m in models])
        axes.invert_yaxis()
        axes.margins(x=0.15)
        if key == "ms" and len(precisions) > 1:
            axes.legend(fontsize=7, loc="lower right")
    return made


def _ratio(rows: Sequence[Row], key: str) -> float:
    if key == "ms":
        fastest = compare_tables.best(rows)["ms"]
        return fastest["torch"] / fastest["alpha"]
    counted = "peak_mib" if rows[0]["peak_mib"]["torch"] is not None else "process_mib"
    known = [row[counted] for row in rows if row[counted]["torch"] is not None]
    least = min(known, key=lambda peak: peak["torch"], default=None)
    return least["alpha"] / least["torch"] if least else 0.0


def steps(groups: Sequence[Sequence[Row]]) -> Any:
    made, add = panels(len(groups))
    for rows in groups:
        ours = compare_tables.best(rows)["ms"]["alpha"]
        bars(add(ylabel="ms per step", title=title(rows[0])),
             {"alpha": ours, **{row["configuration"]: row["ms"]["torch"] for row in rows}})
    return made


def memory(groups: Sequence[Sequence[Row]]) -> Any:
    made, add = panels(len(groups))
    for rows in groups:
        counted = rows[0]["peak_mib"]["torch"] is not None
        key, what = ("peak_mib", "peak MiB, own count") if counted else ("process_mib", "peak MiB of the process")
        bars(add(ylabel=what, title=title(rows[0])),
             {"alpha": rows[0][key]["alpha"], **{row["configuration"]: row[key]["torch"] for row in rows}})
    return made


def losses(groups: Sequence[Sequence[Row]]) -> Any:
    made, add = panels(len(groups))
    for rows in groups:
        axes = add(xlabel="update", ylabel="loss", title=title(rows[0]))
        axes.plot(rows[0]["losses"]["alpha"], color=COLOURS["alpha"], linewidth=4, alpha=0.5, label="alpha")
        for row in rows:
            axes.plot(row["losses"]["torch"], color=COLOURS[row["configuration"]], linestyle="--", marker=".",
                      label=row["configuration"])
        axes.legend(fontsize=7)
    return made


def live_bytes(rows: Sequence[Row]) -> Any:
    """The curve of the pool, the parts that stay, and the phases."""
    made, add = panels(len(rows))
    for row in rows:
        a = row["account"]
        axes = add(xlabel="allocations of one step", ylabel="MiB in use", title=title(row))
        axes.plot([n / MIB for n in a["live"]], color=COLOURS["alpha"], drawstyle="steps-post")
        floor = 0.0
        for part in ("weights", "optimizer_state", "batches"):
            axes.fill_between([0, len(a["live"])], floor, floor + a[part] / MIB, alpha=0.25, linewidth=0,
                              label=part.replace("_", " "))
            floor += a[part] / MIB
        for start, phase in zip(a["phase_starts"], ("forward", "backward", "update")):
            axes.axvline(start, color="gray", linewidth=0.7)
            axes.annotate(phase, (start, 1.0), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=7)
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7, loc="lower right")
    return made


def accuracies(rows: Sequence[Row]) -> Any:
    """A network's losses, a pair of curves for each seed and precision, beside its accuracies, a pair of points."""
    networks: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for (recipe, model, precision), seeds in results.trainings(rows).items():
        networks.setdefault((recipe, model), {})[precision] = seeds
    made, add = panels(2 * len(networks), 3.0, columns=2)
    for (recipe, model), precisions in networks.items():
        runs = [row for seeds in precisions.values() for row in seeds]
        axes = add(xlabel="epoch", ylabel="training loss", yscale="log", title=f"{model} on {recipe}")
        for k, row in enumerate(runs):
            for side, style in (("alpha", {"color": COLOURS["alpha"], "linewidth": 4, "alpha": 0.4}),
                                ("torch", {"color": COLOURS["torch_nhwc"], "linestyle": "--", "marker": "."})):
                epochs = range(1, len(row[side]["train_loss"]) + 1)
                axes.plot(epochs, row[side]["train_loss"], label=None if k else side, **style)
        axes.legend(fontsize=7)
        counts = " to ".join(map(str, sorted({len(seeds) for seeds in precisions.values()})))
        axes = add(ylabel="test accuracy, %", title=f"{model} on {recipe}, {counts} seeds")
        ticks = [(side, name, precision) for precision in precisions
                 for side, name in (("alpha", "alpha"), ("torch", "PyTorch"))]
        for place, (side, _, precision) in enumerate(ticks):
            values = [100 * row[side]["accuracy"] for row in precisions[precision]]
            axes.plot([place] * len(values), values, "o", alpha=0.5,
                      color=COLOURS["alpha" if side == "alpha" else "torch_nhwc"])
        axes.set_xticks(range(len(ticks)), [f"{name}\n{precision}" for _, name, precision in ticks], fontsize=7)
        axes.set_xlim(-0.5, len(ticks) - 0.5)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with compare.jsonl, conv_ops.jsonl or accuracy.jsonl")
    for path in draw(parser.parse_args(argv).folder):
        print(path)


if __name__ == "__main__":
    main()
