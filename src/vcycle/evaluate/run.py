"""The accuracy of a checkpoint, over any views of any split.

In: a run folder or a file of weights, and a configuration, which may ask for other views. Out: the
scores.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.devices.fabric import Fabric
from vcycle.devices.launch import make_fabric
from vcycle.devices.processes import ending_together
from vcycle.evaluate.checkpoint import find_trained_model, read_trained_model
from vcycle.evaluate.evaluate import evaluating, score_videos, summary
from vcycle.evaluate.frontier import mark_frontiers
from vcycle.evaluate.intervals import confusion, intervals
from vcycle.evaluate.load_model import find_checkpoint
from vcycle.evaluate.loaders import make_eval_loader, united_bad_videos
from vcycle.evaluate.metrics import VideoScores
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.refused_shape import refused_shape
from vcycle.evaluate.run_manifest import run_of
from vcycle.evaluate.scores_file import write_scores
from vcycle.evaluate.setup import make_network, read_manifest
from vcycle.evaluate.sources import labelled_as, load_scored
from vcycle.models import freeze, memory_format
from vcycle.models.count import multiply_adds_or_none
from vcycle.models.out_of_memory import out_of_memory_by_name
from vcycle.schedule.shape import Shape

_TIMED = 5


@dataclass(frozen=True)
class ScoredRun:
    """What ``vcycle eval`` says of a run, the scores of its videos, and these."""

    values: dict[str, Any]
    scores: VideoScores
    videos: Manifest

    def write_scores(self, file: Path) -> None:
        """A line of CSV a video, at the baseline's shape."""
        write_scores(file, self.scores, self.videos)


def score_run(
    config: RunConfig,
    path: Path,
    *,
    split: str,
    best: bool = False,
    shapes: Sequence[Shape] = (),
) -> ScoredRun:
    """The scores of the weights at ``path`` on a split of the configuration's manifest.

    That is the one that the run began with, unless the configuration names another. ``path`` is a
    file (see ``sources``), or a run folder, of which the newest checkpoint is taken, with ``best``
    that with the best validation. With ``shapes`` the result also has a row for each, under
    ``shapes``: its scores, the multiply-adds of a clip, None if they cannot be counted, the
    milliseconds of the network on a clip, in batches and measured on this device, and for which of
    the two no cheaper shape is as good. ``bad_videos`` are those that could not be read. Raises
    ValueError if the weights are of another model or of other classes, were trained on videos of
    one class each and these show several, or give no video a finite score; TooManyBadVideos, which
    is one, if the processes could not read more videos together than ``config`` accepts.
    """
    manifest = read_manifest(config, run_of(path))
    _check_split(manifest, split)
    fabric = make_fabric(config)
    with ending_together(fabric, advice="the same command begins again"):
        file = find_checkpoint(path, best=best)
        trained = find_trained_model(file) if path.is_file() else read_trained_model(file)
        videos = labelled_as(trained, manifest.split(split), file)
        network = make_network(config, num_classes=manifest.num_classes, fabric=fabric, fresh=False)
        load_scored(network, config, manifest, file, trained)
        freeze(network, config.model.freeze)  # whose norms keep their statistics
        model = fabric.setup_module(network)
        bad = {}
        if config.evaluation.precise_bn:
            bad = estimate_norms(model, config, manifest.split("train"), fabric)
        views = len(videos) * config.evaluation.num_clips * config.evaluation.num_crops
        for shape in shapes:
            _check_shape(network, shape, min(views, config.evaluation.batch_size), fabric)
        scored, more = _score(network, config, videos, fabric, config.baseline.shape)
        _check_finite(scored, file, config.baseline.shape)
        bad |= more
        rows = []
        for shape in shapes:
            found = scored
            if shape != config.baseline.shape:
                found, more = _score(network, config, videos, fabric, shape)
                _check_finite(found, file, shape)
                bad |= more
            rows.append(_shape_row(network, config, shape, found, videos, fabric))
    values: dict[str, Any] = {
        "dataset": manifest.root.absolute().name,
        "split": split,
        "protocol": config.protocol,
        "views": config.evaluation.num_clips * config.evaluation.num_crops,
        "steps": trained.steps if trained is not None else None,
        **summary(scored, videos),
        "intervals": intervals(scored),
        **({} if scored.multi_label else {"confusion": confusion(scored)}),
        "bad_videos": bad,
    }
    if rows:
        values["shapes"] = mark_frontiers(rows)
    return ScoredRun(values, scored, videos)


def _check_split(manifest: Manifest, split: str) -> None:
    splits = sorted({video.split for video in manifest.videos})
    if split not in splits:
        raise ValueError(
            f"split {split!r}: no video of {manifest.root} is in it; give "
            f"{' or '.join(f'--split {name}' for name in splits) or 'a manifest with videos'}"
        )


def _check_shape(network: nn.Module, shape: Shape, num_clips: int, fabric: Fabric) -> None:
    """Raise ValueError unless the network takes a batch of clips of this shape."""
    size = (num_clips, 3, shape.frames, shape.height, shape.width)
    clips = torch.zeros(size, device=fabric.device)
    smaller = "give a smaller one, or a smaller --evaluation.batch_size"
    flag = f"--shapes {shape}"
    refused = refused_shape(flag, clips, fix="give a larger one", of_memory=smaller)
    with refused, evaluating(network, fabric):
        network(clips)


def _score(
    network: nn.Module, config: RunConfig, videos: Manifest, fabric: Fabric, shape: Shape
) -> tuple[VideoScores, dict[str, str]]:
    """The scores, and what no process could read: path to reason."""
    with closing(make_eval_loader(config, videos, fabric, shape=shape)) as loader:
        try:
            with out_of_memory_by_name():
                scored = score_videos(network, loader, videos, fabric=fabric)
        except torch.OutOfMemoryError:
            num_clips = config.evaluation.batch_size
            raise ValueError(
                f"--evaluation.batch_size {num_clips}: as many clips of {shape} do not fit into "
                f"the memory of {fabric.device}; give a smaller one"
            ) from None
        return scored, united_bad_videos(loader, fabric)


def _check_finite(scored: VideoScores, file: Path, shape: Shape) -> None:
    seen = scored.scores[scored.num_views > 0]
    if len(seen) and not seen.isfinite().any():
        raise ValueError(f"{file}: it gives no finite scores at {shape}; give another checkpoint")


def _shape_row(
    network: nn.Module,
    config: RunConfig,
    shape: Shape,
    scored: VideoScores,
    videos: Manifest,
    fabric: Fabric,
) -> dict[str, Any]:
    return {
        "shape": str(shape),
        "multiply_adds": multiply_adds_or_none(network, shape),
        "milliseconds": _milliseconds(network, shape, config.evaluation.batch_size, fabric),
        **summary(scored, videos),
        "intervals": intervals(scored),
    }


def _milliseconds(network: nn.Module, shape: Shape, num_clips: int, fabric: Fabric) -> float:
    """Of the network on one clip, forward, in batches: the median of a few after a first one."""
    size = (num_clips, 3, shape.frames, shape.height, shape.width)
    clips = torch.zeros(size, device=fabric.device).to(memory_format=memory_format(network))
    seconds = []
    with evaluating(network, fabric):
        for _ in range(_TIMED + 1):
            began = time.perf_counter()
            network(clips)
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    return 1000 * statistics.median(seconds[1:]) / num_clips
