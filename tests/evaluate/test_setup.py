"""Which layers a network has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import nn

from tests.conftest import small_run
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
