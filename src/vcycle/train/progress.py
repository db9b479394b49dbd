"""What a person sees while a run goes on: phase, shape, rate of work, time left.

On a terminal it is one live line; elsewhere a line a phase and a validation, so that logs stay
short. Time left is the plan's remaining steps of each mini-batch shape times the seconds that such
a step has taken so far.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from vcycle.data.loader_stats import LoaderStats
from vcycle.schedule.plan import Plan, Step
from vcycle.schedule.shape import Shape

Kind: TypeAlias = tuple[Shape, int]
"""Shape and batch size, which decide what a step costs."""


class TimeLeft:
    """Predicts the seconds that the rest of a plan takes, from the steps timed so far."""

    def __init__(self, plan: Plan, *, first_step: int = 0) -> None:
        self._remaining: Counter[Kind] = Counter()
        for each in plan.mini_batches(first_step=first_step):
            self._remaining[each.shape, each.batch_size] += each.steps
        self._seconds: defaultdict[Kind, float] = defaultdict(float)
        self._timed: Counter[Kind] = Counter()

    def add(self, step: Step, seconds: float) -> None:
        """One more step is done."""
        kind = (step.shape, step.batch_size)
        self._remaining[kind] -= 1
        self._timed[kind] += 1
        self._seconds[kind] += seconds

    def seconds(self) -> float:
        """Seconds left; a mini-batch not seen yet costs as much a pixel as those that were."""
        pixels = sum(count * _num_pixels(kind) for kind, count in self._timed.items())
        if not pixels:
            return float("nan")
        per_pixel = sum(self._seconds.values()) / pixels
        total = 0.0
        for kind, steps in self._remaining.items():
            timed = self._timed[kind]
            each = self._seconds[kind] / timed if timed else per_pixel * _num_pixels(kind)
            total += steps * each
        return total


def _num_pixels(kind: Kind) -> int:
    shape, batch_size = kind
    return batch_size * shape.num_pixels


class Display:
    """A run's live line. Use it as a context manager."""

    def __init__(self, plan: Plan, *, title: str, first_step: int, console: Console) -> None:
        self._plan, self._title, self._console = plan, title, console
        self._left = TimeLeft(plan, first_step=first_step)
        self._phase = -1
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._live.add_task(
            title, total=len(plan), completed=first_step, detail="", start=True
        )

    def __enter__(self) -> Display:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def step(self, step: Step, *, seconds: float) -> None:
        """A step is done."""
        self._left.add(step, seconds)
        phase = self._plan.phases[step.phase]
        where = f"phase {step.phase + 1}/{len(self._plan.phases)}"
        if self._console.is_terminal:
            self._live.update(
                self._task,
                completed=step.index + 1,
                description=f"{self._title}  {where}",
                detail=(
                    f"{step.batch_size} x {step.shape}  {step.batch_size / seconds:.0f} clips/s"
                    f"  {duration(self._left.seconds())} left"
                ),
            )
        elif step.phase != self._phase:
            self._console.print(
                f"{self._title}: {where} ({phase.kind}), step {step.index} of "
                f"{len(self._plan)}, base {phase.base.batch_size} x {phase.base.shape}",
                soft_wrap=True,
            )
        self._phase = step.phase

    def say(self, line: str) -> None:
        """Something that a person should know happened."""
        self._console.print(f"{self._title}: {line}", soft_wrap=True)

    def end_of_phase(self, stats: LoaderStats) -> None:
        """A phase is done; say so if the loader held it up."""
        if stats.loader_bound:
            self.say(stats.verdict)

    def validation(self, row: dict[str, Any]) -> None:
        """A validation is done."""
        scores = ", ".join(f"{key} {row[key]:.1%}" for key in ("top1", "top5", "map") if key in row)
        if row["coverage"] < 1:
            scores += f" (on {row['coverage']:.1%} of the listed videos)"
        self._console.print(
            f"{self._title}: step {row['step'] + 1} of {len(self._plan)}, "
            f"{duration(row['seconds'])} trained, {scores}"
            + (f", {duration(self._left.seconds())} left" if self._left.seconds() > 0 else ""),
            soft_wrap=True,
        )


def duration(seconds: float) -> str:
    """Seconds as a person writes them: 42 s, 3:05 min, 7:30 h."""
    if seconds != seconds:
        return "?"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
