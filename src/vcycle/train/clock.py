"""Moments of a run and the seconds between them, by the clock of what does the work.

In: the device that trains. Out: a Clock. A GPU works on what was launched long before: the time of
a launch says nothing, so a moment there is an event in its stream, whose time is read once it is
over. Nothing here waits unless it is asked to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


class HostClock:
    """For a CPU, which has done what it was told to when the call returns; by the clock given."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def is_over(self, moment: float) -> bool:
        """Always."""
        return True

    def wait(self, moment: float) -> None:
        """Nothing to wait for."""

    def seconds(self, start: float, end: float) -> float:
        """From one to the other."""
        return end - start


class DeviceClock:
    """For a GPU: events in the current stream, made by ``new_event``."""

    def __init__(self, new_event: Callable[[], Any]) -> None:
        self._new_event = new_event

    def now(self) -> Any:
        """An event behind all that was launched so far."""
        event = self._new_event()
        event.record()
        return event

    def is_over(self, moment: Any) -> bool:
        """Whether the device has come to the event."""
        return bool(moment.query())

    def wait(self, moment: Any) -> None:
        """Wait until the device has come to the event."""
        moment.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Between two events, to half a microsecond."""
        return float(start.elapsed_time(end)) / 1000


Clock = HostClock | DeviceClock


def clock_of(device: torch.device) -> Clock:
    """The clock of what ``device`` does."""
    if device.type != "cuda":
        return HostClock()
    return DeviceClock(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
