"""What preparing is said to save: the difference of two predictions, measured on two videos."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vcycle.config.run import RunConfig
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.kept import KeptFrames, decoded_bytes
from vcycle.data.decode.video import iterate_frames
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, VideoInfo
from vcycle.schedule.shape import Shape
from vcycle.train import prediction, preparing
from vcycle.train.measure.timing import Kind, RunSeconds, StepTimes, run_seconds
from vcycle.train.preparing import Saving, measure_preparing


@pytest.fixture
def times(config: RunConfig) -> StepTimes:
    """A model that waits for its clips."""
    plan = config.plan()
    kinds = map(Kind.of, plan.mini_batches())
    return StepTimes(
        model=dict.fromkeys(kinds, 0.01), decode=dict.fromkeys(plan.shapes, 0.4), workers=2
    )


@pytest.fixture
def videos(synthetic_videos: Path) -> Manifest:
    return Manifest.read(synthetic_videos).split("train")


def test_it_is_the_difference_of_two_predictions(
    config: RunConfig, times: StepTimes, videos: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[bool, Shape]] = []

    def clip_seconds(dataset: ClipDataset, shape: Shape) -> float:
        is_prepared = (dataset.manifest.root / "prepared.json").exists()
        decoded.append((is_prepared, shape))
        assert len(dataset) == 2
        return 0.01 if is_prepared else 0.04

    monkeypatch.setattr("vcycle.train.preparing._clip_seconds", clip_seconds)
    prepare = preparing.prepare_videos
    monkeypatch.setattr(
        preparing, "prepare_videos", lambda *a, **k: replace(prepare(*a, **k), seconds=6.0)
    )
    timed = replace(times, decode={**times.decode, Shape(1, 16, 16): 0.1})  # of another plan, too
    saving = measure_preparing(config, timed, videos, val_videos=12)
    assert saving is not None
    assert saving.speedup == pytest.approx(4)
    faster = replace(times, decode={shape: each / 4 for shape, each in times.decode.items()})
    before, after = (run_seconds(config, each, val_videos=12) for each in (times, faster))
    assert saving.saved == pytest.approx(before.total - after.total)
    rewritten = [min(32, videos.videos[k].num_frames) for k in (0, len(videos) // 2)]
    frames = sum(video.num_frames for video in videos.videos) * (1 + 12 / len(videos))
    assert saving.spent == pytest.approx(frames * 6.0 / sum(rewritten) / times.workers)
    assert {shape for is_prepared, shape in decoded if is_prepared} == set(config.plan().shapes)


def test_clips_of_both_forms_are_decoded(
    config: RunConfig, times: StepTimes, videos: Manifest
) -> None:
    saving = measure_preparing(config, times, videos, val_videos=12)
    assert saving is not None
    assert saving.speedup > 0


@pytest.mark.parametrize(
    ("more", "frames"), [({}, 32), ({"frame_rate": 3.0}, 80), ({"segments": True}, 300)]
)
def test_as_much_is_rewritten_as_a_clip_goes_through(
    config: RunConfig, videos: Manifest, more: dict[str, Any], frames: int
) -> None:
    """8 frames at stride 1: of a video at 30 frames a second, or at 3 of these."""
    video = replace(videos.videos[0], num_frames=300, duration_seconds=10.0, frame_rate=30.0)
    base = replace(config.baseline, shape=Shape(8, 32, 32))
    asked = replace(config, baseline=base, data=replace(config.data, stride=1, **more))
    assert preparing._beginning(video, preparing._span(video, asked)).num_frames == frames


def test_nothing_is_rewritten_of_videos_that_would_take_long(
    config: RunConfig, times: StepTimes, videos: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clips of segments go through all of them."""
    long = replace(videos, videos=tuple(replace(v, num_frames=2001) for v in videos.videos))
    segments = replace(config, data=replace(config.data, segments=True))
    monkeypatch.setattr(preparing, "prepare_videos", None)
    assert measure_preparing(segments, times, long, val_videos=12) is None


def test_a_video_that_hangs_what_rewrites_it_is_given_up(
    config: RunConfig, times: StepTimes, videos: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process rewrites it; the other video is fine."""
    hangs = videos.locate(videos.videos[0]).uri

    def frames(place: Location, info: VideoInfo) -> Iterator[Any]:
        if place.uri == hangs:
            time.sleep(600)
        return iterate_frames(place, info)

    monkeypatch.setattr("vcycle.datasets.prepare.iterate_frames", frames)
    monkeypatch.setattr("vcycle.train.preparing._LIMIT_SECONDS", 0.5)
    assert measure_preparing(config, times, videos, val_videos=12) is None


def test_videos_that_are_elsewhere_or_broken_are_not_measured(
    config: RunConfig, times: StepTimes, videos: Manifest, tmp_path: Path
) -> None:
    on_gpu = replace(config, data=replace(config.data, decoder="nvdec"))
    assert measure_preparing(on_gpu, times, videos, val_videos=12) is None
    (tmp_path / "a.mp4").write_bytes(b"no video")
    for root, path in ((videos.root, "s3://bucket/a.mp4"), (tmp_path, "a.mp4")):
        moved = tuple(replace(video, path=path) for video in videos.videos)
        there = replace(videos, root=root, videos=moved)
        assert measure_preparing(config, times, there, val_videos=12) is None


@pytest.mark.parametrize(
    ("saving", "text"),
    [
        (
            Saving(speedup=3.04, saved=130.0, spent=20.0),
            "decode 3.0 times as fast: about 2:10 min less a run, for 20 s once; then train on "
            "clips-prepared:\n  vcycle data prepare clips clips-prepared",
        ),
        (Saving(speedup=1.1, saved=1.0, spent=20.0), "1.1 times as fast, which would save little"),
        (None, ""),
    ],
)
def test_the_line_says_what_is_gained_and_what_it_takes(
    saving: Saving | None,
    text: str,
    config: RunConfig,
    times: StepTimes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction, "measure_preparing", lambda *_, **__: saving)
    run = SimpleNamespace(
        config=config,
        plan=config.plan(),
        measured=SimpleNamespace(times=times),
        train_videos=(),
        val_videos=(),
        manifest=SimpleNamespace(root=Path("clips")),
        loader=SimpleNamespace(dataset=SimpleNamespace(kept=None)),
        prediction=RunSeconds((100.0,), 50.0),
    )
    assert "of that is waiting for clips" in prediction._waiting_line(run)
    assert "\n".join(prediction._preparing_lines(run)).endswith(text)
    measured = SimpleNamespace(times=replace(times, shared_cores=2))
    shared = SimpleNamespace(plan=run.plan, measured=measured)
    assert prediction._waiting_line(shared).endswith("on the cores that the model computes on")


@pytest.mark.parametrize("copies", [2.0, 1e6])
def test_more_workers_need_room_for_the_frames_that_they_keep(
    config: RunConfig, times: StepTimes, videos: Manifest, copies: float
) -> None:
    kept = KeptFrames(int(copies * decoded_bytes(videos.videos)))
    run: Any = SimpleNamespace(
        config=config,
        plan=config.plan(),
        measured=SimpleNamespace(times=times),
        train_videos=videos,
        loader=SimpleNamespace(dataset=SimpleNamespace(kept=kept)),
    )
    line = prediction._waiting_line(run)
    assert "on as many cores would keep up" in line
    assert ("--data.frames_gib" in line) == (copies == 2.0)


def test_a_baseline_is_said_to_take_as_many_times_as_long(config: RunConfig) -> None:
    plan = config.plan()
    kinds = {*map(Kind.of, plan.mini_batches()), Kind.of(plan.baseline_step)}
    times = StepTimes(dict.fromkeys(kinds, 0.1), dict.fromkeys(plan.shapes, 1e-9), workers=1)
    run: Any = SimpleNamespace(
        plan=plan,
        config=config,
        measured=SimpleNamespace(times=times),
        prediction=RunSeconds((times.plan(plan),), 0.0),
    )
    [line] = prediction._beside_baseline(run)
    assert line.startswith("The 66 steps of its baseline would take ")
    assert line.endswith(f", {66 / len(plan):.1f} times as long")
