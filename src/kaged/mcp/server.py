"""`McpServer`: an outside MCP server that is started on first use, and again after it ended."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from kaged.base import JsonObject, JsonValue, KagedError, Tasks
from kaged.cage import CageRequest, Spawner
from kaged.mcp.conversation import McpConversation
from kaged.mcp.errors import McpCallFailed, McpServerUnavailable
from kaged.mcp.texts import one_line
from kaged.peer import PeerProcess
from kaged.wire.errors import RpcError


class McpServer:
    """A connection to a server of the pipeline's; nobody looks after it but its callers."""

    def __init__(
        self, spawner: Spawner, request: CageRequest, *, name: str, timeout_s: float
    ) -> None:
        self._spawner = spawner
        self._request = request
        self._name = name
        self._timeout_s = timeout_s
        self._conversation: McpConversation | None = None
        self._tasks = Tasks(f"mcp {name}")
        self._starting = asyncio.Lock()
        self._closed = False

    @property
    def _peer(self) -> PeerProcess | None:
        """The process that runs, for tests that kill it."""
        return None if self._conversation is None else self._conversation.peer

    async def open(self) -> None:
        """Start it and shake hands, unless it runs. Raises McpServerUnavailable."""
        await self._ready()

    async def call_tool(self, name: str, arguments: JsonObject) -> JsonValue:
        """Call a tool; returns its text content read as JSON, else its structured content.

        Raises:
            McpServerUnavailable: the server is gone, hangs or sends invalid messages.
            McpCallFailed: it refused the call, or the tool reported an error.
        """
        params: JsonObject = {"name": name, "arguments": arguments}
        conversation = await self._ready()
        answered = False
        try:
            answer = await conversation.ask("tools/call", params, self._timeout_s)
            answered = True
        except RpcError as error:
            answered = True
            raise McpCallFailed(
                f"{self._name} refused {name}: {one_line(error.message)}"
            ) from error
        except KagedError as error:
            raise McpServerUnavailable(
                f"{self._name} did not answer {name}: {error.message}"
            ) from error
        finally:
            if not answered and conversation is self._conversation:
                # Given up on, by a timeout or the caller: is it slow, or stuck for everybody?
                self._tasks.start(self._check(conversation), "check")
        return _content(answer, self._name, name)

    async def close(self) -> None:
        """End the server: close its input, then signal."""
        self._closed = True
        conversation, self._conversation = self._conversation, None
        await self._tasks.close()
        if conversation is not None:
            await conversation.stop()

    async def _check(self, conversation: McpConversation) -> None:
        """End a server that does not even answer a ping; the next call starts another."""
        if not await conversation.alive():
            await self._drop(conversation)

    async def _drop(self, conversation: McpConversation) -> None:
        if self._conversation is conversation:
            self._conversation = None
        await conversation.close()

    async def _ready(self) -> McpConversation:
        async with self._starting:
            conversation = self._conversation
            if conversation is not None and conversation.is_open:
                return conversation
            if conversation is not None:
                await self._drop(conversation)
            if self._closed:
                raise McpServerUnavailable(f"{self._name} was closed")
            self._conversation = await McpConversation.open(
                self._spawner, self._request, name=self._name
            )
            return self._conversation


def _content(answer: JsonValue, server: str, tool: str) -> JsonValue:
    """Read a tool's result. Raises McpCallFailed when it is an error or invalid."""
    if not isinstance(answer, dict):
        raise McpCallFailed(f"{server} answered {tool} with an invalid tool result")
    blocks = answer.get("content")
    texts = [
        block["text"]
        for block in (blocks if isinstance(blocks, list) else ())
        if isinstance(block, dict) and isinstance(block.get("text"), str)
    ]
    if answer.get("isError") is True:
        raise McpCallFailed(f"{tool} of {server} failed: {one_line(' '.join(map(str, texts)))}")
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
