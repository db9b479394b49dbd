"""What prepared videos would gain if only the slices under a clip's crop were decoded.

A test pattern with noise, and the videos of a folder if one is given, are written twice as
``vcycle data prepare`` writes them (all key frames): with one slice a frame, and with several. Both
are then read by the same loop, which cuts the slices outside of the crop's rows out of the packets
of the second. Clips equal those of ``read_clip``, or the program ends. Prints JSON: per video and
shape, CPU milliseconds a clip, the least of five passes, and bytes a frame; and ``scaling_ms``,
what of that goes into cropping, scaling and the conversion to RGB: all that a GPU could take over.

    python benchmarks/slices.py [FOLDER] > docs/results/slices.json
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vcycle.data.decode.container import open_video
from vcycle.data.decode.probe import probe
from vcycle.data.decode.resample import Resampler, keep_freed_memory, mirror
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid, GridRange, draw_grid
from vcycle.data.metadata import Location
from vcycle.schedule.shape import Shape

_SLICES = 8
_MOST_FRAMES = 200
_CLIPS = 60
_PASSES = 5
_PATTERN = "testsrc2=size=456x256:rate=30:duration=6,noise=alls=12:allf=t"
_SLICE_TYPES = (1, 5)  # of a NAL unit
_MACROBLOCK = 16


def main(folders: list[str]) -> None:
    """Measure and print."""
    av.logging.set_level(av.logging.PANIC)  # FFmpeg reports every slice that it was not given
    keep_freed_memory()
    sources = {"pattern": _decode(_PATTERN, format="lavfi")}
    sources |= {Path(folder).name: _frames_under(Path(folder)) for folder in folders}
    rows = [row for name, frames in sources.items() for row in _measure(name, frames)]
    print(json.dumps(rows, indent=1))


def _decode(name: str, *, format: str | None = None) -> Iterator[Any]:
    with av.open(name, format=format) as container:
        yield from container.decode(video=0)


def _frames_under(folder: Path) -> Iterator[Any]:
    """Those of all videos of the first one's size, one after another."""
    size = None
    for path in sorted(folder.rglob("*.*")):
        for frame in _decode(str(path)):
            size = size or (frame.width, frame.height)
            if size == (frame.width, frame.height):
                yield frame


def _measure(name: str, source: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """A row a shape: a coarse one, a finer one, and the target."""
    frames = [frame for frame, _ in zip(source, range(_MOST_FRAMES), strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        whole, sliced = (Location(f"{folder}/{count}.mp4") for count in (1, _SLICES))
        _encode(Path(whole.uri), frames, slices=1)
        _encode(Path(sliced.uri), frames, slices=_SLICES)
        info = probe(whole)
        stored = list(_decode(whole.uri))
        side = min(info.height, info.width)
        target = Shape(32, side * 7 // 8, side * 7 // 8)  # 224 of 256
        grid_range = GridRange(target, stride=2, short_side=(side, side * 340 / 256))
        for frames_share, share in ((4, 2**-1), (2, 2**-0.5), (1, 1.0)):
            pixels = round(target.height * share)
            shape = Shape(target.frames // frames_share, pixels, pixels)
            rng = np.random.default_rng(0)
            grids = [draw_grid(info, shape, grid_range, rng=rng, flip=True) for _ in range(_CLIPS)]
            for grid in grids:
                if not np.array_equal(_read(sliced, grid, cut=True), read_clip(sliced, grid)):
                    raise RuntimeError(f"{name}, {grid}: other pixels without the other slices")
            yield {
                "video": name,
                "size": f"{info.width}x{info.height}",
                "shape": str(shape),
                "whole_ms": min(_milliseconds(whole, grids, cut=False) for _ in range(_PASSES)),
                "sliced_ms": min(_milliseconds(sliced, grids, cut=True) for _ in range(_PASSES)),
                "scaling_ms": min(_scaling_milliseconds(stored, grids) for _ in range(_PASSES)),
                "whole_bytes": Path(whole.uri).stat().st_size / info.num_frames,
                "sliced_bytes": Path(sliced.uri).stat().st_size / info.num_frames,
            }


def _encode(path: Path, frames: Iterable[Any], *, slices: int) -> None:
    """As ``encode_video_frames`` does for prepared videos, with so many slices a frame."""
    with av.open(str(path), "w", format="mp4") as container:
        x264 = f"keyint=1:scenecut=0:bframes=0:slices={slices}"
        options = {"preset": "veryfast", "tune": "fastdecode", "crf": "23", "threads": "1"}
        stream: Any = container.add_stream(
            "libx264", rate=Fraction(30), options={**options, "x264-params": x264}
        )
        for count, frame in enumerate(frames):
            if not count:
                stream.width, stream.height = frame.width // 2 * 2, frame.height // 2 * 2
                stream.pix_fmt = "yuv420p"
            planar = frame.reformat(stream.width, stream.height, "yuv420p")
            planar.pts, planar.time_base, planar.pict_type = count, Fraction(1, 30), 0
            container.mux(stream.encode(planar))
        container.mux(stream.encode(None))


def _milliseconds(place: Location, grids: list[Grid], *, cut: bool) -> float:
    """CPU time a clip."""
    began = time.process_time()
    for grid in grids:
        _read(place, grid, cut=cut)
    return 1000 * (time.process_time() - began) / len(grids)


def _scaling_milliseconds(frames: list[Any], grids: list[Grid]) -> float:
    """CPU time a clip of frames that are decoded already."""
    began = time.process_time()
    for grid in grids:
        resample, clip = Resampler(grid), np.empty(grid.clip_shape, np.uint8)
        for place, number in enumerate(grid.frames):
            clip[place] = resample(frames[number])
    return 1000 * (time.process_time() - began) / len(grids)


def _read(place: Location, grid: Grid, *, cut: bool) -> NDArray[np.uint8]:
    """A clip of a video whose frames are all key frames, at a constant rate."""
    clip = np.empty(grid.clip_shape, np.uint8)
    resample, done = Resampler(grid), 0
    with open_video(place, all_key_frames=True) as (container, stream):
        context = stream.codec_context
        if cut:  # leave what is missing as it is
            context.options = {"enable_er": "0"}
        tick = int(1 / (stream.time_base * stream.average_rate))
        wanted = Counter(number * tick for number in grid.frames)
        container.seek(grid.frames[0] * tick, stream=stream)
        packets = (packet for packet in container.demux(stream) if packet.pts in wanted)
        for packet, _ in zip(packets, wanted, strict=False):
            small: Any = packet
            if cut:
                small = av.Packet(_slices_of(bytes(packet), grid.box, context.width))
                small.pts, small.dts = packet.pts, packet.dts
            for frame in context.decode(small):
                clip[done : done + wanted[frame.pts]] = resample(frame)
                done += wanted[frame.pts]
        for frame in context.decode(None):
            clip[done : done + wanted[frame.pts]] = resample(frame)
            done += wanted[frame.pts]
    if grid.flip:
        mirror(clip)
    return clip


def _slices_of(packet: bytes, box: Box, width: int) -> bytes:
    """The slices of a packet, NAL units after their lengths, that hold rows of a box."""
    first = (box.top & ~1) // _MACROBLOCK  # chroma is cut at even rows
    last = (box.top + box.height) // _MACROBLOCK
    across = -(-width // _MACROBLOCK)
    units = []  # begin and first row of each slice
    begin = 0
    while begin < len(packet):
        if packet[begin + 4] & 31 in _SLICE_TYPES:
            units.append((begin, _first_macroblock(packet, begin + 5) // across))
        begin += 4 + int.from_bytes(packet[begin : begin + 4], "big")
    ends = [row for _, row in units[1:]] + [last + 1]
    held = [k for k, (_, row) in enumerate(units) if row <= last and ends[k] > first]
    stops = [start for start, _ in units[1:]] + [len(packet)]
    return packet[units[held[0]][0] : stops[held[-1]]]


def _first_macroblock(packet: bytes, at: int) -> int:
    """The number that a slice header opens with, in Exp-Golomb code."""
    bits = int.from_bytes(packet[at : at + 6], "big")
    zeros = 48 - bits.bit_length()
    return (bits >> (48 - 2 * zeros - 1)) - 1


if __name__ == "__main__":
    main(sys.argv[1:])
