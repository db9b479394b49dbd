"""``vcycle eval`` of files: those of a run, and published weights, which say less."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import vcycle
from tests.conftest import small_run
from vcycle.cli.main import main
from vcycle.data.manifest import Manifest
from vcycle.evaluate.checkpoint import load_checkpoint
from vcycle.evaluate.sources import evaluation_config, labelled_as
from vcycle.evaluate.trained_model import TrainedModel


def scores(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["eval", *words, "--json"]) == 0, capsys.readouterr().err
    values = json.loads(capsys.readouterr().out)
    return {name: values[name] for name in ("top1", "top5", "loss", "videos", "confusion")}


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["eval", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.fixture
def imported(trained_run: Path, tmp_path: Path) -> Path:
    """The run's weights as another program would publish them."""
    file = tmp_path / "published.pyth"
    state = load_checkpoint(trained_run / "checkpoint.pt")["model"]
    torch.save({"epoch": 3, "model_state": state, "cfg": "NUM_GPUS: 8"}, file)
    return file


@pytest.fixture
def clips(synthetic_videos: Path) -> list[str]:
    """The flags that say what published weights do not."""
    model = ["--model", "resnet3d_tiny", "--model.options", "{width: 4}"]
    shape = ["--shape", "8x32x32", "--data.stride", "1", "--data.short_side", "[36, 48]"]
    return [*model, *shape, "--data", str(synthetic_videos), "--data.num_workers", "0"]


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_of_a_run_scores_as_the_run(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
) -> None:
    expected = scores([str(trained_run)], capsys)
    file = trained_run / f"checkpoint{suffix}"
    assert scores([str(file)], capsys) == expected
    [numbered] = (trained_run / "checkpoints").glob(f"*{suffix}")
    assert scores([str(numbered)], capsys) == expected
    # Elsewhere nothing but the file says what its clips are.
    alone = tmp_path / f"alone{suffix}"
    shutil.copy(file, alone)
    data = ["--data", str(synthetic_videos), "--data.num_workers", "0"]
    assert scores([str(alone), *data], capsys) == expected
    assert "give --data MANIFEST" in error_of([str(alone)], capsys)
    assert "--best" in error_of([str(alone), *data, "--best"], capsys)
    error = error_of([str(alone), *data, "--shapes", "all"], capsys)
    assert "--shapes all" in error
    assert "give --shapes 8x32x32" in error


def test_a_numbered_checkpoint_is_scored_on_the_videos_that_its_run_began_with(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever was indexed since: here those of training, which it knows."""
    run, videos = tmp_path / "run", tmp_path / "videos"
    shutil.copytree(trained_run, run)
    shutil.copytree(synthetic_videos, videos)
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(synthetic_videos), str(videos)))
    expected = scores([str(run)], capsys)
    manifest = videos / "manifest.csv"
    swapped = manifest.read_text().replace(",val", ",else").replace(",train", ",val")
    manifest.write_text(swapped.replace(",else", ",train"))
    [numbered] = (run / "checkpoints").glob("*.pt")
    assert scores([str(numbered)], capsys) == expected


@pytest.mark.parametrize(
    ("flag", "value", "named"),
    [
        ("--lr", "3", "--lr"),
        ("--baseline.learning_rate.base", "3", "--lr"),
        ("--optimizer.name", "adamw", "--optimizer.name"),
        ("--weights", "other.pth", "--weights"),
        ("--evaluation.final_clips", "10", "--evaluation.final_clips"),
        ("--compile", "true", "--compile"),
        ("--data.frames_gib", "1", "--data.frames_gib"),
        ("--accumulate", "2", "--accumulate"),
    ],
)
def test_flags_that_change_no_score_are_refused(
    trained_run: Path, flag: str, value: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of([str(trained_run), flag, value], capsys)
    assert f"{named}: it is about training, and changes no score; leave it out" in error


def test_the_batch_of_training_is_not_that_of_views(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--evaluation.batch_size" in error_of([str(trained_run), "--batch-size", "8"], capsys)


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--seed", "9", "it is of training batches, and changes no score; leave it out, or give"),
        ("--multigrid.norm_group", "4", "it is of training batches"),
        ("--epoch-factor", "3", "it is of the plan, which --shapes all scores; leave it out"),
    ],
)
def test_what_decides_something_beside_other_flags_alone(
    trained_run: Path, flag: str, value: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{flag}: {reason}" in error_of([str(trained_run), flag, value], capsys)


def test_published_weights_score_as_the_run_that_they_are_of(
    trained_run: Path, imported: Path, clips: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert scores([str(imported), *clips], capsys) == scores([str(trained_run)], capsys)
    assert main(["eval", str(imported), *clips]) == 0
    assert "imported weights" in capsys.readouterr().out


def test_what_published_weights_do_not_say_is_asked_for(
    imported: Path, clips: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    error = error_of([str(imported)], capsys)
    for flag in ("--model NAME", "--data MANIFEST", "--shape TxHxW", "--data.stride FRAMES"):
        assert flag in error
    assert "--model" not in error_of([str(imported), *clips[:2]], capsys)
    other = ["--model", "slow_r50", *clips[4:]]
    assert "matches nothing in this model" in error_of([str(imported), *other], capsys)


def test_a_classifier_of_other_classes_is_refused(
    trained_run: Path, imported: Path, clips: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    state = {
        name: value[:5].clone() if name.startswith("head.") else value
        for name, value in load_file(trained_run / "checkpoint.safetensors").items()
    }
    assert any(name.startswith("head.") for name in state)
    torch.save(state, imported)
    error = error_of([str(imported), *clips], capsys)
    assert "5 classes in the file" in error
    assert "classes.txt" in error


def test_code_that_a_file_names_does_not_run_unasked(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = vcycle.load_model(trained_run)
    name = "vcycle.models.tiny:TinyResNet3d"
    trained = json.dumps({**model.trained.to_dict(), "name": name})
    file = tmp_path / "own.safetensors"
    save_file(model.module.state_dict(), file, {"vcycle": trained})
    words = [str(file), "--data", str(synthetic_videos), "--data.num_workers", "0"]
    assert f"give --model {name}" in error_of(words, capsys)
    assert scores([*words, "--model", name], capsys)["videos"] == 12


def test_a_run_folder_without_its_checkpoint(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(trained_run / "config.yaml", tmp_path)
    missing = f"run folder {tmp_path}: no checkpoint.pt in it; give a folder of"
    assert missing in error_of([str(tmp_path)], capsys)
    whole = (trained_run / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    assert "it is damaged" in error_of([str(tmp_path)], capsys)
    error = error_of([str(tmp_path), "--best"], capsys)
    assert "no best.pt in it; it has no validation yet; leave out --best" in error


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_damaged_file_names_the_next_step(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    cut = tmp_path / f"cut{suffix}"
    cut.write_bytes((trained_run / f"checkpoint{suffix}").read_bytes()[:5000])
    error = error_of([str(cut)], capsys)
    assert str(cut) in error
    assert "damaged" in error or "not an intact file" in error
    assert main(["predict", str(cut), str(tmp_path)]) == 2
    assert "damaged" in (error := capsys.readouterr().err)
    assert "give another file of a run folder" in error


def test_a_shape_that_the_model_does_not_take_is_refused(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "picky.py").write_text(
        "from torch import nn\n"
        "def build(num_classes):\n"
        "    return nn.Sequential(Whole(), nn.Flatten(), nn.Linear(3, num_classes))\n"
        "class Whole(nn.AvgPool3d):\n"
        "    def __init__(self): super().__init__((8, 32, 32))\n"
        "    def forward(self, clips):\n"
        "        assert clips.shape[2] == 8, 'eight frames'\n"
        "        return super().forward(clips)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trained = vcycle.load_model(trained_run).trained
    values = {**trained.to_dict(), "name": "picky:build", "options": {}}
    weights = {"2.weight": torch.zeros(len(trained.classes), 3)}
    weights["2.bias"] = torch.zeros(len(trained.classes))
    file = tmp_path / "picky.safetensors"
    save_file(weights, file, {"vcycle": json.dumps(values)})
    words = [str(file), "--data", str(synthetic_videos), "--data.num_workers", "0"]
    shapes = ["--model", "picky:build", "--shapes", "8x32x32,4x32x32"]
    said = "4x32x32: the model does not take it (AssertionError: eight frames)"
    assert f"--shapes {said}" in error_of([*words, *shapes], capsys)
    video = next((synthetic_videos / "val").rglob("*.mp4"))
    predicted = ["predict", str(file), str(video), "--trust-code", "--shape", "4x32x32"]
    assert main(predicted) == 2
    error = capsys.readouterr().err
    assert f"--shape {said}" in error
    assert "leave --shape out for 8x32x32" in error
    assert error.count("\n") == 1


def test_a_shape_alone_is_not_what_a_run_is_scored_at(
    trained_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its crops would show less of a frame than those of --shapes."""
    error = error_of([str(trained_run), "--shape", "4x24x24"], capsys)
    assert f"clips of {trained_run} are 8x32x32; give --shapes 4x24x24, which shows" in error
    assert scores([str(trained_run), "--shape", "8x32x32"], capsys)["videos"] == 12
    words = ["--shape", "4x24x24", "--data.short_side", "[27, 36]"]
    assert scores([str(trained_run), *words], capsys)["videos"] == 12


def test_a_folder_for_the_hub_scores_as_the_run(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = scores([str(trained_run)], capsys)
    assert main(["export", str(trained_run), "--hub", str(tmp_path / "hub")]) == 0
    capsys.readouterr()
    data = ["--data", str(synthetic_videos), "--data.num_workers", "0"]
    assert scores([str(tmp_path / "hub"), *data], capsys) == expected


@pytest.mark.parametrize("size", [(112, 112), (112, 224), (224, 112)])
def test_crops_of_published_weights_are_the_papers_for_their_size(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    """256 to 340 pixels for 224; of a rectangle by its short side."""
    torch.save({"weight": torch.zeros(1)}, tmp_path / "a.pth")
    sides = zip(("frames", "height", "width"), (8, *size), strict=True)
    fields = {f"baseline.shape.{side}": length for side, length in sides}
    fields |= {"model.name": "resnet3d_tiny", "data.manifest": "videos", "data.stride": 2}
    assert evaluation_config(tmp_path / "a.pth", fields).data.short_side == (128, 170)


def test_a_video_with_times_for_its_label_is_not_one_of_one_class(
    trained_run: Path, synthetic_videos: Path
) -> None:
    trained, videos = vcycle.load_model(trained_run).trained, Manifest.read(synthetic_videos)
    first, *others = videos.videos
    timed = replace(first, spans=((0.0, 0.5),))
    videos = replace(videos, videos=(timed, *others), multi_label=True)
    with pytest.raises(ValueError, match=rf"{first.path} has 1 labels, or times for them; leave"):
        labelled_as(trained, videos, Path("a.pt"))
    assert not labelled_as(trained, replace(videos, videos=tuple(others)), Path("a.pt")).multi_label


@pytest.mark.parametrize("sampled", [{"frame_rate": 12.5}, {"segments": True}])
def test_a_file_says_how_its_clips_are_sampled(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path, sampled: dict[str, Any]
) -> None:
    config = small_run(synthetic_videos)
    config = replace(config, data=replace(config.data, **sampled))
    trained = TrainedModel.of_run(config, Manifest.read(synthetic_videos), steps=1)
    weights, file = load_file(trained_run / "checkpoint.safetensors"), tmp_path / "a.safetensors"
    save_file(weights, file, {"vcycle": json.dumps(trained.to_dict())})
    data = evaluation_config(file, {"data.manifest": str(synthetic_videos)}).data
    assert {name: getattr(data, name) for name in sampled} == sampled
