"""Blocks of settings and of gradient mode: they count where they were entered, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import alpha
from alpha.core.config import Config, config
from alpha.errors import ConfigError, GraphError
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")

# (enters a block, what is in force, in the block, outside)
KINDS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[], Any], Any, Any]] = {
    "precision": (lambda: alpha.precision("fp16"), lambda: config.precision, "fp16", config.precision),
    "config": (lambda: config(num_threads=7), lambda: config.num_threads, 7, config.num_threads),
    "no_grad": (alpha.no_grad, alpha.grad_enabled, False, True),
    "anomaly": (alpha.detect_anomaly, lambda: config.check_nan, True, False),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[Any, ...]]:
    block, read, inside, outside = KINDS[request.param]
    assert read() == outside
    yield block, read, inside, outside
    assert read() == outside


def test_threads_that_overlap_see_their_own_blocks(kind: tuple[Any, ...]) -> None:
    block, read, inside, outside = kind
    begun, ended, seen = threading.Event(), threading.Event(), []

    def first() -> None:
        with block():
            begun.set()
            ended.wait(10)
            seen.append(read())
        seen.append(read())

    thread = threading.Thread(target=first)
    thread.start()
    begun.wait(10)
    assert read() == outside
    with block():
        assert read() == inside
        ended.set()
        thread.join()
        assert read() == inside and seen == [inside, outside]
        with ThreadPoolExecutor(1) as workers:
            assert workers.submit(read).result() == outside


def test_tasks_that_overlap_see_their_own_blocks(kind: tuple[Any, ...]) -> None:
    block, read, inside, outside = kind

    async def task(entered: asyncio.Event, leave: asyncio.Event) -> list[Any]:
        with block():
            entered.set()
            await leave.wait()
            seen = [read()]
        return [*seen, read()]

    async def main() -> None:
        events = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(task(*events[:2]))
        await events[0].wait()
        assert read() == outside
        with block():
            second = asyncio.create_task(task(*events[2:]))
            await events[2].wait()
            events[1].set()
            assert await first == [inside, outside] and read() == inside
            events[3].set()
            assert await second == [inside, inside]  # it began in the block
        assert read() == outside

    asyncio.run(main())


def test_generators_that_end_in_any_order_leave_nothing(kind: tuple[Any, ...]) -> None:
    block, read, inside, outside = kind

    def values() -> Iterator[int]:
        with block():
            yield 1

    first, second = values(), values()
    next(first)
    next(second)
    with block():
        first.close()
        assert read() == inside
    second.close()
    assert read() == outside


def test_a_block_that_ends_in_another_task_leaves_nothing(kind: tuple[Any, ...]) -> None:
    block, read, inside, outside = kind

    async def values() -> AsyncIterator[int]:
        with block():
            yield 1

    async def main() -> None:
        found = values()
        await asyncio.create_task(begin(found))
        await found.aclose()
        assert read() == outside

    async def begin(found: Any) -> None:
        await found.__anext__()
        assert read() == inside

    asyncio.run(main())


def test_a_block_of_settings_that_ends_in_another_thread_leaves_nothing() -> None:
    def values() -> Iterator[int]:
        with config(num_threads=7):
            yield 1

    before, found = config.num_threads, values()
    next(found)
    assert config.num_threads == 7
    thread = threading.Thread(target=found.close)
    thread.start()
    thread.join()
    assert config.num_threads == before


def test_inner_blocks_win_and_errors_end_them() -> None:
    with config(debug=1, sync=True):
        with config(debug=3), pytest.raises(RuntimeError), config(debug=2):
            assert (config.debug, config.sync) == (2, True)
            raise RuntimeError
        assert config.debug == 1
    with alpha.no_grad(), alpha.enable_grad():
        with alpha.no_grad():
            assert not alpha.grad_enabled()
        assert alpha.grad_enabled()


def test_a_value_of_the_process() -> None:
    own = Config({"ALPHA_DEBUG": "1"})
    assert own.watch and not Config({}).watch
    own.debug, own.precision = 0, "bf16"
    assert (own.debug, own.precision, own.watch) == (0, "bf16", False)
    with own(precision="fp16"):
        own.precision = "tf32"
        assert own.precision == "fp16"
        with ThreadPoolExecutor(1) as workers:
            assert workers.submit(lambda: own.precision).result() == "tf32"
    assert own.precision == "tf32"
    for name, value, text in (("debg", 1, "no setting is called 'debg'"), ("debug", "loud", "'loud' is not an integer"),
                              ("sync", 2, "'2' is not 0 or 1"), ("precision", None, "'None' is not one of fp32")):
        with refused(ConfigError, text):
            setattr(own, name, value)
        with refused(ConfigError, text), own(**{name: value}):
            pass
    assert own.debug == 0 and not hasattr(own, "debg")


# ---- decorators ------------------------------------------------------------------------------------------------------


def test_a_decorated_generator_runs_without_a_graph_and_its_reader_with_one() -> None:
    x, seen = alpha.tensor([1.0], requires_grad=True), []

    @alpha.no_grad()
    def values() -> Iterator[Any]:
        """Three."""
        try:
            seen.append((yield (x * 2.0).requires_grad))
            try:
                yield alpha.grad_enabled()
            except ValueError:
                yield "caught"
            return "end"
        finally:
            seen.append(alpha.grad_enabled())

    found = values()
    assert next(found) is False and alpha.grad_enabled() and found.send("sent") is False and alpha.grad_enabled()
    assert found.throw(ValueError()) == "caught" and alpha.grad_enabled()
    with pytest.raises(StopIteration) as end:
        next(found)
    assert end.value.value == "end" and seen == ["sent", False] and values.__doc__ == "Three."
    found = values()
    next(found)
    found.close()
    assert seen[2:] == [False] and alpha.grad_enabled()


def test_a_decorated_coroutine_runs_without_a_graph() -> None:
    @alpha.no_grad()
    async def f() -> bool:
        await asyncio.sleep(0)
        return alpha.grad_enabled()

    async def main() -> None:
        waiting = asyncio.create_task(f())
        assert alpha.grad_enabled()
        assert await waiting is False and await f() is False and alpha.grad_enabled()

    asyncio.run(main())
    with refused(GraphError, "no_grad: values is an asynchronous generator", "with alpha.no_grad(): ..."):
        @alpha.no_grad()
        async def values() -> AsyncIterator[int]:
            yield 1


# ---- the environment -------------------------------------------------------------------------------------------------


def python(code: str, **environ: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                            env={**os.environ, **environ}, cwd=Path(__file__).resolve().parent.parent)
    return result.stdout


def test_a_bad_environment_is_told_by_the_first_use_and_not_by_the_import() -> None:
    text = python("import alpha\nfor f in (lambda: alpha.ones((2,)) + 1, alpha.config.check, lambda: "
                  "alpha.config.tune):\n"
                  "    try:\n        f()\n    except alpha.errors.ConfigError as error:\n        print(error)",
                  ALPHA_DEBUG="loud", ALPHA_PRECISION="fp8")
    one = ("ALPHA_DEBUG: 'loud' is not an integer of at least 0\nhelp: set ALPHA_DEBUG to an integer of at least 0\n"
           "ALPHA_PRECISION: 'fp8' is not one of fp32, tf32, bf16, fp16\nhelp: set ALPHA_PRECISION to one of them\n")
    assert text == one * 3
