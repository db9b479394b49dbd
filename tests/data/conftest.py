"""Fixtures for tests of datasets: one small video under any names."""

from __future__ import annotations

import shutil

import pytest

from data.encode import encode, numbered_frames


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
