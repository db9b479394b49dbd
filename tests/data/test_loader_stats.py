"""What is said to limit a phase, from counts and seconds made up by hand."""

from __future__ import annotations

import dataclasses

import pytest

from vcycle.data.loader_stats import LoaderStats, LoaderTimer


def test_the_stats_say_what_limits():
    slow = LoaderStats(
        num_workers=2,
        num_clips=1000,
        wait_seconds=3.0,
        use_seconds=1.0,
        work_seconds=8.0,
    )
    assert slow.clips_per_second == pytest.approx(250)
    assert slow.wait_share == pytest.approx(0.75)
    assert slow.workers_needed == 9
    assert slow.verdict().startswith("loader-bound (250 clips/s, 75% waiting for data, ")
    assert "9 workers on cores of their own" in slow.verdict()
    fast = dataclasses.replace(slow, wait_seconds=0.01)
    assert fast.verdict() == "compute-bound (990 clips/s, 1% waiting for data)"
    starting = dataclasses.replace(slow, num_workers=9)
    assert starting.verdict().endswith("9 workers): they decode fast enough once they have started")


@pytest.fixture
def clock(monkeypatch):
    """A list whose one number is the time."""
    now = [100.0]
    monkeypatch.setattr("vcycle.data.loader_stats.time.monotonic", lambda: now[0])
    return now


def test_waiting_and_use_take_turns(clock):
    timer = LoaderTimer(num_workers=2)
    for _ in range(3):
        timer.start_wait()
        clock[0] += 0.5
        timer.end_wait(8)
        clock[0] += 2.0
    timer.add_work(4.0)
    timer.start_wait()
    clock[0] += 60.0  # nothing is in use, and this wait has not ended
    stats = timer.take()
    assert stats == LoaderStats(2, 24, wait_seconds=1.5, use_seconds=6.0, work_seconds=4.0)
    assert timer.take() == LoaderStats(2)


def test_the_batch_in_use_counts_once(clock):
    timer = LoaderTimer(num_workers=1)
    timer.start_wait()
    timer.end_wait(4)
    clock[0] += 3.0
    assert timer.take().use_seconds == 3.0
    clock[0] += 1.0
    timer.start_wait()
    assert timer.take().use_seconds == 1.0
    timer.end_wait(4)
    clock[0] += 5.0
    timer.abandon()
    assert timer.take().use_seconds == 0.0
