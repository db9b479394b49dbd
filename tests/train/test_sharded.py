"""Optimizers and averages of processes that each hold parts of the parameters, by fully_shard."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed as dist, multiprocessing, nn
from torch.distributed.fsdp import fully_shard

from vcycle.train.ema import WeightAverage
from vcycle.train.large_batch import Muon


class Tokens(nn.Module):
    """With fewer rows than processes: a class token, and a classifier of one class."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 2, 6))
        self.layer = nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 1))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x * self.token.mean(1))
        return scores


def _trained(*, is_sharded: bool) -> tuple[nn.Module, nn.Module]:
    """A network after three steps, and its average."""
    torch.manual_seed(0)
    model = Tokens()
    average = WeightAverage(model, decay=0.5)
    if is_sharded:
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        for network in (model, average.module):
            fully_shard(network, mesh=mesh)
    optimizer = Muon(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(3):
        model(torch.randn(8, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    return model, average.module


def _compare(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    for whole, parts in zip(_trained(is_sharded=False), _trained(is_sharded=True), strict=True):
        for name, part in parts.state_dict().items():
            full = part.full_tensor() if hasattr(part, "full_tensor") else part
            torch.testing.assert_close(full, whole.state_dict()[name], rtol=1e-4, atol=1e-5)
    del whole, parts
    gc.collect()
    (folder / f"{rank}").touch()
    os._exit(0)  # what destructs a group may wait for the interpreter, which this thread has


@pytest.mark.xdist_group("processes")
def test_muon_and_averages_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    multiprocessing.start_processes(_compare, args=(tmp_path,), nprocs=2, start_method="spawn")
    assert {"0", "1"} < {file.name for file in tmp_path.iterdir()}
