"""Which layers a network has; which buffers processes exchange: none but those that may differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from lightning_fabric import Fabric
from torch import nn

from tests.conftest import small_run
from vcycle.evaluate import setup
from vcycle.evaluate.setup import make_network, stop_broadcasting_buffers
from vcycle.models import convert_batch_norm


class Wrapper(nn.Module):
    """In the place of DDP, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = True


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (convert_batch_norm(nn.Sequential(nn.Conv3d(3, 2, 1), nn.BatchNorm3d(2))), False),
        (nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)), False),
        (nn.Sequential(nn.BatchNorm3d(2)), True),
        (convert_batch_norm(nn.Sequential(nn.BatchNorm3d(2), nn.BatchNorm1d(2))), True),
    ],
)
def test_buffers_that_processes_have_alike_are_not_broadcast(
    network: nn.Module, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "DistributedDataParallel", Wrapper)
    model = Wrapper(network)
    stop_broadcasting_buffers(nn.Sequential(model))
    assert model.broadcast_buffers == expected


def test_layers_of_torch_are_replaced_by_ours() -> None:
    config = small_run(Path("videos"))
    network = make_network(config, num_classes=3, fabric=Fabric(accelerator="cpu", devices=1))
    plain = {nn.Conv3d, nn.BatchNorm3d, nn.Dropout}
    assert not plain & {type(layer) for layer in network.modules()}
