"""Files of public data sets in their true formats, with few images; and a server of files that may be cut off."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """An IDX file of bytes."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.astype(np.uint8).tobytes()


def grey(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 28, 28)).astype(np.uint8)


def mnist_files(classes: int = 10, first: int = 0) -> dict[str, bytes]:
    """The four files of MNIST, 20 + 10 images."""
    labels = first + np.arange(20) % classes
    return {"train-images-idx3-ubyte": idx(grey(20, 0)), "train-labels-idx1-ubyte": idx(labels),
            "t10k-images-idx3-ubyte": idx(grey(10, 1)), "t10k-labels-idx1-ubyte": idx(labels[:10])}


def write(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    """Writes files, packed by gzip or not, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, blob in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(blob) if packed else blob)
    return folder


def emnist_archive(path: Path, split: str, classes: int, first: int = 0) -> Path:
    """An archive as NIST has it, of one of its parts."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, blob in mnist_files(classes, first).items():
            archive.writestr(f"gzip/emnist-{split}-{name.replace('t10k', 'test')}.gz", gzip.compress(blob))
    return path


def stl10_files() -> dict[str, bytes]:
    """The files of STL-10: planes column by column, labels from 1."""
    found = {}
    for part, count in (("train", 12), ("test", 11)):
        images = np.random.default_rng(count).integers(0, 256, (count, 96, 96, 3)).astype(np.uint8)
        found[f"{part}_X.bin"] = images.transpose(0, 3, 2, 1).tobytes()
        found[f"{part}_y.bin"] = bytes(1 + k % 10 for k in range(count))
    return found


def tar_gz(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, blob in files.items():
            info = tarfile.TarInfo(f"stl10_binary/{name}")
            info.size = len(blob)
            archive.addfile(info, io.BytesIO(blob))
    return out.getvalue()


def md5(blob: bytes) -> str:
    return hashlib.md5(blob, usedforsecurity=False).hexdigest()


class Server:
    """What a test's server does.

    Attributes:
        files: by path.
        cut: bytes after which an answer ends, by path; each is cut once.
        ranges: whether it heeds Range.
        asked: (path, Range) of the requests.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.cut, self.ranges = files, dict[str, int](), True
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Server]:
    """For a block: a server of files on this machine."""
    state = Server(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append((self.path, asked))
            blob = state.files.get(self.path)
            if blob is None:
                self.send_error(404)
                return
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and state.ranges else 0
            if begin >= len(blob) and begin:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(blob)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(blob) - 1}/{len(blob)}")
            self.send_header("Content-Length", str(len(blob) - begin))
            self.end_headers()
            end = state.cut.pop(self.path, len(blob))
            self.wfile.write(blob[begin:max(end, begin)])

        def log_message(self, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
