"""The whole first hour on short clips: train, Ctrl-C, go on, evaluate, predict, as printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.test_first_hour import SMALL, interrupt_after
from tests.encode import encode, moving_noise, numbered_frames
from vcycle.cli.main import main
from vcycle.cli.train import _after_stop, _say_end
from vcycle.config.recipes import recipe

FRAMES = 23


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of six clips of 23 frames, whose names tell left from right."""
    monkeypatch.chdir(tmp_path)
    for name, frames in (
        ("left_hook", numbered_frames(FRAMES)),
        ("right_hook", moving_noise(FRAMES)),
    ):
        (tmp_path / "hooks" / name).mkdir(parents=True)
        for number in range(6):
            encode(tmp_path / "hooks" / name / f"{name}_{number}.mp4", frames)
    return tmp_path / "hooks"


def words_of(text: str, start: str) -> list[str]:
    """The arguments of the command that begins so, as printed, over its lines."""
    command = text[text.index(start) :].replace("\\\n", " ").splitlines()[0]
    return shlex.split(command)[1:]


def test_from_a_folder_to_predictions(
    hooks: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)  # which the next step notices
        assert main(["train", "hooks", *SMALL]) == 130
    captured = capsys.readouterr()
    assert "12 of 12 videos indexed in 2 classes" in captured.out
    assert "clips are not mirrored: names such as left_hook" in captured.out
    assert "stopped after step 5 of" in captured.err
    going_on = words_of(captured.err, "vcycle train --resume")
    assert going_on == ["train", "--resume", "runs/hooks-1"]

    # The same command goes on, and so does the printed one.
    with monkeypatch.context() as patch:
        interrupt_after(8, patch)
        assert main(["train", "hooks", *SMALL]) == 130
    captured = capsys.readouterr()
    assert "Going on from step 5 of" in captured.out
    assert "stopped after step 10 of" in captured.err
    assert main(going_on) == 0
    out = capsys.readouterr().out
    assert "Going on from step 10 of" in out
    assert "all is in runs/hooks-1" in out
    assert "vcycle eval runs/hooks-1 --best" in out
    result = json.loads((tmp_path / "runs" / "hooks-1" / "result.json").read_text())
    assert {"top1", "seconds", "predicted_seconds"} <= result.keys()

    # The same command again: that run is complete, and the next one begins, and says what is next.
    assert main(["train", "hooks", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "run folder runs/hooks-2" in out
    assert main(words_of(out, "vcycle eval runs/hooks-2")) == 0
    assert "30 views each" in capsys.readouterr().out
    video = next((hooks / "left_hook").glob("*.mp4"))
    assert main(["predict", "runs/hooks-2", str(video)]) == 0
    predicted = capsys.readouterr().out
    assert predicted.startswith(str(video))
    assert "left_hook" in predicted


def test_clips_that_are_longer_than_the_videos_are_said(
    hooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "index", "folder", "hooks"]) == 0
    assert main(["plan", "scratch", "--data", "hooks", "--model", "resnet3d_tiny"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"half of the videos have {FRAMES} or fewer" in out
    assert "--shape 16x224x224 --data.stride 1 fits them" in out


def test_a_read_only_dataset_is_left_as_it_is(
    hooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(hooks.rglob("*"))
    other = tmp_path / "other" / "hooks"  # of the same name
    shutil.copytree(hooks, other)
    places = []
    for folder in (hooks, other):
        folder.chmod(0o555)
        try:
            assert main(["train", str(folder), *SMALL, "--dry-run"]) == 0
        finally:
            folder.chmod(0o755)
        said = re.search(r"hooks is read-only: its manifest goes to (.*)", capsys.readouterr().out)
        assert said is not None
        places.append(Path(said[1]))
        assert (places[-1] / "manifest.csv").is_file()
    assert len(set(places)) == 2
    assert all(place.parent == tmp_path / "runs" / ".manifests" for place in places)
    assert sorted(hooks.rglob("*")) == before


def test_the_printed_commands_are_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going on has as many processes; a run of segments has one clip a video."""
    (tmp_path / "checkpoint.pt").touch()
    config = recipe("demo")
    for num_gpus, world, local, how, flags in (
        (None, 1, 1, "; go on with:\n", []),
        (4, 1, 1, "; go on with:\n", []),  # of torchrun, which --gpus only sizes the batch of
        (4, 4, 4, "; go on with:\n", ["--gpus", "4"]),
        (None, 2, 2, "; the same torchrun or srun goes on with:\n", []),
        (4, 4, 2, "; the same torchrun or srun goes on with:\n", []),  # two machines
    ):
        monkeypatch.setenv("WORLD_SIZE", str(world))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
        said = _after_stop(tmp_path, KeyboardInterrupt(), config, num_gpus=num_gpus)
        command = words_of(said, "vcycle train --resume")
        assert command == ["train", "--resume", str(tmp_path), *flags]
        assert how in said
    result = {"videos": 3, "top1": 0.5, "bad_videos": 0}
    for segments in (False, True):
        given = replace(config, data=replace(config.data, segments=segments))
        _say_end(tmp_path, result, given)
        said = capsys.readouterr().out
        assert ("--evaluation.num_clips 10" in said) == (not segments)
        assert "--evaluation.num_crops 3" in said


def test_a_cache_in_a_home_that_is_not_there(
    hooks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = "~nobody-of-this-name/cache"
    assert main(["train", "hooks", *SMALL, "--data.cache_folder", folder]) == 2
    assert f"data.cache_folder {folder}: there is no home" in capsys.readouterr().err
