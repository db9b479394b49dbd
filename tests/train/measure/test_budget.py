"""The plan that fits a budget, whatever was measured."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.train.measure.times import (
    CONFIG,
    FINAL_SECONDS,
    NORMS_SECONDS,
    TIMES,
    WITH_FINAL,
    WITH_NORMS,
)
from vcycle.cli.train import parse_time
from vcycle.config.run import RunConfig
from vcycle.config.schedule_choice import FEWEST_STEPS, timed
from vcycle.config.sizing import Asked, fewest_steps, has_plan, time_text, with_steps
from vcycle.config.user_recipes import scratch
from vcycle.train.measure import budget
from vcycle.train.measure.budget import Budget, fit_budget
from vcycle.train.measure.timing import Kind, StepTimes, run_seconds


@pytest.mark.parametrize(
    ("config", "final"),
    [(CONFIG, 0.0), (WITH_FINAL, FINAL_SECONDS), (WITH_NORMS, NORMS_SECONDS)],
)
@pytest.mark.parametrize("seconds", [100.0, 300.0, 7200.0, 1e5])
def test_a_budget_is_used_and_not_exceeded(seconds: float, config: RunConfig, final: float) -> None:
    fitted = fit_budget(config, TIMES, seconds, val_videos=50)
    prediction = run_seconds(fitted, TIMES, val_videos=50)
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
    assert 0.9 * seconds < run_seconds(fitted, TIMES, val_videos=50).total <= seconds
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
    assert run_seconds(fitted, times, val_videos=50).total <= advised - 60


def test_what_is_left_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.time, "monotonic", lambda: 1030.0)
    assert Budget(100.0, began=1000.0).left == 100 - 30 - budget._START_SECONDS
    assert budget._START_SECONDS > 0


@pytest.mark.parametrize(
    ("seconds", "exact", "longer"),
    [(15, "15s", "15s"), (150, "150s", "3m"), (300, "5m", "5m"), (7200, "2h", "2h")],
)
def test_a_time_is_written_as_the_flag_takes_it(seconds: int, exact: str, longer: str) -> None:
    assert time_text(seconds + 1e-9) == exact
    assert parse_time(exact) == seconds
    assert time_text(budget._next_round(seconds - 0.5)) == longer


def test_a_budget_for_few_epochs_or_far_too_many_says_so() -> None:
    def said(seconds: float) -> str:
        return fit_budget(CONFIG, TIMES, seconds, val_videos=50).steps_note

    assert ": too few to train well; give more time" in said(30.0)
    assert said(100.0).endswith("asked for")
    without = f"; without --time a baseline would have {CONFIG.baseline.epochs:.0f}, so less time"
    assert without in said(20_000.0)
