"""Clients that hang up, at each phase of each stream: no line of the log calls that an error."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.project import Project

ROUNDS = 5
UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: kaged\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
LISTING = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
EVENTS, STREAM, MCP = "/api/v1/events", "/api/v1/projects/{id}/mcp/stream", "/mcp"


def frame(data: bytes, opcode: int = 2) -> bytes:
    """Return a masked WebSocket frame, with a mask of zeros."""
    size = len(data)
    head = (
        struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        if size < 126
        else (struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size))
    )
    return head + b"\0\0\0\0" + data


def line(message: object) -> bytes:
    """Return a message as `kaged mcp` sends it."""
    return frame(json.dumps(message).encode() + b"\n")


class Client:
    """A bare connection that can leave politely or with a reset."""

    def __init__(self, daemon: Daemon, project: Project) -> None:
        Daemon.spoken += 1
        self.project = project
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60.0)
        self.socket.connect(str(daemon.home / "run" / "kaged.sock"))

    def upgrade(self, path: str) -> None:
        """Ask for a WebSocket."""
        self.socket.sendall(UPGRADE.format(path=path.format(id=self.project.id)).encode())

    def accepted(self, path: str) -> None:
        """Ask for a WebSocket and wait for the yes."""
        self.upgrade(path)
        assert b" 101 " in self.socket.recv(4096)

    def post(self, body: object, *, cut: int = 0, session: str = "") -> None:
        """Send an MCP message by HTTP, without its last bytes."""
        data = json.dumps(body).encode()
        extra = f"Mcp-Session-Id: {session}\r\n" if session else ""
        head = (
            f"POST /api/v1/projects/{self.project.id}/mcp HTTP/1.1\r\nHost: kaged\r\n{extra}"
            "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + data[: len(data) - cut])

    def session(self) -> str:
        """Open a session by HTTP; returns its id."""
        self.post(INITIALIZE)
        head = self.socket.recv(65536).decode("latin-1").lower()
        return head.partition("mcp-session-id: ")[2].partition("\r\n")[0]

    def leave(self, *, unread: bool = False) -> None:
        """Hang up; with something unread on a Unix socket the other end sees a reset."""
        if not unread:
            self.socket.setblocking(False)
            try:
                while self.socket.recv(65536):
                    pass
            except OSError:
                pass
        self.socket.close()


Phase = Callable[[Client], None]


def _mcp_stream(*messages: object) -> Phase:
    def run(client: Client) -> None:
        client.accepted(STREAM)
        for one in messages:
            client.socket.sendall(line(one))

    return run


def _event_get(client: Client) -> None:
    session = client.session()
    head = (
        f"GET /api/v1/projects/{client.project.id}/mcp HTTP/1.1\r\nHost: kaged\r\n"
        f"Mcp-Session-Id: {session}\r\nAccept: text/event-stream\r\n\r\n"
    )
    client.socket.sendall(head.encode())


def _busy_post(client: Client) -> None:
    session = client.session()
    for _ in range(3):
        client.post(LISTING, session=session)


def _half_frame(path: str) -> Phase:
    def run(client: Client) -> None:
        client.accepted(path)
        client.socket.sendall(frame(b"x" * 100)[:20])

    return run


def _sent(path: str, data: bytes) -> Phase:
    def run(client: Client) -> None:
        client.accepted(path)
        client.socket.sendall(data)

    return run


PHASES: dict[str, Phase] = {
    "half an upgrade": lambda client: client.socket.sendall(b"GET /api/v1/events HTTP/1.1\r\nUpg"),
    "events, asked": lambda client: client.upgrade(EVENTS),
    "events, wrong path": lambda client: client.upgrade("/api/v1/nowhere"),
    "events, wrong query": lambda client: client.upgrade(EVENTS + "?after=x"),
    "events, accepted": lambda client: client.accepted(EVENTS),
    "events, all since the start": lambda client: client.accepted(EVENTS + "?after=0"),
    "events, half a frame": _half_frame(EVENTS),
    "events, a message": _sent(EVENTS, frame(b"hello", 1)),
    "events, a close": _sent(EVENTS, frame(b"\x03\xe8", 8)),
    "events, no frame": _sent(EVENTS, b"\xff" * 50),
    "stream, asked": lambda client: client.upgrade(STREAM),
    "stream, accepted": lambda client: client.accepted(STREAM),
    "stream, half a frame": _half_frame(STREAM),
    "stream, half a message": _sent(STREAM, frame(b'{"jsonrpc": "2.0"')),
    "stream, initializing": _mcp_stream(INITIALIZE),
    "stream, calling": _mcp_stream(INITIALIZE, LISTING, LISTING, LISTING),
    "stream, no messages": _sent(STREAM, frame(b"\n".join([b"x"] * 50) + b"\n")),
    "stream, no frame": _sent(STREAM, b"\xff" * 50),
    "http, half a body": lambda client: client.post(INITIALIZE, cut=5),
    "http, asked": lambda client: client.post(INITIALIZE),
    "http, in a session": _busy_post,
    "http, event stream": _event_get,
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_client_that_hangs_up_is_no_error(
    daemon: Daemon, tmp_path: Path, project: Project, phase: str
) -> None:
    before = len(daemon.log())
    for number in range(ROUNDS):
        for unread in (False, True):
            client = Client(daemon, project)
            PHASES[phase](client)
            if number == 0:
                project.write("seen.txt", "x")
            client.leave(unread=unread)
    project.call("file.read", path="seen.txt")
    # All of them have been met and let go when no connection is left but our own.
    wait_for(lambda: _connections(daemon) <= 2, "the end of every connection")
    logged = daemon.log()[before:]
    assert "Traceback" not in logged, logged[-3000:]
    assert '"level": "error"' not in logged, logged[-3000:]


def _connections(daemon: Daemon) -> int:
    """Count the daemon's connections on its Unix socket."""
    path = str(daemon.home / "run" / "kaged.sock")
    rows = Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    # State 3 is connected; 1 is the listener.
    return sum(row.endswith(path) and row.split()[5] == "03" for row in rows)
