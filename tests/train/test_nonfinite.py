"""Losses that are not finite: named with their clips, or skipped without a trace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vcycle.config.run import RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.data.request import StepPart
from vcycle.data.sampler import clip_requests
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models import commit_statistics, convert_batch_norm, defer_statistics, set_norm_group
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.multigrid import Multigrid
from vcycle.train import gradients, loop, nonfinite
from vcycle.train.nonfinite import BuffersBefore, Diverged, NonFinite, are_finite
from vcycle.train.run import train
from vcycle.train.step_log import StepLoss


def steps_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """A function that counts its calls from 0, once a run's rehearsal is over."""
    made, seen = loop.Gradients, -math.inf

    def begin(*arguments: Any, **others: Any) -> gradients.Gradients:
        nonlocal seen
        seen = -1
        return made(*arguments, **others)

    def count() -> float:
        nonlocal seen
        seen += 1
        return seen

    monkeypatch.setattr(loop, "Gradients", begin)
    return count


def poison(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Let the clips of these steps be what overflows; evaluation has clips of its own."""
    normalize, count = gradients.normalize, steps_of_the_loop(monkeypatch)

    def poisoned(clips: torch.Tensor, **others: Any) -> torch.Tensor:
        found = normalize(clips, **others)
        return torch.full_like(found, math.inf) if count() in steps else found

    monkeypatch.setattr(gradients, "normalize", poisoned)


def poison_gradients(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Let the gradients of these steps overflow, of losses that are finite."""
    cross_entropy = torch.nn.functional.cross_entropy
    count = steps_of_the_loop(monkeypatch)

    def poisoned(scores: torch.Tensor, *others: Any, **more: Any) -> torch.Tensor:
        if scores.requires_grad and count() in steps:
            scores.register_hook(lambda grad: grad * math.inf)
        return cross_entropy(scores, *others, **more)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", poisoned)


def test_a_rate_that_is_too_high_stops_the_run(config: RunConfig, tmp_path: Path) -> None:
    rate = replace(config.baseline.learning_rate, base=1e30, warmup_steps=0)
    config = replace(config, baseline=replace(config.baseline, learning_rate=rate))
    with pytest.raises(ValueError, match=r"step \d+: the loss is nan at rate .*; use a smaller"):
        train(config, tmp_path / "run")


def test_a_run_stops_with_the_step_the_shape_and_the_clips(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, 7)
    with pytest.raises(ValueError, match=r"^step 7: the loss is nan") as caught:
        train(config, tmp_path / "run")
    step = config.plan()[7]
    videos = Manifest.read(config.data.manifest).split("train")
    part = StepPart(step, config.baseline, seed=config.seed)
    requests = clip_requests(part, num_videos=len(videos))
    paths = [videos.videos[request.index].path for request in requests]
    message = str(caught.value)
    assert f"of {step.batch_size} clips of {step.shape}, among them {paths[0]}, " in message
    assert "\n" not in message
    assert f"and {len(paths) - 8} more (nonfinite.jsonl)" in message
    (row,) = read_rows(tmp_path / "run" / "nonfinite.jsonl")
    assert row["step"] == 7
    assert row["shape"] == str(step.shape)
    assert row["clips"] == paths
    assert read_rows(tmp_path / "run" / "metrics.jsonl")[7]["loss"] is None
    newest = tmp_path / "run" / "checkpoint.pt"
    assert load_checkpoint(newest)["next_step"] <= 7  # what came after is worth nothing


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_skipped_step_leaves_no_trace_but_its_row(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int
) -> None:
    """The run goes on as one whose update of that step was a rate of zero without momentum."""
    config = replace(config, nonfinite="skip", accumulate=accumulate, ema_decay=0.9)
    config = replace(config, optimizer=replace(config.optimizer, momentum=0.0))
    config = replace(config, multigrid=replace(config.multigrid, norm_group=2))
    still = tmp_path / "still"
    set_rate, steps = loop.set_learning_rate, itertools.count()

    def set_rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
        set_rate(optimizer, 0.0 if next(steps) in (7, 12) else rate)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "set_learning_rate", set_rates)
        train(config, still)
    poison(monkeypatch, 7 * accumulate, 12 * accumulate)
    result = train(config, tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["loss"] is None] == [7, 12]
    assert result["skipped_steps"] == 2
    assert [row["step"] for row in read_rows(tmp_path / "run" / "nonfinite.jsonl")] == [7, 12]
    losses = [row["loss"] for row in read_rows(still / "metrics.jsonl")]
    losses[7] = losses[12] = None
    assert [row["loss"] for row in rows] == losses
    found = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert found["ema"]["num_averaged"] == len(config.plan()) - 2
    state = found["model"]
    assert all(bool(value.isfinite().all()) for value in state.values())
    tracked = [value for name, value in state.items() if name.endswith("num_batches_tracked")]
    assert {int(value) for value in tracked} == {len(config.plan()) - 2}


def test_a_skipped_step_is_none_to_a_gradient_scaler_and_clipping(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = replace(config.optimizer, clip_norm=1.0)
    config = replace(config, nonfinite="skip", precision="16-mixed", optimizer=optimizer)
    poison(monkeypatch, 7, 12)
    train(config, tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row["loss"] is None] == [7, 12]
    assert [row["step"] for row in rows if "gradient_norm" not in row] == [7, 12]


def test_a_run_whose_losses_are_all_skipped_ends(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = replace(config.baseline, steps=80, stage_ends=(40, 60))
    config = replace(config, nonfinite="skip", baseline=baseline)
    assert len(config.plan()) > 20
    poison(monkeypatch, *range(1, 1000))
    with pytest.raises(ValueError, match=r"^step 20: .* nor was that of any of the 19 steps"):
        train(config, tmp_path / "run")


def test_steps_that_are_skipped_end_a_run_only_if_they_follow_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = {"step": 0, "clips": [], "learning_rate": 0.1, "batch_size": 4, "shape": "2x16x16"}
    monkeypatch.setattr(NonFinite, "_row", lambda self, loss: row)
    plain = SimpleNamespace(strategy=SimpleNamespace(precision=None))
    folder = SimpleNamespace(add_nonfinite=lambda row: None)
    run: Any = SimpleNamespace(
        config=SimpleNamespace(nonfinite="skip"), fabric=plain, folder=folder
    )
    bad = [step % 2 == 1 for step in range(80)]
    losses = [
        StepLoss(step, math.inf if each else 1.0, 1.0, 0.0, is_skipped=each)
        for step, each in enumerate(bad)
    ]
    assert len(NonFinite(run).account(losses)) == sum(bad)


@pytest.mark.parametrize("precision", ["32-true", "16-mixed"])
def test_gradients_that_overflow_are_skipped_too(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any
) -> None:
    """With a gradient scaler these are part of its work, and not counted."""
    config = replace(config, nonfinite="skip", precision=precision)
    plain = tmp_path / "plain"
    train(config, plain)
    poison_gradients(monkeypatch, 7, 12)
    train(config, tmp_path / "run")
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows if row.get("skipped")] == [7, 12]
    assert all(row["loss"] is not None for row in rows)
    before = [row["loss"] for row in read_rows(plain / "metrics.jsonl")]
    assert [row["loss"] for row in rows[:8]] == before[:8]
    assert [row["loss"] for row in rows[8:]] != before[8:]
    listed = tmp_path / "run" / "nonfinite.jsonl"
    steps = [row["step"] for row in read_rows(listed)] if listed.exists() else []
    assert steps == ([] if precision == "16-mixed" else [7, 12])
    for row in read_rows(listed) if steps else []:
        assert len(row["clips"]) == row["batch_size"]  # whose it was is not known
    state = load_checkpoint(tmp_path / "run" / "checkpoint.pt")["model"]
    assert all(bool(value.isfinite().all()) for value in state.values())


def test_weights_that_are_not_finite_are_never_written(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is due after the very step whose gradients overflow, though its loss is fine."""
    config = replace(config, checkpoint=replace(config.checkpoint, steps=4))
    poison_gradients(monkeypatch, 7)
    with pytest.raises(ValueError, match=r"^step 7: \d+ of \d+ weights are not finite") as caught:
        train(config, tmp_path / "run")
    assert "\n" not in str(caught.value)
    found = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    assert found["next_step"] < 8
    assert all(bool(value.isfinite().all()) for value in found["model"].values())


def test_which_values_are_finite() -> None:
    device = torch.device("cpu")
    fine = [
        torch.ones(3),
        torch.zeros(0, 8),
        torch.arange(4),
        torch.full((2,), 1e300, dtype=torch.float64),
    ]
    assert are_finite([], device)
    assert are_finite(fine, device)
    assert are_finite([torch.full((2,), 65504.0).half(), *fine], device)
    for bad in (math.inf, -math.inf, math.nan):
        assert not are_finite([*fine, torch.tensor([0.0, bad])], device)
        assert not are_finite([torch.tensor([0.0, bad], dtype=torch.bfloat16)], device)


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_a_network_may_have_parameters_that_are_no_numbers(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonfinite: Any
) -> None:
    whole = TinyResNet3d.__init__

    def init(self: TinyResNet3d, *args: Any, **kwargs: Any) -> None:
        whole(self, *args, **kwargs)
        self.order = torch.nn.Parameter(torch.arange(4), requires_grad=False)
        self.none = torch.nn.Parameter(torch.zeros(0, 8))

    monkeypatch.setattr(TinyResNet3d, "__init__", init)
    plain = replace(config, nonfinite=nonfinite, multigrid=Multigrid.off(steps=4, norm_group=4))
    assert train(plain, tmp_path / "run")["steps"] == 4


@pytest.mark.parametrize("deferred", [False, True])
def test_buffers_are_as_before_a_step(deferred: bool) -> None:
    network = convert_batch_norm(torch.nn.Sequential(torch.nn.BatchNorm3d(3)))
    set_norm_group(network, 2)
    if deferred:
        defer_statistics(network)
    network(torch.randn(4, 3, 2, 4, 4))
    commit_statistics(network)
    buffers = BuffersBefore(network)
    buffers.keep()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network(torch.full((4, 3, 2, 4, 4), math.nan))
    buffers.restore()
    commit_statistics(network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_buffers_that_come_or_change_their_size_in_a_step_are_left_as_they_are() -> None:
    network = torch.nn.BatchNorm3d(3)
    network.register_buffer("positions", torch.zeros(8), persistent=False)
    buffers = BuffersBefore(network)
    buffers.keep()
    network(torch.randn(4, 3, 2, 4, 4))
    network.positions = torch.ones(4)
    network.register_buffer("seen", torch.ones(1))
    buffers.restore()
    assert network.running_mean is not None
    assert network.running_mean.abs().max() == 0
    assert (network.positions.tolist(), network.seen.tolist()) == ([1.0] * 4, [1.0])


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
def test_a_scaler_that_skips_every_step_ends_the_run(nonfinite: str) -> None:
    """It lowers its factor at each; one that is taken begins the count anew."""
    scaled = SimpleNamespace(strategy=SimpleNamespace(precision=SimpleNamespace(scaler=object())))
    run: Any = SimpleNamespace(config=SimpleNamespace(nonfinite=nonfinite), fabric=scaled)
    watch = NonFinite(run)
    losses = [StepLoss(step, 1.0, 1.0, 0.0, is_skipped=step != 20) for step in range(100)]
    assert watch.account(losses[:30]) == []
    assert watch.account(losses[30:70]) == []
    message = r"^step 70: gradients overflowed in each of the last 50 steps, .*--precision bf16"
    with pytest.raises(Diverged, match=message):
        watch.account(losses[70:])


def test_the_clips_of_all_micro_batches_of_the_process_that_failed_are_named(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    videos = Manifest.read(config.data.manifest).split("train")
    plain = SimpleNamespace(world_size=2, strategy=SimpleNamespace(precision=None))
    run: Any = SimpleNamespace(
        config=replace(config, accumulate=2), plan=config.plan(), train_videos=videos, fabric=plain
    )
    monkeypatch.setattr(nonfinite, "gathered", lambda own, _: [True, own])
    step = config.plan()[7]
    parts = [
        StepPart(
            step,
            config.baseline,
            micro_batch=micro,
            micro_batches=2,
            rank=1,
            world_size=2,
            seed=config.seed,
        )
        for micro in (0, 1)
    ]
    requests = [clip_requests(part, num_videos=len(videos)) for part in parts]
    expected = [videos.videos[request.index].path for part in requests for request in part]
    assert len(expected) == step.batch_size / 2
    row = NonFinite(run)._row(StepLoss(step.index, math.nan, math.nan, 0.0))
    assert row["clips"] == expected
