"""Accuracy of a model on a dataset, from its scores for every view of every video.

In: scores of views, in any order, from any process. Out: top-1 and top-5 accuracy and the loss, or
mean average precision if videos have several labels. The views of a video are combined by the mean
of their softmax (paper, section 4); for several labels by the maximum of their sigmoid, as in the
official code's evaluation of Charades: the paper's text does not say how.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ReduceOp, all_reduce
from torch.nn import functional as F

from vcycle.devices.fabric import Fabric
from vcycle.evaluate.metric_names import BY_CLASS

Floats = NDArray[np.float64]
_LEAST_SHARE = 1e-9
"""Of a class in a softmax: a smaller one may have been rounded to 0."""


class VideoScores:
    """Collects scores: (videos, classes) on the host.

    Those of a video of which any view's are not finite are NaN.
    """

    def __init__(self, *, num_videos: int, num_classes: int, multi_label: bool) -> None:
        self.multi_label = multi_label
        self.scores = torch.zeros(num_videos, num_classes)
        self.labels = torch.zeros(
            (num_videos, num_classes) if multi_label else (num_videos,), dtype=torch.int64
        )
        self.num_views = torch.zeros(num_videos, dtype=torch.int64)
        self.nonfinite = torch.zeros(num_videos, dtype=torch.int64)  # 1 if a view's scores are not

    def add(self, videos: Tensor, scores: Tensor, labels: Tensor) -> None:
        """Add (N,) video numbers, (N, classes) scores before softmax, and labels of N views."""
        videos, labels = videos.cpu(), labels.cpu()
        shares = view_probabilities(scores.cpu(), multi_label=self.multi_label)
        is_lost = ~shares.isfinite().all(1)
        shares[is_lost] = math.nan  # which sums and maxima on the host keep
        if self.multi_label:
            rows = videos.unsqueeze(1).expand_as(shares)
            self.scores.scatter_reduce_(0, rows, shares, "amax")
        else:
            self.scores.index_add_(0, videos, shares)
        self.labels[videos] = labels.to(self.labels.dtype)
        self.num_views.index_add_(0, videos, torch.ones_like(videos))
        self.nonfinite[videos[is_lost]] = 1

    def gather(self, fabric: Fabric) -> None:
        """Add up what the processes of ``fabric`` collected; each then holds all of it."""
        if fabric.world_size == 1:
            return
        of_views = ReduceOp.MAX if self.multi_label else ReduceOp.SUM
        for name, operation in (
            ("scores", of_views),
            ("labels", ReduceOp.MAX),
            ("num_views", ReduceOp.SUM),
            ("nonfinite", ReduceOp.MAX),
        ):
            on_device = getattr(self, name).to(fabric.device)
            all_reduce(on_device, operation)
            setattr(self, name, on_device.cpu())
        self.scores[self.nonfinite > 0] = math.nan  # a maximum over processes may lose it

    def compute(self) -> dict[str, float]:
        """Accuracies in [0, 1] over the videos that had a view, and how many those are.

        ``loss`` is the cross-entropy of a video's mean softmax. The mean average precision is over
        the classes that some video shows; without any it is 0. ``nonfinite_videos`` are those with
        scores that are not finite, which count as wrong, if there are any.
        """
        seen = self.num_views > 0
        found = {"videos": int(seen.sum())}
        if self.nonfinite.any():
            found["nonfinite_videos"] = int(self.nonfinite.sum())
        scores, labels = self.scores[seen], self.labels[seen]
        if self.multi_label:
            once = np.ones((1, len(labels)))
            mean = mean_average_precision(scores.double().numpy(), labels.numpy(), once)
            return {**found, "map": float(mean[0])}
        right = hits(scores.numpy(), labels.numpy())
        accuracies = {name: float(each.sum()) / max(len(labels), 1) for name, each in right.items()}
        if len(labels):
            once = np.ones((1, len(labels)))
            by_class = mean_class_accuracy(right["top1"], labels.numpy(), once)
            accuracies[BY_CLASS] = float(by_class[0])
        shares = scores / self.num_views[seen].unsqueeze(1)  # (videos, classes): each sums to 1
        shares = shares.nan_to_num(0.0).clamp_min(_LEAST_SHARE)
        loss = float(F.nll_loss(shares.log(), labels)) if len(labels) else -math.log(_LEAST_SHARE)
        return {**found, **accuracies, "loss": loss}


def view_probabilities(scores: Tensor, *, multi_label: bool) -> Tensor:
    """(views, classes) scores before softmax -> as many probabilities, in float32."""
    scores = scores.float()
    return scores.sigmoid() if multi_label else scores.softmax(1)


def combined(probabilities: Tensor, *, multi_label: bool) -> Tensor:
    """(views, classes) probabilities of one video's views -> (classes,), the video's."""
    return probabilities.amax(0) if multi_label else probabilities.mean(0)


def hits(scores: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> dict[str, Floats]:
    """``top1`` and ``top5`` -> (videos,) 1 if a video's class is among so many best, else 0.

    From (videos, classes) scores; of equal ones the first class is the better. Up to five classes
    have no top5. A video with a score that is not a number counts as wrong.
    """
    is_right = np.argsort(-scores, axis=1, kind="stable") == labels[:, None]  # (videos, classes)
    is_right &= ~np.isnan(scores).any(1, keepdims=True)
    best = {"top1": 1, "top5": 5} if scores.shape[1] > 5 else {"top1": 1}
    return {name: is_right[:, :k].any(1).astype(np.float64) for name, k in best.items()}


def mean_class_accuracy(correct: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) from (videos,) hits and (resamples, videos) counts; over classes drawn."""
    one_hot = np.eye(labels.max() + 1)[labels]  # (videos, classes)
    drawn = counts @ one_hot
    right = counts @ (one_hot * correct[:, None])
    means: Floats = np.nanmean(np.where(drawn > 0, right / np.maximum(drawn, 1), np.nan), axis=1)
    return means


def mean_average_precision(scores: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) from (videos, classes) scores and 0 or 1; over the classes drawn, else 0.

    Scores are from 0 to 1; one that is not a number counts as 0.
    """
    scores = np.nan_to_num(scores, nan=0.0)
    every = np.array(
        [average_precision(scores[:, k], labels[:, k], counts) for k in range(scores.shape[1])]
    )  # (classes, resamples), NaN if no video of a class is drawn
    shown = ~np.isnan(every)
    means: Floats = np.where(shown, every, 0).sum(0) / np.maximum(shown.sum(0), 1)
    return means


def average_precision(scores: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) precision averaged over recall; equal scores count as one threshold."""
    order = np.argsort(-scores, kind="stable")
    weights = counts[:, order]
    ends = np.flatnonzero(np.diff(scores[order], append=-np.inf))  # of equal scores the last
    found = (weights * labels[order]).cumsum(1)[:, ends]
    retrieved = weights.cumsum(1)[:, ends]
    gained = np.diff(found, axis=1, prepend=0)
    precision = found / np.maximum(retrieved, 1)
    total = counts @ labels
    values: Floats = np.where(total > 0, (gained * precision).sum(1) / np.maximum(total, 1), np.nan)
    return values
