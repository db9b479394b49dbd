"""The generated parts of docs/plans.md and its figure are those that its script writes."""

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from vcycle.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"


Main: TypeAlias = Callable[[list[str]], int]


@pytest.fixture(scope="module")
def main_in() -> Callable[[Path], Main]:
    """The script of a folder of docs; what all such scripts compute is computed once."""
    plans: dict[str, Any] = {}
    drawings: dict[tuple[str, ...], str] = {}

    def main_in(docs: Path) -> Main:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(docs))
            main = runpy.run_path(str(docs / "draw_plans.py"))["main"]
        script = main.__globals__
        values_of, figure_text = script["values_of"], script["_figure_text"]

        def values_once(run: str) -> Any:
            if run not in plans:
                plans[run] = values_of(run)
            return plans[run]

        def text_once(figure: dict[str, Any]) -> str:
            key = tuple(figure)
            if key not in drawings:
                drawings[key] = figure_text(figure)
            return drawings[key]

        script.update(values_of=values_once, _figure_text=text_once)
        return main

    return main_in


def test_the_tables_and_the_figure_are_up_to_date(main_in: Callable[[Path], Main]) -> None:
    assert main_in(DOCS)(["--check"]) == 0, "run python docs/draw_plans.py"


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("plans.md", "| 3.43x |", "| 3.44x |"),
        ("results/plans.json", '"steps": 32685', '"steps": 32684'),
        pytest.param(
            *("figures/figure2.svg", "</svg>", "<g/></svg>"),
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11),
                reason="its last matplotlib lays figures out differently",
            ),
        ),
    ],
)
def test_the_check_sees_a_change(
    tmp_path: Path, file: str, old: str, new: str, main_in: Callable[[Path], Main]
) -> None:
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    (copy / file).write_text(text.replace(old, new))
    main = main_in(copy)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert (copy / file).read_text() == text
    assert main(["--check"]) == 0


COMMANDS = re.findall(r"`(--[^`]+ [^`]+)`", (DOCS / "plans.md").read_text())


@pytest.mark.parametrize("flags", [each for each in COMMANDS if "1.." not in each])
def test_the_flags_in_the_tables_are_true(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "k400-slowfast-r50-64f", *shlex.split(flags)]) == 0, (
        capsys.readouterr().err
    )
    assert "baseline" in capsys.readouterr().out
