"""Fixtures for tests of datasets: one small video under any names, and folders shut to readers."""

from __future__ import annotations

import io
import os
import shutil
import tarfile

import pytest

from tests.encode import encode, numbered_frames


@pytest.fixture(scope="session")
def small_video(tmp_path_factory):
    """Ten frames of 32 x 48 pixels."""
    return encode(tmp_path_factory.mktemp("video") / "v.mp4", numbered_frames(10, 32, 48))


@pytest.fixture
def put(small_video, tmp_path):
    """Puts the video under names."""

    def place(*names):
        for name in names:
            path = tmp_path / "videos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(small_video, path)
        return tmp_path / "videos"

    return place


@pytest.fixture
def pack(tmp_path, small_video):
    """Writes a tar of files; ``None`` stands for the video."""

    def pack(name, files):
        path = tmp_path / "shards" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for file, content in files.items():
                content = small_video.read_bytes() if content is None else content
                info = tarfile.TarInfo(file)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return tmp_path / "shards"

    return pack


@pytest.fixture
def shut(monkeypatch):
    """Makes folders whose paths end in a name unreadable, for the superuser too."""
    scandir = os.scandir

    def shut(name):
        def scan(folder):
            if str(folder).endswith(name):
                raise PermissionError(13, "Permission denied", str(folder))
            return scandir(folder)

        monkeypatch.setattr(os, "scandir", scan)

    return shut
