"""What tells the videos of two runs apart."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.train.same_run import identity, parts_sha256

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


def manifest(video: Video) -> Manifest:
    return Manifest(Path(), ("x", "y"), (video,))


def test_parts_of_a_file_are_told_apart_and_runs_of_them_go_on_as_before() -> None:
    spans = ((0.0, 0.0), (0.0, 3.0), (5.0, 8.0), (5.0, 0.0), (3600.54, 0.0), (3600.541, 0.0))
    parts = [manifest(replace(VIDEO, start_seconds=start, end_seconds=end)) for start, end in spans]
    assert len(set(map(parts_sha256, parts))) == len(spans)
    # A checkpoint has this one, whatever the part.
    known = sha256(b"a.mp4\0val\0(1,)\n").hexdigest()
    assert {identity(each)["videos_sha256"] for each in parts} == {known}
