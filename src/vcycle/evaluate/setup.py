"""What every command that runs a model builds first: devices, the manifest, the network.

In: a RunConfig. Out: Fabric on this process's device, the Manifest checked against it, and the
network with sub-batch norm and the weights that it starts from.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from vcycle.config.pretrained import check_weights
from vcycle.config.run import RunConfig
from vcycle.data.decode.remote import check_store
from vcycle.data.manifest import Manifest
from vcycle.evaluate.fabric import (
    DDPStrategy,
    Fabric,
    LightningEnvironment,
    TorchElasticEnvironment,
)
from vcycle.evaluate.precision import set_precision
from vcycle.evaluate.process_group import join_process_group
from vcycle.evaluate.slurm import adopt_srun_tasks
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    convert_batch_norm,
    convert_convolutions,
    convert_dropout,
    defer_statistics,
    load_weights,
)


def make_fabric(config: RunConfig) -> Fabric:
    """One process on one device, or this process's place among those of torchrun or ``srun``."""
    if config.threads:
        torch.set_num_threads(config.threads)
    adopt_srun_tasks()
    local, world = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    accelerator: Literal["cuda", "cpu"] = "cuda" if torch.cuda.is_available() else "cpu"
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
        join_process_group(fabric.device)  # which Fabric finds, and makes none
    fabric.launch()
    return fabric


def stop_broadcasting_buffers(model: nn.Module) -> None:
    """Let a DDP model, or one that holds it, exchange buffers only if the processes' may differ.

    The running statistics of ``SubBatchNorm3d`` are committed alike in all of them.
    """
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            module.broadcast_buffers = has_other_buffers(module.module)


def has_other_buffers(network: nn.Module) -> bool:
    """Whether a network has buffers beside those of ``SubBatchNorm3d``."""
    return any(
        True
        for layer in network.modules()
        if not isinstance(layer, SubBatchNorm3d)
        for _ in layer.buffers(recurse=False)
    )


@contextmanager
def no_buffer_broadcasts(model: nn.Module) -> Iterator[None]:
    """Within this, forward passes of DDP models exchange no buffers, so that one may fail alone."""
    senders = [
        module
        for module in model.modules()
        if isinstance(module, DistributedDataParallel) and module.broadcast_buffers
    ]
    for module in senders:
        module.broadcast_buffers = False
    try:
        yield
    finally:
        for module in senders:
            module.broadcast_buffers = True


def read_manifest(config: RunConfig) -> Manifest:
    """The run's manifest.

    Raises ValueError if none is given, it is not enough to train on, or a store of its videos
    cannot be read.
    """
    manifest = Manifest.read(config.data.given_manifest())
    manifest.check_classes()
    some = manifest.videos[:: max(1, len(manifest) // 20)]
    places = [manifest.locate(video) for video in some]
    if not any(not place.is_local or Path(place.uri).exists() for place in places):
        raise ValueError(
            f"manifest in {manifest.root}: its videos are not there ({places[0].uri}); move them "
            f"back, or index them where they are"
        )
    stores = {urlsplit(place.uri)[:2]: place for place in places if not place.is_local}
    for place in stores.values():
        check_store(place)
    return manifest


def make_network(
    config: RunConfig, *, num_classes: int, fabric: Fabric, fresh: bool = True
) -> nn.Module:
    """The network with our layers in place of torch's and with its first weights, on the CPU.

    Norms are by group, dropout by clip, and convolutions take short clips.

    With ``fresh`` False, no pre-trained weights are read: a checkpoint replaces them at once.
    Raises ValueError if the configuration asks for pre-trained weights and names no file of them.
    """
    if fresh:
        check_weights(config)
    torch.manual_seed(config.seed)
    network = build_model(config.model.name, num_classes=num_classes, **config.model.options)
    network = convert_convolutions(convert_dropout(convert_batch_norm(network)))
    if fresh and config.model.weights is not None:
        fabric.print(load_weights(network, config.model.weights))
    others = sum(
        isinstance(module, _BatchNorm) and not isinstance(module, SubBatchNorm3d)
        for module in network.modules()
    )
    if others:
        fabric.print(
            f"{config.model.name}: {others} batch norms are no nn.BatchNorm3d and keep taking "
            f"their statistics from whole batches, not from norm groups"
        )
    # On a GPU it also takes fewer kernels to move the statistics of all layers at once.
    parts = fabric.world_size * config.micro_batches
    if parts > 1 or config.accumulate == "auto" or fabric.device.type != "cpu":
        defer_statistics(network)
    if config.channels_last:
        network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return network
