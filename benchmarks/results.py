"""Files of results: a JSON object a line, each with the facts that its figures depend on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def record(path: Path | None, facts: Row, row: Row) -> None:
    """Appends a result and its facts to a file."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({**facts, **row}) + "\n")


def read(path: Path) -> list[Row]:
    """Returns the results of a file in their order; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trainings(rows: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Returns the rows of accuracy.jsonl by recipe, network and `how_of`, of each seed the latest."""
    groups: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in rows:
        key = row["recipe"], row["config"]["model"], how_of(row["config"])
        groups.setdefault(key, {})[row["seed"]] = row
    return {key: list(seeds.values()) for key, seeds in groups.items()}


def how_of(config: Row) -> str:
    """Returns the precision of a training, and the algorithm of convolutions where one was named."""
    algorithm = config.get("algorithm", "auto")
    return config["precision"] + (f" {algorithm}" if algorithm != "auto" else "")


def key_of(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in names)


def latest(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Returns the rows without those that a later one with the same values of `names` has taken the place of.

    A result that failed or was refused takes the place of none.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = key_of(row, names)
        if "failed" not in row or key not in found or "failed" in found[key]:
            found[key] = row
    return list(found.values())
