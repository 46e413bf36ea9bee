"""`SidecarClient`: how the host asks a sidecar, and what it checks before it trusts one.

A sidecar has to listen on loopback only and to refuse whoever has no token of its own. Both are
looked at when it has said where it listens; one that fails is never asked anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

from kaged.base import Clock
from kaged.services.errors import CapabilityBackendUnavailable, OutcomeLost
from kaged.services.http_exchange import HttpAnswer, HttpExchange
from kaged.wire.envelope import ENVELOPE_LIMIT_BYTES
from kaged.wire.sidecar_identity import CALL_PATH, SidecarIdentity

_LISTENING: Final = "0A"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_NOBODY: Final = "nobody"


class SidecarClient:
    """Asks one sidecar at its port, with a fresh token each time."""

    def __init__(
        self,
        identity: SidecarIdentity,
        port: int,
        clock: Clock,
        *,
        timeout_s: float,
        limit_bytes: int = ENVELOPE_LIMIT_BYTES,
    ) -> None:
        self._identity = identity
        self._port = port
        self._clock = clock
        self._http = HttpExchange("the sidecar", limit_bytes, timeout_s=timeout_s, plain=True)

    async def call(self, request: bytes) -> bytes:
        """Send one envelope; returns the answer as it came.

        Raises:
            OutcomeLost: the sidecar ended, refused or failed: what it did is not known.
        """
        try:
            answer = await self._ask("POST", CALL_PATH, self._identity, content=request)
        except CapabilityBackendUnavailable as error:
            raise OutcomeLost("the sidecar did not answer within its limits") from error
        if answer.status != HTTPStatus.OK:
            raise OutcomeLost("the sidecar refused or failed")
        return answer.body

    async def require_guarded(self, pid: int) -> None:
        """Check that it listens on loopback only and lets nobody in without its token.

        Raises:
            CapabilityBackendUnavailable: it does not; nothing was asked of it.
        """
        own, rows = await asyncio.to_thread(_listeners, self._port, pid)
        if not own:
            raise CapabilityBackendUnavailable("the sidecar does not listen at the port it named")
        if not all(address.is_loopback for address in rows):
            raise CapabilityBackendUnavailable("the sidecar listens beyond loopback")
        refusals = {
            (answer.status, answer.body)
            for answer in (
                await self._ask("POST", CALL_PATH, None),
                await self._ask("GET", "/", None),
                await self._ask("GET", "/health", None),
                await self._ask("POST", CALL_PATH, replace(self._identity, scope=_NOBODY)),
                await self._ask("POST", CALL_PATH, replace(self._identity, target=_NOBODY)),
            )
        }
        if {status for status, _ in refusals} != {HTTPStatus.UNAUTHORIZED}:
            raise CapabilityBackendUnavailable("the sidecar answers those without its token")
        if len(refusals) != 1:
            raise CapabilityBackendUnavailable("the sidecar's refusals differ")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.__aexit__()

    async def _ask(
        self, method: str, path: str, identity: SidecarIdentity | None, content: bytes = b""
    ) -> HttpAnswer:
        headers = {"Content-Type": "application/json"}
        if identity is not None:
            headers["Authorization"] = f"Bearer {identity.token(self._clock)}"
        url = f"http://127.0.0.1:{self._port}{path}"
        return await self._http.ask(method, url, content=content, headers=headers)


def _listeners(port: int, pid: int) -> tuple[bool, list[IPv4Address | IPv6Address]]:
    """Return where a process listens, and whether it is the one who listens at a port."""
    inodes = _sockets_of(pid)
    own = False
    found: list[IPv4Address | IPv6Address] = []
    for table in _TABLES:
        try:
            lines = table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue  # a kernel without IPv6
        for line in lines:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            if state != _LISTENING or inode not in inodes:
                continue
            address, _, number = local.partition(":")
            found.append(_address(address))
            own = own or int(number, 16) == port
    return own, found


def _sockets_of(pid: int) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):  # it has ended, and so listens nowhere
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                link = str(entry.readlink())
                if link.startswith("socket:["):
                    found.add(link[len("socket:[") : -1])
    return found


def _address(text: str) -> IPv4Address | IPv6Address:
    """Read an address as the kernel writes it: words of four bytes in the machine's order."""
    words = [int(text[at : at + 8], 16).to_bytes(4, "little") for at in range(0, len(text), 8)]
    data = b"".join(words)
    return IPv4Address(data) if len(data) == 4 else IPv6Address(data)
