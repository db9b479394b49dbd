"""How many workers decode as fast as a plan trains, by what was measured of both.

In: measured steps, and the rows of ``vcycle bench loader --json``. Out: a line that says how many
clips a second the fastest shape takes, and how many workers raw and prepared videos need for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vcycle.data.loader_stats import workers_for
from vcycle.schedule.cost import MeasuredStep, nearest_step
from vcycle.schedule.messages import counted
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape


def clip_seconds(rows: object) -> dict[str, dict[Shape, float]]:
    """CPU seconds of a clip by source and shape. Raises ValueError if rows have no such form."""
    if not isinstance(rows, list) or not rows:
        raise ValueError("give the rows that vcycle bench loader --json prints")
    found: dict[str, dict[Shape, float]] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not {"source", "shape", "cpu_ms_per_clip"} <= row.keys():
            raise ValueError(f"row {number}: give source, shape and cpu_ms_per_clip")
        milliseconds = row["cpu_ms_per_clip"]
        if not isinstance(milliseconds, int | float) or not 0 < milliseconds < math.inf:
            raise ValueError(
                f"row {number}: cpu_ms_per_clip {milliseconds}: give a positive number"
            )
        shape = Shape.parse(str(row["shape"]))
        found.setdefault(str(row["source"]), {})[shape] = milliseconds / 1000
    if not found.keys() & {"raw", "prepared"}:
        raise ValueError("no row has the source raw or prepared; give rows of vcycle bench loader")
    return found


def decoding_line(
    plan: Plan,
    steps: Sequence[MeasuredStep],
    clips: Mapping[str, Mapping[Shape, float]],
    *,
    workers: int,
) -> str:
    """What decoding needs at the shape whose clips train fastest, and what to do if it is more.

    ``workers`` is how many there will be, of all training processes together.
    """
    used = [nearest_step(steps, kind) for kind in plan.mini_batches()]
    fastest = max(used, key=lambda each: each.clips / each.seconds)
    shape, speed = fastest.shape, fastest.clips / fastest.seconds
    needed = {
        source: workers_for(_nearest(clips[source], shape), 1 / speed)
        for source in ("raw", "prepared")
        if source in clips
    }
    counts = ", ".join(
        f"{source} videos need {counted(count, 'worker')}" for source, count in needed.items()
    )
    line = f"decoding: training takes {speed:,.0f} clips/s at {shape}; {counts}"
    if workers >= max(needed.values()):
        return f"{line}; {workers} keep up"
    if workers >= needed.get("prepared", math.inf):
        return f"{line}; {workers} cannot keep up with raw ones: vcycle data prepare"
    return f"{line}; {workers} cannot keep up: give more cores (--data.num_workers)"


def _nearest(seconds: Mapping[Shape, float], shape: Shape) -> float:
    """Of the measured shape that has the most similar number of pixels."""
    near = min(seconds, key=lambda each: abs(math.log(each.num_pixels / shape.num_pixels)))
    return seconds[near]
