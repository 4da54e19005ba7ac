"""The errors that alpha raises, to catch or to derive from, and the form of their messages.

    try:
        y = ops.conv2d(x, w)
    except alpha.errors.ShapeError as error:
        ...
"""

from alpha.core.errors import (
    AlphaError,
    AnomalyError,
    ArgumentError,
    CheckpointError,
    CompileError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeError,
    GraphError,
    MissingError,
    MissingModuleError,
    NotDefinedError,
    NotFoundError,
    OutOfMemoryError,
    ShapeError,
    docs_page,
    message,
    remedy,
    shown,
    true_here,
    warn,
)

__all__ = ["AlphaError", "AnomalyError", "ArgumentError", "CheckpointError", "CompileError", "ConfigError",
           "DTypeError", "DataError", "DeviceError", "GraphError", "MissingError", "MissingModuleError",
           "NotDefinedError", "NotFoundError", "OutOfMemoryError", "ShapeError", "docs_page", "message", "remedy",
           "shown", "true_here", "warn"]
