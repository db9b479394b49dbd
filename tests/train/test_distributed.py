"""The number of processes does not change the result: two that torchrun starts, against one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vcycle.config.run import Data, Evaluation, Model, RunConfig
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.loop import train
from vcycle.train.run_folder import config_text, read_rows


def run_config(videos: Path, model: Model) -> RunConfig:
    return RunConfig(
        recipe="test",
        baseline=Baseline(Shape(8, 32, 32), 4, 66, 24, LearningRate(0.01), (33, 50)),
        multigrid=Multigrid(norm_group=4),  # at the finest shape a group spans both processes
        data=Data(str(videos), stride=1, short_side=(36, 48), num_workers=0),
        model=model,
        # One batch of views: one of two processes has none.
        evaluation=Evaluation(times=2, batch_size=12),
        threads=1,
    )


def by_two_processes(
    config: RunConfig, folder: Path, *, name: str
) -> subprocess.CompletedProcess[str]:
    (folder / "config.yaml").write_text(config_text(config))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "vcycle", "train", "--config", "config.yaml", "--folder", name]
    return subprocess.run(
        [sys.executable, *torchrun, *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_two_processes_follow_the_trajectory_of_one(synthetic_videos: Path, tmp_path: Path) -> None:
    # Dropout draws from one stream a process.
    config = run_config(synthetic_videos, Model("resnet3d_tiny", {"width": 4, "dropout": 0.0}))
    train(config, tmp_path / "one")
    (tmp_path / "config.yaml").write_text(config_text(config))
    done = by_two_processes(config, tmp_path, name="two")
    assert done.returncode == 0, done.stderr
    one, two = (read_rows(tmp_path / name / "metrics.jsonl") for name in ("one", "two"))
    assert [row["step"] for row in two] == [row["step"] for row in one]
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], rel=1e-3)
    scores = [read_rows(tmp_path / name / "validation.jsonl") for name in ("one", "two")]
    assert [row["top1"] for row in scores[0]] == [row["top1"] for row in scores[1]]
    ours, theirs = (
        load_checkpoint(tmp_path / name / "checkpoint.pt")["model"] for name in ("one", "two")
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_a_parameter_without_a_use_is_named_before_step_0(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    (tmp_path / "spare.py").write_text(
        "from torch import nn\n"
        "from vcycle.models.tiny import TinyResNet3d\n"
        "def build(num_classes):\n"
        "    model = TinyResNet3d(num_classes=num_classes, width=4)\n"
        "    model.spare = nn.Linear(2, 2)\n"
        "    return model\n"
    )
    done = by_two_processes(
        run_config(synthetic_videos, Model("spare:build")), tmp_path, name="run"
    )
    assert done.returncode != 0
    assert "vcycle: model: parameter 'spare.weight' gets no gradient" in done.stderr
    assert "Traceback" not in done.stderr.split("vcycle: model")[0]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
