"""The names of metrics in rows and files, their words, and the one that rows are compared by.

Beside what a person should know of them: rare classes that are missed, scores that are not finite.
And the names of the columns of a table of scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

BY_CLASS = "mean_class_accuracy"
METRICS = {
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    BY_CLASS: "mean class accuracy",
    "map": "mean average precision",
}


_FAR_BELOW = 0.05


def misses_rare_classes(row: Mapping[str, Any]) -> bool:
    """Whether the mean of the classes' own accuracies is far below that of all videos."""
    return bool(row.get(BY_CLASS, 1.0) < row.get("top1", 0.0) - _FAR_BELOW)


def nonfinite_line(row: Mapping[str, Any]) -> str | None:
    """What to say of videos with scores that are not finite, if there are any."""
    if "nonfinite_videos" not in row:
        return None
    count, videos = row["nonfinite_videos"], row["videos"]
    return f"scores of {count} of {videos} videos are not finite, and count as wrong"


def metric_of(row: Mapping[str, Any]) -> str:
    """What rows are compared by: mean average precision, if videos have several labels."""
    return "map" if "map" in row else "top1"


SCORE_COLUMNS = ("path", "labels", "views")
"""Of a table of scores, before those of the classes."""


def distinct(classes: Sequence[str]) -> list[str]:
    """Names of classes, in order, those that are alike by their number too: ``crane (3)``."""
    times = Counter(classes)
    return [f"{name} ({k})" if times[name] > 1 else name for k, name in enumerate(classes)]
