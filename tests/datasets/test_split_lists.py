"""Lists of paths and classes, a file for each split, in the forms of several frameworks."""

from __future__ import annotations

import pytest

from vcycle.cli.main import main
from vcycle.data.manifest import Manifest
from vcycle.datasets.split_lists import list_splits


@pytest.mark.parametrize("mark", [" ", ",", ", ", "\t", ";", "  "])
def test_any_mark_parts_a_path_from_its_class(put, tmp_path, mark):
    root = put("run/a b.mp4", "walk/c,d.mp4", "e.mp4")
    absolute = root / "e.mp4"
    train = tmp_path / "train.txt"
    train.write_text(f"run/a b.mp4{mark}0\n\nwalk/c,d.mp4{mark}3\ngone.mp4{mark}1\n")
    (tmp_path / "val.txt").write_text(f"{absolute}{mark}1\n")
    listing = list_splits(root, {"train": train, "val": tmp_path / "val.txt"})
    assert listing.classes == ("0", "1", "2", "3")
    assert [(each.path, each.labels, each.split) for each in listing.entries] == [
        ("run/a b.mp4", (0,), "train"),
        ("walk/c,d.mp4", (3,), "train"),
        (f"file://{absolute}", (1,), "val"),
    ]
    assert listing.missing == (("gone.mp4", "train"),)


def test_names_of_classes_and_folders_of_frames(put, tmp_path):
    root = put("a.mp4", "b.mp4")
    (root / "frames 1").mkdir()
    train, names = tmp_path / "train.txt", tmp_path / "names.txt"
    train.write_text("a.mp4 1\nframes 1 120 0\n")
    names.write_text("running fast\n7\n\n")
    listing = list_splits(root, {"train": train}, classes=names)
    assert listing.classes == ("running fast", "7")
    assert [(each.path, each.labels) for each in listing.entries] == [
        ("a.mp4", (1,)),
        ("frames 1", (0,)),
    ]
    train.write_text("a.mp4 walk\nb.mp4 run\n")
    listing = list_splits(root, {"train": train})
    assert (listing.classes, listing.entries[0].labels) == (("run", "walk"), (1,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4\n", "train.txt line 1: 'a.mp4' is one word; give a path and a class on each line"),
        ("\n", "train.txt: list no video; give a path and a class on each line"),
        ("a.mp4 2\n", "train.txt: class '2' of a.mp4 is none of the 2 in "),
        ("a.mp4 run\n", "train.txt: class 'run' of a.mp4 is none of the 2 in "),
    ],
)
def test_mistakes_in_lists(put, tmp_path, text, message):
    root = put("a.mp4")
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "names.txt").write_text("x\ny\n")
    (tmp_path / "large.txt").write_text("a.mp4 1000000000000\n")
    with pytest.raises(ValueError, match="numbers of classes go up to 999,999"):
        list_splits(root, {"train": tmp_path / "large.txt"})
    with pytest.raises(ValueError) as caught:  # noqa: PT011  compared below
        list_splits(root, {"train": tmp_path / "train.txt"}, classes=tmp_path / "names.txt")
    assert message in str(caught.value)
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
