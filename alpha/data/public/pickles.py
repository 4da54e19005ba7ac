"""Pickles of arrays, numbers and texts, such as CIFAR's python batches: checked first, and nothing of them is run.

`check` reads the opcodes first. It refuses opcodes that such data do not need, and bounds the number of opcodes and of
containers. Only texts and arrays may be used twice: a tuple that holds itself twice, fifty times over, has 2^50 ends.
Then Python's unpickler reads the values. The names that a stored array calls stand for the records of this file, so
NumPy sees no state of a pickle.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any, NoReturn

MAX_CONTAINERS = 64     # dicts, lists and tuples; a published batch has 9
LEAST_OPCODES, BYTES_PER_OPCODE = 4096, 384     # an image has 3072 bytes of pixels and at most 8 opcodes
MAX_AXES = 8

GLOBALS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"),
           ("numpy", "dtype"), ("_codecs", "encode"), ("__builtin__", "bytes")}  # the last two: bytes in protocol 2
TEXTS = {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES",
         "BINBYTES8"}
CONTAINERS = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
PUTS, GETS = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}, {"BINGET", "LONG_BINGET"}
SINGLE = TEXTS | {"GLOBAL", "STACK_GLOBAL", "REDUCE"}     # their values hold no others: they may be used again
ALLOWED = SINGLE | CONTAINERS | PUTS | GETS | {
    "PROTO", "FRAME", "MARK", "STOP", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINFLOAT", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"}
OPCODES = {op.code.encode("latin1"): op for op in pickletools.opcodes}


class PickleError(ValueError):
    """A pickle that is damaged, or is not of arrays, numbers and texts alone."""


def _refuse(what: str) -> NoReturn:
    raise PickleError(what)


class Array:
    """A stored ndarray: shape, name of the dtype, order and elements as its state says, unchecked but for the types."""

    shape: tuple[int, ...] = ()
    dtype = ""
    fortran = False
    data = b""

    def __setstate__(self, state: Any) -> None:
        if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[1], tuple)
                and len(state[1]) <= MAX_AXES and all(type(size) is int and 0 <= size < 1 << 31 for size in state[1])
                and isinstance(state[2], DType) and isinstance(state[4], bytes)):
            _refuse("an array has a state that NumPy does not write")
        _, self.shape, dtype, fortran, self.data = state
        self.dtype, self.fortran = dtype.code, bool(fortran)


class DType:
    """A stored dtype.  `code` is its name, such as "u1"; its byte order means nothing for single bytes."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        pass


class _Function:
    """Stands for one of GLOBALS; another object each time, so that a pickle cannot change what the next one gets."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any) -> Any:
        first = args[0] if args else None
        if self.name == "_reconstruct":
            return Array()
        if self.name == "dtype" and isinstance(first, (str, bytes)) and len(first) <= 16:
            code = first if isinstance(first, str) else first.decode("latin1")
            return DType(code if code.isprintable() else "?")
        if self.name == "encode" and isinstance(first, str) and args[1:] == ("latin1",):
            return first.encode("latin1")
        return b"" if self.name == "bytes" and not args else _refuse(f"it calls {self.name} as NumPy does not")

    def __setstate__(self, state: Any) -> None:
        _refuse("it sets the state of a function")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in GLOBALS:
            shown = "".join(c if c.isprintable() else "?" for c in f"{module[:64]}.{name[:64]}")
            _refuse(f"it names {shown}, which is code, not data")
        return _Function(name)


def check(blob: bytes) -> None:
    """Raises PickleError for opcodes that have no place in arrays, numbers and texts, or that could cost too much."""
    stream, memo, again = io.BytesIO(blob), set[int](), dict[int, int]()   # index -> bytes of a value to be used again
    before, nbytes, containers, copied = "", 0, 0, 0
    for count in range(LEAST_OPCODES + len(blob) // BYTES_PER_OPCODE):
        op = OPCODES.get(code := stream.read(1))
        name = op.name if op else f"0x{code.hex()}"
        if not code or op is None or name not in ALLOWED:
            _refuse(f"opcode {name} has no place in arrays, numbers and texts" if code else "it ends too early")
        value: Any = op.arg.reader(stream) if op.arg else None
        if name == "STOP":
            return
        if name in PUTS:
            index = len(memo) if value is None else value
            if index > count:
                _refuse(f"it numbers value {index} before there are as many")
            memo.add(index)
            again.pop(index, None)
            if before in SINGLE:
                again[index] = nbytes
        elif name in GETS:
            if value not in again:
                _refuse("it uses a dict, a list or a tuple twice")
            before, nbytes = "SHORT_BINBYTES", again[value]
            copied += nbytes
        elif name not in ("PROTO", "FRAME"):
            before, nbytes = name, len(value) if name in TEXTS else 0
        containers += name in CONTAINERS
        if containers > MAX_CONTAINERS or copied > len(blob):
            _refuse(f"more than {MAX_CONTAINERS} dicts, lists and tuples" if containers > MAX_CONTAINERS else
                    f"texts that are used again have more than {len(blob)} bytes")
    _refuse(f"more opcodes than {len(blob)} bytes of images need")


def load(blob: bytes) -> object:
    """Returns the value of a pickle: dict, list, tuple, str, bytes, int, float, bool, None, Array and DType.

    Texts that Python 2 wrote are bytes.
    Raises:
        PickleError: if it is damaged, holds anything else, or exceeds the bounds above.
    """
    try:
        check(blob)
        return _Unpickler(io.BytesIO(blob), encoding="bytes").load()
    except (PickleError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle fails in many ways
        raise PickleError(f"it is damaged ({type(error).__name__}: {' '.join(str(error).split())[:100]})") from error
