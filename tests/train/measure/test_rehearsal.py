"""The rehearsal: the run's own passes on random clips, before step 0."""

from __future__ import annotations

import io
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from tests.train.small_memory import SmallMemory
from vcycle.config.augmentation import Augmentation
from vcycle.config.run import RunConfig
from vcycle.data.batch import Batch
from vcycle.data.manifest import Manifest
from vcycle.models.dropout import SampleDropout
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import MiniBatch
from vcycle.schedule.shape import Shape
from vcycle.train.augment import augment
from vcycle.train.gradients import Gradients
from vcycle.train.measure import rehearsal, rehearsed_steps
from vcycle.train.measure.rehearsal import unchanged
from vcycle.train.run import train


def test_the_rehearsal_cuts_what_fits_once_but_not_again(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, which makes further passes: by then the first may have left memory in pieces."""
    memory, passes = SmallMemory(monkeypatch, 16, None), Counter[int]()
    check = memory.check

    def check_later(count: int) -> None:
        passes[count] += 1
        if passes[count] > 1:
            check(count)

    monkeypatch.setattr(memory, "check", check_later)
    monkeypatch.setattr(rehearsed_steps.RehearsedSteps, "on_cpu", False)
    console = Console(file=io.StringIO(), width=200)
    train(auto, tmp_path / "run", console=console, dry_run=True)
    assert memory.failures
    assert "64 x 2x16x16 goes through the model in 4 pieces" in console.file.getvalue()


def test_the_rehearsal_measures_the_peak_of_each_batch_with_optimizer_state(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the counters of CUDA's allocator, and a look at what is held by then."""
    states = []
    step = rehearsed_steps.RehearsedSteps.measure

    def measure(steps: Any, kind: MiniBatch) -> tuple[float, int | None]:
        states.append(len(optimizers[0].state))
        return step(steps, kind)[0], 2**30 * kind.batch_size

    optimizers: list[torch.optim.Optimizer] = []
    rehearse = rehearsal.rehearse

    def kept(gradients: Any, optimizer: torch.optim.Optimizer, *rest: Any, **more: Any):  # type: ignore[no-untyped-def]
        optimizers.append(optimizer)
        found = rehearse(gradients, optimizer, *rest, **more)
        assert not optimizer.state
        return found

    monkeypatch.setattr("vcycle.train.measure.measuring.rehearse", kept)
    monkeypatch.setattr(rehearsed_steps.RehearsedSteps, "measure", measure)
    console = Console(file=io.StringIO(), width=200)
    train(auto, tmp_path / "run", console=console, dry_run=True)
    assert min(states) > 10
    assert "Peak memory, GiB: 64 x 2x16x16 64, 32 x 4x16x16 32" in console.file.getvalue()


def test_the_rehearsal_augments_whole_batches_as_the_loop_does(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are cut, too: memory has to hold all of one while it is augmented."""
    settings = Augmentation(num_ops=1, erase=0.5, mixup=0.8)
    whole: set[tuple[int, Shape]] = set()

    def recorded(batch: Batch, given: Augmentation, *, num_classes: int) -> Batch:
        assert given == settings
        whole.add((len(batch), batch.shape))
        out = augment(batch, given, num_classes=num_classes)
        assert not torch.equal(out.clips, batch.clips)
        return out

    monkeypatch.setattr(rehearsed_steps, "augment", recorded)
    memory = SmallMemory(monkeypatch, 16, None)
    train(replace(auto, augmentation=settings), tmp_path / "run", dry_run=True)
    assert memory.failures
    assert whole >= {(each.batch_size, each.shape) for each in auto.plan().mini_batches()}
    assert (16, Shape(2, 16, 16)) not in whole  # a piece


@pytest.mark.parametrize("multi_label", [False, True])
def test_rehearsed_steps_have_the_loss_and_the_dropout_of_the_run(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multi_label: bool
) -> None:
    """Every kind of step; labels are of the first class."""
    whole = Manifest.read
    name = "binary_cross_entropy_with_logits" if multi_label else "cross_entropy"
    loss_of, drop = getattr(F, name), SampleDropout.forward
    losses: list[tuple[Tensor, dict[str, float]]] = []
    keyed: list[bool] = []

    def recorded(scores: Tensor, labels: Tensor, **settings: float) -> Tensor:
        losses.append((labels, settings))
        loss: Tensor = loss_of(scores, labels, **settings)
        return loss

    def dropped(layer: SampleDropout, input: Tensor) -> Tensor:
        if layer.training and torch.is_grad_enabled():
            keyed.append(layer._keys is not None and len(layer._keys) == len(input))
        return drop(layer, input)

    if multi_label:
        monkeypatch.setattr(
            Manifest, "read", lambda path: replace(whole(path), multi_label=multi_label)
        )
    monkeypatch.setattr(F, name, recorded)
    monkeypatch.setattr(SampleDropout, "forward", dropped)
    smoothing = 0.0 if multi_label else 0.1
    train(replace(auto, label_smoothing=smoothing), tmp_path / "run", dry_run=True)
    num_kinds = len(auto.plan().mini_batches())
    assert len(losses) >= num_kinds
    assert sum(keyed) >= num_kinds
    for labels, settings in losses:
        classes = labels.argmax(1) if multi_label else labels
        assert classes.dtype == torch.int64
        assert not classes.any()
        assert settings == ({} if multi_label else {"label_smoothing": smoothing})


def test_only_augmented_clips_are_held_while_memory_is_measured(
    auto: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the loop, whose batches are augmented before their first pass."""
    raw: list[weakref.ref[Tensor]] = []
    draw, passes = rehearsed_steps.random_pixels, Gradients.batch
    alive: list[bool] = []

    def drawn(*arguments: Any) -> Tensor:
        pixels = draw(*arguments)
        raw.append(weakref.ref(pixels))
        return pixels

    def passed(self: Gradients, *arguments: Any, **others: Any) -> Tensor:
        alive.append(raw[-1]() is not None)
        return passes(self, *arguments, **others)

    monkeypatch.setattr(rehearsed_steps, "random_pixels", drawn)
    monkeypatch.setattr(Gradients, "batch", passed)
    settings = Augmentation(erase=1.0)
    train(replace(auto, augmentation=settings), tmp_path / "run", dry_run=True)
    assert len(alive) >= len(auto.plan().mini_batches())
    assert not any(alive)


def test_a_short_run_passes_hardly_more_often_through_a_kind_than_it_trains_on_it(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, seen = Gradients.batch, Counter[tuple[Shape, int, int | None]]()

    def counted(self: Gradients, kind: MiniBatch, batch: Batch, **others: Any) -> Tensor:
        seen[kind.shape, kind.batch_size, kind.norm_group] += 1
        return passes(self, kind, batch, **others)

    monkeypatch.setattr(Gradients, "batch", counted)
    train(config, tmp_path / "run", dry_run=True)
    for kind in config.plan().mini_batches():
        passed = seen[kind.shape, kind.batch_size, kind.norm_group]
        assert 2 <= passed <= max(2, kind.steps)


class Pictures(nn.Module):
    """It pools nothing."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Conv3d(3, num_classes, 1)

    def forward(self, clips: Tensor) -> Tensor:
        return self.head(clips)


def test_scores_of_a_wrong_shape_are_named_before_a_loss_is_taken(
    config: RunConfig, tmp_path: Path
) -> None:
    model = replace(config.model, name=f"{__name__}:Pictures", options={})
    with pytest.raises(ValueError, match=r"^model: at shape 2x16x16 it returns "):
        train(replace(config, model=model), tmp_path / "run", dry_run=True)


def with_normalised_head(num_classes: int) -> nn.Module:
    pooled = (nn.AdaptiveAvgPool3d(1), nn.Flatten())
    return nn.Sequential(*pooled, nn.BatchNorm1d(3), nn.Linear(3, num_classes))


def test_a_batch_norm_that_gets_a_single_clip_is_named(config: RunConfig, tmp_path: Path) -> None:
    model = replace(config.model, name=f"{__name__}:with_normalised_head", options={})
    baseline = replace(config.baseline, batch_size=1)
    schedule = replace(Multigrid.named("off"), norm_group=None)
    config = replace(config, model=model, baseline=baseline, multigrid=schedule)
    message = (
        r"8x32x32 layer '2' \(BatchNorm1d\) fails: .*; .* give a larger --batch-size, or build"
    )
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run", dry_run=True)


class Remembering(nn.Module):
    """Buffers that no checkpoint keeps: changed in place, replaced, and of the last clip's size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3), persistent=False)
        self.register_buffer("memory", torch.zeros(4, 3), persistent=False)
        self.register_buffer("positions", torch.zeros(0), persistent=False)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, clips: Tensor) -> Tensor:
        means = clips.mean((2, 3, 4))
        self.centre.add_(means.mean(0))
        self.memory = torch.cat([self.memory[1:], means[:1]])
        self.positions = torch.arange(clips.shape[2])
        self.count = self.count + 1
        return means


def test_no_buffer_of_a_fixed_size_keeps_what_the_rehearsal_wrote() -> None:
    network = Remembering()
    before = {name: (buffer, buffer.clone()) for name, buffer in network.named_buffers()}
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
    with unchanged(network, optimizer, "own"):
        network(torch.ones(2, 3, 4, 8, 8))
        with torch.inference_mode():
            network.eval()(torch.ones(2, 3, 8, 8, 8))
        assert network.centre.sum() > 0
    assert len(network.positions) == 8
    for name in ("centre", "memory", "count"):
        buffer, value = before[name]
        assert getattr(network, name) is buffer
        torch.testing.assert_close(buffer, value, rtol=0, atol=0)


class Positioned(nn.Module):
    """It keeps a table of the size that the last clip had; at first that of the longest."""

    def __init__(self, num_classes: int, persistent: bool) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)
        self.register_buffer("positions", torch.linspace(0, 1, 8), persistent=persistent)

    def forward(self, clips: Tensor) -> Tensor:
        if len(self.positions) != clips.shape[2]:
            self.positions = torch.linspace(0, 1, clips.shape[2])
        return self.head((clips * self.positions[:, None, None]).mean((2, 3, 4)))


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_changes_its_size_is_to_be_in_no_checkpoint(
    config: RunConfig, tmp_path: Path, persistent: bool
) -> None:
    options = {"persistent": persistent}
    model = replace(config.model, name=f"{__name__}:Positioned", options=options)
    config = replace(config, model=model)
    if not persistent:
        assert train(config, tmp_path / "run", dry_run=True) == {}
        return
    message = r"^model: buffer 'positions' changes its size with the clip; register it with persis"
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run", dry_run=True)


class Rotated(nn.Module):
    """A table of rotations, which safetensors cannot hold."""

    def __init__(self, num_classes: int, persistent: bool) -> None:
        super().__init__()
        self.head = nn.Linear(3, num_classes)
        table = torch.polar(torch.ones(4, dtype=torch.float64), torch.arange(4.0).double())
        self.register_buffer("rotations", table, persistent=persistent)

    def forward(self, clips: Tensor) -> Tensor:
        return self.head(clips.mean((2, 3, 4)))


@pytest.mark.parametrize("persistent", [True, False])
def test_state_that_no_checkpoint_could_hold_is_said_before_the_first_step(
    config: RunConfig, tmp_path: Path, persistent: bool
) -> None:
    model = replace(config.model, name=f"{__name__}:Rotated", options={"persistent": persistent})
    config = replace(config, model=model)
    if not persistent:
        assert train(config, tmp_path / "run", dry_run=True) == {}
        return
    with pytest.raises(ValueError, match=r"safetensors cannot hold its state .*persistent=False"):
        train(config, tmp_path / "run", dry_run=True)


@pytest.mark.parametrize("compiles", [False, True])
def test_a_view_is_timed_once_its_code_is_compiled(
    monkeypatch: pytest.MonkeyPatch, compiles: bool
) -> None:
    """With one process a second pass is not made if the first took long, as a compiler does."""
    passes: list[int] = []
    network = nn.Conv3d(3, 4, 1)
    network.register_forward_hook(lambda *_: passes.append(1))
    before: list[int] = []

    def timed(once: Any, *_: Any, **__: Any) -> float:
        before.append(len(passes))
        once()
        return 8.0

    monkeypatch.setattr(rehearsal, "repeated", timed)
    fabric = Fabric(accelerator="cpu", devices=1)
    seconds = rehearsal._view_seconds(network, 16, Shape(2, 4, 4), fabric=fabric, compiles=compiles)
    assert (before, seconds) == ([int(compiles)], 1.0)
