"""`Website`: a web server of a test's own, which answers as it was told and counts who asked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Answer(NamedTuple):
    """What the server says at one path."""

    body: bytes = b""
    type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: Mapping[str, str] = {}


class Website:
    """A server on this machine's loopback. `asked` are the paths that were asked for.

    To those in `silent` it never answers.
    """

    def __init__(self) -> None:
        self.pages: dict[str, Answer] = {}
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.heads: list[dict[str, str]] = []
        closing = self._closing = threading.Event()
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                site.heads.append({name.lower(): value for name, value in self.headers.items()})
                if self.path in site.silent:
                    closing.wait()
                    return
                found = site.pages.get(self.path, Answer(b"<p>secret words</p>", status=404))
                self.send_response(found.status)
                if found.type:
                    self.send_header("Content-Type", found.type)
                for name, value in found.headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in found.headers:
                    self.send_header("Content-Length", str(len(found.body)))
                self.end_headers()
                self.wfile.write(found.body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self.host = f"localhost:{self.port}"
        self.url = f"http://{self.host}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def puts(self, path: str, body: str | bytes, kind: str = "", **headers: str) -> str:
        """Put a page there; returns its address."""
        content = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = Answer(content, kind or Answer().type, headers=named)
        return self.url + path

    def leads(self, path: str, target: str, status: int = 302) -> str:
        """Let a path redirect; returns its address."""
        self.pages[path] = Answer(status=status, headers={"Location": target})
        return self.url + path

    def close(self) -> None:
        """End the server."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
