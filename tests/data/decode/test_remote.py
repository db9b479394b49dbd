"""Ranges of bytes from a real web server that fails now and then."""

from __future__ import annotations

import pytest

from tests.web_server import FAULTS, serve
from vcycle.data.decode.container import source_of
from vcycle.data.decode.remote import check_store, fetch
from vcycle.data.metadata import Location, UnreadableVideo

CONTENT = bytes(range(256)) * 400


@pytest.fixture
def server(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr("vcycle.data.decode.remote._RETRY_SECONDS", (0.0,) * 4)
    (tmp_path / "shard.tar").write_bytes(CONTENT)
    with serve(tmp_path) as server:
        yield server


def part(server, offset=1000, num_bytes=5000):
    return Location(f"{server.url}/shard.tar", offset, num_bytes)


def test_a_range_is_one_request_of_its_bytes(server):
    assert fetch(part(server)) == CONTENT[1000:6000]
    assert fetch(part(server, 0, 10)) == CONTENT[:10]
    assert (len(server.requests), server.num_sent) == (2, 5010)
    assert fetch(Location(f"{server.url}/shard.tar")) == CONTENT
    assert source_of(part(server)).getvalue() == CONTENT[1000:6000]


@pytest.mark.parametrize("fault", [*FAULTS, "429"])
def test_what_fails_for_a_moment_is_asked_again(server, fault):
    server.faults = [fault] * 4
    assert fetch(part(server)) == CONTENT[1000:6000]
    assert len(server.requests) >= 5  # the client may itself repeat a request that got no answer


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("drop", "disconnected"), ("503", "503"), ("short", r"gave \d+ bytes"), ("cut", "payload")],
)
def test_what_goes_on_failing_is_given_up(server, fault, reason):
    server.faults = [fault] * 100
    with pytest.raises(UnreadableVideo, match=rf"(?i){reason}.* \(5 attempts\)$"):
        fetch(part(server))
    assert 5 <= len(server.requests) <= 10
    with pytest.raises(ValueError, match=r"shard\.tar\[1000:1001\]: .*5 attempts"):
        check_store(part(server))


@pytest.mark.parametrize(("fault", "reason"), [("404", "not found"), ("403", "403")])
def test_what_is_refused_is_not_asked_again(server, fault, reason):
    server.faults = [fault]
    with pytest.raises(UnreadableVideo, match=reason):
        fetch(part(server))
    assert len(server.requests) == 1


def test_a_server_without_ranges_is_named_at_once_and_sends_little(server, tmp_path):
    server.ranges = False
    (tmp_path / "shard.tar").write_bytes(bytes(50 * 2**20))
    for read, error in ((fetch, UnreadableVideo), (check_store, ValueError)):
        with pytest.raises(error, match="gives whole files, not ranges of bytes; serve shards"):
            read(part(server))
    assert len(server.requests) == 2
    assert fetch(part(server, 0, 10)) == bytes(10)
    check_store(Location(f"{server.url}/shard.tar"))


@pytest.mark.parametrize("whole", [False, True])
def test_a_server_that_drips_is_given_up_within_its_time(server, monkeypatch, whole):
    monkeypatch.setattr("vcycle.data.decode.remote.FETCH_SECONDS", 0.2)
    server.faults = ["drip"] * 100
    with pytest.raises(UnreadableVideo, match=r"did not come in 0\.2 seconds$"):
        fetch(Location(f"{server.url}/shard.tar") if whole else part(server))
    assert len(server.requests) == 1


def test_all_attempts_share_the_time(server, monkeypatch):
    monkeypatch.setattr("vcycle.data.decode.remote.FETCH_SECONDS", 60.0)
    monkeypatch.setattr("vcycle.data.decode.remote._RETRY_SECONDS", (0.0, 61.0, 0.0))
    server.faults = ["503"] * 100
    with pytest.raises(UnreadableVideo, match=r"503.* \(2 attempts\)$"):
        fetch(part(server))
    assert len(server.requests) == 2


def test_no_more_of_a_file_is_read_than_may_be(server, monkeypatch):
    monkeypatch.setattr("vcycle.data.decode.remote._MOST_BYTES", len(CONTENT))
    assert fetch(Location(f"{server.url}/shard.tar")) == CONTENT
    monkeypatch.setattr("vcycle.data.decode.remote._MOST_BYTES", len(CONTENT) - 1)
    with pytest.raises(UnreadableVideo, match=r"more than .* GiB; download it first"):
        fetch(Location(f"{server.url}/shard.tar"))
    assert len(server.requests) == 2


def test_a_store_is_checked_by_one_byte(server):
    check_store(part(server))
    check_store(Location(f"{server.url}/nowhere.mp4"))  # says nothing of the others
    assert server.num_sent == 1


@pytest.mark.parametrize(
    ("uri", "package"),
    [("gs://bucket/a.mp4", "vcycle.gcs"), ("http://localhost/a.mp4", "vcycle.http")],
)
def test_a_store_whose_package_is_not_installed_is_refused(monkeypatch, uri, package):
    for name in ("gcsfs", "aiohttp"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ValueError, match=f"this kind of store needs a package.*{package}"):
        check_store(Location(uri))
