"""Bytes from a store: S3, GCS, a web server, or another of those that ``check_uri`` names.

A ``Location`` goes in; its bytes come out, by one read of their range. What fails for a moment is
tried again, so that a brief outage does not make a video a bad one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import fsspec  # type: ignore[import-untyped]

from vcycle.data.metadata import Location, UnreadableVideo, check_uri
from vcycle.schedule.messages import one_line

_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)  # pauses before a store that failed is asked again
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 20.0  # of a web server that does not answer
FETCH_SECONDS = sum(_RETRY_SECONDS) + (1 + len(_RETRY_SECONDS)) * (_CONNECT_SECONDS + _READ_SECONDS)
"""What ``fetch`` takes to give up a store that does not answer."""
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

    Raises UnreadableVideo if nothing is there, if five attempts fail, or if the store does not
    read ranges.
    """
    try:
        check_uri(place.uri)
    except ValueError as error:
        raise UnreadableVideo(str(place), str(error)) from error
    for pause in (*_RETRY_SECONDS, None):
        try:
            content = _read(place)
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
        if pause is not None:
            time.sleep(pause)
    raise UnreadableVideo(str(place), f"{reason} ({1 + len(_RETRY_SECONDS)} attempts)")


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


def _read(place: Location) -> bytes:
    """One attempt, in one request."""
    is_http = place.uri.startswith(("http://", "https://"))
    filesystem, path = fsspec.core.url_to_fs(place.uri, **(_http_options() if is_http else {}))
    end = place.offset + place.num_bytes if place.num_bytes else None
    if is_http and end:
        # This file reads its range and no more, even if the server sends all of a shard.
        with filesystem.open(path, size=end, cache_type="none") as file:
            file.seek(place.offset)
            try:
                content: bytes = file.read(place.num_bytes)
            except ValueError as error:
                if "range requests" not in str(error):
                    raise
                raise NoRanges(place) from error
    else:
        content = filesystem.cat_file(path, start=place.offset or None, end=end)
    return content


def _http_options() -> dict[str, Any]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS)
    return {"client_kwargs": {"timeout": timeout}}


def _is_final(error: Exception) -> bool:
    """Whether the same request will fail again."""
    status = getattr(error, "status", 0)
    refused = 400 <= status < 500 and status not in _PASSING_STATUS
    return refused or isinstance(error, FileNotFoundError | PermissionError | ImportError)


def _reason(error: Exception) -> str:
    missing = isinstance(error, FileNotFoundError) or getattr(error, "status", 0) == 404
    return _NOT_FOUND if missing else one_line(error)
