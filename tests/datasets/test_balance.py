"""What is said of splits: a table, and a line for each thing that spoils a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from vcycle.data.manifest import Manifest
from vcycle.data.metadata import Video
from vcycle.datasets.balance import split_table, split_warnings
from vcycle.datasets.splits import groups_by_pattern


def manifest_of(classes, *rows):
    """Rows are a path, a label and a split."""
    videos = (
        Video(
            path=path,
            labels=(label,),
            split=split,
            num_frames=10,
            frame_rate=10.0,
            duration_seconds=1.0,
            width=48,
            height=32,
        )
        for path, label, split in rows
    )
    return Manifest(Path("videos"), classes, tuple(videos))


FINE = [
    (f"{c}/{split}{k * 7}x.mp4", c, split)
    for c in (0, 1)
    for split in ("train", "val")
    for k in (1, 2)
]


def test_the_table():
    rows = [*FINE, ("t.mp4", 1, "test"), ("u.mp4", 1, "extra")]
    assert split_table(manifest_of(("run", "sit"), *rows)).splitlines() == [
        "class          train      val     test    extra",
        "run                2        2        0        0",
        "sit                2        2        1        1",
        "all classes        4        4        1        1",
    ]


def test_a_long_table_is_cut():
    classes = tuple(f"class {k} {'x' * 60}" for k in range(100))
    lines = split_table(manifest_of(classes, *FINE)).splitlines()
    assert len(lines) == 33
    assert lines[-2] == "... and 70 more"
    assert max(map(len, lines)) <= 80


def test_nothing_to_say():
    assert split_warnings(manifest_of(("run", "sit"), *FINE), divided=True) == []


@pytest.mark.parametrize(
    ("classes", "rows", "warning"),
    [
        (
            ("run", "sit", "lie"),
            [*FINE, ("q.mp4", 2, "train")],
            "val has no video of lie, which is not scored; add some",
        ),
        (
            ("run", "sit", *"abcd"),
            [*FINE, *((f"{k}/q.mp4", k, "val") for k in range(2, 6))],
            "train has no video of 4 classes (a, b, c, ...), which are never learned; add some",
        ),
        (
            ("run", "sit"),
            [*FINE, *((f"0/w{k}x.mp4", 0, "train") for k in range(30))],
            "train has 32 videos of run and 2 of sit, which will be learned worse; "
            "add videos of it",
        ),
        (
            ("run", "sit"),
            [row for row in FINE if row[2] == "train"],
            "no video is in val, all are in train; a run needs train and val",
        ),
        (
            ("clips",),
            [row for row in FINE if row[1] == 0],
            "all videos are of one class, clips; if it is a folder of several, index that folder",
        ),
    ],
)
def test_warnings(classes, rows, warning):
    assert split_warnings(manifest_of(classes, *rows), divided=True) == [warning]


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("v_run_g01_c01", "v_run_g01_c02"),
        ("p3 take 1", "p3 take 2"),
        ("walk (1)", "walk"),
        ("walk", "walk copy"),
        ("walk - Copy", "walk"),
        ("walk", "Copy of walk"),
        ("same", "same"),
    ],
)
def test_names_that_are_nearly_the_same(train, val):
    rows = [*FINE, (f"train/{train}.mp4", 0, "train"), (f"val/{val}.mp4", 0, "val")]
    rows += [("v_run_g02_c01.mp4", 0, "train"), ("p4 take 1.mp4", 0, "val")]
    first, second = (f"{train}.mp4", f"{val}.mp4")
    if train == val:
        first, second = (f"train/{first}", f"val/{second}")
    assert split_warnings(manifest_of(("run", "sit"), *rows), divided=True) == [
        f"1 pair of nearly the same name in train and val, such as {first} and "
        f"{second}; if they show one scene or person, keep them together"
    ]
    assert split_warnings(manifest_of(("run", "sit"), *rows), divided=False) == [
        f"1 pair of nearly the same name in train and val, such as {first} and {second}; if they "
        f"show one scene or person, the splits that come with the videos give too good a score"
    ]
    other = [(path, 1 if path.startswith("val/") else label, split) for path, label, split in rows]
    assert split_warnings(manifest_of(("run", "sit"), *other), divided=True) == []


@pytest.mark.parametrize(
    ("first", "second", "group"),
    [
        ("my_clips/take1 4.mp4", "my_clips/take1 7.mp4", "my_clips/take1"),
        ("run/v_run_g01_c01.avi", "run/v_run_g01_c02.avi", "run/v_run_g01"),
        ("run/anna.3.mp4", "run/anna.4.mp4", "run/anna"),
        ("a-b/clip12.mp4", "a-b/clip3.mp4", "a-b/clip"),
    ],
)
def test_the_pattern_that_a_warning_names_keeps_the_pair_together(first, second, group):
    rows = [*FINE, (first, 0, "train"), (second, 0, "val")]
    (warning,) = split_warnings(manifest_of(("run", "sit"), *rows), divided=True)
    (pattern,) = re.findall(r"keep them together, as with --group-pattern '(.*)'$", warning)
    others = ["my_clips/other 1.mp4", "a-b/d-1.mp4"]
    assert groups_by_pattern([first, second, *others], pattern)[:2] == [group, group]
    assert group not in groups_by_pattern([first, *others], pattern)[1:]


def test_numbered_videos_of_a_class_are_not_nearly_the_same():
    rows = [
        (f"{c}_{k:03d}.mp4", n, "val" if k % 5 == 0 else "train")
        for n, c in enumerate("ab")
        for k in range(40)
    ]
    assert split_warnings(manifest_of(("a", "b"), *rows), divided=True) == []
    rows.append(("a_005 (2).mp4", 0, "train"))
    (warning,) = split_warnings(manifest_of(("a", "b"), *rows), divided=True)
    assert "such as a_005 (2).mp4 and a_005.mp4" in warning


def test_numbered_videos_of_several_names_are_not_nearly_the_same():
    """Nor are those that are only numbered, beside others with names."""
    rows = [
        (f"{c} {k}.mp4", 0, "val" if k % 5 == 0 else "train") for c in "ab" for k in range(30)
    ] + [(f"s/{k}.mp4", 1, "val" if k % 2 else "train") for k in range(30)]
    assert split_warnings(manifest_of(("a", "b"), *rows), divided=True) == []
    rows = [*FINE, ("0/1.mp4", 0, "train"), ("0/2.mp4", 0, "val")]
    assert split_warnings(manifest_of(("run", "sit"), *rows), divided=True) == []


def test_videos_of_one_shard_are_not_the_same():
    """Its name is that of all of them; and a video of another split is on neither side."""
    rows = [*FINE, ("x.tar", 0, "train"), ("x.tar", 0, "val"), ("y 1.tar", 0, "train")]
    rows += [("y 2.tar", 0, "val"), ("t.mp4", 0, "test")]
    manifest = manifest_of(("run", "sit"), *rows)
    (warning, _) = split_warnings(manifest, divided=True)
    assert warning.startswith("1 video in train and in val, such as x.tar")
    in_shards = [
        replace(video, num_bytes=9) if video.path.endswith("tar") else video
        for video in manifest.videos
    ]
    manifest = replace(manifest, videos=tuple(in_shards))
    assert split_warnings(manifest, divided=True) == []


def test_a_video_on_both_sides_is_called_so():
    rows = [*FINE, ("a/one.mp4", 0, "train"), ("a/one.mp4", 1, "val")]  # of parts of it
    [warning] = split_warnings(manifest_of(("run", "sit"), *rows), divided=True)
    assert warning.startswith("1 video in train and in val, such as a/one.mp4, which gives ")
    assert warning.endswith("take them out of one of the two")


def test_a_class_without_a_video_is_told_of():
    warnings = split_warnings(manifest_of(("run", "sit", "gone"), *FINE), divided=True)
    assert warnings == ["no video of gone is here and can be read; replace them, or leave it out"]
