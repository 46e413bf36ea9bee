"""The plugin's own end of the pipes: stdin in, stdout out, stray prints to stderr."""

from __future__ import annotations

import os
import select
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from kaged.sdk.declared import DeclaredPlugin
from kaged.sdk.handshake import HandshakePhase
from kaged.wire.framing import OversizeMessage

if TYPE_CHECKING:
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.log import Log
    from kaged.wire.lines import LineFramer

STDIN = 0
READ_BYTES = 64 * 1024  # what a pipe holds


class Startable(DeclaredPlugin, ABC):
    """What is served on the pipes: a plugin and its conversation."""

    @abstractmethod
    def converse(self, write: Callable[[bytes], None], phase: HandshakePhase) -> Conversation:
        """Begin a conversation in `phase` whose answers go to `write`."""

    @abstractmethod
    def when_needed(self, ring: Callable[[], None]) -> bool:
        """Register `ring`, called from any thread when a conversation is needed; True: now."""


def read_lines(framer: LineFramer, log: Log) -> list[bytes] | None:
    """Return the lines that the host has written by now; None when there will be no more.

    The descriptor is read as it is, not through a stream: a transport and a protocol in between
    would cost more than everything else that happens to a short message.
    """
    try:
        data = os.read(STDIN, READ_BYTES)
    except BlockingIOError:
        return []
    except OSError as problem:
        log.error("sdk.stdin_failed", error=str(problem))
        return None
    if not data:
        return None
    try:
        return framer.feed(data)
    except OversizeMessage as problem:
        log.error("sdk.line_oversize", error=str(problem))
        os._exit(1)


def claim_stdout() -> int:
    """Keep stdout for the protocol; prints of plugin code and of C libraries go to stderr."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, or as much as the host still takes."""
    rest: bytes | memoryview = data
    while True:
        try:
            written = os.write(fd, rest)
            if written == len(rest):
                return
            rest = memoryview(rest)[written:]
        except BlockingIOError:
            # stdin and stdout may be one socket that asyncio made non-blocking.
            select.select([], [fd], [])
        except BrokenPipeError:
            return
