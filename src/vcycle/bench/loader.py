"""The cost of a clip on this machine: raw and prepared videos, the bare decode, and peers.

A folder of videos goes in. Every source reads the same grids of the same videos on one thread, and
gives a row for each shape: clips per second (wall clock) and CPU milliseconds a clip.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vcycle.bench.peers import PEERS, is_usable
from vcycle.bench.videos import prepare_intact
from vcycle.data.batch import Batch, label_tensor
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.clock import stream_clock
from vcycle.data.decode.container import open_video
from vcycle.data.decode.frame_search import MissedFrame, wanted_frames
from vcycle.data.decode.resample import keep_freed_memory
from vcycle.data.decode.video import WAYS
from vcycle.data.grid import Grid, GridRange
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import UnreadableVideo, VideoInfo
from vcycle.data.randomness import indexed_seeds
from vcycle.data.request import ClipRequest
from vcycle.schedule.messages import shortened
from vcycle.schedule.shape import Shape

SHAPES = ("8x112", "8x158", "16x158", "16x224", "32x224")
PAPER_RANGE = GridRange(Shape(32, 224, 224), stride=2, short_side=(256, 340))


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
    prepared_dir: str | os.PathLike[str] | None = None,
    peers: bool = True,
    progress: Callable[[LoaderRow], None] | None = None,
    remark: Callable[[str], None] | None = None,
) -> list[LoaderRow]:
    """Measure every source at every shape on the video files at any depth of ``video_dir``.

    Prepares them first, into ``prepared_dir`` or a temporary folder. Sources: ``raw``,
    ``prepared``, ``floor`` and ``floor_prepared`` (decoding the same frames and nothing else), and
    the peers that are installed. Videos that do not decode to the end are left out, and so is a
    peer that fails; ``remark`` is told. Raises ValueError if no video is left.
    """
    if num_clips < 1:
        raise ValueError(f"num_clips {num_clips}: give at least 1")
    grids = {text: Shape.parse(text) for text in shapes}
    remark = remark or (lambda text: None)
    with _folder(prepared_dir) as folder, _one_thread():
        raw, prepared = prepare_intact(
            Path(video_dir),
            folder,
            keeps_reasons=prepared_dir is not None,
            remark=remark,
        )
        sources = _sources(raw, prepared, peers=peers)
        rows = []
        for text, shape in grids.items():
            for name, (manifest, read) in sources.items():
                try:
                    row = _measure(name, text, manifest, shape, read, num_clips=num_clips)
                except Exception as error:  # a peer may raise any
                    if name not in PEERS:
                        raise
                    remark(f"{name} fails at {text}: {shortened(error)}")
                    continue
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
    dataset = ClipDataset(manifest, PAPER_RANGE)
    batches = bench_batches(manifest, shape, num_clips=num_clips)
    read(dataset, batches[0])
    best_wall, best_cpu = math.inf, math.inf
    for _ in range(2):
        wall, cpu = time.perf_counter(), time.process_time()
        for batch in batches:
            read(dataset, batch)
        best_wall = min(best_wall, time.perf_counter() - wall)
        best_cpu = min(best_cpu, time.process_time() - cpu)
    return LoaderRow(source, text, num_clips / best_wall, 1000 * best_cpu / num_clips)


def bench_batches(
    manifest: Manifest, shape: Shape, *, num_clips: int, batch_size: int = 8
) -> list[list[ClipRequest]]:
    """Requests of so many clips, video after video, in batches."""
    seeds = indexed_seeds(0, "bench", np.arange(num_clips)).tolist()
    requests = [ClipRequest(k % len(manifest), shape, seed) for k, seed in enumerate(seeds)]
    return [requests[i : i + batch_size] for i in range(0, num_clips, batch_size)]


def _batch(dataset: ClipDataset, requests: list[ClipRequest]) -> Batch:
    """Make a batch as a worker and the loader do: decode, resample, collate, label."""
    pixels = _memory((len(requests), *requests[0].clip_shape))
    clips = [dataset.read(request, out=out) for out, request in zip(pixels, requests, strict=True)]
    return Batch(
        clips=pixels.permute(0, 4, 1, 2, 3),
        labels=label_tensor([clip.labels for clip in clips], num_classes=1, multi_label=False),
        indices=torch.tensor([clip.index for clip in clips]),
    )


@lru_cache(maxsize=1)
def _memory(shape: tuple[int, ...]) -> torch.Tensor:
    """Memory that batches are decoded into, reused as the loader's workers do."""
    return torch.empty(shape, dtype=torch.uint8)


def _decode_only(dataset: ClipDataset, requests: list[ClipRequest]) -> None:
    """Decode the frames of clips and drop them: the least that reading them can cost."""
    for request in requests:
        video = dataset.manifest.videos[request.index]
        place, frames = dataset.manifest.locate(video), dataset.grid(video, request).frames
        try:
            for way in WAYS:
                with (
                    suppress(MissedFrame),
                    open_video(place, all_key_frames=video.key_interval == 1) as (file, stream),
                ):
                    for _ in wanted_frames(file, stream, stream_clock(file, stream), frames, **way):
                        pass
                    break
        except UnreadableVideo as error:  # a substitute would be a different clip for each source
            raise ValueError(f"{error}; remove it from the folder") from None


def _peer_batch(read_clip: Callable[[str, VideoInfo, Grid], NDArray[np.uint8]]) -> Read:
    def read(dataset: ClipDataset, requests: list[ClipRequest]) -> object:
        clips = []
        for request in requests:
            video = dataset.manifest.videos[request.index]
            grid = dataset.grid(video, request)
            clips.append(read_clip(dataset.manifest.locate(video).uri, video, grid))
        return torch.from_numpy(np.stack(clips))

    return read


@contextmanager
def _folder(path: str | os.PathLike[str] | None) -> Iterator[Path]:
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
