"""The first hour with one's own videos: one command on a folder of generated files, and its end."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from vcycle.cli.main import main
from vcycle.cli.own_data import manifest_of
from vcycle.cli.own_weights import use_model_of_weights
from vcycle.cli.run_folders import last_run_folder, locked_folder, run_folder
from vcycle.cli.train import parse_time
from vcycle.config import schedule_choice
from vcycle.config.fields import config_text, read_values
from vcycle.config.run import RunConfig
from vcycle.data.manifest import Manifest
from vcycle.datasets import journal
from vcycle.datasets.choices import Choices
from vcycle.train import start
from vcycle.train.measure.budget import Budget
from vcycle.train.measure.measuring import Measured
from vcycle.train.progress import Display
from vcycle.train.step_log import StepTime

SMALL = [
    *(
        "--model",
        "resnet3d_tiny",
        "--model.options",
        "{width: 4}",
        "--shape",
        "4x32x32",
        "--epochs",
        "16",
        "--schedule",
        "paper",
    ),
    *("--data.num_workers", "0", "--threads", "1", "--evaluation.times", "2"),
]


@pytest.fixture
def strokes(synthetic_videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of ten short videos whose names tell left from right."""
    monkeypatch.chdir(tmp_path)
    videos = Manifest.read(synthetic_videos).split("train").videos
    for number, video in enumerate(videos[:20]):
        folder = tmp_path / "strokes" / ("left_loop", "right_loop")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        source = synthetic_videos / video.path
        (folder / f"clip_{number}{source.suffix}").write_bytes(source.read_bytes())
    return tmp_path / "strokes"


def test_one_command_indexes_plans_trains_and_says_what_comes_next(
    strokes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "strokes", *SMALL]
    assert main([*command, "--dry-run"]) == 0
    planned = capsys.readouterr().out
    assert "20 of 20 videos indexed in 2 classes" in planned
    assert "clips are not mirrored: names such as left_loop tell left from right" in planned
    assert "checking" in planned
    assert "shapes: 1 of" in planned
    assert "/14  cycle" in planned
    assert "In all " in planned
    of_baseline = re.search(r"^steps +\d+ +(\d+) ", planned, re.MULTILINE)
    assert of_baseline is not None
    compared = rf"The {of_baseline[1]} steps of its baseline would take .*(as long|no more)"
    assert re.search(compared, planned)
    fewer = [word for word in command if word not in ("--epochs", "16")]
    steps = ["--baseline.steps", "90", "--multigrid.steps", "40"]
    assert main([*fewer, "--dry-run", *steps]) == 0
    assert "The 90 steps of its baseline would take" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()

    assert main(command) == 0
    out = capsys.readouterr().out
    assert "random weights, sized by their number" in out.replace("\n", " ")
    assert out.index("In all ") < out.index("strokes-1: phase 1/")
    assert "vcycle eval runs/strokes-1 --best" in out
    plan = out[out.index("\nscratch") : out.index("\nrun folder")]
    assert max(map(len, plan.splitlines())) <= 80
    result = json.loads((tmp_path / "runs" / "strokes-1" / "result.json").read_text())
    assert 0 <= result["top1"] <= 1
    assert result["seconds"] > 0
    assert result["predicted_seconds"] > 0
    assert result["prediction_error_from_third"] >= 0
    assert result["predicted_seconds_at_third"] > 0
    assert not any(video.flip for video in Manifest.read(strokes).videos)

    # A complete run stays as it is, and the same command begins the next one.
    assert run_folder("strokes") == Path("runs/strokes-2")
    assert last_run_folder("strokes") is None


def test_a_cpu_that_is_faster_in_bfloat16_takes_it_for_one_s_own_videos_and_time_only(
    strokes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saved configuration is carried out as it is."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    asked: list[RunConfig] = []
    monkeypatch.setattr("vcycle.cli.train._train", lambda run, _: asked.append(run.config))
    assert main(["data", "index", "folder", "strokes"]) == 0
    own = ["--model", "resnet3d_tiny", "--shape", "8x32x32"]
    assert main(["train", "strokes", *own, "--time", "1m"]) == 0
    assert main(["train", "scratch", "--data", "strokes", *own, "--time", "1m"]) == 0
    assert main(["train", "strokes", *own]) == 0
    assert asked[2].notes[-1].startswith("--precision bf16-mixed is faster on this CPU")
    saved = replace(asked[0], precision="32-true")
    (tmp_path / "saved.yaml").write_text(config_text(saved))
    assert main(["train", "--config", "saved.yaml", "--folder", "again"]) == 0
    assert main(["train", "demo", "--data", "strokes", "--folder", "demo"]) == 0
    kinds = ["bf16-mixed", "bf16-mixed", "32-true", "32-true", "32-true"]
    assert [config.precision for config in asked] == kinds
    assert replace(asked[3], notes=saved.notes, steps_note=saved.steps_note) == saved


def test_a_gpu_takes_tf32_for_one_s_own_videos_only(
    strokes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked: list[RunConfig] = []
    monkeypatch.setattr("vcycle.cli.train._train", lambda run, _: asked.append(run.config))
    own = ["--model", "resnet3d_tiny", "--shape", "8x32x32"]
    assert main(["data", "index", "folder", "strokes"]) == 0
    assert main(["train", "strokes", *own]) == 0
    assert main(["train", "strokes", *own, "--time", "1m"]) == 0
    assert main(["train", "strokes", *own, "--precision", "32-true"]) == 0
    assert main(["train", "demo", "--data", "strokes", "--folder", "demo"]) == 0
    kinds = ["tf32", "tf32", "32-true", "32-true"]
    assert [config.precision for config in asked] == kinds
    assert asked[0].notes[-1].startswith("precision tf32, in which torch by itself convolves")


def test_a_choice_made_once_is_kept(strokes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["train", "strokes", *SMALL, "--dry-run"]
    assert main([*command, "--flip"]) == 0
    out = capsys.readouterr().out
    assert "clips are mirrored, as chosen with --flip" in out
    assert f"--flip is kept in the index of {strokes}" in out
    assert main(command) == 0
    assert "clips are mirrored, as chosen with --flip" in capsys.readouterr().out
    assert all(video.flip for video in Manifest.read(strokes).videos)


def test_only_a_manifest_of_the_folder_itself_is_made_again(strokes: Path, tmp_path: Path) -> None:
    """One of a table or of a published dataset has splits that must not be lost."""
    videos = sorted(strokes.rglob("*.mp4"))
    rows = [
        f"{video.relative_to(strokes)},{video.parent.name},{('train', 'val')[number % 2]}\n"
        for number, video in enumerate(videos)
    ]
    (tmp_path / "table.csv").write_text("path,label,split\n" + "".join(rows))
    assert main(["data", "index", "folder", "strokes"]) == 0
    assert main(["data", "index", "table", "table.csv", "--videos", "strokes"]) == 0
    assert main(["data", "index", "folder", "strokes", "--out", "elsewhere"]) == 0
    videos[0].unlink()
    for folder in ("strokes", "elsewhere"):
        assert manifest_of(Path(folder)) == tmp_path / folder
        assert len(Manifest.read(folder)) == 20
    assert len(Manifest.read(strokes).split("val")) == 10
    assert main(["data", "index", "folder", "strokes"]) == 0
    videos[1].unlink()
    assert manifest_of(Path("strokes")) == strokes
    assert len(Manifest.read(strokes)) == 18


def interrupt_after(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Display.step

    def step(display: Display, time: StepTime) -> None:
        original(display, time)
        if time.step.index == index:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Display, "step", step)


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured: steps of 0.1 s, in no time. On a slow, busy machine no plan might fit into 15 s."""
    measure = start.measure

    def measured(*parts: Any, **more: Any) -> Measured:
        found = measure(*parts, **more)
        model = dict.fromkeys(found.times.model, 0.1)
        decode = dict.fromkeys(found.times.decode, 1e-3)
        times = replace(found.times, model=model, decode=decode, view_seconds=1e-3, slowdown=1.0)
        return replace(found, times=times)

    monkeypatch.setattr(start, "measure", measured)
    monkeypatch.setattr(Budget, "left", property(lambda budget: budget.seconds))


@pytest.mark.usefixtures("steady")
def test_a_time_for_the_baseline_alone_goes_on_with_it(
    strokes: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [word for word in SMALL if word not in ("--epochs", "16", "--schedule", "paper")]
    monkeypatch.setattr(schedule_choice, "FEWEST_STEPS", 10**9)
    command = ["train", "strokes", *small, "--time", "15s"]
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert main(command) == 130
    steps = read_values(Path("runs/strokes-1/config.yaml"))["baseline"]["steps"]
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "runs/strokes-1: keeps the plan that it began with" in out
    assert [each.name for each in Path("runs").iterdir()] == ["strokes-1"]
    assert json.loads(Path("runs/strokes-1/result.json").read_text())["steps"] == steps
    # Another time is another run.
    longer = [*command[:-1], "20s", "--folder", "runs/strokes-1"]
    assert main(longer) == 2
    assert "--time 20s: the run in runs/strokes-1 began with another" in capsys.readouterr().err
    (Path("runs/strokes-1") / "result.json").rename("result.json")
    assert main([*command[:-1], "20s", "--dry-run"]) == 0
    assert "run folder runs/strokes-2" in capsys.readouterr().out
    Path("result.json").rename(Path("runs/strokes-1") / "result.json")
    assert main([*command, "--schedule", "anneal", "--folder", "runs/strokes-1"]) == 2
    assert "multigrid.anneal is None in it" in capsys.readouterr().err
    # A run of another version is not this one, and is refused only where it is named.
    config = Path("runs/strokes-1/config.yaml")
    (Path("runs/strokes-1") / "result.json").unlink()
    config.write_text(f"{config.read_text()}old_field: 1\n")
    assert main([*command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "run folder runs/strokes-2" in out
    assert "runs/strokes-1 is not complete, and cannot be gone on with (runs/strokes-1/c" in out
    assert main([*command, "--folder", "runs/strokes-1"]) == 2
    assert "runs/strokes-1/config.yaml: old_field: no such field" in capsys.readouterr().err


@pytest.mark.usefixtures("steady")
def test_a_time_or_other_weights_or_views_begin_another_run(
    strokes: Path,
    trained_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = shutil.copy(trained_run / "best.safetensors", tmp_path / "a.safetensors")
    other = shutil.copy(weights, tmp_path / "b.safetensors")
    command = ["train", "strokes", *SMALL, "--weights", str(weights)]
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert main(command) == 130
    timed = [word for word in command if word not in ("--epochs", "16", "--schedule", "paper")]
    for words in (
        [*timed, "--time", "15s"],
        [*command[:-1], str(other)],
        [*command, "--evaluation.num_clips", "2"],
    ):
        capsys.readouterr()
        assert main([*words, "--dry-run"]) == 0
        assert "run folder runs/strokes-2" in capsys.readouterr().out
    for words, message in (
        (["--weights", str(other)], "model.weights is "),
        (["--evaluation.num_crops", "3"], "evaluation.num_crops is 1 in it, 3 now"),
    ):
        assert main(["train", "--resume", "runs/strokes-1", *words, "--dry-run"]) == 2
        assert message in capsys.readouterr().err
    again = [*command, "--evaluation.times", "1", "--evaluation.batch_size", "3"]
    assert main([*again, "--dry-run"]) == 0
    assert "run folder runs/strokes-1" in capsys.readouterr().out


def test_a_folder_of_the_same_name_elsewhere_begins_another_run(
    strokes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its videos have the same names, sizes and lengths; one that was moved goes on."""
    copy = shutil.copytree(strokes, tmp_path / "other" / "strokes")
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert main(["train", "strokes", *SMALL]) == 130
    for folder in (copy, strokes):
        capsys.readouterr()
        assert main(["train", str(folder), *SMALL, "--dry-run"]) == 0
        number = 1 if folder == strokes else 2
        assert f"run folder runs/strokes-{number}" in capsys.readouterr().out
    assert main(["train", str(copy), *SMALL, "--folder", "runs/strokes-1"]) == 2
    assert "runs/strokes-1: its run began with other videos; --resume" in capsys.readouterr().err
    shutil.rmtree(strokes)
    assert main(["train", str(copy), *SMALL, "--dry-run"]) == 0
    assert "run folder runs/strokes-1" in capsys.readouterr().out


def test_the_last_run_is_gone_on_with_whatever_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (run_folder("a[b]"), last_run_folder("a[b]")) == (Path("runs/a[b]-1"), None)
    for name in ("a[b]-2", "a[b]-2-7", "a[b]-x", "ab-9"):
        (Path("runs") / name).mkdir(parents=True)
        (Path("runs") / name / "config.yaml").touch()
    Path("runs/a[b]-3").mkdir()
    Path("runs/a[b]-3/.lock").touch()  # which nothing has begun to fill
    assert run_folder("a[b]") == Path("runs/a[b]-3")
    assert last_run_folder("a[b]") == Path("runs/a[b]-2")


@pytest.mark.usefixtures("steady")
def test_the_plan_fits_the_time_and_goes_on_from_another_folder(
    strokes: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = [word for word in SMALL if word not in ("--epochs", "16", "--schedule", "paper")]
    # The anneal, however slow the machine is at steps and at decoding.
    monkeypatch.setattr("vcycle.train.measure.budget.timed", lambda config, *_, **__: config)
    command = ["train", "strokes", *small, "--time", "15s", "--folder", str(tmp_path / "run")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "epochs fit into the 15s asked for" in out
    assert "/3  pass" in out
    assert "schedule anneal" in out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["predicted_seconds"] < 15
    # With the plan and the precision that it had, whatever steps take now and on which CPU.
    ran_in = read_values(tmp_path / "run" / "config.yaml")["precision"]
    other = {"amx_bf16": ran_in == "32-true"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: other, raising=False)
    capsys.readouterr()
    assert main(command) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path / 'run'}: keeps the plan that it began with" in out
    assert "complete, nothing is left to train" in out
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "run" / "result.json").unlink()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["top1"] == result["top1"]
    capsys.readouterr()
    assert main(["train", "--resume", str(tmp_path / "run"), "--seed", "5"]) == 2
    said = capsys.readouterr()
    assert "seed is 0 in it, 5 now" in said.err
    assert "Norm groups" not in said.out  # no plan of a run that is refused


def test_a_run_folder_in_use_is_refused_by_name_of_who_uses_it(
    strokes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import sys; from pathlib import Path; from vcycle.train.lock import FolderLock; "
        "FolderLock(Path(sys.argv[1])).take(); print('locked', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        command = ["train", "strokes", *SMALL, "--folder", str(folder), "--dry-run"]
        assert main(command) == 2
        error = capsys.readouterr().err
        assert f"in use by process {holder.pid} of" in error
        assert f"on {os.uname().nodename} since" in error
        holder.kill()
    assert main(command) == 0  # the lock of a process that died is gone


def test_a_run_that_was_interrupted_and_is_another_is_named(
    strokes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "strokes", *SMALL]
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert main(command) == 130
    (first, second, *_) = sorted((strokes / "left_loop").iterdir())
    more = [first.with_name(f"more_{number}.mp4") for number in range(4)]
    others, as_before = [(path, first.read_bytes()) for path in more], second.read_bytes()
    for changed in (others, [(second, first.read_bytes())]):  # as many videos as before
        for path, content in changed:
            path.write_bytes(content)
        capsys.readouterr()
        assert main([*command, "--dry-run"]) == 0
        out = capsys.readouterr().out
        assert "runs/strokes-1 is not complete, and began with other settings or videos" in out
        assert "run folder runs/strokes-2" in out
        assert not Path("runs/strokes-2").exists()
        for path in more:
            path.unlink(missing_ok=True)
    second.unlink()
    assert main([*command, "--folder", "runs/strokes-1"]) == 2
    error = capsys.readouterr().err
    assert "began with other videos; --resume runs/strokes-1 goes on with those" in error
    assert main(["train", "--resume", "runs/strokes-1"]) == 0
    out = capsys.readouterr().out
    assert "runs/strokes-1: its videos have changed; it goes on with those it had" in out
    assert "1 video could not be read" in out
    (strokes / "another").mkdir()
    (strokes / "another" / "x.mp4").write_bytes(as_before)
    manifest_of(strokes)
    assert main(["eval", "runs/strokes-1", "--best"]) == 0  # of the videos that it began with
    assert "mean class accuracy" in capsys.readouterr().out
    shutil.rmtree(strokes / "another")
    second.write_bytes(as_before)
    assert main([*command, "--dry-run"]) == 0  # complete
    assert "run folder runs/strokes-2" in capsys.readouterr().out


def test_commands_that_begin_at_once_have_a_folder_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as they have left nothing there, their locks say so; then what they left does."""
    monkeypatch.chdir(tmp_path)
    code = (
        "import sys; from vcycle.cli.run_folders import locked_folder; "
        "folder, lock = locked_folder('a'); print(folder, flush=True); "
        "(folder / sys.stdin.readline().strip()).touch(); lock.release()"
    )
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    found = {other.stdout.readline().strip() for other in others if other.stdout is not None}
    assert found == {"runs/a-1", "runs/a-2", "runs/a-3"}
    for name, other in zip((".lock", "config.yaml", ".lock"), others, strict=True):
        other.communicate(f"{name}\n")
    (kept,) = Path("runs").iterdir()  # what was not used is removed
    assert (kept / "config.yaml").is_file()
    assert last_run_folder("a") == kept
    folder, lock = locked_folder("a")
    assert folder == run_folder("a") != kept
    lock.release()


def test_a_run_that_fails_or_is_dry_leaves_no_folder(
    strokes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "strokes", *SMALL, "--data.decoder", "nvdec"]) == 2
    assert list(Path("runs").glob("*")) == []
    assert main(["train", "strokes", *SMALL, "--dry-run", "--val-share", "0.3"]) == 0
    assert "--val-share is kept in the index of" in capsys.readouterr().out
    assert list(Path("runs").glob("*")) == []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for chosen in (Choices(group_pattern="clip_(.)"), Choices(val_share=0.4), Choices(flip=True)):
        with pytest.raises(ValueError, match=r"several processes cannot index .*strokes again"):
            manifest_of(Path("strokes"), chosen)
    assert manifest_of(Path("strokes"), Choices(val_share=0.3)) == strokes


def test_several_processes_take_no_other_tables_manifest(
    strokes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = "".join(f"{video.relative_to(strokes)},a\n" for video in strokes.rglob("*.mp4"))
    for name in ("one.csv", "two.csv"):
        (strokes / name).write_text(f"path,label\n{rows}")
    assert main(["data", "index", "table", str(strokes / "one.csv")]) == 0
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert manifest_of(strokes / "one.csv") == manifest_of(strokes) == strokes
    with pytest.raises(ValueError, match=r"two\.csv: several processes cannot index it; run"):
        manifest_of(strokes / "two.csv")


def test_a_read_only_folder_keeps_the_choices_of_its_owner(
    strokes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever trains on it has the same videos, in one process and in several."""
    assert main(["data", "index", "folder", "strokes", "--flip", "--val-share", "0.3"]) == 0
    strokes.chmod(0o555)
    try:
        assert manifest_of(strokes) == strokes
        other = manifest_of(strokes, Choices(val_share=0.5))
        assert other.parent == Path("runs").absolute() / ".manifests"
        assert Choices.read(other).given == {"--flip": True, "--val-share": 0.5}
        assert manifest_of(strokes) == other
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert manifest_of(strokes) == other
        shutil.rmtree(other)
        assert manifest_of(strokes) == strokes
        strokes.chmod(0o755)  # its owner puts another's manifest there
        (strokes / "index.json").unlink()
        shutil.copytree(strokes, other)
        strokes.chmod(0o555)
        assert manifest_of(strokes) == strokes
        monkeypatch.setenv("WORLD_SIZE", "1")
        assert manifest_of(strokes) == strokes
    finally:
        strokes.chmod(0o755)
    assert "clips are mirrored, as the manifest says" in capsys.readouterr().out


def test_a_manifest_lies_among_the_caches_if_nothing_here_can_be_written(
    strokes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in (strokes, here):
        folder.chmod(0o555)
    assert manifest_of(strokes).parent == tmp_path / "cache" / "vcycle"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", Mock(side_effect=RuntimeError))  # as without a home
    with pytest.raises(ValueError, match="read-only, and so is this folder; start the command in"):
        manifest_of(strokes)


def test_a_link_to_nowhere_is_no_endless_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").symlink_to(tmp_path / "gone")
    with pytest.raises(FileExistsError):
        locked_folder("a")


def test_what_needs_no_locks_starts_without_them(tmp_path: Path) -> None:
    code = "import sys; sys.modules['fcntl'] = None; import vcycle.cli.main"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_a_folder_that_another_command_indexes_is_waited_for_and_its_choices_hold(
    strokes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest_of(strokes)
    code = (
        "import sys; from pathlib import Path; from vcycle.datasets.journal import Journal; "
        "from vcycle.datasets.choices import Choices; journal = Journal(Path(sys.argv[1])); "
        "journal.__enter__(); print('locked', flush=True); sys.stdin.readline(); "
        "Choices(val_share=0.4).keep(Path(sys.argv[1]).parent)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(strokes / "probes.jsonl")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "locked\n"

        def say(text: str, **_: object) -> None:
            print(text)
            if text.endswith("waiting for that"):
                holder.communicate("\n")

        monkeypatch.setattr(journal, "print", say, raising=False)
        manifest_of(strokes)
    assert f"{strokes}: another run is indexing it; waiting for that" in capsys.readouterr().out
    assert len(Manifest.read(strokes).split("val")) == 8


def test_weights_of_a_run_bring_their_network(
    strokes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], trained_run: Path
) -> None:
    words = SMALL[SMALL.index("--shape") :]  # names no model
    weights = str(trained_run / "best.safetensors")
    assert main(["train", "strokes", *words, "--weights", weights, "--dry-run"]) == 0
    captured = capsys.readouterr()
    assert f"{weights}: weights of resnet3d_tiny, which is the model" in captured.err
    assert "finetune" in captured.out
    words = [*words, "--data", "strokes", "--weights", weights]
    assert main(["plan", "finetune", *words, "--json"]) == 0
    captured = capsys.readouterr()
    assert "weights of resnet3d_tiny" in captured.err
    plans = [json.loads(captured.out)]
    for name in ("resnet3d_tiny", "slow_r50"):
        assert main(["plan", "finetune", *words, "--model", name, "--json"]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    for plan in plans:
        del plan["flags"]
    assert plans[0] == plans[1] != plans[2]


def test_weights_of_ones_own_function_bring_the_options_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "best.safetensors"
    file.touch()
    trained = SimpleNamespace(name="own:wide", options={"width": 16})
    monkeypatch.setattr("vcycle.evaluate.checkpoint.find_trained_model", lambda _: trained)

    def fields(**of_model: object) -> dict[str, object]:
        given = {"model.weights": str(file), **{f"model.{k}": v for k, v in of_model.items()}}
        options = argparse.Namespace(recipe="finetune", fields=given)
        use_model_of_weights(options)
        return options.fields

    assert fields(name="own:wide")["model.options"] == {"width": 16}
    assert fields(name="own:wide", options={"width": 8})["model.options"] == {"width": 8}
    assert "model.options" not in fields(name="own:other")
    with pytest.raises(
        ValueError, match=r"weights of the function own:wide; give --model own:wide"
    ):
        fields()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "resnet3d_tinny"], "model resnet3d_tinny: no such model"),
        (["--schedule", "of"], "schedule 'of': choose paper"),
        (["--weights", "nope.pth"], "model.weights nope.pth: no such file"),
        (["--multigrid.long_cycle.shares", "[0.5, 0.3, 0.1]"], "they sum to 0.9"),
        (["--model", "video_vit_tiny", "--multigrid.anneal.share", "2"], "anneal.share 2: the ann"),
    ],
)
def test_what_is_none_on_any_videos_does_not_wait_for_an_index(
    strokes: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["train", "strokes", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "indexing" not in captured.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere/videos"], "nowhere/videos: no such file or folder"),
        (["strokes", "--time", "soon"], "--time soon: give a time such as 90s, 30m, 2h"),
        (["strokes", "--time", "5m", "--epochs", "3"], "--time and --epochs: both fix the steps"),
        (["strokes", "--data", "other"], "strokes and --data: both name the videos"),
        (["scratch", "--no-flip"], "--no-flip: it is for a folder or table of videos"),
        (["stroks"], "stroks: no such file or folder, and no recipe either"),
        (["scrach"], "recipe scrach: no such recipe; did you mean scratch?"),
        (["--resume", "strokes", "--epochs", "9"], "with its own plan; leave out --epochs"),
        (["--resume", "strokes", "--time=5m"], "with its own plan; leave out --time"),
        (["--resume", "strokes"], "--resume strokes: no config.yaml in it"),
        (["--resume", "nowhere"], "--resume nowhere: not found; give a folder of vcycle train"),
        (["strokes", "--group-pattern", "x"], "group_pattern 'x': has no group; put what names"),
        (["strokes", "--val-share", "2"], "val_share 2.0: give a share from 0 to 1"),
        (["scratch", "--val-share", "0.2"], "--val-share: it is for a folder or table of videos"),
        (["strokes", "--resume", "strokes"], "it names the run; leave out strokes"),
        (["--resume"], "--resume: give --resume RUN, or the whole command that began the run"),
        (["strokes", "--data.stride", "0"], "data.stride 0: give at least 1 frame"),
        (["strokes", "--data.short_side", "[9,8]"], "data.short_side [9, 8]: give an increasing"),
    ],
)
def test_mistakes_are_one_line(
    strokes: Path, arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    error = capfd.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ("*/clip_[01].*", "split 'val': no video of "),
        ("left_loop/*", "are all of one class; a model needs at least two"),
    ],
)
def test_videos_that_cannot_be_trained_on_are_refused_before_a_plan_is_made(
    strokes: Path, tmp_path: Path, kept: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for file in strokes.glob(kept):
        copy = tmp_path / "few" / file.relative_to(strokes)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    assert main(["train", str(tmp_path / "few"), *SMALL]) == 2
    out, error = capfd.readouterr()
    assert message in error.splitlines()[-1]
    assert "run folder" not in out


def test_times_are_read() -> None:
    assert [parse_time(text) for text in ("90s", "30m", "2h", "1h30m", "0.5m")] == [
        *(90, 1800, 7200, 5400, 30)
    ]
    for text in ("", "5", "m", "5x", "5m3", "0s", "-5m"):
        with pytest.raises(ValueError, match="give a time"):
            parse_time(text)


def test_gpus_that_are_not_there_are_one_line(
    strokes: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, advice in (
        (0, "none on this machine; leave it out"),
        (1, "1 on this machine; give"),
    ):
        monkeypatch.setattr("torch.cuda.device_count", lambda found=found: found)
        assert main(["train", "strokes", *SMALL, "--gpus", "2"]) == 2
        error = capfd.readouterr().err.splitlines()[-1]
        assert error.startswith(f"vcycle: --gpus 2: PyTorch finds {advice}")
    assert not (strokes / "manifest.csv").exists()


@pytest.mark.parametrize("words", [["strokes"], ["demo", "--data", "strokes"]])
def test_a_process_is_started_on_each_gpu(
    strokes: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def replace_process(_: str, command: list[str]) -> None:
        started.append(command)
        raise SystemExit(0)

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("os.execv", replace_process)
    assert main(["data", "index", "folder", "strokes"]) == 0
    with pytest.raises(SystemExit):
        main(["train", *words, *SMALL, "--gpus", "2"])
    (command,) = started
    assert command[1:6] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    folder = "runs/strokes-1" if words == ["strokes"] else "runs/demo-1"
    assert command[6:] == [
        *("-m", "vcycle", "train", *words, *SMALL, "--gpus", "2", "--folder", folder)
    ]
    # One of those processes has the batch of two GPUs, and starts no others.
    monkeypatch.setenv("WORLD_SIZE", "2")
    configs: list[RunConfig] = []
    monkeypatch.setattr(
        "vcycle.train.run.train",
        lambda config, *_, **__: configs.append(config) or {"videos": 0, "bad_videos": 0},
    )
    assert main(command[8:]) == 0
    assert configs[0].baseline.batch_size == (4 if words == ["strokes"] else 8)
    assert len(started) == 1
