"""Downloads: several addresses, continuation, digests, and what is said where there is no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from alpha.data.public import fetch as fetching
from alpha.data.public.fetch import File, fetch
from alpha.errors import DataError
from tests.data_files import md5, serving
from tests.op_checks import refused

pytestmark = pytest.mark.same_without_kernels("calls no kernel, or calls it from a program")

BLOB = bytes(range(256)) * 4000


def test_a_file_comes_from_the_first_address_that_has_it(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    with serving({"/b/x.gz": BLOB}) as server:
        file = File("x.gz", (f"{server.url}/a/x.gz", f"{server.url}/b/x.gz"), md5(BLOB))
        path = fetch("things", file, tmp_path / "deep" / "folder")
        assert path.read_bytes() == BLOB and [p.name for p in path.parent.iterdir()] == ["x.gz"]
        assert fetch("things", file, path.parent) == path
        assert [asked for asked, _ in server.asked] == ["/a/x.gz", "/b/x.gz"]
    assert f"downloading {file.urls[1]} to {path.parent}/" in capsys.readouterr().err


def test_a_download_that_is_cut_off_is_continued(tmp_path: Path) -> None:
    with serving({"/x": BLOB}) as server:
        server.cut["/x"] = 300_000
        path = fetch("things", File("x", (f"{server.url}/x",), md5(BLOB)), tmp_path)
        assert path.read_bytes() == BLOB and server.asked == [("/x", None), ("/x", "bytes=300000-")]


def test_a_partial_file_of_an_earlier_run_is_continued(tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(BLOB[:1000])
    with serving({"/x": BLOB}) as server:
        file = File("x", (f"{server.url}/x",), md5(BLOB))
        assert fetch("things", file, tmp_path).read_bytes() == BLOB and server.asked == [("/x", "bytes=1000-")]
        (tmp_path / "x").rename(tmp_path / "x.part")     # whole already: the server has nothing behind it
        assert fetch("things", file, tmp_path).read_bytes() == BLOB


def test_a_server_without_ranges_sends_the_whole(tmp_path: Path) -> None:
    (tmp_path / "x.part").write_bytes(b"something else")
    with serving({"/x": BLOB}) as server:
        server.ranges = False
        assert fetch("things", File("x", (f"{server.url}/x",), md5(BLOB)), tmp_path).read_bytes() == BLOB


@pytest.mark.parametrize("stale", [b"?" * 1000, b"?" * (len(BLOB) + 5)], ids=["shorter", "longer"])
def test_a_partial_file_of_another_version_is_begun_anew(tmp_path: Path, stale: bytes) -> None:
    (tmp_path / "x.part").write_bytes(stale)
    with serving({"/x": BLOB}) as server:
        assert fetch("things", File("x", (f"{server.url}/x",), md5(BLOB)), tmp_path).read_bytes() == BLOB


def test_damage_is_found_by_the_digest_and_the_next_address_is_tried(tmp_path: Path) -> None:
    damaged = BLOB[:-1] + b"!"
    with serving({"/a": damaged, "/b": BLOB}) as server:
        file = File("x", (f"{server.url}/a", f"{server.url}/b"), md5(BLOB))
        assert fetch("things", file, tmp_path).read_bytes() == BLOB
        (tmp_path / "x").unlink()
        with refused(DataError, f"things: x could not be downloaded: {server.url}/a: its MD5 is {md5(damaged)}, "
                     f"{md5(BLOB)} is published", "fetch the file by hand"):
            fetch("things", File("x", file.urls[:1], md5(BLOB)), tmp_path)
        with refused(DataError, "its SHA-256 is ", f"{'0' * 64} is published"):
            fetch("things", File("x", file.urls[:1], "0" * 64), tmp_path)
        assert not list(tmp_path.iterdir())
        assert fetch("things", File("x", file.urls[:1]), tmp_path).read_bytes() == damaged     # none is published


def test_without_a_network_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({}) as server:
        pass
    file = File("x", (f"{server.url}/x", "http://nowhere.invalid/x"))
    with refused(DataError, "things: x could not be downloaded: ", "refused", "http://nowhere.invalid/x: ",
                 "check the network and try again", f"put it into {tmp_path}", "--data-dir"):
        fetch("things", file, tmp_path)
    (tmp_path / "file").write_text("")
    with serving({"/x": BLOB}) as server, refused(DataError, "file/x cannot be written: ", "make room or permission"):
        fetch("things", File("x", (f"{server.url}/x",)), tmp_path / "file")
    monkeypatch.setattr(fetching, "TRIES", 2)
    with serving({"/x": BLOB}) as server:
        answers = iter([10, 10])
        original = server.cut.pop
        server.cut = type("Cut", (dict,), {"pop": lambda self, *_: next(answers, 10)})()
        with refused(DataError, "x could not be downloaded: ", "IncompleteRead"):
            fetch("things", File("x", (f"{server.url}/x",)), tmp_path)
        assert original is not None and (tmp_path / "x.part").stat().st_size == 10
