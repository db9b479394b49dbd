"""Precisions: what each one switches, and fp16 whose gradients overflow now and then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning_fabric.plugins import MixedPrecision

from vcycle.config.run import Checkpoint, Evaluation, Optimizer, RunConfig
from vcycle.data.json_lines import read_rows
from vcycle.devices import precision
from vcycle.devices.precision import set_precision
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models.tiny import TinyResNet3d
from vcycle.train.checkpoint import clear_after
from vcycle.train.optim import fuses, load_optimizer, make_optimizer
from vcycle.train.run import train


@pytest.mark.parametrize(
    ("name", "device", "with_tf32"),
    [
        ("32-true", "cuda", False),
        ("tf32", "cuda", True),
        ("tf32", "cpu", False),
        ("bf16-mixed", "cuda", False),
        ("16-mixed", "cuda", False),
    ],
)
def test_only_the_precision_of_that_name_allows_tf32(
    name: Any, device: Any, with_tf32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision.torch.amp, "GradScaler", lambda device: f"scaler on {device}")
    try:
        plugin = set_precision(name, device)
        assert torch.backends.cudnn.allow_tf32 == with_tf32
        assert torch.backends.cuda.matmul.allow_tf32 == with_tf32
        assert isinstance(plugin, MixedPrecision) == name.endswith("mixed")
        if name == "16-mixed":
            assert plugin.scaler == "scaler on cuda"
    finally:
        set_precision("32-true", "cpu")


def test_steps_whose_gradients_overflow_are_skipped_counted_and_resumed(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scale begins far too high: the first steps are not taken, and the plan goes on."""
    scaler = torch.amp.GradScaler
    monkeypatch.setattr(
        precision.torch.amp, "GradScaler", lambda device: scaler(device, init_scale=2.0**34)
    )
    fp16 = replace(
        config,
        precision="16-mixed",
        checkpoint=Checkpoint(steps=5, keep=10),
        evaluation=Evaluation(1, batch_size=6),
    )
    result = train(fp16, tmp_path / "whole")
    rows = read_rows(tmp_path / "whole" / "metrics.jsonl")
    assert len(rows) == len(fp16.plan())
    skipped = ["skipped" in row for row in rows]
    assert all(skipped[:6])
    assert not all(skipped)
    assert result["skipped_steps"] == sum(skipped)
    state = load_checkpoint(tmp_path / "whole" / "checkpoint.pt")
    assert state["scaler"]["scale"] == 2.0 ** (34 - sum(skipped))

    (tmp_path / "whole").rename(tmp_path / "cut")
    newest = tmp_path / "cut" / "checkpoints" / "step_00000005.pt"
    clear_after(tmp_path / "cut", next_step=5, resumed=newest)
    (tmp_path / "cut" / "result.json").unlink()
    assert train(fp16, tmp_path / "cut", resume=True)["skipped_steps"] == sum(skipped)
    again = read_rows(tmp_path / "cut" / "metrics.jsonl")
    assert [row["loss"] for row in again] == [row["loss"] for row in rows]
    resumed = load_checkpoint(tmp_path / "cut" / "checkpoint.pt")
    assert resumed["scaler"] == state["scaler"]


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [("cuda", "bf16-mixed", True), ("cuda", "16-mixed", None), ("cpu", "32-true", None)],
)
def test_optimizers_are_fused_on_gpus_that_need_no_scaler(
    device: str, precision: str, expected: bool | None
) -> None:
    assert fuses(torch.device(device), precision) is expected


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_fused_optimizer_goes_on_from_one_that_is_not_and_back(name: Any) -> None:
    def steps(fused: list[bool | None]) -> torch.Tensor:
        """A step by each of several optimizers, which resume from one another."""
        torch.manual_seed(0)
        model, state = TinyResNet3d(num_classes=2, width=1), None
        for each in fused:
            optimizer = make_optimizer(model, Optimizer(name), fused=each)
            if state is not None:
                load_optimizer(optimizer, state)
            for group in optimizer.param_groups:
                assert group["fused"] == each
                group["lr"] = 0.1
            for parameter in model.parameters():
                parameter.grad = parameter.detach().clone()
            optimizer.step()
            state = optimizer.state_dict()
        return model.stem.weight.detach()

    torch.testing.assert_close(steps([None, True, None]), steps([None, None, None]))
