"""The tables of docs/reference/performance.md and of the README, made from result files: nobody types a figure.

    python -m benchmarks.performance            # writes the tables anew; a test checks that they are current

A page holds a table between two comments, the first of which says what it is made of:

    <!-- table: steps h100/compare.jsonl 512 fp32 bf16 -->
    ...
    <!-- end -->
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
PAGES = (ROOT / "README.md", ROOT / "docs" / "reference" / "performance.md", ROOT / "docs" / "how_to" / "inference.md")
BLOCK = re.compile(r"(<!-- table: (\w+) (\S+)((?: \S+)*) -->\n).*?(<!-- end -->)", re.DOTALL)
COMPARED = (("fp32", "fp32", "strict float32"), ("fp32", "tf32", "TF32"), ("tf32", "tf32", "TF32"),
            ("bf16", "bf16", "bfloat16"))   # alpha's mode, cuDNN's, and its name


def steps(rows: Sequence[Row], *only: str) -> list[str]:
    """Returns a line per network, batch and precision, in that order: time and memory beside the best of PyTorch.

    only: batches and precisions that are wanted; default: all.
    """
    rows = results.latest(rows, compare_tables.KEY)
    batches, precisions = {n for n in only if n.isdigit()}, {n for n in only if not n.isdigit()}
    wanted = [row for row in rows if (not batches or str(row["batch"]) in batches)
              and (not precisions or row["precision"] in precisions)]
    return compare_tables.headline(sorted(wanted, key=compare_tables.order))


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
    that of the compiled network where it was measured, by precision; fp32 is beside TF32."""
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


MAKERS: dict[str, Callable[..., list[str]]] = {"steps": steps, "modes": modes, "accuracy": accuracy,
                                               "first_use": first_use, "latency": latency}


def filled(text: str) -> str:
    """Returns a page with all of its tables made anew."""
    def made(found: re.Match[str]) -> str:
        head, maker, file, rest, end = found.groups()
        lines = MAKERS[maker](results.read(RESULTS / file), *rest.split())
        return head + "\n".join(lines) + "\n" + end
    return BLOCK.sub(made, text)


def main() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
