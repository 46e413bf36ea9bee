"""`NetSession`: the open gate of one cage.

The walk of a connection: a listener in the cage's namespace accepts → which destination is meant
(the socket's own address, the listener's grant, or a proxy question) → `Dialler` decides and
connects → `Relay` moves bytes → one `NetEvent`. The listener is the cage's identity: nothing that
a program inside says can make it another cage.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kaged.base import Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.cage.net.address_table import AddressTable, is_synthetic
from kaged.cage.net.events import ConnectVia, Recorder
from kaged.cage.net.forward import Forwarder
from kaged.cage.net.limits import ACCEPT_BATCH, GateLimits
from kaged.cage.net.nameserver import NameServer
from kaged.cage.net.namespace import NamespaceHelper, SocketSpec
from kaged.cage.net.plan import LOOPBACK, LOOPBACK6, CageListener, ListenerKind, NetPlan
from kaged.cage.net.relay import close_socket
from kaged.kernel.addresses import canonical_address
from kaged.kernel.hosts import LOCALHOST

_RETRY_ACCEPT_S = 0.1
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

OnConnect: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_Handler: TypeAlias = Callable[[socket.socket], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class LoopbackService:
    """Something of the daemon's that one cage finds on its own 127.0.0.1.

    `on_connect` is called for each connection and may take its time; the writer is closed when it
    returns. A port below 1024 cannot be taken by a program inside.
    """

    port: int
    on_connect: OnConnect


class ConnectionBudget:
    """Counts the connections of all cages, so that together they leave the daemon room to work."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self) -> bool:
        """Take one; False when there are none left."""
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def give(self) -> None:
        """Put one back."""
        self._left += 1


class NetSession:
    """Serves one cage's network until `close`. Made by `NetGate.attach`."""

    def __init__(
        self,
        plan: NetPlan,
        *,
        net_fd: int,
        helper: NamespaceHelper,
        forwarder: Forwarder,
        recorder: Recorder,
        limits: GateLimits,
        budget: ConnectionBudget,
        tasks: Tasks,
        on_close: Callable[[NetSession], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._net_fd = net_fd
        self._helper = helper
        self._forwarder = forwarder
        self._recorder = recorder
        self._limits = limits
        self._budget = budget
        self._tasks = tasks
        self._on_close = on_close
        self._addresses = AddressTable(plan.names, open_names=plan.open_names, limit=limits.names)
        self._names = NameServer(self._addresses, recorder)
        self._localhost_granted = any(target.host == LOCALHOST for target in plan.targets)
        self._listening: set[socket.socket] = set()
        self._open = 0
        self._closed = False

    @property
    def connections(self) -> int:
        """How many connections are open now, those not yet through included."""
        return self._open

    def serve(self, listener: CageListener, sock: socket.socket) -> None:
        """Take over one socket of the plan."""
        self._listening.add(sock)
        match listener.kind:
            case ListenerKind.DNS:
                self._names.serve(sock)
            case ListenerKind.PROXY:
                self._accept_on(sock, self._serve_proxy)
            case ListenerKind.TRAP:
                self._accept_on(sock, self._serve_trapped)
            case ListenerKind.GRANT:

                async def serve_grant(client: socket.socket) -> bool:
                    return await self._forwarder.forward(
                        client, listener.host, listener.port, self._release
                    )

                self._accept_on(sock, serve_grant)

    def serve_loopback(self, service: LoopbackService, sock: socket.socket) -> None:
        """Take over the listening socket of a service."""

        async def serve_service(client: socket.socket) -> bool:
            own = socket.socket(fileno=client.detach())  # from here on it is the transport's
            try:
                reader, writer = await asyncio.open_connection(sock=own)
            except BaseException:
                own.close()
                raise
            try:
                await service.on_connect(reader, writer)
            except BaseException:
                writer.transport.abort()
                raise
            writer.close()
            await writer.wait_closed()
            return False

        self._listening.add(sock)
        self._accept_on(sock, serve_service)

    async def add_listener(self, port: int, on_connect: OnConnect) -> None:
        """Offer one more service on the cage's 127.0.0.1, also while the cage is running.

        Raises:
            NamespaceUnavailable: the port is taken, or the namespace cannot be entered.
        """
        self._require_open()
        (sock,) = await self._helper.open(self._net_fd, [SocketSpec("tcp", LOOPBACK, port)])
        try:
            self._require_open()
        except RuntimeError:
            sock.close()
            raise
        self.serve_loopback(LoopbackService(port, on_connect), sock)

    async def close(self) -> None:
        """Close every listener and connection of this cage. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening.clear()
        os.close(self._net_fd)
        self._forwarder.cut()
        await self._tasks.close()
        # A connection may have reached its relay while the tasks were ending.
        self._forwarder.close()
        self._recorder.flush()
        self._on_close(self)

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError("the session is closed and takes no more listeners")

    def _accept_on(self, sock: socket.socket, handler: _Handler) -> None:
        if sock in self._listening:
            self._loop.add_reader(sock, self._on_knock, sock, handler)

    def _on_knock(self, sock: socket.socket, handler: _Handler) -> None:
        for _ in range(ACCEPT_BATCH):
            try:
                client, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                # No descriptor left for now: the knock stays in the queue, the loop must not spin.
                self._loop.remove_reader(sock)
                self._loop.call_later(_RETRY_ACCEPT_S, self._accept_on, sock, handler)
                return
            client.setblocking(False)
            if self._open >= self._limits.connections or not self._budget.take():
                close_socket(client, broken=True)
                self._recorder.over_limit(ConnectVia.DIRECT, "connections")
                continue
            self._open += 1
            self._tasks.start(self._serve_client(client, handler), "connection")

    async def _serve_client(self, client: socket.socket, handler: _Handler) -> None:
        handed_on = False
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handed_on = await handler(client)
        except (ConnectionError, TimeoutError):
            return  # the program inside went away in the middle; there is nobody to tell
        finally:
            if not handed_on:
                close_socket(client, broken=True)
                self._release()

    def _release(self) -> None:
        self._open -= 1
        self._budget.give()

    async def _serve_proxy(self, client: socket.socket) -> bool:
        return await self._forwarder.proxy(client, self._release)

    async def _serve_trapped(self, client: socket.socket) -> bool:
        name = client.getsockname()
        address, port = str(name[0]), int(name[1])
        host = self._destination(canonical_address(address) or address)
        return await self._forwarder.forward(client, host, port, self._release)

    def _destination(self, address: str) -> str:
        if is_synthetic(address):
            # An address that stands for no name is no destination; it is denied under its number.
            return self._addresses.name_of(address) or address
        if address in (LOOPBACK, LOOPBACK6) and self._localhost_granted:
            return LOCALHOST
        return address
