"""What tells the videos of two runs apart."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.train.same_run import identity

VIDEO = Video(
    path="a.mp4",
    labels=(1,),
    split="val",
    num_frames=300,
    frame_rate=30.0,
    duration_seconds=10.0,
    width=64,
    height=48,
)


def videos_sha256(video: Video) -> str:
    found: str = identity(Manifest(Path(), ("x", "y"), (video,)))["videos_sha256"]
    return found


def test_parts_of_a_file_are_other_videos_and_a_whole_one_is_as_in_earlier_runs() -> None:
    whole = sha256(b"a.mp4\0val\0(1,)\n").hexdigest()
    assert videos_sha256(VIDEO) == videos_sha256(replace(VIDEO, offset=8, num_bytes=9)) == whole
    spans = ((0.0, 3.0), (5.0, 8.0), (5.0, 0.0))
    parts = [replace(VIDEO, start_seconds=start, end_seconds=end) for start, end in spans]
    assert len({whole, *map(videos_sha256, parts)}) == 4
