"""The documentation's generated parts are those of the results that stand beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_tables_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "update.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, "run `python docs/update.py`"
