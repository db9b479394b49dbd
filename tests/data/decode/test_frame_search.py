"""Skipping, seeking and jumping change no pixel: every clip equals one cut from a plain decode.

The plain decode knows nothing of ours: it takes all frames in order, and number k is the last of
them that begins no later than half a frame after the number's time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from tests.encode import KINDS, encode, moving_noise
from vcycle.data.decode.clock import StreamClock
from vcycle.data.decode.frame_search import MissedFrame, intact_packets, wanted_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.resample import Resampler
from vcycle.data.decode.video import iterate_frames, read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location

SHARED = Path(__file__).parents[4] / "shared" / "videos"


@pytest.mark.parametrize("kind", KINDS)
def test_clips_equal_a_full_decode(tmp_path, kind):
    suffix, codec, options = KINDS[kind]
    if codec not in av.codec.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = tmp_path / f"v.{suffix}"
    encode(path, moving_noise(80), codec=codec, gop=13, rate=25, options=options)
    check(Location(str(path)), num_grids=40)


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("b_frames", [0, 3])
@pytest.mark.parametrize(
    "gaps",
    [(0.02, 0.04, 0.2), (0.033, 0.034, 0.033, 0.034, 0.1), (0.08,), (0.2,)],
)
def test_a_variable_frame_rate(tmp_path, suffix, b_frames, gaps):
    times = np.cumsum(np.random.default_rng(3).choice(gaps, 80)).round(3)
    path = tmp_path / f"v.{suffix}"
    options = {"bf": str(b_frames)}
    encode(path, moving_noise(80), gop=13, rate=25, options=options, times=list(times))
    check(Location(str(path)), num_grids=40)


def test_a_piece_cut_out_by_an_edit_list(tmp_path):
    """Two edits, of frames 0 to 9 and 20 to 79: of those between none is ever seen."""
    path = encode(tmp_path / "v.mp4", moving_noise(80), gop=13, rate=25, options={"bf": "2"})
    with av.open(str(path)) as container:
        frame = round(1 / (25 * container.streams.video[0].time_base))
    content = bytearray(path.read_bytes())
    edits = content.index(b"elst") + 4
    media_time = struct.unpack_from(">i", content, edits + 12)[0]
    first = struct.pack(">iii", 10 * 40, media_time, 1 << 16)
    second = struct.pack(">iii", 60 * 40, media_time + 20 * frame, 1 << 16)
    content[edits : edits + 20] = content[edits : edits + 4] + struct.pack(">i", 2) + first + second
    for box in (b"moov", b"trak", b"edts", b"elst"):
        place = content.index(box) - 4
        size = struct.unpack_from(">I", content, place)[0]
        struct.pack_into(">I", content, place, size + len(second))
    path.write_bytes(content)
    check(Location(str(path)), num_grids=40)


@pytest.mark.parametrize("keyint", [12, 30, 60])
def test_frames_far_apart_of_a_stream_that_refreshes_bit_by_bit(tmp_path, keyint):
    """Its key frames are points to start recovering from; jumps and seeks land on them."""
    texture = np.random.default_rng(0).integers(0, 255, (96, 160, 3)).astype(np.uint8)
    frames = np.stack([np.roll(texture, 3 * k, 1) for k in range(200)])
    params = f"keyint={keyint}:bframes=0:intra-refresh=1:scenecut=0"
    options = {"crf": "23", "preset": "veryfast", "x264-params": params}
    path = encode(tmp_path / "v.mp4", frames, gop=keyint, rate=30, options=options)
    place = Location(str(path))
    info = probe(place)
    box = Box(0, 0, info.height, info.width)
    plain = plain_decode(place, info, Resampler(Grid((0,), box, 32, 48, False)))
    for start in range(0, 192, 9):
        for stride in (1, 4, 16):
            numbers = tuple(min(start + k * stride, 199) for k in range(6))
            clip = read_clip(place, Grid(numbers, box, 32, 48, False))
            for number, frame in zip(numbers, clip, strict=True):
                assert np.array_equal(frame, plain[number]), f"frame {number} of {numbers}"


def test_a_jump_that_lands_past_the_wanted_frame_is_noticed():
    """The key frame 10 is only a point to start recovering from: frame 14 comes out first."""

    class Recovering:
        """A decoder: every frame of a fresh one, and from the fourth on after a flush."""

        name, reorder_depth, skip_frame, lost = "recovering", 0, "", 0

        def flush_buffers(self):
            self.lost = 4

        def decode(self, packet):
            if packet is None or self.lost:
                self.lost -= packet is not None
                return []
            return [SimpleNamespace(pts=packet.pts)]

    packet = SimpleNamespace(size=1, is_corrupt=False, is_discard=False)
    packets = [
        SimpleNamespace(**vars(packet), pts=k, dts=k, is_keyframe=k % 10 == 0) for k in range(16)
    ]
    container = SimpleNamespace(
        format=SimpleNamespace(name="mp4"), demux=lambda stream: iter(packets)
    )
    stream = SimpleNamespace(codec_context=Recovering())
    frames = wanted_frames(container, stream, StreamClock(0, Fraction(1)), (0, 12, 14), skip=True)
    with pytest.raises(MissedFrame):
        list(frames)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared videos")
@pytest.mark.parametrize("name", ["nasa_13013.mp4", "flipping_a_pancake.mkv"])
def test_clips_of_real_videos_equal_a_full_decode(name):
    check(Location(str(SHARED / name)), num_grids=12)


def check(place, *, num_grids):
    info = probe(place)
    box = Box(4, 6, info.height - 9, info.width - 11)
    plain = plain_decode(place, info, Resampler(Grid((0,), box, 32, 48, False)))
    in_order = list(iterate_frames(place, info))
    assert len(in_order) == info.num_frames
    resample = Resampler(Grid((0,), box, 32, 48, False))
    for number, frame in enumerate(in_order):
        assert np.array_equal(resample(frame), plain[number]), f"frame {number}"
    rng = np.random.default_rng(1)
    for _ in range(num_grids):
        stride = int(rng.integers(1, 17))
        start = int(rng.integers(len(plain)))
        numbers = tuple(min(start + i * stride, len(plain) - 1) for i in range(5))
        clip = read_clip(place, Grid(numbers, box, 32, 48, False))
        for number, frame in zip(numbers, clip, strict=True):
            assert np.array_equal(frame, plain[number]), f"frame {number} of {numbers}"


def plain_decode(place, info, resample):
    """The frame of every number, by its time; in file order if the container has no times."""
    with av.open(place.uri) as container:
        stream = container.streams.best("video")
        stream.codec_context.thread_type = "NONE"
        start = (stream.start_time or 0) * stream.time_base
        decoded = [(frame.pts, resample(frame).copy()) for frame in container.decode(stream)]
        interval = 1 / stream.average_rate
        by_number = container.format.name in ("mpeg", "avi")
        begins = [
            start + n * interval if by_number else pts * stream.time_base
            for n, (pts, _) in enumerate(decoded)
        ]
    until = [start + (number + Fraction(1, 2)) * interval for number in range(info.num_frames)]
    shown = [max(sum(b <= time for b in begins) - 1, 0) for time in until]
    return [decoded[n][1] for n in shown]


def test_packets_end_where_pyav_does_not_know_a_stream_that_began_later() -> None:
    packets = [SimpleNamespace(size=size, is_corrupt=False) for size in (3, 0, 5)]

    def demux(_: object) -> Iterator[Any]:
        yield from packets
        raise IndexError("list index out of range")

    container = SimpleNamespace(format=SimpleNamespace(name="mpegts"), demux=demux)
    assert [packet.size for packet in intact_packets(container, None)] == [3, 5]
