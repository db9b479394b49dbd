"""What a run is made of, built once from its configuration before step 0.

In: a RunConfig and a run folder. Out: a Run: network, optimizer and loaders on this process, at
the step at which it starts or goes on. No phase rebuilds any of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcycle.config.fitting import other_epoch
from vcycle.config.run import RunConfig
from vcycle.data.decode.kept import KeptFrames
from vcycle.data.decode.torchcodec import check_decoder
from vcycle.data.loader import Loader
from vcycle.data.manifest import PREPARED_FILE, Manifest
from vcycle.devices.agreement import from_first, gathered
from vcycle.devices.buffers import stop_broadcasting_buffers
from vcycle.devices.fabric import Fabric
from vcycle.evaluate.checkpoint import damaged, load_checkpoint
from vcycle.evaluate.loaders import (
    kept_frames,
    make_dataset,
    make_eval_loader,
    make_train_loader,
    video_cache,
)
from vcycle.evaluate.run_manifest import has_other_videos
from vcycle.evaluate.setup import make_network, read_manifest
from vcycle.models import freeze
from vcycle.models.external import check_trained_precision
from vcycle.models.frozen import has_norm_groups
from vcycle.models.wrapped import inner_optimizer
from vcycle.schedule.norm_groups import fits_parts
from vcycle.schedule.plan import Plan
from vcycle.train.activity import Activity
from vcycle.train.augment import check_pairs
from vcycle.train.checkpoint import newest_intact
from vcycle.train.compiling import compile_blocks
from vcycle.train.ema import WeightAverage
from vcycle.train.gradients import Gradients, Pieces
from vcycle.train.measure.budget import Budget, fit_budget
from vcycle.train.measure.measuring import Measured, measure
from vcycle.train.measure.timing import RunSeconds, run_seconds
from vcycle.train.model_checks import partial_norms
from vcycle.train.optim import fuses, load_optimizer, make_optimizer
from vcycle.train.run_folder import RunFolder
from vcycle.train.same_run import check_network, check_processes, check_state, identity


@dataclass(frozen=True)
class Run:
    """All that the loop needs.

    Args:
        network: the module itself, whose state a checkpoint keeps.
        model: the network as Fabric runs it, with its precision and over its processes.
        average: of the network's weights; None without ``ema_decay``.
        loader: this process's batches from ``first_step`` on.
        val_loader: this process's views of the validation videos.
        measured: before step 0.
        prediction: what the whole run will take by that.
        dataset: what a checkpoint keeps of the manifest, see ``identity``.
        resumed: the checkpoint that the run goes on from; None for a new run.
        first_step: steps that were done before; 0 for a new run.
        first_seconds: seconds that they took.
        has_norms: whether the norm statistics that follow the last step have been estimated.
    """

    config: RunConfig
    fabric: Fabric
    folder: RunFolder
    manifest: Manifest
    train_videos: Manifest
    val_videos: Manifest
    network: nn.Module
    model: nn.Module
    average: WeightAverage | None
    optimizer: torch.optim.Optimizer
    loader: Loader
    val_loader: Loader
    measured: Measured
    prediction: RunSeconds
    dataset: dict[str, Any]
    resumed: Path | None
    first_step: int
    first_seconds: float
    has_norms: bool

    @property
    def plan(self) -> Plan:
        """The schedule of the run."""
        return self.config.plan()

    @property
    def decodes_fast(self) -> bool:
        """Whether ``vcycle data prepare`` has rewritten the videos, or their frames are kept."""
        is_prepared = (self.manifest.root / PREPARED_FILE).exists()
        return is_prepared or self.loader.dataset.kept is not None

    @property
    def validated(self) -> nn.Module:
        """The network whose scores count: the average, if there is one."""
        return self.network if self.average is None else self.average.module


def start(
    config: RunConfig,
    folder: RunFolder,
    fabric: Fabric,
    *,
    resume: bool,
    activity: Activity,
    budget: Budget | None = None,
) -> Run:
    """Build a run and rehearse it; with ``resume``, from its checkpoint. Nothing is written.

    With a ``budget`` the run has as many steps as fit into it, unless it goes on: then it has those
    that it began with. Raises ValueError for what a user has to change.
    """
    activity.begin(f"building {config.model.name}")
    manifest = read_manifest(config, folder.path if resume else None)
    says = resume and fabric.is_global_zero
    if says and has_other_videos(folder.path, config.data.given_manifest()):
        fabric.print(f"{folder.path}: its videos have changed; it goes on with those it had")
    train_videos, val_videos = manifest.split("train"), manifest.split("val")
    dataset = identity(manifest)
    check_processes(config, dataset, fabric, seconds=budget.seconds if budget else None)
    # What is measured below takes a while, and would be for nothing.
    on_device = config.data.decoder == "nvdec"
    check_decoder(config.data.decoder, fabric.device if on_device else torch.device("cpu"))
    _say_uncached(config, manifest, fabric)
    if other := other_epoch(config, len(train_videos)):
        fabric.print(f"{config.recipe}: {other}")

    # The network, with the same weights in all processes, and its optimizer.
    check_extras(config, manifest, fabric)
    network, model, optimizer = _network(config, manifest, fabric, fresh=not resume)
    check_batch_division(config, network, fabric)
    _say_partial_norms(config, network, fabric)
    average = WeightAverage(network, decay=config.ema_decay) if config.ema_decay else None
    resumed, first_step, first_seconds, has_norms = None, 0, 0.0, False
    if resume:
        resumed = from_first(fabric, lambda: newest_intact(folder.path, say=fabric.print))
        first_step, first_seconds, has_norms = _restore(
            resumed, network, average, optimizer, config, dataset, fabric
        )

    # Measure, then fix the plan.
    kept = _kept(config, train_videos, first_step, fabric)
    pieces = Pieces(network, config, world_size=fabric.world_size)
    measured = measure(
        # Its recordings end with it: those of the run are of the plan that fits.
        Gradients(network, model, config, pieces, fabric=fabric, multi_label=manifest.multi_label),
        inner_optimizer(optimizer),
        make_dataset(config, train_videos, kept=kept),
        first_step=first_step,
        activity=activity,
        budget_seconds=None if budget is None else budget.seconds,
    )
    if config.compile and average is not None:  # validations then run the same code
        compile_blocks(average.module, num_kinds=len(config.plan().mini_batches()))
    if budget is not None and not resume:
        seconds = budget.left
        fit = partial(
            fit_budget,
            config,
            measured.times,
            seconds,
            val_videos=len(val_videos),
            spent=budget.seconds - seconds,
        )
        # What processes may differ in stays each one's own.
        own = {name: getattr(config, name) for name in ("data", "model", "threads", "log")}
        config = replace(from_first(fabric, fit), **own)
        kept = _kept(config, train_videos, first_step, fabric)  # of another number of clips
    loader = make_train_loader(
        config, config.plan(), train_videos, fabric, kept=kept, first_step=first_step
    )
    val_loader = make_eval_loader(config, val_videos, fabric)
    return Run(
        config=config,
        fabric=fabric,
        folder=folder,
        manifest=manifest,
        train_videos=train_videos,
        val_videos=val_videos,
        network=network,
        model=model,
        average=average,
        optimizer=optimizer,
        loader=loader,
        val_loader=val_loader,
        measured=measured,
        prediction=run_seconds(config, measured.times, val_videos=len(val_videos)),
        dataset=dataset,
        resumed=resumed,
        first_step=first_step,
        first_seconds=first_seconds,
        has_norms=has_norms,
    )


def _kept(
    config: RunConfig, videos: Manifest, first_step: int, fabric: Fabric
) -> KeptFrames | None:
    """For the decoded frames of the videos, if all processes can keep them."""
    left = config.plan().mini_batches(first_step=first_step)
    num_clips = sum(kind.steps * kind.batch_size for kind in left)
    kept = kept_frames(config.data, videos, num_clips=num_clips // fabric.world_size)
    return None if any(gathered(kept is None, fabric)) else kept


def _network(
    config: RunConfig, manifest: Manifest, fabric: Fabric, *, fresh: bool
) -> tuple[nn.Module, nn.Module, torch.optim.Optimizer]:
    """The network, as Fabric runs it, and its optimizer; ``fresh`` as of ``make_network``."""
    network = make_network(
        config, num_classes=manifest.num_classes, fabric=fabric, fresh=fresh, videos=manifest
    )
    network.train()  # as some are not built
    if config.model.freeze:
        frozen, total = freeze(network, config.model.freeze), len(list(network.parameters()))
        fabric.print(f"{config.model.name}: {frozen} of {total} parameters are frozen")
    check_trained_precision(network, config.model.name)
    fused = fuses(fabric.device, config.precision)
    model, optimizer = fabric.setup(network, make_optimizer(network, config.optimizer, fused=fused))
    stop_broadcasting_buffers(model)
    return network, model, optimizer


def _say_uncached(config: RunConfig, manifest: Manifest, fabric: Fabric) -> None:
    """Say so if remote videos cannot be kept on this machine."""
    some = manifest.videos[:: max(1, len(manifest) // 20)]
    cache = video_cache(config.data)
    if cache is None or all(manifest.locate(video).is_local for video in some):
        return
    problem = cache.problem() if fabric.is_global_zero else None
    if problem:
        fabric.print(
            f"{cache.folder}: {problem}; every clip fetches its video anew; give a folder to keep "
            f"them in (--data.cache_folder), or --data.cache_gib 0"
        )


def _restore(
    checkpoint: Path,
    network: nn.Module,
    average: WeightAverage | None,
    optimizer: torch.optim.Optimizer,
    config: RunConfig,
    dataset: dict[str, Any],
    fabric: Fabric,
) -> tuple[int, float, bool]:
    """Load a checkpoint's state; returns ``first_step``, ``first_seconds`` and ``has_norms``.

    Raises ValueError unless the checkpoint is of this run, and not damaged.
    """
    state, source = load_checkpoint(checkpoint), f"checkpoint {checkpoint}"
    check_state(state, config, dataset, source=source)
    check_network(state["model"], network, source=source)
    network.load_state_dict(state["model"])
    try:
        load_optimizer(optimizer, state["optimizer"])
        if average is not None:
            check_network(state["ema"]["average"], network, source="its average")
            average.load_state(state["ema"])
        step, seconds = int(state["next_step"]), float(state["seconds"])
        if not 0 <= step <= len(config.plan()) or not 0 <= seconds < math.inf:
            raise ValueError(f"{step} steps in {seconds} seconds")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise damaged(checkpoint, error) from error
    if state.get("scaler"):
        fabric.strategy.precision.load_state_dict(state["scaler"])
    return step, seconds, state["has_norms"]


def check_batch_division(config: RunConfig, network: nn.Module, fabric: Fabric) -> None:
    """Raise ValueError unless processes and micro-batches share every batch in whole norm groups.

    A group may also be split evenly over processes, but not over micro-batches. A model
    without batch norm in training has no groups. The finest batch comes first: the others are
    mostly multiples of it.
    """
    has_groups = has_norm_groups(network)
    world, parts = fabric.world_size, fabric.world_size * config.micro_batches
    for kind in reversed(config.plan().mini_batches()):
        clips, rest = divmod(kind.batch_size, config.micro_batches)
        if rest:
            raise ValueError(
                f"accumulate {config.accumulate}: it does not divide the batch of "
                f"{kind.batch_size} clips at {kind.shape}; choose a divisor of every batch"
            )
        batch = f"{world} processes: the batch of {kind.batch_size} clips at {kind.shape}"
        if clips % world:
            group = config.multigrid.norm_group if has_groups else None
            raise ValueError(
                f"{batch} does not divide into {parts} equal parts; give --batch-size, a multiple "
                f"of {parts * (group or 1)}, or another number of processes"
            )
        if has_groups and kind.norm_group is not None:
            if config.micro_batches > 1 and clips % kind.norm_group:
                raise ValueError(
                    f"accumulate {config.accumulate}: its micro-batches of {clips} clips at "
                    f"{kind.shape} would split norm groups of {kind.norm_group}; give a smaller "
                    f"--accumulate or --multigrid.norm_group, or a larger --batch-size"
                )
            if not fits_parts(kind.norm_group, batch_clips=clips, num_parts=world):
                raise ValueError(
                    f"{batch} would split norm groups of {kind.norm_group} unevenly; give "
                    f"--multigrid.norm_group, a divisor of {config.baseline.batch_size // parts}, "
                    f"or another number of processes"
                )


def _say_partial_norms(config: RunConfig, network: nn.Module, fabric: Fabric) -> None:
    """Say so if batch norms have no groups and see a part of a batch at a time."""
    num_parts = fabric.world_size * config.micro_batches
    if num_parts == 1 or config.multigrid.norm_group is not None:
        return
    partial = partial_norms(network, micro_batches=config.micro_batches)
    if partial is not None:
        fabric.print(f"{partial}; give --multigrid.norm_group, 8 as in the paper or fewer")


def check_extras(config: RunConfig, manifest: Manifest, fabric: Fabric) -> None:
    """Raise ValueError if augmentation or the loss do not fit the videos or the processes."""
    sizes = [kind.batch_size for kind in config.plan().mini_batches()]
    check_pairs(config.augmentation, sizes, num_parts=fabric.world_size * config.micro_batches)
    if config.label_smoothing and manifest.multi_label:
        raise ValueError(
            f"label_smoothing {config.label_smoothing}: these videos may show several classes, "
            f"each scored by itself; give 0"
        )
