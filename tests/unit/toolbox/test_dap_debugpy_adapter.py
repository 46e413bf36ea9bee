"""debugpy's adapter as it is started: it acknowledges at once what it reads, and is shut in."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from kaged.config.serverchoice import AdapterChoice
from kaged.toolbox.dap import BUILTIN, debugpy_adapter
from kaged.toolbox.dap.adapters import INSIDE_DEBUGPY, INSIDE_PROMPT, plan_adapter
from kaged.toolbox.dap.debugpy_adapter import PromptSocketIO

PROMPT = (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


class Wire:
    """A socket that holds two packets and remembers what was done with it."""

    def __init__(self, *, tcp: bool = True) -> None:
        self.done: list[Any] = []
        self._tcp = tcp
        self._packets = [b"Content-Length: 2", b"{}"]

    def setsockopt(self, *option: int) -> None:
        if not self._tcp:
            raise OSError(95, "Operation not supported")
        self.done.append(option)

    def recv_into(self, buffer: bytearray) -> int:
        packet = self._packets.pop(0)
        self.done.append(packet)
        buffer[: len(packet)] = packet
        return len(packet)

    def _decref_socketios(self) -> None:
        """Be told that its reader is closed; Python 3.13 says so when it collects it."""


def read_all(wire: Wire) -> None:
    stream = PromptSocketIO(cast("socket.socket", wire), "rw")
    for _ in range(2):
        stream.readinto(bytearray(100))


def test_every_packet_is_acknowledged_at_once() -> None:
    wire = Wire()
    read_all(wire)
    assert wire.done == [PROMPT, b"Content-Length: 2", PROMPT, b"{}"]


def test_a_socket_that_knows_no_acknowledgements_is_read_all_the_same() -> None:
    wire = Wire(tcp=False)
    read_all(wire)
    assert wire.done == [b"Content-Length: 2", b"{}"]


def test_the_adapter_runs_with_the_package_of_the_given_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    began: list[tuple[str, str, list[str]]] = []

    def run(name: str, run_name: str, *, alter_sys: bool) -> None:
        assert alter_sys
        began.append((name, run_name, sys.argv[1:]))
        assert socket.SocketIO is PromptSocketIO
        assert cast("Any", sys.modules["debugpy"]).FOUND == "here"

    (tmp_path / "__init__.py").write_text("FOUND = 'here'", encoding="utf-8")
    monkeypatch.setattr(socket, "SocketIO", socket.SocketIO)  # put back afterwards
    monkeypatch.setitem(sys.modules, "debugpy", ModuleType("debugpy"))
    monkeypatch.setattr(sys, "argv", ["debugpy_adapter.py", str(tmp_path)])
    monkeypatch.setattr(runpy, "run_module", run)
    debugpy_adapter.main()
    assert began == [("debugpy.adapter", "__main__", [])]


def test_in_a_cage_the_adapter_and_the_package_are_shown_and_nothing_of_the_project_is_loaded() -> (
    None
):
    plan = plan_adapter("python", BUILTIN["python"], dict(os.environ), caged=True)
    assert plan.argv == ("python3", "-I", "-S", INSIDE_PROMPT, f"{INSIDE_DEBUGPY}/debugpy")
    assert [inside for _, inside in plan.mounts] == [f"{INSIDE_DEBUGPY}/debugpy", INSIDE_PROMPT]
    # Whoever names another program for it means that one.
    own = AdapterChoice("debugpy", None, ("my-debugpy",), False)
    assert plan_adapter("python", own, dict(os.environ), caged=True).argv == ("my-debugpy",)
