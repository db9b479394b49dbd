"""The precision that a run takes by itself."""

from __future__ import annotations

import pytest
import torch

from vcycle.devices.precision import fastest_precision


@pytest.mark.parametrize(
    ("capabilities", "model", "precision"),
    [
        ({"amx_bf16": True}, "resnet3d_tiny", "bf16-mixed"),
        ({"amx_bf16": False, "avx512_bf16": True}, "resnet3d_tiny", "bf16-mixed"),
        ({"amx_bf16": False, "avx512_bf16": False}, "resnet3d_tiny", "32-true"),
        ({}, "resnet3d_tiny", "32-true"),
        ({"amx_bf16": True}, "slowfast_r50", "32-true"),  # not shown to be as accurate
    ],
)
def test_bfloat16_where_it_is_fast_and_as_accurate(
    capabilities: dict[str, bool],
    model: str,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert fastest_precision(model, least_frames=2) == precision


def test_clips_of_one_frame_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert fastest_precision("resnet3d_tiny", least_frames=1) == "32-true"


@pytest.mark.parametrize("model", ["resnet3d_tiny", "slowfast_r50_8x8"])
def test_a_gpu_takes_what_torch_convolves_in_there(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fastest_precision(model, least_frames=1) == "tf32"


def test_an_older_torch_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert fastest_precision("resnet3d_tiny", least_frames=2) == "32-true"
