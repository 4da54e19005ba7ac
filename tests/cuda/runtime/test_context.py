"""The context: one device per process, every thread, after a fork, at exit, and where a piece is missing."""

from __future__ import annotations

import threading
from shutil import copy

import numpy as np
import pytest

import alpha
from alpha.build import cache_dir
from alpha.core.device import get_backend
from alpha.cuda.runtime.context import arch_of, context
from alpha.errors import DeviceError
from tests.cuda.process import EMULATED, run, start

pytestmark = [pytest.mark.cuda, pytest.mark.long]

MAKE = "import alpha, numpy as np\nx = alpha.tensor(np.arange(100000, dtype='float32'), device='cuda')\n"


def test_the_device_is_known(device):
    assert context.index == 0 and context.name and context.sm_count > 0 and context.max_shared >= 99 << 10
    assert context.arch == arch_of(*context.capability)
    assert (arch_of(9, 0), arch_of(8, 6)) == ("sm_90a", "sm_86")


def test_cuda_and_cuda_0_are_the_same_device(device):
    a, b = (alpha.tensor([1.0], device=name) for name in ("cuda", "cuda:0"))
    assert a.device == b.device == "cuda" and a.to("cuda:0") is a
    assert (a + b).tolist() == [2.0]


def test_another_device_is_refused(device):
    with pytest.raises(DeviceError, match=r"cuda: this process uses device 0, 7 was asked for\nhelp: use one GPU per "
                                          "process; CUDA_VISIBLE_DEVICES=7 makes it cuda:0"):
        alpha.tensor([1.0], device="cuda:7")


def test_a_device_that_is_not_there_is_refused():
    done = run("import alpha\ntry: alpha.tensor([1.0], device='cuda:99')\n"
               "except alpha.errors.DeviceError as e: print(e)")
    assert done.stdout.startswith("cuda: device 99 was asked for, the driver shows ")
    assert '\nhelp: use device="cuda:0" to' in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not EMULATED, reason="needs a GPU of the wrong kind")
def test_a_gpu_that_is_too_old_is_refused_and_named_by_the_doctor(tmp_path):
    for path in cache_dir().glob("emulated-[de]*"):  # the driver and its engine, which take their time
        copy(path, tmp_path)
    for command in ("doctor", "build-kernels"):
        done = run(f"from alpha.__main__ import main\nprint(main([{command!r}]))",
                   ALPHA_EMULATED_ARCH="sm_70", ALPHA_CACHE_DIR=str(tmp_path), ALPHA_CPU_KERNELS="0")
        assert "has compute capability 7.0, the kernels need 7.5; use a GPU of the Turing generation" in done.stdout
        built = {path.name.partition("-")[0] for path in tmp_path.iterdir() if path.suffix != ".cu"}
        assert "Traceback" not in done.stderr and built <= {"emulated"}


# ---- threads ---------------------------------------------------------------------------------------------------------

def in_threads(work, count: int = 4) -> list:
    """Runs work(k) in threads and returns the results; an error of one is raised."""
    results: list = [None] * count

    def call(k: int) -> None:
        try:
            results[k] = work(k)
        except Exception as error:
            results[k] = error

    threads = [threading.Thread(target=call, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def test_every_thread_can_compute(device):
    x = alpha.tensor(np.arange(1000, dtype="float32"), device="cuda")

    def work(k: int) -> float:
        for _ in range(5):
            y = alpha.tensor(np.full(70_000, k, "float32"), device="cuda")
            assert y.numpy()[-1] == k
        return (x * float(k)).sum().item()

    before = set(context.threads)
    assert in_threads(work) == [k * 499_500.0 for k in range(4)]
    assert context.threads == before, "a thread that ended gave the context up"


def test_every_thread_can_differentiate(device):
    w = alpha.tensor([1.0, 2.0, 3.0], device="cuda", requires_grad=True)
    assert in_threads(lambda k: alpha.grad((w * w).sum() * float(k), w)[0].tolist(), 3) == [
        [0.0, 0.0, 0.0], [2.0, 4.0, 6.0], [4.0, 8.0, 12.0]]


@pytest.mark.parametrize("first", ["pass", "memory.free_cached()"])
def test_a_thread_without_the_context_may_drop_the_last_tensor(device, first):
    """PyCUDA's pool would end the process if it held no other freed block then."""
    done = run(MAKE + "import threading; from alpha.cuda.runtime import memory\n" + first + "\n"
               "held = [x]; del x\n"
               "thread = threading.Thread(target=held.clear); thread.start(); thread.join()\n"
               "print(memory.pool.live)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_first_thread_may_be_any(device):
    done = run("import threading\ndef work():\n    global x\n    import alpha\n"
               "    x = alpha.tensor([3.0], device='cuda')\n"
               "thread = threading.Thread(target=work); thread.start(); thread.join()\nprint(x.item())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3.0\n", "")


# ---- the end ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rest", [
    "y = (x * x).sum(); y.item()",                                                 # live tensors in module globals
    "y = x.requires_grad_(); z = (x * x).sum(); alpha.cuda_leftover = z",          # a graph, and one elsewhere
    "try: x.reshape(7)\nexcept Exception as error: kept = error.__traceback__",
    "import threading\ndef work():\n    while True: alpha.tensor(np.ones(5), 'float32', 'cuda')\n"
    "threading.Thread(target=work, daemon=True).start(); import time; time.sleep(0.1)",
    "import threading\nthreading.Thread(target=lambda: (x.numpy(), threading.Event().wait()), daemon=True).start()",
    "from alpha import nn\nnet = nn.Linear(5, 2).to('cuda')\n"                # a recording with gradients in its memory
    "def f(x):\n    y = net(x).sum()\n    y.backward()\n    return y.detach()\n"
    "g = alpha.capture(f, net)\nfor _ in range(4): net.zero_grad(); y = g(x.reshape(-1, 5))\n"
    "w = net.weight.grad; assert alpha.cuda.runtime.memory.pool.reserved",
    "f = alpha.capture(lambda x: x * x)\nfor _ in range(4): y = f(x)\ndel f; import gc; gc.collect()",
    "class C:\n    def __del__(self): self.x = None\nc = C(); c.x = x; c.me = c; del x",
])
def test_a_program_ends_without_a_word(device, rest):
    done = run(MAKE + rest)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_fails_shows_its_own_error_alone(device):
    done = run(MAKE + "raise SystemExit('mine')")
    assert (done.returncode, done.stderr) == (1, "mine\n")
    done = run(MAKE + "def f():\n    y = x\n    raise KeyError('mine')\nf()")
    assert done.returncode == 1 and done.stderr.endswith("KeyError: 'mine'\n") and "PyCUDA" not in done.stderr


@pytest.mark.torch
@pytest.mark.parametrize("order", ["import torch\n" + MAKE, MAKE + "import torch\n"])
def test_a_program_with_torch_ends_without_a_word(device, order):
    pytest.importorskip("torch")
    done = run(order + "if torch.cuda.is_available(): y = torch.from_dlpack(x); z = y @ y\nelse: y = torch.ones(3)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- forks -----------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
pid = os.fork()
if pid == 0:
    for use in (lambda: x + x, x.numpy, lambda: alpha.tensor([1.0], device='cuda'), lambda: x.copy_(x)):
        try: use()
        except alpha.errors.DeviceError as e: print(e)
    sys.stdout.flush(); os._exit(0)
os.waitpid(pid, 0)
print(x.numpy()[5])
"""


def test_a_forked_child_says_so_and_the_parent_goes_on(device):
    done = run(MAKE + FORK)
    text = ("cuda: this process was forked from one that uses CUDA, whose contexts do not survive a fork\n"
            'help: start workers with multiprocessing.get_context("spawn"), or fork before the first CUDA tensor\n')
    assert (done.returncode, done.stdout, done.stderr) == (0, 4 * text + "5.0\n", "")


def test_a_child_forked_before_the_first_tensor_works(device):
    done = run("import alpha, os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\n"
               "print(alpha.tensor([1.0], device='cuda').item())")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n1.0\n", "")


# ---- missing pieces --------------------------------------------------------------------------------------------------

MISSING = """
import sys
class Finder:
    def find_spec(self, name, *_):
        if name == "{name}": raise {error}
sys.meta_path.insert(0, Finder())
"""


def refusal(code: str, **env: str) -> str:
    done = run(code + "\nimport alpha\ntry: alpha.tensor([1.0], device='cuda')\n"
               "except alpha.errors.DeviceError as e: print(e)\nprint(alpha.tensor([1.0]).item())", **env)
    assert done.stdout.endswith("1.0\n") and (done.returncode, done.stderr) == (0, ""), "the CPU works all the same"
    return done.stdout


def test_without_pycuda_the_fix_is_to_install_it():
    assert refusal(MISSING.format(name="pycuda", error="ModuleNotFoundError(\"No module named 'pycuda'\", name=name)")
                   ).startswith('cuda: PyCUDA is not installed\nhelp: install PyCUDA (pip install ".[cuda]"')


def test_without_a_driver_the_fix_is_to_install_one():
    code = MISSING.format(name="pycuda._driver", error="ImportError('libcuda.so.1: cannot open shared object file')")
    assert refusal(code).startswith("cuda: PyCUDA cannot be loaded: libcuda.so.1: cannot open shared object file\n"
                                    "help: install the NVIDIA driver")


def test_without_a_gpu_the_fix_is_to_look_at_nvidia_smi():
    text = refusal("", **({"ALPHA_EMULATED_DEVICES": "0"} if EMULATED else {"CUDA_VISIBLE_DEVICES": "-1"}))
    assert text.startswith("cuda: the driver finds no usable GPU: ") and "\nhelp: see whether nvidia-smi works" in text


def test_processes_that_start_together_all_succeed(device, tmp_path):
    """On a cold cache they share the compiling."""
    workers = [start(MAKE + "print((x * 2.0).numpy()[7])", **({} if EMULATED else {"ALPHA_CACHE_DIR": str(tmp_path)}))
               for _ in range(4)]
    done = [worker.finish() for worker in workers]
    assert [(d.returncode, d.stdout, d.stderr) for d in done] == [(0, "14.0\n", "")] * 4


def test_synchronize_tells_what_went_wrong(device, monkeypatch):
    class Broken:
        def synchronize(self):
            raise context.driver.LogicError("an illegal memory access was encountered")

    device.synchronize()  # what other tests launched and left waiting for its module
    monkeypatch.setattr(context, "stream", Broken())
    with pytest.raises(DeviceError, match=r"cuda: a kernel failed: an illegal.*\nhelp: run again with ALPHA_SYNC=1"):
        get_backend("cuda").synchronize()
