"""`dialled_transport`: HTTP requests of the daemon over connections that a `Dialler` made.

For requests that the daemon makes on behalf of somebody with grants: it looks no name up and
connects nowhere by itself. The environment's proxies are not used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from kaged.base.authorities import authorities
from kaged.cage.net.dial import Dialled, NotDialled

Dial: TypeAlias = Callable[[str, int], Awaitable[Dialled | NotDialled]]


def dialled_transport(dial: Dial) -> Any:
    """Return what an HTTP client connects with: `dial` for every connection, and nothing else.

    A connection that was not made is a `ConnectError`; `refusal_of` says why.
    """
    import httpcore  # noqa: PLC0415 - loaded when somebody first makes a request
    import httpx  # noqa: PLC0415 - as above

    class NotConnected(httpcore.ConnectError):
        def __init__(self, why: NotDialled) -> None:
            super().__init__(why.detail)
            self.why = why

    class DialledBackend(httpcore.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,  # noqa: ASYNC109 - the library's own signature
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> Any:
            found = await dial(host, port)
            if not isinstance(found, Dialled):
                raise NotConnected(found)
            reader, writer = await asyncio.open_connection(sock=found.sock)
            return _Stream(reader, writer)

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    class Transport(httpx.AsyncHTTPTransport):
        def __init__(self) -> None:
            trusted = authorities()
            super().__init__(verify=trusted, trust_env=False)
            # The one way to bring a backend of our own.
            self._pool = httpcore.AsyncConnectionPool(
                ssl_context=trusted, network_backend=DialledBackend()
            )

    return Transport()


def refusal_of(error: BaseException) -> NotDialled | None:
    """Return why the connection behind an error of the HTTP client was not made, if it was that."""
    why = getattr(error.__cause__, "why", None)
    return why if isinstance(why, NotDialled) else None


class _Stream:
    """A dialled connection as the HTTP library wants it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - the library's own signature
        return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - the library's own signature
        self._writer.write(buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.close()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's own signature
    ) -> _Stream:
        await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        return self._writer.get_extra_info("ssl_object") if info == "ssl_object" else None
