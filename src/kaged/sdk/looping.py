"""The event loop on the plugin's stdin: every line of the host goes into the conversation."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING

from kaged.sdk.pipes import STDIN, read_lines

if TYPE_CHECKING:
    from kaged.sdk.conversation import Conversation
    from kaged.sdk.handshake import HandshakePhase
    from kaged.sdk.log import Log
    from kaged.sdk.pipes import Startable
    from kaged.wire.lines import LineFramer


def run_loop(
    plugin: Startable,
    write: Callable[[bytes], None],
    phase: HandshakePhase,
    lines: list[bytes],
    framer: LineFramer,
) -> int:
    """Go on from what was read already, `lines` and what `framer` holds; return the exit code."""
    selector = _Selector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(_serve(plugin, write, phase, lines, framer, selector))


async def _serve(
    plugin: Startable,
    write: Callable[[bytes], None],
    phase: HandshakePhase,
    lines: list[bytes],
    framer: LineFramer,
    selector: _Selector,
) -> int:
    conversation = plugin.converse(write, phase)
    stdin = _Stdin(conversation, framer, plugin.log)
    stdin.take(lines)
    selector.watch(stdin.readable)
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
    """Hands what the host wrote to the conversation, many lines at a time."""

    def __init__(self, conversation: Conversation, framer: LineFramer, log: Log) -> None:
        self._conversation = conversation
        self._log = log
        self._framer = framer
        self._ending: asyncio.Task[None] | None = None

    def readable(self) -> bool:
        """Take what can be read now; False when there will be nothing more."""
        lines = read_lines(self._framer, self._log)
        if lines is None:
            # The host is gone without a word: flush as on shutdown, then end.
            self._ending = self._conversation.loop.create_task(self._conversation.stop())
            return False
        self.take(lines)
        return True

    def take(self, lines: list[bytes]) -> None:
        """Hand lines to the conversation."""
        receive = self._conversation.receive
        for line in lines:
            if line:
                receive(line)
