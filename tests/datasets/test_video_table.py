"""Tables that people write: every form gives the same videos; mistakes name file and line."""

from __future__ import annotations

import builtins
import json
import re

import numpy as np
import pytest

from tests.encode import encode, frame_number, numbered_frames
from vcycle.cli.main import main
from vcycle.data.dataset import ClipDataset
from vcycle.data.grid import GridRange, View
from vcycle.data.manifest import Manifest
from vcycle.data.request import ClipRequest
from vcycle.datasets.index import index_videos
from vcycle.datasets.own_videos import list_folder
from vcycle.datasets.video_table import list_table
from vcycle.schedule.shape import Shape

ROWS = [
    {"path": "a.mp4", "label": "run", "split": "train", "start": 1.5, "end": 3.0, "group": "x"},
    {"path": "b.mp4", "label": "sit", "split": "validation", "start": 0.0, "end": 0.0, "group": ""},
    {"path": "gone.mp4", "label": "sit", "split": "val", "start": 0.0, "end": 0.0, "group": ""},
]


def write(path, rows):
    """A table in the form that its suffix names."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [rows[0], *(row.values() for row in rows)]
        path.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_every_form_of_a_table(put, suffix):
    listing = list_table(write(put("a.mp4", "b.mp4") / f"videos{suffix}", ROWS))
    assert listing.classes == ("run", "sit")
    first, second = listing.entries
    assert (first.path, first.labels, first.split) == ("a.mp4", (0,), "train")
    assert (first.start_seconds, first.end_seconds) == (1.5, 3.0)
    assert (second.path, second.labels, second.split) == ("b.mp4", (1,), "val")
    assert listing.missing == (("gone.mp4", "val"),)


def test_several_labels_and_numbered_classes(put):
    root = put("a.mp4", "b.mp4")
    (root / "t.csv").write_text("path,labels\na.mp4,10;9;10\nb.mp4,\n")
    listing = list_table(root / "t.csv", val_share=0)
    assert listing.classes == ("9", "10")
    assert [entry.labels for entry in listing.entries] == [(1, 0), ()]
    assert index_videos(listing, num_workers=0).manifest.multi_label


def test_what_a_label_may_mean_is_said(put):
    root = put("a.mp4", "b.mp4", "c.mp4")
    (root / "t.csv").write_text("Path, Label\na.mp4,run;walk\nb.mp4, walk\n")
    listing = list_table(root / "t.csv", val_share=0)
    assert listing.classes == ("run;walk", "walk")
    assert listing.notes == ("class 'run;walk' is one class; for several, call the column labels",)
    (root / "t.csv").write_text("path,labels\na.mp4,run\nb.mp4,walk\nc.mp4,\n")
    (note,) = list_table(root / "t.csv", val_share=0).notes
    assert note == (
        "1 video with no or several labels, such as 'c.mp4': each class is scored by itself (mAP)"
    )


def test_paths_are_found_wherever_they_are(put, tmp_path):
    root = put("a b.mp4", "run/c.mp4")
    table = tmp_path / "lists" / "t.csv"
    table.parent.mkdir()
    table.write_text(f"uri,label\n../videos/a b.mp4,x\n{root}/run/c.mp4,x\ns3://bucket/d.mp4,x\n")
    listing = list_table(table)
    uris = [f"file://{root}/a%20b.mp4", f"file://{root}/run/c.mp4", "s3://bucket/d.mp4"]
    assert [entry.path for entry in listing.entries] == uris
    table.write_text("file_name,label\nrun/c.mp4,x\n")
    assert [entry.path for entry in list_table(table, videos=root).entries] == ["run/c.mp4"]
    table.write_text(f"uri,label\n{root}/run/c.mp4,x\n../videos/a b.mp4,x\n")
    index = index_videos(list_table(table, val_share=0.5), num_workers=0)
    assert sorted(video.split for video in index.manifest.videos) == ["train", "val"]
    assert Manifest.read(table.parent) == index.manifest


def test_absolute_paths_that_are_not_there_are_missing(put):
    root = put("a.mp4")
    (root / "t.csv").write_text(f"path,label,split\n{root}/a.mp4,x,train\n{root}/b.mp4,y,val\n")
    listing = list_table(root / "t.csv")
    assert [entry.path for entry in listing.entries] == ["a.mp4"]
    assert listing.missing == (("b.mp4", "val"),)


def test_rows_that_are_there_twice_count_once_and_others_of_one_video_are_said(put):
    root = put("a.mp4", "b.mp4")
    (root / "t.csv").write_text("path,label\na.mp4,x\nb.mp4,x\na.mp4,x\nb.mp4,y\n")
    listing = list_table(root / "t.csv", val_share=0)
    assert [(each.path, each.labels) for each in listing.entries] == [
        ("a.mp4", (0,)),
        ("b.mp4", (0,)),
        ("b.mp4", (1,)),
    ]
    again, several = listing.notes
    assert again == "1 row left out as one before says the same"
    assert several.startswith("1 video in several rows that differ, such as b.mp4: give each one")


def test_rows_of_a_group_or_of_a_video_stay_on_one_side(put):
    root = put(*(f"{k}.mp4" for k in range(8)))
    rows = [f"{k}.mp4,x,p{k // 2}\n" for k in range(8)]
    (root / "t.csv").write_text("path,label,group\n" + "".join(rows))
    splits = [entry.split for entry in list_table(root / "t.csv", val_share=0.25).entries]
    assert splits[::2] == splits[1::2]
    assert splits.count("val") == 2
    rows = [f"{k // 4}.mp4,x,{k % 4},{k % 4 + 1}\n" for k in range(32)]
    (root / "t.csv").write_text("path,label,start,end\n" + "".join(rows))
    splits = [entry.split for entry in list_table(root / "t.csv", val_share=0.25).entries]
    assert all(len(set(splits[k : k + 4])) == 1 for k in range(0, 32, 4))
    assert splits.count("val") == 8


def test_groups_that_share_a_video_are_one(put):
    """Two people in one video, of whom one is in another, too."""
    root = put(*(f"{k}.mp4" for k in range(9)))
    rows = [
        "0.mp4,x,ann,0,1",
        "0.mp4,x,bob,1,2",
        "1.mp4,x,bob,0,1",
        "2.mp4,x,,0,1",
        "2.mp4,x,cid,1,2",
        "3.mp4,x,dan,0,1",
        "4.mp4,x,eve,0,1",
        "4.mp4,x,dan,1,2",  # both have a video by now
    ]
    rows += [f"{k}.mp4,x,p{k},0,1" for k in range(5, 9)]
    (root / "t.csv").write_text("path,label,group,start,end\n" + "\n".join(rows))
    for share in (0.1, 0.2, 0.3, 0.4, 0.5):
        entries = list_table(root / "t.csv", val_share=share).entries
        assert len({entry.group for entry in entries}) == 7
        sides = [entry.split for entry in entries]
        assert [len(set(sides[a:b])) for a, b in ((0, 3), (3, 5), (5, 8))] == [1, 1, 1]
        assert {"train", "val"} == set(sides)


def test_many_groups_that_follow_from_each_other_are_one_soon(put):
    root = put("0.mp4", "1.mp4")
    rows = [f"{k // 2}.mp4,x,p{k % 2 + k // 2},{k % 2},{k % 2 + 1}" for k in range(40_000)][::-1]
    rows += [f"v{k}.mp4,x,q{k % 2},0,1" for k in range(4)]
    (root / "t.csv").write_text("path,label,group,start,end\n" + "\n".join(rows))
    entries = list_table(root / "t.csv", val_share=0.5)
    assert len(entries.missing) == 39_996 + 4
    assert len({entry.group for entry in entries.entries}) == 1


def test_what_is_not_used_of_a_table_is_said(put):
    root = put("a.mp4", "b.mp4")

    def notes(text, **options):
        (root / "t.csv").write_text(text)
        return list_table(root / "t.csv", **options).notes

    (note,) = notes("path,label,spilt\na.mp4,x,train\nb.mp4,x,val\n")
    assert note.startswith("column not read: 'spilt'; those with a meaning are path, uri,")
    (note,) = notes(",path,uri,label,labels\n0,a.mp4,b.mp4,x,y\n")  # as pandas writes an index
    assert note.startswith("columns not read: 'uri', 'label'; ")
    with_splits = "path,label,split,group\na.mp4,x,train,p\nb.mp4,x,val,p\n"
    assert notes(with_splits) == ("column group is not used: the table has splits",)
    drawn = notes(with_splits.replace("val", "train"))
    assert not any("not used" in note for note in drawn)
    without = "path,label,group\na.mp4,x,p\nb.mp4,x,p\n"
    assert notes(without) == ()
    assert notes(without, group_pattern="(.)") == (
        "column group is not used: --group-pattern is given",
    )
    row = {"file_name": "a.mp4", "label": "x", **dict.fromkeys("fghij", 0)}
    (root / "metadata.jsonl").write_text(json.dumps(row) + "\n")
    (note,) = list_folder(root).notes
    assert note.startswith("columns not read: 'f', 'g', 'h', 'i', ...;")


def test_hugging_faces_metadata(put):
    root = put("train/1.mp4", "train/sub/2.mp4", "test/3.mp4")
    (root / "train/metadata.csv").write_text("file_name,label\n1.mp4,run\nsub/2.mp4,sit\n")
    (root / "test/metadata.jsonl").write_text('{"file_name": "3.mp4", "label": "run"}\n')
    listing = list_folder(root)
    assert [(entry.path, entry.split) for entry in listing.entries] == [
        ("test/3.mp4", "test"),
        ("train/1.mp4", "train"),
        ("train/sub/2.mp4", "train"),
    ]
    flat = put("../flat/1.mp4", "../flat/2.mp4").parent / "flat"
    (flat / "metadata.csv").write_text("file_name,label\n1.mp4,0\n2.mp4,0\n")
    assert sorted(entry.split for entry in list_folder(flat).entries) == ["train", "val"]


def test_a_table_of_other_columns_beside_class_folders_is_not_read(put):
    root = put("run/1.mp4", "sit/2.mp4")
    (root / "metadata.csv").write_text("id,original_file_name\n1,x.avi\n")
    assert list_folder(root).classes == ("run", "sit")


def test_metadata_may_name_videos_beside_its_folder(put):
    """In the manifest they are where the dataset is, wherever it is moved."""
    root = put("videos/1.mp4", "videos/2 2.mp4", "../other/3.mp4")
    (root / "train").mkdir()
    rows = ["../videos/1.mp4,run", "../videos/2 2.mp4,sit", "../../other/3.mp4,run"]
    (root / "train/metadata.csv").write_text("\n".join(["file_name,label", *rows]))
    outside = f"file://{root.parent}/other/3.mp4"
    listing = list_folder(root)
    paths = [entry.path for entry in listing.entries]
    assert sorted(paths) == [outside, "videos/1.mp4", "videos/2 2.mp4"]
    index = index_videos(listing, root.parent, num_workers=0)
    paths = [video.path for video in index.manifest.videos]
    assert sorted(paths) == ["other/3.mp4", "videos/videos/1.mp4", "videos/videos/2 2.mp4"]


def test_a_metadata_table_of_something_else_is_no_list_of_videos(put):
    root = put("run/1.mp4", "run/2.mp4")
    (root / "metadata.csv").write_text("camera,place\n1,park\n")
    assert len(list_folder(root).entries) == 2


def test_clips_come_from_the_part_of_the_video_that_a_row_names(tmp_path):
    encode(tmp_path / "v.mp4", numbered_frames(40), rate=10)
    (tmp_path / "t.csv").write_text(
        "path,label,split,start,end\nv.mp4,a,train,1,2\nv.mp4,b,train,3.5,\nv.mp4,c,train,,0.2\n"
        "v.mp4,a,train,9,\n"
    )
    index = index_videos(list_table(tmp_path / "t.csv"), num_workers=0)
    manifest = Manifest.read(tmp_path)
    assert index.bad == {"v.mp4 from 9.0 s": "the video ends at 4.00 s"}
    ranges = [video.frame_range for video in manifest.videos]
    assert ranges == [range(10, 20), range(35, 40), range(2)]
    shape = Shape(4, 32, 32)
    for segments in (False, True):
        dataset = ClipDataset(manifest, GridRange(shape, 2, (32, 40), segments=segments))
        for index_of, frames in enumerate(ranges):
            seen = set()
            for seed in range(30):
                view = View() if seed == 29 else None
                clip = dataset.read(ClipRequest(index_of, shape, seed, view))
                seen |= {frame_number(frame, 40) for frame in clip.pixels.numpy()}
            assert seen <= set(frames)
            assert len(seen) > len(frames) // 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.mp4,run\n", "t.csv: lists no video; give each one a row"),
        (
            "video,label\na.mp4,x\n",
            "line 2: no column path, uri or file_name; it has 'video', 'label'",
        ),
        (
            "video;label\na.mp4;x\n",
            "line 2: no column path, uri or file_name; it has 'video;label'; separate columns by",
        ),
        (
            "path\tlabel\na.mp4\tx\n",
            "line 2: no column path, uri or file_name; it has 'path\\tlabel'; separate columns by",
        ),
        (
            "path,class\na.mp4,x\n",
            "line 2: no column label or labels; it has 'path', 'class'",
        ),
        ("path,label\na.mp4,\n", "t.csv line 2: no label; correct it"),
        ("path,label\n,x\n", "t.csv line 2: no path; correct it"),
        ("path,label,Label\na.mp4,x,y\n", "t.csv line 2: 2 columns are label; leave one"),
        (
            "path,label,start,start_seconds\na.mp4,x,1,2\n",
            "t.csv line 2: 2 columns are start; leave one",
        ),
        ("path,label,start\na.mp4,x,now\n", "t.csv line 2: start 'now' is not a number"),
        ("path,label,start,end\na.mp4,x,3,2\n", "t.csv line 2: end 2.0: is not after start 3.0"),
        ("path,label,split\na.mp4,x,train\nb.mp4,x,\n", "t.csv: b.mp4 has no split and others"),
        ("path,label\na.mp4\n", "t.csv line 2: has 1 values for 2 columns"),
    ],
)
def test_mistakes_in_a_table(put, capsys, text, message):
    root = put("a.mp4", "b.mp4")
    (root / "t.csv").write_text(text)
    assert main(["data", "index", "table", str(root / "t.csv"), "--workers", "0"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "manifest.csv",
            "path,label\n",
            "manifest.csv: would be replaced by the manifest",
        ),
        ("t.xlsx", "", "t.xlsx: is not a table; give one of .csv, .jsonl, .parquet"),
        ("t.jsonl", "{path: 1}\n", "t.jsonl line 1: is not JSON"),
        (
            "t.jsonl",
            '{"path": "a.mp4", "label": ["x", "y"]}\n',
            "t.jsonl line 1: label ['x', 'y']: give one value; several labels of a video are the "
            "column labels",
        ),
        (
            "t.jsonl",
            '{"path": {"bytes": 3}, "label": "x"}\n',
            "line 1: path {'bytes': 3}: give one",
        ),
        ("t.jsonl", "[]\n", "t.jsonl line 1: is not an object that describes a video"),
        ("t.parquet", "PAR", "t.parquet: is not Parquet ("),
    ],
)
def test_files_that_are_no_tables(tmp_path, name, text, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        list_table(tmp_path / name)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=name):
        list_table(tmp_path / name)


def test_parquet_without_its_library(tmp_path, monkeypatch):
    imported = builtins.__import__

    def without_pyarrow(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ValueError, match=r"Parquet needs pyarrow; install .*\[parquet\]"):
        list_table(tmp_path / "t.parquet")


def test_the_command(put, capsys):
    root = put(*(f"{c}/v{k}.mp4" for c in ("left_hook", "right_hook") for k in range(4)))
    rows = [f"{c}/v{k}.mp4,{c}\n" for c in ("left_hook", "right_hook") for k in range(4)]
    (root / "t.csv").write_text("path,label\n" + "".join(rows))
    command = ["data", "index", "table", str(root / "t.csv"), "--workers", "0"]
    assert main([*command, "--val-share", "0.25"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "8 of 8 videos indexed in 2 classes",
        "class          train      val",
        "left_hook          3        1",
        "right_hook         3        1",
        "all classes        6        2",
        "clips are not mirrored: names such as left_hook tell left from right; --flip mirrors them "
        "all the same",
    ]
    assert np.all([not video.flip for video in Manifest.read(root).videos])


def test_whole_numbers_beside_missing_cells_are_whole(tmp_path):
    """Which pandas and Parquet keep as 3.0; classes are in the order of the numbers."""
    rows = [{"path": f"{k}.mp4", "label": label} for k, label in enumerate((0.0, 10.0, 2.0))]
    (tmp_path / "v.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list_table(tmp_path / "v.jsonl").classes == ("0", "2", "10")


def test_a_file_is_one_video_however_its_path_is_spelt(tmp_path, small_video):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(small_video.read_bytes())
    spelt = ["a.mp4", "./a.mp4", f"{tmp_path}/a.mp4", f"../{tmp_path.name}//a.mp4"]
    rows = [{"path": path, "label": "run"} for path in spelt] + [{"path": "b.mp4", "label": "sit"}]
    (tmp_path / "v.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    listing = list_table(tmp_path / "v.jsonl")
    assert [entry.path for entry in listing.entries] == ["a.mp4", "b.mp4"]
    assert "3 rows left out as one before says the same" in listing.notes


def test_times_may_be_called_as_manifests_call_them(tmp_path, small_video):
    (tmp_path / "a.mp4").write_bytes(small_video.read_bytes())
    (tmp_path / "v.csv").write_text("path,label,start_seconds,end_seconds\na.mp4,run,0.5,1.5\n")
    (entry,) = list_table(tmp_path / "v.csv").entries
    assert (entry.start_seconds, entry.end_seconds) == (0.5, 1.5)


def test_a_small_parquet_file_that_stands_for_very_much_is_refused(tmp_path, monkeypatch):
    """And columns that are not read cost nothing: they may hold the videos themselves."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("vcycle.datasets.table_rows._MOST_SIZE", 200_000)
    rows = [{"path": f"{k}.mp4", "Label": "run", "bytes": "x" * 4096} for k in range(2000)]
    listing = list_table(write(tmp_path / "t.parquet", rows), val_share=0)
    assert len(listing.missing) == 2000
    assert "column not read: 'bytes'; those with" in listing.notes[0]
    rows = [{"path": f"{k}.mp4", "label": "run"} for k in range(9000)]
    columns = pyarrow.Table.from_pylist(rows)
    for number, name in enumerate(columns.column_names):  # which each batch then holds whole
        columns = columns.set_column(number, name, columns[name].dictionary_encode())
    parquet.write_table(columns, tmp_path / "t.parquet")
    assert len(list_table(tmp_path / "t.parquet", val_share=0).missing) == 9000
    rows = [{"path": f"{k}.mp4", "labels": ["x" * 1024]} for k in range(2000)]
    with pytest.raises(ValueError, match=r"t\.parquet: its columns hold more than"):
        list_table(write(tmp_path / "t.parquet", rows), val_share=0)
