"""`SidecarServer`: a bridge that answers on loopback, for one person, as long as the host wants.

`Bridge.run` serves this way when the host has started the program as a sidecar. There is one route;
without a token of this sidecar every request gets the same refusal.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from collections.abc import Callable
from ipaddress import ip_address
from typing import NoReturn

from kaged.base.clock import Clock
from kaged.wire.envelope import ENVELOPE_LIMIT_BYTES
from kaged.wire.sidecar_identity import CALL_PATH, SIDECAR_VARIABLE, SidecarIdentity
from kaged.wire.token_keys import SECRET_VARIABLE, parse_key

HEAD_LIMIT_BYTES = 16 * 1024
HEAD_TIMEOUT_S = 30.0
LINGER_S = 2.0
CONNECTIONS_LIMIT = 32

Handler = Callable[[bytes], bytes]
"""Answers the body of a request. A ValueError says that it is no request."""


class SidecarServer:
    """Answers `POST /call` on loopback for those who bring this sidecar's token; nobody else.

    The handler works on one request at a time, in a thread.
    """

    def __init__(self, identity: SidecarIdentity, handler: Handler, clock: Clock) -> None:
        self._identity = identity
        self._handler = handler
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._slots = asyncio.Semaphore(CONNECTIONS_LIMIT)
        self._working = asyncio.Lock()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Raises ValueError for an address that is not loopback."""
        if not _is_loopback(host):
            raise ValueError(f"a sidecar listens on loopback only, not on {host[:64]}")
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=HEAD_LIMIT_BYTES, backlog=CONNECTIONS_LIMIT
        )
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._slots:
                status, body = await self._answer(reader)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode("ascii") + body)
                await writer.drain()
                writer.write_eof()
                # Closing with something unread would take the answer back from whoever sent it.
                async with asyncio.timeout(LINGER_S):
                    while await reader.read(HEAD_LIMIT_BYTES):
                        pass
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has gone, or said nothing that could be answered
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        """Reveal nothing without a token: no route, no method, no size."""
        async with asyncio.timeout(HEAD_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            line, *rest = head.decode("latin-1").split("\r\n")
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (one.partition(":") for one in rest if ":" in one)
            }
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not self._identity.admits(token.strip(), self._clock):
                return "401 Unauthorized", b'{"error":"unauthorized"}'
            if line.split(" ")[:2] != ["POST", CALL_PATH]:
                return "404 Not Found", b'{"error":"not found"}'
            length = headers.get("content-length", "")
            if not length.isascii() or not length.isdigit() or int(length) > ENVELOPE_LIMIT_BYTES:
                return "413 Content Too Large", b'{"error":"too large"}'
            body = await reader.readexactly(int(length))
        return await self._handled(body)

    async def _handled(self, body: bytes) -> tuple[str, bytes]:
        try:
            async with self._working:
                return "200 OK", await asyncio.to_thread(self._handler, body)
        except ValueError:
            return "400 Bad Request", b'{"error":"not a request"}'
        except Exception:  # noqa: BLE001 - the edge: what a handler trips over stays on stderr
            traceback.print_exc()
            return "500 Internal Server Error", b'{"error":"failed"}'


def serve_until_end_of_input(handler: Handler, clock: Clock) -> NoReturn:
    """Serve as the sidecar that the environment names, until the host closes standard input.

    The first line of standard output says where: `{"port": 40123}`.
    """
    key = parse_key(os.environ.get(SECRET_VARIABLE, ""))
    identity = SidecarIdentity.read(os.environ[SIDECAR_VARIABLE], key)
    asyncio.run(_serve(SidecarServer(identity, handler, clock)))
    raise SystemExit(0)


async def _serve(server: SidecarServer) -> None:
    port = await server.start()
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    ended = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(ended), sys.stdin.buffer
    )
    while await ended.read(4096):
        pass
    # Whatever a handler still does, the process ends now: its host has gone or gave it up.
    os._exit(0)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
