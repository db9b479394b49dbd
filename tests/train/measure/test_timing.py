"""Predicted seconds, against a sum over steps."""

from __future__ import annotations

import io
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from tests.train.measure.times import (
    CONFIG,
    FINAL_SECONDS,
    NORMS_SECONDS,
    PLAN,
    TIMES,
    WITH_FINAL,
    WITH_NORMS,
)
from vcycle.train.activity import Activity
from vcycle.train.measure import measuring
from vcycle.train.measure.rehearsal import Rehearsed
from vcycle.train.measure.timing import Kind, StepTimes, run_seconds
from vcycle.train.progress import Display
from vcycle.train.step_log import StepTime


@pytest.mark.parametrize("schedule", ["anneal", "paper"])
def test_a_prediction_is_the_sum_over_steps(schedule: str) -> None:
    """The paper's has a short cycle, which phases begin and end anywhere."""
    config = replace(CONFIG, multigrid=CONFIG.multigrid.with_schedule(schedule))
    plan = config.plan()
    prediction = run_seconds(config, TIMES, val_videos=50)
    steps = [TIMES.step(Kind.of(step)) for step in plan[:]]
    assert prediction.steps == pytest.approx(sum(steps))
    assert prediction.phases == pytest.approx(
        [sum(steps[phase.first_step : phase.end_step]) for phase in plan.phases]
    )
    assert prediction.validations == pytest.approx(20 * 50 * 0.01)
    with_final = run_seconds(WITH_FINAL, TIMES, val_videos=50)
    assert with_final.validations == pytest.approx(20 * 50 * 0.01 + FINAL_SECONDS)
    with_norms = run_seconds(WITH_NORMS, TIMES, val_videos=50)
    assert with_norms.validations == pytest.approx(20 * 50 * 0.01 + NORMS_SECONDS)
    without = replace(TIMES, has_norms=False)  # as a transformer, which estimates none
    assert run_seconds(WITH_NORMS, without, val_videos=50).validations == prediction.validations
    more = replace(config, evaluation=replace(config.evaluation, times=10**6))
    assert run_seconds(more, TIMES, val_videos=50).validations == pytest.approx(
        len(plan) * 50 * 0.01  # one after each step
    )


def test_a_step_takes_as_long_as_the_slower_of_model_and_loader() -> None:
    kind = next(iter(TIMES.model))
    assert TIMES.step(kind) == max(TIMES.model[kind], kind.batch_size * 0.004 / 2)
    alone = replace(TIMES, workers=0)
    assert alone.step(kind) == pytest.approx(TIMES.model[kind] + kind.batch_size * 0.004)
    crowded = replace(TIMES, shared_cores=1)
    assert crowded.step(kind) == pytest.approx(TIMES.model[kind] + kind.batch_size * 0.004)
    shared = replace(TIMES, processes=2)
    assert shared.step(kind) == max(TIMES.model[kind], kind.batch_size / 2 * 0.004 / 2)
    assert shared.step(kind) > TIMES.model[kind]


def test_steps_that_keep_other_shares_of_their_tokens_take_other_times() -> None:
    shape = PLAN.shapes[-1]
    model = {Kind(shape, 4, 0.5): 0.1, Kind(shape, 4): 0.3}
    times = StepTimes(model=model, decode={shape: 0.0}, workers=2)
    assert [times.step(kind) for kind in model] == [0.1, 0.3]
    assert times.step(Kind(shape, 4, 0.25)) == pytest.approx(0.05)  # half the tokens of the nearest


def test_a_slowdown_is_of_steps_and_of_no_share() -> None:
    slow = replace(TIMES, slowdown=1.5)
    assert slow.plan(PLAN) == pytest.approx(1.5 * TIMES.plan(PLAN))
    assert slow.waiting_share(PLAN) == pytest.approx(TIMES.waiting_share(PLAN))
    assert slow.validation(CONFIG.baseline.shape, 7) == TIMES.validation(CONFIG.baseline.shape, 7)


def test_the_shape_that_is_slowest_to_decode_is_named_with_both_speeds() -> None:
    """Clips of one shape take ten times as long to decode as the others'."""
    slow = PLAN.shapes[1]
    times = replace(TIMES, decode={**TIMES.decode, slow: 0.04}, processes=2)
    shape, taken, decoded = times.slowest_to_decode(PLAN)
    assert shape == slow
    assert decoded == pytest.approx(25)
    speeds = {
        each.batch_size / 2 / TIMES.model[Kind.of(each)]
        for each in PLAN.mini_batches()
        if each.shape == slow
    }
    assert taken == pytest.approx(max(speeds))


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_lines_fit(width: int) -> None:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=None)
    display = Display(
        PLAN, TIMES.step, title="a_rather_long_name_of_my_videos-1", first_step=0, console=console
    )
    display.step(StepTime(PLAN[0], seconds=0.5, waited=0.1))
    console.print(display._lines())
    lines = file.getvalue().splitlines()
    assert len(lines) == 2
    assert max(map(len, lines)) <= width
    assert f"1/{len(PLAN)}" in lines[0]
    assert "left" in lines[0]
    assert "20% waiting" in lines[1]


@pytest.mark.parametrize(
    ("others", "allowed", "quota", "threads", "said"),
    [
        (0.2, 2, 2, 2, False),
        (0.8, 2, 2, 2, True),
        (0.8, 2, 2, 1, False),
        (1.8, 2, 2, 1, True),
        # A container that may use two cores at a time, any of 64: PyTorch starts 64 threads.
        (0.0, 64, 2, 64, False),
        (40.0, 64, 2, 64, False),
        (63.0, 64, 2, 64, True),
    ],
)
def test_cores_that_others_took_while_steps_were_timed_are_spoken_of(
    others: float,
    allowed: int,
    quota: int,
    threads: int,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measuring, "allowed_cores", lambda: allowed)
    monkeypatch.setattr(measuring, "process_cores", lambda: quota)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    file = io.StringIO()
    measuring._say_busy(others, Activity(Console(file=file, width=200)))
    begin = f"other programs kept {others} of {allowed} cores busy"
    assert file.getvalue().startswith(begin) == said


def test_views_are_not_predicted_by_frames_that_training_keeps() -> None:
    shape = PLAN.baseline.shape
    files = replace(TIMES, view_seconds=0.0)
    kept = replace(files, decode=dict.fromkeys(TIMES.decode, 1e-9), view_decode=0.004)
    assert kept.validation(shape, 30) == files.validation(shape, 30) == pytest.approx(30 * 0.002)
    assert kept.plan(PLAN) < files.plan(PLAN)


def test_what_is_measured_says_who_shares_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes on 4 cores, where PyTorch starts 3 threads; and only steps to come count."""
    limits: list[float] = []

    def slowdown(*_: Any, limit_seconds: float, **__: Any) -> float:
        limits.append(limit_seconds)
        return 1.5

    rehearsed = Rehearsed(dict(TIMES.model), TIMES.view_seconds, {})
    monkeypatch.setattr(measuring, "rehearse", lambda *_, **__: rehearsed)
    monkeypatch.setattr(measuring, "decode_seconds", lambda *_, **__: TIMES.decode)
    monkeypatch.setattr(measuring, "slowdown", slowdown)
    monkeypatch.setattr(measuring, "process_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    fabric: Any = SimpleNamespace(
        device=torch.device("cpu"), world_size=2, is_global_zero=True, broadcast=lambda found: found
    )
    config = replace(CONFIG, data=replace(CONFIG.data, num_workers=2))
    network = torch.nn.Linear(2, 2)  # without batch norm
    gradients: Any = SimpleNamespace(config=config, fabric=fabric, pieces=None, network=network)
    nothing: Any = None
    videos = SimpleNamespace(multi_label=False)
    dataset: Any = SimpleNamespace(kept=None, manifest=videos)
    shared = replace(TIMES, shared_cores=4, model_threads=3, processes=2, has_norms=False)
    for first_step in (len(PLAN) - 200, len(PLAN) - 100):
        found = measuring.measure(
            gradients,
            nothing,
            dataset,
            first_step=first_step,
            activity=nothing,
            budget_seconds=None,
        )
        assert found.times == replace(shared, slowdown=1.5)
        left = sum(shared.step(Kind.of(step)) for step in PLAN[first_step:])
        assert limits.pop() == pytest.approx(measuring._MEASURING_SHARE * left)
