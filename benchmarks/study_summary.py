"""What a study's table says, for a terminal: a line a length, then a line a saving.

In: the values that ``study_results.collect`` writes. Out: lines of text. The published study's
tables are made by ``docs/draw_results.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from study_file import Study


def summary_lines(study: Study, values: dict[str, Any]) -> Iterator[str]:
    """Each task's lengths with their mean scores, and what its methods save, over controls too."""
    titles = {method.name: method.title for method in study.methods}
    width = max(map(len, titles.values()))
    for task in study.tasks:
        points = [row for row in values["points"] if task.has(row)]
        if not points:
            continue
        yield f"{task.name}, top-1 and loss on average"
        for row in points:
            yield (
                f"  {titles[row['method']]:{width}}  {row['steps']:7,} steps  {row['runs']:3} runs"
                f"  {row['top1']:6.1%}  {row['loss']:.3f}"
            )
        for row in filter(task.has, (*values["iso"], *values["iso_controls"])):
            savings = [
                f"its {name} {_saving_text(row[score]['multiply_adds'])}"
                for score, name in (("top1", "top-1"), ("loss", "loss"))
                if "multiply_adds" in row[score]
            ]
            if savings:
                over = titles[row.get("against", study.baseline.name)]
                yield f"  {titles[row['method']]}, beside {over}: {'; '.join(savings)}"


def _saving_text(found: dict[str, Any]) -> str:
    """With how many times fewer multiply-adds, the 95% interval, and who of the resamples came."""
    reached = f"reached in {found['reached']:.0%} of the resamples"
    if found["factor"] is None:
        return f"is not reached with {found['bound']:.1f}x fewer multiply-adds ({reached})"
    ends = ("-" if found[end] is None else f"{found[end]:.1f}" for end in ("low", "high"))
    least = "more than " if found["at_least"] else ""
    return f"with {least}{found['factor']:.1f}x [{', '.join(ends)}] fewer multiply-adds ({reached})"
