"""What a person sees while a run goes on: phase, shape, rate of work, time left.

On a terminal two live lines; elsewhere a line a phase and a validation, and one every few seconds
in between. Time left is the plan's remaining steps of each mini-batch shape times the seconds that
such a step has taken so far, or was measured to take before the run.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from vcycle.data.loader_stats import LoaderStats
from vcycle.evaluate.metric_names import (
    BY_CLASS,
    METRICS,
    misses_rare_classes,
    nonfinite_line,
)
from vcycle.schedule.messages import duration
from vcycle.schedule.plan import Plan, Step
from vcycle.train.activity import Activity
from vcycle.train.measure.timing import Kind
from vcycle.train.step_log import StepLoss, StepTime

_RECENT_STEPS = 20
_PREDICTION_STEPS = 20  # of a kind count as much as what was predicted of it
_WAIT_SHARE = 0.1  # of a phase, from which on it is said
_LEAST_SECONDS = 10.0


class TimeLeft:
    """Predicts the seconds that the rest of a plan takes, from the steps timed so far.

    A mini-batch not seen yet takes what is ``predicted`` of it, corrected by how the prediction
    did on those that were. The more often one was seen, the more its own mean counts.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        predicted: Callable[[Kind], float],
        first_step: int = 0,
    ) -> None:
        self._predicted = predicted
        self._remaining: Counter[Kind] = Counter()
        for each in plan.mini_batches(first_step=first_step):
            self._remaining[Kind.of(each)] += each.steps
        # No kind is added later: another thread reads them, for the display.
        self._seconds = dict.fromkeys(self._remaining, 0.0)
        self._timed = dict.fromkeys(self._remaining, 0)

    def launch(self, step: Step) -> None:
        """One more step is under way: a GPU does it some steps later."""
        self._remaining[Kind.of(step)] -= 1

    def add(self, step: Step, seconds: float) -> None:
        """One more step is done."""
        kind = Kind.of(step)
        self._timed[kind] += 1
        self._seconds[kind] += seconds

    def seconds(self) -> float:
        """Seconds of the steps that are not under way yet."""
        expected = sum(count * self._predicted(kind) for kind, count in self._timed.items())
        factor = sum(self._seconds.values()) / expected if expected else 1.0
        total = 0.0
        for kind, steps in self._remaining.items():
            timed = self._timed[kind]
            known = self._seconds[kind] + _PREDICTION_STEPS * factor * self._predicted(kind)
            total += steps * known / (timed + _PREDICTION_STEPS)
        return total


class Display:
    """What is shown of a run. Use it as a context manager.

    ``step_seconds`` predicts a step's seconds by its kind, for those that were not seen yet;
    ``processes`` share every batch; with ``multi_label`` no clip is right or wrong.
    """

    def __init__(
        self,
        plan: Plan,
        step_seconds: Callable[[Kind], float],
        *,
        title: str,
        first_step: int,
        console: Console,
        processes: int = 1,
        multi_label: bool = False,
    ) -> None:
        self._processes, self._multi_label = processes, multi_label
        self._plan, self._title, self._console = plan, title, console
        self._left = TimeLeft(plan, first_step=first_step, predicted=step_seconds)
        self._done, self._phase = first_step, -1
        self._doing, self._doing_since = "starting the workers", time.monotonic()
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=_RECENT_STEPS)
        self._step: Step | None = None
        self._loss, self._accuracy = float("nan"), float("nan")
        self._live = Live(
            get_renderable=self._lines, console=console, refresh_per_second=4, transient=True
        )
        self._activity = Activity(console, live=False)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        self._activity.__enter__()
        self._activity.update(self._status)
        return self

    def __exit__(self, *_: object) -> None:
        self._activity.__exit__()
        if self._console.is_terminal:
            self._live.stop()

    def doing(self, text: str) -> None:
        """Something beside steps, which may take a while."""
        self._doing, self._doing_since = text, time.monotonic()

    def step(self, time: StepTime) -> None:
        """A step is done, of which it waited for data for a part."""
        step = time.step
        # Workers start during the first wait, which tells nothing of other steps.
        self._left.add(step, time.seconds if self._recent else time.seconds - time.waited)
        self._recent.append((step.batch_size, time.seconds, time.waited))
        self._done, self._doing, self._step = step.index + 1, "", step
        phase = self._plan.phases[step.phase]
        if step.phase != self._phase and not self._console.is_terminal:
            self.say(
                f"{self._place()} ({phase.kind}), step {step.index} of {len(self._plan)}, "
                f"base {phase.base.batch_size} x {phase.base.shape}"
            )
        self._phase = step.phase

    def launch(self, step: Step) -> None:
        """A step is under way."""
        self._left.launch(step)

    def seconds_left(self) -> float:
        """Of the steps that are not under way yet, without validations."""
        return self._left.seconds()

    def training(self, losses: Sequence[StepLoss]) -> None:
        """Losses that have come; the last is shown, with the share of right clips if there is.

        Of several processes each knows its own clips alone: then the share is not shown.
        """
        if losses:
            last = losses[-1]
            self._loss = last.mean
            if not self._multi_label and self._processes == 1:
                self._accuracy = last.right / self._plan[last.step].batch_size

    def say(self, line: str) -> None:
        """Something that a person should know happened."""
        self._activity.say(f"{self._title}: {line}")

    def end_of_phase(self, stats: LoaderStats) -> None:
        """A phase is done; say so if it waited for clips that more workers would have had ready."""
        seconds = stats.wait_seconds + stats.use_seconds
        if seconds < _LEAST_SECONDS:  # of which the start of the workers may be most
            return
        if stats.wait_share > _WAIT_SHARE and stats.workers_needed > stats.num_workers:
            self.say(stats.verdict())

    def validation(self, row: dict[str, Any]) -> None:
        """A validation is done."""
        shown = [key for key in METRICS if key in row and key != BY_CLASS]
        scores = ", ".join(f"{key} {row[key]:.1%}" for key in shown)
        if misses_rare_classes(row):
            scores += f", {METRICS[BY_CLASS]} {row[BY_CLASS]:.1%}"
        if row["coverage"] < 1:
            scores += f" (on {row['coverage']:.1%} of the listed videos)"
        if line := nonfinite_line(row):
            self.say(f"warning: {line}")
        left = self._left.seconds()
        self.say(
            f"step {row['step'] + 1} of {len(self._plan)}, {duration(row['seconds'])} trained, "
            + (f"loss {self._loss:.3f}, " if self._loss == self._loss else "")
            + scores
            + (f", {duration(left)} left" if left > 0 else "")
        )
        self._doing = ""

    def _place(self) -> str:
        number = self._step.phase + 1 if self._step is not None else 1
        return f"phase {number}/{len(self._plan.phases)}"

    def _status(self) -> str:
        """One line of where the run is, for a file."""
        place = f"{self._title}: step {self._done} of {len(self._plan)}"
        since = time.monotonic() - self._doing_since
        if self._doing and (since >= 1 or self._step is None):  # what is over soon is not worth it
            return f"{place}, {self._doing} ({since:.0f} s)"
        return ", ".join([place, *self._facts()])

    def _facts(self) -> list[str]:
        if self._step is None:
            return []
        clips, seconds, waited = (sum(each) for each in zip(*self._recent, strict=True))
        facts = [f"{self._step.batch_size} x {self._step.shape}"]
        if self._loss == self._loss:
            facts.append(f"loss {self._loss:.3f}")
        if self._accuracy == self._accuracy:
            facts.append(f"acc {self._accuracy:.0%}")
        return [
            *facts,
            f"rate {self._step.learning_rate:.3g}",
            f"{clips / seconds:.0f} clips/s",
            f"{waited / seconds:.0%} waiting",
            f"{duration(self._left.seconds())} left",
        ]

    def _lines(self) -> Group:
        """Two lines for a terminal: how far, and how it goes; what does not fit is left out."""
        bar = ProgressBar(total=len(self._plan), completed=self._done, width=20)
        first = Table.grid(padding=(0, 1))
        place = f"{self._title}  {self._place()}"
        left = f"{duration(self._left.seconds())} left" if self._step is not None else ""
        count = f"{self._done}/{len(self._plan)}"
        first.add_row(
            Spinner("dots"), Text(place, no_wrap=True, overflow="ellipsis"), bar, count, left
        )
        facts = [self._doing] if self._doing else self._facts()[:-1]
        while len("  ".join(facts)) > self._console.width - 2 and len(facts) > 1:
            facts.pop()
        return Group(first, Text("  " + "  ".join(facts), no_wrap=True, overflow="ellipsis"))
