"""The reports of a comparison: a table, JSON, and one HTML file that needs no other."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from alpha.core.errors import ConfigError, message, remedy

COLORS = {"alpha": "#2a6f97", "torch eager": "#c1633b", "torch compile": "#8a6d3b"}
WORST = 12      # layers in the table


def _sides(report: dict[str, Any]) -> list[tuple[str, ...]]:
    base = report["sides"]["torch eager"]["step_ms"]
    rows: list[tuple[str, ...]] = []
    for name, side in report["sides"].items():
        peak = "-" if side["peak_mib"] is None else f"{side['peak_mib']:.0f}"
        rows.append((name, f"{side['step_ms']:.2f}", f"{min(side['times_ms']):.2f}", f"{base / side['step_ms']:.2f}",
                     f"{report['batch'] / side['step_ms'] * 1e3:.0f}", peak,
                     " ".join([f"{loss:.5f}" for loss in side["losses"]])))
    return rows


HEAD = ("side", "step ms", "fastest ms", "speed-up", "samples/s", "peak MiB", "first losses")
LAYER_HEAD = ("layer", "class", "shape", "alpha", "torch")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _layers(report: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(row["path"], row["kind"], "x".join(map(str, row["shape"])), _number(row["alpha"]), _number(row["torch"]))
            for row in report["layers"]]


def _aligned(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    return "\n".join(["  ".join([cell.ljust(w) for cell, w in zip(line, widths)]).rstrip() for line in (head, *rows)])


def table(report: dict[str, Any]) -> str:
    """Returns the text that the command prints."""
    layers = report["layers"]
    worst = sorted(layers[:-1], key=lambda row: -(row["alpha"] or 0.0))[:WORST]
    shown = _layers({"layers": [row for row in layers if row in worst or row is layers[-1]]})
    permutes = report["sides"]["alpha"]["permutes"]
    lines = [f"{report['class']}: {report['parameters']:,} parameters, input {report['input']}, batch "
             f"{report['batch']}, {report['precision']}, {report['device_name']}",
             f"converted in {report['sides']['alpha']['convert_s']:.1f} s, {len(permutes)} permutes left",
             *[f"    {place}" for place in permutes], "",
             _aligned(HEAD, _sides(report)), "",
             f"relative error against float64, in float32 inference; {len(shown)} of {len(layers)} rows",
             _aligned(LAYER_HEAD, shown)]
    return "\n".join(lines)


def _bars(report: dict[str, Any], key: str, unit: str) -> str:
    """Returns an SVG with a bar for each side."""
    values = {name: side[key] for name, side in report["sides"].items() if side[key] is not None}
    top = max(values.values(), default=1.0) or 1.0
    parts = []
    for k, (name, value) in enumerate(values.items()):
        width, y = 420 * value / top, 8 + 34 * k
        parts.append(f'<text x="0" y="{y + 17}">{html.escape(name)}</text><rect x="120" y="{y}" width="{width:.1f}" '
                     f'height="24" fill="{COLORS.get(name, "#777")}"/><text x="{126 + width:.1f}" y="{y + 17}">'
                     f"{value:.4g} {unit}</text>")
    return f'<svg width="660" height="{16 + 34 * len(values)}" role="img">{"".join(parts)}</svg>'


def _html_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    def line(cells: tuple[str, ...], tag: str) -> str:
        return "<tr>" + "".join([f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells]) + "</tr>"

    return f"<table>{line(head, 'th')}{''.join([line(row, 'td') for row in rows])}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; margin: 1em 0; }} td, th {{ padding: .2em .8em; border-bottom: 1px solid #ddd;
text-align: left; }} code, pre {{ background: #f4f4f4; padding: .1em .3em; }} svg {{ font: 13px sans-serif; }}
</style></head><body>
<h1>{title}</h1>
<p>{facts}</p>
<p>Run again: <code>{command}</code></p>
<h2>Time of a training step, median</h2>{times}
<h2>Peak memory of a step</h2>{memory}
{sides}
<h2>Relative error of each layer against PyTorch in float64, in float32 inference</h2>
{layers}
<h2>Conversion</h2><p>{permutes}</p>
<h2>Versions</h2>{versions}
<details><summary>All of it as JSON</summary><pre>{data}</pre></details>
</body></html>
"""


def page(report: dict[str, Any]) -> str:
    """Returns the HTML report."""
    places = report["sides"]["alpha"]["permutes"]
    title = html.escape(f"{report['class']}: alpha beside PyTorch")
    facts = (f"{report['parameters']:,} parameters; input {report['input']}, batch {report['batch']}, "
             f"{report['precision']}; {report['device_name']}; {report['time']}")
    return _PAGE.format(
        title=title, facts=html.escape(facts), command=html.escape(report["command"]),
        times=_bars(report, "step_ms", "ms"), memory=_bars(report, "peak_mib", "MiB"),
        sides=_html_table(HEAD, _sides(report)), layers=_html_table(LAYER_HEAD, _layers(report)),
        permutes=html.escape(f"{len(places)} permutes left. " + " ".join(places)),
        versions=_html_table(("package", "version"), list(report["versions"].items())),
        data=html.escape(json.dumps(report, indent=1)))


def write(report: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Writes NAME.json and NAME.html and returns their paths.  Raises ConfigError."""
    made = []
    for suffix, text in ((".json", json.dumps(report, indent=1) + "\n"), (".html", page(report))):
        path = folder / f"{name}{suffix}"
        try:
            path.write_text(text)
        except OSError as error:
            raise ConfigError(message("compare", f"{path} cannot be written: {error.strerror}",
                                      remedy(error.errno, path))) from error
        made.append(path)
    return made
