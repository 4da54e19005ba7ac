"""benchmarks.calibrate measures the device, and what it writes is what kernels are chosen by."""

from __future__ import annotations

import json
import sys

import pytest

import alpha
from alpha.cuda.conv import costs
from alpha.cuda.conv.costs import Device, device
from alpha.cuda.runtime.context import context
from benchmarks import calibrate
from benchmarks.shapes import ConvShape
from tests.cuda.process import CHECKED

pytestmark = [pytest.mark.cuda, pytest.mark.no_memcheck("a clock of kernels that have tests of their own"),
              pytest.mark.usefixtures("device"),
              pytest.mark.skipif(CHECKED, reason="what it launches is checked where that is tested"), pytest.mark.long]


def test_a_device_is_measured_and_its_file_is_read(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(calibrate, "SMALL", (ConvShape("tiny", 3, 2, 64, 64, 3, 1, 1),))
    for name, value in dict(CALLS=2, WINDOW_MS=0.01, MOST_SETS=2, LENGTHS=(1 << 8, 1 << 12)).items():
        monkeypatch.setattr(calibrate, name, value)
    output, rows = tmp_path / "device.json", tmp_path / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["calibrate", "--shapes", "tiny", "--rounds", "1", "--tiles", "1", "--output",
                                      str(output), "--record", str(rows)])
    calibrate.main()
    found = json.loads(output.read_text())
    taken = device()
    with alpha.config(calibration=str(output)):
        assert device() == Device(**found["device"], costs=str(output)) == costs.read(output, context.arch)
        assert device().table == taken.table
    assert device() == taken and found["device"]["sm_count"] == context.sm_count
    recorded = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {row.get("pass") for row in recorded} == {None, "fprop", "dgrad", "wgrad"}
    assert all(row["us"] > 0 and row["device"] == context.name for row in recorded)
    printed = capsys.readouterr().out
    assert "taken" in printed and printed.rstrip().endswith(")") and "Device(arch=" in printed
