"""The metadata of a video: what is refused, and how errors and places read."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from vcycle.data.metadata import Location, UnreadableVideo, Video

VIDEO = Video(
    path="a/b.mp4",
    labels=(1,),
    split="train",
    num_frames=30,
    frame_rate=29.97,
    duration_seconds=1.001,
    width=320,
    height=240,
)


@pytest.mark.parametrize(
    "change", [{"frame_rate": 0.0}, {"frame_rate": math.nan}, {"num_frames": 0}, {"width": 0}]
)
def test_no_video_has_such_metadata(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"{name} {value}: a video has"):
        dataclasses.replace(VIDEO, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_frames": 10**400}, "num_frames 10000000000000000000: a video has at most"),
        ({"num_frames": math.inf}, "num_frames inf: a video has at most 2147483648"),
        ({"frame_rate": 1e30}, "frame_rate 1e+30: a video has at most 2147483648"),
        ({"end_seconds": 1e308}, "end_seconds 1e+308: a video has at most 2147483648"),
        ({"offset": 2**63}, "offset 9223372036854775808: a video has at most 4611686018427387904"),
        ({"num_frames": 24.5}, "num_frames 24.5: give a whole number"),
    ],
)
def test_no_video_has_as_much(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(VIDEO, **change)


@pytest.mark.parametrize("name", ["offset", "num_bytes"])
def test_a_part_of_a_file_has_no_negative_bounds(name):
    with pytest.raises(ValueError, match=f"{name} -1: a video has at least 0"):
        dataclasses.replace(VIDEO, **{name: -1})


def test_a_place_names_its_part_of_the_file():
    assert str(Location("/a/b.tar", 512, 100)) == "/a/b.tar[512:612]"
    assert str(Location("s3://c/d.mp4")) == "s3://c/d.mp4"
    assert not Location("s3://c/d.mp4").is_local
    part = dataclasses.replace(VIDEO, offset=8, num_bytes=2)
    assert str(part.source) == part.name == "a/b.mp4[8:10]"
    assert dataclasses.replace(VIDEO, start_seconds=0.25).name == "a/b.mp4[0.25 s:]"
    assert dataclasses.replace(VIDEO, end_seconds=1).name == "a/b.mp4[0 s:1 s]"


def test_an_unreadable_video_is_named_with_the_reason():
    assert str(UnreadableVideo("a.mp4", "not found")) == "a.mp4: not found"
