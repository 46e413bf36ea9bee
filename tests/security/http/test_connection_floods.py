"""Whoever opens connections by the hundred locks nobody out but themselves."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import connect as connect_stream

from whole.harness.daemon import Daemon, wait_for

FLOOD = 600
STRANGER, OTHER_STRANGER = 65534, 65533
HALF = b"GET /api/v1/status HTTP/1.1\r\nhost: kag"
_FLOOD_AS = """
import os, socket, sys
path, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
held = []
for _ in range(count):
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    held.append(line)
    try:
        line.sendall(b"GET /api/v1/status HTTP/1.1\\r\\nhost: kag")
    except OSError:
        pass
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    """Yield a daemon of its own process."""
    made = Daemon(tmp_path / "h")
    made.start()
    yield made
    made.close()


def _by_tcp(daemon: Daemon) -> Callable[[], socket.socket]:
    where = urlsplit(daemon.url)
    assert where.hostname is not None
    assert where.port is not None
    address = (where.hostname, where.port)
    return lambda: socket.create_connection(address, timeout=60.0)


def _by_unix(daemon: Daemon) -> Callable[[], socket.socket]:
    path = str(daemon.get("/status")["socket"])

    def connect() -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(60.0)
        line.connect(path)
        return line

    return connect


def _flood(held: contextlib.ExitStack, connect: Callable[[], socket.socket]) -> None:
    """Open more connections than any budget holds; each begins a request and stops there."""
    for _ in range(FLOOD):
        line = held.enter_context(connect())
        with contextlib.suppress(OSError):  # it was dropped for one that came later
            line.sendall(HALF)


def _sockets(daemon: Daemon) -> int:
    count = 0
    for one in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(one.readlink()).startswith("socket:")
    return count


def _operator_is_served(daemon: Daemon) -> None:
    """Ask as commands do, on a connection of their own each."""
    assert daemon.cli("status", "--json").json["pid"] == daemon.pid
    assert daemon.cli("project", "list").code == 0


@contextlib.contextmanager
def _flood_of(uid: int, path: str) -> Generator[None]:
    """Keep a process of this uid that holds hundreds of connections."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _FLOOD_AS, path, str(uid), str(FLOOD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        yield
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_half_open_tcp_connections_do_not_lock_the_operator_out(daemon: Daemon) -> None:
    """Neither from the Unix socket nor, with the token, from TCP; and not by a second flood."""
    token, url = daemon.token, daemon.url
    stream = f"{url.replace('http', 'ws', 1)}/api/v1/events"
    bearer = {"authorization": f"Bearer {token}"}
    with (
        connect_stream(stream, additional_headers=bearer) as events,
        contextlib.ExitStack() as held,
    ):
        assert json.loads(events.recv(60.0))["type"] == "hello"
        for _ in range(2):
            _flood(held, _by_tcp(daemon))
            _operator_is_served(daemon)
            answer = httpx.get(f"{url}/api/v1/status", headers=bearer, timeout=60.0)
            assert answer.status_code == 200
        # Who was let in before is not dropped for those who only knock.
        events.ping().wait(60.0)
        assert events.close_code is None


def test_half_open_connections_of_the_own_uid_do_not_lock_the_operator_out(
    daemon: Daemon,
) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(2):
            _flood(held, _by_unix(daemon))
            _operator_is_served(daemon)


@pytest.mark.parametrize("by", [_by_tcp, _by_unix], ids=["tcp", "unix"])
def test_half_open_connections_are_cut(
    daemon: Daemon, by: Callable[[Daemon], Callable[[], socket.socket]]
) -> None:
    connect = by(daemon)
    daemon.get("/projects")  # answered when all subsystems stand, which have sockets of their own
    before = _sockets(daemon)
    with contextlib.ExitStack() as held:
        lines = [held.enter_context(connect()) for _ in range(40)]
        for line in lines[::2]:  # the others say nothing at all
            line.sendall(HALF)
        for line in lines:
            answer = line.recv(65536)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"within 5 seconds" in answer
        wait_for(lambda: _sockets(daemon) < before + 10, "closed by the daemon")


def test_a_head_that_comes_drop_by_drop_is_cut_as_well(daemon: Daemon) -> None:
    with _by_unix(daemon)() as line:
        line.settimeout(0.2)
        line.sendall(HALF)

        def cut() -> bool:
            with contextlib.suppress(OSError):
                line.sendall(b"e")
            try:
                return line.recv(65536).startswith(b"HTTP/1.1 408")
            except TimeoutError:
                return False

        wait_for(cut, "the end of a head that never ends")


@pytest.mark.needs_root
def test_connections_of_other_uids_do_not_lock_the_operator_out() -> None:
    """The file modes keep them away; here they are wide open, and the second wall holds."""

    with tempfile.TemporaryDirectory(prefix="kgd-") as folder:
        Path(folder).chmod(0o755)
        daemon = Daemon(Path(folder) / "h")
        daemon.start()
        try:
            path = Path(daemon.get("/status")["socket"])
            for one in (daemon.home, path.parent):
                one.chmod(0o755)
            path.chmod(0o666)
            daemon.get("/projects")
            before = _sockets(daemon)
            with _flood_of(STRANGER, str(path)), _flood_of(OTHER_STRANGER, str(path)):
                _operator_is_served(daemon)
                # Sixteen each, and what commands and the daemon itself have open just now.
                wait_for(lambda: _sockets(daemon) <= before + 36, "room taken by others")
                with _flood_of(STRANGER, str(path)):
                    _operator_is_served(daemon)
        finally:
            daemon.close()
