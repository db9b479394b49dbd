"""Sphinx configuration of the site: ``make docs`` writes it to ``site/``. Needs no network."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

from vcycle.cli.main import make_parser

project = "vcycle"
author = "The vcycle authors"
project_copyright = "The vcycle authors, Apache-2.0"
release = metadata.version("vcycle")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["results"]

html_theme = "furo"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_title = f"vcycle {release}"
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 3

smartquotes = False  # -- begins a flag
default_role = "literal"  # single backticks in a docstring are code
highlight_language = "text"
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 88

REPOSITORY = Path(__file__).parents[1]
PAGES = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
"""Files of the repository's root that are pages of the site too."""


def add_text_of_root_file(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put README.md and the like before what their page in docs/ holds, links adapted."""
    for file, name in PAGES.items():
        if page == name:
            text = (REPOSITORY / file).read_text()
            source[0] = re.sub(r"(?<=\]\()(?!https?:|#)[^)]+", link_from_docs, text) + source[0]


def link_from_docs(link: re.Match[str]) -> str:
    """A link of a file in the root, as it is from docs/."""
    target = link[0]
    if target in PAGES:
        return f"{PAGES[target]}.md"
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def add_commands(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add what ``--help`` prints, a section a command, to the command line's page."""
    if page == "command_line":
        os.environ["COLUMNS"] = "88"
        source[0] += "".join(
            f"\n## {name}\n\n```text\n{text}```\n" for name, text in help_texts(make_parser())
        )


def help_texts(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """The name and the help of a command that can be run, and of all below it."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not groups:
        yield parser.prog, parser.format_help()
    for group in groups:
        for command in group.choices.values():
            yield from help_texts(command)


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_text_of_root_file)
    app.connect("source-read", add_commands)
