"""Clients that hang up early are no errors: nothing is logged as one, and others are served."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from whole.harness.daemon import Daemon
from whole.harness.project import Project

TRIES = 40


UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: kaged\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def hang_up(daemon: Daemon, path: str) -> None:
    """Ask for a stream and leave without waiting for the answer."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.home / "run" / "kaged.sock"))
        client.sendall(UPGRADE.format(path=path).encode())


@pytest.mark.parametrize("path", ["/api/v1/events", "/api/v1/projects/{id}/mcp/stream"])
def test_a_client_that_leaves_before_its_stream_begins_is_no_error(
    daemon: Daemon, project: Project, path: str
) -> None:
    before = len(daemon.log())
    # They have left before the daemon sees that they came.
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        for _ in range(TRIES):
            hang_up(daemon, path.format(id=project.id))
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    for _ in range(TRIES):  # asked behind them, so these have been met when it answers
        daemon.get("/status")
    logged = daemon.log()[before:]
    assert "Traceback" not in logged
    assert '"level": "error"' not in logged
