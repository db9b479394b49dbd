"""Norm statistics estimated anew, from training batches at the shape that a model is scored at.

In: a model and the training videos. Out: the model with the statistics of its final weights, not
averages over weights and shapes that it has left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

from torch import Tensor, nn

from vcycle.config.run import RunConfig
from vcycle.data.batch import normalize
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.devices.agreement import Votes
from vcycle.devices.fabric import Fabric
from vcycle.devices.processes import Stopped
from vcycle.evaluate.loaders import make_train_loader, united_bad_videos
from vcycle.models import memory_format, precise_bn, set_norm_group
from vcycle.schedule.baseline import LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan


def estimate_norms(
    model: nn.Module,
    config: RunConfig,
    videos: Manifest,
    fabric: Fabric,
    *,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Estimate norm statistics from ``config.evaluation.precise_bn`` training batches; 0: do not.

    The batches are those of the last grid of the plan, which are the baseline's unless its batch
    factors say otherwise, each clip with a grid drawn at random. All processes call this.
    Raises Stopped in all of them, between two batches, if any is ``asked_to_stop``; the statistics
    are then as they were. Returns what any process could not read, path to reason; raises
    TooManyBadVideos if they are more than the run accepts.
    """
    num_batches = config.evaluation.precise_bn
    if not num_batches:
        return {}
    same_shape = replace(
        config.baseline,
        batch_size=_batch_size(config),
        steps=num_batches,
        stage_ends=(),
        learning_rate=LearningRate(1.0),
    )
    group = config.multigrid.norm_group
    plan = Plan(same_shape, Multigrid.off(norm_group=group, rule=config.multigrid.rule))
    set_norm_group(model, group)
    layout = memory_format(model)
    votes = Votes(fabric, first_step=0)

    def clips(loader: Loader) -> Iterator[Tensor]:
        for number, batch in enumerate(loader, 1):
            yield normalize(batch.to(fabric.device).clips, memory_format=layout)
            if votes.hold(number, asked_to_stop())[0]:
                raise Stopped

    with closing(make_train_loader(config, plan, videos, fabric)) as loader:
        precise_bn(model, clips(loader))
        return united_bad_videos(loader, fabric)


def num_norm_clips(config: RunConfig) -> int:
    """Clips from which ``estimate_norms`` estimates; 0 if it does not."""
    return config.evaluation.precise_bn * _batch_size(config)


def _batch_size(config: RunConfig) -> int:
    cycle = config.multigrid.long_cycle
    factor = cycle.batch_factors[-1] if cycle is not None and cycle.batch_factors else 1
    return factor * config.baseline.batch_size
