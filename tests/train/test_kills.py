"""Runs that SIGKILL ends at random moments end as one that never was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import PATIENCE

pytestmark = pytest.mark.xdist_group("processes")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_killed_runs_are_equal_to_the_last_bit() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--kills", "3"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["kills"] == 3
    assert result["phases"] > 5
    assert result["differing"] == []
