"""What a video shows: class probabilities over all of it, or over windows that slide along it.

In: a LoadedModel and videos. Out: a Prediction for each video or window, one after the other. Clips
are those of evaluation: at the base stride, spread evenly, centre crop.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vcycle.config.run import check_num_clips
from vcycle.data.decode.probe import probe
from vcycle.data.decode.remote import fetch
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import View, grid_of_part, view_grid
from vcycle.data.metadata import UnreadableVideo, Video, VideoInfo
from vcycle.evaluate.load_model import LoadedModel
from vcycle.evaluate.metrics import combined, view_probabilities
from vcycle.evaluate.refused_shape import refused_shape
from vcycle.evaluate.video_arguments import NamedVideo, find_videos
from vcycle.schedule.shape import Shape

_CLIPS_AT_A_TIME, _PIXELS_AT_A_TIME = 8, 2**27
_MOST_WINDOWS = 1_000_000


@dataclass(frozen=True)
class Prediction:
    """The probabilities of a video's classes between two moments, in the order of ``classes``."""

    video: str
    start_seconds: float
    end_seconds: float
    views: int
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` most probable classes, most probable first; ties in the order of classes."""
        order = sorted(range(len(self.classes)), key=lambda c: -self.probabilities[c])
        return [(self.classes[c], self.probabilities[c]) for c in order[:k]]

    def to_dict(self, *, top_k: int = 5) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "video": self.video,
            "start_seconds": self.start_seconds,
            "end_seconds": self.end_seconds,
            "views": self.views,
            "top": [{"class": name, "probability": share} for name, share in self.top(top_k)],
        }


def predict(
    model: LoadedModel,
    videos: str | Path | NamedVideo | Iterable[str | Path],
    *,
    window_seconds: float | None = None,
    every_seconds: float | None = None,
    num_clips: int | None = None,
    shape: Shape | None = None,
) -> Iterator[Prediction]:
    """Predict for files, folders, manifests and URIs, video by video.

    A prediction is over the whole video from ``num_clips`` clips, 10 unless given, as in the paper;
    or with ``window_seconds`` over each window of so many seconds, one clip each unless given, that
    starts ``every_seconds`` after the one before, by default where that ends. The last window ends
    with the video. ``shape`` is that of training unless given. A folder of images is a video of 30
    frames a second.

    Raises ValueError if an argument is impossible or names no video; when its turn comes,
    UnreadableVideo of a video that does not decode, and ValueError of one without finite scores.
    """
    if every_seconds is not None and window_seconds is None:
        raise ValueError(f"every_seconds {every_seconds}: give window_seconds too")
    for name, seconds in (("window_seconds", window_seconds), ("every_seconds", every_seconds)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ValueError(f"{name} {seconds}: give a positive number of seconds")
    if num_clips is None:
        num_clips = 1 if window_seconds is not None or model.trained.segments else 10
    View(num_clips=num_clips)  # checks the number
    check_num_clips(num_clips, segments=model.trained.segments)
    if isinstance(videos, NamedVideo):
        found = [videos]
    else:
        found = find_videos([videos] if isinstance(videos, str | Path) else videos)
    every = every_seconds or window_seconds
    return (
        prediction
        for video in found
        for prediction in _predict_video(
            model,
            video,
            window=window_seconds,
            every=every,
            num_clips=num_clips,
            shape=shape or model.shape,
        )
    )


def windows(
    start: float, end: float, *, window: float | None, every: float | None
) -> list[tuple[float, float]]:
    """The windows of [start, end] in seconds; the last ends at the end, and may overlap more."""
    if window is None or every is None or window >= end - start:
        return [(start, end)]
    count = math.ceil((end - start - window) / every - 1e-9)
    if count >= _MOST_WINDOWS:
        raise ValueError(
            f"a window of {window:g} s every {every:g} s: {count:,} windows of {end - start:.1f} s "
            f"of video; give numbers that make {_MOST_WINDOWS:,} at most"
        )
    starts = [start + k * every for k in range(count)]
    return [(each, each + window) for each in starts] + [(end - window, end)]


def _predict_video(
    model: LoadedModel,
    video: NamedVideo,
    *,
    window: float | None,
    every: float | None,
    num_clips: int,
    shape: Shape,
) -> Iterator[Prediction]:
    """The predictions of one video, which is fetched once and held no longer, if it is remote."""
    place = video.place
    try:
        if not place.is_local:
            place = replace(place, content=fetch(place))
        info = probe(place, folder_frame_rate=video.frame_rate)
    except UnreadableVideo as error:
        raise UnreadableVideo(video.name, error.reason) from error
    video = replace(video, place=place)
    for span in windows(*_span(video, info), window=window, every=every):
        yield _predict_span(model, video, info, span, num_clips=num_clips, shape=shape)


def _span(video: NamedVideo, info: VideoInfo) -> tuple[float, float]:
    length = info.num_frames / info.frame_rate
    start, end = video.start_seconds, min(video.end_seconds or length, length)
    if start >= end:
        reason = f"it has {length:.1f} s, and its line begins at {start:.1f} s"
        raise UnreadableVideo(video.name, reason)
    return start, end


def _predict_span(
    model: LoadedModel,
    video: NamedVideo,
    info: VideoInfo,
    span: tuple[float, float],
    *,
    num_clips: int,
    shape: Shape,
) -> Prediction:
    """The combined probabilities of ``num_clips`` clips between two moments."""
    views = [View(k, num_clips) for k in range(num_clips)]
    device = next(model.module.parameters()).device
    parts = []
    at_a_time = max(1, min(_CLIPS_AT_A_TIME, _PIXELS_AT_A_TIME // shape.num_pixels))
    with torch.no_grad():
        for first in range(0, num_clips, at_a_time):
            some = views[first : first + at_a_time]
            pixels = torch.stack([_read(model, video, info, span, v, shape) for v in some])
            clips = pixels.permute(0, 4, 1, 2, 3).contiguous()  # (N, 3, T, H, W)
            scores = _scores(model, model.normalize(clips.to(device)), shape)
            parts.append(view_probabilities(scores, multi_label=model.trained.multi_label).cpu())
    shares = combined(torch.cat(parts), multi_label=model.trained.multi_label)
    if not shares.isfinite().all():
        raise ValueError(
            f"{model.path}: it gives no finite scores of {video.name}; give another checkpoint"
        )
    return Prediction(
        video.name, *span, num_clips, model.classes, tuple(float(share) for share in shares)
    )


def _scores(model: LoadedModel, clips: Tensor, shape: Shape) -> Tensor:
    fix = f"leave --shape out for {model.shape}, that of training"
    with refused_shape(f"--shape {shape}", clips, fix=fix):
        scores: Tensor = model.module(clips)
    return scores


def _read(
    model: LoadedModel,
    video: NamedVideo,
    info: VideoInfo,
    span: tuple[float, float],
    view: View,
    shape: Shape,
) -> Tensor:
    """(T, H, W, 3) uint8 of one view of the frames between two moments."""
    known = Video(
        path=video.name,
        labels=(),
        split="",
        start_seconds=span[0],
        end_seconds=span[1],
        **vars(info),
    )
    grid = grid_of_part(known, lambda part: view_grid(part, shape, model.grid_range, view=view))
    try:
        clip = read_clip(video.place, grid, all_key_frames=info.key_interval == 1)
    except UnreadableVideo as error:
        raise UnreadableVideo(video.name, error.reason) from error
    return torch.from_numpy(clip)
