"""The reader of .tar.gz archives: the dialects of tar it knows, and what damage and hostile headers end in."""

import gzip
import io
import tarfile

import pytest

from alpha.errors import DataError
from train import tarball

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
CONTENT = b"0123456789" * 100


def header(name, kind=tarfile.REGTYPE, content=b"", **fields):
    """One header and its content, as they lie in an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


def read(path, *parts, wanted=("file",), **options):
    path = path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"".join(parts), 9))
    return tarball.read(path, wanted, **options)


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
        with pytest.raises(DataError, match="more than 1000 members\nhelp: pack the files of the data set alone"):
            read(tmp_path, header("long", kind, b"n" * 10 if kind != tarfile.DIRTYPE else b"") * 3000,
                 header("file", content=CONTENT), END)


def sized(size):
    """A header that claims another size than its content has."""
    return bytes(header("file", size=size)[:512])


@pytest.mark.parametrize("parts, shown", [
    ((header("f/file", LONG, b"x" * 70_000), END), "a name or attribute of 70000 bytes, at most 65536 are read"),
    ((header("f", tarfile.XHDTYPE, b"1" * 70_000), END), "a name or attribute of 70000 bytes"),
    ((header("f", tarfile.XHDTYPE, b"14 size=99999\n"), header("file", content=CONTENT), END), "not a plain file"),
    ((header("f", tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n"), header("file", content=CONTENT), END), "not a plain"),
    ((header("file", tarfile.GNUTYPE_SPARSE, CONTENT), END), "member file is not a plain file within the archive"),
    ((header("file", tarfile.SYMTYPE, linkname="/etc/passwd"), END), "member file is not a plain file"),
    ((header("file", content=CONTENT) * 2, END), "holds file twice\nhelp: pack every file once"),
    ((sized(-1), END), "'file' does not end within the archive (nbytes: -1)"),
    ((sized(1 << 70), END), "does not end within"), ((sized(99_999), END), "does not end within"),
    ((header("file", content=CONTENT)[:-800],), "does not end within"),
    ((header("file", content=CONTENT), b"x" * 512), "is not a whole tar archive: invalid header"),
    ((header("a"), b"b" + header("file")[1:]), "is not a whole tar archive: bad checksum"),
    ((header("file", content=CONTENT), b"x" * 100), "is not a whole tar archive: truncated header"),
    ((), "is not a whole tar archive: empty header"), ((END,), "is not a whole tar archive: end of file header"),
])
def test_what_is_refused(tmp_path, parts, shown):
    with pytest.raises(DataError) as caught:
        read(tmp_path, *parts)
    assert shown in str(caught.value) and str(caught.value).startswith(str(tmp_path / "a.tar.gz") + ": ")
    assert str(caught.value).count("\n") == 1 and "\nhelp: " in str(caught.value)


def test_sizes_are_bounded_before_and_after_gzip(tmp_path):
    with pytest.raises(DataError, match=r"unpacks to more than 1000000 bytes, the most that is read"):
        read(tmp_path, bytes(2_000_000), max_bytes=1_000_000)
    with pytest.raises(DataError, match=r"\d+ bytes, at most 1000 are read"):
        read(tmp_path, bytes(2_000_000), max_bytes=1_000)


SOUND = gzip.compress(b"x" * 5000)


@pytest.mark.parametrize("content", [b"", b"no", SOUND[:-1], SOUND[:-8] + b"8bytes.."],
                         ids=["empty", "other", "cut", "checksum"])
def test_what_gzip_refuses(tmp_path, content):
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"is not a whole (\.tar\.gz file|tar archive): "):
        tarball.read(tmp_path / "a.tar.gz", ["file"])
