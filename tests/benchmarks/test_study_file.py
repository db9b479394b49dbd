"""The study's file: the grid it makes, its order, and what is said of a mistake in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml

from study_file import Method, Run, Study, at_full_shape, read_study
from vcycle.config.recipes import recipe

PROOF = Path(__file__).parents[2] / "benchmarks" / "study" / "proof.yaml"
RATES = (0.0015, 0.003, 0.006, 0.012, 0.024, 0.048, 0.096)


@pytest.fixture(scope="module")
def proof() -> Study:
    return read_study(PROOF)


def method_of(study: Study, name: str) -> Method:
    return next(method for method in study.methods if method.name == name)


def test_every_run_of_the_published_study_has_a_plan_and_a_name_of_its_own(proof):
    runs = proof.runs()
    assert len({run.name for run in runs}) == len(runs)
    for point, run in {run.point: run for run in runs}.items():
        assert len(proof.config_of(run, rate=0.01, num_videos=300).plan()) > 0, point


def test_the_file_for_own_videos_is_a_study(proof):
    """Of the published study's baseline, networks and rates, and `scratch`'s optimizer."""
    own = read_study(PROOF.with_name("own_videos.yaml"))
    assert set(own.rates) <= set(proof.rates)
    assert own.tasks[0].videos == "clips"
    whole, published = (
        each.config_of(Run(each.tasks[0], each.baseline, 1, 0, 0), rate=0.01, num_videos=285)
        for each in (own, proof)
    )
    assert whole.plan().baseline == published.plan().baseline
    assert whole.model.name == published.model.name
    planned = recipe("scratch", num_videos=285, model=whole.model.name).optimizer
    assert whole.optimizer == planned
    control, published = (method_of(each, "baseline-anneal") for each in (own, proof))
    assert (control.controls, control.config) == (published.controls, published.config)


def test_lengths_are_shares_of_steps_or_multiples_of_epochs(proof):
    points = {run.point: run for run in proof.runs()}

    def plan(point):
        return proof.config_of(points[f"isl_emergency8/scratch/{point}"], rate=0.01).plan()

    assert len(plan("baseline-0.294")) == 441
    assert len(plan("pass-0.276")) == len(plan("anneal-0.276")) == len(plan("paper-1.5")) == 414
    assert plan("paper-2").num_clips == pytest.approx(2 * 1500 * 8, abs=8)


def test_a_shortened_baseline_has_a_whole_schedule_of_its_own(proof):
    run = next(run for run in proof.runs() if run.point.endswith("/baseline-0.294"))
    plan = proof.config_of(run, rate=0.01).plan()
    rates = [step.learning_rate for step in plan]
    assert max(rates) == pytest.approx(0.01, rel=0.02)
    assert rates[0] == 0
    assert rates[-1] < 1e-5


def test_one_seed_of_every_method_comes_before_the_second_of_any(proof):
    task = proof.tasks[0]
    finals = [run for run in proof.runs() if run.task == task and run.role == "final"]
    second = next(place for place, run in enumerate(finals) if run.seed == 1)
    seen = {(run.method.name, run.length, run.fold) for run in finals[:second]}
    assert seen == {
        (name, length, fold)
        for name, lengths in task.methods.items()
        for length in lengths
        for fold in range(3)
    }


def test_a_variant_takes_the_rate_of_the_method_that_it_varies(proof):
    task = proof.tasks[0]
    tuning = proof.tuning(task, method_of(proof, "anneal-ema"), 0.276)
    assert [run.point for run in tuning] == ["isl_emergency8/scratch/anneal-0.276"] * 7
    assert not [run for run in proof.runs() if run.method.rate_of and run.role == "tuning"]
    chosen = proof.selected(["isl_emergency8/scratch/anneal-ema-0.276/seed0-fold0"])
    assert len(chosen) == 8


def test_a_task_says_how_many_seeds_each_length_runs(proof):
    runs = [run for run in proof.runs() if run.point == "isl_emergency8/scratch/anneal-ema-0.276"]
    assert [(run.seed, run.fold) for run in runs] == [(0, 0), (0, 1), (0, 2)]


def test_the_tuning_of_a_length_comes_before_its_final_runs(proof):
    places = {run.name: place for place, run in enumerate(proof.runs())}
    for run in proof.runs():
        if run.role == "final":
            tuning = proof.tuning(run.task, run.method, run.length)
            assert len(tuning) == len(run.task.rates or proof.rates)
            assert all(places[each.name] < places[run.name] for each in tuning), run.name


def test_each_length_of_the_baseline_is_tuned_and_the_first_of_the_others(proof):
    task = proof.tasks[0]
    of_baseline = proof.tuning(task, method_of(proof, "baseline"), 0.294)
    of_pass = proof.tuning(task, method_of(proof, "pass"), 0.369)
    assert [run.point for run in of_baseline] == ["isl_emergency8/scratch/baseline-0.294"] * 7
    assert [run.point for run in of_pass] == ["isl_emergency8/scratch/pass-0.276"] * 7
    assert [run.rate for run in of_pass] == list(RATES)


def test_pretraining_is_the_whole_baseline_of_the_same_seed_on_another_task(proof):
    run = next(
        run for run in proof.runs() if run.task.name == "isl_emergency8/finetune" and run.seed == 2
    )
    assert proof.pretraining(run).name == "generated/scratch/baseline-1/seed2-fold0"
    assert proof.pretraining(proof.runs()[0]) is None


def test_selected_runs_come_with_those_that_they_need(proof):
    chosen = proof.selected(["weizmann10/finetune/pass-0.276/seed0-fold1"])
    assert [run.name for run in chosen] == [
        *(f"isl_emergency8/scratch/baseline-1/rate{rate}" for rate in RATES),
        "isl_emergency8/scratch/baseline-1/seed0-fold0",
        *(f"weizmann10/finetune/pass-0.276/rate{rate}" for rate in RATES),
        "weizmann10/finetune/pass-0.276/seed0-fold1",
    ]
    assert len(proof.selected([""])) == len(proof.runs())


def test_small_clips_are_evaluated_once_more_at_the_full_shape(proof):
    run = next(run for run in proof.runs() if run.method.name == "small")
    config = proof.config_of(run, rate=0.01)
    assert str(config.baseline.shape) == "4x68x68"
    assert {str(shape) for shape in config.plan().shapes} == {"4x68x68"}
    assert str(at_full_shape(run, config).baseline.shape) == "8x96x96"
    whole = proof.config_of(proof.runs()[0], rate=0.01)
    assert at_full_shape(run, config).data == whole.data
    assert at_full_shape(proof.runs()[0], whole) is None


def test_coarse_grids_have_as_many_steps_at_each_length_if_the_full_grid_share_grows(proof):
    method = method_of(proof, "anneal-growing-full")
    plans = [
        proof.config_of(Run(proof.tasks[0], method, length, 0, 0), rate=0.01).plan()
        for length in (0.276, 0.555, 1)
    ]
    counts = [Counter(str(step.shape) for step in plan) for plan in plans]
    assert [len(plan) for plan in plans] == [414, 833, 1500]
    for count in counts:
        assert count["2x48x48"] == 186
        assert count["4x68x68"] == pytest.approx(124, abs=1)
    assert plans[1].anneal_start == pytest.approx(0.207 / 0.555, abs=2 / 833)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"none.yaml: No such file .*; name a study's file$"):
        read_study(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("methods", "pass", "unit"), "clips", "unit 'clips': give steps or epochs"),
        (("methods", "pass", "schedule"), "pas", "schedule 'pas'"),
        (("tasks", 0, "methods", "pass"), {-1: 1}, "pass {-1: 1}: give lengths, each with its"),
        (("tasks", 0, "methods", "pass"), {1: 0}, "pass {1: 0}: give lengths, each with its"),
        (("methods", "paper", "coarse_steps"), 0.2, "coarse_steps of paper in epochs: give them"),
        (
            ("methods", "pass", "coarse_steps"),
            0.2,
            "its coarse_steps are 0.2, and its shortest length 0.184; give coarse_steps above 0",
        ),
        (("methods", "pass", "coarse_steps"), 0, "its coarse_steps are 0, and its shortest length"),
        (("methods", "pass", "tuned"), "never", "tuned 'never': give each or first"),
        (
            ("methods", "pass", "trial"),
            "warmup",
            "trial 'warmup': give one of phase-warmup, low-frequency, base-stride, same-span, "
            "same-crop, same-view",
        ),
        (("methods", "pass", "lenghts"), {1: 1}, "no study in it"),
        (
            ("tasks", 0, "methods"),
            {"baseline": {1: 1}, "past": {1: 1}},
            "no method past in the study",
        ),
        (("tasks", 0, "methods"), {"pass": {1: 1}}, "add baseline, the baseline"),
        (("methods", "pass", "rate_of"), "pas", "pass takes the rate of pas; add that method"),
        (
            ("methods", "pass", "rate_factor"),
            0.5,
            "rate_factor 0.5: give a positive number",
        ),
        (("methods", "anneal-ema", "rate_factor"), -1, "rate_factor -1: give a positive number"),
        (("tasks", 0, "videos"), "files", "videos 'files': give people, clips, or"),
        (("tasks", 0, "pretrained_on"), "k400/scratch", "no task k400/scratch in the study"),
        (("rates",), 0.1, "no study in it"),
        (("rates",), [], r"rates \[\]: give positive numbers"),
        (("tasks", 3, "rates"), [0.1, -1], r"rates \[0.1, -1\]: give positive numbers"),
        (("folds",), 0, "folds 0: give a number of at least 1"),
        (
            ("tasks", 0, "methods", "baseline"),
            {1: 1},
            "seed1-fold0; give the baseline as many seeds",
        ),
        (("methods", "pass", "rate_of"), "anneal-early", "anneal-early has no rate of its own"),
        (("methods", "pass", "rate_of"), "pass", "pass has no rate of its own"),
        (("tasks", 0, "methods", "pass"), {0.1: 1, 0.1000001: 1}, "is there twice"),
        (("tasks", 1, "dataset"), "isl_emergency8", "is there twice"),
        (("tasks", 0, "pretrained_on"), "isl_emergency8/scratch", "starts from weights itself"),
        (("config", "baseline"), {}, r"no study in it \('steps'\)"),
        (("config", "treads"), 1, "treads"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path, path, value, message):
    values = yaml.safe_load(PROOF.read_text())
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump(values, sort_keys=False))
    with pytest.raises(ValueError, match=message) as caught:
        read_study(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)
