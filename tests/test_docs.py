"""The documentation is true: generated tables, links, commands and names of code."""

from __future__ import annotations

import importlib
import re
import runpy
import shlex
from pathlib import Path

import pytest

import vcycle
from vcycle.cli.main import make_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]
PAGES += sorted(DOCS.rglob("*.md"))
IDS = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    main = runpy.run_path(str(DOCS / "update.py"))["main"]
    assert main(["--check"]) == 0, "run `python docs/update.py`"


def test_every_page_is_in_the_navigation() -> None:
    listed = {"index"}
    for page in PAGES:
        for fence, text in FENCE.findall(page.read_text()):
            if fence == "{toctree}":
                folder = page.parent.relative_to(DOCS)
                names = [line for line in text.splitlines() if line and not line.startswith(":")]
                listed |= {(folder / name).as_posix() for name in names}
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert listed == pages


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if not link.startswith(("http://", "https://")):
            target, _, anchor = link.partition("#")
            file = page.parent / target if target else page
            assert file.exists(), link
            assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_and_folders_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w/.-]*)", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_names_of_code_exist(page: Path) -> None:
    text = page.read_text()
    autodoc = r":: (vcycle(?:\.\w+)*)"
    for name in {*re.findall(r"`(vcycle(?:\.\w+)+)", text), *re.findall(autodoc, text)}:
        look_up(name)


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_code_needs_no_more_than_import_vcycle(page: Path) -> None:
    """``vcycle.a.b`` is there only after an import of ``vcycle.a``."""
    text = page.read_text()
    code = [body for kind, body in FENCE.findall(text) if kind == "python"]
    code += re.findall(r"`(vcycle\.[\w.]*\([^`]*)`", text)
    lines = [line for each in code for line in each.splitlines() if " import " not in line]
    assert set(re.findall(r"\bvcycle\.(\w+)(?!\w*\")", "\n".join(lines))) <= {*vcycle.__all__}


def look_up(name: str) -> object:
    """The module, class or function of this full name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(look_up(parent), last)


def test_every_public_name_is_in_the_reference() -> None:
    documented: set[str] = set()
    for page in (DOCS / "api").glob("*.md"):
        module = "vcycle"
        for directive, name in re.findall(
            r"^\.\. (\w+):: ([\w.]+)$", page.read_text(), re.MULTILINE
        ):
            if directive == "currentmodule":
                module = name
            elif module == "vcycle":
                documented.add(name)
    assert set(vcycle.__all__) <= documented


def commands(page: Path) -> list[str]:
    """The ``vcycle`` commands of a page's blocks, without their comments."""
    text = page.read_text().replace("\\\n", " ")
    blocks = [body for _, body in FENCE.findall(text)]
    blocks += re.findall(r"(?:^    .*\n)+", FENCE.sub("", text), re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("vcycle ")]


@pytest.mark.parametrize(
    "command", sorted({command for page in PAGES for command in commands(page)})
)
def test_commands_are_understood(command: str) -> None:
    make_parser().parse_args(shlex.split(command, comments=True)[1:])
