"""Sets of tests are chosen by marks in the files: no target lists files or words, and no chosen test is left unread."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import WHOLE_FILES, nothing_chosen

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent
CHOOSERS = re.compile(r"(?<!\S)(-k|--ignore\S*|--deselect\S*)(?=[\s=]|$)|test_\w*[\w*%]\.py")
FILES = {path.relative_to(ROOT / "tests").as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
FILE_MARKS = {name: "".join(re.findall(r"^pytestmark = .*\n(?: .*\n)*", text, re.MULTILINE))
              for name, text in FILES.items()}


def registered() -> dict[str, str]:
    """Returns the marks of pyproject.toml with the sentence that says what each is for."""
    listed = (ROOT / "pyproject.toml").read_text().partition("\nmarkers = [\n")[2].partition("\n]")[0]
    return dict(re.findall(r'^    "(\w+)(?:\(\w+\))?: (.+)",$', listed, re.MULTILINE))


@pytest.mark.parametrize("file", ["Makefile", ".ci/run", "tests/memcheck.py"])
def test_no_target_chooses_tests_by_names_of_files_or_words(file: str) -> None:
    lines = [line for line in (ROOT / file).read_text().splitlines() if not line.lstrip().startswith("#")]
    assert not [line for line in lines if CHOOSERS.search(line)]


@pytest.mark.parametrize("line", ["pytest -k 'not rest'", "pytest --ignore-glob='tests/test_*.py'", "pytest --ignore=x",
                                  "pytest tests/test_docs.py", "--deselect a", "--ignore-glob='tests/test_%.py'"])
def test_a_choice_by_name_is_noticed(line: str) -> None:
    assert CHOOSERS.search(line) and not CHOOSERS.search("pytest -q -p emulator.plugin -m 'cuda and not long'")


def test_every_mark_has_a_sentence_and_a_use() -> None:
    marks = registered()
    assert {"cuda", "long", "same_without_kernels"} <= set(marks) and all(len(text) > 15 for text in marks.values())
    texts = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert not [mark for mark in marks if f"mark.{mark}" not in texts]


def test_tests_of_the_gpu_are_those_of_its_folder() -> None:
    for name, marks in FILE_MARKS.items():
        assert ("mark.cuda" in marks) == name.startswith("cuda/"), name
        assert ("mark.emulator" in marks) == name.startswith("emulator/"), name


def test_a_reason_is_given_where_tests_are_left_out() -> None:
    for name, text in FILES.items():
        reasons = re.findall(r"mark\.(?:same_without_kernels|no_memcheck)\b(?!\|)(.{2,30})", text)
        assert all(re.match(r"\(f?[\"'][\w-]+ ", reason) for reason in reasons), (name, reasons)


@pytest.mark.parametrize("markexpr, left_out", [
    ("not cuda and not kernels", False), ("not cuda and not long", True), ("long and not cuda", False), ("cuda", True),
    ("kernels and not rest", True), ("slow", False), ("cuda or slow", False), ("not (long)", False), ("", False)])
def test_a_file_is_left_unread_where_its_marks_decide(markexpr: str, left_out: bool) -> None:
    text = "import pytest\n\npytestmark = [pytest.mark.torch,\n              pytest.mark.long]\n\n@pytest.mark.slow\n"
    assert nothing_chosen(text, markexpr) is left_out
    assert not nothing_chosen("@pytest.mark.kernels\n", "kernels") and set(WHOLE_FILES) <= set(registered())
