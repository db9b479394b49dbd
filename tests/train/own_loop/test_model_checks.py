"""Processes that train models of their own are told of, once."""

from __future__ import annotations

import warnings
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import vcycle
from tests.train.plans import PLAN, batch_of


def _train(rank: int, store: str, is_wrapped: bool, said: str) -> None:
    """A process of two that takes a few steps, and writes down what it is told."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv3d(3, 4, 1), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    model = DistributedDataParallel(plain) if is_wrapped else plain
    optimizer = torch.optim.SGD(model.parameters(), lr=PLAN.baseline.learning_rate.base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in islice(PLAN, 6):
            batch = batch_of(step, world_size=2)
            vcycle.apply_step(batch, model=model, optimizer=optimizer)
            clips = vcycle.normalize(batch.clips) + rank  # each process has its own
            model(clips).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    Path(f"{said}{rank}").write_text("".join(f"{each.message}\n" for each in caught))
    dist.destroy_process_group()


@pytest.mark.parametrize("is_wrapped", [True, False])
def test_processes_whose_parameters_differ_are_told_of_once(
    tmp_path: Path, is_wrapped: bool
) -> None:
    said = tmp_path / "said"
    arguments = (str(tmp_path / "store"), is_wrapped, str(said))
    multiprocessing.start_processes(_train, args=arguments, nprocs=2, start_method="spawn")
    for rank in range(2):
        lines = Path(f"{said}{rank}").read_text().splitlines()
        alone = [line for line in lines if "differ between the 2 processes" in line]
        assert len(alone) == (not is_wrapped)
        assert all("wrap it in DistributedDataParallel" in line for line in alone)
