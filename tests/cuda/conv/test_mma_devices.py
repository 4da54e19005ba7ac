"""GPUs before Hopper: which kernels are chosen there in which mode, and networks that train on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from alpha.cuda.conv import planner
from alpha.cuda.conv.costs import H100, device
from alpha.cuda.runtime.context import capability_of, context
from tests.conv_cases import CASES, NETWORKS, square
from tests.cuda.process import CHECKED, EMULATED, start

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("device")]

LAYERS = [replace(case, n=256).desc for case in NETWORKS["resnet18"] if case.ic > 3 and case.f == (3, 3)]
# Multiprocessors; KiB of shared memory of a block
DEVICES = {"sm_75": (40, 64), "sm_80": (108, 163), "sm_86": (82, 99), "sm_89": (128, 99), "sm_90a": (132, 227)}


@pytest.fixture
def arch(request, monkeypatch) -> str:
    sm_count, shared = DEVICES[request.param]
    of_hopper = {"name": "NVIDIA H100 80GB HBM3"} if request.param == "sm_90a" else {}
    for name, value in dict(of_hopper, arch=request.param, sm_count=sm_count, max_shared=shared << 10,
                            capability=capability_of(request.param)).items():
        monkeypatch.setattr(context, name, value)
    return request.param


def best(pass_name: str, desc, precision: str) -> planner.Candidate:
    option = planner.rank(pass_name, desc, precision)[0]
    assert not option.reason
    return option.candidate


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89"], indirect=True)
def test_tensor_cores_are_chosen_where_they_are_faster(arch):
    """float32's three products: not on cards that make 256 products per clock, and 128 multiply-adds in float32.  Those
    of sm_75 multiply no bfloat16: FMA units do."""
    on_cores = arch in ("sm_75", "sm_80")
    for desc in LAYERS:
        for pass_name in planner.PASSES:
            whole = best(pass_name, desc, "fp32")
            assert ("_mma " in whole.name and whole.reads == "float16x2") == on_cores, f"{whole.name} {desc}"
            assert whole.reads == "float32" or on_cores
            for precision in ("tf32", "bf16", "fp16"):
                chosen = best(pass_name, desc, precision)
                if arch == "sm_75" and precision == "bf16":
                    assert chosen.reads == "float32", chosen.name
                else:
                    assert "_mma " in chosen.name, desc


@pytest.mark.parametrize("arch", ["sm_75"], indirect=True)
def test_what_sm_75_lacks_is_said_where_plans_are_shown(arch):
    text = str(planner._make("fprop", LAYERS[0], "bf16", planner.AUTO))
    assert "needs compute capability 8.0, the device has 7.5" in text
    for pass_name in planner.PASSES:
        for precision in ("fp32", "tf32", "bf16", "fp16"):
            for option in planner.rank(pass_name, LAYERS[0], precision):
                assert option.reason or getattr(option.candidate, "shared", 0) <= 64 << 10, option.candidate.name


@pytest.mark.parametrize("arch", ["sm_90a"], indirect=True)
def test_hopper_takes_wgmma_wherever_it_fits(arch):
    for case in CASES[::9]:
        desc = replace(case, n=64).desc
        for pass_name in planner.PASSES:
            for precision in ("fp32", "bf16"):
                options = [o for o in planner.rank(pass_name, desc, precision) if not o.reason]
                first = next((o.candidate.name for o in options if o.candidate.reads != "float32"), "")
                if any("_wgmma" in o.candidate.name and "padded" not in o.candidate.name for o in options):
                    assert "_wgmma" in first, case.name


@pytest.mark.parametrize("arch", ["sm_90a"], indirect=True)
def test_odd_numbers_of_output_channels_are_served_on_hopper_too(arch):
    desc = square("", 256, 14, 512, 511, 3, 1, 1).desc
    assert "_wgmma " in best("fprop", desc, "bf16").name and "padded" in best("fprop", desc, "bf16").name


@pytest.mark.parametrize("arch", list(DEVICES), indirect=True)
def test_the_rates_are_those_of_the_device(arch):
    found = device()
    if arch == "sm_90a":
        assert found == H100
    else:
        assert (found.mma, found.fma) == {"sm_75": (512, 64), "sm_80": (1024, 64)}.get(arch, (256, 128))
    if EMULATED and arch != "sm_90a":
        assert found.clock_ghz == pytest.approx(0.81) and found.dram == pytest.approx(0.75 * 1.5552e6)


PROGRAM = """
import json
from alpha import nn
from alpha.cuda.conv import planner
from alpha.plan import Cost, Stage
from alpha.cuda.runtime.context import context
from tests import test_precision as cpu
from tests.cuda.test_training import small_resnet

def lenet():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Linear(144, 24), nn.ReLU(), nn.Linear(24, 10))

conversion = planner.conversion
planner.conversion = lambda c, *rest: (
    Cost((Stage(1e6),)) if c.reads == "float32" and not CHEAPEST else conversion(c, *rest))
losses = {}
for cpu.small_net, modes in ((lenet, MODES), (small_resnet, MODES[:RESNET])):
    for CHEAPEST, name, device in [(True, "fp32", "cpu"), *((c, m, "cuda") for c, m in modes)]:
        planner._plans.clear()
        losses.setdefault(cpu.small_net.__name__, []).append(cpu.trained(name, 2, device)[0])
        for (_, _, precision, *_), made in planner._plans.items():
            CHOSEN.setdefault(precision, set()).add(made.chosen.name.split()[0])
print(json.dumps([context.arch, losses, {key: sorted(names) for key, names in CHOSEN.items()}]))
"""
# Of each mode: whether the kernels are those of least cost
MODES = {"sm_80": [(False, mode) for mode in ("fp32", "bf16", "tf32", "fp16")],
         "sm_86": [(True, "fp32"), (False, "bf16")],
         "sm_75": [(False, "fp32"), (True, "bf16"), (False, "tf32"), (False, "fp16")]}
RESNET = {"sm_80": 2, "sm_86": 0, "sm_75": 0}  # how many of the modes a residual network is trained in


@pytest.mark.long
@pytest.mark.skipif(not EMULATED, reason="a real device has one compute capability")
@pytest.mark.skipif(CHECKED, reason="test_conv_mma.py checks every access")
def test_networks_train_in_every_mode_on_devices_before_hopper():
    """Such layers are too small to be worth a conversion; so that tensor cores compute them, the others cost more."""
    programs = [start(f"MODES, RESNET, CHOSEN = {modes}, {RESNET[arch]}, {{}}\n{PROGRAM}",
                      ALPHA_EMULATED_ARCH=arch) for arch, modes in MODES.items()]
    for program, (arch, modes) in zip(programs, MODES.items()):
        done = program.finish()
        assert done.returncode == 0, done.stderr
        found, losses, chosen = json.loads(done.stdout.splitlines()[-1])
        assert found == arch
        for whole, *others in losses.values():
            for (_, mode), got in zip(modes, others):
                assert got == pytest.approx(whole, rel={"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2, "bf16": 6e-2}[mode])
        for cheapest, mode in modes:
            used = set(chosen[mode])
            assert not any("wgmma" in name for name in used)
            slabs, wgrad = used & {"conv_mma"}, used & {"sk_dilated_mma"}
            assert bool(slabs) == bool(wgrad) == (not cheapest), (mode, used)
