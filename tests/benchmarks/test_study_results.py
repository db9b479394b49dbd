"""What the rows of a study say together, on rows whose answer is known."""

from __future__ import annotations

from typing import Any

import pytest

from study_file import Method, Study, Task
from study_results import summary
from study_summary import summary_lines

CPU, GPU = "a processor, one thread, Linux", "a GPU"
LENGTHS = {
    "baseline": {1: 2, 0.25: 2, 0.5: 2},
    "pass": {0.5: 2, 0.25: 2},
    "slower": {0.5: 2},
    "joined": {0.25: 2},
    "other": {0.5: 2, 0.25: 2},
    "part": {1: 2, 0.5: 2},
}
TASK = Task("clips", "scratch", "people", LENGTHS)


@pytest.fixture
def study() -> Study:
    """A baseline, a pass, what is compared with it, and a control of it."""
    methods = (
        Method("baseline", "baseline", "off", "steps", tuned="each"),
        Method("pass", "pass", "pass", "steps"),
        Method("slower", "slower", "pass", "steps", rate_of="pass", rate_factor=0.5),
        Method("joined", "joined", "pass", "steps", tuned="each", joins="pass"),
        Method("other", "other", "pass", "steps", against=("pass",)),
        Method("part", "part", "off", "steps", tuned="each", controls="pass"),
    )
    config = {"baseline": {"shape": {"frames": 8, "height": 32, "width": 32}, "steps": 400}}
    return Study("small", 3, (0.1,), config, (TASK,), methods)


def row(method: str, length: float, top1: float, *, seed: int = 0, fold: int = 0) -> dict[str, Any]:
    """A final run; it costs its length."""
    costs = dict.fromkeys(("seconds", "seconds_with_decoding", "multiply_adds", "steps"), length)
    return {
        "dataset": "clips",
        "regime": "scratch",
        "method": method,
        "length": length,
        "role": "final",
        "rate": 0.1,
        "seed": seed,
        "fold": fold,
        "epoch_factor": length,
        "decode_seconds": 0.0,
        "top1": top1,
        "loss": -top1,
        "machine": CPU,
        **costs,
    }


def curve(method: str, scores: dict[float, float], **changes: Any) -> list[dict[str, Any]]:
    """Both seeds of three folds, each fold a little better than the one before."""
    return [
        {**row(method, length, top1 + fold / 100, seed=seed, fold=fold), **changes}
        for length, top1 in scores.items()
        for seed in range(2)
        for fold in range(3)
    ]


BASELINE = curve("baseline", {0.25: 0.2, 0.5: 0.4, 1: 0.6})


def iso_of(study: Study, rows: list[dict[str, Any]], method: str, name: str = "iso") -> Any:
    (found,) = (each for each in summary(study, rows)[name] if each["method"] == method)
    return found


def test_the_means_of_a_length_are_those_of_its_folds(study: Study) -> None:
    rows = [row("pass", 0.5, 0.9), row("pass", 0.5, 0.7, seed=1), row("pass", 0.5, 0.2, fold=1)]
    (point,) = (p for p in summary(study, BASELINE + rows)["points"] if p["method"] == "pass")
    assert point["top1"] == pytest.approx((0.8 + 0.2) / 2)
    assert point["runs"] == 3
    assert point["whole_baseline"]["top1"] == pytest.approx((0.6 + 0.61) / 2)
    assert "beside" not in point


def test_no_whole_baseline_stands_beside_runs_of_which_it_lacks_one(study: Study) -> None:
    """Its mean would be of other folds than theirs."""
    lacking = [row for row in BASELINE if (row["length"], row["fold"]) != (1, 2)]
    points = summary(study, lacking + curve("pass", {0.5: 0.5}))["points"]
    (point,) = (each for each in points if each["method"] == "pass")
    assert point["whole_baseline"] == {}


def test_a_variant_stands_beside_what_it_varies_in_the_runs_of_both(study: Study) -> None:
    theirs = curve("pass", {0.25: 0.1, 0.5: 0.5})
    ours = [row("slower", 0.5, 0.7, fold=fold) for fold in range(2)]
    points = summary(study, BASELINE + theirs + ours)["points"]
    (point,) = (p for p in points if p["method"] == "slower")
    assert point["beside"]["runs"] == 2
    assert point["beside"]["top1"] == pytest.approx([0.7, 0.505])
    assert point["beside"]["loss"] == pytest.approx([-0.7, -0.505])
    (alone,) = (p for p in summary(study, BASELINE + ours)["points"] if p["method"] == "slower")
    assert alone["beside"] == {}


def test_a_method_joins_the_first_length_of_another(study: Study) -> None:
    rows = BASELINE + curve("pass", {0.25: 0.1, 0.5: 0.8}) + curve("joined", {0.25: 0.4})
    found = iso_of(study, rows, "joined")["top1"]["steps"]
    assert found["factor"] == pytest.approx(1 / (0.25 * 2**0.5))  # halfway from 0.4 to 0.8
    by_length = summary(study, rows)["lengths"]
    (whole,) = (
        each for each in by_length if (each["method"], each["baseline_length"]) == ("joined", 1)
    )
    assert whole["top1"] == found


def test_a_saving_may_be_over_another_method(study: Study) -> None:
    rows = BASELINE + curve("pass", {0.5: 0.5}) + curve("other", {0.25: 0.5, 0.5: 0.55})
    found = iso_of(study, rows, "other")
    assert found["against"] == "pass"
    assert found["speedup"] == pytest.approx(2.0)
    assert "against" not in iso_of(study, rows, "pass")


def test_a_saving_is_counted_over_a_control_too(study: Study) -> None:
    rows = BASELINE + curve("pass", {0.25: 0.5, 0.5: 0.8}) + curve("part", {0.5: 0.4, 1: 0.8})
    (found,) = summary(study, rows)["iso_controls"]
    assert (found["method"], found["against"]) == ("pass", "part")
    assert found["speedup"] == pytest.approx(2.0)
    (gain,) = found["gains"]  # a quarter costs far less than the shortest of the control
    assert gain["length"] == 0.5
    assert gain["top1"]["mean"] == pytest.approx(0.4)
    assert len([each for each in summary(study, rows)["iso"] if each["method"] == "pass"]) == 1
    assert summary(study, BASELINE + curve("pass", {0.5: 0.8}))["iso_controls"] == []


def test_a_terminal_has_the_savings_over_controls_too(study: Study) -> None:
    rows = BASELINE + curve("pass", {0.25: 0.5, 0.5: 0.8}) + curve("part", {0.5: 0.4, 1: 0.8})
    lines = list(summary_lines(study, summary(study, rows)))
    (saving,) = (line for line in lines if line.startswith("  pass, beside part: "))
    assert saving.startswith("  pass, beside part: its top-1 with 2.0x [")
    assert sum(line.startswith("  pass, beside baseline: ") for line in lines) == 1


def test_runs_of_a_gpu_are_left_out_of_the_savings_by_cpus(study: Study) -> None:
    rows = BASELINE + curve("pass", {0.25: 0.6, 0.5: 0.7})
    assert summary(study, rows)["iso_cpu"] == []
    rows += [
        {**each, "machine": GPU, "top1": 0.0} for each in curve("pass", {0.25: 0.0}) if each["seed"]
    ]
    kept = [each for each in rows if (each["method"], each["seed"]) != ("pass", 1)]
    on_gpu = [each for each in rows if each["machine"] == GPU]
    found = iso_of(study, kept + on_gpu, "pass", "iso_cpu")
    assert found == iso_of(study, kept, "pass")
    assert iso_of(study, kept + on_gpu, "pass") != found


def test_fine_tuned_runs_are_compared_with_those_from_the_same_weights(study: Study) -> None:
    """The second weights are worse, and no run of the pass starts from them."""
    baseline = [
        {**each, "pretraining_rate": 0.1, "top1": each["top1"] - 0.3 * each["seed"]}
        for each in BASELINE
    ]
    ours = [
        {**each, "pretraining_rate": 0.1}
        for each in curve("pass", {0.25: 0.5, 0.5: 0.7})
        if each["seed"] == 0
    ]
    found = iso_of(study, baseline + ours, "pass")["top1"]["steps"]
    assert found["factor"] == pytest.approx(1 / (0.25 * 2**0.5))
    assert found["cells"] == 3


def test_gains_with_decoding_are_at_its_cost_and_over_the_last_of_a_methods_baselines(
    study: Study,
) -> None:
    rows = [*BASELINE, *curve("pass", {0.25: 0.3, 0.5: 0.5}), *curve("other", {0.25: 0.35})]
    for row in rows:
        row["seconds_with_decoding"] = row["seconds"] * (2 if row["method"] == "pass" else 1)
    points = {(row["method"], row["length"]): row for row in summary(study, rows)["points"]}
    of_pass, of_other = points["pass", 0.25], points["other", 0.25]
    # As many steps of the baseline come to 0.2; of twice the cost, to 0.4.
    assert of_pass["gain"]["top1"]["mean"] == pytest.approx(0.1)
    assert of_pass["gain_with_decoding"]["top1"]["mean"] == pytest.approx(-0.1)
    assert of_other["gain"]["top1"]["mean"] == pytest.approx(0.15)
    assert of_other["gain_with_decoding"] == {}  # it costs half of the shortest pass


def test_what_a_method_gains_in_as_many_steps_is_over_the_last_of_its_baselines(
    study: Study,
) -> None:
    rows = [*BASELINE, *curve("pass", {0.25: 0.3}), *curve("other", {0.25: 0.35, 0.5: 0.5})]
    found = {(row["method"], row["length"]): row for row in summary(study, rows)["same_steps"]}
    assert found.keys() == {("pass", 0.25), ("other", 0.25)}  # of the pass half the steps lack
    gain = found["pass", 0.25]
    assert (gain["against"], gain["runs"], gain["runs_against"]) == ("baseline", 6, 6)
    assert gain["top1"]["mean"] == pytest.approx(0.1)
    loss = gain["loss"]
    assert (loss["mean"], loss["cells"], loss["lengths"]) == (pytest.approx(-0.1), 6, 1)
    assert loss["low"] <= loss["mean"] <= loss["high"]
    assert loss["folds"] == pytest.approx([-0.1] * 3)
    assert found["other", 0.25]["against"] == "pass"
    assert found["other", 0.25]["top1"]["mean"] == pytest.approx(0.05)


def test_the_bound_counts_from_where_the_baselines_last_steps_gain_nothing(study: Study) -> None:
    rows = [*curve("baseline", {0.25: 0.2, 0.5: 0.6, 1: 0.6}), *curve("pass", {0.25: 0.3})]
    (saving,) = [row for row in summary(study, rows)["iso"] if row["method"] == "pass"]
    assert saving["top1"]["steps"]["factor"] is None
    assert saving["top1"]["steps"]["bound"] == pytest.approx(2.0)
