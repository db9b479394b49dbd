"""Predictions over videos and windows, against the evaluation's own clips."""

from __future__ import annotations

import io
import json
import resource
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import vcycle
from vcycle.cli.main import main
from vcycle.data.decode import remote
from vcycle.data.decode.frame_folder import probe_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Grid
from vcycle.data.loaders import eval_loader
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo, Video
from vcycle.evaluate import predict as predict_module
from vcycle.evaluate.predict import Prediction, windows
from vcycle.evaluate.video_arguments import find_videos


def test_a_video_is_predicted_from_the_clips_of_evaluation(
    trained_run: Path, synthetic_videos: Path
) -> None:
    model = vcycle.load_model(trained_run)
    videos = vcycle.Manifest.read(synthetic_videos).split("val")
    dataset = vcycle.ClipDataset(videos, model.grid_range)
    loader = eval_loader(dataset, model.shape, batch_size=3, num_clips=3, num_workers=0)
    found = vcycle.predict(model, synthetic_videos / "val", num_clips=3)
    by_name = {Path(each.video).name: each for each in found}
    assert len(by_name) == len(videos)
    with torch.inference_mode():
        for video, batch in zip(videos.videos, loader, strict=True):
            shares = model.module(vcycle.normalize(batch.clips)).softmax(1).mean(0)
            prediction = by_name[Path(video.path).name]
            torch.testing.assert_close(torch.tensor(prediction.probabilities), shares)
            assert prediction.views == 3


def test_top_classes_are_in_order() -> None:
    prediction = Prediction("a", 0, 1, 1, ("x", "y", "z"), (0.2, 0.5, 0.3))
    assert prediction.top(2) == [("y", 0.5), ("z", 0.3)]


@pytest.mark.parametrize(
    ("span", "window", "every", "expected"),
    [
        ((0, 10), None, None, [(0, 10)]),
        ((0, 10), 4, 4, [(0, 4), (4, 8), (6, 10)]),
        ((0, 8), 4, 2, [(0, 4), (2, 6), (4, 8)]),
        ((2, 9), 3, 3, [(2, 5), (5, 8), (6, 9)]),
        ((0, 3), 4, 1, [(0, 3)]),
        ((0, 4), 4, 1, [(0, 4)]),
        (
            (0, 0.8),
            0.2,
            0.1,
            [(pytest.approx(k / 10), pytest.approx((k + 2) / 10)) for k in range(7)],
        ),
    ],
)
def test_windows_cover_a_span(span, window, every, expected) -> None:
    assert windows(*span, window=window, every=every) == expected


@pytest.mark.parametrize(("segments", "views"), [(False, 10), (True, 1)])
def test_a_video_has_ten_clips_unless_one_covers_all_of_it(
    trained_run: Path, synthetic_videos: Path, segments: bool, views: int
) -> None:
    model = vcycle.load_model(trained_run)
    model = replace(model, trained=replace(model.trained, segments=segments))
    video = sorted((synthetic_videos / "val").rglob("*.mp4"))[0]
    (found,) = vcycle.predict(model, video)
    assert found.views == views
    if segments:
        with pytest.raises(ValueError, match="num_clips 2: with segment sampling every clip"):
            vcycle.predict(model, video, num_clips=2)


def test_clips_have_the_shape_that_is_given(trained_run: Path, synthetic_videos: Path) -> None:
    model = vcycle.load_model(trained_run)
    video = sorted((synthetic_videos / "val").rglob("*.mp4"))[0]
    seen: list[tuple[int, ...]] = []
    model.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[2:]))
    given = vcycle.Shape(4, 24, 40)
    for shape in (None, given):
        list(vcycle.predict(model, video, num_clips=1, shape=shape))
    assert seen == [(each.frames, each.height, each.width) for each in (model.shape, given)]


def test_a_window_sees_its_own_frames_only(
    trained_run: Path, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vcycle.load_model(trained_run)
    file = next((synthetic_videos / "val").glob("*.mp4"))
    frames = []

    def noted(place: Location, grid: Grid, **options: Any) -> NDArray[np.uint8]:
        frames.append(grid.frames)
        return read_clip(place, grid, **options)

    monkeypatch.setattr(predict_module, "read_clip", noted)
    found = list(vcycle.predict(model, file, window_seconds=0.5, every_seconds=0.25))
    assert len(found) > 1
    rate = probe(Location(str(file))).frame_rate
    for each, of_window in zip(found, frames, strict=True):
        assert each.start_seconds * rate - 1 < of_window[0]
        assert of_window[-1] < each.end_seconds * rate
    [whole] = vcycle.predict(model, file)
    assert found[-1].end_seconds == pytest.approx(whole.end_seconds)
    assert len({each.probabilities for each in found}) > 1


def test_large_clips_are_predicted_a_few_at_a_time(
    trained_run: Path, synthetic_videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vcycle.load_model(trained_run)
    file = next((synthetic_videos / "val").glob("*.mp4"))
    batches: list[int] = []
    model.module.register_forward_pre_hook(lambda _, clips: batches.append(len(clips[0])))
    [together] = vcycle.predict(model, file, num_clips=5)
    monkeypatch.setattr(predict_module, "_PIXELS_AT_A_TIME", 2 * model.shape.num_pixels)
    [apart] = vcycle.predict(model, file, num_clips=5)
    assert batches == [5, 2, 2, 1]
    assert apart.probabilities == pytest.approx(together.probabilities, abs=1e-5)


def test_a_part_ends_with_its_video(trained_run: Path, synthetic_videos: Path) -> None:
    model = vcycle.load_model(trained_run)
    [video] = find_videos([next((synthetic_videos / "val").glob("*.mp4"))])
    [whole] = vcycle.predict(model, video, num_clips=1)
    for seconds, end in ((0.5, 0.5), (100.0, whole.end_seconds)):
        [part] = vcycle.predict(model, replace(video, end_seconds=seconds), num_clips=1)
        assert part.end_seconds == end
    with pytest.raises(UnreadableVideo, match=r"s, and its line begins at 100\.0 s"):
        list(vcycle.predict(model, replace(video, start_seconds=100.0, end_seconds=120.0)))


def test_files_folders_manifests_and_uris_name_the_same_videos(
    synthetic_videos: Path, tmp_path: Path
) -> None:
    file = sorted((synthetic_videos / "val").glob("*.mp4"))[0]
    [by_path] = find_videos([file])
    [by_uri] = find_videos([file.as_uri()])
    in_folder = find_videos([synthetic_videos / "val"])
    in_manifest = find_videos([synthetic_videos / "manifest.csv"])
    assert by_path.place == by_uri.place == in_folder[0].place
    assert len(in_manifest) == 36
    whole = Manifest.read(synthetic_videos)
    parts = [replace(whole.videos[0], start_seconds=s, end_seconds=s + 0.5) for s in (0.0, 0.5)]
    replace(whole, videos=tuple(parts)).write(tmp_path)
    name = str(whole.videos[0].path)
    named = [each.name for each in find_videos([tmp_path / "manifest.csv"])]
    assert named == [f"{name}[0 s:0.5 s]", f"{name}[0.5 s:1 s]"]
    assert by_path.place in [each.place for each in in_manifest]


@pytest.mark.parametrize("window_seconds", [None, 0.5])
def test_a_remote_video_is_fetched_once(
    trained_run: Path,
    synthetic_videos: Path,
    monkeypatch: pytest.MonkeyPatch,
    window_seconds: float | None,
) -> None:
    file = next((synthetic_videos / "val").glob("*.mp4"))
    uri = "memory://predict/v.mp4"
    fsspec.filesystem("memory").pipe(uri, file.read_bytes())
    fetched = []

    def noted(place: Location, **options: Any) -> bytes:
        fetched.append(place.uri)
        return read(place, **options)

    read = remote._read
    monkeypatch.setattr(remote, "_read", noted)
    model = vcycle.load_model(trained_run)
    found = list(vcycle.predict(model, uri, window_seconds=window_seconds))
    near = list(vcycle.predict(model, file, window_seconds=window_seconds))
    assert fetched == [uri]
    assert [each.probabilities for each in found] == [each.probabilities for each in near]


def test_mistakes_are_one_line(trained_run: Path, synthetic_videos: Path, tmp_path: Path) -> None:
    model = vcycle.load_model(trained_run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no video in it"):
        vcycle.predict(model, tmp_path / "empty")
    with pytest.raises(ValueError, match="no such file or folder"):
        vcycle.predict(model, tmp_path / "no.mp4")
    with pytest.raises(ValueError, match="window_seconds -1"):
        vcycle.predict(model, synthetic_videos, window_seconds=-1)
    with pytest.raises(ValueError, match="num_clips 0"):
        vcycle.predict(model, synthetic_videos, num_clips=0)
    (tmp_path / "bad.mp4").write_bytes(b"no video" * 99)
    with pytest.raises(UnreadableVideo, match=r"bad\.mp4"):
        list(vcycle.predict(model, tmp_path / "bad.mp4"))


def test_several_processes_would_print_it_several_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["predict", "run", "a.mp4"]) == 2
    assert "one process; start it without torchrun" in capsys.readouterr().err


def test_the_command_prints_json_and_reports_a_bad_video_last(
    trained_run: Path,
    synthetic_videos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = tmp_path / "a_bad.mp4"
    bad.write_bytes(b"no video" * 99)
    file = sorted((synthetic_videos / "val").glob("*.mp4"))[0]
    words = ["predict", str(trained_run), str(bad), str(file), "--json", "--top-k", "3"]
    assert main(words) == 2
    output = capsys.readouterr()
    [prediction] = json.loads(output.out)["predictions"]
    assert prediction["video"] == str(file)
    assert [set(each) for each in prediction["top"]] == [{"class", "probability"}] * 3
    assert output.err.count("\n") == 1
    assert str(bad) in output.err
    other = shutil.copy(bad, tmp_path / "b_bad.mp4")
    assert main([*words[:3], str(other), *words[3:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "vcycle: 2 videos could not be read; leave out what is not there, and encode again what is "
        f"damaged: {bad}: "
    )
    assert f"; {other}: " in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--window", "-1"], "--window -1: give a positive number"),
        (["--window", "1", "--every", "inf"], "--every inf: give a positive number"),
        (["--every", "1"], "--every 1: give --window too"),
        (["--clips", "0"], "--clips 0: give at least 1"),
        (["--top-k", "0"], "--top-k 0: give at least 1"),
    ],
)
def test_the_command_names_its_flags(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the model is looked for."""
    assert main(["predict", "no_run", "no.mp4", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_command_reads_standard_input(
    trained_run: Path,
    synthetic_videos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = sorted((synthetic_videos / "val").glob("*.mp4"))[0]
    assert main(["predict", str(trained_run), str(file)]) == 0
    expected = capsys.readouterr().out.splitlines()[1:]
    stdin = SimpleNamespace(buffer=io.BytesIO(file.read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["predict", str(trained_run), "-"]) == 0
    assert capsys.readouterr().out.splitlines() == ["-", *expected]
    assert len(expected) == 5


def test_standard_input_that_the_disk_does_not_hold_names_its_copy(
    trained_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(bytes(10_000))))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
        assert main(["predict", str(trained_run), "-"]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "/standard_input: File too large" in capsys.readouterr().err


def test_a_folder_of_images_is_one_video(trained_run: Path, tmp_path: Path) -> None:
    from PIL import Image

    frames = tmp_path / "frames"
    frames.mkdir()
    for k in range(12):
        Image.new("RGB", (48, 40), (20 * k, 0, 0)).save(frames / f"{k:03}.png")
    model = vcycle.load_model(trained_run)
    [prediction] = vcycle.predict(model, frames)
    assert prediction.end_seconds == pytest.approx(12 / 30)
    facts = asdict(probe_frames(str(frames), frame_rate=24))
    video = Video(path="frames", labels=(0,), split="val", **facts)
    Manifest(tmp_path, ("a", "b"), (video,)).write()
    [prediction] = vcycle.predict(model, tmp_path / "manifest.csv")
    assert prediction.end_seconds == pytest.approx(12 / 24)
    shutil.rmtree(frames)
