"""Carrying out a study: once each, in any order alike, and shared with other processes."""

from __future__ import annotations

import fcntl
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

import study_runs
from study import main
from study_file import Method, Study, read_study, row_name
from study_provenance import machine
from study_results import collect, summary
from study_runs import StudyFolder, run_study
from study_timing import check_times, time_steps
from vcycle.train.nonfinite import Diverged

STUDY = {
    "folds": 2,
    "rates": [0.001, 0.002],
    "config": {
        "threads": 1,
        "baseline": {
            "shape": {"frames": 4, "height": 24, "width": 24},
            "batch_size": 2,
            "steps": 6,
            "learning_rate": {"decay": "cosine"},
        },
        "data": {"stride": 1, "short_side": [26, 34], "num_workers": 0},
        "model": {"name": "resnet3d_tiny", "options": {"width": 2}},
        "optimizer": {"name": "adamw"},
        "evaluation": {"times": 1, "batch_size": 4},
        "multigrid": {"norm_group": 2},
    },
    "methods": {
        "baseline": {
            "title": "baseline",
            "schedule": "off",
            "unit": "steps",
            "tuned": "each",
        },
        "pass": {"title": "pass", "schedule": "pass", "unit": "steps"},
    },
    "tasks": [
        {
            "dataset": "generated",
            "regime": "scratch",
            "videos": {"train": 8, "val": 4},
            "methods": {"baseline": {1: 1, 0.5: 1}, "pass": {1: 1}},
        },
        {
            "dataset": "generated",
            "regime": "finetune",
            "videos": {"train": 8, "val": 4},
            "methods": {"baseline": {1: 1, 0.5: 1}},
            "pretrained_on": "generated/scratch",
        },
    ],
}
SILENT = Console(quiet=True)


@pytest.fixture(scope="module")
def study_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("study") / "small.yaml"
    file.write_text(yaml.safe_dump(STUDY, sort_keys=False))
    return file


@pytest.fixture(scope="module")
def study(study_file: Path) -> Study:
    return read_study(study_file)


@pytest.fixture(scope="module")
def done(study: Study, tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """The whole small study, carried out in its own order, and timed."""
    folder = StudyFolder(study, tmp_path_factory.mktemp("done"), Path("nowhere"))
    run_study(folder, study.runs(), console=SILENT)
    time_steps(folder, study.runs())
    return folder


def test_timing_a_method_anew_times_its_whole_task_and_leaves_the_others(study, done, tmp_path):
    folder = StudyFolder(study, tmp_path, Path("nowhere"), {"steps": done.steps()})
    shutil.copytree(done.path / "runs", folder.path / "runs")
    methods = {(row["regime"], row["method"]) for row in done.steps()}
    assert len(methods) > 2
    time_steps(folder, [run for run in study.runs() if run.method.name == "pass"][:1])
    assert {(row["regime"], row["method"]) for row in folder.steps()} == methods
    own = json.loads((folder.path / "steps.json").read_text())
    assert {(row["regime"], row["method"]) for row in own} == {
        each for each in methods if each[0] == "scratch"
    }


def test_a_complete_table_leaves_nothing_to_do(study, done, tmp_path):
    """Nor does a rate that need not be tried want the weights of another task's baseline."""
    rows = [row for run in study.runs() if (row := done.row(run)) is not None]
    assert StudyFolder(study, tmp_path, Path("nowhere"), {"rows": rows}).left(study.runs()) == []


def test_a_published_run_is_repeated_at_its_rate(study, study_file, done, tmp_path, capsys):
    table, again = tmp_path / "table.json", tmp_path / "again"
    rows = [row for run in study.runs() if (row := done.row(run)) is not None]
    table.write_text(json.dumps({"study": study.name, "rows": rows}))
    run = next(run for run in study.runs() if run.role == "final")
    command = [str(study_file), "--only", run.name, "--folder", str(again), "--table", str(table)]
    assert main(command) == 0
    assert "are complete; --repeat does them again" in capsys.readouterr().out
    assert not (again / "runs").exists()
    assert main([*command, "--repeat"]) == 0
    (file,) = again.glob("runs/**/row.json")
    new, old = json.loads(file.read_text()), done.row(run)
    for key in ("rate", "steps", "top1", "loss"):
        assert new[key] == old[key]
    table.write_text('{"study": ')
    assert main(command) == 2
    assert f"--table {table}: no table of a study" in capsys.readouterr().err
    table.write_text('{"study": "another", "rows": []}')
    assert main([*command, "--collect"]) == 2
    assert "the table of the study another; name another" in capsys.readouterr().err
    assert json.loads(table.read_text())["study"] == "another"
    in_folder = [*command[:-2], "--collect"]
    assert main(in_folder) == 0
    assert json.loads((again / "study.json").read_text())["study"] == study.name


def rows_of(folder: StudyFolder) -> dict[str, dict]:
    rows = {run.name: folder.row(run) for run in folder.study.runs()}
    timed = ("busy_seconds", "seconds", "decode_seconds", "seconds_with_decoding")
    return {name: {k: v for k, v in row.items() if k not in timed} for name, row in rows.items()}


def test_the_rate_with_the_least_tuning_loss_trains_all_folds(study, done):
    for run in study.runs():
        if run.role == "final":
            assert done.row(run)["commit"]
            tried = [done.row(each) for each in study.tuning(run.task, run.method, run.length)]
            best = min(tried, key=lambda row: row["loss"])
            assert done.row(run)["rate"] == best["rate"]
            assert done.row(run)["videos"] == 4
            assert 0 <= done.row(run)["top1"] <= 1


def test_a_variant_may_have_a_share_of_the_rate_of_the_method_that_it_varies(study, done):
    slower = Method("slower", "slower", "off", "steps", rate_of="baseline", rate_factor=0.5)
    tasks = [replace(task, methods={**task.methods, "slower": {1: 1}}) for task in study.tasks]
    more = replace(study, methods=(*study.methods, slower), tasks=tuple(tasks))
    folder = StudyFolder(more, done.path, Path("nowhere"))
    for run in more.runs():
        if run.method == slower:
            assert run.role == "final"
            assert folder.rate(run) == 0.5 * done.rate(replace(run, method=study.baseline))


def test_a_run_starts_from_the_weights_of_the_baseline_of_another_task(study, done):
    runs = [run for run in study.runs() if run.task.regime == "finetune"]
    assert len(runs) == 8
    for run in runs:
        config = yaml.safe_load((done.run_folder(run) / "config.yaml").read_text())
        checkpoint = Path(config["model"]["weights"])
        assert checkpoint.is_file()
        assert checkpoint.parent == done.path / "runs/generated/scratch/baseline-1/seed0-fold0"
    scratch = done.row(next(run for run in study.runs() if run.task.regime == "scratch"))
    assert scratch["loss"] != done.row(runs[0])["loss"]


def test_a_run_is_done_again_if_its_pretraining_takes_another_rate(study, done, tmp_path):
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    shutil.copytree(done.path / "runs", folder.path / "runs")
    run = next(run for run in study.runs() if run.task.regime == "finetune" and run.fold == 0)
    before = study.pretraining(run)
    assert folder.row(run)["pretraining_rate"] == folder.row(before)["rate"]
    for tuning in study.tuning(before.task, before.method, before.length):
        row = folder.row(tuning)
        (folder.run_folder(tuning) / "row.json").write_text(
            json.dumps({**row, "loss": -row["loss"]})
        )
    assert folder.row(before) is None
    assert folder.row(run) is None
    old = json.loads((folder.run_folder(run) / "row.json").read_text())
    run_study(folder, [*study.selected([run.name])], console=SILENT)
    new = folder.row(run)
    assert new["pretraining_rate"] == folder.row(before)["rate"] != old["pretraining_rate"]
    assert new["loss"] != old["loss"]
    tuning = [folder.row(each) for each in study.tuning(run.task, run.method, run.length)]
    assert {row["pretraining_rate"] for row in tuning} == {new["pretraining_rate"]}


def test_nothing_starts_from_a_run_that_diverged_or_is_being_done_again(study, done, tmp_path):
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    shutil.copytree(done.path / "runs", folder.path / "runs")
    shutil.copytree(done.path / "data", folder.path / "data")
    run = next(run for run in study.runs() if run.task.regime == "finetune" and run.fold == 0)
    before = study.pretraining(run)
    assert folder.config(run) is not None
    file = folder.run_folder(before) / "row.json"
    row = json.loads(file.read_text())
    file.write_text(json.dumps({**row, "failed": "step 3: the loss is nan"}))
    with pytest.raises(ValueError, match=r"^generated/scratch/baseline-1/seed0-fold0: step 3: the"):
        folder.config(run)
    file.unlink()
    again = StudyFolder(study, tmp_path, Path("nowhere"), {"rows": [row]})
    assert again.row(before) == row
    assert again.config(run) is None


def test_rows_are_the_same_in_any_order(study, done, tmp_path):
    """Without the videos, which are the same files."""
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    run_study(folder, study.runs()[::-1], console=SILENT)
    assert rows_of(folder) == rows_of(done)


def test_a_complete_study_is_not_carried_out_again(study, done):
    before = {file: file.stat().st_mtime_ns for file in done.path.rglob("*") if file.is_file()}
    run_study(done, study.runs(), console=SILENT)
    after = {file: file.stat().st_mtime_ns for file in done.path.rglob("*") if file.is_file()}
    runs = done.path / "runs"
    assert {f: t for f, t in after.items() if f.is_relative_to(runs)} == {
        f: t for f, t in before.items() if f.is_relative_to(runs)
    }


def test_a_run_that_another_process_holds_is_left_to_it(study, done, tmp_path, monkeypatch):
    """It is waited for, and what it leaves is taken as it is."""
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    shutil.copytree(done.path / "runs", folder.path / "runs")
    run = study.runs()[-1]
    row = folder.run_folder(run) / "row.json"
    lock = folder.path / "locks" / run.name.replace("/", "+")
    lock.parent.mkdir()
    held = lock.open("a")
    fcntl.flock(held, fcntl.LOCK_EX)

    theirs = {**folder.row(run), "by": "another"}
    row.unlink()

    def other_process_finishes(_seconds: float) -> None:
        row.write_text(json.dumps(theirs))

    monkeypatch.setattr("study_runs.time.sleep", other_process_finishes)
    run_study(folder, study.runs(), console=SILENT)
    assert folder.row(run) == theirs
    held.close()


@pytest.mark.parametrize(
    ("row", "checkpoint"), [(None, None), ("", b""), ("{}", b"PK"), ("[1]", None)]
)
def test_a_run_of_which_nothing_can_be_read_is_done_anew(study, done, tmp_path, row, checkpoint):
    """One that left no checkpoint or a damaged one; its folder may hold anything."""
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    shutil.copytree(done.path / "runs", folder.path / "runs")
    run = study.runs()[0]
    path = folder.run_folder(run)
    (path / "row.json").unlink()
    shutil.rmtree(path / "checkpoints")
    for file in path.glob("*.pt"):
        file.unlink()
        if checkpoint is not None:
            file.write_bytes(checkpoint)
    if row is not None:
        (path / "row.json").write_text(row)
    run_study(folder, study.runs(), console=SILENT)
    assert rows_of(folder) == rows_of(done)


def test_a_loss_that_is_not_finite_is_a_row_that_says_so(study, done, monkeypatch, tmp_path):
    def diverges(_config: object, path: Path, **_: object) -> dict:
        path.mkdir()
        raise Diverged("step 3: the loss is nan at rate 0.001; use a smaller one")

    monkeypatch.setattr("study_runs.train", diverges)
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    run = study.runs()[0]
    run_study(folder, [run], console=SILENT)
    assert folder.row(run)["failed"] == "step 3: the loss is nan at rate 0.001"
    assert folder.row(run)["top1"] == 1 / 12  # as good as guessing
    assert folder.row(run)["loss"] == pytest.approx(math.log(12))


def test_a_search_that_goes_on_carries_out_what_it_then_chooses(done, tmp_path):
    """Of five rates an outer one is tried only beyond an end; final runs follow the choice."""
    wider = tmp_path / "small.yaml"
    rates = [0.0005, 0.001, 0.002, 0.004, 0.008]
    wider.write_text(yaml.safe_dump({**STUDY, "rates": rates}, sort_keys=False))
    study = read_study(wider)
    folder = StudyFolder(study, tmp_path, Path("nowhere"))
    shutil.copytree(done.path / "runs", folder.path / "runs")
    runs = study.selected(["generated/scratch/pass-1/"])
    tuning = {run.rate: run for run in runs if run.role == "tuning"}
    final = runs[-1]
    for rate in (0.001, 0.002):  # as if the larger had won, at an end of what is tried
        row = {**folder.row(tuning[rate]), "loss": 0.003 - rate}
        (folder.run_folder(tuning[rate]) / "row.json").write_text(json.dumps(row))
    assert folder.wanted_rates(final) == [0.004]
    assert folder.rate(final) is None
    assert folder.left([tuning[0.0005], tuning[0.004]]) == [tuning[0.004]]

    run_study(folder, runs, console=SILENT)
    tried = {rate for rate, run in tuning.items() if folder.row(run) is not None}
    assert tried == {0.001, 0.002, 0.004}
    assert folder.row(final)["rate"] == 0.002

    # A further rate that wins makes the final runs stale, and no other method's.
    row = {**folder.row(tuning[0.004]), "loss": 0.0001}
    (folder.run_folder(tuning[0.004]) / "row.json").write_text(json.dumps(row))
    assert folder.row(final)["rate"] == 0.002  # until the search is done
    row = {**row, "rate": 0.008, "loss": 0.1}
    folder.run_folder(tuning[0.008]).mkdir()
    (folder.run_folder(tuning[0.008]) / "row.json").write_text(json.dumps(row))
    assert folder.rate(final) == 0.004
    assert folder.row(final) is None
    assert folder.left([final]) == [final]


def test_the_collected_table(study_file, done, tmp_path, capsys):
    table = tmp_path / "table.json"
    flags = [str(study_file), "--folder", str(done.path)]
    flags += ["--table", str(table)]
    assert main([*flags, "--collect"]) == 0
    values = json.loads(table.read_text())
    assert (values["runs"], values["complete"]) == (20, 20)
    said = summary(done.study, values["rows"])
    assert {key: values[key] for key in said} == said
    printed = capsys.readouterr().out
    scores = [row["top1"] for row in values["rows"] if row["role"] == "final"]
    assert "generated/scratch, top-1 and loss on average" in printed
    assert any(f"{score:6.1%}" in printed for score in scores)
    assert "beside" in printed
    assert f"{table}: 20 of 20 runs" in printed
    here = machine(on_gpu=torch.cuda.is_available())
    assert {(row["machine"], row["torch"]) for row in values["rows"]} == {(here, torch.__version__)}
    assert {step["machine"] for step in values["steps"]} == {here}
    row = next(row for row in values["rows"] if row["method"] == "pass" and row["fold"] == 1)
    timed: dict[tuple[str, int], list[dict]] = {}
    for step in values["steps"]:
        if step["regime"] == "scratch":
            timed.setdefault((step["shape"], step["clips"]), []).append(step)
    assert max(map(len, timed.values())) == 2  # of both methods: they count by their steps
    step_seconds = {
        kind: sum(each["steps"] * each["seconds"] for each in found)
        / sum(each["steps"] for each in found)
        for kind, found in timed.items()
    }
    steps = [json.loads(line) for line in _metrics(done, "pass-1/seed0-fold1")]
    expected = sum(step_seconds[step["shape"], step["batch_size"]] for step in steps)
    assert row["seconds"] == pytest.approx(expected)
    both = row["seconds"] + row["decode_seconds"]
    assert row["seconds_with_decoding"] == pytest.approx(both)
    assert both > row["seconds"]
    assert (row["steps"], row["role"], row["epoch_factor"]) == (
        6,
        "final",
        (3 * 32 + 2 * 8 + 2) / (6 * 2),
    )
    assert values["quiet"] == []
    check_times(done, done.study.selected(["generated/scratch/pass"]))
    check_times(done, done.study.selected(["generated/scratch/pass"]))  # once is enough
    assert main([*flags, "--collect"]) == 0
    published = json.loads(table.read_text())
    (quiet,) = published["quiet"]
    assert quiet["machine"] == here
    assert (quiet["method"], quiet["length"], quiet["steps"]) == ("pass", 1, 6)
    assert quiet["top1"] == quiet["top1_before"]
    assert quiet["seconds"] == pytest.approx(expected)
    assert quiet["took_seconds"] > 0
    of_another = {**quiet, "machine": "another", "took_seconds": 1e6}
    baseline = {**of_another, "method": "baseline"}
    published = {**published, "quiet": [baseline, of_another]}
    merged = StudyFolder(done.study, done.path, Path("nowhere"), published).quiet()
    assert merged == [quiet, baseline]
    (iso,) = values["iso"]
    assert iso["method"] == "pass"
    assert iso["top1"]["steps"]["cells"] == 2
    savings = {each["baseline_length"]: each["top1"] for each in values["lengths"]}
    assert savings[1] == iso["top1"]["multiply_adds"]
    assert len(savings) == 2
    assert main([*flags, "--list"]) == 0
    assert "generated/scratch/pass-1/seed0-fold1" in capsys.readouterr().out


def test_another_machine_goes_on_from_the_published_table(study, done, tmp_path):
    """Only a run whose weights others need is done again, once one of those is missing."""
    collect(done, tmp_path / "table.json")
    published = json.loads((tmp_path / "table.json").read_text())
    elsewhere = StudyFolder(study, tmp_path / "elsewhere", Path("nowhere"), published)
    run_study(elsewhere, study.runs(), console=SILENT)
    assert not (elsewhere.path / "runs").exists()
    collect(elsewhere, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "table.json").read_text()

    missing, needed = (
        f"generated/{regime}/baseline-1/seed0-fold{fold}"
        for regime, fold in (("finetune", 1), ("scratch", 0))
    )
    published["rows"] = [row for row in published["rows"] if row_name(row) != missing]
    (weights,) = (row for row in published["rows"] if row_name(row) == needed)
    weights["top1"] = 0.123  # as another machine may find
    elsewhere = StudyFolder(study, tmp_path / "elsewhere", Path("nowhere"), published)
    run_study(elsewhere, study.runs(), console=SILENT)
    anew = {
        str(file.parent.relative_to(elsewhere.path / "runs"))
        for file in elsewhere.path.rglob("row.json")
    }
    assert anew == {missing, needed}
    found, before = rows_of(elsewhere), rows_of(done)
    assert found.pop(needed) == {**before.pop(needed), "top1": weights["top1"]}
    assert found == before


def test_a_run_done_again_for_its_weights_is_what_it_came_to_if_either_failed(
    study, done, tmp_path, monkeypatch
):
    """Others must know whether it has weights."""
    run = next(run for run in study.runs() if run.role == "final")
    fresh, kept = done.row(run), {**done.row(run), "top1": 0.123}
    config = done.config(run)

    def carried_out(published: dict, *, diverges: bool) -> dict:
        folder = StudyFolder(study, tmp_path / "folder", Path("nowhere"), {"rows": [published]})
        with monkeypatch.context() as patch:
            if diverges:
                patch.setattr(study_runs, "train", _diverge)
            return study_runs._carry_out(folder, run, config)

    assert carried_out(kept, diverges=False) == kept
    shutil.rmtree(tmp_path / "folder")
    assert carried_out(kept, diverges=True)["failed"]
    shutil.rmtree(tmp_path / "folder")
    again = carried_out({**kept, "failed": "loss is nan"}, diverges=False)
    assert (again["top1"], "failed" in again) == (fresh["top1"], False)


def _diverge(_: object, folder: Path, **__: object) -> None:
    folder.mkdir()
    raise Diverged("step 1: loss is nan; lower the rate")


def _metrics(folder: StudyFolder, name: str) -> list[str]:
    file = folder.path / "runs" / "generated" / "scratch" / name / "metrics.jsonl"
    return file.read_text().splitlines()


def test_what_a_user_has_to_change_is_one_line(study_file, tmp_path, capsys):
    flags = [str(study_file), "--folder", str(tmp_path)]
    assert main([*flags, "--only", "nothing"]) == 2
    assert "--only nothing: no run" in capsys.readouterr().err
