"""The costs of kernels: the device, the time of a cost, and that no other file has such constants."""

from __future__ import annotations

import json
import re
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

import alpha
from alpha.cuda import families  # noqa: F401  registers the candidates
from alpha.cuda.conv import costs, planner
from alpha.cuda.conv.costs import FMA, H100, KNOWN, MMA, TABLES, Device, device, time_us
from alpha.cuda.conv.costs.records import changed
from alpha.cuda.runtime import rehearsal
from alpha.cuda.runtime.context import context
from alpha.errors import ConfigError
from alpha.plan import Cost, Stage
from tests.conv_cases import square

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
HOME = Path(alpha.__file__).parent / "cuda"


@pytest.fixture
def gpu(monkeypatch):
    """Returns a function that puts a device in the place of this process's."""
    def put(arch: str, name: str = "Some GPU", **other: int) -> rehearsal.Device:
        found = rehearsal.DEVICES[arch]._replace(name=name, **other)
        names = SimpleNamespace(CLOCK_RATE=found.clock, MEMORY_CLOCK_RATE=found.memory_clock,
                                GLOBAL_MEMORY_BUS_WIDTH=found.bus)
        driver = SimpleNamespace(device_attribute=names, Device=lambda index: SimpleNamespace(
            get_attribute=lambda value: value))
        for key, value in dict(arch=arch, name=name, sm_count=found.sm_count, max_shared=found.max_shared,
                               driver=driver).items():
            monkeypatch.setattr(context, key, value)
        costs._device.cache_clear()
        return found
    yield put
    costs._device.cache_clear()


# ---- the device ------------------------------------------------------------------------------------------------------


def test_without_a_device_estimates_are_those_of_an_h100():
    assert device() == H100


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", "NVIDIA H200"])
def test_measured_devices_are_known_by_name(gpu, name):
    gpu("sm_90a", name)
    assert device() == KNOWN[name.split()[1]]


def test_others_are_computed_from_what_the_driver_says(gpu):
    found = gpu("sm_86")
    assert (device().sm_count, device().fma, device().mma) == (82, 128, 256)
    assert device().clock_ghz == pytest.approx(0.81 * 1.695)
    assert device().dram == pytest.approx(0.75 * 2 * found.memory_clock * 1e-3 * found.bus / 8)
    gpu("sm_80")
    assert (device().fma, device().mma) == (FMA["sm_80"], MMA["sm_80"])
    gpu("sm_90a", "NVIDIA H100 PCIe", sm_count=114, clock=1_755_000)  # a name that is known, on another board
    assert device().sm_count == 114 and device().slower == pytest.approx(1.6 / (0.81 * 1.755))


def test_what_is_computed_for_an_h100_is_near_what_was_measured(gpu, monkeypatch):
    gpu("sm_90a", "NVIDIA GH100")
    monkeypatch.setattr(costs, "KNOWN", {})
    costs._device.cache_clear()
    assert device() != H100
    for name, value in H100._asdict().items():
        assert getattr(device(), name) == (value if isinstance(value, str) else pytest.approx(value, rel=0.02)), name


def test_the_choice_does_not_depend_on_the_cache(gpu, monkeypatch, tmp_path):
    gpu("sm_90a", "Some GPU")
    desc, names = square("", 64, 16, 64, 128, 3, 1, 1).desc, []
    for folder in ("a", "b"):
        monkeypatch.setattr(alpha.config, "cache_dir", str(tmp_path / folder))
        costs._device.cache_clear()
        names.append([planner.rank(p, desc, "bf16", every=False)[0].candidate.name for p in planner.PASSES])
    assert names[0] == names[1] and not list(tmp_path.iterdir())


def test_a_calibration_is_read_where_a_setting_names_it(gpu, tmp_path):
    gpu("sm_90a", "NVIDIA H200")
    path, faster = tmp_path / "h200.json", H100._replace(dram=3.6e6, clock_ghz=1.8)
    path.write_text(costs.text_of(faster))
    with alpha.config(calibration=str(path)):
        assert device() == faster._replace(costs=str(path)) and device().table == H100.table
    assert device() == H100


@pytest.mark.parametrize(("text", "what"), [
    (None, r"FileNotFoundError: .*"), ("{", r"JSONDecodeError: .*"), ("[]", r"TypeError: .*"), ("{}", r"KeyError: .*"),
    (costs.text_of(H100).replace('"sm_count": 132, ', ""), r"TypeError: .* missing .*"),
    (costs.text_of(H100._replace(arch="sm_86")), "it is of a sm_86, this device is a sm_90a"),
    (costs.text_of(H100._replace(dram=-1.0)), r"Device\(.*dram=-1.0.*\) has no rates"),
    (costs.text_of(H100._replace(l2="fast")), r"Device\(.*\) has no rates"),
    (json.dumps({"device": H100._asdict()}), r"KeyError: 'constants'"),
    (costs.text_of(H100).replace('"box_us": 0.012', '"boxes_us": 0.012'),
     "ValueError: constants.wgmma lacks box_us")])
def test_a_calibration_that_does_not_serve_is_refused(gpu, tmp_path, text, what):
    gpu("sm_90a", "NVIDIA H200")
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    with alpha.config(calibration=str(path)), pytest.raises(ConfigError) as caught:
        device()
    assert re.fullmatch(rf"ALPHA_CALIBRATION: '{re.escape(str(path))}' does not serve: {what}\n"
                        "help: unset it, or write the file anew: python -m benchmarks.calibrate --output FILE",
                        str(caught.value), re.DOTALL)


# ---- costs -----------------------------------------------------------------------------------------------------------

DEVICE = Device("sm_90a", 10, 2.0, 100, 1000, launch_us=3.0, latency_us=0.5, dram=1e6, l2=4e6)


def test_the_time_of_a_cost():
    """The greater of work and bytes of each stage, what is seen of the lesser, launches, and steps that wait."""
    fma, mma = 2 * 100 * 10 * 2000, 2 * 1000 * 10 * 2000  # FLOP per microsecond
    for stage, us in ((Stage(fma * 7, "fma"), 7), (Stage(mma * 7, "mma"), 7), (Stage(14000, "clocks"), 7),
                      (Stage(7), 7), (Stage(nbytes=7e6), 7), (Stage(nbytes=28e6, level="l2"), 7),
                      (Stage(7, nbytes=4e6), 7), (Stage(4, nbytes=7e6), 7), (Stage(4, nbytes=7e6, seen=0.5), 9),
                      (Stage(depth=4, launches=2), 8), (Stage(7, depth=1, launches=1), 10.5)):
        assert time_us(Cost((stage,)), DEVICE) == pytest.approx(us), stage
        assert time_us(Cost((stage, Stage(7))), DEVICE) == pytest.approx(us + 7)
        assert time_us(Cost((stage,)).times(3), DEVICE) == pytest.approx(3 * us)
    assert time_us(Cost((Stage(12.5),))) == 12.5 and time_us(Cost(())) == 0


@pytest.mark.parametrize("arch", list(rehearsal.DEVICES))
def test_every_candidate_has_a_cost_on_every_class(gpu, arch):
    """Its constants are there, and on a device that does everything twice as fast it takes half as long or more."""
    gpu(arch)
    for case in (square("", 16, 8, 64, 128, 3, 1, 1), square("", 16, 9, 3, 16, 3, 2, 1),
                 square("", 16, 8, 16, 16, 3, 1, 1, groups=16)):
        for pass_name in planner.PASSES:
            for candidate in planner.candidates(pass_name):
                if not candidate.rejection(case.desc):
                    cost = candidate.cost(case.desc)
                    us = time_us(cost)
                    assert candidate.least_us(case.desc) <= us * (1 + 1e-9) and 0.5 < us < 1e5, candidate.name
                    assert any(stage.launches for stage in cost.stages), candidate.name


def test_more_taps_take_longer_where_arithmetic_is_what_limits(gpu):
    gpu("sm_90a", "NVIDIA H200")
    near, far = (square("", 64, 56, 64, 64, f, 1, f // 2, groups=64).desc for f in (3, 31))
    for pass_name in planner.PASSES:
        few, many = (min(time_us(c.cost(desc)) for c in planner.candidates(pass_name, "fma")
                         if c.name.startswith("depthwise") and not c.rejection(desc)) for desc in (near, far))
        assert many > 5 * few


# ---- one place -------------------------------------------------------------------------------------------------------


def test_no_file_of_code_has_microseconds_or_rates():
    """No name that ends so is given a number, but for launches of devices that nobody measured; comments may tell."""
    constant = re.compile(r"\w*(?:_us|_per_us|_clocks)\b(?:: \w+)?\s*=\s*[({]*[0-9.]+", re.IGNORECASE)
    for path in HOME.rglob("*.py"):
        found = constant.findall(path.read_text())
        assert found == (["LATENCY_US = 1.0"] if path == HOME / "conv" / "costs" / "__init__.py" else []), path


# ---- files -----------------------------------------------------------------------------------------------------------


def test_the_file_is_what_the_command_would_write():
    assert costs.text_of(H100) == (costs.HOME / "h100.json").read_text()


@pytest.mark.parametrize("place", ["ffma.tiles", "ffma.wgrad", "wgmma.tiles", "wgmma_wgrad.tiles", "transformed.fft",
                                   "stem.few", "stem_mma.clocks", "grouped.clocks", "wgmma_wgrad.strip"])
def test_a_tile_without_constants_is_named_when_modules_are_imported(place, monkeypatch):
    from alpha.cuda.conv import constants
    there = attrgetter(place)(H100.table)
    key = next(iter(there))
    less = type(there)({name: value for name, value in there.items() if name != key})
    monkeypatch.setitem(TABLES, "h100", changed(H100.table, place, less))
    with pytest.raises(ValueError, match=rf"h100: constants\.{place} has no record of the tile .+: add what it takes"):
        constants.check_all()


def test_constants_without_a_tile_are_named_when_modules_are_imported(monkeypatch):
    from alpha.cuda.conv import constants
    tiles = H100.table.wgmma.tiles
    other = "bf16", 128, 257, False, 0
    monkeypatch.setitem(TABLES, "h100", changed(H100.table, "wgmma.tiles", type(tiles)({
        **tiles, other: next(iter(tiles.values()))})))
    with pytest.raises(ValueError, match=r"wgmma.tiles has a record of a tile that is not declared: \('bf16', "):
        constants.check_all()


@pytest.mark.parametrize(("old", "new", "what"), [
    ('"few_us": 0.17,', "", "constants.wgmma lacks few_us"),
    ('"few_us": 0.17', '"few_us": "0.17"', "constants.wgmma.few_us is '0.17', which is no int or float"),
    ('"free_boxes": 4', '"free_boxes": true', "constants.wgmma.free_boxes is True, which is no int"),
    ('"few_us": 0.17', '"few_us": 0.17, "more_us": 1', "constants.wgmma has more_us, which nothing reads"),
    ('{"edge": 32,', '{"edge": 16,', "constants.transformed.fft has two records of one tile"),
    ('{"edge": 32, "dram": 0.5, "fma": 0.2},', "",
     "new.json: constants.transformed.fft has no record of the tile edge 32: add what it takes")])
def test_a_file_that_is_not_whole_is_refused(old, new, what):
    text = costs.text_of(H100)
    assert old in text
    with pytest.raises(ValueError, match=re.escape(what)):
        costs.load(text.replace(old, new), "new.json")


def test_a_constant_that_is_not_there_is_not_changed():
    with pytest.raises(AttributeError):
        changed(H100.table, "wgmma.no_such", 1)
    assert changed(H100.table, "wgmma.box_us", 0.5).wgmma.box_us == 0.5 != H100.table.wgmma.box_us


def test_a_survivor_that_is_not_made_by_the_loops_is_named(monkeypatch):
    from alpha.cuda.conv.wgmma import tiles
    monkeypatch.setattr(tiles, "_table", lambda: {"maps": [{"tile": [128, 512, False, 0, 1]}]})
    refused = r"survivors.json: maps has the tile \(128, 512, False, 0, 1\), which does not fit"
    with pytest.raises(ValueError, match=refused):
        tiles.survivors("maps", tiles.fitting(1))


def test_tiles_have_as_many_buffers_as_fit():
    """But for one of wgrad, whose registers a fifth buffer does not suit."""
    from alpha.cuda.conv.wgmma import OUT_ROW, STORED_ROWS, TILES, tiles, wgrad
    for mode, found in TILES.items():
        for tile in found:
            block = mode.planes * (tile.rows + tile.columns) * tiles.CHUNK * 2
            room = tiles.SHARED_BYTES - 2 * tile.consumers * STORED_ROWS * OUT_ROW * (tile.cluster == 1)
            assert tile.held or tile.stages * block <= room < (tile.stages + 2) * block, tile
    fewer = [(planes, str(tile)) for planes, found in wgrad.TILES.items() for tile in found
             if (tile.stages + 1) * tile.box_bytes(planes) <= wgrad.RING_BYTES]
    assert fewer == [(2, "64x3x32")]
