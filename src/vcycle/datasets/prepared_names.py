"""Names of prepared files: the originals', made unique."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from vcycle.data.metadata import Location, Video

_MAX_NAME_BYTES = 240  # file systems take 255; a partial file has a longer name


def prepared_names(videos: Iterable[Video]) -> dict[Location, str]:
    """The path in the prepared folder for each source of a manifest.

    It is the original's path with its suffix kept: ``a.mp4``, or ``a.avi.mp4`` for ``a.avi``. A
    hash of the source is added if two names are equal (also if they differ only in case), if a
    name is too long, and if a URI has a query or fragment. The names do not depend on the order
    of the sources.
    """
    sources = sorted({video.source for video in videos}, key=str)
    names = {source: _name(source) for source in sources}
    while True:
        counts = Counter(name.casefold() for name in names.values())
        shared = [source for source, name in names.items() if counts[name.casefold()] > 1]
        if not shared:
            return names
        names |= {source: _with_hash(names[source], source) for source in shared}


def _name(source: Location) -> str:
    path, complete = source.uri, True
    if not source.is_local:
        uri = urlsplit(path)
        path, complete = f"{uri.netloc}/{uri.path}", not (uri.query or uri.fragment)
        path = unquote(path) if uri.scheme == "file" else path
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    name = "/".join([*map(_short, parts[:-1]), *parts[-1:]])
    if source.num_bytes:
        name = f"{name}.{source.offset}"
    name = name if name.endswith(".mp4") else f"{name}.mp4"
    is_short = len(name.rpartition("/")[2].encode()) <= _MAX_NAME_BYTES
    return name if complete and is_short else _with_hash(name, source)


def _short(folder: str) -> str:
    """A folder's name, its end a hash if it is too long for a file system."""
    if len(folder.encode()) <= _MAX_NAME_BYTES:
        return folder
    digest = hashlib.blake2b(folder.encode(), digest_size=8).hexdigest()
    start = folder.encode()[: _MAX_NAME_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{start}.{digest}"


def _with_hash(name: str, source: Location) -> str:
    folder, slash, last = name.rpartition("/")
    digest = hashlib.blake2b(str(source).encode(), digest_size=8).hexdigest()
    ending = f".{digest}.mp4"
    stem = last.removesuffix(".mp4").encode()[: _MAX_NAME_BYTES - len(ending)]
    return f"{folder}{slash}{stem.decode(errors='ignore')}{ending}"
