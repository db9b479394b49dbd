"""The generated parts of docs/plans.md and its figure are those that its script writes."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vcycle.cli.main import main

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tables_and_the_figure_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, DOCS / "draw_plans.py", "--check"], check=False)
    assert done.returncode == 0, "run python docs/draw_plans.py"


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
    tmp_path: Path, file: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text()
    (copy / file).write_text(text.replace(old, new))
    monkeypatch.syspath_prepend(str(copy))
    main = runpy.run_path(str(copy / "draw_plans.py"))["main"]
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
