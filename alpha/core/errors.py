"""The errors that alpha raises, and the one form their messages have.

A message says the mistake with both values, then the change that helps::

    conv2d: x has 3 channels, w expects 64 (x: (8, 32, 32, 3) NHWC; w: (64, 3, 3, 64) OHWI)
    help: make in_channels of the layer 3, or pass an x with 64 channels
"""

from __future__ import annotations

import errno
import re
import sys
import warnings
from pathlib import Path

import numpy as np

HOME = Path(__file__).parent.parent     # the folder of alpha


class AlphaError(Exception):
    """Base of every error that alpha raises on purpose."""

    __module__ = "alpha.errors"     # the name that tracebacks show, under which users import it

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__ == __name__:
            cls.__module__ = AlphaError.__module__


class ShapeError(AlphaError, ValueError):
    """Shapes, axes or geometry that do not fit together."""


class DTypeError(AlphaError, TypeError):
    """Mixed or unsupported dtypes."""


class ArgumentError(AlphaError, TypeError):
    """A call with an argument that is missing, unknown, given twice, or of a Python type that has no meaning there."""


class DeviceError(AlphaError, RuntimeError):
    """Mixed devices, or a device that is not there."""


class GraphError(AlphaError, RuntimeError):
    """A backward pass that cannot be run, or a saved value that was changed."""


class AnomalyError(AlphaError, FloatingPointError):
    """The first NaN, with the op, the layer and the line that made it; or a loss or a gradient that is not finite."""


class CompileError(AlphaError, RuntimeError):
    """A kernel that did not compile."""


class OutOfMemoryError(AlphaError, MemoryError):
    """A device without room for an array."""


class CheckpointError(AlphaError, ValueError):
    """A checkpoint that is damaged, foreign, or does not fit the model."""


class DataError(AlphaError, ValueError):
    """A data set that is missing, damaged or of another kind than it claims."""


class ConfigError(AlphaError, ValueError):
    """A setting that is unknown or out of range."""


class NotDefinedError(AlphaError, NotImplementedError):
    """A method that a subclass must define."""


class NotFoundError(AlphaError, IndexError, KeyError):
    """An index or a name that a container does not have."""

    __str__ = Exception.__str__     # KeyError's shows the repr


class MissingError(AlphaError, AttributeError):
    """An attribute that is not there."""


class MissingModuleError(AlphaError, ImportError):
    """A module that is not there, and has another name here."""


LONGEST_SHOWN = 80  # characters of a value in a message


def shown(value: object) -> str:
    """Returns a value as messages show it: short, with its type if that is not plain to see.

    Tensors and arrays are shown by dtype and shape.
    """
    if type(value).__module__ == "alpha.core.names":     # a str or a tuple that knows more
        value = type(value).__mro__[1](value)  # type: ignore[call-arg]
    kind, shape, dtype = type(value).__name__, getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and not isinstance(value, np.generic):
        article = "an" if str(dtype)[:1] in "aeio" else "a"
        return f"{article} {dtype} {'NumPy array' if kind == 'ndarray' else 'tensor'} of shape {shape}"
    if value is None or isinstance(value, type):
        return "None" if value is None else f"the class {kind if kind != 'type' else value.__name__}"
    if type(value) in (list, tuple):
        items = [shown(v) if hasattr(v, "shape") else _cut(v) for v in value[:8]]  # type: ignore[index]
        text = ", ".join([*items, "..."] if len(value) > 8 else items)  # type: ignore[arg-type]
        text = f"({text}{',' if len(items) == 1 else ''})" if kind == "tuple" else f"[{text}]"
        return _short(text)
    return _cut(value) if type(value) in (int, float, bool) else f"{_cut(value)} ({kind})"


def _cut(value: object) -> str:
    try:
        return _short('"' + value.replace("\n", " ") + '"' if isinstance(value, str) else repr(value))
    except Exception:  # a repr may fail: an int of 5,000 digits has none
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else "an object"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN - 3] + "..."


def warn(text: str) -> None:
    """Warns, at the line outside of alpha that the call came from."""
    home, level, frame = str(HOME), 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(home):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level + 1)


_DOCS = re.compile(r"\bdocs/(?=\w+/\w+\.(?:md|ipynb))")
_EXTRA = re.compile(r'pip install "\.\[(\w+)\]"')


def message(where: str, what: str, fix: str, **values: object) -> str:
    """Returns `<where>: <what> (<name: value; ...>)`, a line break, `help: <fix>`, which is `true_here`."""
    shown = "; ".join(f"{name}: {value}" for name, value in values.items())
    return f"{where}: {what}" + (f" ({shown})" if shown else "") + f"\nhelp: {true_here(fix)}"


def true_here(text: str) -> str:
    """Returns a text with the addresses of docs pages, and the command for extras, as they are on this machine.

    In a clone pages lie in docs/, and `pip install ".[images]"` works in its folder. An installation has the pages
    beside the code, and is told by name.
    """
    if "docs/" in text:
        text = _DOCS.sub(lambda found: _docs_folder() + "/", text)
    return text if 'pip install ".[' not in text or _in_clone() else _EXTRA.sub(r'pip install "alpha-cks[\1]"', text)


def docs_page(name: str) -> Path:
    """Returns where a page of the documentation is, such as "how_to/add_a_layer.md"."""
    inside = HOME / "docs"
    return (inside if inside.is_dir() else HOME.resolve().parent / "docs") / name


def _docs_folder() -> str:
    return str(docs_page(""))


def _in_clone() -> bool:
    return (HOME.resolve().parent / "setup.py").is_file()


def remedy(number: int | None, path: object) -> str:
    """Returns the help against an error of the operating system, by its errno, in writing a file."""
    folder = Path(str(path)).parent
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"free space on the disk of {folder}, or choose another folder"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return f"make the folder first: mkdir -p {folder}" if number == errno.ENOENT else (
            f"choose a folder: {folder} is none")
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"choose a folder that is writable, or change the permissions of {folder}"
    if number == errno.EISDIR:
        return f"name a file: {path} is a folder"
    if number == errno.ENAMETOOLONG:
        return "choose a shorter name"
    return "choose another folder, on a disk that works"
