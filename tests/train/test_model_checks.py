"""Processes that train models of their own are told of, once; those of other runs are refused."""

from __future__ import annotations

import gc
import json
import os
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import vcycle
from tests.train.plans import PLAN, batch_of

OTHER_RUN = "batch of step 4: the seeds, plans or numbers of videos of the 2 processes differ; give"
ALONE = "its parameters differ between the 2 processes, as if each trained alone; wrap it in"


def _train_all(rank: int, folder: Path) -> None:
    """A process of two that trains models, and writes down how often it is told, or refused."""
    torch.set_num_threads(1 + rank)  # what is compared does not depend on it
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    counts = {}
    for kind in ("DDP", "FSDP", "alone", "alone, one skips"):
        counts[kind] = sum(ALONE in line for line in _train(rank, kind))
        gc.collect()  # no model outlives the group
    for kind, name in (("DDP", "seed"), ("FSDP", "run")):
        try:
            _train(rank, kind, **{name: rank})
        except ValueError as error:
            counts[f"{kind}, {name}"] = str(error).count(OTHER_RUN)
        gc.collect()
    (folder / f"{rank}.json").write_text(json.dumps(counts))
    dist.destroy_process_group()
    # What destructs a group waits for a thread of gloo's, which may wait for the interpreter, which
    # this thread has (pytorch/pytorch#179291): nothing that is left is destructed.
    os._exit(0)


def _train(rank: int, kind: str, **part: int) -> list[str]:
    """Take a few steps; what is warned of."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Conv3d(3, 64, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, 1000)
    )
    if kind == "DDP":
        model = DistributedDataParallel(model)
    if kind == "FSDP":
        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
        vcycle.check_model(model, vcycle.Shape(4, 8, 8), num_classes=1000)
        assert all(each.grad is None for each in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=PLAN.baseline.learning_rate.base)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in islice(PLAN, 7):
            batch = batch_of(step, world_size=2)
            assert batch.part is not None
            batch = replace(batch, part=replace(batch.part, rank=rank, **part))
            vcycle.apply_step(batch, model=model, optimizer=optimizer)
            clips = torch.randn(2, 3, 4, 8, 8, generator=torch.Generator().manual_seed(rank))
            model(clips).square().mean().backward()
            if kind != "alone, one skips" or rank or step.index != 2:
                optimizer.step()
                optimizer.zero_grad()
            else:  # as a gradient scaler does
                next(model.parameters()).grad.fill_(torch.inf)
    return [str(each.message) for each in caught]


def test_processes_whose_parameters_or_runs_differ_are_told_of_once(tmp_path: Path) -> None:
    multiprocessing.start_processes(_train_all, args=(tmp_path,), nprocs=2, start_method="spawn")
    for rank in range(2):
        counts = json.loads((tmp_path / f"{rank}.json").read_text())
        told = {"DDP": 0, "FSDP": 0, "alone": 1, "alone, one skips": 1}
        assert counts == {**told, "DDP, seed": 1, "FSDP, run": 1}
