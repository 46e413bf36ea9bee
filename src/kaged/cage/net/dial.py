"""`Dialler`: from a name and port that a cage asked for to a connected socket, or a reason.

The order is the promise: decide on the name, look the name up on the daemon's side, decide on
each address found, connect to one of the addresses that passed and to no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kaged.base.lazy_dataclass import dataclass
from kaged.cage.gate_port import AskHost
from kaged.cage.net.handshake import ProxyOutcome
from kaged.cage.net.limits import MAX_CANDIDATES, GateLimits
from kaged.kernel.addresses import canonical_address
from kaged.kernel.hosts import LOCALHOST, NetTargetInvalid, normalise_host
from kaged.kernel.net import NetTarget, decide_address, decide_net

_RESOLVER_THREADS = 8
_KEEPALIVE_IDLE_S = 60
_LOOPBACK = ("127.0.0.1", "::1")


class Resolver(Protocol):
    """Looks names up for cages, on the daemon's side."""

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, best first. Raises OSError when there are none."""
        ...


class SystemResolver:
    """The machine's own name lookup, on threads of its own.

    A cage that asks for slow names keeps these threads busy and no others of the daemon.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="kaged-resolve")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host, best first. Raises OSError when there are none."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, host, port)

    def close(self) -> None:
        """Stop the threads as soon as they are done with what they have."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(host: str, port: int) -> list[str]:
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection to a permitted address."""

    host: str
    address: str
    sock: socket.socket


@dataclass(frozen=True, slots=True)
class NotDialled:
    """No connection, and why. `rule` is set when it was denied."""

    host: str
    outcome: ProxyOutcome
    detail: str
    rule: str = ""
    address: str = ""


class Dialler:
    """Connects to what a set of grants permits."""

    def __init__(
        self,
        targets: tuple[NetTarget, ...],
        resolver: Resolver,
        limits: GateLimits,
        ask: AskHost | None = None,
    ) -> None:
        self._targets = targets
        self._ask = ask
        self._resolver = resolver
        self._limits = limits
        self._lookups = asyncio.Semaphore(limits.lookups)

    async def dial(self, asked: str, port: int) -> Dialled | NotDialled:
        """Connect to `asked:port` if that is granted, or somebody who is asked grants it."""
        targets = self._targets
        named = decide_net(targets, asked, port)
        if not named.allowed and self._ask is not None and await self._ask(asked, port):
            # For this connection; what was granted for longer is asked for again, and known there.
            with contextlib.suppress(NetTargetInvalid):
                targets = (*targets, NetTarget(normalise_host(asked), port))
            named = decide_net(targets, asked, port)
        if not named.allowed:
            return NotDialled(asked, ProxyOutcome.DENIED, named.detail, named.rule)
        try:
            host = normalise_host(asked)
        except NetTargetInvalid as error:
            return NotDialled(asked, ProxyOutcome.DENIED, error.message, named.rule)
        found = await self._addresses(host, port)
        if isinstance(found, NotDialled):
            return found
        refusal: NotDialled | None = None
        permitted = list[str]()
        for address in found:
            decision = decide_address(targets, host, port, address)
            if decision.allowed:
                permitted.append(address)
            elif refusal is None:
                refusal = NotDialled(
                    host, ProxyOutcome.DENIED, decision.detail, decision.rule, address
                )
        if not permitted:
            return refusal or NotDialled(host, ProxyOutcome.UNKNOWN_HOST, f"{host} has no address")
        return await self._connect(host, port, permitted)

    async def _addresses(self, host: str, port: int) -> list[str] | NotDialled:
        if canonical_address(host) is not None:
            return [host]
        if host == LOCALHOST:
            return list(_LOOPBACK)  # by definition; nobody's hosts file has a say in it
        try:
            async with asyncio.timeout(self._limits.resolve_s), self._lookups:
                found = await self._resolver.resolve(host, port)
        except TimeoutError:
            return NotDialled(host, ProxyOutcome.TIMED_OUT, f"looking up {host} took too long")
        except (OSError, UnicodeError):
            return NotDialled(host, ProxyOutcome.UNKNOWN_HOST, f"{host} could not be looked up")
        # Resolvers repeat themselves, and one that was tampered with may answer anything at all.
        addresses = dict.fromkeys(canonical_address(one) or "" for one in found)
        addresses.pop("", None)
        return list(addresses)[:MAX_CANDIDATES]

    async def _connect(self, host: str, port: int, addresses: list[str]) -> Dialled | NotDialled:
        failure = NotDialled(host, ProxyOutcome.UNREACHABLE, f"{host} could not be reached")
        try:
            async with asyncio.timeout(self._limits.connect_s):
                for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
                    # The last address may use all the time there is; an earlier one only a share.
                    share = None if left == 1 else self._limits.connect_s / len(addresses)
                    try:
                        async with asyncio.timeout(share):
                            return Dialled(host, address, await _open(address, port))
                    except ConnectionRefusedError:
                        failure = NotDialled(
                            host,
                            ProxyOutcome.REFUSED,
                            f"{host} refused the connection",
                            "",
                            address,
                        )
                    except TimeoutError:
                        failure = _too_slow(host, address)
                    except OSError as error:
                        failure = NotDialled(
                            host, ProxyOutcome.UNREACHABLE, f"{host}: {error.strerror}", "", address
                        )
        except TimeoutError:
            return _too_slow(host, addresses[-1])
        return failure


def _too_slow(host: str, address: str) -> NotDialled:
    return NotDialled(host, ProxyOutcome.TIMED_OUT, f"{host} did not answer in time", "", address)


async def _open(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
        await asyncio.get_running_loop().sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock
