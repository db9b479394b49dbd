"""A folder of images is a video: the same frames, the same pixels."""

from __future__ import annotations

import os

import av
import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from tests.encode import encode, frame_number, numbered_frames
from vcycle.data.decode.frame_folder import probe_frames, read_frames
from vcycle.data.decode.video import iterate_frames, read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import IMAGE_SUFFIXES, Location, UnreadableVideo


@pytest.fixture(scope="module")
def frames():
    return numbered_frames(20)


@pytest.fixture(scope="module", params=["jpg", "png"])
def folder(request, tmp_path_factory, frames):
    path = tmp_path_factory.mktemp(request.param)
    for k, rgb in enumerate(frames):
        name = f"frame_{k + 1:06d}.{request.param}"
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(path / name))
    return path


def test_the_frames_asked_for_come_out(folder):
    grid = Grid((0, 3, 3, 19, 30), Box(0, 0, 64, 96), 64, 96, False)
    for clip in (read_frames(str(folder), grid), read_clip(Location(str(folder)), grid)):
        assert [frame_number(frame, 20) for frame in clip] == [0, 3, 3, 19, 19]


def test_hidden_images_are_none_of_a_video(frames, tmp_path):
    """As an archive of macOS adds one beside each, which does not decode."""
    av.VideoFrame.from_ndarray(frames[0], format="rgb24").save(str(tmp_path / "frame_1.png"))
    for name in ("._frame_1.png", ".jpg"):
        (tmp_path / name).write_bytes(b"\0\5\x16\7")
    assert probe_frames(str(tmp_path), frame_rate=10).num_frames == 1


def test_optical_flow_beside_images_is_no_frame(frames, tmp_path):
    """MMAction's rawframes have both in one folder."""
    for k, rgb in enumerate(frames[:3]):
        for name in ("img", "flow_x", "flow_y"):
            image = av.VideoFrame.from_ndarray(rgb if name == "img" else 0 * rgb, format="rgb24")
            image.save(str(tmp_path / f"{name}_{k + 1:05d}.png"))
    grid = Grid((0, 1, 2, 3), Box(0, 0, 64, 96), 64, 96, False)
    clip = read_frames(str(tmp_path), grid)
    assert [frame_number(frame, 20) for frame in clip] == [0, 1, 2, 2]
    assert probe_frames(str(tmp_path), frame_rate=10).num_frames == 3
    for k in range(3):
        (tmp_path / f"flow_y_{k + 1:05d}.png").rename(tmp_path / f"{k}.png")
    assert probe_frames(str(tmp_path), frame_rate=10).num_frames == 9  # of x alone it is no flow
    for k in range(3):
        (tmp_path / f"img_{k + 1:05d}.png").unlink()
        (tmp_path / f"{k}.png").rename(tmp_path / f"flow_y_{k + 1:05d}.png")
    assert probe_frames(str(tmp_path), frame_rate=10).num_frames == 6  # flow, if that is all


def test_names_without_leading_zeros_are_in_order(frames, tmp_path):
    for k, rgb in enumerate(frames[:12]):
        av.VideoFrame.from_ndarray(rgb, format="rgb24").save(str(tmp_path / f"img_{k + 1}.png"))
    grid = Grid(tuple(range(12)), Box(0, 0, 64, 96), 64, 96, False)
    clip = read_frames(str(tmp_path), grid)
    assert [frame_number(frame, 20) for frame in clip] == list(range(12))


def test_images_and_video_give_the_same_pixels(folder, frames, tmp_path):
    video = encode(tmp_path / "v.mp4", frames, options={"crf": "1"})
    grid = Grid((2, 9), Box(4, 10, 50, 60), 32, 40, True)
    a = read_clip(Location(str(folder)), grid).astype(int)
    b = read_clip(Location(str(video)), grid).astype(int)
    assert np.abs(a - b).mean() < 3


def test_probe(folder):
    info = probe_frames(str(folder), frame_rate=12)
    assert (info.num_frames, info.width, info.height) == (20, 96, 64)
    assert (info.frame_rate, info.duration_seconds, info.key_interval) == (12, 20 / 12, 1)


def test_a_folder_without_images_or_with_a_bad_one_is_named(tmp_path):
    grid = Grid((0,), Box(0, 0, 64, 96), 64, 96, False)
    with pytest.raises(UnreadableVideo, match="holds no"):
        probe_frames(str(tmp_path), frame_rate=12)
    (tmp_path / "frame_1.jpg").write_text("no image")
    with pytest.raises(UnreadableVideo, match=r"frame_1\.jpg"):
        read_frames(str(tmp_path), grid)
    with pytest.raises(UnreadableVideo, match="No such file"):
        read_frames(str(tmp_path / "gone"), grid)
    os.truncate(tmp_path / "frame_1.jpg", 5 * 2**30)  # which takes no room
    with pytest.raises(UnreadableVideo, match=r"'frame_1\.jpg': an image of 5,368,709,120 bytes"):
        read_frames(str(tmp_path), grid)
    (tmp_path / "frame_1.jpg").unlink()
    os.mkfifo(tmp_path / "frame_1.jpg")
    with pytest.raises(UnreadableVideo, match=r"'frame_1\.jpg': not a file"):
        read_frames(str(tmp_path), grid)


def test_the_image_that_does_not_decode_is_in_the_reason(frames, tmp_path):
    """Which a table of bad videos has beside the name of the folder."""
    Image.fromarray(frames[0]).save(tmp_path / "1.png")
    grid = Grid((0, 1), Box(0, 0, 64, 96), 64, 96, False)
    for name, shown in (("2.jpg", "2.jpg"), (os.fsdecode(b"\xe9\n.jpg"), r"\udce9\n.jpg")):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UnreadableVideo) as caught:
            read_frames(str(tmp_path), grid)
        (tmp_path / name).unlink()
        assert caught.value.place == str(tmp_path)
        assert caught.value.reason == f"'{shown}': its content is no JPEG, PNG, BMP or WebP image"


@pytest.mark.parametrize("kind", ["jpeg", "png", "bmp", "webp"])
def test_an_image_is_read_by_its_content_whatever_it_is_called(frames, tmp_path, kind):
    for k, suffix in enumerate(sorted(IMAGE_SUFFIXES)):
        Image.fromarray(frames[k]).save(tmp_path / f"{k}{suffix}", kind, quality=95)
    count = len(IMAGE_SUFFIXES)
    info = probe_frames(str(tmp_path), frame_rate=12)
    assert (info.num_frames, info.height, info.width) == (count, 64, 96)
    grid = Grid(tuple(range(count)), Box(0, 0, 64, 96), 64, 96, False)
    clip = read_frames(str(tmp_path), grid).astype(int)
    assert np.abs(clip - frames[:count]).mean(axis=(1, 2, 3)).max() < 4


@pytest.mark.parametrize("exif_orientation", [1, 3, 6, 8])
def test_images_that_a_camera_wants_turned_are_read_as_displayed(
    frames, tmp_path, exif_orientation
):
    """Exif says where the stored image's first row and column are: 6, at the right and the top."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = exif_orientation
    Image.fromarray(frames[0]).save(tmp_path / "1.jpg", exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "1.jpg"))).astype(int)
    info = probe_frames(str(tmp_path), frame_rate=12)
    assert (info.height, info.width) == upright.shape[:2]
    grid = Grid((0,), Box(6, 4, 50, 40), 50, 40, False)
    read = read_clip(Location(str(tmp_path)), grid)[0]
    assert np.abs(read - upright[6:56, 4:44]).mean() < 8
    (frame,) = iterate_frames(Location(str(tmp_path)), info)
    assert np.abs(frame.to_ndarray(format="rgb24") - upright).mean() < 8
