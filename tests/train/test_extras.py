"""Runs with all that a run can do besides the paper's recipe: exact, resumed, over processes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric

from tests.train.test_distributed import end_of, go_back, run_config, start_two
from vcycle.config.augmentation import Augmentation
from vcycle.config.run import Checkpoint, Evaluation, Model, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.load_model import load_model
from vcycle.evaluate.run import score_run
from vcycle.evaluate.setup import make_network
from vcycle.models.checkpoint_files import read_state_dict
from vcycle.schedule.multigrid import Multigrid
from vcycle.train.run import train
from vcycle.train.start import check_extras


def with_everything(config: RunConfig, optimizer: str = "sgd") -> RunConfig:
    return replace(
        config,
        model=Model("resnet3d_tiny", {"width": 4, "dropout": 0.5}, freeze=("stem*",)),
        optimizer=Optimizer(optimizer, clip_norm=0.5, layer_decay=0.8),  # type: ignore[arg-type]
        augmentation=Augmentation(num_ops=2, erase=0.25, mixup=0.8, cutmix=1.0, grow=True),
        label_smoothing=0.1,
        ema_decay=0.9,
        evaluation=replace(config.evaluation, precise_bn=1),
    )


def rows_of(folder: Path) -> list[tuple[float, float]]:
    return [(row["loss"], row["gradient_norm"]) for row in read_rows(folder / "metrics.jsonl")]


def states(folder: Path) -> dict[str, torch.Tensor]:
    """The last weights, and the averaged ones."""
    state = load_checkpoint(folder / "checkpoint.pt")
    average = {f"average.{name}": value for name, value in state["ema"]["average"].items()}
    return {**state["model"], **average}


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_a_killed_run_goes_on_to_the_last_bit(
    config: RunConfig, tmp_path: Path, optimizer: str
) -> None:
    config = replace(with_everything(config, optimizer), checkpoint=Checkpoint(steps=1, keep=100))
    whole = train(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    go_back(tmp_path / "cut", next_step=7)
    cut = train(config, tmp_path / "cut", resume="auto")
    assert rows_of(tmp_path / "cut") == rows_of(tmp_path / "whole")
    ours, theirs = states(tmp_path / "cut"), states(tmp_path / "whole")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert (cut["top1"], cut["clipped_steps"]) == (whole["top1"], whole["clipped_steps"])
    kept = load_checkpoint(tmp_path / "whole" / "checkpoint.pt")["optimizer"]["state"].values()
    counts = {int(state["step"]) for state in kept if "step" in state}
    # Those of the rehearsal do not count.
    assert counts == {len(config.plan())}


@pytest.mark.xdist_group("processes")
def test_two_processes_and_micro_batches_follow_one(synthetic_videos: Path, tmp_path: Path) -> None:
    config = with_everything(run_config(synthetic_videos, Model()), "muon")
    config = replace(
        config,
        multigrid=replace(config.multigrid, norm_group=2),
        evaluation=replace(config.evaluation, precise_bn=0),  # its variances are those of parts
    )
    train(config, tmp_path / "one")
    two = start_two(config, tmp_path, name="two")
    error = end_of(two)
    assert two.returncode == 0, error
    train(replace(config, accumulate=2), tmp_path / "parts")
    one = rows_of(tmp_path / "one")
    for name in ("two", "parts"):
        for ours, theirs in zip(rows_of(tmp_path / name), one, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)
        expected = states(tmp_path / "one")
        for key, value in states(tmp_path / name).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-3, atol=1e-4, msg=key)


def test_averaged_weights_are_what_is_validated_and_loaded(
    config: RunConfig, tmp_path: Path
) -> None:
    config = with_everything(replace(config, multigrid=Multigrid.off(steps=6, norm_group=4)))
    result = train(config, tmp_path / "run")
    state = load_checkpoint(tmp_path / "run" / "checkpoint.pt")
    average = state["ema"]["average"]
    last = load_model(tmp_path / "run", averaged=False)
    assert last.path.suffix == ".pt"
    for path in ("run", "run/checkpoint.pt", "run/checkpoint.safetensors"):
        loaded = load_model(tmp_path / path)
        for name, value in loaded.module.state_dict().items():
            assert torch.equal(value, average[name])
    for suffix in ("pt", "safetensors"):  # as weights to begin from, too
        weights, _ = read_state_dict(tmp_path / f"run/checkpoint.{suffix}")
        torch.testing.assert_close(weights, average, rtol=0, atol=0)
    assert not torch.equal(last.module.head.weight, average["head.weight"])
    assert torch.equal(last.module.head.weight, state["model"]["head.weight"])
    with pytest.raises(ValueError, match=r"the validated weights alone; give the .pt file beside"):
        load_model(tmp_path / "run" / "checkpoint.safetensors", averaged=False)
    again = replace(config, evaluation=Evaluation(batch_size=6))
    scored = score_run(again, tmp_path / "run", split="val")
    assert scored.values["top1"] == result["top1"]
    # Norm statistics that are estimated again are the same, and those of frozen norms stay.
    estimated = score_run(config, tmp_path / "run", split="val")
    assert estimated.values["loss"] == pytest.approx(result["loss"], rel=1e-6)
    # What was frozen is as it was built, also in the average and its batch norms.
    fresh = make_network(
        config, num_classes=12, fabric=Fabric(accelerator="cpu", devices=1)
    ).state_dict()
    frozen = [name for name in fresh if name.startswith("stem")]
    assert len(frozen) == 6
    for name in frozen:
        torch.testing.assert_close(state["model"][name], fresh[name], rtol=0, atol=0)
        torch.testing.assert_close(average[name], fresh[name], rtol=0, atol=0)


def test_only_gradients_that_are_too_long_are_clipped(config: RunConfig, tmp_path: Path) -> None:
    config = replace(config, multigrid=Multigrid.off(steps=6, norm_group=4))
    train(config, tmp_path / "plain")
    plain = read_rows(tmp_path / "plain" / "metrics.jsonl")
    assert not any("gradient_norm" in row for row in plain)
    long = replace(config, optimizer=Optimizer(clip_norm=1e6))
    assert train(long, tmp_path / "long")["clipped_steps"] == 0
    losses, norms = zip(*rows_of(tmp_path / "long"), strict=True)
    assert list(losses) == [row["loss"] for row in plain]
    median = sorted(norms)[3]
    short = replace(config, optimizer=Optimizer(clip_norm=median))
    result = train(short, tmp_path / "short")
    clipped = [norm > median for _, norm in rows_of(tmp_path / "short")]
    assert 0 < result["clipped_steps"] == sum(clipped)
    first = clipped.index(True)  # until the step after it, the runs are one
    shorter, longer = rows_of(tmp_path / "short"), rows_of(tmp_path / "long")
    assert shorter[: first + 1] == longer[: first + 1]
    assert shorter != longer


def test_what_does_not_fit_is_refused_before_step_0(config: RunConfig, tmp_path: Path) -> None:
    wrong = {
        "clips are mixed in pairs, and 4 processes x micro-batches take 1 each of a": replace(
            config,
            augmentation=Augmentation(mixup=0.8),
            accumulate=4,
            multigrid=replace(config.multigrid, norm_group=1),
        ),
        "freeze stm: the model has no such layer; near it: stem": replace(
            config, model=replace(config.model, freeze=("stm",))
        ),
        "model: no parameters to train": replace(
            config, model=replace(config.model, freeze=("*",))
        ),
    }
    for message, each in wrong.items():
        with pytest.raises(ValueError, match=message) as caught:
            train(each, tmp_path / "run")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
    several = replace(Manifest.read(config.data.manifest), multi_label=True)
    smooth, fabric = replace(config, label_smoothing=0.1), Fabric(accelerator="cpu", devices=1)
    with pytest.raises(ValueError, match=r"label_smoothing 0.1: these videos may show several"):
        check_extras(smooth, several, fabric)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Optimizer(clip_norm=-1), "optimizer.clip_norm -1: give 0 or more"),
        (lambda: Optimizer(layer_decay=0), "optimizer.layer_decay 0: give a number above 0"),
        (lambda: Optimizer(layer_decay=1.1), "optimizer.layer_decay 1.1: give a number above 0"),
    ],
)
def test_wrong_settings(build: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["label_smoothing", "ema_decay"])
def test_shares_of_one_are_refused(config: RunConfig, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} 1.0: give a number from 0 to below 1"):
        replace(config, **{name: 1.0})
