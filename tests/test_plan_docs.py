"""The generated parts of docs/plans.md and its figure are those that its script writes."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
