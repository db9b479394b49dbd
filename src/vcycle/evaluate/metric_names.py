"""The names of metrics in rows and files, their words, and the one that rows are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

METRICS = {
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "mean_class_accuracy": "mean class accuracy",
    "map": "mean average precision",
}


def metric_of(row: Mapping[str, Any]) -> str:
    """What rows are compared by: mean average precision, if videos have several labels."""
    return "map" if "map" in row else "top1"


SCORE_COLUMNS = ("path", "labels", "views")
"""Of a table of scores, before those of the classes."""
