"""`SessionStream`: what happens in one session, as it happens, from the daemon's event stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.sync.client import ClientConnection, connect, unix_connect

from kaged.base import Clock, KagedError, SystemClock
from kaged.cli.launch import wait_until

if TYPE_CHECKING:
    from kaged.cli.remote import RemoteDaemon

OPEN_TIMEOUT_S: Final = 10.0
RECONNECT_S: Final = 15.0
MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024

GAP: Final = "stream.gap"
"""What `next` gives when events may have been missed: look again for yourself."""


_REFUSALS: Final = (OSError, InvalidHandshake, InvalidMessage, ConnectionClosed)


class SessionStream:
    """Listens to one session. Cut off, it connects again and goes on behind the last event."""

    def __init__(
        self,
        socket: Path,
        session_id: str,
        clock: Clock | None = None,
        remote: RemoteDaemon | None = None,
        also: str = "",
    ) -> None:
        """`also` names more topics, such as `lua:<project>`, separated by commas."""
        self._topics = f"session:{session_id}{',' if also else ''}{also}"
        self._socket = socket
        self._remote = remote
        self._clock = clock or SystemClock()
        self._stream: ClientConnection | None = None
        self._epoch = ""
        self._seq: int | None = None

    def __enter__(self) -> Self:
        """Connect; what happens from now on is not missed."""
        try:
            self._connect()
        except _REFUSALS as error:
            raise self._unreachable(error) from error
        return self

    def __exit__(self, *error: object) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event as `{name, data}`; None when none came in time.

        Raises:
            KagedError: `daemon_unreachable`; the daemon is gone and did not come back.
        """
        assert self._stream is not None, "the stream is used inside `with`"
        try:
            message = json.loads(self._stream.recv(timeout=timeout_s))
        except TimeoutError:
            return None
        except ConnectionClosed:
            self._reconnect()
            return {"name": GAP, "data": {}}
        match message["type"]:
            case "event":
                self._seq = message["seq"]
                return {"name": message["name"], "data": message["data"]}
            case "mark":
                self._seq = message["seq"]
                return None
            case "gap":
                return {"name": GAP, "data": {}}
            case _:
                return None

    def _connect(self) -> None:
        resume = "" if self._seq is None else f"&after={self._seq}&epoch={self._epoch}"
        path = f"/api/v1/events?topics={self._topics}{resume}"
        self._stream = self._opened(path)
        hello = json.loads(self._stream.recv(timeout=OPEN_TIMEOUT_S))
        self._epoch = str(hello["epoch"])
        if self._seq is None:
            self._seq = int(hello["latest"])

    def _opened(self, path: str) -> ClientConnection:
        options: dict[str, Any] = {
            "open_timeout": OPEN_TIMEOUT_S,
            "compression": None,
            "max_size": MAX_MESSAGE_BYTES,
        }
        if self._remote is None:
            return unix_connect(str(self._socket), f"ws://kaged{path}", **options)
        headers = {"Authorization": f"Bearer {self._remote.token()}"}
        url = self._remote.url.replace("http", "ws", 1) + path
        return connect(url, additional_headers=headers, proxy=None, **options)

    def _reconnect(self) -> None:
        if not wait_until(self._connected, self._clock, RECONNECT_S):
            raise self._unreachable("the daemon ended and did not come back")

    def _connected(self) -> bool:
        try:
            self._connect()
        except _REFUSALS:
            return False
        return True

    def _unreachable(self, error: object) -> KagedError:
        return KagedError(
            f"The daemon's event stream cannot be read: {error}.",
            code="daemon_unreachable",
            fix="Check `kaged status`. Continue an interrupted run with `kaged session resume`.",
            socket=str(self._socket),
        )
