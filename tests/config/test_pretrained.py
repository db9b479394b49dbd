"""Which published weights fit a model, and what is said if a run lacks those it starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from vcycle.config.pretrained import check_weights, published_weights
from vcycle.config.recipes import recipe
from vcycle.config.run import Model, RunConfig
from vcycle.models.entries import MODELS


def finetune(**model: str) -> RunConfig:
    config = recipe("finetune", num_videos=100)
    return replace(config, model=replace(config.model, **model))


def refusal(config: RunConfig) -> str:
    with pytest.raises(ValueError, match=r"model\.weights") as error:
        check_weights(config)
    return str(error.value)


def test_a_file_and_its_source_are_named() -> None:
    missing = refusal(finetune(name="slow_r50_8x8"))
    assert "starts from kinetics400 weights; slow_r50_8x8 takes SLOW_8x8_R50.pyth of" in missing
    assert "github.com/facebookresearch/pytorchvideo" in missing
    images = refusal(recipe("k400-i3d-r50"))
    assert "starts from imagenet weights; i3d_r50_16f_paper takes ResNet-50 of" in images
    not_there = refusal(finetune(name="slowfast_r101", weights="a/b.pyth"))
    assert "model.weights a/b.pyth: no such file; slowfast_r101 takes SLOWFAST_8x8" in not_there


def test_a_model_without_published_weights_is_told_which_have_some() -> None:
    message = refusal(finetune(name="resnet3d_tiny"))
    assert "none are known for resnet3d_tiny" in message
    assert "slowfast_r50, slowfast_r101, " in message
    assert "i3d_nl_r50" not in message


def test_nothing_is_said_of_weights_that_are_there_or_not_needed(tmp_path: Path) -> None:
    (tmp_path / "a.pyth").touch()
    check_weights(finetune(weights=str(tmp_path / "a.pyth")))
    check_weights(recipe("scratch", num_videos=100))


def test_a_folder_in_place_of_a_file_names_the_one_in_it(tmp_path: Path) -> None:
    config = finetune(weights=str(tmp_path))
    given = f"model.weights {tmp_path}: a folder; give "
    assert refusal(config) == f"{given}a file of weights in it"
    (tmp_path / "model.safetensors").touch()
    assert refusal(config) == f"{given}{tmp_path / 'model.safetensors'}"


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_the_files_are_of_the_models_depth(entry: Model) -> None:
    kinetics = published_weights(Model(entry.name), "kinetics400")
    imagenet = published_weights(Model(entry.name), "imagenet")
    depth = "101" if "r101" in entry.name else "50"
    assert kinetics is None or f"_R{depth}" in kinetics
    assert (imagenet is None) == ("tiny" in entry.name)
    assert imagenet is None or f"ResNet-{depth} of pytorch.org" in imagenet
