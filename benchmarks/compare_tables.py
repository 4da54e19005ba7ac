"""The tables of benchmarks/compare.py, made from its rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.configurations import PRECISIONS
from benchmarks.results import Row, key_of, latest

NETWORK = ("model", "batch", "precision", "settings")
KEY = ("kind", "device", *NETWORK, "configuration")
TITLES = {"lenet5": "LeNet-5", "vgg16": "VGG-16", "resnet18": "ResNet-18", "googlenet": "GoogLeNet"}  # in their order
MORE_TITLES = {"vgg19": "VGG-19", "convnext_tiny": "ConvNeXt-T", "densenet100_12": "DenseNet-BC-100-12",
               "mobilenetv2": "MobileNetV2", "resnet20": "ResNet-20", "resnet50": "ResNet-50", "resnet56": "ResNet-56",
               "resnext29_8x64d": "ResNeXt-29", "wrn28_10": "WRN-28-10", "coresnet50": "CoResNet-50"}
MIB = 1 << 20
BARRED = {("resnet18", 512), ("vgg16", 512)}  # in fp32: to be faster than eager PyTorch, in half the memory
TIME_BAR, MEMORY_BAR = 1.0, 0.5

STEP_HEAD = ("network", "batch", "precision", "PyTorch", "layout", "alpha ms (min..max)", "PyTorch ms (min..max)",
             "alpha is", "images/s", "peak MiB", "steady MiB", "process MiB", "")
MEMORY_HEAD = ("network", "batch", "precision", "library", "weights", "gradients", "optimizer state", "batches",
               "saved activations", "peak", "at the peak: activations, gradients, workspace", "in", "made again")


def title(model: str) -> str:
    """Returns the name of a network in tables."""
    return TITLES.get(model) or MORE_TITLES.get(model, model)


def table(head: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Returns a table's lines under its head."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def both(row: Row, key: str, digits: int = 0) -> str:
    """Returns "alpha / PyTorch" of one figure, - for an unknown one."""
    values = [row.get(key, {}).get(name) for name in ("alpha", "torch")]
    return " / ".join("-" if v is None else f"{v:,.{digits}f}" for v in values)


def precision(row: Row) -> str:
    """Returns the precision, and alpha's settings."""
    return f"{row['precision']} {row.get('settings') or ''}".strip()


def spread(row: Row, side: str) -> str:
    values = row["ms_rounds"][side]
    return f"{row['ms'][side]:.2f} ({min(values):.2f}..{max(values):.2f})"


def line(row: Row, best: bool = False) -> str:
    """Returns a row of the table of steps."""
    where = f"| {row['model']} | {row['batch']} | {precision(row)} | {row['configuration']} |"
    if "failed" in row:
        return f"{where} FAILED: {row['failed'].splitlines()[0]} |"
    return (f"{where} {row['layout']} | {spread(row, 'alpha')} | {spread(row, 'torch')} | {row['ratio']:.2f} "
            f"({row['ratio_min']:.2f}..{row['ratio_max']:.2f}) | {both(row, 'images_per_s')} | {both(row, 'peak_mib')} "
            f"| {both(row, 'steady_mib')} | {both(row, 'process_mib')} | {'best PyTorch' if best else ''} |")


def turns(row: Row) -> list[str]:
    """Returns the time of a step in turn beside its time in a loop, for rows that have it."""
    if "loop_ms" not in row:
        return []
    return ["in a loop: " + ", ".join(f"{name} {ms:.2f} ms, in turn {row['ms'][name] / ms - 1:+.1%}"
                                      for name, ms in row["loop_ms"].items())]


def networks(rows: Iterable[Row]) -> list[list[Row]]:
    """Returns the rows of steps that did not fail, a list for each network, batch, precision and settings."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        if row["kind"] == "step" and "failed" not in row:
            found.setdefault(key_of(row, NETWORK), []).append(row)
    return list(found.values())


def order(row: Row) -> tuple[object, ...]:
    """Returns the key by which rows are sorted, everywhere: network, batch, precision."""
    place = [list(TITLES).index(row["model"])] if row["model"] in TITLES else [len(TITLES), row["model"]]
    precision = PRECISIONS.index(row["precision"]) if row["precision"] in PRECISIONS else len(PRECISIONS)
    return (*place, row["batch"], precision, row.get("settings") or "")


def best(rows: Iterable[Row]) -> Row:
    """Returns the row of the fastest PyTorch."""
    return min(rows, key=lambda row: row["ms"]["torch"])


def steps(rows: Sequence[Row]) -> list[str]:
    """Returns the table of steps; in each network the best configuration of the same precision is marked."""
    marked = [id(best(group)) for group in networks(rows)]
    return table(STEP_HEAD, (line(row, id(row) in marked) for row in rows if row["kind"] == "step"))


def headline(rows: Sequence[Row]) -> list[str]:
    """Returns a line per network: alpha beside the fastest PyTorch, and beside the least memory of any PyTorch.

    Memory is each library's own count, or the process's where PyTorch has none.
    """
    lines = []
    for group in networks(rows):
        fastest = best(group)
        key = "peak_mib" if fastest["peak_mib"]["torch"] is not None else "process_mib"
        least = min((row for row in group if row[key]["torch"] is not None), key=lambda row: row[key]["torch"],
                    default=None)
        memory = "-" if least is None else (f"{least[key]['alpha']:.0f} / {least[key]['torch']:.0f} MiB "
                                            f"({short(least)})")
        what = f"{title(fastest['model'])}, batch {fastest['batch']}"
        lines.append(f"| {what} | {precision(fastest)} | {milliseconds(fastest['ms']['alpha'])} | "
                     f"{milliseconds(fastest['ms']['torch'])} ({short(fastest)}) | "
                     f"**{fastest['ratio']:.2f} times as fast** | {memory} |")
    return table(("training step", "precision", "alpha", "best PyTorch", "alpha is", "peak memory, alpha / PyTorch"),
                 lines)


def milliseconds(value: float) -> str:
    return f"{value:.{1 if value >= 1 else 2}f} ms"


def short(row: Row) -> str:
    """Returns a configuration as a table names it: "graph, NHWC"."""
    kind = row["configuration"].removeprefix("torch_")
    return row["layout"].upper() if kind == row["layout"] else f"{kind}, {row['layout'].upper()}"


def bars(rows: Sequence[Row]) -> list[str]:
    """Returns a line for each network on a GPU of which something is asked beside eager PyTorch in fp32."""
    lines = []
    for group in networks(rows):
        eager = [row for row in group if row["configuration"] in ("torch_nchw", "torch_nhwc")]
        first = group[0]
        if (first["model"], first["batch"]) in BARRED and eager and first["device"] == "cuda" and (
                first["precision"] == "fp32"):
            ratio = best(eager)["ratio"]
            ours, theirs = (min(row["peak_mib"][side] for row in eager) for side in ("alpha", "torch"))
            met = "ok" if ratio > TIME_BAR and ours / theirs <= MEMORY_BAR else "MISSED"
            lines.append(f"{first['model']}, batch {first['batch']}, beside eager PyTorch: {ratio:.2f} times as fast "
                         f"(> {TIME_BAR:g}), {ours / theirs:.2f} of its peak memory (<= {MEMORY_BAR:g}): {met}")
    return lines


def memory(rows: Sequence[Row]) -> list[str]:
    """Returns the table of the content of memory in a step, in MiB."""
    def mib(value: float | None) -> str:
        return "-" if value is None else f"{value / MIB:,.1f}"
    lines = []
    for row in rows:
        if row["kind"] != "memory" or not row["account"]:
            continue
        a = row["account"]
        at_peak = ", ".join(mib(a["at_peak"][k]) for k in ("activations", "gradients", "workspace")
                            ) if "at_peak" in a else "-"
        cells = [mib(a[k]) for k in ("weights", "gradients", "optimizer_state", "batches", "activations", "peak")]
        lines.append(f"| {row['model']} | {row['batch']} | {precision(row)} | {row['configuration']} | "
                     f"{' | '.join(cells)} | {at_peak} | {a.get('peak_phase', '-')} | {again(a.get('made_again'))} |")
    return table(MEMORY_HEAD, lines)


def again(made: Row | None) -> str:
    """Returns the bytes that a step has made again instead of keeping them, and the host's time for it."""
    if not made or not made["times"]:
        return "-"
    return f"{made['made'] / MIB:,.1f} MiB in {made['times']} calls, {made['ms']:.1f} ms"


def report(rows: Iterable[Row]) -> list[str]:
    """Returns all tables of a file of results; of several results of one configuration the last one counts."""
    rows = latest(rows, KEY)
    return [*steps(rows), "", *headline(rows), "", *bars(rows), "", *memory(rows)]
