"""`Forwarder`: takes one accepted connection of a cage to where its program wants to go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from kaged.cage.gate_port import BoundConnection, BoundHosts, BoundResult
from kaged.cage.net.dial import Dialled, Dialler, NotDialled
from kaged.cage.net.events import ConnectionEnd, ConnectVia, Recorder
from kaged.cage.net.handshake import (
    Asked,
    More,
    ProxyHandshake,
    ProxyOutcome,
    ProxyRefused,
    reply_for,
)
from kaged.cage.net.limits import GateLimits
from kaged.cage.net.relay import RelayBuffer, RelayResult, SocketRelay

_READ_BYTES = 4096
_GOODBYE_S = 1.0
_GOODBYE_BYTES = 64 * 1024


class Forwarder:
    """Dials, relays and records for one cage.

    Both entrances return whether the connection was handed to a relay. If so, the relay owns the
    socket and calls `on_end`; if not, the socket is still the caller's. A connection to a bound
    host is over when they return.
    """

    def __init__(
        self,
        dialler: Dialler,
        recorder: Recorder,
        limits: GateLimits,
        buffer: RelayBuffer,
        bound: BoundHosts | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dialler = dialler
        self._recorder = recorder
        self._limits = limits
        self._buffer = buffer
        self._bound = bound
        self._relays: set[SocketRelay] = set()
        self._handshakes = 0

    async def forward(
        self, client: socket.socket, host: str, port: int, on_end: Callable[[], None]
    ) -> bool:
        """Connect the client to `host:port`, if that is granted."""
        return await self._forward(client, ConnectVia.DIRECT, host, port, on_end)

    async def proxy(self, client: socket.socket, on_end: Callable[[], None]) -> bool:
        """Ask the client where it wants to go, then connect it, if that is granted."""
        if self._handshakes >= self._limits.handshakes:
            self._recorder.over_limit(ConnectVia.PROXY, "handshakes")
            return False
        self._handshakes += 1
        try:
            async with asyncio.timeout(self._limits.handshake_s):
                asked = await self._question(client)
        except TimeoutError:
            self._recorder.denied(ConnectVia.PROXY, "", 0, "net.proxy", "no question came in time")
            return False
        finally:
            self._handshakes -= 1
        if asked is None:
            return False
        via = ConnectVia(asked.kind.value)
        return await self._forward(client, via, asked.host, asked.port, on_end, asked)

    def cut(self) -> None:
        """Break every connection that is being relayed."""
        for relay in tuple(self._relays):
            relay.cut()

    def close(self) -> None:
        """Break what is left and tell who serves bound hosts that the cage has ended."""
        self.cut()
        if self._bound is not None:
            self._bound.close()

    async def _question(self, client: socket.socket) -> Asked | None:
        handshake = ProxyHandshake(self._limits.header_bytes)
        while True:
            chunk = await self._loop.sock_recv(client, _READ_BYTES)
            if not chunk:
                return None
            step = handshake.feed(chunk)
            match step:
                case More(reply):
                    if reply:
                        await self._loop.sock_sendall(client, reply)
                case ProxyRefused(reply, reason):
                    self._recorder.denied(ConnectVia.PROXY, "", 0, "net.proxy", reason)
                    await self._say_goodbye(client, reply)
                    return None
                case Asked():
                    return step

    async def _forward(
        self,
        client: socket.socket,
        via: ConnectVia,
        host: str,
        port: int,
        on_end: Callable[[], None],
        asked: Asked | None = None,
    ) -> bool:
        started_s = self._recorder.now_s()
        dialled = await self._dialler.dial(host, port)
        if isinstance(dialled, NotDialled):
            self._record_failure(via, port, dialled, started_s)
            if asked is not None:
                reply = reply_for(asked.kind, dialled.outcome, dialled.detail)
                await self._say_goodbye(client, asked.before + reply)
            return False
        if asked is not None:
            try:
                opened = asked.before + reply_for(asked.kind, ProxyOutcome.OPEN, "")
                await self._loop.sock_sendall(client, opened)
            except BaseException:
                dialled.sock.close()
                raise
        rest = asked.rest if asked is not None else b""
        if self._bound is not None and self._bound.binds(dialled.host, port):
            await self._serve_bound(self._bound, client, via, port, dialled, started_s, rest)
            return False
        ended = partial(self._ended, via, port, dialled, started_s, on_end)
        relay = SocketRelay(
            client,
            dialled.sock,
            self._buffer,
            half_closed_s=self._limits.half_closed_s,
            on_end=ended,
        )
        self._relays.add(relay)
        relay.start(rest)
        return True

    async def _serve_bound(
        self,
        bound: BoundHosts,
        client: socket.socket,
        via: ConnectVia,
        port: int,
        dialled: Dialled,
        started_s: float,
        first: bytes,
    ) -> None:
        async def dial_again() -> socket.socket:
            again = await self._dialler.dial(dialled.host, port)
            if isinstance(again, NotDialled):
                raise ConnectionError(again.detail)
            return again.sock

        ending, result = ConnectionEnd.CUT, BoundResult(0, 0, broken=True)
        try:
            result = await bound.serve(
                BoundConnection(
                    client,
                    first,
                    dialled.sock,
                    dialled.host,
                    port,
                    dial_again,
                    self._recorder.cage_id,
                )
            )
            ending = ConnectionEnd.RESET if result.broken else ConnectionEnd.CLOSED
        finally:
            self._recorder.connected(
                via,
                dialled.host,
                port,
                started_s,
                ending,
                address=dialled.address,
                detail=result.detail,
                bytes_up=result.bytes_up,
                bytes_down=result.bytes_down,
            )

    def _ended(
        self,
        via: ConnectVia,
        port: int,
        dialled: Dialled,
        started_s: float,
        on_end: Callable[[], None],
        relay: SocketRelay,
        result: RelayResult,
    ) -> None:
        self._relays.discard(relay)
        on_end()
        self._recorder.connected(
            via,
            dialled.host,
            port,
            started_s,
            result.ending,
            address=dialled.address,
            bytes_up=result.bytes_up,
            bytes_down=result.bytes_down,
        )

    def _record_failure(
        self, via: ConnectVia, port: int, failed: NotDialled, started_s: float
    ) -> None:
        match failed.outcome:
            case ProxyOutcome.DENIED | ProxyOutcome.OPEN:
                self._recorder.denied(
                    via, failed.host, port, failed.rule, failed.detail, failed.address
                )
            case outcome:
                self._recorder.connected(
                    via,
                    failed.host,
                    port,
                    started_s,
                    ConnectionEnd(outcome.value),
                    address=failed.address,
                    detail=failed.detail,
                )

    async def _say_goodbye(self, client: socket.socket, reply: bytes) -> None:
        # Closing with unread bytes would break the connection and the answer would be lost on the
        # way; so read on for a moment, within bounds.
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self._loop.sock_sendall(client, reply)
                client.shutdown(socket.SHUT_WR)
                left = _GOODBYE_BYTES
                while left > 0:
                    chunk = await self._loop.sock_recv(client, _READ_BYTES)
                    if not chunk:
                        break
                    left -= len(chunk)
        except (TimeoutError, OSError):
            return
