"""Opening videos: files, parts of files, bytes from a store; and what is no video."""

from __future__ import annotations

import fsspec
import numpy as np
import pytest

from tests.encode import encode, numbered_frames
from vcycle.data.decode.probe import probe
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location, UnreadableVideo


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames, 96 x 64, key frames every 12, B-frames in between."""
    return encode(tmp_path_factory.mktemp("video") / "v.mp4", numbered_frames(40))


def grid(*frames, box=None, size=(64, 96), flip=False):
    return Grid(frames, box or Box(0, 0, 64, 96), *size, flip)


def test_what_is_no_video_is_named(tmp_path):
    text = tmp_path / "v.mp4"
    text.write_text("no video\n" * 100)
    for path, reason in (
        (tmp_path / "nowhere.mp4", "not found"),
        (tmp_path, r"holds no image"),
        (text, "Invalid data"),
    ):
        for read in (probe, lambda place: read_clip(place, grid(0))):
            with pytest.raises(UnreadableVideo, match=reason) as caught:
                read(Location(str(path)))
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)


def test_a_part_of_a_file_and_a_remote_file_read_like_the_file(video, tmp_path):
    content = video.read_bytes()
    (tmp_path / "shard.tar").write_bytes(b"x" * 700 + content + b"y" * 900)
    fs = fsspec.filesystem("memory")
    fs.pipe("/store/shard.tar", (tmp_path / "shard.tar").read_bytes())
    fs.pipe("/store/v.mp4", content)
    whole = Location(str(video))
    expected = read_clip(whole, grid(3, 20))
    for place in (
        Location(str(tmp_path / "shard.tar"), 700, len(content)),
        Location("memory://store/shard.tar", 700, len(content)),
        Location("memory://store/v.mp4"),
    ):
        assert probe(place) == probe(whole)
        assert np.array_equal(read_clip(place, grid(3, 20)), expected)
    with pytest.raises(UnreadableVideo, match=r"nowhere\.mp4: not found"):
        read_clip(Location("memory://store/nowhere.mp4"), grid(0))


@pytest.mark.parametrize("num_failures", [4, 5])
def test_a_store_that_fails_for_a_moment_is_asked_again(video, monkeypatch, num_failures):
    store = fsspec.filesystem("memory")
    store.pipe("/store/v.mp4", video.read_bytes())
    errors = [RuntimeError("503, slow down")] * num_failures

    def cat_file(store, path, **span):
        if errors:
            raise errors.pop()
        return plain(store, path, **span)

    plain = type(store).cat_file
    monkeypatch.setattr(type(store), "cat_file", cat_file)
    monkeypatch.setattr("vcycle.data.decode.remote._RETRY_SECONDS", (0.0,) * 4)
    place = Location("memory://store/v.mp4")
    if num_failures == 5:
        with pytest.raises(UnreadableVideo, match="503, slow down"):
            read_clip(place, grid(3))
    assert read_clip(place, grid(3)).shape == (1, 64, 96, 3)


@pytest.mark.parametrize("uri", ["{}/shard.tar", "memory://cut/shard.tar"])
def test_a_part_that_is_cut_off_is_not_read(tmp_path, uri, monkeypatch):
    """Its first frames would decode, and the last of them would stand for the rest."""
    monkeypatch.setattr("vcycle.data.decode.remote._RETRY_SECONDS", (0.0,))
    frames = numbered_frames(20)
    video = encode(
        tmp_path / "v.mp4", frames, gop=1, container_options={"movflags": "+faststart"}
    ).read_bytes()
    (tmp_path / "shard.tar").write_bytes(b"x" * 512 + video[:-100])
    fsspec.filesystem("memory").pipe("/cut/shard.tar", b"x" * 512 + video[:-100])
    place = Location(uri.format(tmp_path), 512, len(video))
    with pytest.raises(UnreadableVideo, match=r"the file ends within it|gave \d+ bytes"):
        read_clip(place, grid(0, 19))
