"""An S3 of one bucket on this machine, for tests: ``with serve_s3(folder) as uri``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest


@contextmanager
def serve_s3(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URI under which the files of ``folder`` are, here and in child processes.

    Skips the test if moto or s3fs is not installed. The server is gone when the context is left.
    """
    moto = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with urlopen(Request(f"{url}/moto-api/reset", method="POST")):  # what other tests left
        pass
    for name, value in {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # one of another test has its server's address
    store = s3fs.S3FileSystem()
    store.mkdir("bucket")
    for file in sorted(folder.iterdir()):
        if file.is_file():
            store.pipe_file(f"bucket/{folder.name}/{file.name}", file.read_bytes())
    try:
        yield f"s3://bucket/{folder.name}"
    finally:
        server.stop()
        s3fs.S3FileSystem.clear_instance_cache()
