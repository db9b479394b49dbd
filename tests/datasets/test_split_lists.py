"""Lists of paths and classes, a file for each split, in the forms of several frameworks."""

from __future__ import annotations

import re

import pytest

from vcycle.cli.main import main
from vcycle.data.manifest import Manifest
from vcycle.datasets.split_lists import list_splits


@pytest.mark.parametrize("mark", [" ", ",", ", ", "\t", ";", "  "])
def test_any_mark_parts_a_path_from_its_class(put, tmp_path, mark):
    root = put("run/a b.mp4", "walk/c,d.mp4", "e.mp4")
    absolute = root / "e.mp4"
    train = tmp_path / "train.txt"
    train.write_text(f"run/a b.mp4{mark}00\n\nwalk/c,d.mp4{mark}3\ngone.mp4{mark}1\n")
    (tmp_path / "val.txt").write_text(f"{absolute}{mark}1\n")
    listing = list_splits(root, {"train": train, "val": tmp_path / "val.txt"})
    assert listing.classes == ("0", "1", "2", "3")
    assert [(each.path, each.labels, each.split) for each in listing.entries] == [
        ("run/a b.mp4", (0,), "train"),
        ("walk/c,d.mp4", (3,), "train"),
        ("e.mp4", (1,), "val"),
    ]
    assert listing.missing == (("gone.mp4", "train"),)
    assert listing.notes == ()


@pytest.mark.parametrize("mark", [" ", ","])
def test_names_of_classes_and_folders_of_frames(put, tmp_path, mark):
    root = put("a.mp4", "b.mp4")
    (root / "frames 1").mkdir()
    train, names = tmp_path / "train.txt", tmp_path / "names.txt"
    train.write_text(f"a.mp4{mark}1\nframes 1{mark}120{mark}0\na.mp4{mark}0\n")
    names.write_text("running fast\n7\n\n")
    listing = list_splits(root, {"train": train}, classes=names)
    assert listing.classes == ("running fast", "7")
    assert [(each.path, each.labels) for each in listing.entries] == [
        ("a.mp4", (1,)),
        ("frames 1", (0,)),
        ("a.mp4", (0,)),
    ]
    assert listing.notes == ("1 video on several lines, such as a.mp4",)
    train.write_text("a.mp4,walk fast\nb.mp4,run\n")
    listing = list_splits(root, {"train": train})
    assert (listing.classes, listing.entries[0].labels) == (("run", "walk fast"), (1,))


@pytest.mark.parametrize("mark", [" ", ",", ", ", ";"])
def test_words_in_quotes(put, tmp_path, mark):
    """As Python's csv and pandas write those with the mark in them."""
    root = put("air drumming/0.mp4", "a, b.mp4", "c.mp4", 'say "hi".mp4', '"quoted".mp4')
    (root / "frames; 1").mkdir()
    train = tmp_path / "train.txt"
    lines = [
        f'"air drumming/0.mp4"{mark}"air drumming"',
        f'"a, b.mp4"{mark}abseiling',
        f'c.mp4{mark}"say ""hi"", twice"',
        f'"say ""hi"".mp4"{mark}abseiling',
        f'"quoted".mp4{mark}abseiling',
        f'"frames; 1"{mark}120{mark}abseiling',
        f'"frames; 1"{mark}"120"{mark}"abseiling"',
        f'"gone, 1.mp4"{mark}abseiling',
    ]
    train.write_text("\n".join(lines))
    listing = list_splits(root, {"train": train})
    assert listing.classes == ("abseiling", "air drumming", 'say "hi", twice')
    assert [(each.path, each.labels) for each in listing.entries] == [
        ("air drumming/0.mp4", (1,)),
        ("a, b.mp4", (0,)),
        ("c.mp4", (2,)),
        ('say "hi".mp4', (0,)),
        ('"quoted".mp4', (0,)),
        ("frames; 1", (0,)),
        ("frames; 1", (0,)),
    ]
    assert listing.missing == (("gone, 1.mp4", "train"),)
    names = tmp_path / "names.txt"
    names.write_text('abseiling\n"air drumming"\n"say ""hi"", twice"\n')
    assert list_splits(root, {"train": train}, classes=names).classes == listing.classes


def test_a_mark_that_is_in_all_paths_parts_nothing(put, tmp_path):
    root = put("x, y/a.mp4", "x, y/b.mp4")
    train = tmp_path / "train.txt"
    train.write_text("x, y/gone.mp4 0\nx, y/a.mp4 0\nx, y/b.mp4 1\n")
    listing = list_splits(root, {"train": train})
    assert [(each.path, each.labels) for each in listing.entries] == [
        ("x, y/a.mp4", (0,)),
        ("x, y/b.mp4", (1,)),
    ]
    put("x")  # a folder of that name, which is no video of every line
    train.write_text("x,1/a.mp4 0\nx,1/b.mp4 1\n")
    put("x,1/a.mp4", "x,1/b.mp4")
    assert [entry.path for entry in list_splits(root, {"train": train}).entries] == [
        "x,1/a.mp4",
        "x,1/b.mp4",
    ]
    train.write_text("s3://b/a,b/x.mp4 0\ns3://b/a,b/y.mp4 1\n")
    assert [entry.path for entry in list_splits(root, {"train": train}).entries] == [
        "s3://b/a,b/x.mp4",
        "s3://b/a,b/y.mp4",
    ]


@pytest.mark.parametrize(("listed", "noted"), [(3, False), (2, True), (4, True)])
def test_another_number_of_frames_than_is_listed_is_said(put, tmp_path, listed, noted):
    root = put(*(f"frames/img_{k}.jpg" for k in range(3)), "empty/x.txt")
    train = tmp_path / "train.txt"
    train.write_text(f"empty 7 0\nframes {listed} 0\n")
    notes = list_splits(root, {"train": train}).notes
    said = (
        f"folders hold another number of images than is listed, such as frames 3 and not {listed}"
    )
    assert [note.partition(":")[0] for note in notes] == ([said] if noted else [])


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("a.mp4\n", None, "train.txt line 1: 'a.mp4' is one word; give a path and a class on"),
        ("a.mp4,\n", None, "train.txt line 1: 'a.mp4,' is one word; give a path and a class on"),
        ("gone\x1b.mp4 0\n", None, "line 1: path 'gone\\x1b.mp4' has a line break or another con"),
        ("\n", None, "train.txt: list no video; give a path and a class on each line"),
        ("a.mp4 0 1\n", None, "line 1: 'a.mp4 0 1' names several classes, which `vcycle data in"),
        ("path label\na.mp4 1\n", None, "class 'label' of path: others have numbers; give a num"),
        ("a.mp4 1000000000000\n", None, "class 1000000000000: numbers of classes go up to 999,9"),
        ("a.mp4 2\n", "x\ny\n", "train.txt: class '2' of a.mp4 is none of the 2 in "),
        ("a.mp4 run\n", "x\ny\n", "train.txt: class 'run' of a.mp4 is none of the 2 in "),
        ("a.mp4 1\n", "x\n\ny\n", "names.txt line 2: names no class; give each class a line"),
        ("a.mp4 1\n", "x\ny\nx\n", "names.txt: names class 'x' 2 times; give each class a line"),
    ],
)
def test_mistakes_in_lists(put, tmp_path, text, names, message):
    root = put("a.mp4")
    (tmp_path / "train.txt").write_text(text)
    classes = tmp_path / "names.txt" if names else None
    if names:
        classes.write_text(names)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        list_splits(root, {"train": tmp_path / "train.txt"}, classes=classes)
    assert "\n" not in str(caught.value)


def test_the_command_of_lists(put, tmp_path, capsys):
    root = put("a.mp4", "b.mp4", "c.mp4", "d.mp4")
    for split, lines in (("train", "a.mp4 0\nb.mp4 1\n"), ("val", "c.mp4 0\nd.mp4 1\n")):
        (tmp_path / f"{split}.csv").write_text(lines)
    words = [f"--train={tmp_path / 'train.csv'}", f"--val={tmp_path / 'val.csv'}"]
    assert main(["data", "index", "lists", str(root), *words, "--workers", "0"]) == 0
    splits = [(video.path, video.labels, video.split) for video in Manifest.read(root).videos]
    assert splits == [
        ("a.mp4", (0,), "train"),
        ("b.mp4", (1,), "train"),
        ("c.mp4", (0,), "val"),
        ("d.mp4", (1,), "val"),
    ]
    capsys.readouterr()
    assert main(["data", "index"]) == 2
    assert "folder | table | lists | kinetics" in capsys.readouterr().err
