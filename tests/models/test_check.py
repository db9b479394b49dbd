"""Faults of a model are named before the first step, and the model is left as it was."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vcycle.models import (
    build_model,
    check_model,
    convert_batch_norm,
    set_norm_group,
    to_channels_last,
)
from vcycle.schedule.shape import Shape

SHAPES = [Shape(4, 16, 16), Shape(8, 32, 24)]


class Classifier(nn.Module):
    """A pooled classifier with one wrong thing."""

    def __init__(self, fault: str = "", *, zero: bool = False) -> None:
        super().__init__()
        self.fault = fault
        self.features = nn.Conv3d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm3d(4)
        self.dropout = nn.Dropout(0.5)
        size = 4 * 4 * 16 * 16 if fault == "fixed" else 4
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(size, 5))
        if zero:
            nn.init.zeros_(self.classifier[1].weight)

    def forward(self, clips: Tensor) -> Any:
        if self.fault == "in place":
            clips.mul_(2)
        if self.fault == "position":
            clips = clips + torch.zeros(4, 16, 16)
        x = self.dropout(self.norm(self.features(clips)).relu())
        if self.fault == "detach":
            x = x.detach()
        if self.fault == "no_grad":
            with torch.no_grad():
                return self.classifier(x.mean((2, 3, 4)))
        x = x.flatten(1) if self.fault == "fixed" else x.mean((2, 3, 4))
        scores = self.classifier(x)
        if self.fault == "nan":
            scores = scores / (scores - scores)
        if self.fault == "blind":
            scores = scores * 0
        if self.fault == "sqrt":
            scores = scores + ((clips - clips).abs().sum() ** 0.5)
        return {"logits": scores} if self.fault == "dictionary" else scores


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fixed", r"8x32x24 layer 'classifier.1' \(Linear\) fails: RuntimeError: mat1 and mat2"),
        ("position", "at shape 8x32x24 it fails: RuntimeError: The size of tensor"),
        ("nan", "at shape 4x16x16 scores are not finite"),
        ("dictionary", r"returns a dict; return the scores, a tensor of \(B, 5\)"),
        ("detach", "no gradient reaches the clips"),
        ("no_grad", "no gradient reaches the clips"),
        ("blind", "no gradient reaches the clips"),
        ("sqrt", "the gradient of the clips is not finite"),
    ],
)
def test_faults_are_named(fault: str, message: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(ValueError, match=message) as caught:
        check_model(Classifier(fault), SHAPES, num_classes=5)
    assert "\n" not in str(caught.value)


def test_a_wrong_number_of_classes() -> None:
    with pytest.raises(ValueError, match=r"returns \(2, 5\) for 2 clips; return \(2, 6\)"):
        check_model(Classifier(), SHAPES, num_classes=6)


def test_faults_that_are_none_pass() -> None:
    check_model(Classifier(zero=True), SHAPES, num_classes=5)
    check_model(Classifier("in place"), SHAPES, num_classes=5)


@pytest.mark.parametrize("fault", ["", "nan"])
def test_the_model_is_left_as_it_was(fault: str) -> None:
    model = convert_batch_norm(Classifier(fault)).eval()
    model.dropout.train()
    set_norm_group(model, 16)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random_state = torch.get_rng_state()
    if fault:
        with pytest.raises(ValueError, match="not finite"):
            check_model(model, SHAPES, num_classes=5)
    else:
        check_model(model, SHAPES, num_classes=5)
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not model.training
    assert model.dropout.training
    assert model.norm.norm_group == 16
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("fails", [False, True])
def test_reentrant_checkpoints_are_checked_and_gradients_stay(fails: bool) -> None:
    class Checkpointed(Classifier):
        def forward(self, clips: Tensor) -> Tensor:
            clips = self.features(clips)
            if not clips.requires_grad:  # torch warns of a checkpoint without gradients
                return self.classifier(clips.mean((2, 3, 4)))
            x = checkpoint(self.norm, clips, use_reentrant=True).mean((2, 3, 4))
            if fails:
                x.register_hook(Mock(side_effect=RuntimeError("in backward")))
            return self.classifier(x)

    model = Checkpointed()
    gradient = model.features.weight.grad = torch.ones_like(model.features.weight)
    if fails:
        with pytest.raises(RuntimeError, match="in backward"):
            check_model(model, SHAPES, num_classes=5)
    else:
        check_model(model, SHAPES, num_classes=5)
    assert model.features.weight.grad is gradient
    assert bool((gradient == 1).all())
    assert model.classifier[1].weight.grad is None


def test_models_of_the_paper_pass() -> None:
    for name in ("resnet3d_tiny", "slowfast_r50"):
        check_model(build_model(name, num_classes=5), SHAPES[:1], num_classes=5)


def test_a_table_of_zeros_does_not_hide_a_detached_model() -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Conv3d(3, 3, 1)
            self.table = nn.Parameter(torch.zeros(1, 4))
            self.head = nn.Linear(3, 4)

        def forward(self, clips: torch.Tensor) -> torch.Tensor:
            pooled = self.features(clips).mean((2, 3, 4))
            return self.head(pooled.detach()) + self.table + 0 * clips.mean()

    model = Detached()
    with pytest.raises(ValueError, match="no gradient reaches the clips"):
        check_model(model, [Shape(2, 8, 8)], num_classes=4)
    assert not model.table.any()
    model.features.requires_grad_(False)  # then all that is trained gets its gradient
    check_model(model, [Shape(2, 8, 8)], num_classes=4)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("softmax", "in evaluation, at shape 4x16x16, it returns probabilities; return scores"),
        ("tuple", "in evaluation, at shape 4x16x16, it returns a tuple; return the scores"),
        ("mixed", "at shape 4x16x16, the scores of a clip depend on the clips beside it"),
        ("assert", r"it fails: AssertionError: raise AssertionError \(test_check"),
        ("view", "fails: RuntimeError: view size is not compatible .* --channels_last false"),
    ],
)
def test_faults_of_evaluation_and_of_memory_are_named(fault: str, message: str) -> None:
    class Faulty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Conv3d(3, 5, 3, padding=1)
            to_channels_last(self)

        def forward(self, clips: Tensor) -> Any:
            if fault == "assert" and clips.shape[2] != 8:
                raise AssertionError
            x = self.features(clips)  # (B, 5, T, H, W)
            if fault == "view":
                return x.view(len(x), 5 * x.shape[2], -1).mean(2)
            if fault == "mixed":
                frames = x.mean((3, 4)).permute(2, 0, 1).reshape(-1, 5)  # (T * B, 5)
                return frames.view(len(x), -1, 5).mean(1)
            scores = x.mean((2, 3, 4))
            if fault == "softmax" and not self.training:
                return scores.softmax(1)
            return (scores, x) if fault == "tuple" and not self.training else scores

    with pytest.raises(ValueError, match=message) as caught:
        check_model(Faulty(), SHAPES, num_classes=5)
    assert "\n" not in str(caught.value)


def test_a_synchronised_norm_on_a_cpu_is_told_of_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several processes torch's raises this."""
    error = ValueError("SyncBatchNorm expected input tensor to be on GPU or privateuseone")
    monkeypatch.setattr(nn.SyncBatchNorm, "forward", Mock(side_effect=error))
    norm = nn.SyncBatchNorm(4)
    model = nn.Sequential(nn.Conv3d(3, 4, 1), norm, nn.AdaptiveAvgPool3d(1), nn.Flatten())
    with pytest.raises(
        ValueError, match=r"layer '1' \(Sync.*; build the model with nn.BatchNorm3d"
    ):
        check_model(model, [Shape(2, 8, 8)], num_classes=4)


def test_frozen_backbones_pass_and_cut_off_layers_are_named() -> None:
    class Probe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Conv3d(3, 4, 3)
            self.gate = nn.Parameter(torch.zeros(1))
            self.head = nn.Linear(4, 5)

        def forward(self, clips: Tensor) -> Tensor:
            with torch.no_grad():
                x = self.features(clips).mean((2, 3, 4))
            return self.head(x) * (1 + self.gate)

    model = Probe()
    with pytest.raises(ValueError, match=r"clips, nor 'features\.weight'; .* freeze what is bef"):
        check_model(model, SHAPES, num_classes=5)
    model.features.requires_grad_(False)
    check_model(model, SHAPES, num_classes=5)
    check_model(model, SHAPES, num_classes=5, num_clips=1)


def test_evaluation_is_checked_as_it_runs() -> None:
    """Without gradients, on the same random numbers; and what it writes is undone."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 5)
            self.register_buffer("calls", torch.zeros(()), persistent=False)

        def forward(self, clips: Tensor) -> Tensor:
            self.calls = self.calls + 1
            x = clips.mean((2, 3, 4))
            if not self.training:
                x = x.exp().mul_(2) + torch.rand_like(x)
            return self.head(x)

    model = Odd()
    check_model(model, SHAPES, num_classes=5)
    assert not model.calls.any()


def test_a_norm_without_statistics_may_mix_the_clips_of_a_batch() -> None:
    layers = [nn.Conv3d(3, 4, 3), nn.BatchNorm3d(4, track_running_stats=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 5))
    check_model(model, SHAPES, num_classes=5)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_layer_is_checked() -> None:
    scripted = torch.jit.script(nn.Conv3d(3, 5, 1))
    check_model(
        nn.Sequential(scripted, nn.AdaptiveAvgPool3d(1), nn.Flatten()), SHAPES, num_classes=5
    )
    with pytest.raises(ValueError, match=r"layer '1' \(Linear\) fails"):
        check_model(nn.Sequential(scripted, nn.Linear(7, 5)), SHAPES, num_classes=5)


def test_a_compiled_model_is_checked_by_the_one_within() -> None:
    check_model(torch.compile(Classifier(), backend="eager"), SHAPES, num_classes=5)
    with pytest.raises(ValueError, match=r"at shape 8x32x24 layer 'classifier\.1' "):
        check_model(torch.compile(Classifier("fixed"), backend="eager"), SHAPES, num_classes=5)


def test_shapes_that_are_none_are_refused() -> None:
    check_model(Classifier(), SHAPES[0], num_classes=5)
    with pytest.raises(TypeError, match=r"shapes of int: give plan\.shapes"):
        check_model(Classifier(), [4], num_classes=5)  # type: ignore[list-item]
