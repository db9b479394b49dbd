"""What a run is made of, built once from its configuration: devices, model, optimizer, loaders."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.wrappers import _FabricModule, _FabricOptimizer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange
from vcycle.data.loader import Loader, eval_loader, train_loader
from vcycle.data.manifest import Manifest
from vcycle.data.sampler import PlanSampler
from vcycle.models import (
    SubBatchNorm3d,
    build_model,
    check_norm_group,
    convert_batch_norm,
    defer_statistics,
    load_weights,
    memory_format,
    precise_bn,
    set_norm_group,
)
from vcycle.schedule.baseline import LearningRate
from vcycle.schedule.plan import Multigrid, Plan
from vcycle.train.optim import make_optimizer


def make_fabric(config: RunConfig) -> Fabric:
    """One process on one device, or this process's place among those that torchrun started."""
    if config.threads:
        torch.set_num_threads(config.threads)
    local, world = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(
        accelerator=accelerator, devices=local, num_nodes=world // local, precision=config.precision
    )
    fabric.launch()
    return fabric


def leave_processes() -> None:
    """Part from the processes that torchrun started; without this the exit may abort."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def read_manifest(config: RunConfig) -> Manifest:
    """The run's manifest; ValueError where it is not given, or not enough to train on."""
    if not config.data.manifest:
        raise ValueError(
            "data.manifest: give --data FILE, a manifest as `vcycle data index` writes"
        )
    manifest = Manifest.read(config.data.manifest)
    if manifest.num_classes < 2 and not manifest.multi_label:
        raise ValueError(
            f"{manifest.root / 'classes.txt'}: names one class; index videos of at least two"
        )
    some = manifest.videos[:: max(1, len(manifest) // 20)]
    places = [manifest.locate(video).uri for video in some]
    if not any("://" in place or Path(place).exists() for place in places):
        raise ValueError(
            f"manifest in {manifest.root}: its videos are not there ({places[0]}); move them back, "
            f"or index them where they are"
        )
    return manifest


def make_model(
    config: RunConfig, manifest: Manifest, fabric: Fabric, *, fresh: bool = True
) -> tuple[_FabricModule, _FabricOptimizer]:
    """The model and its optimizer, on the device; the same weights on all ranks."""
    model = build(config, manifest, fabric, fresh=fresh)
    module, optimizer = fabric.setup(model, make_optimizer(model, config.optimizer))
    return module, optimizer


def build(
    config: RunConfig, manifest: Manifest, fabric: Fabric, *, fresh: bool = True
) -> nn.Module:
    """The model with sub-batch norm and the weights that it starts from.

    Those are not read where a checkpoint replaces them at once: ``fresh`` is then False.
    ValueError where the configuration asks for pre-trained weights and names no file.
    """
    torch.manual_seed(config.seed)
    model = convert_batch_norm(
        build_model(config.model.name, num_classes=manifest.num_classes, **config.model.options)
    )
    if fresh and config.model.weights is not None:
        fabric.print(load_weights(model, config.model.weights))
    elif fresh and config.model.pretrained_on is not None:
        raise ValueError(
            f"model.weights: recipe {config.recipe} starts from {config.model.pretrained_on} "
            f"weights; give --weights FILE, or --model.pretrained_on null for random ones"
        )
    others = sum(
        isinstance(module, _BatchNorm) and not isinstance(module, SubBatchNorm3d)
        for module in model.modules()
    )
    if others:
        fabric.print(
            f"{config.model.name}: {others} batch norms are no nn.BatchNorm3d and keep taking "
            f"their statistics from whole batches, not from norm groups"
        )
    if fabric.world_size * config.accumulate > 1:
        defer_statistics(model)
    if config.channels_last:
        model.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    return model


def check_parts(config: RunConfig, plan: Plan, model: nn.Module, fabric: Fabric) -> None:
    """ValueError unless processes and micro-batches share every batch in whole norm groups.

    A group may also be split evenly over processes, but not over micro-batches. A model without
    batch norm has no groups.
    """
    has_groups = any(isinstance(module, SubBatchNorm3d) for module in model.modules())
    for kind in plan.mini_batches():
        clips, rest = divmod(kind.batch_size, config.accumulate)
        if rest:
            raise ValueError(
                f"accumulate {config.accumulate}: it does not divide the batch of "
                f"{kind.batch_size} clips at {kind.shape}"
            )
        if has_groups and kind.norm_group is not None:
            check_norm_group(kind.norm_group, batch_clips=clips, num_parts=fabric.world_size)


def make_train_loader(
    config: RunConfig, plan: Plan, videos: Manifest, fabric: Fabric, *, first_step: int = 0
) -> Loader:
    """This process's batches of the plan, from ``first_step`` on."""
    sampler = PlanSampler(
        plan,
        len(videos),
        config.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
        micro_batches=config.accumulate,
        first_step=first_step,
    )
    return train_loader(
        _dataset(config, videos),
        sampler,
        num_workers=config.data.num_workers,
        max_bad_share=config.data.max_bad_share,
        pin_memory=fabric.device.type == "cuda",
        decode_device=fabric.device if config.data.decoder == "nvdec" else None,
    )


def make_eval_loader(config: RunConfig, videos: Manifest, fabric: Fabric) -> Loader:
    """This process's views of ``videos`` at the baseline's shape."""
    return eval_loader(
        _dataset(config, videos),
        config.baseline.shape,
        batch_size=config.evaluation.batch_size,
        num_clips=config.evaluation.num_clips,
        num_crops=config.evaluation.num_crops,
        num_workers=config.data.num_workers,
        max_bad_share=config.data.max_bad_share,
        pin_memory=fabric.device.type == "cuda",
        decode_device=fabric.device if config.data.decoder == "nvdec" else None,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )


def estimate_norms(model: nn.Module, config: RunConfig, videos: Manifest, fabric: Fabric) -> None:
    """Estimate norm statistics anew from training batches at the baseline's shape.

    There are ``config.evaluation.precise_bn`` of them, each with a grid drawn at random.
    """
    num_batches = config.evaluation.precise_bn
    if not num_batches:
        return
    same_shape = replace(
        config.baseline, steps=num_batches, stage_ends=(), learning_rate=LearningRate(1.0)
    )
    group = config.multigrid.norm_group
    plan = Plan(same_shape, Multigrid.off(norm_group=group, rule=config.multigrid.rule))
    set_norm_group(model, group)
    layout = memory_format(model)
    with closing(make_train_loader(config, plan, videos, fabric)) as batches:
        clips = (
            normalize(batch.to(fabric.device).clips, memory_format=layout) for batch in batches
        )
        precise_bn(model, clips)


def _dataset(config: RunConfig, videos: Manifest) -> ClipDataset:
    data = config.data
    grids = GridRange(
        config.baseline.shape,
        data.stride,
        data.short_side,
        frame_rate=data.frame_rate,
        segments=data.segments,
        inverse_uniform=data.inverse_uniform,
    )
    return ClipDataset(videos, grids, limit_seconds=data.decode_seconds, decoder=data.decoder)


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that dropout on ``device`` draws from.

    Seeding it costs microseconds; ``torch.manual_seed``, which visits every kind of device, costs
    most of a millisecond.
    """
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    return torch.default_generator
