"""Evaluation: deterministic, at one shape, over fixed views of every video.

In: a model and a loader of views. Out: accuracies in [0, 1]. It is the same for every phase of
every run, so that curves can be compared (paper, section 3.1: one shape for the testing data).
"""

from __future__ import annotations

import torch
from lightning_fabric import Fabric
from torch import nn

from vcycle.data.loader import Loader, normalize
from vcycle.data.manifest import Manifest
from vcycle.metrics import VideoScores


def evaluate(
    model: nn.Module, loader: Loader, videos: Manifest, *, fabric: Fabric
) -> dict[str, float]:
    """Score the views of ``videos`` that the processes' loaders yield together.

    The model is left in training mode.

    Returns ``top1`` (and ``top5`` from five classes on), or ``map`` for multi-label videos.
    """
    collected = VideoScores(
        num_videos=len(videos), num_classes=videos.num_classes, multi_label=videos.multi_label
    )
    model.eval()
    with torch.inference_mode():
        for batch in loader:
            on_device = batch.to(fabric.device)
            scores = model(normalize(on_device.clips))  # (N, classes)
            collected.add(batch.indices, scores, batch.labels)
    model.train()
    collected.gather(fabric)
    return collected.compute()
