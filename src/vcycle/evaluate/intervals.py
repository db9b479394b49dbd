"""What an evaluation says beyond its accuracies: by class, and how sure it is.

In: the VideoScores of all videos. Out: mean class accuracy, the confusion matrix, and for every
metric a 95% bootstrap interval over videos: the videos that were scored stand for all such videos.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcycle.evaluate.metrics import Floats, VideoScores, hits, mean_average_precision

RESAMPLES = 1000


def details(collected: VideoScores) -> dict[str, Any]:
    """Mean class accuracy and confusion matrix (rows: true class), if each video has one label.

    And ``intervals``: metric -> the 2.5% and 97.5% quantiles over resampled videos. Classes without
    a video do not count. Empty if no video was scored.
    """
    seen = (collected.num_views > 0).numpy()
    scores = collected.scores.numpy()[seen].astype(np.float64)
    labels = collected.labels.numpy()[seen]
    if not len(labels):
        return {}
    rng = np.random.default_rng(0)  # the same videos always have the same intervals
    counts = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=RESAMPLES)
    once = np.ones((1, len(labels)))
    if collected.multi_label:
        return {"intervals": {"map": _interval(mean_average_precision(scores, labels, counts))}}
    num_classes = scores.shape[1]
    correct = hits(scores, labels)
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


def mean_class_accuracy(correct: Floats, labels: NDArray[np.int64], counts: Any) -> Floats:
    """(resamples,) from (videos,) hits and (resamples, videos) counts; over classes drawn."""
    one_hot = np.eye(labels.max() + 1)[labels]  # (videos, classes)
    drawn = counts @ one_hot
    hits = counts @ (one_hot * correct[:, None])
    means: Floats = np.nanmean(np.where(drawn > 0, hits / np.maximum(drawn, 1), np.nan), axis=1)
    return means


def _interval(samples: Floats) -> list[float]:
    low, high = np.quantile(samples, (0.025, 0.975))
    return [float(low), float(high)]
