"""A folder for the hub: what it holds, what its card says, and the way back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from huggingface_hub import ModelCard

import vcycle
from vcycle.cli.main import main
from vcycle.data.json_lines import read_rows
from vcycle.evaluate.figures import figures_of
from vcycle.evaluate.hub import model_card

HEADING = "| metric | value | 95% interval (bootstrap over videos) |"


def error_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["export", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_the_folder_loads_as_the_model_that_it_is_of(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my model"
    assert main(["export", str(trained_run), "--hub", str(folder)]) == 0
    assert "hf upload USER/'my model'" in capsys.readouterr().out
    assert {each.name for each in folder.iterdir()} == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    model = vcycle.load_model(trained_run)
    clips = torch.randn(2, 3, 8, 32, 32)
    for path in (folder, folder / "model.safetensors"):
        again = vcycle.load_model(path)
        assert again.trained == model.trained
        with torch.no_grad():
            assert torch.equal(again.module(clips), model.module(clips))
    with pytest.raises(ValueError, match=r"no best\.pt in it"):  # its figures may be of another
        vcycle.load_model(folder, best=True)
    config = json.loads((folder / "config.json").read_text())
    assert config["classes"] == list(model.classes)
    assert config["shape"] == "8x32x32"


def test_the_card_is_metadata_that_the_hub_reads(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    assert main(["export", str(trained_run), "--hub", str(folder)]) == 0
    card = ModelCard.load(folder / "README.md")
    assert card.data.library_name == "vcycle"
    assert card.data.pipeline_tag == "video-classification"
    last = read_rows(trained_run / "validation.jsonl")[-1]
    found = {each.metric_name: each for each in card.data.eval_results}
    top1 = found["top-1 accuracy"]
    assert top1.metric_value == round(last["top1"], 4)
    assert (top1.metric_type, top1.task_type) == ("accuracy", "video-classification")
    assert top1.dataset_name == synthetic_videos.name
    assert f"{last['top1']:.1%} | not computed" in card.text
    assert "the middle clip, centre crop, 8x32x32" in card.text


def test_the_card_promises_other_shapes_of_this_projects_networks_alone(trained_run: Path) -> None:
    model = vcycle.load_model(trained_run)
    figures = {"dataset": "d", "split": "val", "videos": 1, "coverage": 1.0, "protocol": "p"}
    promise = "takes smaller and larger clips"
    assert promise in model_card(model, figures, name="a")
    own = replace(model, trained=replace(model.trained, name="mine:flattened"))
    assert promise not in model_card(own, figures, name="a")


def test_the_card_has_the_intervals_and_shapes_of_an_evaluation(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    views = ["--evaluation.num_clips", "2", "--shapes", "4x16x16,8x32x32", "--json"]
    assert main(["eval", str(trained_run), *views]) == 0
    file = tmp_path / "evaluation.json"
    file.write_text(capsys.readouterr().out)
    folder = tmp_path / "model"
    words = [str(trained_run), "--hub", str(folder), "--evaluation", str(file)]
    assert main(["export", *words]) == 0
    values, card = json.loads(file.read_text()), (folder / "README.md").read_text()
    low, high = values["intervals"]["top1"]
    assert f"| top-1 accuracy | {values['top1']:.1%} | {low:.1%} to {high:.1%} |" in card
    assert "Protocol: 2 clips uniformly in time, centre crop, 8x32x32." in card
    for row in values["shapes"]:
        assert f"| {row['shape']} | {row['top1']:.1%} | {row['multiply_adds']:,} |" in card
    # The code in the card runs, with the folder for the download.
    code = card.split("```python\n")[1].split("```")[0]
    assert "vcycle.load_model(snapshot_download(" in code
    compile(code, "README.md", "exec")
    assert yaml.safe_load(card.split("---\n")[1])["tags"] == ["video-classification", "multigrid"]


def test_figures_of_other_weights_are_refused(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "model", tmp_path / "evaluation.json"
    words = [str(trained_run), "--hub", str(folder), "--evaluation", str(file)]
    values = {"steps": 3, "videos": 1, "coverage": 1, "protocol": "", "dataset": "", "split": ""}
    for text, message in (
        ("", "no JSON"),
        ("[]", "no evaluation of one model"),
        (json.dumps(values), "no evaluation of one model"),
        (json.dumps({**values, "top1": 0.5}), "after 3 steps"),
    ):
        file.write_text(text)
        assert message in error_of(words, capsys)
    alone = tmp_path / "alone.safetensors"
    shutil.copy(trained_run / "checkpoint.safetensors", alone)
    assert "vcycle eval RUN --json" in error_of([str(alone), "--hub", str(folder)], capsys)
    assert not folder.exists()


def test_what_is_there_is_kept_unless_asked(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    words = [str(trained_run), "--hub", str(folder)]
    assert "add --overwrite" in error_of(words, capsys)
    assert [each.name for each in folder.iterdir()] == ["README.md"]
    (folder / "notes.txt").write_text("kept")
    assert main(["export", *words, "--overwrite"]) == 0
    assert HEADING in (folder / "README.md").read_text()
    assert (folder / "notes.txt").read_text() == "kept"
    taken = str(folder / "notes.txt")
    assert "it is a file" in error_of([str(trained_run), "--hub", taken], capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--hub FOLDER"),
        (["--format", "onnx"], "--out: give"),
        (["--hub", "x", "--format", "onnx"], "--hub: it takes no --format"),
        (["--format", "torch", "--out", "x", "--overwrite"], "they are for --hub"),
    ],
)
def test_flags_that_do_not_go_together(
    trained_run: Path,
    flags: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert message in error_of([str(trained_run), *flags], capsys)


def test_figures_of_a_run_are_those_of_the_checkpoint(trained_run: Path, tmp_path: Path) -> None:
    """The final evaluation is of the last weights; an earlier best has its own validation."""
    run = shutil.copytree(trained_run, tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    first, *_ = read_rows(run / "validation.jsonl")
    final = {"protocol": "all views", "top1": 0.125}
    (run / "result.json").write_text(json.dumps({**result, "final": final}))
    model = vcycle.load_model(run)
    assert figures_of(model, None)["protocol"] == "all views"
    earlier = replace(model, trained=replace(model.trained, steps=first["step"] + 1))
    found = figures_of(earlier, None)
    assert (found["top1"], found["steps"]) == (first["top1"], first["step"] + 1)
    assert found["protocol"] != "all views"
