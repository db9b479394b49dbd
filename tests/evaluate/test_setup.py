"""Which layers a network has."""

from __future__ import annotations

from pathlib import Path

from lightning_fabric import Fabric
from torch import nn

from tests.conftest import small_run
from vcycle.evaluate.setup import make_network


def test_layers_of_torch_are_replaced_by_ours() -> None:
    config = small_run(Path("videos"))
    network = make_network(config, num_classes=3, fabric=Fabric(accelerator="cpu", devices=1))
    plain = {nn.Conv3d, nn.BatchNorm3d, nn.Dropout}
    assert not plain & {type(layer) for layer in network.modules()}
