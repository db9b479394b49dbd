"""What tells the videos of two runs apart."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from vcycle.data.manifest import Manifest
from vcycle.train.same_run import identity, parts_sha256


def test_parts_of_a_file_are_told_apart_and_runs_of_them_go_on_as_before(
    synthetic_videos: Path,
) -> None:
    videos = Manifest.read(synthetic_videos)
    whole = videos.videos[0]
    spans = ((0.0, 0.0), (0.0, 3.0), (5.0, 8.0), (5.0, 0.0), (3600.54, 0.0), (3600.541, 0.0))
    lines = [replace(whole, start_seconds=start, end_seconds=end) for start, end in spans]
    parts = [replace(videos, videos=(line,)) for line in lines]
    assert len(set(map(parts_sha256, parts))) == len(spans)
    # A checkpoint has this one, whatever the part.
    known = sha256(f"{whole.path}\0{whole.split}\0{whole.labels}\n".encode()).hexdigest()
    assert {identity(each)["videos_sha256"] for each in parts} == {known}
