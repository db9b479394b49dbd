"""The reference of the configuration's fields is what its script writes, and lists every field."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from vcycle.config.fields import field_types

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "write_configuration.py"))


def test_the_page_is_up_to_date(script: dict[str, Any]) -> None:
    assert script["main"](["--check"]) == 0, "run `python docs/write_configuration.py`"


def test_every_field_is_on_the_page(script: dict[str, Any]) -> None:
    page = script["page"]()
    sections = {name.rpartition(".")[0] for name in field_types()}
    for name in field_types():
        assert f"| `{name}`" in page or (name in sections and f"\n## {name}\n" in page), name
    assert "`data.manifest`, `--data`" in page


def test_a_field_without_a_text_is_an_error(script: dict[str, Any]) -> None:
    @dataclass(frozen=True)
    class Section:
        """Two fields.

        Args:
            one: the first,
                of several lines; None or ``True``.
        """

        one: int = 1
        two: int | None = None

    assert script["argument_texts"](Section) == {
        "one": "the first, of several lines; null or `true`."
    }
    with pytest.raises(ValueError, match=r"Section\.two: give it a text under Args"):
        script["section"](Section, "", is_optional=False)
