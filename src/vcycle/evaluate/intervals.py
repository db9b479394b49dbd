"""What an evaluation says beyond its accuracies: by class, and how sure it is.

In: the VideoScores of all videos. Out: mean class accuracy, the confusion matrix, and for every
metric a 95% bootstrap interval over videos: the videos that were scored stand for all such videos.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcycle.evaluate.metrics import VideoScores

Floats = NDArray[np.float64]
RESAMPLES = 1000


def details(collected: VideoScores, *, seed: int = 0) -> dict[str, Any]:
    """Mean class accuracy and confusion matrix (rows: true class), if each video has one label.

    And ``intervals``: metric -> the 2.5% and 97.5% quantiles over resampled videos. Classes without
    a video do not count. Empty if no video was scored.
    """
    seen = (collected.num_views > 0).numpy()
    scores = collected.scores.numpy()[seen].astype(np.float64)
    labels = collected.labels.numpy()[seen]
    if not len(labels):
        return {}
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=RESAMPLES)
    once = np.ones((1, len(labels)))
    if collected.multi_label:
        return {"intervals": {"map": _interval(mean_average_precision(scores, labels, counts))}}
    num_classes = scores.shape[1]
    correct = {f"top{k}": in_top(scores, labels, k) for k in (1, 5) if k <= num_classes}
    intervals = {name: _interval(counts @ right / len(labels)) for name, right in correct.items()}
    by_class = "mean_class_accuracy"
    intervals[by_class] = _interval(mean_class_accuracy(correct["top1"], labels, counts))
    confusion = np.zeros((num_classes, num_classes), dtype=int)
    np.add.at(confusion, (labels, scores.argmax(1)), 1)
    return {
        by_class: float(mean_class_accuracy(correct["top1"], labels, once)[0]),
        "intervals": intervals,
        "confusion": confusion.tolist(),
    }


def in_top(scores: Floats, labels: NDArray[np.int64], k: int) -> Floats:
    """(videos,) 1 if fewer than ``k`` classes score above a video's own, else 0."""
    own = np.take_along_axis(scores, labels[:, None], 1)
    hits: Floats = ((scores > own).sum(1) < k).astype(np.float64)
    return hits


def mean_class_accuracy(correct: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) from (videos,) hits and (resamples, videos) counts; over classes drawn."""
    one_hot = np.eye(labels.max() + 1)[labels]  # (videos, classes)
    drawn = counts @ one_hot
    hits = counts @ (one_hot * correct[:, None])
    means: Floats = np.nanmean(np.where(drawn > 0, hits / np.maximum(drawn, 1), np.nan), axis=1)
    return means


def mean_average_precision(scores: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) from (videos, classes) scores and 0 or 1; over the classes drawn, else 0."""
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
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    found = (weights * labels[order]).cumsum(1)[:, ends]
    retrieved = weights.cumsum(1)[:, ends]
    gained = np.diff(found, axis=1, prepend=0)
    precision = found / np.maximum(retrieved, 1)
    total = found[:, -1]
    values: Floats = np.where(total > 0, (gained * precision).sum(1) / np.maximum(total, 1), np.nan)
    return values


def _interval(samples: Floats) -> list[float]:
    low, high = np.quantile(samples, (0.025, 0.975))
    return [float(low), float(high)]
