"""Every source has a name of its own, whatever the order in which they come."""

from __future__ import annotations

from urllib.parse import quote

from vcycle.data.metadata import Location, Video
from vcycle.datasets.prepared_names import prepared_names


def video(path, offset=0, num_bytes=0):
    facts = {"num_frames": 10, "frame_rate": 10.0, "duration_seconds": 1, "width": 9, "height": 9}
    return Video(path=path, labels=(0,), split="train", offset=offset, num_bytes=num_bytes, **facts)


def names_of(*videos):
    named = prepared_names(videos)
    assert named == prepared_names(reversed(videos))
    names = [named[Location(v.path, v.offset, v.num_bytes)] for v in videos]
    assert len({name.casefold() for name in names}) == len(named)
    assert all(name.endswith(".mp4") for name in names)
    assert all(len(part.encode()) <= 240 for name in names for part in name.split("/"))
    return names


def test_the_original_names_are_kept_where_they_tell_all():
    assert names_of(
        video("a/b.mp4"), video("a/b.avi"), video("frames"), video("s3://bucket/k/c.webm")
    ) == ["a/b.mp4", "a/b.avi.mp4", "frames.mp4", "bucket/k/c.webm.mp4"]
    assert names_of(video("s.tar", 512, 9), video("s.tar", 2048, 9)) == [
        "s.tar.512.mp4",
        "s.tar.2048.mp4",
    ]


def test_the_same_video_in_two_lines_has_one_name():
    assert names_of(video("a.mp4"), video("a.mp4")) == ["a.mp4", "a.mp4"]


def test_names_that_would_be_the_same_are_told_apart():
    for pair in (
        ("a.avi", "a.avi.mp4"),
        ("frames", "frames.mp4"),
        ("A.mp4", "a.mp4"),
        ("http://h/a.mp4", "h/a.mp4"),
        ("http://h/get?id=1", "http://h/get?id=2"),
        ("http://h/a#1", "http://h/a"),
    ):
        names_of(*map(video, pair))
    both = names_of(video("a.avi"), video("a.avi.mp4"))
    assert both[0] != "a.avi.mp4" != both[1]
    # Nor can a name that is a hashed one already be taken for another.
    names_of(video("a.avi"), video("a.avi.mp4"), video(both[0]), video(both[1]))


def test_a_name_does_not_depend_on_what_else_there_is():
    (alone,) = names_of(video("http://h/get?id=1"))
    assert names_of(video("http://h/get?id=1"), video("http://h/get?id=2"))[0] == alone


def test_long_names_are_shortened_and_differ():
    names_of(*(video(f"{'ä' * 124}{ending}.mp4") for ending in "abc"))


def test_no_name_leaves_the_folder():
    for path in ("../a.mp4", "/etc/a.mp4", "http://h/../../a.mp4", "a//./b.mp4"):
        parts = names_of(video(path))[0].split("/")
        assert not {"", ".", ".."} & set(parts)


def test_a_long_name_of_a_folder_is_shortened_and_a_uri_of_a_file_is_its_path():
    """A quoted path is three times as long in other alphabets than Latin."""
    long = quote("\u8dd1" * 90)
    for name in names_of(*(video(f"file:///v/{long}/{n}.mp4") for n in "ab")):
        assert name.startswith("v/\u8dd1\u8dd1")
