"""The reader of .tar.gz archives: dialects of tar that it reads, damage and hostile headers that it refuses."""

import gzip
import io
import tarfile

import pytest

from alpha.data.public import tarball
from alpha.errors import DataError

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
CONTENT = b"0123456789" * 100


def header(name, kind=tarfile.REGTYPE, content=b"", **fields):
    """One header and its content, as they lie in an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def read(path, *parts, wanted=("file",), max_bytes=1 << 28):
    return tarball.read(path / "a.tar.gz", gzip.compress(b"".join(parts), 9), wanted, max_bytes)


END = bytes(1024)
LONG = tarfile.GNUTYPE_LONGNAME


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("folder", ["", "a/", "./", "x" * 90 + "/", "f/" * 100, "ä/" * 20, "\udcff/"])
def test_every_dialect_is_read(tmp_path, form, folder):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for name, content in ((folder or "d", None), (folder + "other", b"x" * 513), (folder + "file", CONTENT)):
            info = tarfile.TarInfo(name)
            info.mtime = 1.5  # Python writes an attribute for the fraction
            if content is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    found = read(tmp_path, stream.getvalue())
    assert list(found) == ["file"] and bytes(found["file"]) == CONTENT


def test_no_blocks_at_the_end_are_needed(tmp_path):
    assert bytes(read(tmp_path, header("file", content=CONTENT))["file"]) == CONTENT
    assert bytes(read(tmp_path, header("f/file", content=b""), END)["file"]) == b""


@pytest.mark.timeout(60)
def test_thousands_of_chained_headers_are_refused_at_once(tmp_path):
    for kind in (LONG, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.DIRTYPE):
        with pytest.raises(DataError, match=r"more than 1000 members\nhelp: pack the files|chained too deeply\nhelp: "):
            read(tmp_path, header("long", kind, b"n" * 10 if kind != tarfile.DIRTYPE else b"") * 3000,
                 header("file", content=CONTENT), END)


def sized(size):
    """A header that claims another size than its content has."""
    return bytes(header("file", size=size)[:512])


@pytest.mark.timeout(60)
@pytest.mark.parametrize("parts, shown", [
    ((header("f/file", LONG, b"x" * 7_000), END), "a name or attribute of 7000 bytes, at most 4096 are read"),
    ((header("f", tarfile.XHDTYPE, b"1" * 7_000), END), "a name or attribute of 7000 bytes"),
    ((header("f", tarfile.XHDTYPE, b"14 size=99999\n"), header("file", content=CONTENT), END), "not a plain file"),
    ((header("f", tarfile.XHDTYPE, b"13 size=-512\n"), header("file", content=CONTENT), END), "not a plain file"),
    ((header("file", tarfile.GNUTYPE_SPARSE, CONTENT), END), ": is not a whole tar archive|not a plain file"),
    ((header("file", tarfile.SYMTYPE, linkname="/etc/passwd"), END), "member file is not a plain file"),
    ((header("file", content=CONTENT) * 2, END), "holds file twice\nhelp: pack every file once"),
    ((sized(-1), END), "'file' has a size of -1 bytes"),
    ((header("x", size=-512)[:512] * 3, END), "'x' has a size of -512"),
    ((sized(1 << 70), END), "not a plain file"), ((sized(99_999), END), "not a plain file"),
    ((header("file", content=CONTENT)[:-800],), "not a plain file"),
    ((), "is not a whole tar archive: empty file"),
])
def test_a_forged_archive_is_refused(tmp_path, parts, shown):
    with pytest.raises(DataError) as caught:
        read(tmp_path, *parts)
    assert any(part in str(caught.value) for part in shown.split("|"))
    assert str(caught.value).startswith(str(tmp_path / "a.tar.gz") + ": ")
    assert str(caught.value).count("\n") == 1 and "\nhelp: " in str(caught.value)


@pytest.mark.parametrize("parts", [(b"x" * 512,), (b"b" + header("file", content=CONTENT)[1:],), (b"x" * 100,), (END,)])
def test_a_file_behind_a_damaged_header_is_not_found(tmp_path, parts):
    assert bytes(read(tmp_path, header("file", content=CONTENT), *parts)["file"]) == CONTENT
    assert read(tmp_path, header("a"), *parts, header("file", content=CONTENT)) == {}


def test_the_size_behind_gzip_is_bounded(tmp_path):
    with pytest.raises(DataError, match=r"unpacks to more than 1000000 bytes, the most that is read"):
        read(tmp_path, bytes(2_000_000), max_bytes=1_000_000)


SOUND = gzip.compress(b"x" * 5000)


@pytest.mark.parametrize("content", [b"", b"no", SOUND[:-1], SOUND[:-8] + b"8bytes.."],
                         ids=["empty", "other", "cut", "checksum"])
def test_damage_that_gzip_sees_is_refused(tmp_path, content):
    with pytest.raises(DataError, match=r"is not a whole (\.tar\.gz file|tar archive): "):
        tarball.read(tmp_path / "a.tar.gz", content, ["file"], 1 << 20)
