"""The number of processes does not change the result: those that torchrun starts, against one."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.processes import PATIENCE, children_of, kill_group
from vcycle.config.fields import config_text
from vcycle.config.run import Checkpoint, Data, Evaluation, Model, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.run import score_run
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.shape import Shape
from vcycle.train.checkpoint import clear_after
from vcycle.train.run import train

pytestmark = pytest.mark.xdist_group("processes")


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


@pytest.fixture(scope="module")
def dropping(synthetic_videos: Path) -> RunConfig:
    """With dropout: a clip has its mask wherever it is."""
    return run_config(synthetic_videos, Model("resnet3d_tiny", {"width": 4, "dropout": 0.5}))


@pytest.fixture(scope="module")
def one(dropping: RunConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that one process trains, with a checkpoint of every step."""
    folder = tmp_path_factory.mktemp("one") / "run"
    train(replace(dropping, checkpoint=Checkpoint(steps=1, keep=100)), folder)
    return folder


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


def start_two(
    config: RunConfig, folder: Path, *, name: str, looks_every: float = 0.1
) -> subprocess.Popen[str]:
    """As ``start_processes``; torchrun looks every so many seconds for one that has failed."""
    return start_processes(config, folder, name=name, number=2, looks_every=looks_every)


def start_processes(
    config: RunConfig, folder: Path, *, name: str, number: int, looks_every: float = 0.1
) -> subprocess.Popen[str]:
    """Processes of ``vcycle train``, in ``folder``, that resume or begin the run ``name``."""
    (folder / "config.yaml").write_text(config_text(config))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    torchrun += ["--monitor-interval", str(looks_every)]
    command = ["-m", "vcycle", "train", "--config", "config.yaml", "--folder", name]
    if ":" in config.model.name:
        command += ["--model", config.model.name]
    return subprocess.Popen(
        [sys.executable, *torchrun, *command, "--resume", "auto"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def end_of(process: subprocess.Popen[str]) -> str:
    """What processes printed as errors, once they have ended; they may not hang."""
    try:
        return process.communicate(timeout=PATIENCE)[1]
    finally:
        kill_group(process.pid)


def test_several_processes_follow_the_trajectory_of_one(
    dropping: RunConfig, one: Path, tmp_path: Path
) -> None:
    """Other tests have two processes."""
    process = start_processes(dropping, tmp_path, name="several", number=4)
    error = end_of(process)
    assert process.returncode == 0, error
    several = tmp_path / "several"
    rows = [read_rows(folder / "metrics.jsonl") for folder in (one, several)]
    assert [row["step"] for row in rows[0]] == [row["step"] for row in rows[1]]
    assert losses(several) == pytest.approx(losses(one), rel=1e-5)
    scores = [read_rows(folder / "validation.jsonl") for folder in (one, several)]
    assert [row["top1"] for row in scores[0]] == [row["top1"] for row in scores[1]]
    for phase in read_rows(several / "phases.jsonl"):  # of all processes
        steps = [row for row in rows[1] if row["phase"] == phase["phase"]]
        seconds = sum(row["batch_size"] / row["clips_per_second"] for row in steps)
        clips = sum(row["batch_size"] for row in steps)
        assert phase["clips_per_second"] == pytest.approx(clips / seconds, rel=1e-3)
    ours, theirs = (load_checkpoint(each / "checkpoint.pt")["model"] for each in (one, several))
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
    process = start_two(run_config(synthetic_videos, Model("spare:build")), tmp_path, name="run")
    error = end_of(process)
    assert process.returncode != 0
    assert "vcycle: model: parameter 'spare.weight' gets no gradient" in error
    assert "Traceback" not in error.split("vcycle: model")[0]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_what_two_processes_validate_is_what_their_checkpoint_has(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of norms that are not by group each process moves its own statistics, and their average."""
    (tmp_path / "frames.py").write_text(
        "from torch import nn\n"
        "class Frames(nn.Module):\n"
        "    def __init__(self, num_classes):\n"
        "        super().__init__()\n"
        "        self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, num_classes)\n"
        "    def forward(self, clips):\n"
        "        frames = self.norm(clips.transpose(1, 2).flatten(0, 1))\n"
        "        means = frames.square().mean((2, 3)).view(len(clips), -1, 3).mean(1)\n"
        "        return self.head(means)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = run_config(synthetic_videos, Model("frames:Frames"))
    config = replace(config, multigrid=Multigrid.off(steps=4, norm_group=None), ema_decay=0.5)
    config = replace(config, evaluation=Evaluation(times=1, batch_size=6))  # each scores six
    process = start_two(config, tmp_path, name="run")
    error = end_of(process)
    assert process.returncode == 0, error
    scored = score_run(config, tmp_path / "run", split="val").values
    (row,) = read_rows(tmp_path / "run" / "validation.jsonl")
    assert row["loss"] == pytest.approx(scored["loss"], rel=1e-5)


def go_back(folder: Path, *, next_step: int) -> None:
    """Let a complete run be one that was killed later than ``next_step``."""
    newest = folder / "checkpoints" / f"step_{next_step:08d}.pt"
    clear_after(folder, next_step=next_step, resumed=newest)
    (folder / "result.json").unlink()


def test_a_run_goes_on_with_two_processes_with_four_and_with_one(
    dropping: RunConfig, one: Path, tmp_path: Path
) -> None:
    config = replace(dropping, checkpoint=Checkpoint(steps=1, keep=100))
    run = tmp_path / "run"
    shutil.copytree(one, run)
    go_back(run, next_step=6)
    two = start_two(config, tmp_path, name="run")
    error = end_of(two)
    assert two.returncode == 0, error
    assert losses(run)[6:] != losses(one)[6:]  # two have rounded otherwise
    go_back(run, next_step=10)
    four = start_processes(config, tmp_path, name="run", number=4)
    error = end_of(four)
    assert four.returncode == 0, error
    go_back(run, next_step=13)
    train(config, run, resume="auto")
    assert losses(run) == pytest.approx(losses(one), rel=1e-5)
    ours, theirs = (load_checkpoint(folder / "checkpoint.pt")["model"] for folder in (one, run))
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-5, atol=1e-5, msg=name)


MODEL = """
import os, pathlib, signal, time
from vcycle.models.tiny import TinyResNet3d

class Model(TinyResNet3d):
    steps = 0

    def forward(self, clips):
        if self.training and os.path.exists("run/config.yaml"):  # the rehearsal is over
            self.steps += 1
            {what}
        return super().forward(clips)

def build(num_classes):
    return Model(num_classes=num_classes, width=4)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_in_one_process_ends_the_other_with_its_message(
    synthetic_videos: Path, tmp_path: Path, rank: int
) -> None:
    fail = (
        f"if self.steps == 3 and os.environ['RANK'] == '{rank}':\n"
        "                raise RuntimeError('no clip like this')\n"
        "            if self.steps == 3: time.sleep(1000)  # as in an exchange that never ends"
    )
    (tmp_path / "failing.py").write_text(MODEL.replace("{what}", fail))
    config = run_config(synthetic_videos, Model("failing:build"))
    process = start_two(config, tmp_path, name="run")
    error = end_of(process)
    assert process.returncode != 0
    assert "RuntimeError: no clip like this" in error
    assert f"\nvcycle: process {rank}: no clip like this\n" in error


def test_a_process_that_is_killed_ends_the_other_with_a_line(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    kill = (
        "if self.steps == 3 and os.environ['RANK'] == '1':\n"
        "                os.kill(os.getpid(), signal.SIGKILL)"
    )
    (tmp_path / "killed.py").write_text(MODEL.replace("{what}", kill))
    process = start_two(run_config(synthetic_videos, Model("killed:build")), tmp_path, name="run")
    error = end_of(process)
    assert process.returncode != 0
    said = "another process is gone; the same command goes on from the newest checkpoint"
    assert f"\nvcycle: process 0: {said}\n" in error
    assert "peer" not in error


def test_sigterm_stops_two_processes_after_the_same_step(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(MODEL.replace("{what}", "time.sleep(0.7)"))
    config = run_config(synthetic_videos, Model("slow:build"))
    config = replace(config, checkpoint=Checkpoint(steps=1))
    process = start_two(config, tmp_path, name="run")
    first = tmp_path / "run" / "checkpoint.pt"
    deadline = time.monotonic() + 300
    while not first.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    error = end_of(process)
    stopped = re.findall(r"vcycle: stopped after step (\d+) of (\d+)", error)
    assert len(stopped) == 1, error  # one says it for both
    assert "vcycle: process" not in error
    step, steps = map(int, stopped[0])
    assert step < steps
    assert load_checkpoint(first)["next_step"] == step
    assert len(losses(tmp_path / "run")) == step


@pytest.mark.parametrize("begins", ["run/checkpoint.pt", "validates"])
def test_a_storm_of_sigterm_on_two_processes_ends_in_a_checkpoint(
    synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    """From a file on, each gets it every 50 ms until it is gone: in steps, or in a validation."""
    nap = (
        "time.sleep(float(os.environ['NAP']))\n"
        "        elif os.path.exists('run/checkpoint.pt'):\n"
        "            pathlib.Path('validates').touch()\n"
        "            time.sleep(float(os.environ['NAP']))"
    )
    (tmp_path / "slow.py").write_text(MODEL.replace("{what}", nap))
    config = run_config(synthetic_videos, Model("slow:build"))
    evaluation = Evaluation(times=2, num_clips=3, batch_size=1)  # of many batches
    config = replace(config, checkpoint=Checkpoint(steps=1), evaluation=evaluation)
    monkeypatch.setenv("NAP", "0.4")
    process = start_two(config, tmp_path, name="run")
    deadline = time.monotonic() + 300
    file = tmp_path / begins
    while not file.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    ranks = children_of(process.pid)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGTERM)
        time.sleep(0.05)
    error = end_of(process)
    assert error.count("vcycle: stopped after step") == 1, error
    assert error.count("exitcode  : 130") == len(ranks) == 2, error
    assert "exitcode  : -15" not in error  # of no signal that a handler did not catch
    step = load_checkpoint(tmp_path / "run" / "checkpoint.pt")["next_step"]
    assert len(losses(tmp_path / "run")) == step < len(config.plan())
    assert ("before its validation ended" in error) == (begins == "validates")
    assert read_rows(tmp_path / "run" / "validation.jsonl") == []
    if begins != "validates":
        return
    monkeypatch.setenv("NAP", "0")
    process = start_two(config, tmp_path, name="run")
    error = end_of(process)
    assert process.returncode == 0, error
    train(replace(config, model=Model("resnet3d_tiny", {"width": 4})), tmp_path / "one")
    scores = [read_rows(tmp_path / name / "validation.jsonl") for name in ("run", "one")]
    assert [row["step"] for row in scores[0]] == [row["step"] for row in scores[1]]
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
