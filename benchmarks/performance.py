"""The tables of docs/reference/performance.md, of the README and of benchmarks/results/tables.md, from result files.

    python -m benchmarks.performance            # writes the tables anew; a test checks that they are current

A page holds a table between two comments, the first of which names its source:

    <!-- table: steps h100/compare.jsonl 512 fp32 bf16 -->
    ...
    <!-- end -->

`measured` is the table of all devices: its rows are chosen by SHOWN.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import compare_tables, results
from benchmarks.configurations import PRECISIONS
from benchmarks.results import Row
from benchmarks.shapes import PASSES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "reference" / "performance.md", ROOT / "docs" / "how_to" / "inference.md",
         RESULTS / "tables.md")
# Files of the table of all devices, in order, with the batches and precisions shown of each (none: all).
SHOWN = (("h200/compare.jsonl", "16", "512"), ("h200/zoo.jsonl",), ("h200/coresnet50.jsonl",),
         ("h100/compare.jsonl", "512"), ("h100/zoo.jsonl", "fp32", "fp32-tf32", "bf16"),
         ("intel_xeon_2core/compare.jsonl",), ("intel_xeon_2core/zoo.jsonl",), ("intel_xeon_1core/compare.jsonl",),
         ("intel_xeon_1core/zoo.jsonl",), ("amd_epyc_2core/compare.jsonl",), ("amd_epyc_2core/zoo.jsonl",),
         ("amd_epyc_1core/compare.jsonl",), ("amd_epyc_1core/zoo.jsonl",))
BLOCK = re.compile(r"(<!-- table: (\w+) (\S+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
COMPARED = (("fp32", "fp32", "strict float32"), ("fp32", "tf32", "TF32"), ("tf32", "tf32", "TF32"),
            ("bf16", "bf16", "bfloat16"))   # alpha's mode, cuDNN's, and its name


def steps(rows: Sequence[Row], *only: str) -> list[str]:
    """Returns a line per network, batch and precision, in that order: time and memory beside the best of PyTorch.

    only: batches and precisions that are wanted; default: all.
    """
    return compare_tables.headline(_chosen(rows, only))


def _chosen(rows: Sequence[Row], only: Sequence[str]) -> list[Row]:
    """Returns the latest rows, in order, of the batches and precisions in `only`; of all where it names none."""
    batches, precisions = {n for n in only if n.isdigit()}, {n for n in only if not n.isdigit()}
    return sorted((row for row in results.latest(rows, compare_tables.KEY)
                   if (not batches or str(row["batch"]) in batches)
                   and (not precisions or row["precision"] in precisions)), key=compare_tables.order)


def measured(_: Sequence[Row]) -> list[str]:
    """Returns the table of all devices: a line per network, batch, device and precision, with date and commit."""
    lines = []
    for file, *only in SHOWN:
        for group in compare_tables.networks(_chosen(results.read(RESULTS / file), only)):
            fastest = compare_tables.best(group)
            lines.append(f"| {compare_tables.title(fastest['model'])}, {fastest['batch']} | {device(fastest)} | "
                         f"{_precision(fastest)} | {_ms(fastest, 'alpha')} | {_ms(fastest, 'torch')} | "
                         f"**{fastest['ratio']:.2f}** | {_memory(group)} | {fastest['date']} | {fastest['commit']} |")
    return compare_tables.table(("network, batch", "device", "precision", "alpha, ms", "PyTorch's best, ms", "ratio",
                                 "memory, MiB", "date", "commit"), lines)


def device(row: Row) -> str:
    """Returns a device in few words: "H200", "Xeon, 2 cores", "EPYC, 1 core, AVX2"."""
    if row["device"] == "cuda":
        return str(row["name"]).removeprefix("NVIDIA ").partition(" ")[0]
    name = "Xeon" if "Xeon" in row["cpu"] else row["cpu"].removeprefix("AMD ").partition(",")[0]
    cores = row["cpu"].rpartition(", ")[2].replace("1 cores", "1 core")
    return f"{name}, {cores}" + (", AVX2" if "ALPHA_CPU_ISA=avx2" in row["settings"] else "")


def _precision(row: Row) -> str:
    return "fp32 beside TF32" if row["precision"] == "fp32-tf32" else str(row["precision"])


def _ms(row: Row, side: str) -> str:
    value = row["ms"][side]
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _memory(group: Sequence[Row]) -> str:
    """Returns alpha's peak and the least of PyTorch's: of the device, or of the process on a CPU."""
    key = "peak_mib" if group[0]["peak_mib"]["torch"] is not None else "process_mib"
    known = [row for row in group if row[key]["torch"] is not None]
    if not known:
        return "-"
    least = min(known, key=lambda row: row[key]["torch"])
    return f"{least[key]['alpha']:.0f} / {least[key]['torch']:.0f}"


def modes(rows: Sequence[Row]) -> list[str]:
    """Returns a line per pair of modes: how many times as fast as cuDNN, geometric means over the layers."""
    best: dict[tuple[str, str, str, str], float] = {}
    for row in results.latest(rows, ("shape", "pass", "side", "mode")):
        if row["us"] == row["us"] and not row["side"].endswith(("+split", "+counts")):
            key = ("cuDNN" if row["side"].startswith("cuDNN") else "alpha", row["mode"], row["pass"], row["shape"])
            best[key] = min(row["us"], best.get(key, row["us"]))
    lines = []
    for mode, peer, name in COMPARED:
        ratios = {(p, shape): best["cuDNN", peer, p, shape] / us for (side, m, p, shape), us in best.items()
                  if side == "alpha" and m == mode and ("cuDNN", peer, p, shape) in best}
        means = [statistics.geometric_mean(r for (p, _), r in ratios.items() if p == wanted) for wanted in PASSES]
        slowest = min(ratios, key=lambda at: ratios[at])
        lines.append(f"| `{mode}` | {name} | " + " | ".join(f"{m:.2f}" for m in means)
                     + f" | **{statistics.geometric_mean(ratios.values()):.2f}** | "
                     f"{ratios[slowest]:.2f} ({slowest[1]} {slowest[0]}) |")
    return compare_tables.table(("alpha", "cuDNN", *PASSES, "all passes", "slowest"), lines)


def accuracy(rows: Sequence[Row]) -> list[str]:
    """Returns a line per network: test accuracy in percent, alpha / PyTorch, the mean over the seeds."""
    found: dict[str, dict[str, str]] = {}
    for (_, model, precision), seeds in results.trainings(rows).items():
        ours, theirs = (100 * statistics.mean(row[side]["accuracy"] for row in seeds) for side in ("alpha", "torch"))
        found.setdefault(compare_tables.title(model), {})[precision] = f"{ours:.2f} / {theirs:.2f}"
    columns = [p for p in PRECISIONS if any(p in each for each in found.values())]
    return compare_tables.table(("network", *columns), (f"| {name} | " + " | ".join(
        found[name].get(p, "-") for p in columns) + " |" for name in sorted(found)))


def first_use(rows: Sequence[Row]) -> list[str]:
    """Returns a line per network, precision and number of cores: seconds from the start of a process to the end of its
    first step, with kernels to compile and with kernels there, medians."""
    found: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        cores = f"{row['cores']} cores" if row["cores"] else row["cpu"].rpartition(", ")[2]
        found.setdefault((row["network"], row["precision"], cores), {}).setdefault(row["cache"], []).append(row)
    lines = []
    for (network, precision, cores), by in sorted(found.items()):
        seconds = (f"{statistics.median(row['ends'] for row in by[cache]):.1f} s" if cache in by else "-"
                   for cache in ("empty", "full"))
        modules = next(iter(by.values()))[-1]["modules"]
        lines.append(f"| {compare_tables.title(network)} | {precision} | {cores} | {modules} | {' | '.join(seconds)} |")
    return compare_tables.table(("first step", "precision", "CPU", "modules", "to compile", "compiled before"), lines)


def latency(rows: Sequence[Row]) -> list[str]:
    """Returns a line per network and number of images: milliseconds of a call beside the fastest of PyTorch's graphs,
    the compiled network's where it was measured, by precision; fp32 is beside TF32."""
    precisions = ("bf16", "tf32", "fp32")
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row in results.latest(rows, ("network", "n", "precision")):
        network, _, pixels = row["network"].partition("@")
        by = found.setdefault((f"{compare_tables.title(network)}, {pixels or 32}x{pixels or 32}", row["n"]), {})
        ours, best = row["ms"]["alpha"], min(ms for side, ms in row["ms"].items() if side != "alpha")
        by[row["precision"]] = f"{ours:.3f} / {best:.3f} | **{best / ours:.2f}**"
    heads = [head for p in precisions for head in (f"{p}, ms", "times as fast")]
    return compare_tables.table(("network", "images", *heads), (
        f"| {name} | {n} | " + " | ".join(by.get(p, "- | -") for p in precisions) + " |"
        for (name, n), by in found.items()))


MAKERS: dict[str, Callable[..., list[str]]] = {
    "steps": steps, "measured": measured, "modes": modes, "accuracy": accuracy, "first_use": first_use,
    "latency": latency}


def filled(text: str) -> str:
    """Returns a page with all of its tables made anew."""
    def made(found: re.Match[str]) -> str:
        head, maker, file, rest, end = found.groups()
        lines = MAKERS[maker]([] if file == "all" else results.read(RESULTS / file), *rest.split())
        return head + "\n".join(lines) + "\n" + end
    return BLOCK.sub(made, text)


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
