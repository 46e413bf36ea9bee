"""`StandardStreams`: the protocol's messages on stdin and stdout, one in each line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kaged.base import KagedError
from kaged.cli.stdio import PIECE_BYTES, standard_input, write_all

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
MAX_NOISE: Final = 100


class StandardStreams:
    """A transport for the SDK that survives what is no message, and bounds what is one."""

    def __init__(self) -> None:
        self._read: Callable[[], Awaitable[bytes]] | None = None
        self._rest = bytearray()
        self._lines: list[bytes] = []
        self._noise = 0
        self._writing = asyncio.Lock()

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None at the end of input.

        Raises:
            KagedError: `acp_stream_ended`; a message is too long, or too many lines are none.
        """
        while (line := await self._line()) is not None:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict) and _is_message(message):
                return message
            self._noise += 1
            if self._noise > MAX_NOISE:
                raise _ended(f"{MAX_NOISE} lines were no messages")
        return None

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message."""
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        async with self._writing:
            descriptor = sys.stdout.fileno()
            if len(data) <= PIECE_BYTES:
                # A pipe takes this much at once, unless its reader has stopped reading.
                write_all(descriptor, data)
            else:
                await asyncio.to_thread(write_all, descriptor, data)

    async def close(self) -> None:
        """Do nothing: the streams end with the process."""

    async def _line(self) -> bytes | None:
        if self._read is None:
            self._read = await standard_input()
        while not self._lines:
            piece = await self._read()
            if not piece:
                return None
            self._rest += piece
            if b"\n" in piece:
                *self._lines, rest = bytes(self._rest).split(b"\n")
                self._lines.reverse()
                self._rest = bytearray(rest)
            if len(self._rest) > MAX_MESSAGE_BYTES:
                raise _ended(f"a message may have {MAX_MESSAGE_BYTES} bytes")
        return self._lines.pop()


def _is_message(message: dict[str, Any]) -> bool:
    """Return whether the SDK can take it: a method is a text, an id is a number or a text."""
    method, number = message.get("method", ""), message.get("id", 0)
    return isinstance(method, str) and isinstance(number, int | str | None)


def _ended(why: str) -> KagedError:
    return KagedError(
        f"The editor's messages cannot be read: {why}.",
        code="acp_stream_ended",
        fix="Start the agent again. If it happens again, report it to the editor's authors.",
    )
