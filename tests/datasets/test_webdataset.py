"""Tars that others made are read as they are, whatever says the label."""

from __future__ import annotations

import re
import tarfile
import tracemalloc

import numpy as np
import pytest

from tests.encode import encode, numbered_frames
from vcycle.data.decode.video import read_clip
from vcycle.data.grid import Box, Grid
from vcycle.data.metadata import Location
from vcycle.datasets.index import index_videos
from vcycle.datasets.own_videos import list_folder


def test_labels_are_read_from_any_of_their_files(pack):
    root = pack(
        "data-000000.tar",
        {"1.mp4": None, "1.cls": b"2", "2.txt": b"10\n", "2.mp4": None, "sub/2.json": b"[3.0]"}
        | {"sub/2.mp4": None, "3.json": b'{"label": "x", "fps": 3}', "3.webm": None, "._4.mp4": b""}
        | {"5.cls": b"7", "5.json": b'{"id": 1}', "5.mp4": None, "6.jpg": b"", "7.seg.mp4": None}
        | {"7.json": b'{"labels": ["a", "b"]}'},
    )
    listing = list_folder(root)
    assert listing.classes == ("10", "2", "3", "7", "a", "b", "x")
    names = [[listing.classes[label] for label in entry.labels] for entry in listing.entries]
    assert names == [["2"], ["10"], ["3"], ["x"], ["7"], ["a", "b"]]
    assert listing.notes == (
        "1 video with no or several labels, such as 'data-000000.tar/7.seg': each class is scored "
        "by itself (mAP)",
    )


def test_names_with_dots_are_as_many_videos_and_a_label_twice_is_one(pack):
    root = pack(
        "a.tar",
        {"c.left.mp4": None, "c.right.mp4": None, "c.right.cls": b"2", "c.cls": b"1"}
        | {"clip_1.5s.mp4": None, "clip_1.5s.json": b'["1", "1"]', "clip_1.5s.txt": b"\xff"}
        | {".": b"no name", ".hidden.mp4": b""},
    )
    listing = list_folder(root)
    names = [[listing.classes[label] for label in entry.labels] for entry in listing.entries]
    assert names == [["1"], ["2"], ["1"]]
    assert not listing.notes


def test_a_video_is_read_from_its_range_of_the_tar(pack, small_video, tmp_path):
    other = encode(tmp_path / "other.mp4", numbered_frames(8, 48, 32))
    root = pack(
        "train-0.tar", {"a.mp4": None, "a.cls": b"0", "b.mp4": other.read_bytes()} | {"b.cls": b"1"}
    )
    pack(
        "validation/0.tar", {"a.mp4": None, "a.cls": b"0", "bad.mp4": b"no video", "bad.cls": b"1"}
    )
    index = index_videos(list_folder(root), num_workers=0)
    manifest = index.manifest
    assert [(video.path, video.split) for video in manifest.videos] == [
        ("train-0.tar", "train"),
        ("train-0.tar", "train"),
        ("validation/0.tar", "val"),
    ]
    (name,) = index.bad
    assert re.fullmatch(r"validation/0.tar\[\d+:\d+\]", name)
    assert [video.num_frames for video in manifest.videos] == [10, 8, 10]
    grid = Grid((1, 5), Box(0, 0, 32, 32), 16, 16, False)
    packed = read_clip(manifest.locate(manifest.videos[1]), grid)
    assert np.array_equal(packed, read_clip(Location(str(other)), grid))
    counts = []
    index_videos(list_folder(root), num_workers=0, progress=lambda *count: counts.append(count))
    assert counts == []  # the journal knows each by its range


def test_what_a_mac_leaves_and_what_was_prepared_is_no_shard(pack):
    root = pack("train-0.tar", {"a.mp4": None, "a.cls": b"0", "b.mp4": None, "b.cls": b"1"})
    for name in ("._train-0.tar", "__MACOSX/train-0.tar", ".old/x.tar", "prepared/000000.tar"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"no tar")
    (root / "prepared" / "prepared.json").write_text("{}")
    assert {entry.path for entry in list_folder(root).entries} == {"train-0.tar"}


def test_videos_without_splits_are_divided(pack):
    files = {
        f"{k}.{kind}": None if kind == "mp4" else b"x" for k in range(8) for kind in ("mp4", "cls")
    }
    listing = list_folder(pack("a.tar", files), val_share=0.25)
    assert [entry.split for entry in listing.entries].count("val") == 2


@pytest.mark.parametrize(
    "names",
    [
        ("train-0.tar", "val-0.tar"),
        ("birds-train-0.tar", "birds_val_0.tar"),
        ("birds_training/0.tar", "birds_valid/0.tar"),
        ("test-birds-train-0.tar", "val-0.tar"),  # the first word, before others
    ],
)
def test_names_of_shards_tell_the_splits(pack, names):
    files = {"a.mp4": None, "a.cls": b"0", "b.mp4": None, "b.cls": b"1"}
    for name in names:
        root = pack(name, files)
    splits = {entry.path: entry.split for entry in list_folder(root).entries}
    assert splits == {names[0]: "test" if names[0][:4] == "test" else "train", names[1]: "val"}
    for name in ("crash-test-0.tar", "crash-1.tar"):  # which is no split
        other = pack(f"../others/{name}", files).parent / "others"
    assert {entry.split for entry in list_folder(other).entries} == {"train", "val"}
    pack("birds-1.tar", files)
    with pytest.raises(ValueError, match=r"birds-1.tar: names no split and other shards do"):
        list_folder(root)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"1.mp4": None}, "a.tar sample '1': has no label; give each video a .cls, a .json with"),
        ({"1.mp4": None, "1.json": b"{"}, "a.tar sample '1': its .json cannot be read (Expecting"),
        ({"1.mp4": None, "1.cls": b"\xff"}, "a.tar sample '1': its .cls cannot be read ('utf-8'"),
        ({"1.mp4": None, "1.json": b'{"id": 1}'}, "a.tar sample '1': has no label"),
        ({"1.jpg": b"", "1.cls": b"0"}, "shards: holds 1 tar without a video; give"),
    ],
)
def test_samples_without_what_they_need(pack, files, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        list_folder(pack("a.tar", files))


def add_links(file, kinds, *, to):
    with tarfile.open(file, "a") as tar:
        for name, kind in kinds.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = kind, to
            tar.addfile(link)


def test_videos_without_bytes_of_their_own_are_left_out(pack, small_video):
    """An empty one would stand for the whole tar, a link for another sample."""
    files = {f"{i}.mp4": None for i in range(3)} | {f"{i}.cls": b"x" for i in range(6)}
    root = pack("a.tar", files | {"3.mp4": b""})
    add_links(root / "a.tar", {"4.mp4": tarfile.LNKTYPE, "5.mp4": tarfile.SYMTYPE}, to="0.mp4")
    listing = list_folder(root)
    assert [entry.num_bytes for entry in listing.entries] == [small_video.stat().st_size] * 3
    assert (
        "3 videos of tars left out, as empty or sparse files and links have no bytes of their own "
        "there: 'a.tar/3', 'a.tar/4', 'a.tar/5'"
    ) in listing.notes
    root = pack("a.tar", {"1.mp4": b"", "1.cls": b"x"})
    with pytest.raises(ValueError, match=r"1 video of tars left out, .*; write the tars anew"):
        list_folder(root)


def test_a_link_takes_no_place_of_a_file(pack, small_video):
    """As of a tar that was given one file twice; and a label that is a link hides no other."""
    root = pack("a.tar", {"0.0.mp4": None, "0.cls": b"x"})
    links = {"0.0.mp4": tarfile.LNKTYPE, "0.0.cls": tarfile.SYMTYPE}
    add_links(root / "a.tar", links, to="0.0.mp4")
    listing = list_folder(root)
    assert [entry.num_bytes for entry in listing.entries] == [small_video.stat().st_size]
    assert (listing.classes, listing.notes[1:]) == (("x",), ())


def _damage(content, at, by):
    return content[:at] + by + content[at + len(by) :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole, at: _damage(whole, at, b"\xff" * 512),
        lambda whole, at: _damage(whole, at, bytes(512)),  # as at the end of a tar, within one
        lambda whole, at: whole[: at + 100],
        lambda whole, at: whole[: at + 1024],
        lambda whole, at: whole[:at],
        lambda whole, at: whole + whole,  # of two tars the second would be lost
    ],
)
def test_a_tar_that_is_damaged_is_not_taken_for_a_shorter_one(pack, damage):
    files = {f"{i}.{kind}": body for i in range(3) for kind, body in (("mp4", None), ("cls", b"x"))}
    root = pack("a.tar", files)
    whole = (root / "a.tar").read_bytes()
    assert len(list_folder(root).entries) == 3
    (root / "a.tar").write_bytes(damage(whole, whole.rindex(b"2.mp4\0")))
    with pytest.raises(
        ValueError, match=r"a\.tar: is damaged or cut off after '.*; write it again"
    ):
        list_folder(root)


@pytest.mark.parametrize("size", [-1536, 10**15, 2**70])
def test_a_size_that_is_none_is_not_gone_by(pack, size):
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    header = tarfile.TarInfo("2.mp4")
    header.size = size
    whole = (root / "a.tar").read_bytes()
    end = whole.rindex(b"1.cls\0") + 1024
    (root / "a.tar").write_bytes(whole[:end] + header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(ValueError, match=r"a\.tar: is damaged or cut off after '(1\.cls|2\.mp4)'"):
        list_folder(root)


def test_tars_that_cannot_be_read(pack):
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    pack("val-b.tar", {"1.mp4": None, "1.cls": b"x"})
    with pytest.raises(ValueError, match=r"a\.tar: names no split and other shards do; rename it"):
        list_folder(root)
    (root / "val-b.tar").write_bytes(b"\x1f\x8b no tar")
    (root / "a.tar").unlink()
    with pytest.raises(ValueError, match=r"val-b\.tar: is not an uncompressed tar \(.*; unpack it"):
        list_folder(root)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_claims_gigabytes_is_not_read(pack, kind):
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    header = tarfile.TarInfo("long")
    header.type, header.size = kind, 5 * 2**30
    (root / "a.tar").write_bytes(header.tobuf(format=tarfile.GNU_FORMAT))
    with (root / "a.tar").open("r+b") as file:
        file.truncate(6 * 2**30)  # it takes no room
    with pytest.raises(ValueError, match=r"a\.tar: a header of 5,368,709,120 bytes, as of"):
        list_folder(root)


def test_headers_of_headers_without_end_are_one_line(pack):
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    header = tarfile.TarInfo("long")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    block = header.tobuf(format=tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")
    (root / "a.tar").write_bytes(block * 5000 + (root / "a.tar").read_bytes())
    with pytest.raises(ValueError, match=r"a\.tar: is "):
        list_folder(root)


def _extended(content, kind=tarfile.XHDTYPE):
    """A header for the member that follows."""
    header = tarfile.TarInfo("more")
    header.type, header.size = kind, len(content)
    return header.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512)


@pytest.mark.parametrize(
    "content",
    [
        b"1" * 65_000,
        b"65000 a=" + b"1" * 64_991 + b"\n",
        b"2 " * 30_000 + b"=",  # each record goes on to the end
        b"0 a=\n" * 10,
        b"7 a=bc\n" + b"9 a=bc\n",
        b"9" * 4301 + b" a=\n",
        b"7 abcd\n",
    ],
    ids=range(7),
)
def test_a_damaged_header_takes_no_time_and_no_memory(pack, content, monkeypatch):
    monkeypatch.setattr(tarfile.TarInfo, "_proc_pax", None)  # it may take hours
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    (root / "a.tar").write_bytes(_extended(content) + (root / "a.tar").read_bytes())
    with pytest.raises(ValueError, match=r"a\.tar: is not .* \(a (dam|header of many)"):
        list_folder(root)


def test_further_values_are_not_kept(pack):
    root = pack("a.tar", {"1.mp4": None, "1.cls": b"x"})
    of_all = _extended(b"".join(b"%d %d=\n" % (8, i) for i in range(1000, 8000)), tarfile.XGLTYPE)
    of_one = _extended(b"60008 a=" + b"\n" * 60_000) + tarfile.TarInfo("a").tobuf()
    (root / "a.tar").write_bytes(of_all + of_one * 50 + (root / "a.tar").read_bytes())
    tracemalloc.start()
    try:
        assert list_folder(root).classes == ("x",)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_a_name_does_not_steer_the_terminal(pack):
    root = pack("a.tar", {"\x1b[31m\n.mp4": None, "\x1b[31m\n.json": b'["a", "b"]'})
    (note,) = list_folder(root).notes
    assert r"such as 'a.tar/\x1b[31m\n':" in note
