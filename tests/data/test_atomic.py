"""Atomic files: complete under their names, or not there at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from vcycle.data.atomic import atomic, naming, remove_partials, write_atomic


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
