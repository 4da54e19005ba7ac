"""The errors that alpha raises, and the one form their messages have.

A message says what is wrong with both values, then what to change::

    conv2d: x has 3 channels, w expects 64 (x: (8, 32, 32, 3) NHWC; w: (64, 3, 3, 64) OHWI)
    help: make in_channels of the layer 3, or pass an x with 64 channels
"""


class AlphaError(Exception):
    """Base of every error that alpha raises on purpose."""


class ShapeError(AlphaError, ValueError):
    """Shapes, axes or geometry that do not fit together."""


class DTypeError(AlphaError, TypeError):
    """Mixed or unsupported dtypes."""


class DeviceError(AlphaError, RuntimeError):
    """Mixed devices, or a device that is not there."""


class GraphError(AlphaError, RuntimeError):
    """A backward pass that cannot be run, or a saved value that was changed."""


class AnomalyError(AlphaError, FloatingPointError):
    """The first NaN, with the op, the layer and the line that made it; or a loss or a gradient that is not finite."""


class CompileError(AlphaError, RuntimeError):
    """A kernel that did not compile."""


class OutOfMemoryError(AlphaError, MemoryError):
    """A device without room for what was asked."""


class CheckpointError(AlphaError, ValueError):
    """A checkpoint that is damaged, foreign, or does not fit the model."""


class DataError(AlphaError, ValueError):
    """A data set that is missing, damaged or not what it claims to be."""


class ConfigError(AlphaError, ValueError):
    """A setting that is unknown or out of range."""


class NotDefinedError(AlphaError, NotImplementedError):
    """A method that a subclass must define."""


class NotFoundError(AlphaError, IndexError, KeyError):
    """An index or a name that a container does not have."""

    __str__ = Exception.__str__     # that of KeyError shows the repr


def message(where: str, what: str, fix: str, **values: object) -> str:
    """Returns `<where>: <what> (<name: value; ...>)`, a line break, `help: <fix>`."""
    shown = "; ".join(f"{name}: {value}" for name, value in values.items())
    return f"{where}: {what}" + (f" ({shown})" if shown else "") + f"\nhelp: {fix}"
