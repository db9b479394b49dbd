"""The public datasets' own files, as their authors publish them, in miniature."""

from __future__ import annotations

import json

import av
import numpy as np
import pytest

from tests.encode import encode, numbered_frames
from vcycle.data.manifest import Manifest
from vcycle.datasets.annotations import (
    list_charades,
    list_hmdb51,
    list_kinetics,
    list_something,
    list_ucf101,
)
from vcycle.datasets.index import index_videos


def paths(listing, split):
    return [entry.path for entry in listing.entries if entry.split == split]


def test_kinetics(put, tmp_path):
    root = put("train/abseiling/_4YTwq0-73Y_000044_000054.mp4", "val/x/--Ab.mkv", "a/unlisted.mp4")
    table = tmp_path / "kinetics.csv"
    table.write_text(
        "label,youtube_id,time_start,time_end,split,is_cc\n"
        "abseiling,_4YTwq0-73Y,44,54,train,0\n"
        '"air drumming",gone1234567,10,20,train,0\n'
        "abseiling,--Ab,0,10,validate,0\n"
    )
    listing = list_kinetics(root, table)
    assert listing.classes == ("abseiling", "air drumming")
    assert paths(listing, "train") == ["train/abseiling/_4YTwq0-73Y_000044_000054.mp4"]
    assert paths(listing, "val") == ["val/x/--Ab.mkv"]
    assert listing.missing == (("gone1234567_000010_000020", "train"),)
    assert listing.notes == ()
    with table.open("a") as file:
        file.write("abseiling,--Ab,0,10,validate,0\n")
    again = list_kinetics(root, table)
    assert again.entries == listing.entries
    assert again.notes == ("1 row left out as one before says the same",)
    table.write_text("label,split\n")
    with pytest.raises(ValueError, match="no column youtube_id"):
        list_kinetics(root, table)


def test_kinetics_takes_the_part_that_is_listed_of_a_whole_video(put, tmp_path):
    """Not of a file that is that part already, under the video's name."""
    root = put("run/part.mp4", "run/near.mp4")
    encode(root / "run" / "whole.mp4", numbered_frames(59, 32, 48))  # 5.9 s
    table = tmp_path / "kinetics.csv"
    table.write_text(
        "label,youtube_id,time_start,time_end,split\n"
        "run,whole,1,2,train\nwalk,whole,4,6,train\nwalk,part,44,54,train\nrun,near,0,1,train\n"
    )
    videos = index_videos(list_kinetics(root, table), num_workers=0).manifest.videos
    assert [(each.path, each.labels, each.start_seconds, each.end_seconds) for each in videos] == [
        ("run/whole.mp4", (0,), 1.0, 2.0),
        ("run/whole.mp4", (1,), 4.0, pytest.approx(5.9)),  # lists have whole seconds
        ("run/part.mp4", (1,), 0.0, 0.0),
        ("run/near.mp4", (0,), 0.0, 0.0),
    ]
    table.write_text("label,youtube_id,time_start,time_end,split\nrun,whole,4,4,train\n")
    with pytest.raises(ValueError, match=r"time_end 4\.0: is not after time_start 4\.0"):
        list_kinetics(root, table)


def test_kinetics_finds_videos_beside_a_stray_image_and_by_links(put, tmp_path):
    root = put("store/x/abc_000000_000010.mp4", "train/contact_sheet.png")
    (root / "train" / "run").symlink_to(root / "store")
    (root / "train" / "up").symlink_to("..")
    table = tmp_path / "kinetics.csv"
    table.write_text("label,youtube_id,time_start,time_end,split\nrun,abc,0,10,train\n")
    assert paths(list_kinetics(root, table), "train") == ["store/x/abc_000000_000010.mp4"]


def something(tmp_path, *names):
    (tmp_path / "labels.json").write_text(json.dumps({n: str(i) for i, n in enumerate(names)}))
    for file, ids in (("train.json", "12"), ("val.json", "34")):
        items = [
            {"id": i, "label": "x", "template": f"[Something] {names[0]}"[12:], "placeholders": []}
            for i in ids
        ]
        (tmp_path / file).write_text(json.dumps(items))
    return {f: tmp_path / f"{f}.json" for f in ("labels", "train", "val")}


def test_something_something(put, tmp_path):
    root = put("1.webm", "3/frame_1.jpg")
    files = something(tmp_path, "Pushing something", "Pulling something from left to right")
    listing = list_something(root, **files)
    assert listing.classes == ("Pushing something", "Pulling something from left to right")
    assert (paths(listing, "train"), paths(listing, "val")) == (["1.webm"], ["3"])
    assert listing.missing == (("2", "train"), ("4", "val"))
    assert not any(video.flip for video in index_videos(listing, num_workers=0).manifest.videos)
    files = something(tmp_path, "Pushing something")
    index = index_videos(list_something(root, **files), num_workers=0)
    assert all(video.flip for video in index.manifest.videos)


def test_charades(put, tmp_path):
    root = put("46GP8.mp4", "N11GT.mp4")
    (tmp_path / "classes.txt").write_text("c000 Holding some clothes\nc001 Putting on shoes\n")
    header = "id,subject,scene,actions,length\n"
    (tmp_path / "train.csv").write_text(
        f'{header}46GP8,HR43,Kitchen,c001 11.90 21.20;c000 0.00 12.60,24.8\nX,A,B,"",3\n'
    )
    (tmp_path / "val.csv").write_text(f"{header}N11GT,0KZ7,Stairs,,15\n")
    files = {"train": tmp_path / "train.csv", "val": tmp_path / "val.csv"}
    listing = list_charades(root, classes=tmp_path / "classes.txt", **files)
    assert listing.classes == ("Holding some clothes", "Putting on shoes")
    first, second = listing.entries
    assert (first.labels, first.spans) == ((1, 0), ((11.9, 21.2), (0.0, 12.6)))
    assert (second.path, second.labels) == ("N11GT.mp4", ())
    assert listing.missing == (("X", "train"),)
    manifest = index_videos(listing, num_workers=0).manifest
    assert manifest.multi_label
    assert manifest.videos[0].labels_between(12.0, 12.5) == (0, 1)
    assert Manifest.read(root) == manifest


def test_charades_as_folders_of_frames(tmp_path):
    rgb = tmp_path / "Charades_v1_rgb"
    (rgb / "46GP8").mkdir(parents=True)
    for k in range(1, 31):
        frame = av.VideoFrame.from_ndarray(np.zeros((24, 32, 3), np.uint8), format="rgb24")
        frame.save(str(rgb / "46GP8" / f"46GP8-{k:06d}.jpg"))
    (tmp_path / "Charades_v1_classes.txt").write_text("c000 Holding some clothes\n")
    columns = "id,subject,scene,quality,relevance,verified,script,objects,descriptions,actions"
    head = f"{columns},length\n"
    cells = 'A person, holding clothes.",clothes,"A person stands.",c000 0.00 1.20'
    (tmp_path / "train.csv").write_text(f'{head}46GP8,HR43,Kitchen,6,7,Yes,"{cells},1.25\n')
    (tmp_path / "test.csv").write_text(head)
    listing = list_charades(
        rgb,
        classes=tmp_path / "Charades_v1_classes.txt",
        train=tmp_path / "train.csv",
        val=tmp_path / "test.csv",
    )
    (video,) = index_videos(listing, num_workers=0).manifest.videos
    assert (video.path, video.num_frames, video.frame_rate) == ("46GP8", 30, 24)
    assert video.spans == ((0.0, 1.2),)


def test_ucf101(put, tmp_path):
    root = put("Archery/v_Archery_g01_c01.avi", "Archery/v_Archery_g02_c01.avi")
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "classInd.txt").write_text("1 ApplyLipstick\n2 Archery\n")
    (splits / "trainlist01.txt").write_text(
        "Archery/v_Archery_g01_c01.avi 2\nApplyLipstick/v_gone.avi 1\n"
    )
    (splits / "testlist01.txt").write_text("Archery/v_Archery_g02_c01.avi\n")
    listing = list_ucf101(root, splits)
    assert listing.classes == ("ApplyLipstick", "Archery")
    assert [entry.labels for entry in listing.entries] == [(1,), (1,)]
    assert [entry.split for entry in listing.entries] == ["train", "val"]
    assert listing.missing == (("ApplyLipstick/v_gone.avi", "train"),)


def test_hmdb51(put, tmp_path):
    root = put("clap/a.avi", "brush_hair/b.avi", "brush_hair/c.avi")
    splits = tmp_path / "splits"
    splits.mkdir()
    (splits / "brush_hair_test_split1.txt").write_text("b.avi 1 \nc.avi 2 \nd.avi 0 \n")
    (splits / "clap_test_split1.txt").write_text("a.avi 1 \ngone.avi 2 \n")
    (splits / "._clap_test_split1.txt").write_bytes(b"\xb0")  # as a Mac leaves them
    listing = list_hmdb51(root, splits)
    assert listing.classes == ("brush_hair", "clap")
    assert paths(listing, "train") == ["brush_hair/b.avi", "clap/a.avi"]
    assert paths(listing, "val") == ["brush_hair/c.avi"]
    assert listing.missing == (("clap/gone.avi", "val"),)
    with pytest.raises(ValueError, match="test_split3"):
        list_hmdb51(root, splits, split=3)


def test_a_whole_video_that_ends_early_is_not_its_part(tmp_path):
    """Only what is about as long as the listed part can be that part."""
    (tmp_path / "a").mkdir()
    encode(tmp_path / "a" / "whole.mp4", numbered_frames(50, 32, 48))
    table = tmp_path / "kinetics.csv"
    table.write_text("label,youtube_id,time_start,time_end,split\njump,whole,6,8,train\n")
    with pytest.raises(ValueError, match=r"bad\.csv"):
        index_videos(list_kinetics(tmp_path, table), num_workers=0)
    assert "the video ends at 5.00 s" in (tmp_path / "bad.csv").read_text()


def test_of_two_files_of_one_kinetics_name_the_other_is_said(put, tmp_path):
    root = put("a/vid.mkv", "a/vid.webm")
    table = tmp_path / "kinetics.csv"
    table.write_text("label,youtube_id,split\njump,vid,train\n")
    listing = list_kinetics(root, table)
    assert paths(listing, "train") == ["a/vid.mkv"]
    assert (
        "1 file of a name that another has left out, such as a/vid.webm for a/vid.mkv"
        in listing.notes[0]
    )


def test_ucf101_and_hmdb51_that_were_rewritten_are_found(put, tmp_path):
    root = put("Jump/v_Jump_g01.mp4", "jump/a.mp4")
    (tmp_path / "classInd.txt").write_text("1 Jump\n")
    (tmp_path / "trainlist01.txt").write_text("Jump/v_Jump_g01.avi 1\n")
    (tmp_path / "testlist01.txt").write_text("Jump/v_Jump_g02.avi\n")
    listing = list_ucf101(root, tmp_path)
    assert paths(listing, "train") == ["Jump/v_Jump_g01.mp4"]
    assert listing.missing == (("Jump/v_Jump_g02.avi", "val"),)
    (tmp_path / "jump_test_split1.txt").write_text("a.avi 1\n")
    assert paths(list_hmdb51(root, tmp_path), "train") == ["jump/a.mp4"]
