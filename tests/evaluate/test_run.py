"""``vcycle eval`` on a run: intervals, shapes, the scores of every video."""

from __future__ import annotations

import csv
import itertools
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from tests.processes import PATIENCE
from vcycle.cli.eval import _fitted
from vcycle.cli.main import main
from vcycle.config.fields import config_text, read_config
from vcycle.data.manifest import Manifest
from vcycle.evaluate import run as run_module
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.models.tiny import TinyResNet3d
from vcycle.schedule.shape import Shape


def test_all_shapes_that_it_was_trained_on(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained_run), "--shapes", "all", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    plan = read_config(trained_run / "config.yaml").plan()
    assert {row["shape"] for row in result["shapes"]} == {
        str(shape) for shape in (plan.baseline.shape, *plan.shapes)
    }
    counts = [row["multiply_adds"] for row in result["shapes"]]
    assert counts == sorted(counts)
    assert result["shapes"][-1]["top1"] == result["top1"]
    assert all(row["milliseconds"] > 0 for row in result["shapes"])
    low, high = result["intervals"]["top1"]
    assert low <= result["top1"] <= high
    assert sum(map(sum, result["confusion"])) == result["videos"] == 12


def test_the_scores_of_every_video_are_a_table(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "scores.csv"
    words = ["eval", str(trained_run), "--evaluation.num_clips", "2", "--scores", str(file)]
    assert main(words) == 0
    assert "mean class accuracy" in capsys.readouterr().out
    videos = Manifest.read(synthetic_videos).split("val")
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["path"] for row in rows] == [video.path for video in videos.videos]
    for row in rows:
        assert row["views"] == "2"
        assert sum(float(row[name]) for name in videos.classes) == pytest.approx(1, abs=1e-4)
        assert row["labels"] in videos.classes


def test_norm_statistics_are_estimated_if_asked_for(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = []
    for batches in ("0", "2"):
        words = ["--evaluation.precise_bn", batches, "--json"]
        assert main(["eval", str(trained_run), *words]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    assert losses[0] != losses[1]


def test_the_best_is_not_the_newest(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(trained_run, tmp_path / "run")
    for file in run.glob("best.*"):
        file.unlink()
    assert main(["eval", str(run), "--best"]) == 2
    assert "no best.pt in it" in capsys.readouterr().err


def test_milliseconds_are_those_of_one_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves a second at each look; batches of four take one."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(run_module, "time", clock)
    fabric = Fabric(accelerator="cpu", devices=1)
    assert run_module._milliseconds(nn.Identity(), Shape(2, 4, 4), 4, fabric) == 250


def test_scores_replace_scores_alone(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the labels that somebody wrote, nor the manifest of the videos."""
    file = tmp_path / "labels.csv"
    file.write_text("path,label\na.mp4,run\n")
    assert main(["eval", str(trained_run), "--scores", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"vcycle: --scores {file}: it is there, and no scores; name another\n"
    )
    assert file.read_text() == "path,label\na.mp4,run\n"
    file.write_text("path,labels,views,run,sit\n")
    assert main(["eval", str(trained_run), "--scores", str(file)]) == 0
    assert len(file.read_text().splitlines()) == 13


def test_the_data_set_has_a_name_wherever_it_is_named_from(
    trained_run: Path,
    synthetic_videos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(synthetic_videos)
    assert main(["eval", str(trained_run), "--data", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"] == synthetic_videos.name


def test_ten_clips_of_segments_are_refused(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data.segments", "true", "--evaluation.num_clips", "10"]
    assert main(["eval", str(trained_run), *words]) == 2
    error = capsys.readouterr().err
    assert "num_clips 10: with segment sampling every clip covers the whole video" in error
    assert error.count("\n") == 1


def test_scores_are_of_one_run(trained_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(trained_run), str(trained_run), "--scores", "x.csv"]) == 2
    assert "one run at a time" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--scores"], ["--shapes", "all", "--plot"]])
def test_a_folder_to_write_to_is_looked_for_before_anything_is_scored(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / "x.svg"
    assert main(["eval", str(tmp_path / "no_run"), *flags, str(file)]) == 2
    assert f"{flags[-1]} {file}: there is no folder {file.parent}" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--scores"], ["--shapes", "all", "--plot"]])
def test_what_was_scored_is_said_though_a_file_cannot_be_written(
    trained_run: Path,
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a full disk; a folder in its place, or one that is read-only, before it is scored."""
    file = tmp_path / "x.svg" if flags[-1] == "--plot" else tmp_path / "x.csv"
    words = ["eval", str(trained_run), *flags, str(file), "--json"]
    full = Mock(side_effect=OSError(28, "No space left on device", str(file)))
    with monkeypatch.context() as patch:
        patch.setattr("vcycle.evaluate.run.write_scores", full)
        patch.setattr("vcycle.report.frontier_plot.draw_frontiers", full)
        assert main(words) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)["videos"] == 12
    assert f"{file}: No space left on device" in captured.err
    monkeypatch.setattr("vcycle.evaluate.run.score_run", None)
    with monkeypatch.context() as patch:
        patch.setattr("vcycle.data.atomic.is_writable", lambda folder: False)
        assert main(words) == 2
        assert f"{flags[-1]} {file}: {tmp_path} is read-only" in capsys.readouterr().err
    file.mkdir()
    assert main(words) == 2
    assert f"{flags[-1]} {file}: it is a folder; give a file in it" in capsys.readouterr().err


def test_a_line_of_scores_is_broken_between_words_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    line = "runs/a-1: top1 22.83% [15.7%, 29.2%] on 127 videos of val"
    for is_terminal in (False, True):
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: is_terminal))  # noqa: B023
        shown = _fitted(f"{line}\n  8x64x64  12.00%").splitlines()
        assert shown[-1] == "  8x64x64  12.00%"
        assert len(shown) == 3 if is_terminal else shown[0] == line
        assert max(map(len, shown)) <= 40 or not is_terminal
        assert " ".join(" ".join(shown[:-1]).split()) == line


@pytest.mark.xdist_group("processes")
def test_two_processes_score_as_one(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a video's six views some are scored by one process, some by the other."""
    views = ["--evaluation.num_clips", "2", "--evaluation.num_crops", "3"]
    words = ["eval", str(trained_run), *views, "--evaluation.batch_size", "5", "--json"]
    files = [tmp_path / "one.csv", tmp_path / "two.csv"]
    assert main([*words, "--scores", str(files[0])]) == 0
    one = json.loads(capsys.readouterr().out)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vcycle"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, *words, "--scores", str(files[1])],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    two = json.loads(done.stdout)
    assert two.pop("loss") == pytest.approx(one.pop("loss"), rel=1e-5)
    assert two == one
    tables = [list(csv.reader(file.read_text().splitlines())) for file in files]
    for single, sharded in zip(*tables, strict=True):
        assert sharded[:3] == single[:3]  # path, labels, views
        if single != tables[0][0]:
            found, expected = (list(map(float, row[3:])) for row in (sharded, single))
            assert found == pytest.approx(expected, rel=1e-5)


def test_norm_statistics_are_those_of_the_checkpoint_unless_asked_for(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that estimated them has them in it; others to score need no training videos."""
    run = shutil.copytree(trained_run, tmp_path / "run")
    config = read_config(run / "config.yaml")
    evaluation = replace(config.evaluation, precise_bn=2)
    (run / "config.yaml").write_text(config_text(replace(config, evaluation=evaluation)))
    found = []
    for words in ([str(trained_run)], [str(run)]):
        assert main(["eval", *words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_videos_that_cannot_be_read_are_named(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = shutil.copytree(synthetic_videos, tmp_path / "videos")
    bad = sorted((videos / "val").glob("*.mp4"))[0]
    bad.write_bytes(b"no video" * 99)
    assert main(["eval", str(trained_run), "--data", str(videos), "--json"]) == 0
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["bad_videos"]) == [f"val/{bad.name}"]
    assert f"warning: {trained_run}: 1 video could not be read: val/{bad.name} (" in captured.err


@pytest.mark.parametrize(("precise_bn", "num_videos"), [("0", 12), ("9", 24)])
def test_videos_that_other_processes_could_not_read_count_too(
    trained_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    precise_bn: str,
    num_videos: int,
) -> None:
    """One more than the one that always may be bad; of norm statistics' videos too."""
    bad = {"a.mp4": "no video", "b.mp4": "no video"}
    monkeypatch.setattr("vcycle.evaluate.loaders.united", lambda own, fabric: own | bad)
    words = ["eval", str(trained_run), "--evaluation.precise_bn", precise_bn]
    assert main(words) == 2
    assert f"2 of {num_videos} videos cannot be read, more than" in capsys.readouterr().err
    assert main([*words, "--data.max_bad_share", "0.2"]) == 0


def test_videos_whose_scores_are_not_finite_are_counted(
    trained_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of twelve, the first of each batch."""
    forward = TinyResNet3d.forward

    def broken(model: TinyResNet3d, clips: torch.Tensor) -> torch.Tensor:
        scores = forward(model, clips)
        scores[0] = torch.nan
        return scores

    words = ["eval", str(trained_run), "--evaluation.batch_size", "4", "--json"]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "nonfinite_videos" not in json.loads(captured.out)
    assert "finite" not in captured.err
    monkeypatch.setattr(TinyResNet3d, "forward", broken)
    assert main(words) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["nonfinite_videos"] == 3
    said = "scores of 3 of 12 videos are not finite, and count as wrong"
    assert f"warning: {trained_run}: {said}\n" in captured.err


def test_training_videos_that_norm_statistics_could_not_read_are_named(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = shutil.copytree(synthetic_videos, tmp_path / "videos")
    bad = sorted((videos / "train").glob("*.mp4"))[0]
    bad.write_bytes(b"no video" * 99)
    words = ["eval", str(trained_run), "--data", str(videos), "--json"]
    words += ["--data.max_bad_share", "1"]
    assert main([*words, "--evaluation.precise_bn", "9"]) == 0
    assert list(json.loads(capsys.readouterr().out)["bad_videos"]) == [f"train/{bad.name}"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["bad_videos"] == {}


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory: buy more")],
)
def test_batches_that_do_not_fit_are_one_line(
    trained_run: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: RuntimeError,
) -> None:
    """Those of a shape before anything is scored."""

    def of_four(module: nn.Module, clips: torch.Tensor) -> torch.Tensor:
        if len(clips) >= 4:
            raise error
        return torch.zeros(len(clips), 8)

    monkeypatch.setattr("vcycle.models.tiny.TinyResNet3d.forward", of_four)
    words = ["eval", str(trained_run), "--evaluation.batch_size", "4"]
    assert main(words) == 2
    said = "--evaluation.batch_size 4: as many clips of 8x32x32 do not fit into the memory of cpu;"
    assert said in capsys.readouterr().err
    monkeypatch.setattr(run_module, "score_videos", None)
    assert main([*words, "--shapes", "4x24x24"]) == 2
    assert "--shapes 4x24x24: 4 clips of it do not fit into the mem" in capsys.readouterr().err


@pytest.mark.parametrize("is_trained_on_several", [True, False])
def test_scores_are_of_the_kind_that_the_weights_were_trained_for(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_trained_on_several: bool,
) -> None:
    """Whatever the labels of the videos that they are to score look like."""
    file, videos = tmp_path / "alone.pt", shutil.copytree(synthetic_videos, tmp_path / "videos")
    state = load_checkpoint(trained_run / "checkpoint.pt")
    state["trained"]["multi_label"] = is_trained_on_several
    torch.save(state, file)
    if not is_trained_on_several:
        manifest = Manifest.read(videos)
        first, *others = manifest.split("val").videos
        replace(manifest, videos=(*others, replace(first, labels=(0, 1)))).write(videos)
    words = ["eval", str(file), "--data", str(videos), "--data.num_workers", "0", "--json"]
    if is_trained_on_several:
        assert main(words) == 0
        assert "map" in json.loads(capsys.readouterr().out)
    else:
        assert main(words) == 2
        assert f"trained on videos of one class each, and {first.path} has" in (
            capsys.readouterr().err
        )


def test_a_split_that_is_not_there_is_no_matter_of_indexing_again(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(trained_run), "--split", "test"]) == 2
    assert "is in it; give --split train or --split val" in capsys.readouterr().err
