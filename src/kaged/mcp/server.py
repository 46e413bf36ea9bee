"""`McpServer`: one outside MCP server in a cage, spoken to over its standard streams."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import structlog

from kaged import __version__
from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.cage import CageRequest, Spawner
from kaged.mcp.errors import McpCallFailed, McpServerUnavailable
from kaged.peer import Connection, PeerProcess
from kaged.wire.errors import ErrorCode, RpcError

if TYPE_CHECKING:
    from kaged.wire.correlator import Ignored
    from kaged.wire.messages import MessageId, Notification, Refused, Request, Response

PROTOCOL_VERSION: Final = "2025-06-18"
KNOWN_VERSIONS: Final = frozenset({"2024-11-05", "2025-03-26", PROTOCOL_VERSION, "2025-11-25"})
INITIALIZE_TIMEOUT_S = 30.0
PING_TIMEOUT_S = 2.0
SHUTDOWN_TIMEOUT_S = 2.0
MAX_SHOWN_CHARS = 500

_log = structlog.get_logger(__name__)


class McpServer:
    """A connection to a server that is started on first use and again after it ended."""

    def __init__(
        self, spawner: Spawner, request: CageRequest, *, name: str, timeout_s: float
    ) -> None:
        self._spawner = spawner
        self._request = request
        self._name = name
        self._timeout_s = timeout_s
        self._peer: PeerProcess | None = None
        self._tasks = Tasks(f"mcp {name}", self._task_failed)
        self._starting = asyncio.Lock()
        self._closed = False

    async def open(self) -> None:
        """Start it and shake hands, unless it runs. Raises McpServerUnavailable."""
        await self._ready()

    async def call_tool(self, name: str, arguments: JsonObject) -> JsonValue:
        """Call a tool; gives its text content read as JSON, else its structured content.

        Raises:
            McpServerUnavailable: the server is gone, hangs or talks nonsense.
            McpCallFailed: it refused the call, or the tool reported an error.
        """
        params: JsonObject = {"name": name, "arguments": arguments}
        peer = await self._ready()
        answered = False
        try:
            answer = await peer.connection.request("tools/call", params, self._timeout_s)
            answered = True
        except RpcError as error:
            answered = True
            raise McpCallFailed(f"{self._name} refused {name}: {_cut(error.message)}") from error
        except KagedError as error:
            raise McpServerUnavailable(
                f"{self._name} did not answer {name}: {error.message}"
            ) from error
        finally:
            if not answered and peer is self._peer:
                # Given up on, by a timeout or the caller: is it slow, or stuck for everybody?
                self._tasks.start(self._check(peer), "check")
        return _content(answer, self._name, name)

    async def close(self) -> None:
        """End the server: close its input, then signal."""
        self._closed = True
        peer, self._peer = self._peer, None
        await self._tasks.close()
        if peer is not None:
            await peer.stop(None, SHUTDOWN_TIMEOUT_S)

    async def _check(self, peer: PeerProcess) -> None:
        """End a server that does not even answer a ping; the next call starts another."""
        try:
            await peer.connection.request("ping", {}, PING_TIMEOUT_S)
        except RpcError:
            return  # it refuses pings, but it is there
        except KagedError:
            await self._drop(peer)

    def _task_failed(self, name: str, error: BaseException) -> None:
        _log.warning("mcp.task_failed", server=self._name, task=name, error=repr(error))

    async def _drop(self, peer: PeerProcess) -> None:
        if self._peer is peer:
            self._peer = None
        await peer.close()

    async def _ready(self) -> PeerProcess:
        async with self._starting:
            peer = self._peer
            if peer is not None and peer.connection.is_open:
                return peer
            if peer is not None:
                await self._drop(peer)
            if self._closed:
                raise McpServerUnavailable(f"{self._name} was closed")
            try:
                self._peer = await self._start()
            except McpServerUnavailable:
                raise
            except KagedError as error:
                raise McpServerUnavailable(
                    f"{self._name} did not start: {error.message}", fix=error.fix
                ) from error
            return self._peer

    async def _start(self) -> PeerProcess:
        owner = _Owner(self._name)
        connection = Connection(owner, name=self._name)
        peer = await PeerProcess.start(self._spawner, self._request, connection, owner.printed)
        try:
            answer = await connection.request(
                "initialize",
                {
                    "protocolVersion": PROTOCOL_VERSION,
                    "capabilities": {},
                    "clientInfo": {"name": "kaged", "version": __version__},
                },
                INITIALIZE_TIMEOUT_S,
            )
            version = answer.get("protocolVersion") if isinstance(answer, dict) else None
            if version not in KNOWN_VERSIONS:
                raise McpServerUnavailable(
                    f"{self._name} speaks MCP version {_cut(version)}, which is not known here",
                    fix=f"use a server that speaks {PROTOCOL_VERSION}",
                )
            connection.notify("notifications/initialized", {})
        except BaseException as error:
            await peer.close()
            last = "; ".join(peer.stderr.lines[-3:])
            if isinstance(error, KagedError) and last:
                raise McpServerUnavailable(
                    f"{self._name} did not start: {error.message}; it said: {_cut(last)}"
                ) from error
            raise
        return peer


class _Owner:
    """Hears what a server does unasked: pings are answered, the rest is refused or noted."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def answer(self, request: Request) -> JsonValue:
        if request.method == "ping":
            return {}
        raise RpcError("this client offers nothing", number=ErrorCode.METHOD_NOT_FOUND)

    def printed(self, line: str) -> None:
        _log.info("mcp.server_output", server=self._name, line=line)

    def asked(self, request: Request) -> None:
        """Hear of a request; `answer` answers it."""

    def notified(self, notification: Notification) -> None:
        """Hear a notification; progress and logs of a server mean nothing here."""

    def refused(self, refused: Refused) -> None:
        _log.warning("mcp.server_talks_nonsense", server=self._name)

    def ignored(self, response: Response, why: Ignored) -> None:
        """Hear a late answer; the caller has given up on it."""

    def out_of_step(self, message_id: MessageId) -> None:
        """Hear of odd request ids; MCP does not number requests in order."""

    def broke(self, error: KagedError) -> None:
        _log.warning("mcp.server_broke", server=self._name, error=error.message)

    def closed(self) -> None:
        _log.info("mcp.server_ended", server=self._name)


def _content(answer: JsonValue, server: str, tool: str) -> JsonValue:
    """Read what a tool gave. Raises McpCallFailed when it reports an error or gives nonsense."""
    if not isinstance(answer, dict):
        raise McpCallFailed(f"{server} answered {tool} with something that is no tool result")
    blocks = answer.get("content")
    texts = [
        block["text"]
        for block in (blocks if isinstance(blocks, list) else ())
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    if answer.get("isError") is True:
        raise McpCallFailed(f"{tool} of {server} failed: {_cut(' '.join(map(str, texts)))}")
    if not texts:
        structured = answer.get("structuredContent")
        # Servers wrap what is no object, such as null, under this one name.
        if isinstance(structured, dict) and list(structured) == ["result"]:
            return structured["result"]
        return structured
    try:
        found: Any = json.loads(str(texts[0]))
    except ValueError:
        return str(texts[0])
    return found


def _cut(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}…"


__all__ = ["McpServer"]
