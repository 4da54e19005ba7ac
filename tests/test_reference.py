"""The reference and the site: every public name, flag and sub-command is there, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from alpha.__main__ import COMMANDS
from alpha.training.options import OPTIONS
from tools.docs import docstrings, reference, site
from tools.docs.names import NAMESPACES

pytestmark = pytest.mark.same_without_kernels("it calls no compiled kernel")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def built() -> tuple[dict[str, str], dict[str, Path]]:
    return site.pages()


def test_every_name_of_the_public_record_has_a_place(built: tuple[dict[str, str], dict[str, Path]]) -> None:
    texts, _ = built
    names = re.findall(r"^[\w.]+\w", (ROOT / "tests" / "golden" / "api.txt").read_text(), re.MULTILINE)
    assert len(names) > 1000
    anchors = {Path(name).name: site.anchors_of(text) for name, text in texts.items() if reference.FOLDER in name}
    for name in names:
        owner = name.rpartition(".")[0]     # stands for a class's value, such as a field of a NamedTuple
        place = reference.places().get(name) or reference.places()["" if owner in NAMESPACES else owner]
        page, _, anchor = place.partition("#")
        assert anchor in anchors[page], name


def test_every_link_leads_somewhere(built: tuple[dict[str, str], dict[str, Path]]) -> None:
    texts, files = built
    assert len(texts) > 45 and len(files) > 20 and not site.broken(texts, files)


def test_a_link_that_leads_nowhere_is_noticed() -> None:
    text = "# A\n[x](b.md#there) [y](b.md#gone) [z](c.md) [w](#a)\n```\n[v](d.md)\n```\n"
    assert site.broken({"a.md": text, "b.md": "## There\n"}, {}) == ["a.md: b.md#gone", "a.md: c.md"]


def test_the_command_has_all_of_its_flags_and_sub_commands(built: tuple[dict[str, str], dict[str, Path]]) -> None:
    page = built[0][f"{reference.FOLDER}/commands.md"]
    for name in COMMANDS:
        text = page.partition(f"\n## alpha {name}\n")[2].partition("\n## ")[0]
        assert "usage: " in text and "--help" in text, name
    for name, option in OPTIONS.items():
        assert f"| `{name}` | `{option.default!r}` | {docstrings.escaped(option.help, reference.linked)} |" in page
        assert f"--{name.replace('_', '-')} " in page, name


def test_the_site_leads_to_every_page(built: tuple[dict[str, str], dict[str, Path]]) -> None:
    texts, _ = built
    listed = set(re.findall(r"[\w./]+\.md$", site.settings(texts), re.MULTILINE))
    assert listed == {name for name in texts if not name.startswith("files/")}


def test_a_docstring_becomes_markdown() -> None:
    doc = """Sum of x*y, see ops.conv2d.

        y = x_1 * 2

    Where it is `a*b`.
    Args:
        x, y: in [0, 1); the rest
            of it.
        **more: a dict.
    Returns:
        A tensor.
    Raises:
        ShapeError: <n> is 0.
    Source: arXiv 1.
    """
    assert docstrings.markdown(doc, reference.linked).split("\n\n") == [
        "Sum of x\\*y, see [ops.conv2d](alpha.ops.md#alpha.ops.conv2d).",
        "```text\ny = x_1 * 2\n```", "Where it is `a*b`.",
        "**Args:**", "- `x, y`: in \\[0, 1); the rest of it.\n- `**more`: a dict.", "**Returns:** A tensor.",
        "**Raises:**", "- `ShapeError`: \\<n\\> is 0.", "**Source:** arXiv 1."]


def test_a_page_has_signature_shapes_errors_and_source(built: tuple[dict[str, str], dict[str, Path]]) -> None:
    text = built[0][f"{reference.FOLDER}/alpha.nn.md"].partition("{#alpha.nn.Conv2d}")[2].partition("\n## ")[0]
    for part in ("alpha.nn.Conv2d(in_channels: Channels, out_channels: Channels, kernel_size: IntOrPair",
                 "**Shape:** x (N, IH, IW, in\\_channels) -\\> y", "- `ShapeError`: a setting is out of range",
                 "Defined in `alpha/nn/conv.py`."):
        assert part in text, part
