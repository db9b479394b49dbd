"""The accuracy of a run's checkpoint, over any views of any split.

In: a run folder and its configuration, which may ask for other views. Out: the scores.
"""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from vcycle.config.run import RunConfig
from vcycle.data.atomic import write_atomic
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import TrainedModel, load_checkpoint, weights_of
from vcycle.evaluate.evaluate import score_videos, summary
from vcycle.evaluate.intervals import details
from vcycle.evaluate.loaders import make_eval_loader
from vcycle.evaluate.metrics import VideoScores
from vcycle.evaluate.norms import estimate_norms
from vcycle.evaluate.processes import ending_together
from vcycle.evaluate.setup import make_fabric, make_network, read_manifest
from vcycle.evaluate.views import check_num_clips
from vcycle.models import memory_format
from vcycle.models.count import multiply_adds
from vcycle.schedule.shape import Shape

_TIMED = 5


def evaluate_run(
    config: RunConfig,
    folder: Path,
    *,
    split: str,
    checkpoint: str = "checkpoint",
    shapes: Sequence[Shape] = (),
    scores_file: Path | None = None,
) -> dict[str, Any]:
    """The scores of a checkpoint in ``folder`` on a split of the configuration's manifest.

    ``checkpoint`` is the newest one's name, or "best". With ``shapes`` the result also has a row
    for each, under ``shapes``: its scores, the multiply-adds of a clip, and the milliseconds of the
    network on a clip, in batches and measured on this device. ``scores_file`` gets a line of CSV a
    video, at the baseline's shape. Raises ValueError if the checkpoint is of another model or of
    other classes.
    """
    manifest = read_manifest(config)
    videos = manifest.split(split)
    check_num_clips(config.evaluation.num_clips, segments=config.data.segments)
    fabric = make_fabric(config)
    with ending_together(fabric):
        state = load_checkpoint(folder / f"{checkpoint}.pt")
        _check_same(config, manifest, TrainedModel.from_dict(state["trained"]), folder)
        network = make_network(config, num_classes=manifest.num_classes, fabric=fabric, fresh=False)
        network.load_state_dict(weights_of(state))
        model = fabric.setup_module(network)
        if config.evaluation.precise_bn:
            estimate_norms(model, config, manifest.split("train"), fabric)
        scored = _score(network, config, videos, fabric, config.baseline.shape)
        rows = []
        for shape in shapes:
            is_base = shape == config.baseline.shape
            found = scored if is_base else _score(network, config, videos, fabric, shape)
            rows.append(_shape_row(network, config, shape, summary(found, videos), fabric))
    if scores_file is not None and fabric.is_global_zero:
        write_scores(scores_file, scored, videos)
    views = config.evaluation.num_clips * config.evaluation.num_crops
    result = {"views": views, "steps": state["next_step"], **summary(scored, videos)}
    return {**result, **details(scored), **({"shapes": rows} if rows else {})}


def _check_same(config: RunConfig, manifest: Manifest, trained: TrainedModel, folder: Path) -> None:
    if trained.classes != manifest.classes:
        raise ValueError(
            f"{manifest.root / 'classes.txt'}: its classes are not those that {folder} was "
            f"trained on; give the manifest of that run or one with the same classes"
        )
    if (config.model.name, config.model.options) != (trained.name, trained.options):
        raise ValueError(
            f"model {config.model.name}: {folder} trained {trained.name} with options "
            f"{trained.options}; leave --model out"
        )


def _score(
    network: nn.Module, config: RunConfig, videos: Manifest, fabric: Fabric, shape: Shape
) -> VideoScores:
    with closing(make_eval_loader(config, videos, fabric, shape=shape)) as loader:
        return score_videos(network, loader, videos, fabric=fabric)


def _shape_row(
    network: nn.Module, config: RunConfig, shape: Shape, scores: dict[str, float], fabric: Fabric
) -> dict[str, Any]:
    return {
        "shape": str(shape),
        "multiply_adds": multiply_adds(network, shape),
        "milliseconds": _milliseconds(network, shape, config.evaluation.batch_size, fabric),
        **scores,
    }


def _milliseconds(network: nn.Module, shape: Shape, num_clips: int, fabric: Fabric) -> float:
    """Of the network on one clip, forward, in batches: the median of a few after a first one."""
    size = (num_clips, 3, shape.frames, shape.height, shape.width)
    clips = torch.zeros(size, device=fabric.device).to(memory_format=memory_format(network))
    seconds = []
    network.eval()
    with torch.inference_mode(), fabric.autocast():
        for _ in range(_TIMED + 1):
            began = time.perf_counter()
            network(clips)
            if fabric.device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    network.train()
    return 1000 * statistics.median(seconds[1:]) / num_clips


def write_scores(file: Path, collected: VideoScores, videos: Manifest) -> None:
    """A line of CSV a video that was scored: path, labels, views, and its combined scores."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("path", "labels", "views", *videos.classes))
    for number, video in enumerate(videos.videos):
        views = int(collected.num_views[number])
        if not views:
            continue
        total = collected.scores[number]
        shares = total if collected.multi_label else total / views
        labels = ";".join(videos.classes[label] for label in video.labels)
        numbers = [f"{share:.6g}" for share in shares.tolist()]
        table.writerow((str(video.source), labels, views, *numbers))
    write_atomic(file, text.getvalue())
