"""Stand-ins for the services that gallery plugins ask, and the plugins as an operator sets them up.

A stand-in is a real HTTP server on loopback that answers by the service's documented protocol and
writes down what it was asked.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import tomlkit

from whole.harness.daemon import Daemon

LIMIT_KIB = 15 * 1024
"""What a waiting plugin may take: Python is most of it, and no event loop before the first call."""


class Asked:
    """One request that a stand-in got."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        address = urlsplit(handler.path)
        self.method, self.path = handler.command, address.path
        self.query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        length = int(self.headers.get("content-length", 0))
        data = handler.rfile.read(length) if length else b""
        self.body: Any = json.loads(data) if data else None


Reply = tuple[int, Any] | tuple[int, Any, Mapping[str, str]]


class StandIn:
    """An HTTP server on loopback; `answer` gives status, body (JSON or text) and headers."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.asked: list[Asked] = []
        self.answer = answer
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def reply(self) -> None:
                asked = Asked(self)
                outer.asked.append(asked)
                status, body, *more = outer.answer(asked)
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                if status in (204, 304):
                    data = b""
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = reply  # noqa: N815 - names of the library's

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def url(self) -> str:
        """Where a caged plugin reaches it."""
        return f"http://localhost:{self.port}"

    def take(self) -> list[Asked]:
        """Return what was asked since the last time."""
        found, self.asked = self.asked, []
        return found

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def set_up(daemon: Daemon, name: str, /, *ports: int, **settings: Any) -> None:
    """Install a plugin of the gallery, write its section as an operator does, and enable it."""
    word = f"gallery:{name}"
    shown = daemon.post("/plugins/preview", {"path": word})
    daemon.post("/plugins", {"path": word, "digest": shown["digest"]})
    if ports:
        settings["grants"] = [f"net:localhost:{port}" for port in ports]
    write_section(daemon, name, **settings)
    daemon.post(f"/plugins/{name}/enable")


def write_section(daemon: Daemon, name: str, /, **settings: Any) -> None:
    """Change the operator's settings of a plugin; its next start reads them."""
    file = tomlkit.parse((daemon.home / "local.toml").read_text("utf-8"))
    section: Any = file["plugins"][name]
    section.update(settings)
    daemon.write("local.toml", tomlkit.dumps(file))


def resident_kib(pid: int) -> int:
    """Return the memory that a process has in use."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found
    return int(found[1])


def command_pid(pid: int) -> int:
    """Return the last process of a chain: bwrap's child is the plugin."""
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
        if not children:
            return pid
        pid = int(children[-1])
