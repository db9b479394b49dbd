"""Frames for a report: a validation video as the model sees it, as small pictures in the page.

In: a run's configuration and its manifest. Out: pictures as data URIs, and the grids that they were
sampled with. Nothing is raised for videos that are not there any more: a report is also read
elsewhere than where the run was.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vcycle.config.run import RunConfig
from vcycle.data.grid import Box, Grid, View
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import UnreadableVideo, Video
from vcycle.data.request import ClipRequest
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape

if TYPE_CHECKING:
    from vcycle.data.dataset import ClipDataset

_MOST_FRAMES = 8  # of a clip that are shown
_MOST_SIDE = 256  # pixels of a picture
_MOST_SECONDS = 10.0  # for decoding one clip
_MOST_OF_A_REASON = 2000  # characters: long paths, and then what to do
_TRIED = 5  # videos, before none is shown


@dataclass(frozen=True)
class Strip:
    """Some frames of a clip, each a data URI, and the grid of the whole clip."""

    shape: Shape
    grid: Grid
    frames: tuple[str, ...]


@dataclass(frozen=True)
class SampledVideo:
    """A video, one of its frames whole, and its clips at several shapes."""

    video: Video
    whole: str
    strips: tuple[Strip, ...]


class ValidationVideos:
    """The validation videos of a run, if they are still there; else ``reason`` says why not."""

    def __init__(self, run: Path, config: RunConfig, validation: dict[str, Any]) -> None:
        from vcycle.evaluate.loaders import make_dataset
        from vcycle.evaluate.setup import read_manifest
        from vcycle.train.same_run import is_of

        self.reason = ""
        self._dataset: ClipDataset | None = None
        self._config = config
        try:
            videos = read_manifest(config, run).split("val")
        except (ValueError, OSError) as error:
            self.reason = (
                f"the run's videos cannot be reached: {shortened(error, _MOST_OF_A_REASON)}"
            )
            return
        if not is_of(validation, videos):
            self.reason = f"the manifest in {videos.root} has changed since the run"
            return
        self._dataset = make_dataset(config, videos)
        self._by_path: dict[str, list[Video]] = {}
        for video in videos.videos:
            self._by_path.setdefault(video.name, []).append(video)

    def other_than(self, paths: Iterable[str]) -> str:
        """One of the paths that is none of these videos'; empty if all are, or none is known."""
        return "" if self.reason else next((p for p in paths if p not in self._by_path), "")

    def sampled(self, shapes: Iterable[Shape]) -> SampledVideo | None:
        """The first video that decodes, at each of the shapes, by a training grid of each.

        The grids are drawn as in training, from the run's seed. None, with a ``reason``, if there
        are no videos.
        """
        if self._dataset is None:
            return None
        shapes = list(shapes)
        for index, video in enumerate(self._dataset.manifest.videos[:_TRIED]):
            try:
                strips = [
                    self._strip(video, ClipRequest(index, shape, self._config.seed))
                    for shape in shapes
                ]
                return SampledVideo(video, self._whole(video), tuple(strips))
            except UnreadableVideo as error:
                self.reason = f"the run's videos do not decode: {error}"
        return None

    def view(self, path: str) -> Strip | str:
        """The middle view of a video at the run's full shape, or why there is none."""
        if self._dataset is None:
            return self.reason
        found = self._by_path.get(path, [])
        if len(found) != 1:
            lines = f"{len(found)} lines of it are" if found else "no line of it is"
            return f"the manifest cannot tell: {lines} about this video"
        shape = self._config.baseline.shape
        try:
            return self._strip(found[0], ClipRequest(0, shape, 0, view=View()), most=4)
        except UnreadableVideo as error:
            return f"it does not decode: {error.reason}"

    def _strip(self, video: Video, request: ClipRequest, *, most: int = _MOST_FRAMES) -> Strip:
        assert self._dataset is not None
        grid = self._dataset.grid(video, request)
        count = min(most, len(grid.frames))
        places = [round((k + 0.5) * len(grid.frames) / count - 0.5) for k in range(count)]
        shown = replace(grid, frames=tuple(grid.frames[place] for place in places))
        frames = _decode(self._dataset.manifest, video, shown)
        return Strip(request.shape, grid, tuple(data_uri(frame) for frame in frames))

    def _whole(self, video: Video) -> str:
        """The middle frame of a video, not cropped."""
        assert self._dataset is not None
        scale = min(1.0, _MOST_SIDE / max(video.height, video.width))
        middle = video.frame_range[len(video.frame_range) // 2]
        size = video.height, video.width
        height, width = (max(1, round(scale * side)) for side in size)
        grid = Grid((middle,), Box(0, 0, *size), height, width, flip=False, frame_size=size)
        return data_uri(_decode(self._dataset.manifest, video, grid)[0])


def _decode(manifest: Manifest, video: Video, grid: Grid) -> NDArray[np.uint8]:
    from vcycle.data.decode.video import read_clip

    place = manifest.locate(video)
    return read_clip(
        place, grid, all_key_frames=video.key_interval == 1, limit_seconds=_MOST_SECONDS
    )


def data_uri(frame: NDArray[np.uint8] | Sequence[Any]) -> str:
    """A frame, (H, W, 3) uint8 RGB, as a JPEG in a data URI, its colours not subsampled."""
    image = Image.fromarray(np.asarray(frame, np.uint8))
    image.thumbnail((_MOST_SIDE, _MOST_SIDE))
    data = io.BytesIO()
    image.save(data, "JPEG", quality=88, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()
