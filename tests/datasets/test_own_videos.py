"""Folders as people have them: classes, tables, shards; and what is said of any other."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from vcycle.data.manifest import Manifest
from vcycle.datasets.choices import Choices
from vcycle.datasets.folders import videos_under
from vcycle.datasets.index import index_videos
from vcycle.datasets.listing import sorted_classes
from vcycle.datasets.own_videos import index_own_videos, list_folder


def paths(listing, split):
    return [entry.path for entry in listing.entries if entry.split == split]


def test_a_folder_for_each_class(put):
    root = put("train/run/a.mp4", "train/sit/deep/b.mp4", "val/sit/c.mp4", "val/run/notes.txt")
    listing = list_folder(root)
    assert listing.classes == ("run", "sit")
    assert paths(listing, "train") == ["train/run/a.mp4", "train/sit/deep/b.mp4"]
    assert [(e.path, e.labels) for e in listing.entries if e.split == "val"] == [
        ("val/sit/c.mp4", (1,))
    ]


def test_splits_and_classes_beside_each_other_are_refused(put):
    root = put("train/run/a.mp4", "run/b.mp4", "notes/c.txt")
    with pytest.raises(ValueError, match="holds 'train', a split, and 'run', which is not; put"):
        list_folder(root)


def test_splits_within_classes_are_refused_and_not_mixed(put):
    root = put("run/train/a.mp4", "run/Test/b.mp4", "sit/train/c.mp4")
    message = "holds splits in the folders of classes, such as run/Test/b.mp4; put .* test/run$"
    with pytest.raises(ValueError, match=message):
        list_folder(root)
    listing = list_folder(put("sit/d.mp4"))
    assert listing.classes == ("run", "sit")
    assert "such as run/Test/b.mp4, are mixed; to keep them" in listing.notes[0]


def test_folders_called_like_one_split_within_classes_are_folders(put):
    listing = list_folder(put("run/training/a.mp4", "sit/train/b.mp4", "sit/train/c.mp4"))
    assert not listing.notes


def test_a_folder_above_the_splits_is_told_of(put):
    root = put("UCF/train/run/a.mp4", "UCF/val/run/b.mp4")
    with pytest.raises(ValueError, match=f"or give {root / 'UCF'}$"):
        list_folder(root)


def test_folders_named_by_numbers_are_in_their_order(put):
    root = put("train/10/a.mp4", "train/9/b.mp4")
    assert list_folder(root, val_share=0).classes == ("9", "10")


def test_a_folder_without_splits_is_split_by_name(put):
    root = put(*(f"{c}/{k}.mp4" for c in ("run", "sit") for k in range(40)))
    listing = list_folder(root, val_share=0.25)
    assert len(paths(listing, "val")) == 20
    assert len(listing.entries) == 80
    again = list_folder(put("run/100.mp4"), val_share=0.25)
    assert set(paths(listing, "val")) <= set(paths(again, "val"))
    with pytest.raises(ValueError, match="no such folder"):
        list_folder(root / "nowhere")


def test_a_link_upwards_is_no_class(put):
    root = put("train/run/a.mp4", "train/sit/b.mp4")
    (root / "train" / "up").symlink_to("..")
    (root / "train" / "run" / "up").symlink_to("..")
    listing = list_folder(root)
    assert listing.classes == ("run", "sit")
    assert paths(listing, "train") == ["train/run/a.mp4", "train/sit/b.mp4"]


def test_each_class_is_in_both_splits(put):
    root = put(*(f"run/{k}.mp4" for k in range(3)), "sit/a.mp4", "sit/b.mp4", "lie/c.mp4")
    listing = list_folder(root)
    assert {path.split("/")[0] for path in paths(listing, "val")} == {"run", "sit"}
    assert {path.split("/")[0] for path in paths(listing, "train")} == {"run", "sit", "lie"}


def test_groups_stay_on_one_side(put):
    names = [f"{c}/v_{c}_g{g:02d}_c{k:02d}.mp4" for c in "ab" for g in range(4) for k in range(3)]
    listing = list_folder(put(*names), val_share=0.25, group_pattern="_(g[0-9]+)_")
    in_val = {path.split("_")[2] for path in paths(listing, "val")}
    assert len(paths(listing, "val")) == 6
    assert in_val.isdisjoint(path.split("_")[2] for path in paths(listing, "train"))


@pytest.mark.parametrize("form", ["folders", "table", "shards"])
def test_videos_for_validation_are_of_train_if_there_are_others_for_testing_alone(put, pack, form):
    places = [("train", f"{k}") for k in range(20)] + [("test", f"t{k}") for k in range(4)]
    if form == "folders":
        top = put(*(f"{split}/{name}/{k}.mp4" for name in ("a", "b") for split, k in places))
    elif form == "table":
        top = put(*(f"{name}{k}.mp4" for name in ("a", "b") for _, k in places))
        rows = [f"{name}{k}.mp4,{name},{split}" for name in ("a", "b") for split, k in places]
        (top / "metadata.csv").write_text("\n".join(["file_name,label,split", *rows]))
    else:
        for split in ("train", "test"):
            files = {}
            for name in ("a", "b"):
                for k in (k for each, k in places if each == split):
                    files |= {f"{name}{k}.mp4": None, f"{name}{k}.cls": name.encode()}
            top = pack(f"{split}-000.tar", files).parent
    for val_share, sizes in ((0.1, (36, 4, 8)), (0.25, (30, 10, 8)), (0.0, (40, 0, 8))):
        listing = list_folder(top, val_share=val_share)
        splits = [entry.split for entry in listing.entries]
        assert tuple(splits.count(name) for name in ("train", "val", "test")) == sizes
        notes = [note for note in listing.notes if note.startswith("no split is for validation")]
        assert len(notes) == (val_share > 0)


def test_what_is_drawn_of_train_keeps_groups_together_and_every_class(put):
    names = [f"train/{name}/g{k % 5}_{k}.mp4" for name in ("a", "b") for k in range(20)]
    top = put(*names, "test/a/x.mp4", "test/b/x.mp4")
    listing = list_folder(top, val_share=0.2, group_pattern="(g[0-9])_")
    sides = {(re.search(r"g\d", each.path)[0], each.split) for each in listing.entries[2:]}
    assert len(sides) == 5
    assert {split for _, split in sides} == {"train", "val"}
    places = [f"{split}/{name}" for split in ("train", "test") for name in "ab"]
    few = put(*(f"few/{place}/{k}.mp4" for place in places for k in range(4)))
    listing = list_folder(few / "few", val_share=0.1)
    for entry in listing.entries:
        if entry.split == "val":
            (few / "few" / entry.path).write_bytes(b"damaged")
    splits = Counter(
        (video.labels, video.split)
        for video in index_videos(listing, num_workers=0).manifest.videos
    )
    assert splits[(0,), "val"] == splits[(1,), "val"] == 1


def test_a_pattern_for_videos_that_have_splits_is_noted(put):
    listing = list_folder(put("train/run/a_1.mp4", "val/run/b_1.mp4"), group_pattern="_(.)")
    assert listing.notes == (
        "group_pattern '_(.)' is not used: the videos are in folders of splits",
    )


def test_folders_without_a_video_are_noted(put):
    root = put("run/a.mp4", "run/b.mp4", "sit/c.txt", "sit/d.txt")
    (root / "empty").mkdir()
    note, read, empty = list_folder(root).notes
    assert note == "1 folder without a video left out, such as sit"
    assert empty == "1 folder without a file left out, such as empty"
    assert read.startswith("files of videos end in")


def test_videos_and_images_of_kinds_that_are_not_read_are_noted(put):
    root = put("run/a.mp4", "run/b.mp4", "run/c/1.TIF", "run/c/2.TIF", "run/d.gif", "run/e.txt")
    note, read = list_folder(root).notes
    assert note == "3 files of other kinds left out, such as run/c/1.TIF"
    assert read.endswith("images of a video's folder in .bmp, .jpeg, .jpg, .png, .webp")


def test_unreadable_videos_leave_no_class_without_validation(put):
    """Wherever the split had drawn them, as long as two are left."""
    names = [f"{c}/{k}.mp4" for c in "ab" for k in range(6)]
    root = put(*names)
    drawn = list_folder(root, val_share=0.2)
    for entry in drawn.entries:
        if entry.split == "val":
            (root / entry.path).write_bytes(b"")
    index = index_videos(drawn, num_workers=0)
    assert len(index.bad) == sum(entry.split == "val" for entry in drawn.entries) > 0
    for label in (0, 1):
        sides = Counter(each.split for each in index.manifest.videos if label in each.labels)
        assert sides["val"] == 1
        assert sides["train"] >= 4
    assert index.manifest.coverage("val") < 1
    (root / "only").mkdir()
    all_train = index_videos(list_folder(root, val_share=0), root / "only", num_workers=0)
    assert {video.split for video in all_train.manifest.videos} == {"train"}


def test_videos_beside_the_classes_are_noted(put):
    root = put("run/a.mp4", "run/b.mp4", "c.mp4", "d.mp4")
    index = index_videos(list_folder(root), num_workers=0)
    assert index.notes == ("2 videos in no folder of a class left out, such as c.mp4",)
    assert index.notes[0] in index.report()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "videos: is empty; put the videos of each class in a folder named after it"),
        (["a/", "b/"], "videos: holds 2 folders and no file; put the videos of each class in the"),
        (["a.mp4", "b.mp4"], "videos: holds 2 videos but no folder of a class; put the videos of"),
        (["train/a.mp4"], "videos: holds 1 video but no folder of a class; put the videos of"),
        (["1.jpg", "2.png"], "videos: holds 2 images and no video; a video kept as images is"),
        (["cat/1.jpg", "dog/2.jpg"], "videos: holds 2 images and no video; a video kept as images"),
        (
            ["a/notes.txt"],
            "videos: holds no video among 1 file, such as 'notes.txt'; files of",
        ),
        (["prepared.json", "a/b.mp4"], "videos: was written by `vcycle data prepare`; use its"),
    ],
)
def test_a_folder_that_cannot_be_indexed_is_described(tmp_path, names, message):
    root = tmp_path / "videos"
    root.mkdir()
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).mkdir() if name.endswith("/") else (root / name).touch()
    with pytest.raises(ValueError, match="videos: ") as caught:
        list_folder(root)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_or_a_folder(put, tmp_path):
    root = put("run/a.mp4", "run/b.mp4")
    (root / "videos.csv").write_text("path,label\nrun/a.mp4,run\n")
    assert len(index_own_videos(root, num_workers=0).manifest) == 2
    assert len(index_own_videos(root / "videos.csv", num_workers=0).manifest) == 1
    out = tmp_path / "out"
    assert len(index_own_videos(root, out, num_workers=0).manifest) == 2
    assert len(Manifest.read(out)) == 2


def test_a_hidden_folder_is_no_class(put):
    listing = list_folder(put("run/a.mp4", "sit/b.mp4", ".trash/c.mp4", "__MACOSX/d.mp4", ".e.mp4"))
    assert listing.classes == ("run", "sit")
    assert listing.notes == ()


def test_choices_are_kept_until_others_are_made(put):
    root = put(*(f"{c}/p{k // 4}_{k}.mp4" for c in "ab" for k in range(16)))

    def val_persons(**choices):
        videos = index_own_videos(root, choices=Choices(**choices), num_workers=0).manifest.videos
        names = [video.path.split("/")[1] for video in videos if video.split == "val"]
        return len(names), len({name.split("_")[0] for name in names})

    assert val_persons(val_share=0.25, group_pattern="(p[0-9])_") == (8, 1)
    assert val_persons() == (8, 1)
    assert val_persons(val_share=0.5) == (16, 2)
    assert val_persons(group_pattern="", val_share=0.25)[0] == 8
    assert val_persons()[1] > 1
    with pytest.raises(ValueError, match="is not a regular expression"):
        val_persons(group_pattern="(")
    kept = replace(Choices.read(root), manifest_sha256=None)
    assert kept == Choices(None, 0.25, "", source=".")
    (root / "index.json").write_text('{"val": 1}')
    with pytest.raises(ValueError, match=r"index\.json: is not JSON of flip, val_share"):
        val_persons()


def test_prepared_copies_beside_the_classes_are_no_class(put):
    root = put("run/a.mp4", "sit/b.mp4", "fast/run/a.mp4", "fast/sit/b.mp4")
    (root / "fast" / "prepared.json").write_text("{}")
    listing = list_folder(root, val_share=0)
    assert [entry.path for entry in listing.entries] == ["run/a.mp4", "sit/b.mp4"]


def test_a_class_that_links_to_another_is_said(put):
    root = put("run/a.mp4", "run/b.mp4", "sit/c.mp4")
    (root / "jog").symlink_to(root / "run")
    listing = list_folder(root, val_share=0)
    assert len(listing.entries) == 5
    [note] = listing.notes
    assert note.startswith("2 videos listed again by a link, such as run/a.mp4, which is jog/a.mp4")


def test_classes_of_numbers_have_one_order():
    for names in (["01", "1", "2", "10"], ["2", "10", "1", "01"]):
        assert sorted_classes(names) == ("01", "1", "2", "10")
    assert sorted_classes(["9" * 5000, "1"]) == ("1", "9" * 5000)  # no number


def test_a_manifest_goes_where_one_is_with_the_videos_beside_it(put, tmp_path, monkeypatch):
    root = put("one/run/a.mp4", "one/sit/b.mp4")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    out = index_own_videos(Path(os.path.relpath(root / "one")), Path(), num_workers=0).manifest
    assert all(video.path.startswith("file:///") for video in out.videos)
    assert len(Manifest.read(".")) == 2


def test_a_path_that_no_file_can_have_is_missing_not_the_end(put):
    root = put("run/a.mp4", "sit/b.mp4")
    table = root / "videos.csv"
    table.write_text(f"path,label\nrun/a.mp4,run\nsit/b.mp4,sit\n{'x' * 300}.mp4,run\n")
    indexed = index_own_videos(table, num_workers=0)
    assert len(indexed.manifest) == 2
    assert [name for name, _ in indexed.missing] == ["x" * 300 + ".mp4"]


@pytest.mark.parametrize("split", ["train/", ""])
def test_links_deeper_down_are_said_too(put, split):
    root = put(f"{split}run/a.mp4", f"{split}sit/b.mp4", f"{split}sit/deep/c.mp4")
    (root / f"{split}run" / "more").symlink_to(root / f"{split}sit" / "deep")
    assert any("1 video listed again by a link" in note for note in list_folder(root).notes)


def test_copies_that_were_prepared_are_not_found_in_place_of_videos(put):
    root = put("fast/a.mp4", "run/a.mp4")
    (root / "fast" / "prepared.json").write_text("{}")
    assert [path.relative_to(root).as_posix() for path in videos_under(root)] == ["run/a.mp4"]
    assert len(videos_under(root / "fast")) == 1


def test_links_that_lead_in_a_circle_are_bad_videos(tmp_path, small_video):
    for name in ("run", "sit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.mp4").write_bytes(small_video.read_bytes())
        (tmp_path / name / "b.mp4").write_bytes(small_video.read_bytes())
    (tmp_path / "run" / "circle.mp4").symlink_to("circle.mp4")
    indexed = index_videos(list_folder(tmp_path), num_workers=0)
    assert len(indexed.manifest) == 4
    assert list(indexed.bad) == ["run/circle.mp4"]
