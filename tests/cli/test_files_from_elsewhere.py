"""Files that somebody else made run no code, cost no time, and replace nothing that is there."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file

from tests.processes import PATIENCE
from vcycle.cli.main import main
from vcycle.config.fields import changed, config_text, read_config
from vcycle.config.recipes import recipe
from vcycle.config.run import Model
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import check_uri
from vcycle.evaluate.predict import windows
from vcycle.schedule.shape import ShapeRule

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def run(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of a complete run, to be changed."""
    return Path(shutil.copytree(trained_run, tmp_path / "run"))


def said(capsys: Captured, *words: str) -> str:
    """The one line that a refused command says."""
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("vcycle: ")
    assert error.count("\n") == 1, error
    return error


def test_a_file_that_names_code_as_its_model_does_not_run_it(run: Path, capsys: Captured) -> None:
    marker = run.parent / "executed"
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["model"] |= {"name": "os:system", "options": {"command": f"touch {marker}"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    (run / "result.json").unlink()
    file = str(run / "config.yaml")
    new = str(run.parent / "new")
    for words in (
        ["eval", str(run)],
        ["eval", str(run / "checkpoint.safetensors")],
        ["eval", str(run / "checkpoint.pt")],
        ["train", "--resume", str(run)],
        ["train", "--config", file, "--folder", new],
        ["bench", "step", "--config", file, "--out", f"{new}.json"],
    ):
        error = said(capsys, *words)
        assert "its model is the function os:system, which is code of its own; if you kn" in error
        assert "give --model os:system" in error
    assert not marker.exists()


def test_the_model_that_is_named_again_keeps_the_shapes_of_its_run(tmp_path: Path) -> None:
    """Its rule may be the run's own; another model brings another."""
    own = Model("my.nets:build", {"width": 4})
    config = recipe("demo")
    config = replace(config, model=own)
    config = replace(config, multigrid=replace(config.multigrid, rule=ShapeRule(side_multiple=16)))
    (tmp_path / "config.yaml").write_text(config_text(config))
    named = changed(read_config(tmp_path / "config.yaml"), {"model.name": "my.nets:build"})
    assert named.multigrid.rule == ShapeRule(side_multiple=16)
    other = changed(read_config(tmp_path / "config.yaml"), {"model.name": "my.nets:other"})
    assert other.multigrid.rule == ShapeRule()


@pytest.mark.parametrize(
    "uri",
    [
        "reference://k::file:///tmp/refs.json",
        "simplecache::http://host/a.mp4",
        "file::http://host/a.mp4",
        "zip://a.mp4",
        "://a",
    ],
)
def test_uris_are_of_plain_stores(
    uri: str, synthetic_videos: Path, tmp_path: Path, capsys: Captured
) -> None:
    for name in ("manifest.csv", "classes.txt"):
        shutil.copy(synthetic_videos / name, tmp_path / name)
    lines = (tmp_path / "manifest.csv").read_text().splitlines()
    lines[1] = ",".join([uri, *lines[1].split(",")[1:]])
    (tmp_path / "manifest.csv").write_text("\n".join(lines))
    error = said(capsys, "data", "prepare", str(tmp_path), str(tmp_path / "out"))
    assert "manifest.csv line 2: path " in error
    assert "a URI of one of these stores: abfs, " in error


@pytest.mark.parametrize("uri", ["s3://bucket/a.mp4", "https://host/a.mp4?x=1", "file:///a b.mp4"])
def test_stores_that_are_read(uri: str) -> None:
    check_uri(uri)


@pytest.mark.parametrize("name", ["manifest.csv", "listed.csv", "bad.csv", "classes.txt"])
def test_indexing_replaces_no_file_of_others(
    name: str, synthetic_videos: Path, tmp_path: Path, capsys: Captured
) -> None:
    video = next(synthetic_videos.glob("train/*.mp4"))
    for place in ("run/0.mp4", "sit/1.mp4"):
        (tmp_path / place).parent.mkdir()
        shutil.copy(video, tmp_path / place)
    (tmp_path / name).write_text("path,who\na.mp4,me\n")
    for words in (
        ["data", "index", "folder", str(tmp_path)],
        ["train", str(tmp_path), "--dry-run"],
    ):
        error = said(capsys, *words)
        assert f"{tmp_path / name}: not written by vcycle, which needs the name; rename" in error
    assert (tmp_path / name).read_text() == "path,who\na.mp4,me\n"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([name, "run", "sit"])


def test_a_manifest_that_was_edited_is_read_and_kept(
    synthetic_videos: Path, tmp_path: Path, capsys: Captured
) -> None:
    """A spreadsheet adds a mark, quotes and columns, and may change their order."""
    videos = tmp_path / "videos"
    source = next(synthetic_videos.glob("train/*.mp4"))
    for place in ("run/0.mp4", "sit/1.mp4"):
        (videos / place).parent.mkdir(parents=True)
        shutil.copy(source, videos / place)
    (videos / "classes.txt").write_text("run\nsit\n")  # as the data set ships it
    index = ["data", "index", "folder", str(videos), "--val-share", "0.5"]
    assert main(index) == 0
    with (videos / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (videos / "manifest.csv").open("w", newline="", encoding="utf-8-sig") as file:
        columns = ["note", *reversed(rows[0])]
        writer = csv.DictWriter(file, columns, restval="mine", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    edited = (videos / "manifest.csv").read_bytes()
    for words in (index, ["train", str(videos), "--dry-run"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "its manifest.csv or classes.txt was edited since they were indexed" in error
    assert (videos / "manifest.csv").read_bytes() == edited
    assert len(Manifest.read(videos)) == 2
    (videos / "manifest.csv").unlink()
    assert main(index) == main(index) == 0
    capsys.readouterr()


def test_a_store_for_shards_is_named_before_they_are_made(
    synthetic_videos: Path, tmp_path: Path, capsys: Captured
) -> None:
    words = ["data", "prepare", str(synthetic_videos), str(tmp_path / "fast"), "--shard-mb", "1"]
    assert "path 'S3://bucket/a': give a path" in said(
        capsys, *words, "--base-uri", "S3://bucket/a"
    )
    assert not (tmp_path / "fast").exists()


def test_weights_that_were_kept_of_a_run_are_not_trained_over(run: Path, capsys: Captured) -> None:
    kept = run.parent / "kept"
    kept.mkdir()
    shutil.copy(run / "best.safetensors", kept)
    before = (kept / "best.safetensors").read_bytes()
    words = ["train", "--config", str(run / "config.yaml"), "--folder", str(kept)]
    assert "no configuration of a run" in said(capsys, *words, "--resume", "auto")
    assert (kept / "best.safetensors").read_bytes() == before


def test_no_output_replaces_a_file_of_another_kind(run: Path, capsys: Captured) -> None:
    before = {file: file.read_bytes() for file in run.glob("*") if file.is_file()}
    for words in (
        ["report", str(run), "--out", str(run / "checkpoint.pt")],
        ["eval", str(run), "--scores", str(run / "metrics.jsonl")],
        ["export", str(run), "--format", "onnx", "--out", str(run / "best.safetensors")],
    ):
        assert f"{words[-1]}: it is there, and no ." in said(capsys, *words)
    assert {file: file.read_bytes() for file in run.glob("*") if file.is_file()} == before


def test_a_folder_from_elsewhere_has_no_pipe_for_a_configuration(
    run: Path, capsys: Captured
) -> None:
    """Whoever reads it would wait for a writer."""
    (run / "config.yaml").unlink()
    os.mkfifo(run / "config.yaml")
    for words in (
        ["report", str(run), "--out", str(run.parent / "report.html")],
        ["eval", str(run)],
    ):
        assert "config.yaml" in said(capsys, *words)


def test_values_that_stand_for_many_are_not_read(run: Path, capsys: Captured) -> None:
    """Nine levels of ten aliases are a billion values; so many brackets are no configuration."""
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    levels += [f"a{k}: &a{k} [{','.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 10)]
    (run / "config.yaml").write_text("\n".join(levels))
    assert "not YAML (an alias (*); write the value out)" in said(capsys, "eval", str(run))
    (run / "config.yaml").write_text("[" * 100_000)
    assert "not YAML (nested too deeply)" in said(capsys, "eval", str(run))
    nested = "--model.options=" + "[" * 100_000
    assert "model.options" in said(capsys, "plan", "demo", nested)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "name 5: give text"),
        ({"options": [1]}, "options [1]: give"),
        ({"shape": "1000000x4000x4000"}, "shape 1000000x4000x4000: a clip of 16,0"),
        ({"classes": "ab"}, "classes ab: give a list"),
        ({"classes": [None, {}]}, "classes null: give text"),
        ({"short_side": [1]}, "short_side [1]: give a list of 2"),
        ({"stride": "x"}, "stride x: give a whole number"),
        ({"std": 0.0}, "mean 0.45, std 0.0: no pixels have these"),
        ({"short_side": [48, 36]}, "short side 48 to 36"),
        ({"classes": []}, "no classes"),
        ({"classes": ["run", "\x1b]0;mine\x07"]}, "has a line break or another control character"),
    ],
)
def test_weights_say_of_themselves_what_they_can_be(
    changes: dict[str, Any], message: str, trained_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    state = torch.load(trained_run / "checkpoint.pt", weights_only=True)
    state["trained"] |= changes
    torch.save(state, tmp_path / "a.pt")
    trained = {"vcycle": json.dumps(state["trained"])}
    save_file({"x": torch.zeros(1)}, tmp_path / "a.safetensors", trained)
    for name in ("a.pt", "a.safetensors"):
        assert message in said(capsys, "predict", str(tmp_path / name), str(tmp_path))


def test_weights_that_give_no_finite_scores_have_no_result(
    run: Path, synthetic_videos: Path, capsys: Captured
) -> None:
    state = torch.load(run / "checkpoint.pt", weights_only=True)
    weights = next(name for name in state["model"] if name.endswith("weight"))
    state["model"][weights].fill_(torch.nan)
    torch.save(state, run / "nan.pt")
    video = next((synthetic_videos / "val").glob("*.mp4"))
    for words in (["predict", str(run / "nan.pt"), str(video)], ["eval", str(run / "nan.pt")]):
        error = said(capsys, *words)
        assert error.startswith(f"vcycle: {run / 'nan.pt'}: it gives no finite scores ")


def test_names_of_files_do_not_steer_the_terminal(
    run: Path, synthetic_videos: Path, tmp_path: Path, capsys: Captured
) -> None:
    video = next((synthetic_videos / "val").glob("*.mp4"))
    folder = tmp_path / "videos"
    folder.mkdir()
    shutil.copy(video, folder / "\x1b]0;mine\x07\na.mp4")
    (folder / "\x1b[31m.mp4").write_bytes(b"no video")
    assert main(["predict", str(run), str(folder), "--clips", "1"]) == 2
    shown = capsys.readouterr()
    assert f"{folder}/\\x1b]0;mine\\x07\\na.mp4\n" in shown.out
    assert f"{folder}/\\x1b[31m.mp4: Invalid data found" in shown.err
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize("name", ["stride", "options"])
def test_lists_that_stand_for_many_values_are_refused(
    name: str, trained_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    many: list[Any] = ["x"]
    for _ in range(12):
        many = [many] * 10
    state = torch.load(trained_run / "checkpoint.pt", weights_only=True)
    state["trained"][name] = {"width": many} if name == "options" else many
    torch.save(state, tmp_path / "a.pt")
    error = said(capsys, "predict", str(tmp_path / "a.pt"), str(tmp_path))
    assert "its lists and tuples stand for over 4,194,304 values" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 300_000}, "its weights are not those of resnet3d_tiny with options {'width': 3"),
        ({"width": 16 * 10**9}, "an option is too large (Storage size calculation overflowed"),
        ({"depth": 3}, "got an unexpected keyword argument 'depth'; it takes width, dropout"),
        ({"num_classes": 3}, "options {'num_classes': 3}: "),
    ],
)
def test_a_model_takes_no_more_memory_than_its_file_says(
    options: dict[str, int], message: str, trained_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    state = torch.load(trained_run / "checkpoint.pt", weights_only=True)
    trained = {**state["trained"], "options": options}
    tensors = {name: each.contiguous() for name, each in state["model"].items()}
    save_file(tensors, tmp_path / "a.safetensors", {"vcycle": json.dumps(trained)})
    assert message in said(capsys, "predict", str(tmp_path / "a.safetensors"), str(tmp_path))


def test_figures_of_other_types_leave_no_half_of_a_model_card(
    trained_run: Path, tmp_path: Path, capsys: Captured
) -> None:
    steps = torch.load(trained_run / "checkpoint.pt", weights_only=True)["next_step"]
    values = {name: [] for name in ("videos", "coverage", "protocol", "dataset", "split", "top1")}
    (tmp_path / "eval.json").write_text(json.dumps({**values, "steps": steps}))
    hub = ["export", str(trained_run), "--hub", str(tmp_path / "hub")]
    error = said(capsys, *hub, "--evaluation", str(tmp_path / "eval.json"))
    assert "--evaluation: its values are not of the types that `vcycle eval --json` writes" in error
    assert not (tmp_path / "hub").exists()


def test_a_compressed_checkpoint_is_not_unpacked(
    run: Path, synthetic_videos: Path, capsys: Captured
) -> None:
    """It may be a thousand times larger than its file."""
    with zipfile.ZipFile(run / "checkpoint.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10_000_000))
    file, videos = str(run / "checkpoint.pt"), str(synthetic_videos)
    for words in (["predict", file, videos], ["eval", file]):
        assert "damaged, compressed, or no archive of torch's" in said(capsys, *words)


def test_a_shard_is_a_file_with_labels_of_a_few_bytes(tmp_path: Path, capsys: Captured) -> None:
    os.mkfifo(tmp_path / "a.tar")  # never read: nobody writes to it
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        video = tarfile.TarInfo("a.mp4")
        video.size = 3
        tar.addfile(video, io.BytesIO(b"mp4"))
        member = tarfile.TarInfo("a.cls")
        member.size = 2_000_000
        tar.addfile(member, io.BytesIO(bytes(member.size)))
    assert "b.tar sample 'a': its .cls is too large for labels; give" in said(
        capsys, "data", "index", "folder", str(tmp_path)
    )


def test_windows_are_no_more_than_a_million() -> None:
    assert len(windows(0, 10, window=1, every=0.5)) == 19
    for window, every in ((1e-9, 1e-9), (1, 1e-12)):
        with pytest.raises(
            ValueError, match=r"windows of 10.0 s of video; give numbers that make 1,000,000"
        ):
            windows(0, 10, window=window, every=every)


@pytest.mark.parametrize(
    ("name", "text", "names_file"),
    [
        ("dataset.json", "{}", False),
        ("dataset.json", "[", True),
        ("dataset.json", "[" * 100_000, True),
        ("metrics.jsonl", '{"batch_size": null, "shape": "8x32x32"}\n', True),
        ("validation.jsonl", '{"top1": 0.5, "seconds": 1, "step": "x"}\n', True),
        ("multiply_adds.json", "5", True),
        ("validation.jsonl", '{"top1": 0.5, "seconds": 1, "step": -99}\n', True),
        ("validation.jsonl", '{"top1": 0.5, "seconds": "<b>", "step": 0}\n', True),
    ],
    ids=range(8),
)
def test_a_run_whose_files_were_changed_is_named(
    name: str, text: str, names_file: bool, run: Path, capsys: Captured
) -> None:
    (run / name).write_text(text)
    report = ["report", str(run), "--out", str(run.parent / "report.html")]
    for words in (report, ["compare", str(run), str(run)]):
        error = said(capsys, *words)
        of_folder = f"run folder {run}: its files are not as vcycle train writes them"
        assert (of_folder in error) != names_file
        assert (f"{run / name}" in error and "; restore " in error) == names_file


def test_a_damaged_row_is_named(run: Path, capsys: Captured) -> None:
    """But for a last one, which a crash may have cut short."""
    file = run / "metrics.jsonl"
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*rows[:2], "5\n", *rows[3:]]))
    error = said(capsys, "report", str(run), "--out", str(run.parent / "report.html"))
    assert f"{file}: line 3 is damaged (no row); restore the file, or take the line out" in error
    file.write_text("".join(rows) + rows[-1][:20])
    assert main(["report", str(run), "--out", str(run.parent / "report.html")]) == 0


def test_numbers_that_no_computer_counts_to(capsys: Captured) -> None:
    large = "1" + "0" * 30
    for flag, number, message in (
        ("--lr", "1" * 400, "give a number"),
        ("--multigrid.steps", large, "give a number of at most"),
        ("--seed", large, f"seed {large}: give a number of at most "),
        ("--threads", "100000", "threads 100000: give a number of at most 1024"),
        ("--augmentation.num_ops", "1000000", "give 0 or more and at most 100"),
        ("--shape", "8x\u00b2x\u00b2", "write frames x height x width"),
    ):
        assert message in said(capsys, "plan", "demo", flag, number)


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = (
        "import os; os.chdir('gone'); os.rmdir(os.getcwd()); from vcycle.__main__ import run; run()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == ("vcycle: the working directory is gone; change to one that is there\n")


def test_names_that_the_output_cannot_say_do_not_end_a_command(
    trained_run: Path, synthetic_videos: Path, tmp_path: Path
) -> None:
    video = next(synthetic_videos.glob("val/*.mp4"))
    shutil.copy(video, tmp_path / "a\udce9.mp4")
    shutil.copy(video, tmp_path / "b.mp4")
    ended = subprocess.run(
        [sys.executable, "-m", "vcycle", "predict", str(trained_run), str(tmp_path)],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    assert "a\\udce9.mp4" in ended.stdout
    assert "b.mp4" in ended.stdout


def test_choices_of_another_kind_are_named(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "index.json").write_text('{"val_share": "a"}')
    error = said(capsys, "data", "index", "folder", str(tmp_path))
    assert "index.json: is not JSON of flip, val_share, group_pattern, source" in error
