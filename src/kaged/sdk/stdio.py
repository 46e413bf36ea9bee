"""The plugin's own end of the pipes: stdin in, stdout out, stray prints to stderr."""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kaged.wire.framing import OversizeMessage
from kaged.wire.lines import LineFramer

if TYPE_CHECKING:
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.log import Log


STDIN = 0
READ_BYTES = 64 * 1024  # what a pipe holds


class Startable(Protocol):
    """What the runner needs of a plugin: somewhere to log, and a conversation."""

    log: Log

    def converse(self, write: Callable[[bytes], None]) -> Conversation:
        """Begin a conversation whose answers go to `write`."""
        ...


def run(plugin: Startable) -> None:
    """Serve `plugin` on this process's stdin and stdout, then exit with its code."""
    out = _claim_stdout()
    selector = _Selector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        code = runner.run(_serve(plugin, out, selector))
    sys.stderr.flush()
    # Threads of plain handlers may still run; the host has said shutdown, so do not wait for them.
    os._exit(code)


async def _serve(plugin: Startable, out: int, selector: _Selector) -> int:
    conversation = plugin.converse(lambda line: _write_all(out, line))
    selector.watch(_Stdin(conversation, plugin).readable)
    try:
        await conversation.stopped.wait()
    finally:
        selector.watch(None)
        conversation.flush()
    return conversation.exit_code


class _Selector(selectors.DefaultSelector):
    """The loop's own way to wait, which also reads stdin as soon as there is something.

    Handlers then begin in the same turn of the loop. A reader added to the loop would be called in
    one turn and the handlers in the next, which takes longer than a short message.
    """

    def __init__(self) -> None:
        super().__init__()
        self._readable: Callable[[], bool] | None = None

    def watch(self, readable: Callable[[], bool] | None) -> None:
        """Call `readable` whenever stdin is, until it says False; None ends that."""
        if self._readable is not None:
            self.unregister(STDIN)
        self._readable = readable
        if readable is not None:
            self.register(STDIN, selectors.EVENT_READ)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait; what happened on stdin is dealt with here, the loop hears of the rest."""
        events = super().select(timeout)
        for place, (key, _) in enumerate(events):
            if key.fd == STDIN and self._readable is not None:
                del events[place]
                if not self._readable():
                    self.watch(None)
                break
        return events


class _Stdin:
    """Reads what the host wrote, many lines at a time.

    The descriptor is read as it is, not through a stream: a transport and a protocol in between
    would cost more than everything else that happens to a short message.
    """

    def __init__(self, conversation: Conversation, plugin: Startable) -> None:
        self._conversation = conversation
        self._plugin = plugin
        self._framer = LineFramer()
        self._ending: asyncio.Task[None] | None = None

    def readable(self) -> bool:
        """Take what can be read now; False when there will be nothing more."""
        try:
            data = os.read(STDIN, READ_BYTES)
        except BlockingIOError:
            return True
        except OSError as problem:
            self._plugin.log.error("stdin broke", error=str(problem))
            data = b""
        if not data:
            # The host is gone without a word: flush as on shutdown, then end.
            self._ending = self._conversation.loop.create_task(self._conversation.stop())
            return False
        try:
            lines = self._framer.feed(data)
        except OversizeMessage as problem:
            self._plugin.log.error("the host wrote an oversize line", error=str(problem))
            os._exit(1)
        receive = self._conversation.receive
        for line in lines:
            if line:
                receive(line)
        return True


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
