"""The plugin's own end of the pipes: stdin in, stdout out, stray prints to stderr."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kaged.wire.framing import OversizeMessage
from kaged.wire.lines import LineFramer

if TYPE_CHECKING:
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.log import Log


class Startable(Protocol):
    """What the runner needs of a plugin: somewhere to log, and a conversation."""

    log: Log

    def converse(self, write: Callable[[bytes], None]) -> Conversation:
        """Begin a conversation whose answers go to `write`."""
        ...


def run(plugin: Startable) -> None:
    """Serve `plugin` on this process's stdin and stdout, then exit with its code."""
    out = _claim_stdout()
    code = asyncio.run(_serve(plugin, out))
    sys.stderr.flush()
    # Threads of plain handlers may still run; the host has said shutdown, so do not wait for them.
    os._exit(code)


async def _serve(plugin: Startable, out: int) -> int:
    conversation = plugin.converse(lambda line: _write_all(out, line))
    reader = _Reader(conversation, plugin)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: reader, sys.stdin)
    try:
        await conversation.stopped.wait()
    finally:
        transport.close()
    return conversation.exit_code


class _Reader(asyncio.Protocol):
    def __init__(self, conversation: Conversation, plugin: Startable) -> None:
        self._conversation = conversation
        self._plugin = plugin
        self._framer = LineFramer()
        self._ending: asyncio.Task[None] | None = None

    def data_received(self, data: bytes) -> None:
        try:
            lines = self._framer.feed(data)
        except OversizeMessage as problem:
            self._plugin.log.error("the host wrote an oversize line", error=str(problem))
            os._exit(1)
        for line in lines:
            if line:
                self._conversation.receive(line)

    def connection_lost(self, exc: Exception | None) -> None:
        # The host is gone without a word: flush as on shutdown, then end.
        self._ending = self._conversation.loop.create_task(self._conversation.stop())


def _claim_stdout() -> int:
    """Keep stdout for the protocol; prints of plugin code and of C libraries go to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            # stdin and stdout may be one socket that asyncio made non-blocking.
            select.select([], [fd], [])
        except BrokenPipeError:
            return


__all__ = ["run"]
