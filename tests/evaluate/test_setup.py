"""Which layers a network has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import nn

from tests.conftest import small_run
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import read_trained_model
from vcycle.evaluate.setup import make_network


def network_of(seed: int = 0) -> nn.Module:
    config = replace(small_run(Path("videos")), seed=seed)
    return make_network(config, num_classes=3, fabric=Fabric(accelerator="cpu", devices=1))


def test_the_seed_of_the_run_decides_the_first_weights() -> None:
    one, again, other = (network_of(seed).state_dict()["stem.weight"] for seed in (1, 1, 0))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_layers_of_torch_are_replaced_by_ours() -> None:
    network = network_of()
    plain = {nn.Conv3d, nn.BatchNorm3d, nn.Dropout}
    assert not plain & {type(layer) for layer in network.modules()}


def test_the_classifier_of_weights_is_that_of_their_classes(trained_run: Path) -> None:
    """By name and order, where the file says them; the rest is loaded all the same."""
    weights = trained_run / "best.safetensors"
    trained = read_trained_model(weights)
    config = small_run(Path("videos"))
    config = replace(config, model=replace(config.model, weights=str(weights)))
    fabric = Fabric(accelerator="cpu", devices=1)
    number = len(trained.classes)
    heads = []
    for classes in (trained.classes, trained.classes[::-1]):
        videos = Manifest(Path("videos"), classes, ())
        network = make_network(config, num_classes=number, fabric=fabric, videos=videos)
        state = network.state_dict()
        assert torch.equal(state["stem.weight"], load_file(weights)["stem.weight"])
        heads.append(torch.equal(state["head.weight"], load_file(weights)["head.weight"]))
    assert heads == [True, False]
