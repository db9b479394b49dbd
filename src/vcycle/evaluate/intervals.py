"""What an evaluation says beyond its accuracies: by class, and how sure it is.

In: the VideoScores of all videos. Out: the confusion matrix, and for every metric a 95% bootstrap
interval over videos: the videos that were scored stand for all such videos.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vcycle.evaluate.metric_names import BY_CLASS
from vcycle.evaluate.metrics import (
    Floats,
    VideoScores,
    hits,
    mean_average_precision,
    mean_class_accuracy,
)

RESAMPLES = 1000


def details(collected: VideoScores) -> dict[str, Any]:
    """The confusion matrix (rows: true class), if each video has one label.

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
    if collected.multi_label:
        return {"intervals": {"map": _interval(mean_average_precision(scores, labels, counts))}}
    num_classes = scores.shape[1]
    correct = hits(scores, labels)
    intervals = {name: _interval(counts @ right / len(labels)) for name, right in correct.items()}
    intervals[BY_CLASS] = _interval(mean_class_accuracy(correct["top1"], labels, counts))
    confusion = np.zeros((num_classes, num_classes), dtype=int)
    np.add.at(confusion, (labels, scores.argmax(1)), 1)
    return {"intervals": intervals, "confusion": confusion.tolist()}


def _interval(samples: Floats) -> list[float]:
    low, high = np.quantile(samples, (0.025, 0.975))
    return [float(low), float(high)]
