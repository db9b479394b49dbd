"""The manifest: what is written is read, and what is wrong is named with its cure."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcycle.data.manifest import Location, Manifest, Video

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
    with pytest.raises(ValueError, match=r"split 'test'.*train, val"):
        manifest.split("test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": (2,)}, "label 2 of a/b.mp4 is out of range; classes.txt names 2 classes"),
        ({"labels": (-1,)}, "label -1"),
        ({"path": "../b.mp4"}, "leaves the manifest's folder"),
        ({"path": "a/../../b.mp4"}, "leaves the manifest's folder"),
        ({"path": "/etc/b.mp4"}, "leaves the manifest's folder"),
        ({"path": ""}, "leaves the manifest's folder"),
        ({"frame_rate": "fast"}, "fast"),
    ],
)
def test_a_bad_line_is_named(tmp_path, change, message):
    make(tmp_path, VIDEO, dataclasses.replace(VIDEO, **change))
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Manifest.read(tmp_path)
    assert "manifest.csv line 3" in str(caught.value)
    assert "\n" not in str(caught.value)


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
    bad = (tmp_path / "manifest.csv").read_text().replace("0-2.5;", "")
    (tmp_path / "manifest.csv").write_text(bad)
    with pytest.raises(ValueError, match="start-end in seconds for each of the labels"):
        Manifest.read(tmp_path)


def test_a_table_without_the_newer_columns_is_read(tmp_path):
    make(tmp_path, VIDEO)
    rows = (tmp_path / "manifest.csv").read_text().splitlines()
    (tmp_path / "manifest.csv").write_text("".join(row.rsplit(",", 4)[0] + "\n" for row in rows))
    assert Manifest.read(tmp_path).videos == (VIDEO,)
