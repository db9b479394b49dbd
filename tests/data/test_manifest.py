"""The manifest: what is written is read, and what is wrong is named with its fix."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
import os
import re

import pytest
from hypothesis import given, strategies as st

from vcycle.data import manifest as manifest_module, tables as tables_module
from vcycle.data.manifest import Manifest, check_replaceable
from vcycle.data.metadata import Location, Video

VIDEO = Video(
    path="a/b.mp4",
    labels=(1,),
    split="train",
    flip=True,
    num_frames=30,
    frame_rate=29.97,
    duration_seconds=1.001,
    width=320,
    height=240,
    codec="h264",
    rotation=90,
)


def make(tmp_path, *videos, classes=("run", "sit")):
    manifest = Manifest(tmp_path, tuple(classes), videos)
    manifest.write()
    return manifest


text = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
name = text.filter(lambda t: t not in (".", "..") and not t.startswith("/") and t.strip("/. "))


@given(path=name, split=text, labels=st.lists(st.integers(0, 1), max_size=3), flip=st.booleans())
def test_what_is_written_is_read(tmp_path_factory, path, split, labels, flip):
    if ".." in path or "://" in path:
        return
    folder = tmp_path_factory.mktemp("manifest")
    changes = {"path": path, "split": split, "labels": tuple(labels), "flip": flip}
    manifest = make(folder, VIDEO, dataclasses.replace(VIDEO, **changes))
    assert Manifest.read(folder) == manifest
    assert Manifest.read(folder / "manifest.csv") == manifest


def test_splits_of_any_name_are_read_back(tmp_path):
    manifest = dataclasses.replace(make(tmp_path, VIDEO), listed=(('fold "1", people', 2),))
    manifest.write()
    assert Manifest.read(tmp_path) == manifest


def test_a_list_of_what_was_named_goes_with_it(tmp_path):
    before = dataclasses.replace(make(tmp_path, VIDEO), listed=(("train", 10),))
    before.write()
    make(tmp_path, VIDEO).write()
    assert Manifest.read(tmp_path).listed == ()


def test_ones_own_classes_are_told_by_their_bytes(tmp_path):
    (tmp_path / "classes.txt").write_text("crêpe\népée\n", encoding="utf-8")
    check_replaceable(tmp_path, ("crêpe", "épée"))
    for others in (("crêpe",), ("crêpe", "épee"), ("crêpe", "épée", "x")):
        with pytest.raises(ValueError, match="not written by vcycle"):
            check_replaceable(tmp_path, others)


@pytest.mark.parametrize("classes", [("run", "sit"), ("lie", "run", "sit")])
def test_no_moment_pairs_old_labels_with_new_classes(tmp_path, monkeypatch, classes):
    """Whichever file a killed run could not write, what it leaves is the old, new or nothing."""
    before = make(tmp_path, VIDEO)
    after = Manifest(tmp_path, classes, (VIDEO, VIDEO), listed=(("train", 2),))
    write_atomic = manifest_module.write_atomic
    for num_written in range(4):
        left = [True] * num_written

        def killed(path, text, left=left):
            if not left:
                raise KeyboardInterrupt
            left.pop()
            write_atomic(path, text)

        for module in (manifest_module, tables_module):
            monkeypatch.setattr(module, "write_atomic", write_atomic)
        before.write()
        for module in (manifest_module, tables_module):
            monkeypatch.setattr(module, "write_atomic", killed)
        with contextlib.suppress(KeyboardInterrupt):
            after.write()
        if (tmp_path / "manifest.csv").exists():
            found = Manifest.read(tmp_path)
            assert (found.classes, found.videos) in [
                (each.classes, each.videos) for each in (before, after)
            ]
    assert Manifest.read(tmp_path) == after


def test_split_locate_and_labels(tmp_path):
    remote = dataclasses.replace(VIDEO, path="s3://bucket/x.mp4", split="val", labels=(0, 1))
    local = dataclasses.replace(VIDEO, path="file:///videos/a%20b.mp4", split="val")
    manifest = make(tmp_path, VIDEO, remote, local)
    assert manifest.split("train").videos == (VIDEO,)
    assert manifest.split("train").multi_label  # a split keeps the targets of the whole
    assert manifest.split("val").multi_label
    assert manifest.num_classes == 2
    assert manifest.locate(VIDEO) == Location(str(tmp_path / "a/b.mp4"))
    assert manifest.locate(remote) == Location("s3://bucket/x.mp4")
    assert manifest.locate(local) == Location("/videos/a b.mp4")
    for name in ("clip#1.mp4", "what?.mp4", "[x.mp4"):
        odd = dataclasses.replace(VIDEO, path=f"file:///videos/{name}")
        assert manifest.locate(odd) == Location(f"/videos/{name}")
    with pytest.raises(ValueError, match=r"split 'test'.*train, val"):
        manifest.split("test")


def test_spans_make_targets_of_several_labels(tmp_path):
    """Also if every video has one label: at another moment it has none."""
    assert not Manifest(tmp_path, ("run", "sit"), (VIDEO,)).multi_label
    timed = dataclasses.replace(VIDEO, spans=((0.0, 0.5),))
    assert Manifest(tmp_path, ("run", "sit"), (VIDEO, timed)).multi_label


def edit(tmp_path, change):
    """A manifest of two videos, the second of which gets other values by hand."""
    file = make(tmp_path, VIDEO, VIDEO).root / "manifest.csv"
    names, first, second = csv.reader(file.read_text().split("\n")[:-1])
    row = dict(zip(names, second, strict=True)) | change
    with file.open("w", newline="") as text:
        csv.writer(text, lineterminator="\n").writerows([names, first, row.values()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": "2"}, "label 2 of a/b.mp4 is out of range; classes.txt names 2 classes"),
        ({"labels": "-1"}, "label '-1'"),
        ({"labels": "zero"}, "label 'zero' is not a whole number"),
        ({"path": "../b.mp4"}, "leaves the manifest's folder"),
        ({"path": "a/../../b.mp4"}, "leaves the manifest's folder"),
        ({"path": "/etc/b.mp4"}, "leaves the manifest's folder"),
        ({"path": ""}, "leaves the manifest's folder"),
        ({"path": "a\nb.mp4"}, r"path 'a\nb.mp4' has a line break"),
        ({"flip": "yes"}, "flip 'yes' is not a whole number"),
        ({"frame_rate": "fast"}, "frame_rate 'fast' is not a number"),
        ({"frame_rate": "0"}, "frame_rate 0.0: a video has at least 0.001"),
        ({"frame_rate": "-30"}, "frame_rate '-30'"),
        ({"frame_rate": "nan"}, "frame_rate 'nan'"),
        ({"frame_rate": "inf"}, "frame_rate 'inf'"),
        ({"num_frames": "0"}, "num_frames 0: a video has at least 1"),
        ({"num_frames": "3.5"}, "num_frames '3.5' is not a whole number"),
        ({"duration_seconds": "nan"}, "duration_seconds 'nan'"),
        ({"width": "0"}, "width 0: a video has at least 1"),
        ({"height": "-4"}, "height '-4'"),
        ({"offset": "-1"}, "offset '-1'"),
        ({"num_bytes": "-1"}, "num_bytes '-1'"),
        ({"labels": "0", "spans": "zero-2"}, "start 'zero' is not a number"),
        ({"labels": "0", "spans": "0-inf"}, "end 'inf' is not a number"),
        ({"labels": "0", "spans": "9-3"}, "spans 9-3: ends before it begins; give start-end"),
        ({"path": "file://videos/a.mp4"}, "give file:/// and an absolute path, or a path"),
    ],
)
def test_a_bad_line_is_named(tmp_path, change, message):
    edit(tmp_path, change)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Manifest.read(tmp_path)
    line = 4 if "a\nb.mp4" in change.values() else 3
    assert str(caught.value).startswith(f"{tmp_path}/manifest.csv line {line}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_line_of_too_few_or_too_long_values_is_named(tmp_path):
    make(tmp_path, VIDEO)
    table = (tmp_path / "manifest.csv").read_text()
    (tmp_path / "manifest.csv").write_text(f"{table}a/c.mp4,0,train\n")
    with pytest.raises(ValueError, match=r"manifest\.csv line 3: has 3 values for 17 columns"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.csv").write_text(table + '"' + "x" * 140_000)
    with pytest.raises(ValueError, match=r"manifest\.csv line 3: field larger .* left open"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.csv").write_bytes(table.encode() + b"\xff")
    with pytest.raises(ValueError, match=r"manifest\.csv: byte \d+ is not UTF-8"):
        Manifest.read(tmp_path)


def test_only_a_newline_ends_a_class(tmp_path):
    names = ("a\u2028b", "c\x0bd", "e\x85f", "g")
    manifest = make(tmp_path, dataclasses.replace(VIDEO, labels=(3,)), classes=names)
    assert Manifest.read(tmp_path) == manifest
    (tmp_path / "classes.txt").write_text("run\r\nsit\r\nlie\r\nfly")
    assert Manifest.read(tmp_path).classes == ("run", "sit", "lie", "fly")
    (tmp_path / "classes.txt").write_text("run\n\nsit\nfly\n")
    with pytest.raises(ValueError, match=r"classes\.txt line 2: names no class"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\0b", "a\udcffb"])
def test_what_could_not_be_read_back_is_not_written(tmp_path, name):
    with pytest.raises(ValueError, match="class 'a"):
        make(tmp_path / "out", VIDEO, classes=(name, "sit"))
    with pytest.raises(ValueError, match="path 'a"):
        make(tmp_path / "out", dataclasses.replace(VIDEO, path=name))
    with pytest.raises(ValueError, match=r"path '\.\./b' leaves"):
        make(tmp_path / "out", dataclasses.replace(VIDEO, path="../b"))
    assert not (tmp_path / "out").exists()


def test_no_video_has_such_facts():
    for change in ({"frame_rate": 0.0}, {"frame_rate": math.nan}, {"num_frames": 0}, {"width": 0}):
        with pytest.raises(ValueError, match="a video has"):
            dataclasses.replace(VIDEO, **change)
    with pytest.raises(ValueError, match="offset -1"):
        dataclasses.replace(VIDEO, offset=-1)


def test_a_broken_list_of_counts_is_named(tmp_path):
    make(tmp_path, VIDEO)
    (tmp_path / "listed.csv").write_text("split,videos\ntrain,many\n")
    with pytest.raises(ValueError, match=r"listed\.csv line 2: videos 'many'"):
        Manifest.read(tmp_path)


def test_a_missing_or_empty_table_is_named(tmp_path):
    with pytest.raises(ValueError, match="not found"):
        Manifest.read(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"manifest\.csv: not found"):
        Manifest.read(tmp_path)
    make(tmp_path)
    with pytest.raises(ValueError, match="lists no video"):
        Manifest.read(tmp_path)
    (tmp_path / "manifest.csv").write_text("path,labels\na.mp4,0\n")
    with pytest.raises(ValueError, match=r"no column split, flip, num_frames"):
        Manifest.read(tmp_path)


def test_labels_with_spans_hold_for_a_time(tmp_path):
    video = dataclasses.replace(VIDEO, labels=(1, 0, 1), spans=((0, 2.5), (2, 4), (9, 12)))
    manifest = make(tmp_path, video)
    assert Manifest.read(tmp_path).videos == (video,)
    assert manifest.multi_label
    assert video.labels_between(0, 1) == (1,)
    assert video.labels_between(2.2, 3) == (0, 1)
    assert video.labels_between(5, 6) == ()
    assert video.labels_between(3, 20) == (0, 1)
    assert VIDEO.labels_between(100, 200) == (1,)
    short = dataclasses.replace(VIDEO, spans=((1e-05, 2e-05),))
    make(tmp_path, short)
    assert Manifest.read(tmp_path).videos == (short,)
    make(tmp_path, video)
    bad = (tmp_path / "manifest.csv").read_text().replace("0-2.5;", "")
    (tmp_path / "manifest.csv").write_text(bad)
    with pytest.raises(ValueError, match="start-end in seconds for each of the labels"):
        Manifest.read(tmp_path)


def test_a_table_without_the_newer_columns_is_read(tmp_path):
    make(tmp_path, VIDEO)
    rows = (tmp_path / "manifest.csv").read_text().splitlines()
    (tmp_path / "manifest.csv").write_text("".join(row.rsplit(",", 6)[0] + "\n" for row in rows))
    assert Manifest.read(tmp_path).videos == (VIDEO,)


def test_a_line_may_be_about_a_part_of_a_video(tmp_path):
    part = dataclasses.replace(VIDEO, start_seconds=0.2, end_seconds=0.7, frame_rate=30.0)
    make(tmp_path, part, VIDEO)
    assert Manifest.read(tmp_path).videos == (part, VIDEO)
    assert (part.frame_range, VIDEO.frame_range) == (range(6, 21), range(30))
    assert part.source == VIDEO.source
    for start, end, frames in [(0.99, 0, (29, 30)), (5, 9, (29, 30)), (0, 99, (0, 30))]:
        part = dataclasses.replace(part, start_seconds=start, end_seconds=end)
        assert part.frame_range == range(*frames)
    with pytest.raises(ValueError, match=r"end_seconds 1\.0: is not after start_seconds 1\.0"):
        dataclasses.replace(VIDEO, start_seconds=1.0, end_seconds=1.0)
    edit(tmp_path, {"start_seconds": "2", "end_seconds": "1"})
    with pytest.raises(ValueError, match=r"line 3: end_seconds 1\.0: is not after start_seconds"):
        Manifest.read(tmp_path)


def test_a_manifest_is_read_again_only_if_one_of_its_files_changed(tmp_path):
    make(tmp_path, VIDEO, classes=("one", "two"))
    first = Manifest.read(tmp_path)
    assert Manifest.read(tmp_path / "manifest.csv") is first
    for name, old, new in (
        ("classes.txt", "two", "six"),
        ("manifest.csv", "a/b.mp4", "a/c.mp4"),
        ("listed.csv", "", "split,videos\ntrain,3\n"),
    ):
        file = tmp_path / name
        file.write_text((file.read_text() if file.exists() else "").replace(old, new))
        os.utime(file, (0, 0))  # the clock of files may tick only every 10 ms
        again = Manifest.read(tmp_path)
        assert again != first
        first = again
    assert (first.classes, first.videos[0].path) == (("one", "six"), "a/c.mp4")
