"""What the spawner needs from a network gate; `kaged.cage.net` provides it, tests fake it."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.net import NetTarget

DialAgain: TypeAlias = Callable[[], Awaitable[socket.socket]]
"""Connects to the same destination once more, under the same grants; raises ConnectionError."""

AskHost: TypeAlias = Callable[[str, int], Awaitable[bool]]
"""Asks whether a running cage may connect to a host and port that it was not granted.

It has a limit of time of its own, and answers no when that is over.
"""


class NetPlanPort(Protocol):
    """What a cage must be compiled with so that its granted targets can be reached."""

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        """Variables to set inside, such as proxy names; empty without grants."""
        ...

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Made-up files to show inside, as absolute path and text, such as /etc/hosts."""
        ...


@dataclass(frozen=True, slots=True)
class BoundConnection:
    """A connection of a cage to a destination for which it holds credentials.

    `client` is the socket of the program inside, `first` what was read from it already, `server`
    the socket to the destination. Whoever serves it owns both sockets.
    """

    client: socket.socket
    first: bytes
    server: socket.socket
    host: str
    port: int
    dial_again: DialAgain
    cage_id: str = ""


@dataclass(frozen=True, slots=True)
class BoundResult:
    """How a bound connection ended. Up is from the cage, down is to it."""

    bytes_up: int
    bytes_down: int
    broken: bool
    detail: str = ""


class BoundHosts(Protocol):
    """What one cage holds credentials for, and who serves its connections to there."""

    def binds(self, host: str, port: int) -> bool:
        """Return whether connections to this normalised host and port are served here."""
        ...

    async def serve(self, connection: BoundConnection) -> BoundResult:
        """Serve a connection until it has ended, and close its sockets.

        Canceled when the cage ends; raises nothing else.
        """
        ...

    def close(self) -> None:
        """Take note that the cage has ended."""
        ...


class NetSessionPort(Protocol):
    """The open gate of one running cage."""

    async def close(self) -> None:
        """Close every listener and connection of this cage."""
        ...


class Service(Protocol):
    """Something of the daemon's that one cage finds on its own loopback."""

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, inside."""
        ...


class NetGatePort(Protocol):
    """Serves the network grants of cages from outside them."""

    def prepare(self, targets: tuple[NetTarget, ...], asks: bool = False) -> Any:
        """Plan for these targets, before the cage is compiled. Pure. Gives a `NetPlanPort`.

        With `asks` the gate is open for questions about every other destination.
        """
        ...

    async def attach(
        self,
        child_pid: int,
        plan: Any,
        *,
        cage: str,
        cage_id: str,
        services: Any = (),
        parent_pid: int | None = None,
        bound: BoundHosts | None = None,
        ask: AskHost | None = None,
    ) -> NetSessionPort:
        """Open the gate in the network namespace of `child_pid`, while the cage still waits.

        `cage` is the name of the cage's owner for the audit log (`plugin:memory`), `cage_id` the
        hash of its policy, `parent_pid` the bwrap that must be the parent of `child_pid`.
        Connections to what `bound` binds are served by it. An exception here means that the cage
        is killed, not released.
        """
        ...
