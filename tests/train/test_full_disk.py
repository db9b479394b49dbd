"""A disk that becomes full ends a run with its name; with room the same command goes on."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vcycle.cli.main import main
from vcycle.config.fields import config_text
from vcycle.config.run import Checkpoint, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.checkpoint import load_checkpoint

REASONS = ("No space left on device", "could not be written; make room on the disk")


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def mount(options: str, path: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory, of one page."""
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() or not mount("size=4k", path):
        pytest.skip("mounting a file system needs root, and leave to do so")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_run_on_a_full_disk_goes_on_once_there_is_room(
    config: RunConfig,
    trained_run: Path,
    tmp_path: Path,
    disk: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same command each time, while the disk grows: too little room for ever later files."""
    file = tmp_path / "config.yaml"
    file.write_text(config_text(replace(config, checkpoint=Checkpoint(steps=1, keep=2))))
    run = disk / "run"
    command = ["train", "--config", str(file), "--folder", str(run), "--resume", "auto"]
    full: list[str] = []  # what the disk had no room for
    kept = []
    for kib in (4, 28, 60, 300, 900, 1200):
        assert mount(f"remount,size={kib}k", disk)
        capsys.readouterr()
        assert main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        found = re.fullmatch(rf"vcycle: {re.escape(str(run))}/(\S+): (.*)", line)
        assert found, line
        assert found[2] in REASONS
        full.append(found[1])
        if (run / "checkpoint.pt").exists():
            kept.append(load_checkpoint(run / "checkpoint.pt")["next_step"])
    assert full[0] == "manifest/classes.txt"
    assert full[2] == "checkpoints/step_00000001.safetensors"
    assert full[3] == "checkpoints/step_00000001.pt"
    assert kept == [1, 2]
    assert mount("remount,size=100m", disk)
    assert main(command) == 0
    assert losses(run) == losses(trained_run)
