"""What runs took to reach an accuracy, on folders written by hand and on a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from vcycle.cli.main import main
from vcycle.models import build_model
from vcycle.models.count import multiply_adds
from vcycle.report.compare import COSTS, compare_runs, comparison_cell, comparison_text
from vcycle.report.runs import read_run
from vcycle.schedule.shape import Shape


def write_run(
    folder: Path,
    accuracies: dict[int, float],
    *,
    seconds_a_step: float = 1.0,
    batches: list[tuple[str, int]],
    videos: str = "same",
    **validation: Any,
) -> Path:
    """A run folder with validations after some steps, of batches of (shape, clips)."""
    folder.mkdir()
    steps = [
        {"step": i, "shape": shape, "token_share": 1, "batch_size": clips}
        for i, (shape, clips) in enumerate(batches)
    ]
    rows = [
        {"step": done - 1, "seconds": done * seconds_a_step, "top1": accuracy}
        for done, accuracy in accuracies.items()
    ]
    known = {
        "num_videos": 10,
        "classes": ["a", "b"],
        "multi_label": False,
        "videos_sha256": videos,
        "shape": "8x32x32",
        "num_clips": 1,
        "num_crops": 1,
        **validation,
    }
    for name, values in (("metrics", steps), ("validation", rows)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in values))
    (folder / "dataset.json").write_text(json.dumps({"validation": known}))
    (folder / "multiply_adds.json").write_text(json.dumps({"8x32x32": 100, "4x16x16": 10}))
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [
        write_run(
            tmp_path / "baseline",
            {10: 0.5, 20: 0.8999999761581421, 30: 0.95},
            batches=[("8x32x32", 4)] * 30,
        ),
        write_run(
            tmp_path / "multigrid",
            {4: 0.6, 8: 0.92},
            seconds_a_step=2.0,
            batches=[("4x16x16", 32)] * 4 + [("8x32x32", 4)] * 4,
        ),
    ]


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        (
            "metrics.jsonl",
            '"batch_size": 4',
            '"batch_size": 1e308',
            "line 1 is damaged (batch_size",
        ),
        ("metrics.jsonl", '"batch_size": 4', f'"batch_size": {10**400}', "is damaged (batch_size"),
        ("validation.jsonl", "0.95", str(10**400), "top1 10000000000000000000 after step 29 in va"),
        ("validation.jsonl", "30.0", str(10**400), "line 3 is damaged (seconds 1000000000"),
        ("multiply_adds.json", "100", "1e999", "8x32x32 inf; restore it, or remove"),
    ],
)
def test_numbers_that_no_run_writes_name_its_folder(
    folders: list[Path], name: str, before: str, after: str, message: str, capsys: Any
) -> None:
    file = folders[0] / name
    changed = file.read_text().replace(before, after)
    assert changed != file.read_text()
    file.write_text(changed)
    for words in (["compare", *map(str, folders)], ["compare", *map(str, folders[::-1])]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith((f"vcycle: {file}: ", f"vcycle: run folder {folders[0]}: "))
        assert message in error
        assert name in error


def test_costs_are_those_of_the_first_validation_at_or_above(folders: list[Path]) -> None:
    values = compare_runs(folders, at_accuracy=0.9)
    baseline, multigrid = values["runs"]
    assert (baseline["steps"], baseline["seconds"], baseline["clips"]) == (20, 20.0, 80)
    assert baseline["multiply_adds"] == 20 * 4 * 100
    assert (multigrid["steps"], multigrid["seconds"], multigrid["clips"]) == (8, 16.0, 144)
    assert multigrid["multiply_adds"] == 4 * 32 * 10 + 4 * 4 * 100
    assert multigrid["times_less"] == {
        "seconds": 20 / 16,
        "steps": 20 / 8,
        "clips": 80 / 144,
        "multiply_adds": 8000 / 2880,
    }
    assert multigrid["validation_before"]["steps"] == 4


def test_columns_stay_apart_and_in_line(folders: list[Path]) -> None:
    values = compare_runs(folders, at_accuracy=0.9)
    values["runs"][1]["times_less"] = dict.fromkeys(COSTS, 1234567.891)
    _, *table = comparison_text(values).splitlines()
    cells = [re.split(r" {2,}", line.strip()) for line in table]
    assert cells[0] == ["seconds", "steps", "clips", "multiply-adds"]
    assert cells[2] == [
        str(folders[1]),
        *(f"{cost} (1234567.89x less)" for cost in ("16.0", "8", "144", "2,880.0")),
    ]
    assert len(cells[1]) == 5
    assert len({len(line) for line in table}) == 1


def test_a_run_that_does_not_get_there_says_so(folders: list[Path]) -> None:
    values = compare_runs(folders)  # at the baseline's last accuracy
    assert values["accuracy"] == 0.95
    baseline, multigrid = values["runs"]
    assert baseline["reached"]
    assert baseline["steps"] == 30
    assert not multigrid["reached"]
    assert multigrid["seconds"] is None
    assert set(multigrid["times_less"].values()) == {None}
    assert "not reached: at best 92.0% in 8 steps" in comparison_text(values)


def test_a_model_that_was_not_counted_has_no_multiply_adds(folders: list[Path]) -> None:
    (folders[1] / "multiply_adds.json").write_text("{}")
    values = compare_runs(folders, at_accuracy=0.9)
    assert values["runs"][1]["multiply_adds"] is None
    assert values["runs"][1]["times_less"]["multiply_adds"] is None
    assert any("could not be counted" in note for note in values["notes"])


def test_runs_on_different_videos_are_refused(folders: list[Path], tmp_path: Path) -> None:
    other = write_run(
        tmp_path / "other", {1: 0.5}, batches=[("8x32x32", 4)], videos="others", num_videos=11
    )
    with pytest.raises(ValueError, match=r"validated on different videos \(10 and 11\)") as caught:
        compare_runs([folders[0], other, folders[1]])
    assert str(caught.value).endswith(f"one manifest, such as {folders[0]} {folders[1]}")
    with pytest.raises(ValueError, match=r"; give runs of one manifest$"):
        compare_runs([folders[0], other])


def test_other_views_of_the_same_videos_are_a_note(folders: list[Path], tmp_path: Path) -> None:
    views = {"num_clips": 10, "num_crops": 3}
    other = write_run(tmp_path / "other", {1: 0.5}, batches=[("8x32x32", 4)], **views)
    notes = compare_runs([folders[0], other])["notes"]
    assert notes == [
        f"validations differ: 1 clips a video in {folders[0]}; 10 clips a video in {other}",
        f"validations differ: 1 crops a clip in {folders[0]}; 3 crops a clip in {other}",
    ]


def test_a_run_that_takes_more_is_not_said_to_take_less() -> None:
    assert comparison_cell(50.0, 4.0) == "50.0 (4.00x less)"
    assert comparison_cell(800.0, 0.25) == "800.0 (4.00x as much)"
    assert comparison_cell(800.0, 0.0) == "800.0"


@pytest.mark.parametrize(
    ("missing", "message"),
    [("metrics.jsonl", "no metrics.jsonl in it"), ("dataset.json", "no dataset.json in it")],
)
def test_a_folder_without_its_files_is_one_line(
    folders: list[Path], missing: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders[1] / missing).unlink()
    assert main(["compare", *map(str, folders)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_mistakes_of_arguments(folders: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least two"):
        compare_runs(folders[:1])
    with pytest.raises(ValueError, match="at-accuracy 90"):
        compare_runs(folders, at_accuracy=90.0)
    (folders[0] / "validation.jsonl").write_text("")
    with pytest.raises(ValueError, match="no validation yet"):
        compare_runs(folders)


def test_the_command_prints_json(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", *map(str, folders), "--at-accuracy", "0.9"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["steps"] == 8
    assert main(words) == 0
    assert "2.50x less" in capsys.readouterr().out


def test_a_run_knows_what_its_clips_cost(trained_run: Path) -> None:
    run = read_run(trained_run)
    model = build_model("resnet3d_tiny", num_classes=len(run.validation["classes"]), width=4)
    expected = sum(
        row["batch_size"] * multiply_adds(model, Shape.parse(row["shape"])) for row in run.steps
    )
    assert run.points[-1].multiply_adds == expected
    assert run.points[-1].steps == len(run.steps)
    assert run.validation["num_videos"] == 12
