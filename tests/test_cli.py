"""The command line: what it prints when all is well, and one line and exit code 2 otherwise."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vcycle.cli import main
from vcycle.data.manifest import Manifest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vcycle.cli", *arguments], capture_output=True, text=True
    )


def test_synth_writes_a_manifest_of_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "videos"
    code = main(["data", "synth", str(folder), "--train-videos", "3", "--val-videos", "2"])
    assert code == 0
    manifest = Manifest.read(folder)
    assert len(manifest.split("train")) == 3
    assert len(manifest.split("val")) == 2
    assert all((folder / video.path).stat().st_size > 0 for video in manifest.videos)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "demo"),
        (["dmeo"], "demo"),
        (["demo", "--quack"], "--quack"),
        (["data", "synth"], "folder"),
        (["data", "synth", "/dev/null/x"], "/dev/null/x"),
        (["data", "synth", "/tmp/v", "--train-videos", "none"], "--train-videos"),
        (["data", "synth", "/tmp/v", "--val-videos", "0"], "val_videos is 0"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert error.startswith("vcycle: ")


def test_ctrl_c_leaves_a_readable_demo(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "vcycle.cli", "demo", "--quick", "--folder", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    metrics = folder / "baseline" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.strip().splitlines()[-1].startswith("vcycle: stopped after step")
    assert "Traceback" not in error
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert (folder / "baseline" / "checkpoint.pt").is_file()
    assert (folder / "baseline" / "config.yaml").is_file()
