"""Each example runs, and the public names are there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import vcycle

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_own_loop_does_every_step_of_its_plan(
    synthetic_videos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLES / "own_loop.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.main(str(synthetic_videos), steps=60)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
    assert any(" x 2x24x24 " in line for line in lines)
    assert any(" x 8x48x48 " in line for line in lines)


def test_public_names_exist_and_plans_need_no_torch() -> None:
    for name in vcycle.__all__:
        assert callable(getattr(vcycle, name))
        assert getattr(vcycle, name) is getattr(vcycle, name)
    code = "import sys, vcycle; vcycle.Plan; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Plann'"):
        _ = vcycle.Plann
