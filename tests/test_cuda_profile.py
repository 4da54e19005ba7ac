"""What ncu has written, read: which passes, their kernels, and units that would be wrong."""

from __future__ import annotations

import pytest

from benchmarks import cuda_profile as profile

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
METRICS = [metric for metric, _ in profile.METRICS.values()]
UNITS = ["ns", "%", "%", "%", "%", "cycle", "cycle", "byte", "byte"]
SIN = "void at::vectorized_elementwise_kernel<4, at::sin_kernel_cuda>"


def written(*rows: tuple, units: list[str] = UNITS) -> list[str]:
    lines = ["==PROF== Connected", '"ID","Kernel Name",' + ",".join(METRICS), ",," + ",".join(units)]
    return [*lines, *(f'"{k}","{name}",' + ",".join(f'"{v:,}"' for v in values)
                      for k, (name, *values) in enumerate(rows))]


def test_kernels_belong_to_the_mark_before_them() -> None:
    some = (2_000, 50, 1, 60, 70, 1_500, 3_000, 4_000_000, 1_000_000)
    groups = profile.by_case(profile.kernels(written((SIN, *some), ("sk", *some), ("sum", *some), (SIN, *some),
                                                     ("conv_wgmma", *some))))
    assert [[k["kernel"] for k in group] for group in groups] == [["sk", "sum"], ["conv_wgmma"]]
    assert groups[1][0] == {"kernel": "conv_wgmma", "us": 2.0, "tensor": 50, "fma": 1, "l2": 60, "dram": 70,
                            "active": 50, "clock_ghz": 1.5, "read_mb": 4, "written_mb": 1}


def test_other_units_are_refused() -> None:
    with pytest.raises(ValueError, match=r"duration\.sum in us, ns is expected"):
        list(profile.kernels(written(("sk", *range(9)), units=["us", *UNITS[1:]])))


def test_the_passes_are_those_that_are_behind() -> None:
    def row(**other: object) -> dict:
        return {"set": "networks", "shape": "a", "pass": "fprop", "precision": "bf16", "n": 512, "ratio": 0.9, **other}
    rows = [row(), row(**{"pass": "dgrad"}), row(shape="b", ratio=0.8), row(shape="b", ratio=1.2), row(n=128),
            row(precision="fp32"), row(set="layers"), row(shape="c", failed="no memory")]
    args = profile.parsed([])
    assert [(r["shape"], r["pass"]) for r in profile.cases(rows, args)] == [("a", "fprop"), ("a", "dgrad")]
    args = profile.parsed(["--below", "2", "--shapes", "b"])
    assert [r["shape"] for r in profile.cases(rows, args)] == ["b"]


def test_a_layer_by_its_name() -> None:
    layer, = profile.cases([], profile.parsed(["--shapes", "d4", "--passes", "dgrad"]))
    assert (layer["set"], layer["pass"], layer["n"], layer["hw"], layer["oc"]) == ("layers", "dgrad", 512, 4, 512)


def test_nothing_to_do_says_so(tmp_path, capsys) -> None:
    assert profile.main(["--results", str(tmp_path)]) == 1
    assert "no pass at batch 512 in bf16 is below 1.0" in capsys.readouterr().err
