"""Telling whoever waits for the start."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from kaged.base.ready_signal import ReadySignal


def test_the_starter_is_told_once_and_its_pipe_is_closed() -> None:
    reader, writer = os.pipe()
    signal = ReadySignal.from_env({"KAGED_READY_FD": str(writer)})
    signal.ready({"pid": 5})
    signal.failed({"error": {"code": "late"}})
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    assert json.loads(said) == {"ready": True, "pid": 5}


def test_the_starter_is_told_why_not() -> None:
    reader, writer = os.pipe()
    ReadySignal.from_env({"KAGED_READY_FD": str(writer)}).failed({"error": {"code": "x"}})
    with os.fdopen(reader, "rb") as pipe:
        assert json.loads(pipe.read()) == {"ready": False, "error": {"code": "x"}}


def test_a_starter_that_went_away_does_not_matter() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ReadySignal.from_env({"KAGED_READY_FD": str(writer)}).ready({})


def test_a_descriptor_that_is_none_counts_as_nobody() -> None:
    for text in ("", "x", "-1", "99999", "999999999999"):
        assert ReadySignal.from_env({"KAGED_READY_FD": text}).fd is None


def test_systemd_is_told_of_ready_reload_and_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        signal = ReadySignal.from_env({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        signal.ready({})
        signal.reloading()
        signal.reloaded()
        signal.stopping()
        said = [systemd.recv(1024).decode() for _ in range(4)]
    assert said[0].startswith("READY=1\n")
    assert f"MAINPID={os.getpid()}" in said[0]
    assert said[3].startswith("STOPPING=1\n")


def test_a_systemd_that_does_not_listen_does_not_matter(tmp_path: Path) -> None:
    ReadySignal(notify_socket=str(tmp_path / "nobody")).ready({})
    ReadySignal(notify_socket="@nobody-listens-here").stopping()
