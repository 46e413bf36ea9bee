"""`SocketRelay`: bytes both ways between two connected sockets, as fast as the loop allows.

Works on the sockets themselves instead of transports: one `recv` into a buffer that all relays of
a loop share, one `send` out of it, nothing copied unless the receiver is slow. A slow receiver
stops the reading of its sender, so a relay holds at most one chunk per direction.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.events import ConnectionEnd
from kaged.cage.net.limits import RELAY_CHUNK_BYTES

_LINGER_NONE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class RelayResult:
    """What went through a relay and how it ended. Up is from the cage, down is to it."""

    bytes_up: int
    bytes_down: int
    ending: ConnectionEnd


class RelayBuffer:
    """The one buffer that the relays of a loop take turns with."""

    def __init__(self, size: int = RELAY_CHUNK_BYTES) -> None:
        self.view = memoryview(bytearray(size))


class SocketRelay:
    """Moves bytes between a cage's socket and an upstream socket until both directions ended.

    Owns both sockets from `start` on and closes them. An end of stream in one direction is passed
    on as one, while the other direction goes on; a broken connection is passed on as broken.
    `on_end` is called exactly once.
    """

    def __init__(
        self,
        cage: socket.socket,
        upstream: socket.socket,
        buffer: RelayBuffer,
        *,
        half_closed_s: float,
        on_end: Callable[[SocketRelay, RelayResult], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sockets = (cage, upstream)
        self._up = _Pump(self, cage, upstream, buffer.view)
        self._down = _Pump(self, upstream, cage, buffer.view)
        self._half_closed_s = half_closed_s
        self._on_end = on_end
        self._timer: asyncio.TimerHandle | None = None
        self._moved_at_timer = 0
        self._ended = False

    def start(self, first: bytes = b"") -> None:
        """Begin; `first` was already read from the cage and goes upstream ahead of the rest."""
        self._down.start()
        self._up.start(first)

    def cut(self, ending: ConnectionEnd = ConnectionEnd.CUT) -> None:
        """End at once, breaking both connections."""
        self._end(ending)

    def pump_ended(self) -> None:
        """Take note that one direction is over."""
        if self._up.ended and self._down.ended:
            self._end(ConnectionEnd.CLOSED)
        elif not self._ended:
            self._watch_silence()

    def _watch_silence(self) -> None:
        self._moved_at_timer = self._up.moved + self._down.moved
        self._timer = self._loop.call_later(self._half_closed_s, self._check_silence)

    def _check_silence(self) -> None:
        if self._up.moved + self._down.moved == self._moved_at_timer:
            self._end(ConnectionEnd.IDLE)
        else:
            self._watch_silence()

    def _end(self, ending: ConnectionEnd) -> None:
        if self._ended:
            return
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            close_socket(sock, broken=ending is not ConnectionEnd.CLOSED)
        self._on_end(self, RelayResult(self._up.moved, self._down.moved, ending))


class _Pump:
    """One direction of a relay."""

    __slots__ = ("_buffer", "_loop", "_pending", "_relay", "_source", "_target", "ended", "moved")

    def __init__(
        self, relay: SocketRelay, source: socket.socket, target: socket.socket, buffer: memoryview
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._relay = relay
        self._source = source
        self._target = target
        self._buffer = buffer
        self._pending = memoryview(b"")
        self.moved = 0
        self.ended = False

    def start(self, first: bytes = b"") -> None:
        if first:
            self._pending = memoryview(first)
            self._loop.add_writer(self._target, self._on_writable)
        else:
            self._loop.add_reader(self._source, self._on_readable)

    def _on_readable(self) -> None:
        try:
            count = self._source.recv_into(self._buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._relay.cut(ConnectionEnd.RESET)
            return
        if count == 0:
            self._loop.remove_reader(self._source)
            self._finish()
            return
        sent = self._send(self._buffer[:count])
        if 0 <= sent < count:
            self._pending = memoryview(bytes(self._buffer[sent:count]))
            self._loop.remove_reader(self._source)
            self._loop.add_writer(self._target, self._on_writable)

    def _on_writable(self) -> None:
        sent = self._send(self._pending)
        if sent < 0:
            return
        self._pending = self._pending[sent:]
        if not self._pending:
            self._loop.remove_writer(self._target)
            self._loop.add_reader(self._source, self._on_readable)

    def _send(self, data: memoryview) -> int:
        """Send what the target takes now; -1 when the relay has ended over it."""
        try:
            sent = self._target.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            self._relay.cut(ConnectionEnd.RESET)
            return -1
        self.moved += sent
        return sent

    def _finish(self) -> None:
        self.ended = True
        try:
            self._target.shutdown(socket.SHUT_WR)
        except OSError:
            self._relay.cut(ConnectionEnd.RESET)
            return
        self._relay.pump_ended()


def close_socket(sock: socket.socket, *, broken: bool) -> None:
    """Close a socket; `broken` tells the other side that something was cut off."""
    if broken:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        except OSError:
            # The other side was faster; there is nothing left to break.
            sock.close()
            return
    sock.close()
