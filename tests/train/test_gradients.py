"""Batches that do not fit into memory: cut in whole norm groups, with the same losses."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from tests.train.small_memory import SmallMemory
from tests.train.test_distributed import end_of, run_config, start_two
from vcycle.config.run import Evaluation, Model, RunConfig
from vcycle.data.batch import Batch
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models import convert_batch_norm, defer_statistics
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape
from vcycle.train.augment import augment
from vcycle.train.gradients import Pieces
from vcycle.train.run import train


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


def test_a_batch_that_cannot_be_augmented_is_named_and_not_left_out(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader has given it by then, and would give the next one's clips instead."""

    def fails(*_: object, **__: object) -> Batch:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("vcycle.train.loop.augment", fails)
    with pytest.raises(ValueError, match=r"^shape 2x16x16: a batch of 64 clips does not fit"):
        train(auto, tmp_path / "run")


# Runs out of memory in the second of two processes.
TIGHT = """
import os, torch
from vcycle.models.tiny import TinyResNet3d

def fail(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")

class Tight(TinyResNet3d):
    def forward(self, clips):
        if os.environ.get("RANK") == "1" and torch.is_grad_enabled() and {when}:
            {fails}
        return super().forward(clips)

def build(num_classes):
    model = Tight(num_classes=num_classes, width=4)
    {besides}
    return model
"""
LARGE, LATER = "len(clips) > 16", "os.path.exists('run/config.yaml')"  # after the rehearsal
BUFFER = "model.register_buffer('table', torch.zeros(1))"  # which DDP sends


def auto_config(videos: Path, model: Model) -> RunConfig:
    config = run_config(videos, model)
    return replace(config, accumulate="auto", evaluation=Evaluation(times=1, batch_size=12))


def run_tight(
    videos: Path, folder: Path, *, when: str, fails: str = "fail()", besides: str = "pass"
) -> tuple[int, str]:
    """The exit code and the errors of two such processes."""
    text = TIGHT.format(when=when, fails=fails, besides=besides)
    (folder / "tight.py").write_text(text)
    # torchrun is not to end the other before that has told of the failure.
    model = Model("tight:build")
    process = start_two(auto_config(videos, model), folder, name="run", looks_every=5)
    error = end_of(process)
    return process.returncode, error


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    ("when", "besides"),
    [(LARGE, BUFFER), (f"{LARGE} and {LATER}", "pass")],
    ids=["rehearsal", "later"],
)
def test_what_does_not_fit_in_one_process_is_cut_and_losses_stay(
    synthetic_videos: Path, tmp_path: Path, when: str, besides: str
) -> None:
    """In the rehearsal all processes cut it; later that one alone does."""
    model = Model("resnet3d_tiny", {"width": 4, "dropout": 0.2})
    train(auto_config(synthetic_videos, model), tmp_path / "one")
    code, error = run_tight(synthetic_videos, tmp_path, when=when, besides=besides)
    assert code == 0, error
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "one"), rel=1e-5)


@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize(
    "tight",
    [
        {"when": f"{LARGE} and {LATER}", "fails": "clips.requires_grad_().register_hook(fail)"},
        {"when": f"len(clips) == 2 and {LATER}"},
        {"when": f"{LARGE} and {LATER}", "besides": BUFFER},
        {
            "when": "(self.calls.append(1) if len(clips) > 2 else self.calls)",
            "besides": "model.calls = []",
        },
    ],
    ids=["gradients", "statistics", "buffers", "statistics in the rehearsal"],
)
def test_processes_that_exchange_something_by_then_end_with_one_line(
    synthetic_videos: Path, tmp_path: Path, tight: dict[str, str]
) -> None:
    """Gradients at the end of the backward pass, statistics of a norm group of both, buffers."""
    code, error = run_tight(synthetic_videos, tmp_path, **tight)
    assert code != 0
    said = r"shape \S+: a batch of \d+ clips does not fit into the memory of cpu"
    assert re.search(f"^vcycle: {said}", error, re.MULTILINE), error
    assert re.search(f"^vcycle: process 1: {said}", error, re.MULTILINE), error


@pytest.mark.xdist_group("processes")
def test_a_batch_whose_gradients_do_not_fit_as_they_are_exchanged_is_named(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    """In the rehearsal, whose first passes exchange nothing."""
    count = "(self.calls.append(1) or len(self.calls) > 1)"
    code, error = run_tight(
        synthetic_videos, tmp_path, when=f"{LARGE} and {count}", besides="model.calls = []"
    )
    assert code != 0
    said = r"shape \S+: a batch of 64 clips does not fit into the memory of cpu"
    assert re.search(f"^vcycle: {said}", error, re.MULTILINE), error


@pytest.mark.parametrize("failures", [1, 2])
def test_a_batch_that_memory_does_not_hold_is_loaded_once_more(
    config: RunConfig,
    trained_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    """The same one, once there is room for it; if there is none, it is named."""
    calls = 0

    def tight(*arguments: Any, **others: Any) -> Any:
        nonlocal calls
        calls += 1
        if 4 <= calls < 4 + failures:
            raise torch.OutOfMemoryError
        return augment(*arguments, **others)

    monkeypatch.setattr("vcycle.train.loop.augment", tight)
    if failures == 1:
        train(config, tmp_path / "run")
        assert losses(tmp_path / "run") == losses(trained_run)
    else:
        with pytest.raises(
            ValueError, match=r"^shape \S+: a batch of .*use --accumulate 2 or more"
        ):
            train(config, tmp_path / "run")
