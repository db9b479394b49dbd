"""Time left, against a brute-force sum over the plan's remaining steps."""

from __future__ import annotations

import copy
import io
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from vcycle.data.loader_stats import LoaderStats
from vcycle.schedule.baseline import Baseline, LearningRate
from vcycle.schedule.multigrid import Multigrid
from vcycle.schedule.plan import Plan
from vcycle.schedule.shape import Shape
from vcycle.train.activity import Activity
from vcycle.train.measure.timing import Kind
from vcycle.train.progress import Display, TimeLeft
from vcycle.train.run_folder import prediction_errors
from vcycle.train.step_log import StepLoss, StepTime

PLAN = Plan(
    Baseline(Shape(8, 64, 64), 8, 200, 50, LearningRate(0.1), (100, 150)),
    Multigrid(),
)


@pytest.mark.parametrize("slower", [1.0, 3.0])
@pytest.mark.parametrize("first_step", [0, 1, 13, len(PLAN) - 1])
def test_time_left_is_the_sum_over_the_steps_that_remain(first_step: int, slower: float) -> None:
    """Those of kinds not seen yet are as much slower than predicted as the others were."""
    cost = {shape: 0.5 + i for i, shape in enumerate(PLAN.shapes)}
    left = TimeLeft(PLAN, first_step=first_step, predicted=lambda kind: cost[kind.shape])
    for step in PLAN[first_step:]:
        left.launch(step)
        left.add(step, slower * cost[step.shape])
        rest = slower * sum(cost[later.shape] for later in PLAN[step.index + 1 :])
        assert left.seconds() == pytest.approx(rest, abs=1e-9)
        if step.index + 1 < len(PLAN):
            ahead = copy.deepcopy(left)
            ahead.launch(PLAN[step.index + 1])
            without = rest - slower * cost[PLAN[step.index + 1].shape]
            assert ahead.seconds() == pytest.approx(without, abs=1e-9)


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_from_a_third_of_a_run_on_the_prediction_is_within_a_tenth(slower: float) -> None:
    """Steps take other seconds than predicted, some more of it in small ones, and they vary."""
    predicted = {
        Kind.of(step): step.batch_size * step.shape.num_pixels * 1e-7 + 0.05 for step in PLAN[:]
    }
    rng = np.random.default_rng(0)
    took = [slower * predicted[Kind.of(step)] * rng.lognormal(0, 0.2) + 0.02 for step in PLAN[:]]
    left = TimeLeft(PLAN, predicted=predicted.__getitem__)
    assert left.seconds() == pytest.approx(sum(predicted[Kind.of(step)] for step in PLAN[:]))
    rows = []
    for step, seconds in zip(PLAN[:], took, strict=True):
        left.launch(step)
        left.add(step, seconds)
        rows.append({"seconds": sum(took[: step.index + 1]), "seconds_left": left.seconds()})
    errors = prediction_errors(rows)
    assert errors["prediction_error_from_third"] < 0.1
    assert errors["predicted_seconds_at_third"] == pytest.approx(sum(took), rel=0.1)


def test_the_error_of_a_prediction_is_the_largest_from_a_third_on() -> None:
    rows = [
        {"seconds": 1.0, "seconds_left": 90.0},
        {"seconds": 4.0, "seconds_left": 7.0},
        {"seconds": 7.0, "seconds_left": 1.0},
        {"seconds": 10.0, "seconds_left": 0.0},
    ]
    assert prediction_errors(rows) == {
        "predicted_seconds_at_third": 11.0,
        "prediction_error_from_third": pytest.approx(0.2),
    }


def test_a_first_wait_for_the_workers_is_not_every_steps() -> None:
    console = Console(file=io.StringIO())
    display = Display(PLAN, lambda _: 1.0, title="run", first_step=0, console=console)
    display.launch(PLAN[0])
    display.step(StepTime(PLAN[0], seconds=31.0, waited=30.0))
    assert display.seconds_left() == pytest.approx(len(PLAN) - 1)


def test_steps_that_a_device_has_yet_to_do_are_not_left() -> None:
    """They are under way; nothing is left as the last one is, though none has been timed."""
    display = Display(PLAN, lambda _: 1.0, title="run", first_step=0, console=Console(quiet=True))
    for number, step in enumerate(PLAN, 1):
        display.launch(step)
        assert display.seconds_left() == pytest.approx(len(PLAN) - number)


def display_of(file: io.StringIO) -> Display:
    return Display(PLAN, lambda _: 1.0, title="run", first_step=0, console=Console(file=file))


def test_a_verdict_is_given_if_more_workers_would_help() -> None:
    file = io.StringIO()
    display = display_of(file)
    stats = LoaderStats(2, num_clips=80, wait_seconds=2.0, use_seconds=8.0, work_seconds=14.0)
    display.end_of_phase(stats)
    assert file.getvalue() == ""  # two workers decode as fast: there is nothing to change
    display.end_of_phase(replace(stats, work_seconds=40.0))
    assert "loader-bound (8 clips/s, 20% waiting for data, 2 workers): 6 workers" in file.getvalue()


def test_a_line_for_a_file_leaves_out_what_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 100.0, 100.2, 103.0])
    monkeypatch.setattr(
        "vcycle.train.progress.time", SimpleNamespace(monotonic=lambda: next(clock))
    )
    display = display_of(io.StringIO())
    display.step(StepTime(PLAN[0], seconds=1.0, waited=0.1))
    display.doing("validating")
    assert "validating" not in display._status()
    assert display._status().endswith("validating (3 s)")


def test_a_validations_line_has_the_loss_that_came_last() -> None:
    file = io.StringIO()
    display = display_of(file)
    row = {"step": 3, "seconds": 2.0, "top1": 0.5, "coverage": 1.0}
    display.validation(row)
    assert "2 s trained, top1 50.0%" in file.getvalue()
    display.training([StepLoss(3, mean=1.5, own=1.25, right=4)])
    display.validation(row)
    assert "2 s trained, loss 1.500, top1 50.0%" in file.getvalue()


def test_a_validations_line_says_if_rare_classes_are_missed() -> None:
    file = io.StringIO()
    display = display_of(file)
    row = {"step": 3, "seconds": 2.0, "top1": 0.9, "coverage": 1.0, "mean_class_accuracy": 0.5}
    display.validation(row)
    assert "top1 90.0%, mean class accuracy 50.0%" in file.getvalue()
    display.validation({**row, "mean_class_accuracy": 0.88})
    assert file.getvalue().count("mean class") == 1


def test_a_validation_warns_of_scores_that_are_not_finite() -> None:
    file = io.StringIO()
    display = display_of(file)
    row = {"step": 3, "seconds": 2.0, "top1": 0.5, "coverage": 1.0, "videos": 13}
    display.validation(row)
    assert "warning" not in file.getvalue()
    display.validation({**row, "nonfinite_videos": 5})
    said = "warning: scores of 5 of 13 videos are not finite, and count as wrong"
    assert said in " ".join(file.getvalue().split())


def test_a_terminals_lines_break_between_words_but_for_commands() -> None:
    file = io.StringIO()
    with Activity(Console(file=file, width=24, force_terminal=True), live=False) as activity:
        activity.say("about 2:10 min less a run, for 20 s once:")
        activity.say("  vcycle data prepare somewhere elsewhere")
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines == [
        "about 2:10 min less a",
        "run, for 20 s once:",
        "  vcycle data prepare somewhere elsewhere",
    ]


def test_a_notebook_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    notebook = ModuleType("IPython.display")
    notebook.display = lambda each: shown.append(  # type: ignore[attr-defined]
        each._repr_mimebundle_([], [])["text/plain"]
    )
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    console = Console(force_jupyter=True)
    with Display(PLAN, lambda _: 1.0, title="run", first_step=0, console=console) as display:
        display.step(StepTime(PLAN[0], seconds=1.0, waited=0.1))
        display.say("a line")
    text = "".join(shown)
    assert "run: phase 1/" in text
    assert "run: a line" in text
    assert "\x1b" not in text


def test_the_lines_name_the_step_and_the_share_of_its_own_clips() -> None:
    file = io.StringIO()
    display = display_of(file)
    display.validation({"step": 3, "seconds": 2.0, "top1": 0.5, "coverage": 1.0})
    assert f"step 4 of {len(PLAN)}, 2 s trained" in file.getvalue()
    last = PLAN[len(PLAN) - 1]
    assert last.batch_size != PLAN[0].batch_size
    display.step(StepTime(last, seconds=1.0, waited=0.0))
    display.training([StepLoss(last.index, mean=1.5, own=1.5, right=last.batch_size / 2)])
    assert "acc 50%" in display._status()
