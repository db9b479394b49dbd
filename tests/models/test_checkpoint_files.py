"""Files that are hostile, broken or something else: refused in one line, and none of them runs."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.models.checkpoints import SmallNet
from vcycle.evaluate.checkpoint import check_intact, find_trained_model
from vcycle.models.weights import load_weights


class Malicious:
    """Unpickled, it would make a directory: code of the file's choice."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle"])
def test_code_in_a_file_does_not_run(kind: str, small: SmallNet, tmp_path: Path) -> None:
    content = {"model_state": small.state_dict(), "cfg": Malicious(tmp_path / "run")}
    path = tmp_path / "a.pyth"
    if kind == "pickle":
        path.write_bytes(pickle.dumps({"model_state": {}, "cfg": Malicious(tmp_path / "run")}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(
        ValueError, match=r"a.pyth: refused, not an intact file of tensors"
    ) as caught:
        load_weights(small, path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".legacy"])
def test_truncated_files_are_refused(suffix: str, small: SmallNet, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".safetensors":
        save_file(dict(small.state_dict()), path)
    else:
        torch.save(small.state_dict(), path, _use_new_zipfile_serialization=suffix == ".pth")
    data = path.read_bytes()
    load_weights(small, path)
    for length in (0, 1, 8, 9, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match="refused") as caught:
            load_weights(small, path)
        assert "\n" not in str(caught.value)


def test_noise_is_refused(small: SmallNet, tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    for start in (b"", b"PK\x03\x04", b"\x80\x02", b"\xff" * 8 + b"{", b"\x10" + b"\0" * 7 + b"{"):
        path.write_bytes(start + bytes(range(256)) * 8)
        with pytest.raises(ValueError, match="refused"):
            load_weights(small, path)


@pytest.mark.parametrize(
    "content",
    [b"", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n", bytes(99)],
    ids=["empty", "a web page", "a pointer of git-lfs", "zeros"],
)
def test_other_files_are_not_taken_for_pickles(
    content: bytes, small: SmallNet, tmp_path: Path
) -> None:
    (tmp_path / "a.pyth").write_bytes(content)
    with pytest.raises(ValueError, match=r"neither torch\.save nor safetensors wrote it"):
        load_weights(small, tmp_path / "a.pyth")


def test_compressed_archives_are_refused(small: SmallNet, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"s1.weight": torch.zeros(10**6)}, buffer)
    path = tmp_path / "bomb.pth"
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    assert path.stat().st_size < 10**5
    with pytest.raises(ValueError, match="a compressed archive"):
        load_weights(small, path)


def with_another_directory(content: bytes) -> bytes:
    """An archive with a second directory, in which no record is compressed.

    Python reads the second, torch the first.
    """
    end = content.rfind(b"PK\5\6")
    size, start = struct.unpack("<II", content[end + 12 : end + 20])
    first, place = bytearray(content[start : start + size]), 0
    while place < size:
        first[place + 10 : place + 12] = b"\0\0"
        place += 46 + sum(struct.unpack("<HHH", first[place + 28 : place + 34]))
    return content[: start + size] + bytes(first) + content[end:]


def with_a_version(content: bytes) -> bytes:
    """An archive whose first record needs a reader of the future."""
    start = content.find(b"PK\1\2")
    return content[: start + 6] + b"\xff\0" + content[start + 8 :]


def with_a_signature(content: bytes) -> bytes:
    """An archive that Python does not read for what looks like another end."""
    return content + b"PK\5\6"


def with_two_large_directories(content: bytes) -> bytes:
    """An archive whose end names the first of two directories; Python reads the second."""
    end = content.rfind(b"PK\5\6")
    count, size, start = struct.unpack("<HII", content[end + 10 : end + 20])
    first, place = content[start : start + size], 0
    second = bytearray(first)
    while place < size:
        second[place + 10 : place + 12] = b"\0\0"
        place += 46 + sum(struct.unpack("<HHH", second[place + 28 : place + 34]))

    def record(offset: int) -> bytes:
        return struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, offset)

    at_first = start + size
    at_second = at_first + 56
    locator = struct.pack("<IIQI", 0x07064B50, 0, at_first, 1)
    last = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, *(2 * [0xFFFFFFFF]), 0)
    body = content[:start] + first + record(start) + bytes(second)
    return body + record(at_second) + locator + last


@pytest.mark.parametrize(
    "crafted",
    [with_another_directory, with_a_version, with_a_signature, with_two_large_directories],
)
def test_archives_that_hide_how_they_are_stored_are_refused(
    crafted: Callable[[bytes], bytes], small: SmallNet, tmp_path: Path
) -> None:
    path = tmp_path / "bomb.pth"
    torch.save({"s1.weight": torch.zeros(3), "pad": "x" * 10**5}, path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "new", "w") as new:
        for entry in old.infolist():
            is_pickle = entry.filename.endswith("data.pkl")
            method = zipfile.ZIP_DEFLATED if is_pickle else zipfile.ZIP_STORED
            new.writestr(entry.filename, old.read(entry), compress_type=method)
    path.write_bytes(crafted((tmp_path / "new").read_bytes()))
    with pytest.raises(ValueError, match=r"bomb\.pth: refused, a compressed archive, a damaged"):
        load_weights(small, path)
    with pytest.raises(ValueError, match=r"it is damaged"):
        check_intact(path)
    with pytest.raises(ValueError, match="compressed"):
        find_trained_model(path)


def test_a_record_shorter_than_its_tensor_is_refused(small: SmallNet, tmp_path: Path) -> None:
    """The pickle promises a million numbers, the record holds four."""
    buffer = io.BytesIO()
    torch.save({"s1.weight": torch.zeros(10**6)}, buffer)
    path = tmp_path / "short.pth"
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            new.writestr(entry.filename, data[:16] if "/data/" in entry.filename else data)
    with pytest.raises(ValueError, match=r"short\.pth: refused"):
        load_weights(small, path)


def test_files_that_are_not_there(small: SmallNet, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file; weights are published at github.com"):
        load_weights(small, tmp_path / "a.pth")
    with pytest.raises(ValueError, match="not a file"):
        load_weights(small, tmp_path)
    (tmp_path / "best.safetensors").touch()
    with pytest.raises(ValueError, match=r"not a file; give .*best\.safetensors"):
        load_weights(small, tmp_path)
    with pytest.raises(ValueError, match="give a local file: download it first"):
        load_weights(small, "https://example.org/a.pth")


def test_oversized_files_are_refused(
    small: SmallNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.pth"
    torch.save(small.state_dict(), path)
    monkeypatch.setattr("vcycle.models.checkpoint_files.MAX_BYTES", 100)
    with pytest.raises(ValueError, match="larger than 100 bytes"):
        load_weights(small, path)
