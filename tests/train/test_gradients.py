"""Batches that do not fit into memory: cut in whole norm groups, with the same losses."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from tests.train.test_distributed import end_of, run_config, start_two
from vcycle.config.run import Evaluation, Model, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models import convert_batch_norm, defer_statistics
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape
from vcycle.train import rehearsal
from vcycle.train.gradients import Pieces
from vcycle.train.run import train


class _Check(torch.autograd.Function):
    """Calls ``check`` at the end of a backward pass, when every parameter has its gradient."""

    @staticmethod
    def forward(ctx: Any, clips: Tensor, check: Any) -> Tensor:
        ctx.check = check
        return clips.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.check()
        return grads[0], None


class SmallMemory:
    """A device on which training on more than ``most`` clips at once runs out of memory.

    It does so at the end of the backward pass: the norms have collected their statistics.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int, after: Path | None) -> None:
        self.most, self.after, self.failures = most, after, 0
        whole = TinyResNet3d.forward

        def forward(model: TinyResNet3d, clips: Tensor) -> Tensor:
            if model.training and torch.is_grad_enabled():
                count = len(clips)
                if not clips.requires_grad:
                    clips = clips.detach().requires_grad_()
                clips = _Check.apply(clips, lambda: self.check(count))
            return whole(model, clips)

        monkeypatch.setattr(TinyResNet3d, "forward", forward)

    def check(self, count: int) -> None:
        is_on = self.after is None or self.after.exists()
        if is_on and count > self.most:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.fixture
def auto(config: RunConfig) -> RunConfig:
    """The small run, with dropout, whose batches may be cut."""
    model = Model("resnet3d_tiny", {"width": 4, "dropout": 0.5})
    return replace(config, model=model, accumulate="auto", evaluation=Evaluation(1, batch_size=6))


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in read_rows(folder / "metrics.jsonl")]


@pytest.mark.parametrize("is_later", [False, True])
def test_batches_that_do_not_fit_are_cut_and_losses_stay(
    auto: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_later: bool,
) -> None:
    """64 clips in groups of 8 go in fours or twos, 32 in twos; smaller batches stay whole."""
    train(auto, tmp_path / "whole")
    after = tmp_path / "cut" / "config.yaml" if is_later else None  # the rehearsal is over
    memory = SmallMemory(monkeypatch, 16, after)
    console = Console(file=io.StringIO(), width=200)
    train(auto, tmp_path / "cut", console=console)
    assert memory.failures > 3
    said = console.file.getvalue()
    assert ("64 x 2x16x16 goes through the model in 4 pieces" in said) == (not is_later)
    assert losses(tmp_path / "cut") == pytest.approx(losses(tmp_path / "whole"), rel=1e-6)
    whole, cut = (
        load_checkpoint(tmp_path / name / "checkpoint.pt")["model"] for name in ("whole", "cut")
    )
    torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", ["auto", 1])
def test_a_batch_that_cannot_be_cut_further_is_named(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: Any
) -> None:
    config = replace(auto, accumulate=accumulate)
    SmallMemory(monkeypatch, 8, None)
    kind = "4x16x16: a batch of 32" if accumulate == "auto" else "2x16x16: a batch of 64"
    with pytest.raises(ValueError, match=f"^shape {kind} clips does not fit .*--accumulate auto"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def pieces_of(network: nn.Module, kind: MiniBatch, config: RunConfig, processes: int) -> list[int]:
    pieces, found = Pieces(network, config, world_size=processes), []
    while pieces.halve(kind):
        found.append(pieces.of(kind))
    return found


@pytest.mark.parametrize(
    ("clips", "norm_group", "processes", "expected"),
    [
        (64, 8, 1, [2, 4, 8]),
        (64, 8, 4, [2]),
        (24, 2, 1, [2, 4, 12]),
        (18, 2, 1, [3, 9]),
        (8, 8, 1, []),
        (8, 8, 2, []),  # a group spans processes
        (8, None, 1, []),  # one group of all
    ],
)
def test_pieces_are_whole_norm_groups(
    config: RunConfig, clips: int, norm_group: int | None, processes: int, expected: list[int]
) -> None:
    network = convert_batch_norm(TinyResNet3d(num_classes=2, width=1))
    defer_statistics(network)
    kind = MiniBatch(Shape(2, 16, 16), clips, norm_group, 1)
    assert pieces_of(network, kind, config, processes) == expected


def test_norms_that_would_see_pieces_keep_batches_whole(config: RunConfig) -> None:
    kind = MiniBatch(Shape(2, 16, 16), 8, 2, 1)
    undeferred = convert_batch_norm(TinyResNet3d(num_classes=2, width=1))
    assert pieces_of(undeferred, kind, config, 1) == []
    other = nn.Sequential(nn.BatchNorm1d(2))
    assert pieces_of(other, kind, config, 1) == []
    without = nn.Sequential(nn.Linear(2, 2))
    assert pieces_of(without, kind, config, 1) == [2, 4, 8]


def test_the_rehearsal_measures_the_peak_of_each_batch_with_optimizer_state(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the counters of CUDA's allocator, and a look at what is held by then."""
    states = []
    step = rehearsal._Steps.measure

    def measure(steps: Any, kind: MiniBatch) -> tuple[float, int | None]:
        states.append(len(optimizers[0].state))
        return step(steps, kind)[0], 2**30 * kind.batch_size

    optimizers: list[torch.optim.Optimizer] = []
    rehearse = rehearsal.rehearse

    def kept(network: Any, model: Any, optimizer: torch.optim.Optimizer, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
        optimizers.append(optimizer)
        found = rehearse(network, model, optimizer, *rest, **more)
        assert not optimizer.state
        return found

    monkeypatch.setattr("vcycle.train.start.rehearse", kept)
    monkeypatch.setattr(rehearsal._Steps, "measure", measure)
    console = Console(file=io.StringIO(), width=200)
    train(auto, tmp_path / "run", console=console, dry_run=True)
    assert min(states) > 10
    assert "Peak memory, GiB: 64 x 2x16x16 64, 32 x 4x16x16 32" in console.file.getvalue()


@pytest.mark.xdist_group("processes")
def test_all_processes_cut_what_does_not_fit_in_one(synthetic_videos: Path, tmp_path: Path) -> None:
    (tmp_path / "tight.py").write_text(
        "import os, torch\n"
        "from vcycle.models.tiny import TinyResNet3d\n"
        "class Tight(TinyResNet3d):\n"
        "    def forward(self, clips):\n"
        "        small = os.environ.get('RANK') == '1' and len(clips) > 16\n"
        "        if small and self.training and torch.is_grad_enabled():\n"
        "            raise torch.OutOfMemoryError('CUDA out of memory')\n"
        "        return super().forward(clips)\n"
        "def build(num_classes):\n"
        "    return Tight(num_classes=num_classes, width=4)\n"
    )
    config = run_config(synthetic_videos, Model("tight:build"))
    config = replace(config, accumulate="auto", evaluation=Evaluation(times=1, batch_size=12))
    same = replace(config, model=Model("resnet3d_tiny", {"width": 4, "dropout": 0.2}))
    train(same, tmp_path / "one")
    process = start_two(config, tmp_path, name="run")
    error = end_of(process)
    assert process.returncode == 0, error
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)
