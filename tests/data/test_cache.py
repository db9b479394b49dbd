"""The cache of remote videos: bounded, shared by processes, and never in the way."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import random
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import fsspec
import pytest
import torch

from vcycle.data.cache import VideoCache
from vcycle.data.dataset import ClipDataset
from vcycle.data.decode.remote import fetch
from vcycle.data.grid import GridRange
from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Location, UnreadableVideo
from vcycle.data.request import ClipRequest
from vcycle.schedule.shape import Shape

SIZE = 1000


def content(k: int) -> bytes:
    return bytes([k]) * SIZE


def place(k: int) -> Location:
    return Location("memory://cache/shard.tar", k * SIZE, SIZE)


@pytest.fixture(autouse=True)
def shard():
    store = fsspec.filesystem("memory")
    store.pipe("/cache/shard.tar", b"".join(map(content, range(30))))
    yield
    if store.exists("/cache"):
        store.rm("/cache", recursive=True)


@contextmanager
def gone():
    """The store is empty."""
    store = fsspec.filesystem("memory")
    kept = store.cat_file("/cache/shard.tar")
    store.rm("/cache/shard.tar")
    yield
    store.pipe("/cache/shard.tar", kept)


@pytest.fixture
def seconds_apart(monkeypatch):
    """Reads, in order: a system's clock of files may tick every 10 ms, in which it reads many."""
    times, change_times = itertools.count(), os.utime

    def read_at(held):
        now = next(times)
        change_times(held, (now, now))

    monkeypatch.setattr(os, "utime", read_at)


def read(cache: VideoCache, k: int) -> bytes:
    with cache.local(place(k)) as near:
        assert near.is_local
        return Path(near.uri).read_bytes()


def held(cache: VideoCache) -> set[int]:
    """Which videos are in it."""
    files = [file for file in cache.folder.iterdir() if not file.name.startswith(".")]
    return {file.read_bytes()[0] for file in files}


def test_a_video_is_fetched_once(tmp_path):
    cache = VideoCache(tmp_path / "new" / "folder", 10 * SIZE)
    assert read(cache, 3) == content(3)
    with gone():
        assert read(cache, 3) == content(3)
        with pytest.raises(UnreadableVideo, match="not found"):
            read(cache, 4)


@pytest.mark.usefixtures("seconds_apart")
def test_those_read_longest_ago_make_room(tmp_path):
    cache = VideoCache(tmp_path, 10 * SIZE)
    for k in range(10):
        read(cache, k)
    assert held(cache) == set(range(10))
    read(cache, 0)
    read(cache, 10)
    assert held(cache) == {0, *range(3, 11)}  # a tenth is left free
    for k in range(11, 30):
        read(cache, k)
        assert len(held(cache)) <= 10
    assert 29 in held(cache)


@pytest.mark.usefixtures("seconds_apart")
def test_what_is_being_read_stays(tmp_path):
    cache = VideoCache(tmp_path, 3 * SIZE)
    with cache.local(place(0)) as near:
        for k in range(1, 10):
            assert read(cache, k) == content(k)
            assert Path(near.uri).read_bytes() == content(0)
    for k in range(10, 13):
        read(cache, k)
    assert 0 not in held(cache)


def test_a_video_that_has_no_room_is_read_from_afar(tmp_path, monkeypatch):
    cache = VideoCache(tmp_path, SIZE)
    with cache.local(place(0)), cache.local(place(1)) as far:
        assert far == place(1)
    for far in (place(0), Location("memory://cache/shard.tar")):
        with VideoCache(tmp_path / "small", SIZE - 1).local(far) as near:
            assert near == far

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with VideoCache(tmp_path / "full", 10 * SIZE).local(place(0)) as far:
        assert far == place(0)
    file = tmp_path / "file"
    file.touch()
    with VideoCache(file, 10 * SIZE).local(place(0)) as far:
        assert far == place(0)


@pytest.mark.parametrize("num_bytes", [0, 1, SIZE - 1, 2 * SIZE])
def test_a_file_of_another_size_is_fetched_again(tmp_path, num_bytes):
    cache = VideoCache(tmp_path, 10 * SIZE)
    read(cache, 0)
    read(cache, 1)
    with cache.local(place(1)) as near:
        os.truncate(near.uri, num_bytes)
    assert read(cache, 1) == content(1)
    assert int((tmp_path / ".size").read_text()) == 2 * SIZE
    with gone():
        assert read(cache, 1) == content(1)


def test_an_empty_file_is_fetched_again_if_its_size_is_unknown(tmp_path):
    cache = VideoCache(tmp_path, 100 * SIZE)
    whole = Location("memory://cache/shard.tar")
    with cache.local(whole) as near:
        os.truncate(near.uri, 0)
    with cache.local(whole) as near:
        assert Path(near.uri).read_bytes() == b"".join(map(content, range(30)))


@pytest.mark.parametrize("size", ["", f"{10**6:020d}", "junk", "\0" * 20, "12"])
def test_what_killed_processes_left_is_tidied(tmp_path, size):
    cache = VideoCache(tmp_path, 10 * SIZE)
    for k in range(5):
        read(cache, k)
    (tmp_path / ".size").write_text(size)
    (tmp_path / f".{64 * 'a'}.123").write_bytes(content(0))
    read(cache, 5)
    assert held(cache) == set(range(6))
    assert {file.name for file in tmp_path.glob(".*")} == {".size"}
    assert int((tmp_path / ".size").read_text()) == 6 * SIZE


@pytest.mark.parametrize("decoder", ["pyav", "torchcodec"])
def test_a_clip_costs_one_request_if_nothing_can_be_kept(
    synthetic_videos, tmp_path, monkeypatch, decoder
):
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    manifest = Manifest.read(synthetic_videos)
    videos = manifest.split("train").videos[:3]
    store = fsspec.filesystem("memory")
    for video in videos:
        store.pipe(f"/cache/{video.path}", (synthetic_videos / video.path).read_bytes())
    far = [replace(video, path=f"memory://cache/{video.path}") for video in videos]
    requests = []

    def counted(place):
        requests.append(place)
        return fetch(place)

    monkeypatch.setattr("vcycle.data.cache.fetch", counted)
    monkeypatch.setattr("vcycle.data.decode.container.fetch", counted)
    (tmp_path / "file").touch()
    cache, shape = VideoCache(tmp_path / "file", 10**9), Shape(2, 16, 16)
    clips = ClipDataset(
        replace(manifest, videos=tuple(far)), GridRange(shape, 2, (16, 20)), decoder=decoder
    )
    for index in range(3):
        request = ClipRequest(index, shape, seed=index)
        clip = replace(clips, cache=cache)[request]
        assert not clip.bad
        assert len(requests) == index + 1
    assert torch.equal(clip.pixels, clips[request].pixels)


def test_a_folder_for_reading_only_serves_what_it_has(tmp_path, monkeypatch):
    cache = VideoCache(tmp_path, 10 * SIZE)
    read(cache, 0)

    def refused(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refused)
    with gone():
        assert read(cache, 0) == content(0)


def test_a_disk_that_loses_its_locks_is_read_past(tmp_path, monkeypatch):
    cache = VideoCache(tmp_path, 10 * SIZE)
    assert read(cache, 0) == content(0)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with cache.local(place(0)) as near:
        assert near.content == content(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_files_that_are_not_its_own_stay(tmp_path):
    others = [tmp_path / name for name in ("a.mp4", ".hidden", ".a.mp4.123", "folder/b.mp4")]
    for file in others:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(100 * SIZE))
    cache = VideoCache(tmp_path, 3 * SIZE)
    for k in range(10):
        assert read(cache, k) == content(k)
    assert all(file.stat().st_size == 100 * SIZE for file in others)


def _read_many(cache: VideoCache, seed: int) -> None:
    for k in random.Random(seed).choices(range(30), k=300):
        with cache.local(place(k)) as near:
            found = Path(near.uri).read_bytes() if near.is_local else content(k)
            assert found == content(k)
        with (cache.folder / ".size").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody adds or removes
            assert len(held(cache)) <= 8


def test_processes_share_it(tmp_path):
    cache = VideoCache(tmp_path, 8 * SIZE)
    children = []
    for seed in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _read_many(cache, seed)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert 0 < len(held(cache)) <= 8
    assert int((tmp_path / ".size").read_text()) == SIZE * len(held(cache))
