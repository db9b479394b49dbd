"""A web server that serves a folder by ranges of bytes, and fails when it is told to."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FAULTS = ("drop", "503", "short", "cut")
"""No answer; an error; an answer of fewer bytes than asked for; one that ends before its length.

Beside them "drip": a byte every 50 ms.
"""


@dataclass
class Server:
    """The address, what was asked for, and the faults of the next requests, in order."""

    url: str
    ranges: bool = True
    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    every_third: bool = False  # request fails, in a different way each time
    num_sent: int = 0  # bytes

    def fault(self) -> str:
        if self.every_third and len(self.requests) % 3 == 0:
            return FAULTS[len(self.requests) // 3 % len(FAULTS)]
        return self.faults.pop(0) if self.faults else ""


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """Serve a folder on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            state.requests.append(self.path)
            fault = state.fault()
            file = folder / self.path.lstrip("/")
            if fault == "drop":
                self.close_connection = True
                return
            if fault.isdigit() or not file.is_file():
                self.send_error(int(fault or 404))
                return
            self.send_part(file.read_bytes(), fault)

        def send_part(self, content: bytes, fault: str) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked and state.ranges:
                start, end = int(asked[1]), int(asked[2]) + 1
                content = content[start : end // 2 if fault == "short" else end]
                self.send_response(206)
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                for i in range(len(content) if fault == "drip" else 0):
                    self.wfile.write(content[i : i + 1])
                    time.sleep(0.05)
                self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
            except (BrokenPipeError, ConnectionResetError):  # the client has read enough
                return
            self.close_connection = fault == "cut"
            state.num_sent += len(content)

    server = _Quiet(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = Server(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
