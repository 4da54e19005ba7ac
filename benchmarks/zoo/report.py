"""The zoo's table and picture, made from the rows of zoo.jsonl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks import compare_tables, plots
from benchmarks.results import Row, key_of, latest
from benchmarks.zoo.members import MEMBERS
from train.report import can_plot, save_figure

HEAD = ("family", "network", "batch", "precision", "alpha ms", "PyTorch ms", "alpha is", "peak MiB, alpha / PyTorch",
        "memory", "first loss beside float64, alpha / PyTorch")
PLACE = {name: k for k, name in enumerate(MEMBERS)}
best = compare_tables.best


class Result(NamedTuple):
    """A network's figures, of which PyTorch's are its fastest configuration's.

    Attributes:
        rows: the step rows of PyTorch's configurations.
        ms, mib: of a step and at its peak, alpha's and PyTorch's; mib is None where a side does not count.
        ratio: PyTorch's time by alpha's; kept: whether PyTorch's was measured in an earlier run.
    """

    rows: list[Row]
    ms: tuple[float, float]
    mib: tuple[float | None, float | None]
    ratio: float
    kept: bool

    @property
    def memory(self) -> float | None:
        """Alpha's peak by that of the PyTorch that takes least."""
        ours, theirs = self.mib
        return ours / theirs if ours and theirs else None


def collected(rows: Sequence[Row]) -> list[Result]:
    """Returns a result for each network, batch, precision and settings, in the order of the families."""
    alone = {key_of(row, compare_tables.NETWORK): (k, row) for k, row in enumerate(rows)
             if row["kind"] == "alpha" and "failed" not in row}
    order = {id(row): k for k, row in enumerate(rows)}
    made = []
    for group in compare_tables.networks(latest(rows, compare_tables.KEY)):
        fastest, counted = best(group), "peak_mib"
        if fastest["peak_mib"]["torch"] is None:
            counted = "process_mib"
        theirs = min((row[counted]["torch"] for row in group if row[counted]["torch"] is not None), default=None)
        at, ours = alone.get(key_of(fastest, compare_tables.NETWORK), (-1, fastest))
        if at > max(order[id(row)] for row in group):
            ms = ours["ms"], fastest["ms"]["torch"]
            made.append(Result(group, ms, (ours[counted], theirs), ms[1] / ms[0], True))
        else:
            made.append(Result(group, (fastest["ms"]["alpha"], fastest["ms"]["torch"]),
                               (fastest[counted]["alpha"], theirs), fastest["ratio"], False))
    return sorted(made, key=lambda result: (PLACE.get(result.rows[0]["model"], len(PLACE)),
                                            *compare_tables.order(result.rows[0])[1:]))


def error_of(row: Row, side: str) -> str:
    """Returns the relative error of a side's first loss, - where float64's is not known."""
    exact = row.get("loss_float64")
    return "-" if not exact else f"{abs(row['losses'][side][0] - exact) / abs(exact):.0e}"


def line(result: Result) -> str:
    """Returns a network's row of the table."""
    fastest = best(result.rows)
    shown = ", ".join(f"{row['ms']['torch']:.2f} ({compare_tables.short(row)})" for row in result.rows)
    spread = "PyTorch's row kept" if result.kept else f"{fastest['ratio_min']:.2f}..{fastest['ratio_max']:.2f}"
    mib = " / ".join("-" if v is None else f"{v:.0f}" for v in result.mib)
    memory = "-" if result.memory is None else f"{result.memory:.2f}"
    name, family = fastest["model"], MEMBERS[fastest["model"]].family if fastest["model"] in MEMBERS else "-"
    return (f"| {family} | {name} | {fastest['batch']} | {compare_tables.precision(fastest)} | {result.ms[0]:.2f} "
            f"| {shown} | **{result.ratio:.2f}** ({spread}) | {mib} | {memory} "
            f"| {error_of(fastest, 'alpha')} / {error_of(fastest, 'torch')} |")


def means(found: Sequence[Result]) -> list[str]:
    """Returns a sentence for each precision: geometric means, and the least favourable networks."""
    made = []
    for precision in dict.fromkeys(compare_tables.precision(result.rows[0]) for result in found):
        chosen = [result for result in found if compare_tables.precision(result.rows[0]) == precision]
        slowest = min(chosen, key=lambda result: result.ratio)
        known = [(result.memory, result.rows[0]["model"]) for result in chosen if result.memory]
        text = (f"{precision}: {len(chosen)} networks, alpha is {geometric_mean([r.ratio for r in chosen]):.2f} times "
                f"as fast in the geometric mean, least {slowest.ratio:.2f} ({slowest.rows[0]['model']})")
        if known:
            text += (f"; memory {geometric_mean([m for m, _ in known]):.2f} of PyTorch's, most "
                     f"{max(known)[0]:.2f} ({max(known)[1]})")
        made.append(f"{text}.")
    return made


def moved(rows: Sequence[Row]) -> list[str]:
    """Returns how far PyTorch's times moved between its last two rows of a configuration, where there are two."""
    seen: dict[Any, list[float]] = {}
    for row in rows:
        if row["kind"] == "step" and "failed" not in row:
            seen.setdefault(key_of(row, compare_tables.KEY), []).append(row["ms"]["torch"])
    ratios = [times[-1] / times[-2] for times in seen.values() if len(times) > 1]
    return [f"PyTorch measured again, {len(ratios)} rows: {min(ratios):.3f} to {max(ratios):.3f} of its time before, "
            f"{geometric_mean(ratios):.3f} in the geometric mean."] if ratios else []


def absent(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each network of the zoo that has no row, and for each result that failed."""
    there = {row["model"] for row in rows if "failed" not in row}
    failed = [row for row in latest(rows, compare_tables.KEY) if "failed" in row]
    without = [name for name in MEMBERS if name not in there]
    return [*([f"Not measured: {', '.join(without)}."] if without else []),
            *(f"FAILED: {row['model']}, {compare_tables.precision(row)}, {row['configuration']}: "
              f"{row['failed'].splitlines()[0]}" for row in failed)]


def lines(rows: Sequence[Row]) -> list[str]:
    """Returns the table and the sentences below it."""
    found = collected(rows)
    below = [*means(found), *moved(rows), *absent(rows)]
    return [*compare_tables.table(HEAD, map(line, found)), "", *below]


def progress(row: Row) -> str:
    """Returns one line for a row that was measured a moment ago."""
    where = f"{row['model']}, batch {row['batch']}, {row['precision']}, {row.get('configuration', 'alpha alone')}"
    if "failed" in row:
        return f"{where}: FAILED: {row['failed'].splitlines()[0]}"
    if row["kind"] == "alpha":
        return f"{where}: {row['ms']:.2f} ms"
    return f"{where}: alpha {row['ms']['alpha']:.2f} ms, PyTorch {row['ms']['torch']:.2f} ms, {row['ratio']:.2f}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draws a dot a network: times as fast as PyTorch's best, and the share of its memory."""
    found = [result for result in collected(rows) if not result.rows[0]["settings"]]
    if not found or not can_plot("no picture is drawn"):
        return
    names = list(dict.fromkeys(result.rows[0]["model"] for result in found))
    figure, add = plots.panels(2, 0.17 * len(names) + 1.3)
    for label, value in (("times as fast as the best of PyTorch", lambda result: result.ratio),
                         ("share of PyTorch's least memory", lambda result: result.memory)):
        axes = add(xlabel=label)
        for k, precision in enumerate(dict.fromkeys(result.rows[0]["precision"] for result in found)):
            dots = [(value(result), names.index(result.rows[0]["model"])) for result in found
                    if result.rows[0]["precision"] == precision and value(result) is not None]
            if dots:
                axes.scatter(*zip(*dots), s=14, color=plots.SHADES[k % len(plots.SHADES)], label=precision)
        axes.axvline(1.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names, fontsize=6)
        axes.invert_yaxis()
        axes.legend(fontsize=7, loc="lower right")
    figure.supxlabel(plots.caption(rows[-1]), x=0.99, ha="right", fontsize=7, color="gray")
    save_figure(figure, path)
