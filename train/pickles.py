"""Reads pickles of arrays, numbers and names, such as CIFAR's, without Python's unpickler: nothing in them is run.

A pickle is a program for a machine with a stack. The part of its opcodes that Python 2 and 3 write for these data in
protocols 0 to 4 is interpreted here, and every other opcode is refused. The four globals that a stored array needs
stand for plain records. What a file can cost is bounded: by the number of its opcodes, of its containers (a tuple that
holds itself twice, fifty times over, has 2^50 ends), and by the length of numbers and texts.
"""

from __future__ import annotations

import codecs
import pickletools
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

MAX_CONTAINERS = 64  # a published batch has 9: dicts, lists and tuples
MAX_TEXT = 1 << 16  # bytes of a key or a name; what is longer can only be pixels
LEAST_OPCODES, BYTES_PER_OPCODE = 4096, 384  # an image has 3072 bytes of pixels and at most 8 opcodes

GLOBALS = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
           ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
           ("__builtin__", "bytes")}


class PickleError(ValueError):
    """A pickle that is damaged, or is not of arrays, numbers and names alone."""


class Array:
    """A stored ndarray: what its state says, unchecked but for the types."""

    shape: tuple[int, ...] = ()
    dtype = ""
    fortran = False
    data: bytes | memoryview = b""

    def set_state(self, state: object) -> None:
        """Takes the tuple that NumPy stores: version, shape, dtype, order, elements.  Raises PickleError."""
        if not (isinstance(state, tuple) and len(state) == 5):
            _refuse("an array has a state that NumPy does not write")
        _, shape, dtype, fortran, data = state
        if isinstance(data, str):
            data = data.encode("latin1")  # written by Python 2
        if not (isinstance(shape, tuple) and len(shape) <= 8 and isinstance(dtype, DType)
                and all(type(size) is int and 0 <= size < 1 << 31 for size in shape)
                and isinstance(data, (bytes, memoryview))):
            _refuse("an array has a state that NumPy does not write")
        self.shape, self.dtype, self.fortran, self.data = shape, dtype.code, bool(fortran), data


class DType:
    """A stored dtype.  `code` is its name, such as "u1"; its byte order means nothing for single bytes."""

    def __init__(self, code: str) -> None:
        self.code = code


def load(blob: bytes | memoryview) -> object:
    """Returns the value of a pickle: dict, list, tuple, str, bytes, int, float, bool, None and Array.

    Texts of more than MAX_TEXT bytes may come as memoryview.  Keys of dicts are str, bytes or int.
    Raises:
        PickleError: if it is damaged, holds anything else, or exceeds the bounds above.
    """
    reader = _Reader(blob)
    try:
        return reader.run()
    except PickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:  # ValueError: Unicode too
        raise PickleError(f"damaged before byte {reader.at} ({type(error).__name__})") from error


def _refuse(what: str) -> NoReturn:
    raise PickleError(what)


class _Reader:
    """The machine.  A method in capitals is the opcode of that name, as in pickletools."""

    def __init__(self, blob: bytes | memoryview) -> None:
        self.view, self.at = memoryview(blob), 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.containers = 0

    def run(self) -> object:
        for _ in range(LEAST_OPCODES + len(self.view) // BYTES_PER_OPCODE):
            code = self._take(1)[0]
            if code == ord("."):
                return self.stack.pop()
            if code not in OPCODES:
                _refuse(f"opcode {NAMES.get(code, hex(code))} has no place in arrays, numbers and names")
            OPCODES[code](self)
        return _refuse(f"more opcodes than {len(self.view)} bytes of images need")

    # --- what opcodes are followed by -------------------------------------------------------------------------------

    def _take(self, count: int) -> memoryview:
        start, self.at = self.at, self.at + count
        if self.at > len(self.view):
            _refuse("it ends too early")
        return self.view[start : self.at]

    def _int(self, count: int) -> int:
        return int.from_bytes(self._take(count), "little")

    def _line(self, most: int = MAX_TEXT) -> bytes:
        end = self.at
        while True:
            chunk = bytes(self.view[end : end + 4096])
            found = chunk.find(b"\n")
            end += found if found >= 0 else len(chunk)
            if end - self.at > most or not chunk:
                _refuse("a line is too long, or has no end")
            if found >= 0:
                return bytes(self._take(end + 1 - self.at)[:-1])

    def _number(self) -> int:
        text = self._line()
        return int(text.rstrip(b"L")) if len(text) <= 21 else _refuse(f"a number of {len(text)} digits")

    def _text(self, count: int, encoding: str) -> None:
        """Pushes a text.  A long one has to be of single bytes: others would take four times their place."""
        raw = self._take(count)
        if count > MAX_TEXT:
            if encoding == "latin1":
                return self.stack.append(raw)
            if int(np.frombuffer(raw, np.uint8).max()) > 0xC3:  # the first byte of U+00C0 to U+00FF in UTF-8
                _refuse(f"a text of {count} bytes, at most {MAX_TEXT} are read")
        self.stack.append(str(raw, encoding))

    def _blob(self, count: int) -> None:
        raw = self._take(count)
        self.stack.append(raw if count > MAX_TEXT else bytes(raw))

    # --- the stack --------------------------------------------------------------------------------------------------

    def _new(self, container: Any) -> None:
        self.containers += 1
        if self.containers > MAX_CONTAINERS:
            _refuse(f"more than {MAX_CONTAINERS} dicts, lists and tuples")
        self.stack.append(container)

    def _to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _top(self, kind: type) -> Any:
        value = self.stack[-1]
        return value if type(value) is kind else _refuse(f"an entry is put into no {kind.__name__}")

    def _set(self, items: list[Any]) -> None:
        target = self._top(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            if type(key) not in (str, bytes, int):
                _refuse("a key is not a name")
            target[key] = value

    def _tuple(self, count: int) -> None:
        if count > len(self.stack):
            _refuse("a tuple of more than there is")
        items = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        self._new(items)

    def PROTO(self) -> None: self._take(1)
    def FRAME(self) -> None: self._take(8)
    def MARK(self) -> None: self.marks.append(len(self.stack))
    def POP(self) -> None: self.stack.pop()

    def NONE(self) -> None: self.stack.append(None)
    def NEWTRUE(self) -> None: self.stack.append(True)
    def NEWFALSE(self) -> None: self.stack.append(False)
    def BININT(self) -> None: self.stack.append(int.from_bytes(self._take(4), "little", signed=True))
    def BININT1(self) -> None: self.stack.append(self._take(1)[0])
    def BININT2(self) -> None: self.stack.append(self._int(2))
    def LONG(self) -> None: self.stack.append(self._number())
    def BINFLOAT(self) -> None: self.stack.append(struct.unpack(">d", self._take(8))[0])

    def INT(self) -> None:
        booleans = {b"00\n": False, b"01\n": True}
        text = bytes(self.view[self.at : self.at + 3])
        number = self._number()
        self.stack.append(booleans.get(text, number))

    def LONG1(self) -> None:
        count = self._int(1)
        if count > 8:
            _refuse(f"a number of {count} bytes")
        self.stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def FLOAT(self) -> None:
        text = self._line()
        self.stack.append(float(text) if len(text) <= 32 else _refuse(f"a number of {len(text)} digits"))

    def STRING(self) -> None:
        text = self._line(len(self.view))
        if not (len(text) > 1 and text[0] == text[-1] and text[0] in b"'\""):
            _refuse("a text has no quotes")
        self.stack.append(str(codecs.escape_decode(text[1:-1])[0], "latin1"))  # type: ignore[attr-defined]

    def UNICODE(self) -> None: self.stack.append(str(self._line(), "raw-unicode-escape"))
    def SHORT_BINSTRING(self) -> None: self._text(self._int(1), "latin1")
    def BINSTRING(self) -> None: self._text(self._int(4), "latin1")
    def SHORT_BINUNICODE(self) -> None: self._text(self._int(1), "utf-8")
    def BINUNICODE(self) -> None: self._text(self._int(4), "utf-8")
    def BINUNICODE8(self) -> None: self._text(self._int(8), "utf-8")
    def SHORT_BINBYTES(self) -> None: self._blob(self._int(1))
    def BINBYTES(self) -> None: self._blob(self._int(4))
    def BINBYTES8(self) -> None: self._blob(self._int(8))

    def EMPTY_DICT(self) -> None: self._new({})
    def EMPTY_LIST(self) -> None: self._new([])
    def EMPTY_TUPLE(self) -> None: self._new(())
    def TUPLE(self) -> None: self._new(tuple(self._to_mark()))
    def TUPLE1(self) -> None: self._tuple(1)
    def TUPLE2(self) -> None: self._tuple(2)
    def TUPLE3(self) -> None: self._tuple(3)
    def LIST(self) -> None: self._new(self._to_mark())
    def SETITEM(self) -> None: self._set([self.stack.pop(), self.stack.pop()][::-1])
    def SETITEMS(self) -> None: self._set(self._to_mark())

    def DICT(self) -> None:
        items = self._to_mark()
        self._new({})
        self._set(items)

    def APPEND(self) -> None:
        value = self.stack.pop()
        self._top(list).append(value)

    def APPENDS(self) -> None:
        items = self._to_mark()
        self._top(list).extend(items)

    def MEMOIZE(self) -> None: self.memo[len(self.memo)] = self.stack[-1]
    def PUT(self) -> None: self.memo[self._number()] = self.stack[-1]
    def BINPUT(self) -> None: self.memo[self._int(1)] = self.stack[-1]
    def LONG_BINPUT(self) -> None: self.memo[self._int(4)] = self.stack[-1]
    def GET(self) -> None: self.stack.append(self.memo[self._number()])
    def BINGET(self) -> None: self.stack.append(self.memo[self._int(1)])
    def LONG_BINGET(self) -> None: self.stack.append(self.memo[self._int(4)])

    # --- arrays -----------------------------------------------------------------------------------------------------

    def _global(self, module: str, name: str) -> None:
        if (module, name) not in GLOBALS:
            shown = "".join(c if c.isprintable() else "?" for c in f"{module[:64]}.{name[:64]}")
            _refuse(f"it names {shown}, which is code, not data")
        self.stack.append(_Global(name))

    def GLOBAL(self) -> None: self._global(str(self._line(), "utf-8"), str(self._line(), "utf-8"))

    def STACK_GLOBAL(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            _refuse("a global has no name")
        self._global(module, name)

    def REDUCE(self) -> None:
        args, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(args, tuple):
            _refuse("it calls what is no function")
        if function.name == "_reconstruct":
            self.stack.append(Array())
        elif function.name == "dtype" and args and isinstance(args[0], str) and len(args[0]) <= 16:
            self.stack.append(DType(args[0] if args[0].isprintable() else "?"))
        elif function.name == "encode" and len(args) == 2 and isinstance(args[0], str) and args[1] == "latin1":
            self.stack.append(args[0].encode("latin1"))  # this and the next: bytes of Python 3 in protocol 2
        elif function.name == "bytes" and args == ():
            self.stack.append(b"")
        else:
            _refuse(f"it calls {function.name} as NumPy does not")

    def BUILD(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Array):
            target.set_state(state)
        elif not isinstance(target, DType):
            _refuse("it sets the state of what has none")


class _Global:
    def __init__(self, name: str) -> None:
        self.name = name


NAMES = {ord(op.code): op.name for op in pickletools.opcodes}
OPCODES: dict[int, Callable[[_Reader], None]] = {
    code: getattr(_Reader, name) for code, name in NAMES.items() if hasattr(_Reader, name)}
