"""Which buffers processes exchange: none but those that may differ."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vcycle.devices import buffers
from vcycle.devices.buffers import stop_broadcasting_buffers
from vcycle.models import convert_batch_norm


class Wrapper(nn.Module):
    """In the place of DDP, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = True
        self.parameters_to_ignore = {"given"}


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
    monkeypatch.setattr(buffers, "DistributedDataParallel", Wrapper)
    model = Wrapper(network)
    stop_broadcasting_buffers(nn.Sequential(model))
    assert model.broadcast_buffers == expected


def test_buffers_that_no_checkpoint_keeps_are_not_broadcast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a table of positions, of another size in a process that has just scored clips."""
    monkeypatch.setattr(buffers, "DistributedDataParallel", Wrapper)
    network = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.Identity()))
    network[1][0].register_buffer("table", torch.zeros(3), persistent=False)
    network.register_buffer("clock", torch.zeros(1), persistent=False)
    model, without_norms = Wrapper(network), Wrapper(network[1])
    for each in (model, without_norms):
        stop_broadcasting_buffers(each)
    assert model.broadcast_buffers
    assert not without_norms.broadcast_buffers
    assert model.parameters_to_ignore == {"given", "1.0.table", "clock"}
