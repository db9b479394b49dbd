"""What lies under a folder as people have them: links, stray images, odd names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vcycle.datasets.folders import plain_name, videos_under


@pytest.fixture
def under(tmp_path):
    """Makes files, and gives the names of the videos that are then found."""

    def found(*names, start="."):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        return [plain_name(path, tmp_path) for path in videos_under(tmp_path / start)]

    return found


def test_videos_at_any_depth_in_order(under):
    assert under("b.mp4", "a/deep/c.MKV", "a/notes.txt") == ["a/deep/c.MKV", "b.mp4"]


def test_a_link_upwards_is_no_way_to_more_videos(under, tmp_path):
    names = ["train/run/a.mp4", "train/sit/b.mp4"]
    under(*names)
    (tmp_path / "train/run/up").symlink_to("..")
    (tmp_path / "train/sit/top").symlink_to(tmp_path)
    assert under() == names
    assert under(start="train/run") == names[:1]
    assert under(start="train/run/up") == []


def test_a_path_through_one_of_the_folders_finds_all(under, tmp_path, monkeypatch):
    names = ["call/a.mp4", "doctor/b.mp4"]
    assert under(*names, start="call/..") == [f"call/../{name}" for name in names]
    monkeypatch.chdir(tmp_path / "call")
    assert [str(path) for path in videos_under(Path(".."))] == [f"../{name}" for name in names]


def test_a_folder_reached_by_several_links_is_visited_once(under, tmp_path):
    under("store/x.mp4", "z/own.mp4")
    for link in ("a", "b", "z/c"):
        (tmp_path / link).symlink_to(tmp_path / "store")
    assert under() == ["store/x.mp4", "z/own.mp4"]
    assert under(start="z") == ["z/c/x.mp4", "z/own.mp4"]
    assert under(start="a") == ["a/x.mp4"]


def test_links_that_lead_nowhere_do_not_end_it(under, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "gone.mp4").symlink_to("nowhere.mp4")
    assert under("a.mp4") == ["a.mp4", "gone.mp4"]


def test_a_folder_that_cannot_be_read_is_listed(under, shut):
    under("open/a.mp4", "shut/b.mp4")
    shut("shut")
    assert under() == ["open/a.mp4", "shut"]


def test_a_stray_image_hides_nothing(under, tmp_path):
    assert under("train/run/a.mp4", "train/x.png") == ["train/run/a.mp4"]
    assert under("train/run/b/1.jpg", "train/run/b/2.jpg") == ["train/run/a.mp4", "train/run/b"]
    (tmp_path / "train/run/b/empty").mkdir()
    assert under() == ["train/run/a.mp4", "train/run/b"]


def test_names_that_cannot_be_written_are_escaped(under, tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.mp4")).touch()
    names = under("a\nb.mp4", "c\x1b[2J.mp4", "d\te.mp4", "ö\u2028.mp4")
    assert names == ["a\\nb.mp4", "c\\x1b[2J.mp4", "caf\\xe9.mp4", "d\te.mp4", "ö\u2028.mp4"]


def test_hidden_files_are_no_videos(under):
    names = ("run/._a.mp4", ".trash/run/b.mp4", "__MACOSX/run/c.mp4", ".d.mp4")
    assert under("run/a.mp4", *names) == ["run/a.mp4"]
