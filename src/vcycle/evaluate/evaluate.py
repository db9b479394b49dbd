"""Evaluation: deterministic, at one shape, over fixed views of every video.

In: a network and a loader of views. Out: accuracies in [0, 1]. It is the same for every phase of
every run, so that curves can be compared (paper, section 3.1: one shape for the testing data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from vcycle.data.batch import normalize
from vcycle.data.loader import Loader
from vcycle.data.manifest import Manifest
from vcycle.devices.agreement import batch_votes
from vcycle.devices.fabric import Fabric
from vcycle.devices.processes import Stopped
from vcycle.evaluate.metrics import VideoScores
from vcycle.models import memory_format


@contextmanager
def evaluating(network: nn.Module, fabric: Fabric) -> Iterator[None]:
    """The network in evaluation mode, without gradients, in the run's precision; then in training.

    Not in inference mode: what a network keeps from here, such as a table of positions, serves the
    next training step too.
    """
    network.eval()
    try:
        with torch.no_grad(), fabric.autocast():
            yield
    finally:
        network.train()


def score_videos(
    network: nn.Module,
    loader: Loader,
    videos: Manifest,
    *,
    fabric: Fabric,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> VideoScores:
    """Score the views that the processes' loaders yield together; in every process alike.

    ``network`` is the module itself, not what Fabric wraps around it for several processes: one
    process may have fewer batches than the others.
    A view that could not be read is left out, never replaced. The network is left in training mode.
    The processes keep in step. Raises Stopped in all of them, between two batches, if any is
    ``asked_to_stop``.
    """
    vote = batch_votes(len(loader), fabric)
    collected = VideoScores(
        num_videos=len(videos), num_classes=videos.num_classes, multi_label=videos.multi_label
    )
    layout = memory_format(network)
    with evaluating(network, fabric):
        for number, batch in enumerate(loader, 1):
            clips = normalize(batch.to(fabric.device).clips, memory_format=layout)
            scores = network(clips)  # (N, classes)
            read = batch.indices >= 0
            indices, labels = batch.indices[read], batch.labels[read]
            collected.add(indices, scores[read.to(scores.device)], labels)
            if vote(number, asked_to_stop()):
                raise Stopped
    collected.gather(fabric)
    return collected


def summary(collected: VideoScores, videos: Manifest) -> dict[str, float]:
    """The accuracies of an evaluation.

    ``videos`` counts the videos that were scored, and ``coverage`` is their share of those that the
    data set lists.
    """
    scores_of_run = collected.compute()
    found = videos.coverage(videos.videos[0].split)
    return {"coverage": found * scores_of_run["videos"] / len(videos), **scores_of_run}
