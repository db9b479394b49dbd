"""Ranges of bytes from S3, by a server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_server import serve_s3
from vcycle.data.decode import remote
from vcycle.data.decode.remote import check_store, fetch
from vcycle.data.metadata import Location, UnreadableVideo

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(remote, "_RETRY_SECONDS", (0.0,))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "shard.tar").write_bytes(CONTENT)
    return tmp_path / "shards"


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serve_s3(folder, monkeypatch) as uri:
        yield uri


def test_a_range_and_a_whole_object(store: str) -> None:
    shard = f"{store}/shard.tar"
    assert fetch(Location(shard, 1000, 5000)) == CONTENT[1000:6000]
    assert fetch(Location(shard, 0, 10)) == CONTENT[:10]
    assert fetch(Location(shard)) == CONTENT
    check_store(Location(shard, 1000, 5000))


@pytest.mark.parametrize("place", ["s3://bucket/shards/none.tar", "s3://none/shards/shard.tar"])
def test_what_is_not_there_is_not_asked_for_again(
    store: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_RETRY_SECONDS", (1000.0,))
    with pytest.raises(UnreadableVideo, match="not found"):
        fetch(Location(place, 0, 10))


def test_an_object_that_is_too_short_is_unreadable(store: str) -> None:
    with pytest.raises(UnreadableVideo, match=r"gave 10 bytes \(2 attempts\)"):
        fetch(Location(f"{store}/shard.tar", len(CONTENT) - 10, 5000))


def test_a_store_that_is_gone_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_s3(folder, monkeypatch) as uri:
        place = Location(f"{uri}/shard.tar", 0, 10)
    with pytest.raises(ValueError, match=r"shard\.tar\[0:1\]: .*connect.*2 attempts") as caught:
        check_store(place)
    assert "\n" not in str(caught.value)
