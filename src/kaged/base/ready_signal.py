"""Telling the outside that the daemon is ready: systemd, and the command that started it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass

READY_FD_VARIABLE = "KAGED_READY_FD"
MAX_READY_BYTES = 16 * 1024  # well below what a pipe takes without a reader


@dataclass(slots=True)
class ReadySignal:
    """One message to whoever waits for the start: ready, or why not. Later ones go nowhere.

    `notify_socket` is systemd's, `fd` the writing end of the starter's pipe; both may be missing.
    """

    notify_socket: str | None = None
    fd: int | None = None

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> ReadySignal:
        """Find out who waits. A descriptor that is no number or not open counts as nobody."""
        fd: int | None = None
        text = environ.get(READY_FD_VARIABLE, "")
        if text.isdigit() and len(text) < 6:
            with contextlib.suppress(OSError):
                os.fstat(int(text))
                fd = int(text)
        return cls(environ.get("NOTIFY_SOCKET") or None, fd)

    def ready(self, facts: JsonObject) -> None:
        """Report that the daemon answers."""
        self._sd_notify(f"READY=1\nMAINPID={os.getpid()}\nSTATUS=ready\n")
        self._tell({"ready": True, **facts})

    def failed(self, error: JsonObject) -> None:
        """Report why the daemon does not start."""
        self._tell({"ready": False, **error})

    def reloading(self) -> None:
        """Report that the configuration is being read again."""
        self._sd_notify("STATUS=reloading\n")

    def reloaded(self) -> None:
        """Report that it has been read."""
        self._sd_notify("STATUS=ready\n")

    def stopping(self) -> None:
        """Report that the daemon is stopping."""
        self._sd_notify("STOPPING=1\nSTATUS=stopping\n")

    def _tell(self, message: JsonObject) -> None:
        if self.fd is None:
            return
        fd, self.fd = self.fd, None
        # The starter may have given up waiting; that is no reason not to run.
        with contextlib.suppress(OSError):
            os.write(fd, json.dumps(message).encode("ascii")[:MAX_READY_BYTES] + b"\n")
        with contextlib.suppress(OSError):
            os.close(fd)

    def _sd_notify(self, message: str) -> None:
        if self.notify_socket is None:
            return
        address = self.notify_socket
        if address.startswith("@"):
            address = "\0" + address[1:]
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.sendto(message.encode("ascii"), address)
