"""torchcodec and PyAV give the same frames; most is skipped if torchcodec cannot be loaded."""

from __future__ import annotations

import dataclasses
import struct
import sys
import types

import av
import fsspec
import numpy as np
import pytest
import torch

from tests.encode import (
    KINDS,
    encode,
    frame_number,
    moving_noise,
    numbered_frames,
    rotate_display,
)
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.probe import probe
from vcycle.data.decode.torchcodec import check_decoder, read_clip_torchcodec
from vcycle.data.decode.video import display_positions, read_clip
from vcycle.data.grid import Box, Grid, GridRange, View
from vcycle.data.loaders import eval_loader
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo, Video
from vcycle.data.request import ClipRequest
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


def _is_loadable():
    try:
        from torchcodec.decoders import VideoDecoder

        VideoDecoder(b"")  # FFmpeg is looked for when it is first needed
    except (ImportError, OSError):
        return False
    except Exception as error:
        return "libtorchcodec" not in str(error)
    return True


LOADABLE = _is_loadable()
needs_torchcodec = pytest.mark.skipif(not LOADABLE, reason="torchcodec cannot be loaded")
needs_nvdec = pytest.mark.skipif(
    not (LOADABLE and torch.cuda.is_available()), reason="needs torchcodec and a GPU"
)
DEVICES = [
    pytest.param("cpu", marks=needs_torchcodec),
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            needs_nvdec,
        ],
    ),
]


def read_by_torchcodec(path, grid, *, device="cpu", **options):
    place = path if isinstance(path, Location) else Location(str(path))
    out = torch.zeros(grid.clip_shape, dtype=torch.uint8, device=device)
    read_clip_torchcodec(place, grid, out=out, **options)
    return out.cpu().numpy()


@pytest.fixture
def no_pyav(monkeypatch):
    """What torchcodec cannot read fails, instead of being left to PyAV."""

    def refuse(*_, **__):
        raise AssertionError("left to PyAV")

    monkeypatch.setattr("vcycle.data.decode.torchcodec.read_clip", refuse)


def same(ours, theirs):
    return np.abs(ours.astype(int) - theirs).mean() < 2.5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("frames", [(0, 1, 2), (5, 13, 21, 29), (38, 39, 44)])
@pytest.mark.parametrize("flip", [False, True])
def test_the_same_frames_and_pixels(tmp_path, no_pyav, device, suffix, frames, flip):
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40, 128, 192), options={"bf": "2"})
    grid = Grid(frames, Box(16, 32, 96, 120), 32, 40, flip)
    theirs = read_by_torchcodec(path, grid, device=device)
    if not flip:
        assert [frame_number(frame, 40) for frame in theirs] == [min(f, 39) for f in frames]
    assert same(read_clip(Location(str(path)), grid), theirs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_of_every_kind_of_file(tmp_path, device, kind):
    """Whether torchcodec finds it or leaves it to PyAV: the frame and not one of its neighbours."""
    suffix, codec, options = KINDS[kind]
    if codec not in av.codec.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = tmp_path / f"v.{suffix}"
    encode(path, moving_noise(60), codec=codec, gop=13, rate=25, options=options)
    for start in (0, 5, 31):
        grid = Grid(tuple(range(start, 60, 3)), Box(0, 0, 64, 96), 64, 96, False)
        ours = read_clip(Location(str(path)), grid).astype(int)
        theirs = read_by_torchcodec(path, grid, device=device)
        apart = np.abs(ours[:, None] - theirs[None]).mean(axis=(2, 3, 4))  # (T ours, T theirs)
        assert apart.diagonal().max() < (6 if device == "cpu" else 8)  # MPEG-4's errors add up
        assert (apart.argmin(axis=1) == range(len(grid.frames))).all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("start", [0.0, 2.5])
@pytest.mark.parametrize("suffix", ["mkv", "mp4"])
def test_a_variable_frame_rate(tmp_path, request, device, start, suffix):
    """Frames are found by their times, also if the first one's is not 0; on a GPU by PyAV."""
    if device == "cpu":
        request.getfixturevalue("no_pyav")
    times = [0.1 * k for k in range(20)] + [3 + 0.05 * k for k in range(20)]
    times = [start + time for time in times]
    path = encode(tmp_path / f"v.{suffix}", numbered_frames(40), times=times)
    place = Location(str(path))
    rate = probe(place).frame_rate
    frames = range(0, int((times[-1] - start) * rate), 2)
    grid = Grid(tuple(frames), Box(0, 0, 64, 96), 64, 96, False)
    shown = [frame_number(p, 40) for p in read_by_torchcodec(path, grid, device=device)]
    # The last frame that begins no later than half an interval after the number's own time.
    seconds = [start + (k + 0.5) / rate for k in frames]
    assert shown == [sum(time <= each for time in times) - 1 for each in seconds]
    assert shown == [frame_number(frame, 40) for frame in read_clip(place, grid)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_rotated_video_is_read_as_displayed(tmp_path, no_pyav, device, turns):
    path = encode(tmp_path / "v.mp4", numbered_frames(8, 128, 192))
    rotate_display(path, turns)
    grid = Grid((1, 6), Box(20, 8, 80, 100), 30, 20, False)
    ours = read_clip(Location(str(path)), grid)
    assert same(ours, read_by_torchcodec(path, grid, device=device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turns", [0, 1])
def test_a_mirrored_video_is_read_as_displayed(tmp_path, device, turns):
    path = encode(tmp_path / "v.mp4", numbered_frames(8, 128, 192))
    rotate_display(path, turns, mirrored=True)
    grid = Grid((1, 6), Box(20, 8, 80, 100), 30, 20, False)
    ours = read_clip(Location(str(path)), grid)
    assert same(ours, read_by_torchcodec(path, grid, device=device))


@pytest.mark.parametrize("kind", ["plain", "yuvj", "trimmed", "full range", "mirrored"])
def test_frames_that_other_decoders_would_show_differently_have_no_positions(tmp_path, kind):
    codec, options = "libx264", {}
    if kind == "full range":
        codec, options = "libvpx-vp9", {"color_range": "pc"}
    path, pix_fmt = tmp_path / "v.mp4", "yuvj420p" if kind == "yuvj" else "yuv420p"
    encode(path, numbered_frames(8), codec=codec, pix_fmt=pix_fmt, options=options)
    if kind == "mirrored":
        rotate_display(path, 2, mirrored=True)
    if kind == "trimmed":  # to begin a frame later: the first packet's is not shown
        content = bytearray(path.read_bytes())
        place = content.index(b"elst") + 16
        (start,) = struct.unpack_from(">i", content, place)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            start += round(1 / stream.average_rate / stream.time_base)
        struct.pack_into(">i", content, place, start)
        path.write_bytes(content)
    expected = [] if kind in ("full range", "mirrored") else [0, 6]
    for _ in range(2):  # what is known of a file is remembered
        positions = display_positions(Location(str(path)), (0, 6), source=str(path))
        assert [position for position, _ in positions] == expected


@pytest.mark.parametrize("device", DEVICES)
def test_a_part_of_a_file_and_a_remote_file(tmp_path, no_pyav, device):
    content = encode(tmp_path / "v.mp4", numbered_frames(40)).read_bytes()
    (tmp_path / "shard.tar").write_bytes(b"x" * 700 + content + b"y" * 900)
    remote = fsspec.filesystem("memory")
    remote.pipe("/torchcodec/shard.tar", (tmp_path / "shard.tar").read_bytes())
    grid = Grid((3, 20), Box(0, 0, 64, 96), 64, 96, False)
    expected = read_by_torchcodec(tmp_path / "v.mp4", grid, device=device)
    assert [frame_number(frame, 40) for frame in expected] == [3, 20]
    for uri in (str(tmp_path / "shard.tar"), "memory://torchcodec/shard.tar"):
        place = Location(uri, 700, len(content))
        assert np.array_equal(read_by_torchcodec(place, grid, device=device), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_what_torchcodec_cannot_read_is_read_by_pyav(tmp_path, device):
    folder = tmp_path / "frames"
    folder.mkdir()
    for k, rgb in enumerate(numbered_frames(8)):
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(folder / f"{k:06d}.jpg"))
    whole = encode(tmp_path / "whole.mkv", numbered_frames(60), gop=10).read_bytes()
    truncated = tmp_path / "truncated.mkv"
    truncated.write_bytes(whole[: len(whole) // 2])
    avi = encode(tmp_path / "v.avi", numbered_frames(30), codec="mpeg4", options={"bf": "2"})
    for path in (folder, truncated, avi):
        grid = Grid((0, 2, 7, 25, 40, 59), Box(0, 0, 64, 96), 32, 48, False)
        ours = read_clip(Location(str(path)), grid)
        assert same(ours, read_by_torchcodec(path, grid, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_no_video_is_refused(tmp_path, device):
    (tmp_path / "text.mp4").write_text("no video")
    grid = Grid((0,), Box(0, 0, 8, 8), 8, 8, False)
    for path in (tmp_path / "text.mp4", tmp_path / "nowhere.mp4", Location("memory://nowhere")):
        with pytest.raises(UnreadableVideo) as caught:
            read_by_torchcodec(path, grid, device=device)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", DEVICES)
def test_a_slow_decode_is_ended(tmp_path, device):
    path = encode(tmp_path / "v.mp4", numbered_frames(40))
    grid = Grid((30,), Box(0, 0, 64, 96), 64, 96, False)
    with pytest.raises(UnreadableVideo, match="longer than"):
        read_by_torchcodec(path, grid, device=device, limit_seconds=0)


@pytest.fixture
def manifest(tmp_path):
    path = encode(tmp_path / "v.mp4", numbered_frames(40))
    facts = dataclasses.asdict(probe(Location(str(path))))
    clip = Video(path="v.mp4", labels=(0,), split="train", **facts)
    return Manifest(tmp_path, ("any",), (clip,) * 6)


@needs_torchcodec
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_can_use_it(manifest, num_workers):
    batches = [
        next(
            iter(
                eval_loader(
                    ClipDataset(manifest, RANGE, decoder=decoder),
                    RANGE.base,
                    batch_size=6,
                    num_workers=num_workers,
                )
            )
        )
        for decoder in ("pyav", "torchcodec")
    ]
    assert same(*(batch.clips.numpy() for batch in batches))


@pytest.mark.gpu
@needs_nvdec
@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_nvdec_gives_the_clips_of_pyav_on_the_gpu(manifest, num_workers):
    """In inference mode, as validation reads them, in a ring of memory that is used many times."""
    options = {"batch_size": 2, "num_clips": 20, "prefetch_bytes": 1}
    pyav = eval_loader(ClipDataset(manifest, RANGE), RANGE.base, num_workers=0, **options)
    nvdec = eval_loader(
        ClipDataset(manifest, RANGE, decoder="nvdec"),
        RANGE.base,
        num_workers=num_workers,
        device="cuda",
        **options,
    )
    with torch.inference_mode():
        for ours, theirs in zip(pyav, nvdec, strict=True):
            assert theirs.clips.is_cuda
            assert theirs.to("cuda").clips is theirs.clips
            assert same(ours.clips.numpy(), theirs.clips.cpu().numpy())
            assert torch.equal(ours.labels, theirs.labels)
    nvdec.close()
    request = ClipRequest(0, RANGE.base, 0, View())
    assert nvdec.dataset[request].pixels.is_cuda


def test_a_decoder_that_is_not_there_is_refused_in_one_line(manifest, monkeypatch):
    cpu = torch.device("cpu")
    check_decoder("pyav", cpu)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    with pytest.raises(ValueError, match=r"'torchcodec': does not work here.*install .*'pyav'"):
        eval_loader(
            ClipDataset(manifest, RANGE, decoder="torchcodec"),
            RANGE.base,
            batch_size=1,
            num_workers=1,
        )
    old = types.ModuleType("torchcodec")
    old.__version__ = "0.9.1+cu126"
    monkeypatch.setitem(sys.modules, "torchcodec", old)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", types.SimpleNamespace(VideoDecoder=0))
    with pytest.raises(ValueError, match=r"torchcodec is 0\.9\.1.*install torchcodec 0\.11"):
        check_decoder("torchcodec", cpu)
    with pytest.raises(ValueError, match=r"torchcodec is 0\.9\.1.*install torchcodec 0\.17"):
        check_decoder("nvdec", torch.device("cuda"))
    for decoder, device in (("nvdec", "cpu"), ("pyav", "cuda"), ("torchcodec", "cuda")):
        with pytest.raises(ValueError, match=f"'{decoder}' on {device}: give 'nvdec' on a CUDA"):
            check_decoder(decoder, torch.device(device))


def test_a_gpu_that_does_not_decode_is_refused(monkeypatch):
    class OnTheCpuInstead:
        cpu_fallback = "Falling back due to: NVcuvid unavailable"

        def __init__(self, source, device):
            self.source = source

        def get_frame_at(self, number):
            assert probe(Location(self.source)).num_frames == 1

    module = types.ModuleType("torchcodec")
    module.__version__ = "0.17.0"
    decoders = types.SimpleNamespace(VideoDecoder=OnTheCpuInstead)
    monkeypatch.setitem(sys.modules, "torchcodec", module)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    with pytest.raises(ValueError, match=r"NVcuvid unavailable.*CAPABILITIES=compute,video"):
        check_decoder("nvdec", torch.device("cuda"))
    monkeypatch.setattr(OnTheCpuInstead, "cpu_fallback", "")
    check_decoder("nvdec", torch.device("cuda"))


@pytest.mark.parametrize(("suffix", "rate"), [("mp4", 30), ("mkv", 30), ("mkv", 120)])
def test_times_of_a_constant_rate_are_even_though_rounded(tmp_path, suffix, rate):
    path = str(encode(tmp_path / f"v.{suffix}", numbered_frames(40), rate=rate))
    place = Location(path)
    positions = display_positions(place, (0, 7, 39), source=path, evenly_spaced=True)
    assert [position for position, _ in positions] == [0, 7, 39]


def test_times_of_a_varying_rate_are_not_even(tmp_path):
    times = [0.04 * k for k in range(20)] + [0.8 + 0.05 * k for k in range(20)]
    path = str(encode(tmp_path / "v.mkv", numbered_frames(40), times=times))
    assert display_positions(Location(path), (0, 7), source=path)
    assert not display_positions(Location(path), (0, 7), source=path, evenly_spaced=True)


@pytest.mark.parametrize("fails", ["opening", "decoding", "resampling"])
def test_what_the_library_cannot_do_is_pyavs_and_mistakes_of_ours_are_told(
    tmp_path, monkeypatch, fails
):
    path = encode(tmp_path / "v.mp4", numbered_frames(8, 128, 192))
    grid = Grid((1, 6), Box(20, 8, 80, 100), 30, 20, False)
    places = dict(display_positions(Location(str(path)), grid.frames, source=str(path)))

    class Decoder:
        cpu_fallback = False

        def __init__(self, *_, **__):
            if fails == "opening":
                raise RuntimeError("this codec is none of ours")

        def get_frame_at(self, position):
            if fails == "decoding":
                raise ValueError("a packet is missing")
            shape = (128, 192, 3)
            return types.SimpleNamespace(
                pts_seconds=places[position], data=torch.zeros(shape, dtype=torch.uint8)
            )

    def mistaken(*_):
        raise AttributeError("a mistake of ours")

    decoders = types.SimpleNamespace(VideoDecoder=Decoder)
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    monkeypatch.setattr("vcycle.data.decode.torchcodec.crop_and_scale", mistaken)
    out = torch.empty(grid.clip_shape, dtype=torch.uint8)
    if fails == "resampling":
        with pytest.raises(AttributeError, match="a mistake of ours"):
            read_clip_torchcodec(Location(str(path)), grid, out=out)
    else:
        read_clip_torchcodec(Location(str(path)), grid, out=out)
        assert same(out.numpy(), read_clip(Location(str(path)), grid))
