"""debugpy's adapter without its waits; started as a script, inside a cage or not.

    python3 -I -S debugpy_adapter.py FOLDER_OF_THE_PACKAGE

The debugged program's side sends every message as two packets, and the kernel holds the second one
back until the first is acknowledged; which it puts off by 40 ms in the hope of an answer to send
along. So every question to the debugger took that long. Here what comes is acknowledged at once.

Without `site`, since the adapter needs nothing but itself, and lists at its start every package
that it could import.
"""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
import socket
import sys
from typing import Any


class PromptSocketIO(socket.SocketIO):
    """The stream of a socket that acknowledges what it reads without delay."""

    def __init__(self, sock: socket.socket, mode: Any) -> None:
        super().__init__(sock, mode)
        self._prompt = sock

    def readinto(self, b: Any) -> int | None:
        """Read; the kernel forgets the wish at the next write, so it is said every time."""
        with contextlib.suppress(OSError):  # no TCP, or closed meanwhile
            self._prompt.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().readinto(b)


def main() -> None:
    """Run as debugpy's adapter."""
    folder = sys.argv.pop(1)
    spec = importlib.util.spec_from_file_location(
        "debugpy", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"there is no debugpy in {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules["debugpy"] = package
    spec.loader.exec_module(package)
    socket.SocketIO = PromptSocketIO
    runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
