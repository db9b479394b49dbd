"""What an evaluation says beyond its accuracies: by class, and how sure it is.

In: the VideoScores of all videos. Out: the confusion matrix, and for every metric a 95% bootstrap
interval over videos: the videos that were scored stand for all such videos.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vcycle.evaluate.metric_names import BY_CLASS
from vcycle.evaluate.metrics import (
    Floats,
    VideoScores,
    hits,
    mean_average_precision,
    mean_class_accuracy,
)

RESAMPLES = 1000


def intervals(collected: VideoScores) -> dict[str, list[float]]:
    """Metric -> its 2.5% and 97.5% quantiles over resampled videos; empty if none was scored.

    Classes without a video do not count.
    """
    scores, labels = _scored(collected)
    if not len(labels):
        return {}
    rng = np.random.default_rng(0)  # the same videos always have the same intervals
    counts = rng.multinomial(len(labels), np.full(len(labels), 1 / len(labels)), size=RESAMPLES)
    if collected.multi_label:
        return {"map": _interval(mean_average_precision(scores, labels, counts))}
    correct = hits(scores, labels)
    found = {name: _interval(counts @ right / len(labels)) for name, right in correct.items()}
    found[BY_CLASS] = _interval(mean_class_accuracy(correct["top1"], labels, counts))
    return found


def confusion(collected: VideoScores) -> list[list[int]]:
    """How many videos of each true class (rows) were taken for each (columns).

    Of videos with one label each. Those with scores that are not finite were taken for none.
    """
    scores, labels = _scored(collected)
    finite = np.isfinite(scores).all(1)
    found = np.zeros((scores.shape[1], scores.shape[1]), dtype=int)
    np.add.at(found, (labels[finite], scores[finite].argmax(1)), 1)
    return [[int(count) for count in row] for row in found]


def _scored(collected: VideoScores) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Scores (videos, classes) and labels of the videos that were."""
    seen = (collected.num_views > 0).numpy()
    return collected.scores.numpy()[seen].astype(np.float64), collected.labels.numpy()[seen]


def _interval(samples: Floats) -> list[float]:
    low, high = np.quantile(samples, (0.025, 0.975))
    return [float(low), float(high)]
