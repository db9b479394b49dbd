"""Which shapes are worth deploying a model at: those that no cheaper one is as good as.

In: the rows of an evaluation at several shapes. Out: the same rows, with what they are best at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vcycle.evaluate.metric_names import metric_of

COSTS = ("multiply_adds", "milliseconds")


def mark_frontiers(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, each with the costs of ``COSTS`` on whose frontier it lies, under ``frontier``.

    A row is on the frontier of a cost if no other is at least as good and cheaper, or better and
    as cheap; one whose cost is None, which was not counted, is on none.
    """
    return [
        {**row, "frontier": [cost for cost in COSTS if _is_on_frontier(row, rows, cost)]}
        for row in rows
    ]


def _is_on_frontier(row: dict[str, Any], rows: Sequence[dict[str, Any]], cost: str) -> bool:
    metric = metric_of(row)
    return row[cost] is not None and not any(
        (other[cost] < row[cost] and other[metric] >= row[metric])
        or (other[cost] == row[cost] and other[metric] > row[metric])
        for other in rows
        if other[cost] is not None
    )


def multiply_adds_text(row: dict[str, Any]) -> str:
    """Those of a clip of a row's shape, or that they were not counted."""
    count = row["multiply_adds"]
    return "not counted" if count is None else f"{count:,}"
