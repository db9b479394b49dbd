"""Predicted seconds, against a sum over steps; and the plan that fits a budget."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from vcycle.cli.train import parse_time
from vcycle.config.run import Model, RunConfig
from vcycle.config.schedule_choice import FEWEST_STEPS, timed
from vcycle.config.sizing import Asked, fewest_steps, has_plan, time_text, with_steps
from vcycle.config.user_recipes import scratch
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.measure import measuring, timing
from vcycle.train.measure.rehearsal import Rehearsed
from vcycle.train.measure.timing import Kind, StepTimes, fit_budget, predict, smaller
from vcycle.train.progress import Display
from vcycle.train.step_log import StepTime

CONFIG = replace(scratch(num_videos=300), model=Model("resnet3d_tiny"))
PLAN = CONFIG.plan()
TIMES = StepTimes(
    model={Kind.of(each): 0.1 + 0.01 * k for k, each in enumerate(PLAN.mini_batches())},
    decode=dict.fromkeys(PLAN.shapes, 0.004),
    workers=2,
    view_seconds=0.01,
)
WITH_FINAL = replace(CONFIG, evaluation=replace(CONFIG.evaluation, final_clips=10, final_crops=3))
FINAL_SECONDS = 50 * 10 * 3 * 0.01


@pytest.mark.parametrize("schedule", ["anneal", "paper"])
def test_a_prediction_is_the_sum_over_steps(schedule: str) -> None:
    """The paper's has a short cycle, which phases begin and end anywhere."""
    config = replace(CONFIG, multigrid=CONFIG.multigrid.with_schedule(schedule))
    plan = config.plan()
    prediction = predict(config, TIMES, val_videos=50)
    steps = [TIMES.step(Kind.of(step)) for step in plan[:]]
    assert prediction.steps == pytest.approx(sum(steps))
    assert prediction.phases == pytest.approx(
        [sum(steps[phase.first_step : phase.end_step]) for phase in plan.phases]
    )
    assert prediction.validations == pytest.approx(20 * 50 * 0.01)
    with_final = predict(WITH_FINAL, TIMES, val_videos=50)
    assert with_final.validations == pytest.approx(20 * 50 * 0.01 + FINAL_SECONDS)
    more = replace(config, evaluation=replace(config.evaluation, times=10**6))
    assert predict(more, TIMES, val_videos=50).validations == pytest.approx(
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


@pytest.mark.parametrize(("config", "final"), [(CONFIG, 0.0), (WITH_FINAL, FINAL_SECONDS)])
@pytest.mark.parametrize("seconds", [100.0, 300.0, 7200.0, 1e5])
def test_a_budget_is_used_and_not_exceeded(seconds: float, config: RunConfig, final: float) -> None:
    fitted = fit_budget(config, TIMES, seconds, val_videos=50)
    prediction = predict(fitted, TIMES, val_videos=50)
    assert 0.9 * seconds < prediction.total <= seconds
    assert prediction.validations - final <= 0.1 * seconds
    assert "asked for" in fitted.steps_note
    assert fitted.notes == CONFIG.notes
    shares = [end / fitted.baseline.steps for end in fitted.baseline.stage_ends]
    before = [end / CONFIG.baseline.steps for end in CONFIG.baseline.stage_ends]
    assert shares == pytest.approx(before, abs=2 / fitted.baseline.steps)


def test_a_budget_fits_where_some_lengths_have_no_plan() -> None:
    """Of the paper's schedule 66 steps have a plan, 67 to 72 have none."""
    cycles = scratch(num_videos=300, model="resnet3d_tiny", asked=Asked(is_timed=True))
    cycles = replace(cycles, multigrid=cycles.multigrid.with_schedule("paper"), schedule_notes=())
    least = fewest_steps(cycles)
    plans = [has_plan(cycles, steps) for steps in range(least, least + 20)]
    assert not all(plans)
    times = StepTimes(
        model={Kind.of(each): 1.0 for each in cycles.plan().mini_batches()},
        decode=dict.fromkeys(cycles.plan().shapes, 1e-6),
        workers=1,
    )
    shortest = times.plan(with_steps(cycles, least).plan())
    took = {
        steps: times.plan(with_steps(cycles, steps).plan())
        for steps in range(least, least + 60)
        if has_plan(cycles, steps)
    }
    for extra in (0.1, 1.0, 2.0, 5.0, 9.0):
        fitted = fit_budget(cycles, times, shortest + extra, val_videos=0)
        fitting = [steps for steps, each in took.items() if each <= shortest + extra]
        assert fitted.baseline.steps == max(fitting)


@pytest.mark.parametrize(("seconds", "is_off"), [(30.0, True), (45.0, False)])
def test_a_budget_for_few_steps_is_the_baselines_unless_a_schedule_was_asked_for(
    seconds: float, is_off: bool
) -> None:
    recipe = replace(
        scratch(num_videos=300, model="resnet3d_tiny", asked=Asked(is_timed=True)),
        evaluation=replace(CONFIG.evaluation, times=1),
    )
    fitted = fit_budget(recipe, TIMES, seconds, val_videos=50)
    assert 0.9 * seconds < predict(fitted, TIMES, val_videos=50).total <= seconds
    assert fitted.schedule_notes[0].startswith("schedule off" if is_off else "schedule anneal")
    assert len(fitted.plan().shapes) == (1 if is_off else 3)
    asked = fit_budget(replace(recipe, schedule_notes=()), TIMES, seconds, val_videos=50)
    assert len(asked.plan().shapes) == 3


@pytest.mark.parametrize(
    ("decode", "model", "said"),
    [
        (1e-6, 1.0, None),
        (5.0, 1.0, "; decoding its clips takes long, which `vcycle data prepare` may shorten"),
        (1e-6, 20.0, "a smaller share than was shown to come to its accuracy"),
    ],
)
def test_a_budget_is_the_baselines_where_far_more_of_its_steps_fit(
    decode: float, model: float, said: str | None
) -> None:
    """As coarse clips take so long to decode, or their steps so long."""
    recipe = scratch(num_videos=300, model="resnet3d_tiny", asked=Asked(is_timed=True))
    plan = recipe.plan()
    full = recipe.baseline.shape
    times = StepTimes(
        model={
            Kind.of(each): 0.1 * (1.0 if each.shape == full else model)
            for each in plan.mini_batches()
        },
        decode={shape: 0.001 if shape == full else decode * 0.1 / 16 for shape in plan.shapes},
        workers=1,
    )
    fitted = fit_budget(recipe, times, 600.0, val_videos=1)
    assert (fitted.multigrid.anneal is None) == (said is not None)
    (why,) = fitted.schedule_notes[:1]
    assert why.startswith("schedule off" if said else "schedule anneal")
    assert why.endswith(said or "")


def test_a_budget_for_which_no_baseline_fits_still_asks_for_enough_steps() -> None:
    recipe = scratch(num_videos=300, model="resnet3d_tiny", asked=Asked(is_timed=True))
    off = timed(recipe, FEWEST_STEPS - 1, baseline_steps=0)
    assert off.multigrid.anneal is None
    assert timed(recipe, FEWEST_STEPS, baseline_steps=0) == recipe


@pytest.mark.parametrize("slower", [1, 100])
def test_a_budget_that_is_too_short_names_one_that_is_not(slower: int) -> None:
    """With that one the schedule may be another, whose shortest plan takes longer."""
    model = {kind: slower * seconds for kind, seconds in TIMES.model.items()}
    times = replace(TIMES, model=model)
    with pytest.raises(
        ValueError, match="--time 61s: the shortest plan of resnet3d_tiny"
    ) as caught:
        fit_budget(CONFIG, times, 0.6, val_videos=50, spent=60.0)
    advised = parse_time(re.findall(r"give --time (\w+)", str(caught.value))[0])
    fitted = fit_budget(CONFIG, times, advised - 60, val_videos=50, spent=60.0)
    assert predict(fitted, times, val_videos=50).total <= advised - 60


def test_what_is_left_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring.time, "monotonic", lambda: 1030.0)
    assert measuring.Budget(100.0, began=1000.0).left == 100 - 30 - measuring._START_SECONDS
    assert measuring._START_SECONDS > 0


@pytest.mark.parametrize(
    ("model", "shape", "flags"),
    [
        ("slowfast_r50", Shape(32, 224, 224), "--model resnet3d_tiny --shape 8x112x112"),
        ("slowfast_r50", Shape(8, 96, 96), "--model resnet3d_tiny --shape 8x96x96"),
        ("resnet3d_tiny", Shape(8, 112, 112), "--shape 4x64x64"),
        ("resnet3d_tiny", Shape(8, 32, 32), "--shape 4x32x32"),
        ("resnet3d_tiny", Shape(4, 32, 32), None),
        ("resnet3d_tiny", Shape(2, 64, 64), None),
    ],
)
def test_a_smaller_choice_is_smaller(model: str, shape: Shape, flags: str | None) -> None:
    baseline = replace(CONFIG.baseline, shape=shape)
    assert smaller(replace(CONFIG, model=Model(model), baseline=baseline)) == flags


@pytest.mark.parametrize(
    ("seconds", "exact", "longer"),
    [(15, "15s", "15s"), (150, "150s", "3m"), (300, "5m", "5m"), (7200, "2h", "2h")],
)
def test_a_time_is_written_as_the_flag_takes_it(seconds: int, exact: str, longer: str) -> None:
    assert time_text(seconds + 1e-9) == exact
    assert parse_time(exact) == seconds
    assert time_text(timing._next_round(seconds - 0.5)) == longer


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
    network: Any = torch.nn.Linear(1, 1)
    nothing: Any = None
    videos = SimpleNamespace(multi_label=False)
    dataset: Any = SimpleNamespace(kept=None, manifest=videos)
    shared = replace(TIMES, shared_cores=4, model_threads=3, processes=2)
    for first_step in (len(PLAN) - 200, len(PLAN) - 100):
        found = measuring.measure(
            config,
            network,
            network,
            nothing,
            dataset,
            first_step=first_step,
            fabric=fabric,
            activity=nothing,
            budget_seconds=None,
        )
        assert found.times == replace(shared, slowdown=1.5)
        left = sum(shared.step(Kind.of(step)) for step in PLAN[first_step:])
        assert limits.pop() == pytest.approx(measuring._MEASURING_SHARE * left)
