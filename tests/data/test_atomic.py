"""Atomic files: complete under their names, or not there at all."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from vcycle.data.atomic import (
    atomic,
    check_output,
    naming,
    open_own,
    remove_partials,
    write_atomic,
)


def test_a_file_appears_only_when_it_is_complete(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")
    with atomic(path) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")

    def be_killed():
        with atomic(path) as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_killed()
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_an_error_of_a_disk_that_removes_nothing_is_the_first_one(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"

    def read_only(partial, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(partial))

    monkeypatch.setattr(Path, "write_text", read_only)
    monkeypatch.setattr(Path, "unlink", read_only)
    with pytest.raises(OSError, match="Read-only file system") as caught:
        write_atomic(path, "new")
    assert caught.value.filename == str(path)


def test_an_error_that_names_no_file_names_this_one(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(OSError, match=r"No space left.*a\.txt"), naming(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match=r"other\.txt"), naming(path):
        raise OSError(errno.ENOENT, "No such file", "other.txt")


def test_partials_of_killed_runs_are_removed_and_nothing_else(tmp_path):
    for name in (".a.txt.123", ".b.txt.123", ".a.txt", "a.txt.123", "a.txt"):
        (tmp_path / name).touch()
    remove_partials(tmp_path, ["a.txt", "gone/c.txt"])
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {".b.txt.123", ".a.txt", "a.txt.123", "a.txt"}


def test_a_folder_that_is_not_there_is_named_with_the_fix(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*none; make it, or"):
        write_atomic(tmp_path / "none" / "file.json", "{}")


def test_a_file_of_ones_own_is_no_link_and_no_device(tmp_path):
    theirs = tmp_path / "thesis.tex"
    theirs.write_text("precious")
    (tmp_path / "link").symlink_to(theirs)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(ValueError, match=f"{name}: it is no file of its own, but a link or a"):
            open_own(tmp_path / name, os.O_RDWR | os.O_CREAT)
    assert theirs.read_text() == "precious"
    os.close(open_own(tmp_path / "new", os.O_RDWR | os.O_CREAT))
    assert (tmp_path / "new").is_file()


def test_an_output_takes_the_place_of_its_kind_alone(tmp_path, monkeypatch):
    (tmp_path / "page.html").touch()
    (tmp_path / "notes.txt").touch()
    check_output(tmp_path / "page.html", ".html", flag="--out")
    check_output(tmp_path / "new", ".html", flag="--out")
    for name, problem in (
        ("notes.txt", "it is there, and no .html file; name another"),
        ("", "it is a folder; give a file in it"),
        ("none/page.html", f"there is no folder {tmp_path / 'none'}; make it"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"--out {tmp_path / name}: {problem}")):
            check_output(tmp_path / name, ".html", flag="--out")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(ValueError, match="is read-only; name a file elsewhere"):
            check_output(tmp_path / "page.html", ".html", flag="--out")
    finally:
        tmp_path.chmod(0o755)
