"""What is said to limit a phase, from counts and seconds made up by hand."""

from __future__ import annotations

import dataclasses

import pytest

from vcycle.data.loader_stats import LoaderStats


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
    left = dataclasses.replace(slow, decodes_fast=True, left_share=0.25)
    assert left.verdict().endswith(
        "would keep up; --data.decoder cannot decode 25.0% of the clips, PyAV did"
    )
    fast = dataclasses.replace(slow, wait_seconds=0.01)
    assert fast.verdict() == "compute-bound (990 clips/s, 1% waiting for data)"
    starting = dataclasses.replace(slow, num_workers=9)
    assert starting.verdict().endswith("9 workers): they decode fast enough once they have started")
