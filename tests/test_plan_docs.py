"""The tables of docs/plans.md are those that its script writes."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "docs" / "draw_plans.py"


def test_the_tables_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], check=False)
    assert done.returncode == 0, "run python docs/draw_plans.py"
