"""Fabric on this process's device, or in its place among several processes.

In: a RunConfig and the variables of torchrun or SLURM. Out: Fabric, launched.
"""

from __future__ import annotations

import logging
import os
import warnings
from typing import Literal

import torch

from vcycle.config.run import RunConfig
from vcycle.devices.fabric import (
    DDPStrategy,
    Fabric,
    LightningEnvironment,
    TorchElasticEnvironment,
)
from vcycle.devices.precision import set_precision
from vcycle.devices.process_group import join_process_group
from vcycle.devices.slurm import adopt_srun_tasks


def make_fabric(config: RunConfig) -> Fabric:
    """One process on one device, or this process's place among those of torchrun or ``srun``.

    Raises ValueError if a variable of theirs is missing, the machines have unequal numbers of
    processes, or there are fewer GPUs than processes.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    adopt_srun_tasks()
    local, world = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    accelerator: Literal["cuda", "cpu"] = "cuda" if torch.cuda.is_available() else "cpu"
    num_gpus = torch.cuda.device_count() if accelerator == "cuda" else local
    _check_launch(local, world, num_gpus=num_gpus)
    # The kernels of each shape are chosen by trying them, in the rehearsal.
    torch.backends.cudnn.benchmark = accelerator == "cuda"
    # No static_graph: it spares a search for unused parameters, which is not made here, and cannot
    # begin within no_sync, as accumulating micro-batches does.
    strategy = DDPStrategy(gradient_as_bucket_view=True) if world > 1 else "auto"
    # Named, for Fabric would look for others: a SLURM job has many tasks, its batch script is one.
    environment = TorchElasticEnvironment() if world > 1 else LightningEnvironment()
    # Fabric would advise TF32, which is a precision to ask for here.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=accelerator,
        devices=local,
        num_nodes=world // local,
        strategy=strategy,
        plugins=[set_precision(config.precision, accelerator), environment],
    )
    if world > 1:
        # Of 1x1x1 kernels in channels-last, whose strides have two names.
        warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
        join_process_group(fabric.device)  # which Fabric finds, and makes none
    fabric.launch()
    return fabric


def _check_launch(local: int, world: int, *, num_gpus: int) -> None:
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if world > 1 and name not in os.environ]
    if missing:
        raise ValueError(
            f"WORLD_SIZE {world}: {' and '.join(missing)} not set beside it; start with torchrun "
            f"or srun, which set all of them"
        )
    if world % local:
        raise ValueError(
            f"{world} processes, {local} of them here: every machine needs as many; give all the "
            f"same --nproc-per-node"
        )
    if num_gpus < local:
        raise ValueError(
            f"LOCAL_WORLD_SIZE {local}: each process needs a GPU of its own, and sees {num_gpus}; "
            f"start {num_gpus}, or let each see all of its machine (srun --gpus-per-node)"
        )
