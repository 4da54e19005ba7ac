"""alpha.config: the table of settings, its environment variables, its blocks, its documentation."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from alpha.core.config import VARIABLES, Config, config
from alpha.errors import ConfigError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
DOC = Path(__file__).resolve().parent.parent / "docs" / "reference" / "env_vars.md"


def test_the_documentation_shows_every_variable_as_it_is() -> None:
    rows = [line for line in DOC.read_text().splitlines() if line.startswith("| `ALPHA_")]
    defaults = [int(v.default) if isinstance(v.default, bool) else v.default for v in VARIABLES]
    assert rows == [f"| `{v.env}` | `{default}` | {v.meaning} |" for v, default in zip(VARIABLES, defaults)]


def test_environment_is_read_and_typed() -> None:
    read = Config({"ALPHA_DEBUG": "2", "ALPHA_CPU_KERNELS": "0", "ALPHA_CACHE_DIR": "/somewhere"})
    assert (read.debug, read.cpu_kernels, read.cache_dir, read.num_threads) == (2, False, "/somewhere", 0)


@pytest.mark.parametrize("env, text, allowed", [("ALPHA_DEBUG", "loud", "an integer of at least 0"),
                                                ("ALPHA_DEBUG", "-1", "an integer of at least 0"),
                                                ("ALPHA_CHECK_NAN", "2", "0 or 1")])
def test_a_wrong_value_is_refused_with_what_is_allowed(env: str, text: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"{env}: '{text}' is not {allowed}"):
        Config({env: text}).check()


def test_a_block_changes_and_restores() -> None:
    before, kernels = config.debug, config.cpu_kernels
    with config(debug=3, cpu_kernels=not kernels):
        assert config.debug == 3 and config.cpu_kernels is not kernels
    assert config.debug == before and config.cpu_kernels is kernels
    with pytest.raises(RuntimeError), config(debug=3):
        raise RuntimeError
    assert config.debug == before


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ConfigError, match="no setting is called 'debg'"), config(debg=1):
        pass


def test_a_variable_that_is_misspelt_is_told() -> None:
    with pytest.warns(UserWarning, match="ALPHA_NUM_THREAD is set, .*; did you mean ALPHA_NUM_THREADS?"):
        assert Config({"ALPHA_NUM_THREAD": "3"}).num_threads == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config({"ALPHA_NUM_THREADS": "3", "ALPHA_EMULATED_CHECKED": "1", "ALPHA_VANTAGE_KEY": "x"})
