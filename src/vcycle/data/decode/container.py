"""Open a video: a file, a part of a file, or bytes fetched from a store.

A ``Location`` goes in; an open container and its video stream come out. Whatever goes wrong while
it is open leaves as one exception, ``UnreadableVideo``.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import av

from vcycle.data.decode.frame_search import MissedFrame, PastDeadline
from vcycle.data.decode.remote import fetch
from vcycle.data.metadata import Location, TookTooLong, UnreadableVideo
from vcycle.schedule.messages import one_line

MOST_PIXELS = 100_000_000
"""Of a frame, which takes up to thirty bytes a pixel: cameras of 12K have 99 million."""
DECODER_OPTIONS = {"max_pixels": str(MOST_PIXELS)}
"""With which FFmpeg refuses larger frames before they take memory."""

_LISTS = {"concat", "dash", "hls", "imf", "sdp"}
"""Formats that name other files."""
_FORMATS = ",".join(sorted(av.formats_available - _LISTS))
"""With which FFmpeg refuses those before it opens what they name, which may be a pipe."""


@contextmanager
def open_video(
    place: Location,
    *,
    all_key_frames: bool = False,
    source: str | io.BytesIO | None = None,
) -> Iterator[tuple[Any, Any]]:
    """The container and its video stream.

    ``all_key_frames`` is a probe's finding that makes opening cheaper; ``source`` is what
    ``source_of`` returned, if it was called before. Raises UnreadableVideo for every error inside,
    and lets MissedFrame through.
    """
    # To find out how far frames are reordered FFmpeg decodes up to twenty of them. If all are key
    # frames there is nothing to find out, so no decoder is allowed while opening.
    options = {"format_whitelist": _FORMATS}
    if all_key_frames:
        options["codec_whitelist"] = "none"
    try:
        source = source or source_of(place)
        if not isinstance(source, str):  # fetched bytes may name no file and no address
            options["protocol_whitelist"] = "none"
        with _opened(source, options) as container:
            stream = _video_stream(container)
            if stream is None:
                raise UnreadableVideo(str(place), "no video stream")
            if stream.codec_context is None:
                raise UnreadableVideo(str(place), "no decoder for its codec")
            width, height = stream.codec_context.width, stream.codec_context.height
            if width * height > MOST_PIXELS:
                reason = f"{width} x {height} pixels a frame: larger than {MOST_PIXELS:,} in all"
                raise UnreadableVideo(str(place), reason)
            stream.codec_context.options = DECODER_OPTIONS  # frames may grow later
            # One thread per worker: the workers are the parallelism.
            stream.codec_context.thread_count = 1
            stream.codec_context.thread_type = "NONE"
            yield container, stream
    except (UnreadableVideo, MissedFrame):
        raise
    except PastDeadline as error:
        raise TookTooLong(str(place)) from error
    except Exception as error:  # a hostile file may provoke any
        raise UnreadableVideo(str(place), one_line(error)) from error


def is_folder(place: Location) -> bool:
    """Whether the video is a folder of image files."""
    return place.is_local and os.path.isdir(place.uri)  # noqa: PTH112  this runs for every clip


def _opened(source: str | io.BytesIO, options: dict[str, str]) -> Any:
    try:
        return av.open(source, metadata_errors="ignore", options=options)
    except av.ArgumentError as error:  # of a format that is not among ours, and few others
        raise ValueError("not a video: a list of other files, or damaged") from error


def _video_stream(container: Any) -> Any:
    """The best video stream; the cover of a song is not one."""
    cover = av.stream.Disposition.attached_pic
    best = container.streams.best("video")
    if best is None or not best.disposition & cover:
        return best
    return next((s for s in container.streams.video if not s.disposition & cover), None)


def source_of(place: Location) -> str | io.BytesIO:
    """What FFmpeg opens: a path, a part of a local file, or bytes fetched from elsewhere.

    Raises UnreadableVideo if nothing is there.
    """
    if not place.is_local:
        return io.BytesIO(fetch(place) if place.content is None else place.content)
    if not os.path.isfile(place.uri):  # noqa: PTH113  a fifo or a device would block for ever
        reason = "not a file" if os.path.lexists(place.uri) else "not found"
        raise UnreadableVideo(str(place), reason)
    if place.num_bytes:
        end = place.offset + place.num_bytes
        if os.path.getsize(place.uri) < end:  # noqa: PTH202  this runs for every clip
            raise UnreadableVideo(str(place), "the file ends within it")
        return f"subfile,,start,{place.offset},end,{end},,:file:{place.uri}"
    return f"file:{place.uri}"  # so that no name is taken for a protocol
