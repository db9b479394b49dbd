"""Files as people have them: odd ones decode, broken ones are refused in one line, none kills."""

from __future__ import annotations

import contextlib
import os
import resource
import struct
import wave
import zlib
from fractions import Fraction
from pathlib import Path

import av
import fsspec
import numpy as np
import pytest

from tests.encode import encode, frame_number, numbered_frames
from vcycle.data.decode.encode import encode_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid, GridRange, View, view_grid
from vcycle.data.metadata import Location, UnreadableVideo
from vcycle.schedule.shape import Shape

RANGE = GridRange(Shape(4, 32, 32), 2, (37, 49))


def clip_of(path, shape=Shape(4, 32, 32)):
    """The middle view, by the file's own probe, as evaluation would read it."""
    place = Location(str(path))
    info = probe(place)
    return read_clip(place, view_grid(info, shape, RANGE, view=View()), limit_seconds=300)


def noise(num_frames, height, width):
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (num_frames, height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (2, 2), (33, 47), (17, 4096), (4096, 16), (1, 300), (9, 5)]
)
def test_odd_sizes(tmp_path, height, width):
    """FFV1 in Matroska stores any size; x264 wants even ones."""
    frames = noise(3, height, width)
    path = encode(tmp_path / "v.mkv", frames, codec="ffv1", pix_fmt="bgr0")
    info = probe(Location(str(path)))
    assert (info.height, info.width) == (height, width)
    assert clip_of(path).shape == (4, 32, 32, 3)
    path = encode(tmp_path / "y.mkv", frames, codec="ffv1", pix_fmt="yuv420p")
    clip = clip_of(path, Shape(2, 7, 9))
    assert clip.shape == (2, 7, 9, 3)
    assert clip.std() > 0 or height * width < 10


@pytest.mark.parametrize(
    ("codec", "pix_fmt", "suffix"),
    [
        ("libx264", "yuv420p10le", "mp4"),
        ("libx264", "yuv422p", "mp4"),
        ("libx264", "yuv444p", "mp4"),
        ("libx264", "gray", "mp4"),
        ("libx264", "nv12", "mp4"),
        ("libx264", "yuvj420p", "mp4"),
        ("ffv1", "gray", "mkv"),
        ("ffv1", "gray16le", "mkv"),
        ("ffv1", "yuva420p", "mkv"),
        ("ffv1", "bgra", "mkv"),
        ("qtrle", "argb", "mov"),
        ("png", "rgba", "mov"),
        ("mjpeg", "yuvj422p", "avi"),
        ("libvpx-vp9", "yuv420p", "webm"),
        ("libvpx-vp9", "yuva420p", "webm"),
        ("libx265", "yuv420p10le", "mp4"),
        ("mpeg4", "yuv420p", "avi"),
        ("gif", "bgr8", "gif"),
        ("rawvideo", "rgb24", "avi"),
        ("prores", "yuv422p10le", "mov"),
    ],
)
def test_codecs_and_pixel_formats(tmp_path, codec, pix_fmt, suffix):
    """Ten bits, grey, alpha, palette: the same frame comes out, in time."""
    if codec not in av.codec.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = encode(
        tmp_path / f"v.{suffix}", numbered_frames(20), codec=codec, pix_fmt=pix_fmt, gop=5
    )
    place = Location(str(path))
    info = probe(place)
    assert (info.width, info.height) == (96, 64)
    assert info.num_frames == pytest.approx(20, abs=2)
    clip = read_clip(place, Grid((0, 9, 13), Box(8, 8, 48, 80), 24, 40, False))
    shown = [frame_number(frame, 20) for frame in clip]
    assert shown == pytest.approx([0, 9, 13], abs=2 if suffix == "gif" or "gray" in pix_fmt else 0)
    colours = clip.astype(int)
    if "gray" not in pix_fmt and codec != "gif":
        assert colours[0, :5, :5, 1].mean() > 180  # the bright corner is green
        assert colours[0, :5, :5, 0].mean() < 100


def test_a_huge_frame(tmp_path):
    frames = np.zeros((1, 4320, 7680, 3), np.uint8)
    path = encode(tmp_path / "v.mp4", frames, options={"crf": "40", "preset": "ultrafast"})
    assert clip_of(path).shape == (4, 32, 32, 3)


def refused(path, reason):
    """Probing or reading names the file and the reason in one line."""
    grid = Grid((0, 2), Box(0, 0, 32, 32), 16, 16, False)
    for read in (lambda: probe(Location(str(path))), lambda: read_clip(Location(str(path)), grid)):
        with pytest.raises(UnreadableVideo, match=reason) as caught:
            read()
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_is_not_a_readable_file(tmp_path):
    refused(tmp_path / "nowhere.mp4", "not found")
    (tmp_path / "dangling.mp4").symlink_to(tmp_path / "gone.mp4")
    refused(tmp_path / "dangling.mp4", "not a file")
    os.mkfifo(tmp_path / "fifo.mp4")
    refused(tmp_path / "fifo.mp4", "not a file")
    refused("/dev/zero", "not a file")
    (tmp_path / "empty.mp4").touch()
    refused(tmp_path / "empty.mp4", "Invalid data|End of file")
    for name, content in (("text.mp4", b"hello\n" * 500), ("zeros.mp4", bytes(5000))):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, "Invalid data|no video|no frame")
    if os.geteuid() != 0:
        (tmp_path / "secret.mp4").write_bytes(b"x")
        (tmp_path / "secret.mp4").chmod(0)
        refused(tmp_path / "secret.mp4", "Permission")


def test_a_list_of_videos_is_no_video_and_opens_none(tmp_path):
    os.mkfifo(tmp_path / "fifo.ts")  # to open it would wait for ever
    lists = {
        "a.mp4": b"ffconcat version 1.0\nfile fifo.ts\n",
        "c.sdp": b"v=0\ns=a\nc=IN IP4 127.0.0.1\nm=video 9 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
        "b.m3u8": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfifo.ts\n#EXT-X-ENDLIST\n",
    }
    for name, content in lists.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, "not a video: a list of other files, or damaged")
        (tmp_path / "part.tar").write_bytes(bytes(99) + content)
        part = Location(str(tmp_path / "part.tar"), 99, len(content))
        with pytest.raises(UnreadableVideo, match=r"a list of other files|Invalid data"):
            probe(part)


def test_names_that_look_like_something_else(tmp_path):
    for name in ("http:a.mp4", "a,b;c.mp4", "-i.mp4", "ä ö%20.mp4", "subfile,,start,0.mp4"):
        path = encode(tmp_path / name, numbered_frames(4))
        assert clip_of(path).shape == (4, 32, 32, 3)


def test_sound_without_video(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(16000))
    refused(tmp_path / "a.wav", "no video stream")


def test_a_video_without_frames(tmp_path):
    with av.open(str(tmp_path / "v.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        container.start_encoding()
    refused(tmp_path / "v.mkv", "no frame decodes|Invalid data|no video|End of file")


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    return encode(tmp_path_factory.mktemp("v") / "v.mkv", numbered_frames(60), gop=10)


def test_a_truncated_video_has_the_frames_that_are_there(video, tmp_path):
    """Matroska needs no index: what is there is used, though the header promises more."""
    content = video.read_bytes()
    path = tmp_path / "half.mkv"
    path.write_bytes(content[: len(content) // 2])
    info = probe(Location(str(path)))
    with av.open(str(path)) as container:
        num_packets = sum(1 for packet in container.demux(video=0) if packet.size)
    assert num_packets - 3 <= info.num_frames <= num_packets + 3 < 45  # but for reordering
    assert info.duration_seconds == pytest.approx(info.num_frames / 10)
    frames = range(0, 60, 10)
    clip = read_clip(Location(str(path)), Grid(tuple(frames), Box(0, 0, 64, 96), 32, 48, False))
    shown = [frame_number(frame, 60) for frame in clip]
    assert shown[0] == 0
    assert shown == sorted(shown)
    assert shown[-1] < 50
    path.write_bytes(content[:200])
    refused(path, "End of file|Invalid data|Input/output|no video|no frame")


def test_a_truncated_mp4_with_its_index_in_front(tmp_path):
    path = tmp_path / "v.mp4"
    encode_frames(path, numbered_frames(60), frame_rate=10, key_interval=10, quality=20)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    info = probe(Location(str(path)))
    assert 10 < info.num_frames < 50
    last = info.num_frames - 1
    clip = read_clip(Location(str(path)), Grid((0, last), Box(0, 0, 64, 96), 32, 48, False))
    assert [frame_number(frame, 60) for frame in clip] == [0, last]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "flv", "avi"])
def test_a_video_cut_off_anywhere_is_read_up_to_there(tmp_path, suffix):
    """B-frames, and the index in front where there is one."""
    options = {"movflags": "faststart"} if suffix == "mp4" else {}
    whole = encode(
        tmp_path / f"v.{suffix}", numbered_frames(60), rate=25, container_options=options
    )
    content = whole.read_bytes()
    path = tmp_path / f"cut.{suffix}"
    for share in (0.5, 0.62, 0.77, 0.9):
        path.write_bytes(content[: int(share * len(content))])
        info = probe(Location(str(path)))
        assert 10 < info.num_frames < 60
        frames = range(info.num_frames - 6, info.num_frames)
        grid = Grid(tuple(frames), Box(0, 0, 64, 96), 32, 48, False)
        shown = [frame_number(p, 60) for p in read_clip(Location(str(path)), grid)]
        assert all(abs(a - b) <= 3 for a, b in zip(shown, frames, strict=True))  # of a group


def test_a_claimed_duration_is_not_believed(video, tmp_path):
    """An hour in the header of a minute's file: a patched Matroska Duration, in milliseconds."""
    content = video.read_bytes()
    place = content.index(b"\x44\x89\x88") + 3
    path = tmp_path / "long.mkv"
    path.write_bytes(content[:place] + struct.pack(">d", 3.6e15) + content[place + 8 :])
    assert probe(Location(str(path))).num_frames == 60


def test_a_trimmed_video_has_the_frames_that_are_left(tmp_path):
    """By its edit list, as editors and phones trim without encoding again."""
    path = encode(tmp_path / "v.mp4", numbered_frames(40), rate=25, options={"bf": "2"})
    with av.open(str(path)) as container:
        frame = round(1 / (25 * container.streams.video[0].time_base))
    content = bytearray(path.read_bytes())
    place = content.index(b"elst") + 12
    duration, media_time = struct.unpack_from(">ii", content, place)
    struct.pack_into(">ii", content, place, duration - 5 * 40, media_time + 5 * frame)
    path.write_bytes(content)
    assert probe(Location(str(path))).num_frames == 35
    clip = read_clip(Location(str(path)), Grid((0, 20, 34), Box(0, 0, 64, 96), 32, 48, False))
    assert [frame_number(frame, 40) for frame in clip] == [5, 25, 39]


def test_joined_recordings_are_not_endless(tmp_path):
    """Hours lie between the clocks of two transport streams, and no frames."""
    early = encode(tmp_path / "a.ts", numbered_frames(40), rate=25)
    times = [80_000 + k / 25 for k in range(40)]
    late = encode(tmp_path / "b.ts", numbered_frames(40), rate=25, times=times)
    path = tmp_path / "joined.ts"
    path.write_bytes(early.read_bytes() + late.read_bytes())
    assert probe(Location(str(path))).num_frames <= 80


def test_fetched_bytes_open_nothing_else(tmp_path):
    inside = encode(tmp_path / "inside.mp4", numbered_frames(4))
    remote = fsspec.filesystem("memory")
    remote.pipe("/hostile/v.mp4", f"ffconcat version 1.0\nfile 'file:{inside}'\n".encode())
    remote.pipe("/hostile/good.mp4", inside.read_bytes())
    assert probe(Location("memory://hostile/good.mp4")).num_frames == 4
    with pytest.raises(UnreadableVideo):
        probe(Location("memory://hostile/v.mp4"))


def test_a_song_with_a_cover_is_no_video(tmp_path):
    path = tmp_path / "song.mp4"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=8000)
        cover = container.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        container.mux(cover.encode(av.VideoFrame(64, 64, "yuvj420p")))
        container.mux(cover.encode(None))
        for k in range(0, 8000, 1024):
            silence = np.zeros((1, 1024), np.float32)
            frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
            frame.sample_rate, frame.pts = 8000, k
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    refused(path, "no video stream")


def test_a_truncated_mp4_without_its_index_is_refused(tmp_path):
    path = encode(tmp_path / "v.mp4", numbered_frames(30))
    path.write_bytes(path.read_bytes()[:-500])
    refused(path, "Invalid data|End of file|no frame")


def test_a_video_corrupt_in_the_middle(video, tmp_path):
    """Before the damage it decodes; on it, it decodes to something or is refused."""
    content = bytearray(video.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    path = tmp_path / "v.mkv"
    path.write_bytes(content)
    place = Location(str(path))
    start = read_clip(place, Grid((0, 5), Box(0, 0, 64, 96), 32, 48, False))
    assert [frame_number(frame, 60) for frame in start] == [0, 5]
    clip = None
    with contextlib.suppress(UnreadableVideo):
        clip = read_clip(place, Grid(tuple(range(60)), Box(0, 0, 64, 96), 32, 48, False))
    assert clip is None or clip.shape == (60, 32, 48, 3)


def test_what_a_transport_stream_says_is_damaged_is_decoded_all_the_same(tmp_path):
    """By the error bit of every second packet, which a weak signal sets; here nothing is."""
    path = encode(tmp_path / "v.ts", numbered_frames(40))
    content = bytearray(path.read_bytes())
    for start in range(20 * 188, len(content), 2 * 188):
        content[start + 1] |= 0x80
    path.write_bytes(content)
    clip = read_clip(Location(str(path)), Grid(tuple(range(40)), Box(0, 0, 64, 96), 32, 48, False))
    assert [frame_number(frame, 40) for frame in clip] == list(range(40))


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(1000), Fraction(30000, 1001)])
def test_strange_frame_rates(tmp_path, rate):
    path = encode(tmp_path / "v.mp4", numbered_frames(8), rate=rate)
    assert probe(Location(str(path))).frame_rate == pytest.approx(float(rate))
    clip = read_clip(Location(str(path)), Grid((0, 3, 7), Box(0, 0, 64, 96), 32, 48, False))
    assert [frame_number(frame, 8) for frame in clip] == [0, 3, 7]


def test_a_wrong_duration(tmp_path):
    """A manifest that promises ten times the frames: past the end the last frame repeats."""
    path = encode(tmp_path / "v.mp4", numbered_frames(12))
    for frames in ((0, 11, 60, 119), (0, 5, 60, 119), (60, 61, 62, 119)):
        grid = Grid(frames, Box(0, 0, 64, 96), 32, 48, False)
        shown = [frame_number(frame, 12) for frame in read_clip(Location(str(path)), grid)]
        assert shown == [min(frame, 11) for frame in frames]


def test_memory_stays_flat(video):
    """Over 400 clips in this process; by hand, over 20,000."""
    grid = Grid((0, 7, 31), Box(0, 0, 64, 96), 32, 48, True)
    num_clips = int(os.environ.get("VCYCLE_MANY_CLIPS", "400"))
    for _ in range(100 + num_clips // 10):
        read_clip(Location(str(video)), grid)
    before = _resident_bytes()
    for _ in range(num_clips):
        read_clip(Location(str(video)), grid)
    assert _resident_bytes() - before < 4e6


def _resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_a_frame_that_would_fill_the_memory_is_not_decoded(tmp_path):
    """A small file may claim any size."""
    video = tmp_path / "v.mp4"
    frame = struct.pack("<BHHHHBBBBBB", 0x2C, 0, 0, 2, 2, 0, 2, 3, 0x84, 0x8F, 5)
    video.write_bytes(
        b"GIF89a" + struct.pack("<HHBBB", 16000, 16000, 0x80, 0, 0) + bytes(6) + frame + b"\0;"
    )
    with pytest.raises(UnreadableVideo, match=r"16000 x 16000 pixels a frame: larger than 100,000"):
        probe(Location(str(video)))
    png = tmp_path / "frames" / "0.png"
    png.parent.mkdir()
    chunks = (b"IHDR", struct.pack(">IIBBBBB", 16000, 16000, 1, 0, 0, 0, 0)), (b"IEND", b"")
    rows = (b"IDAT", zlib.compress(bytes(2001) * 16000, 1))
    png.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, (chunks[0], rows, chunks[1]))))
    with pytest.raises(UnreadableVideo, match=r"'0\.png': no pixels, or larger than 100,000,000"):
        probe(Location(str(png.parent)))


def _chunk(named):
    name, content = named
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum
