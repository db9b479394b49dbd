"""The rows of steps: kept while losses and times are on the way to the host, then written together.

In: each step's loss on its device, and moments of its clock. Out: rows of ``metrics.jsonl``, and
what a person is shown. Reading a loss waits for the device, so several are read at a time; on a GPU
those are of the flush before, which the device has long done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vcycle.devices.agreement import mean_losses
from vcycle.devices.fabric import Fabric
from vcycle.schedule.plan import Step
from vcycle.train.clock import Clock, HostClock
from vcycle.train.run_folder import RunFolder


@dataclass(frozen=True)
class StepLoss:
    """The loss of a step over all processes; of this one's clips, and how many were right."""

    step: int
    mean: float
    own: float
    right: float
    is_skipped: bool = False


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step by its device, and for how many of them it had no clips."""

    step: Step
    seconds: float
    waited: float


@dataclass
class _Row:
    """A step that is not written yet; ``waits`` are pairs of moments."""

    step: Step
    is_skipped: bool
    began: Any
    waits: Sequence[tuple[Any, Any]]
    ended: Any
    seconds_left: float
    has_norm: bool
    time: StepTime | None = None
    total_seconds: float = 0.0


class StepLog:
    """Rows for ``metrics.jsonl``. Leaving the context writes what is left.

    ``seconds`` are those of all steps that were timed, and of the ``first_seconds`` before them.
    """

    def __init__(
        self, folder: RunFolder, *, fabric: Fabric, clock: Clock, first_seconds: float = 0.0
    ) -> None:
        self._folder = folder
        self._fabric = fabric
        self._clock = clock
        self.seconds = first_seconds
        self._phase_clips, self._phase_seconds, self._phase_waited = 0, 0.0, 0.0
        self._untimed: deque[_Row] = deque()
        self._times: list[StepTime] = []
        self._rows: list[_Row] = []
        # (3,) of each row: the loss, how many were right, the norm of the gradients.
        self._values: list[Tensor] = []
        # Rows whose values are on the way: (3, rows), means over processes, when they are there.
        self._sent: deque[tuple[list[_Row], Tensor, Tensor, Any]] = deque()

    def add(
        self,
        step: Step,
        values: Tensor,
        *,
        began: Any,
        waits: Sequence[tuple[Any, Any]],
        ended: Any,
        left: float,
        gradient_norm: Tensor | None = None,
        is_skipped: bool = False,
    ) -> None:
        """Keep a step's row until it is flushed.

        ``values``: (2,) on any device, the loss and the number of clips that were right.
        ``gradient_norm``, a scalar there, is of all processes. ``left`` are the seconds that the
        steps after this one are predicted to take. The others are moments of the clock: the step's
        begin and end, and between which it waited for clips.
        """
        has_norm = gradient_norm is not None
        row = _Row(step, is_skipped, began, waits, ended, seconds_left=left, has_norm=has_norm)
        norm = values.new_zeros(()) if gradient_norm is None else gradient_norm.to(values)
        self._values.append(torch.cat([values, norm[None]]))
        self._rows.append(row)
        self._untimed.append(row)

    def take_times(self) -> list[StepTime]:
        """The times of steps that are over and were not taken before. Does not wait."""
        while self._untimed and self._clock.is_over(self._untimed[0].ended):
            self._time(self._untimed.popleft())
        times, self._times = self._times, []
        return times

    def _time(self, row: _Row) -> None:
        seconds = self._clock.seconds(row.began, row.ended)
        waited = sum(self._clock.seconds(*pair) for pair in row.waits)
        self.seconds += seconds
        self._phase_clips += row.step.batch_size
        self._phase_seconds += seconds
        self._phase_waited += waited
        row.time, row.total_seconds = StepTime(row.step, seconds, waited), self.seconds
        self._times.append(row.time)

    def take_phase(self) -> tuple[int, float, float]:
        """Of the steps timed since this was last called: clips, seconds, seconds without clips."""
        found = self._phase_clips, self._phase_seconds, self._phase_waited
        self._phase_clips, self._phase_seconds, self._phase_waited = 0, 0.0, 0.0
        return found

    def flush(self, *, waits: bool) -> list[StepLoss]:
        """Send off the kept rows, write those that have come and return their losses.

        With ``waits`` these are all; else, on a GPU, those of the flush before. All processes call
        this after the same steps. A loss that is not finite is null in the file.
        """
        if self._rows:
            own = torch.stack(self._values, 1)  # (3, rows)
            means = mean_losses(own[0], self._fabric)
            host = [each.to("cpu", non_blocking=True) for each in (own, means)]
            self._sent.append((self._rows, host[0], host[1], self._clock.now()))
            self._rows, self._values = [], []
        keeps = 0 if waits or isinstance(self._clock, HostClock) else 1
        losses = []
        while len(self._sent) > keeps:
            rows, own, means, arrival = self._sent.popleft()
            self._clock.wait(arrival)
            losses += self._write(rows, means.tolist(), own.tolist())
        return losses

    def _write(
        self, rows: list[_Row], means: list[float], own: list[list[float]]
    ) -> list[StepLoss]:
        self._clock.wait(rows[-1].ended)
        while rows[-1].time is None:
            self._time(self._untimed.popleft())
        losses, right, norms = own
        self._folder.add_steps([_values(*each) for each in zip(rows, means, norms, strict=True)])
        return [
            StepLoss(row.step.index, mean, mine, correct, row.is_skipped)
            for row, mean, mine, correct in zip(rows, means, losses, right, strict=True)
        ]

    def __enter__(self) -> StepLog:
        return self

    def __exit__(self, *_: object) -> None:
        """Write the rows that an error left, with this process's losses: others may be gone."""
        for rows, own, means, arrival in self._sent:
            self._clock.wait(arrival)
            self._write(rows, means.tolist(), own.tolist())
        if self._rows:
            values = torch.stack(self._values, 1).tolist()
            self._write(self._rows, values[0], values)


def _values(row: _Row, loss: float, gradient_norm: float) -> dict[str, Any]:
    """What the file says of a step."""
    step, time = row.step, row.time
    assert time is not None, "a step whose loss has come is over"
    return {
        "step": step.index,
        "phase": step.phase,
        "shape": str(step.shape),
        "token_share": step.token_share,
        "batch_size": step.batch_size,
        "learning_rate": step.learning_rate,
        "norm_group": step.norm_group,
        "clips_per_second": step.batch_size / time.seconds,
        "waiting_seconds": time.waited,
        "seconds": row.total_seconds,
        "seconds_left": row.seconds_left,
        **({"skipped": True} if row.is_skipped else {}),
        "loss": _finite(loss),
        **({"gradient_norm": _finite(gradient_norm)} if row.has_norm else {}),
    }


def _finite(number: float) -> float | None:
    """What JSON can hold of a number."""
    return number if math.isfinite(number) else None
