"""The names of metrics in rows and files, their words, and the one that rows are compared by."""

from __future__ import annotations

from collections.abc import Mapping
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


def metric_of(row: Mapping[str, Any]) -> str:
    """What rows are compared by: mean average precision, if videos have several labels."""
    return "map" if "map" in row else "top1"


SCORE_COLUMNS = ("path", "labels", "views")
"""Of a table of scores, before those of the classes."""
