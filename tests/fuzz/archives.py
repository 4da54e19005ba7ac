"""CIFAR archives: a sound small one with some of its layers damaged (pickle opcodes, tar headers, gzip).

What is read must be whole, or DataError says why not; nothing may take long or become large.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import pickle
import pickletools
import random
import struct
import tarfile
from pathlib import Path

import numpy as np

from alpha.data import load
from alpha.errors import DataError
from tests.cifar_files import FILES, KINDS

SECONDS, MIB = 10, 768

OPCODES = [op.code.encode("latin1") for op in pickletools.opcodes]
NUMBERS = [0, 1, 2, 7, 8, 127, 128, 255, 256, 511, 512, 4096, 65535, 65536, 1 << 20, (1 << 31) - 1, 1 << 31,
           (1 << 32) - 1, (1 << 63) - 1, -1, -512, 1 << 33]
PYTHON = [kind for kind in KINDS if not kind[1].label_bytes]
TYPES = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE,
         tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_LONGNAME,
         tarfile.GNUTYPE_LONGLINK, tarfile.GNUTYPE_SPARSE, tarfile.XHDTYPE, tarfile.XGLTYPE, b"V", b"M"]
VALUES = [None, True, 3, -1, 1 << 40, 1 << 9000, 1.5, float("nan"), "", "x", "\x1b[2J\n", "é☃", b"", b"\xff", [], {},
          (), [[]], ((),), "x" * 70_000, b"y" * 70_000, np.zeros((2, 3072), np.uint8), np.zeros((2, 3072), np.int8),
          np.zeros((0, 3072), np.uint8), np.zeros(3072, np.uint8), np.uint8(3), np.array("text"), frozenset(), 1j]


def scramble(rng: random.Random, content: bytes) -> bytes:
    """Some bytes changed, cut, doubled or moved."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, to = sorted((rng.randint(0, len(data)), rng.randint(0, len(data))))
        kind = rng.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(0, 8))
        elif kind == 2:
            data[at:at] = data[at:to][:4096]
        elif kind == 3:
            del data[at : min(to, at + 4096)]
        elif data:
            data[min(at, len(data) - 1)] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
    return bytes(data)


def some_opcodes(rng: random.Random) -> bytes:
    """A piece of a pickle: an opcode with an argument, or one of the shapes that grow."""
    count = rng.choice([1, 3, 50, 1000, 100_000])
    kind = rng.randrange(8)
    if kind == 0:
        return rng.choice([b"]", b")\x85", b"}", b"(", b"N", b"\x85", b"]q\x00h\x00", b"0", b"2", b"e", b"u"]) * count
    if kind == 1:  # doubled tuples
        return b"K\x01" + b"".join(b"q%ch%ch%c\x86" % (k % 256, k % 256, k % 256) for k in range(min(count, 250)))
    if kind == 2:
        return rng.choice([b"I", b"L", b"F", b"p", b"g", b"S", b"V", b"c"]) + b"9" * count + b"\n"
    if kind == 3:
        opcode, form = rng.choice([(b"X", "<I"), (b"T", "<I"), (b"B", "<I"), (b"\x8e", "<Q"), (b"\x8d", "<Q"),
                                   (b"\x96", "<Q"), (b"\x8b", "<I"), (b"r", "<I"), (b"j", "<I"), (b"\x95", "<Q"),
                                   (b"\x8a", "<B"), (b"U", "<B"), (b"J", "<I"), (b"M", "<H")])
        number = rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form))
        return opcode + struct.pack(form, number) + rng.randbytes(rng.choice([0, 8, 300]))
    if kind == 4:
        return rng.choice([b"cos\nsystem\n", b"cnumpy\nload\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n",
                           b"cnumpy\nndarray\n", b"cnumpy.core.multiarray\n_reconstruct\n", b"\x8c\x01\n\x8c\x01e\x93"])
    if kind == 5:
        with contextlib.suppress(ValueError, TypeError):
            return pickle.dumps(rng.choice(VALUES), rng.randrange(5))[:-1]
    return rng.choice(OPCODES) + rng.randbytes(rng.randint(0, 4))


def damaged_pickle(rng: random.Random, blob: bytes) -> bytes:
    """A pickle whose opcodes are dropped, doubled, swapped or joined by others."""
    places = [at for _, _, at in pickletools.genops(blob)] + [len(blob)]
    parts = [blob[a:b] for a, b in itertools.pairwise(places)]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(parts))
        kind = rng.randrange(5)
        if kind == 0:
            del parts[at : at + rng.randint(1, 3)]
        elif kind == 1:
            parts[at:at] = parts[at : at + rng.randint(1, 5)] * rng.choice([1, 2, 100])
        elif kind == 2:
            other = rng.randrange(len(parts))
            parts[at], parts[other] = parts[other], parts[at]
        elif kind == 3:
            parts[at] = scramble(rng, parts[at])
        else:
            parts.insert(at, some_opcodes(rng))
        parts = parts or [b"."]
    return b"".join(parts)


def other_values(rng: random.Random, form: object) -> bytes:
    """A sound pickle with wrong values in the right places."""
    count = rng.choice([0, 1, 2, 5])
    batch = {"data": np.zeros((count, 3072), np.uint8), form.label_key: [rng.randrange(10) for _ in range(count)],
             form.names_key: [f"name {k}" for k in range(form.num_classes)], "filenames": ["x"] * count}
    for _ in range(rng.randint(0, 2)):
        value = rng.choice(VALUES)
        key = rng.choice([*batch, 1, b"data", "x" * 5000, "\x1b\n"])
        if isinstance(batch.get(key), list) and batch[key] and rng.random() < 0.5:
            batch[key][rng.randrange(len(batch[key]))] = value
        else:
            batch[key] = value
    return pickle.dumps(batch if rng.random() < 0.9 else rng.choice(VALUES), rng.randrange(2, 5))


def tar(rng: random.Random, files: dict[str, bytes], harm: bool) -> bytes:
    """The files in one of tar's dialects, with headers that lie if harm is set."""
    form = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    folder = rng.choice(["", "f/", "é/", "l" * 90 + "/", "../"]) if form != tarfile.USTAR_FORMAT else ""
    victim = rng.choice(list(files)) if harm else None
    stream = io.BytesIO()
    for name, content in files.items():
        if name == victim:
            extra = rng.choice([b"n" * 10, b"\0", b"18 path=folder/abc\n", b"12 size=1e9\n", b"20 GNU.sparse.size=9\n",
                                b"9" * 5000, rng.randbytes(600)])
            stream.write(header(rng, rng.choice(["x", name]), extra, None, form) * rng.choice([1, 1, 2, 3000]))
        stream.write(header(rng, folder + name, content, tarfile.REGTYPE if name != victim else rng.choice(
            [tarfile.REGTYPE, None]), form))
    return stream.getvalue() + bytes(rng.choice([1024, 1024, 10240, 0]))


def header(rng: random.Random, name: str, content: bytes, kind: bytes | None, form: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = len(content), kind or rng.choice(TYPES)
    text = bytearray(info.tobuf(form))
    if kind is None and rng.random() < 0.5:  # a field that lies, under a checksum that is right
        last = len(text) - 512
        at, length = rng.choice([(124, 12), (124, 12), (136, 12), (148, 8), (257, 8), (345, 155), (482, 30)])
        number = rng.choice(NUMBERS)
        base256 = (number % (1 << 256)).to_bytes(32, "big")[-length:].rjust(length, b"\0")
        text[last + at : last + at + length] = rng.choice([
            (b"%0*o\0" % (length - 1, abs(number)))[-length:], base256, b"\x80" + base256[1:], b"\xff" * length,
            rng.randbytes(length)])
        if at != 148:
            text[last + 148 : last + 156] = b" " * 8
            text[last + 148 : last + 156] = b"%06o\0 " % sum(text[last:])
    return bytes(text) + content + bytes(-len(content) % 512)


def packed(rng: random.Random, blob: bytes, harm: bool) -> bytes:
    """The archive through gzip, in one or more members."""
    if not harm:
        return gzip.compress(blob, 1)
    kind = rng.randrange(5)
    if kind == 0:
        return scramble(rng, gzip.compress(blob, 1))
    if kind == 1:
        cut = rng.randint(0, len(blob))
        return gzip.compress(blob[:cut], 1) + bytes(rng.choice([0, 0, 5])) + gzip.compress(blob[cut:], 1)
    if kind == 2:
        return gzip.compress(blob + bytes(rng.choice([1, 1 << 16, 1 << 24])), 1)
    if kind == 3:
        return gzip.compress(scramble(rng, blob), 1)
    return gzip.compress(gzip.compress(blob, 1), 1)


def attempt(rng: random.Random, folder: Path) -> str:
    name, form = rng.choice(KINDS + PYTHON)
    files = dict(FILES[form.archive])
    layers = rng.choice(["files", "files", "files", "tar", "gzip", "files tar", "none"])
    if "files" in layers:
        for victim in rng.sample(list(form.files), rng.randint(1, 2)):
            if form.label_bytes:
                files[victim] = scramble(rng, files[victim])
            else:
                change = rng.randrange(3)
                files[victim] = (damaged_pickle(rng, files[victim]) if change == 0 else some_opcodes(rng)
                                 + rng.choice([b".", b"s.", b"}."]) if change == 1 else other_values(rng, form))
    in_folder = "tar" not in layers and layers != "gzip" and rng.random() < 0.3
    if in_folder:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        path = folder
    else:
        path = folder / "a.tar.gz"
        path.write_bytes(packed(rng, tar(rng, files, "tar" in layers), layers == "gzip"))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            data = load(name, path)
    except DataError as error:
        text = str(error)
        assert layers != "none", text
        assert text.count("\n") == 1 and "\nhelp: " in text and len(text) < 1500, text
        assert all(c.isprintable() or c == "\n" for c in text), repr(text)
        return f"{layers}: {text.partition(chr(10))[0].removeprefix(str(path))[:150]}"
    assert data.train_images.shape[1:] == (32, 32, 3) and len(data.classes) == form.num_classes
    assert sum(map(len, data.classes)) < 10_000
    return f"{layers}: read {len(data.train_labels)} images"
