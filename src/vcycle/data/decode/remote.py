"""Bytes from a store: S3, GCS, a web server, or another of those that ``check_uri`` names.

A ``Location`` goes in; its bytes come out, by one read of their range. What fails for a moment is
tried again, so that a brief outage does not make a video a bad one.
"""

from __future__ import annotations

import time
from dataclasses import replace

import fsspec  # type: ignore[import-untyped]

from vcycle.data.metadata import Location, UnreadableVideo, check_uri
from vcycle.schedule.messages import one_line

_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)  # pauses before a store that failed is asked again
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 20.0  # of a web server that does not answer
_MOST_BYTES = 4 * 2**30  # of a file of a web server
_CHUNK_BYTES = 2**20
FETCH_SECONDS = 300.0
"""In which ``fetch`` has read what a web server sends, or given it up."""
_NOT_FOUND = "not found"
_PASSING_STATUS = (408, 425, 429)  # of HTTP, beside those of a server's own errors


class NoRanges(UnreadableVideo):
    """A store that gives whole files instead of ranges of bytes."""

    def __init__(self, place: Location) -> None:
        super().__init__(
            str(place),
            "its server gives whole files, not ranges of bytes; serve shards from one that "
            "supports range requests, or prepare the videos without shards",
        )


def fetch(place: Location) -> bytes:
    """The bytes of a remote video.

    Raises UnreadableVideo if nothing is there, if five attempts fail, if the store does not read
    ranges, or if a web server sends more than 4 GiB or takes more than 300 seconds.
    """
    try:
        check_uri(place.uri)
    except ValueError as error:
        raise UnreadableVideo(str(place), str(error)) from error
    until = time.monotonic() + FETCH_SECONDS
    for attempts, pause in enumerate((*_RETRY_SECONDS, None), 1):
        try:
            content = _read(place, until=until)
            if place.num_bytes in (0, len(content)):
                return content
            if len(content) > place.num_bytes:
                raise NoRanges(place)
            reason = f"its range of the file gave {len(content)} bytes"
        except UnreadableVideo:
            raise
        except Exception as error:  # of any file system
            reason = _reason(error)
            if _is_final(error):
                raise UnreadableVideo(str(place), reason) from error
        if time.monotonic() >= until:
            raise UnreadableVideo(str(place), f"did not come in {FETCH_SECONDS:g} seconds")
        said = f"{reason} ({attempts} attempts)"
        if pause is None or time.monotonic() + pause >= until:
            break
        time.sleep(pause)
    raise UnreadableVideo(str(place), said)


def check_store(place: Location) -> None:
    """Raise ValueError, with what to do, if the store of a remote video cannot be read from.

    One byte is read. A video that is not there says nothing of its store.
    """
    try:
        fetch(replace(place, num_bytes=1))
    except UnreadableVideo as error:
        if isinstance(error.__cause__, ImportError):
            raise ValueError(
                f"{place}: this kind of store needs a package ({error.reason}); install "
                f"`vcycle[s3]` for S3, `vcycle[gcs]` for Google's, `vcycle[http]` for web servers"
            ) from error
        if error.reason != _NOT_FOUND:
            raise ValueError(str(error)) from error


def _read(place: Location, *, until: float) -> bytes:
    """One attempt, in one request."""
    if place.uri.startswith(("http://", "https://")):
        return _read_web(place, seconds=until - time.monotonic())
    filesystem, path = fsspec.core.url_to_fs(place.uri)
    end = place.offset + place.num_bytes if place.num_bytes else None
    content: bytes = filesystem.cat_file(path, start=place.offset or None, end=end)
    return content


def _read_web(place: Location, *, seconds: float) -> bytes:
    """No more than was asked for, of a server that may send anything, and for ever."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=seconds, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS
    )
    filesystem, path = fsspec.core.url_to_fs(place.uri)
    asked = {}
    if place.num_bytes:
        asked["Range"] = f"bytes={place.offset}-{place.offset + place.num_bytes - 1}"
    content = bytearray()
    # Of no block size, it comes as it is sent; any size saves the request that asks for it.
    with filesystem.open(path, block_size=0, size=1, headers=asked, timeout=timeout) as stream:
        if place.offset and stream.r.status != 206:  # "partial content"
            raise NoRanges(place)
        while left := (place.num_bytes or _MOST_BYTES + 1) - len(content):
            chunk = stream.read(min(left, _CHUNK_BYTES))
            if not chunk:
                break
            content += chunk
    if len(content) > (place.num_bytes or _MOST_BYTES):
        reason = f"more than {_MOST_BYTES / 2**30:g} GiB; download it first"
        raise UnreadableVideo(str(place), reason)
    return bytes(content)


def _is_final(error: Exception) -> bool:
    """Whether the same request will fail again."""
    status = getattr(error, "status", 0)
    refused = 400 <= status < 500 and status not in _PASSING_STATUS
    return refused or isinstance(error, FileNotFoundError | PermissionError | ImportError)


def _reason(error: Exception) -> str:
    missing = isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404
    return _NOT_FOUND if missing else one_line(error)
