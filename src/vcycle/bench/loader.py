"""What a clip costs on this machine: our raw and prepared paths, the bare decode, and peers.

The same grids on the same videos for every source, one after another on one thread. A row is a
plain dictionary: ``source``, ``shape``, ``clips_per_second`` (wall clock), ``cpu_ms_per_clip``.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vcycle.bench.peers import PEERS, is_usable
from vcycle.data.batch import Batch, label_tensor
from vcycle.data.dataset import ClipDataset, ClipRequest
from vcycle.data.folders import VIDEO_SUFFIXES
from vcycle.data.grid import Grid, GridRange, draw_grid
from vcycle.data.manifest import Location, Manifest, UnreadableVideo, Video, VideoInfo
from vcycle.data.prepare import Preparation, prepare_videos
from vcycle.data.randomness import indexed_seeds
from vcycle.data.resample import keep_freed_memory
from vcycle.data.video import decode_only, probe
from vcycle.schedule.shape import Shape

SHAPES = ("8x112", "8x158", "16x158", "16x224", "32x224")
_PAPER = GridRange(Shape(32, 224, 224), stride=2, short_side=(256, 340))


@dataclass(frozen=True)
class LoaderRow:
    """The cost of a clip of one shape from one source."""

    source: str
    shape: str
    clips_per_second: float
    cpu_ms_per_clip: float


def bench_loader(
    video_dir: str | os.PathLike[str],
    *,
    shapes: Sequence[str] = SHAPES,
    num_clips: int = 64,
    preparation: Preparation = Preparation(),
    prepared_dir: str | os.PathLike[str] | None = None,
    peers: bool = True,
    progress: Callable[[LoaderRow], None] | None = None,
) -> list[LoaderRow]:
    """Measure every source at every shape on the videos under ``video_dir``.

    Prepares them first, into ``prepared_dir`` or a temporary folder. Sources: ``raw``,
    ``prepared``, ``floor`` and ``floor_prepared`` (decoding the same frames and nothing else), and
    the peers that are installed. Raises ValueError when the folder holds no readable video.
    """
    raw = _manifest_of(Path(video_dir))
    with _directory(prepared_dir) as folder, _one_thread():
        prepared = prepare_videos(raw, folder, preparation, num_workers=0).manifest
        sources = _sources(raw, prepared, peers=peers)
        rows = []
        for text in shapes:
            shape = Shape.parse(text)
            for name, (manifest, read) in sources.items():
                row = _measure(name, text, manifest, shape, read, num_clips=num_clips)
                rows.append(row)
                if progress is not None:
                    progress(row)
    return rows


Read = Callable[[ClipDataset, list[ClipRequest]], object]


def _sources(raw: Manifest, prepared: Manifest, *, peers: bool) -> dict[str, tuple[Manifest, Read]]:
    sources: dict[str, tuple[Manifest, Read]] = {
        "prepared": (prepared, _batch),
        "floor_prepared": (prepared, _decode_only),
        "raw": (raw, _batch),
        "floor": (raw, _decode_only),
    }
    for name, read_clip in PEERS.items() if peers else ():
        if is_usable(name):
            sources[name] = (raw, _peer_batch(read_clip))
    return sources


def _measure(
    source: str, text: str, manifest: Manifest, shape: Shape, read: Read, *, num_clips: int
) -> LoaderRow:
    """The faster of two passes over the same clips, in batches of eight."""
    dataset = ClipDataset(manifest, _PAPER)
    seeds = indexed_seeds(0, "bench", np.arange(num_clips)).tolist()
    requests = [ClipRequest(k % len(manifest), shape, seed) for k, seed in enumerate(seeds)]
    batches = [requests[i : i + 8] for i in range(0, num_clips, 8)]
    read(dataset, batches[0])
    best_wall, best_cpu = math.inf, math.inf
    for _ in range(2):
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            read(dataset, batch)
        best_wall = min(best_wall, time.perf_counter() - wall)
        best_cpu = min(best_cpu, time.process_time() - cpu)
    return LoaderRow(source, text, num_clips / best_wall, 1000 * best_cpu / num_clips)


def _batch(dataset: ClipDataset, requests: list[ClipRequest]) -> Batch:
    """What a worker and the loader do for a batch: decode, resample, collate, label."""
    pixels = _memory((len(requests), *requests[0].clip_shape))
    clips = [
        dataset.read(request, out=out.numpy())
        for out, request in zip(pixels, requests, strict=True)
    ]
    return Batch(
        clips=pixels.permute(0, 4, 1, 2, 3),
        labels=label_tensor([clip.labels for clip in clips], num_classes=1, multi_label=False),
        indices=torch.tensor([clip.index for clip in clips]),
    )


@lru_cache(maxsize=1)
def _memory(shape: tuple[int, ...]) -> torch.Tensor:
    """What batches are decoded into, again and again, as the loader's workers do."""
    return torch.empty(shape, dtype=torch.uint8)


def _decode_only(dataset: ClipDataset, requests: list[ClipRequest]) -> None:
    for request in requests:
        video = dataset.manifest.videos[request.index]
        grid = _grid(video, request)
        place = dataset.manifest.locate(video)
        decode_only(place, grid, all_key_frames=video.key_interval == 1)


def _peer_batch(read_clip: Callable[[str, VideoInfo, Grid], NDArray[np.uint8]]) -> Read:
    def read(dataset: ClipDataset, requests: list[ClipRequest]) -> object:
        clips = []
        for request in requests:
            video = dataset.manifest.videos[request.index]
            grid = _grid(video, request)
            clips.append(read_clip(dataset.manifest.locate(video).uri, video, grid))
        return torch.from_numpy(np.stack(clips))

    return read


def _grid(video: Video, request: ClipRequest) -> Grid:
    rng = np.random.default_rng(request.seed)
    return draw_grid(video, request.shape, _PAPER, rng=rng, flip=video.flip)


def _manifest_of(folder: Path) -> Manifest:
    """Every readable video directly under a folder, all of one class."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; give a folder of videos")
    videos = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() in VIDEO_SUFFIXES:
            try:
                info = probe(Location(str(path)))
            except UnreadableVideo:
                continue
            facts: dict[str, Any] = vars(info)
            videos.append(Video(path=path.name, labels=(0,), split="train", **facts))
    if not videos:
        raise ValueError(f"{folder}: holds no readable video; give a folder of videos")
    return replace(Manifest(folder, ("any",), ()), videos=tuple(videos))


@contextmanager
def _directory(path: str | os.PathLike[str] | None) -> Iterator[Path]:
    if path is not None:
        yield Path(path)
    else:
        with tempfile.TemporaryDirectory(prefix="vcycle-bench-") as temporary:
            yield Path(temporary)


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
