"""Times by a device's events: a stand-in for a GPU that falls behind what is launched."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric

from tests.train.plans import PLAN
from vcycle.data.json_lines import read_rows
from vcycle.train.clock import DeviceClock, HostClock, clock_of
from vcycle.train.run_folder import RunFolder
from vcycle.train.step_log import StepLog


class Device:
    """Work is launched at once and done later; ``waits`` counts how often the host waited."""

    def __init__(self) -> None:
        self.launched = 0.0  # milliseconds of work
        self.done = 0.0
        self.waits = 0

    def event(self) -> Any:
        event = SimpleNamespace(at=None)

        def record() -> None:
            event.at = self.launched

        def synchronize() -> None:
            self.waits += 1
            self.done = max(self.done, event.at)

        def elapsed_time(end: Any) -> float:
            assert max(event.at, end.at) <= self.done, "read before it was over"
            return float(end.at - event.at)

        event.record, event.synchronize, event.elapsed_time = record, synchronize, elapsed_time
        event.query = lambda: event.at <= self.done
        return event


@pytest.fixture
def folder(tmp_path: Any) -> RunFolder:
    tmp_path.joinpath("run").mkdir()
    return RunFolder(tmp_path / "run")


def add_step(log: StepLog, clock: DeviceClock, device: Device, index: int, began: Any) -> Any:
    """A step that waits 20 ms for clips and works 100 ms."""
    asked = clock.now()
    device.launched += 20
    got = clock.now()
    device.launched += 100
    ended = clock.now()
    values = torch.tensor([float(index), 1.0])
    log.add(PLAN[index], values, began=began, waits=[(asked, got)], ended=ended, left=1.5)
    return ended


def test_times_are_those_of_the_device_and_losses_come_a_flush_late(folder: RunFolder) -> None:
    device = Device()
    clock = DeviceClock(device.event)
    fabric = Fabric(accelerator="cpu", devices=1)
    with StepLog(folder, fabric=fabric, clock=clock, first_seconds=5.0) as log:
        moment = clock.now()
        for index in range(4):
            moment = add_step(log, clock, device, index, moment)
        assert log.take_times() == []
        device.done = 250
        assert [(time.step.index, time.seconds, time.waited) for time in log.take_times()] == [
            (0, pytest.approx(0.12), pytest.approx(0.02)),
            (1, pytest.approx(0.12), pytest.approx(0.02)),
        ]
        assert log.flush(waits=False) == []
        assert device.waits == 0
        moment = add_step(log, clock, device, 4, moment)
        assert [loss.step for loss in log.flush(waits=False)] == [0, 1, 2, 3]
        assert device.done < device.launched, "the step under way was waited for"
        assert [time.step.index for time in log.take_times()] == [2, 3]
        last = log.flush(waits=True)
        assert [(loss.step, loss.mean, loss.own, loss.right) for loss in last] == [(4, 4, 4, 1)]
        assert log.seconds == pytest.approx(5.6)
        clips = sum(PLAN[index].batch_size for index in range(5))
        assert log.take_phase() == (clips, pytest.approx(0.6), pytest.approx(0.1))
        assert log.take_phase() == (0, 0, 0)
    rows = read_rows(folder.path / "metrics.jsonl")
    assert [row["seconds"] for row in rows] == pytest.approx([5.12, 5.24, 5.36, 5.48, 5.6])
    assert {round(row["waiting_seconds"], 6) for row in rows} == {0.02}
    assert {row["seconds_left"] for row in rows} == {1.5}
    assert "gradient_norm" not in rows[0]
    assert rows[0]["clips_per_second"] == pytest.approx(PLAN[0].batch_size / 0.12)


def test_an_error_leaves_the_rows_of_steps_that_were_launched(folder: RunFolder) -> None:
    device = Device()
    clock = DeviceClock(device.event)
    fabric = Fabric(accelerator="cpu", devices=1)
    with StepLog(folder, fabric=fabric, clock=clock) as log:  # leaving it is the same
        moment = clock.now()
        for index in range(3):
            moment = add_step(log, clock, device, index, moment)
            if index == 1:
                log.flush(waits=False)
    rows = read_rows(folder.path / "metrics.jsonl")
    assert [(row["step"], row["loss"]) for row in rows] == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_cpu_has_done_what_was_launched(folder: RunFolder) -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    with StepLog(folder, fabric=Fabric(accelerator="cpu", devices=1), clock=clock) as log:
        began, ended = clock.now(), clock.now()
        log.add(PLAN[0], torch.tensor([0.5, 3]), began=began, waits=[], ended=ended, left=1.0)
        (time,) = log.take_times()
        assert time.seconds > 0
        assert time.waited == 0
        assert [loss.right for loss in log.flush(waits=False)] == [3]
