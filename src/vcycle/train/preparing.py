"""What rewriting a run's videos by ``vcycle data prepare`` would save it, measured on two of them.

In: a run with its measured times. Out: seconds saved and spent; or None if it cannot be measured.
"""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from vcycle.config.run import RunConfig
from vcycle.data.dataset import ClipDataset
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.data.request import ClipRequest
from vcycle.datasets.prepare import prepare_videos
from vcycle.evaluate.loaders import make_dataset
from vcycle.schedule.shape import Shape
from vcycle.train.measure.timing import StepTimes, run_seconds

_LEAST_FRAMES = 32
"""Of a video that are rewritten, more if a clip spans more: what a clip costs is its own frames."""
_MOST_FRAMES = 4000
"""Of both videos: rewriting them is to take seconds."""
_CLIPS = 3
_LIMIT_SECONDS = 60.0
"""Of a video that hangs what decodes it, beside a tenth of a second a frame."""


@dataclass(frozen=True)
class Saving:
    """What preparing saves: ``speedup`` of decoding, ``saved`` and ``spent`` seconds."""

    speedup: float
    saved: float
    spent: float


def measure_preparing(
    config: RunConfig, times: StepTimes, videos: Manifest, *, val_videos: int
) -> Saving | None:
    """Rewrite the beginning of two videos, and decode clips of both forms of them.

    ``spent`` is in proportion to the frames of all videos, shared by the cores that decode. None
    if the videos are not files of this machine or cannot be read, clips go through thousands of
    frames, one hangs what rewrites it for longer than a minute, or a GPU decodes them.
    """
    chosen = tuple(dict.fromkeys([videos.videos[0], videos.videos[len(videos) // 2]]))
    is_local = all(videos.locate(video).is_local for video in chosen)
    if config.data.decoder == "nvdec" or not is_local:
        return None
    some = replace(videos, videos=tuple(_beginning(each, _span(each, config)) for each in chosen))
    if sum(video.num_frames for video in some.videos) > _MOST_FRAMES:
        return None
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = prepare_videos(
                some, Path(folder) / "prepared", num_workers=1, limit_seconds=_LIMIT_SECONDS
            )
            if done.bad:
                return None
            originals = make_dataset(config, replace(videos, videos=chosen))
            rewritten = make_dataset(config, done.manifest)
            ratios = {
                shape: _clip_seconds(rewritten, shape) / _clip_seconds(originals, shape)
                for shape in config.plan().shapes
            }
        except (ValueError, OSError):  # a video cannot be read, or nothing can be written
            return None
    # More shapes may have been timed than the plan has, if it was then fitted to a time.
    faster = replace(times, decode={s: times.decode[s] * ratio for s, ratio in ratios.items()})
    before, after = (
        run_seconds(config, each, val_videos=val_videos).total for each in (times, faster)
    )
    frames = sum(video.num_frames for video in videos.videos) * (1 + val_videos / len(videos))
    per_frame = done.seconds / sum(video.num_frames for video in some.videos)
    return Saving(
        speedup=len(ratios) / sum(ratios.values()),
        saved=before - after,
        spent=frames * per_frame / max(1, times.workers),
    )


def _span(video: Video, config: RunConfig) -> int:
    """Frames of a video that a clip goes through, and no fewer than are worth timing."""
    if config.data.segments:
        return video.num_frames
    rate = video.frame_rate / config.data.frame_rate if config.data.frame_rate else 1.0
    frames = config.baseline.shape.frames * config.data.stride * rate
    return max(_LEAST_FRAMES, math.ceil(frames))


def _beginning(video: Video, num_frames: int) -> Video:
    """The first frames of a video, as if it were no longer."""
    frames = min(num_frames, video.num_frames)
    seconds = video.duration_seconds * frames / video.num_frames
    return replace(
        video,
        num_frames=frames,
        duration_seconds=seconds,
        spans=(),
        start_seconds=0.0,
        end_seconds=0.0,
    )


def _clip_seconds(dataset: ClipDataset, shape: Shape) -> float:
    """Of decoding a clip of this shape: the fastest of a few, a mean over the videos."""
    total = 0.0
    for index in range(len(dataset)):
        took = []
        for seed in range(_CLIPS):
            began = time.perf_counter()
            dataset[ClipRequest(index, shape, seed=seed)]
            took.append(time.perf_counter() - began)
        total += min(took)
    return total / len(dataset)
