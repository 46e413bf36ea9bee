"""Clients that hang up in the middle: what nobody waits for ends, and half a request is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.bridge_lab import alive
from fakes.running_daemon import DaemonProcess, make_project
from kaged.base import SystemClock

Start = Callable[..., DaemonProcess]

PATIENCE_S = 60.0
PROJECT = """\
version: 1
project: cut
primary:
  model: m
  system_prompt: p
  tools: { "shell.*": { enabled: true } }
  subagents:
    caged:
      model: m
      system_prompt: p
      cage: { fs: [{ mode: rw, path: . }], capabilities: [shell] }
      tools: { "shell.*": { enabled: true } }
"""


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = SystemClock().monotonic_s() + PATIENCE_S
    while not holds():
        assert SystemClock().monotonic_s() < deadline_s
        threading.Event().wait(0.02)


def _send(daemon: DaemonProcess, path: str, body: bytes, length: int) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(daemon.said["socket"])
    head = (
        f"POST /api/v1{path} HTTP/1.1\r\nHost: kaged\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    line.sendall(head.encode() + body)
    return line


@pytest.mark.parametrize("agent", ["primary", "primary.subagents.caged"])
def test_a_command_ends_when_whoever_asked_for_it_hangs_up(
    start: Start, tmp_path: Path, agent: str
) -> None:
    root = make_project(tmp_path / "cut", PROJECT)
    daemon = start()
    with daemon.client() as client:
        project_id = client.post("/projects", json={"root": str(root), "trust": True}).json()["id"]
        params = {"command": "echo begun > begun; sleep 600", "timeout": 600_000}
        body = json.dumps({"agent": agent, "tool": "shell.bash", "params": params}).encode()
        line = _send(daemon, f"/projects/{project_id}/tools/call", body, len(body))
        _until((root / "begun").exists)
        children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
        sleeping = [
            int(pid)
            for pid in children.read_text(encoding="ascii").split()
            if b"sleep 600" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert sleeping
        line.close()
        _until(lambda: not any(alive(pid) for pid in sleeping))
        ended = client.get("/audit", params={"event": "tool.completed"})
        assert ended.status_code == 200
        # A call of somebody who stays is none the worse for it.
        quick = {"agent": agent, "tool": "shell.bash", "params": {"command": "echo here"}}
        answer = client.post(f"/projects/{project_id}/tools/call", json=quick).json()
        assert answer["result"]["stdout"] == "here\n"


def test_a_request_whose_sender_hangs_up_before_its_end_is_not_carried_out(
    start: Start, project: Path
) -> None:
    daemon = start()
    body = json.dumps({"root": str(project)}).encode()
    # What came is whole as JSON; what was announced is more.
    _send(daemon, "/projects", body, len(body) + 1).close()
    _until(lambda: "request.disconnected" in daemon.log())
    with daemon.client() as client:
        assert client.get("/projects").json()["items"] == []
        assert (
            client.post("/projects", json={"root": str(project), "trust": True}).status_code == 201
        )
