"""Settings from a TOML file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from alpha.errors import ConfigError, message

MAX_TOML = 1 << 16  # bytes of a file with settings; all of them fit into 1,000
SHOWN = 80  # characters of a refused value


def shown_value(value: object) -> str:
    """Returns a value for a message: a long one is cut, and a huge integer is not written out."""
    if isinstance(value, int) and abs(value) >= 1 << 256:
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a list with such an integer, or nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the settings of a file, unchecked.  Raises ConfigError if it cannot be read or is no TOML."""
    if sys.version_info < (3, 11):
        raise ConfigError(message("config", f"reading {path} needs Python 3.11 or later, this is "
                                  f"{sys.version.split()[0]}", "use a newer Python, or give the settings as flags"))
    import tomllib
    name = shown_value(str(path))
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TOML + 1)
        if len(text) > MAX_TOML:
            raise ConfigError(message("config", f"{name} has more than {MAX_TOML} bytes", "write settings alone"))
        return tomllib.loads(text.decode())
    except OSError as error:
        raise ConfigError(message("config", f"cannot read {name}: {error.strerror}", "correct the path")) from error
    except RecursionError as error:
        raise ConfigError(message("config", f"{name} is nested too deeply", "write one setting a line")) from error
    except ValueError as error:  # includes TOMLDecodeError and UnicodeDecodeError
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(message("config", f"{name} is not TOML: {shown_value(str(error))}",
                                  'write one setting a line, such as model = "lenet5"')) from error
