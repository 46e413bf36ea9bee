"""`run`: serves a plugin on its stdin and stdout, from the greeting to the last line."""

from __future__ import annotations

import os
import select
import sys
import threading

from kaged.sdk.handshake import GuestHandshake, HandshakePhase
from kaged.sdk.pipes import STDIN, Startable, claim_stdout, read_lines, write_all
from kaged.wire.lines import LineFramer


def run(plugin: Startable) -> None:
    """Serve `plugin` on this process's stdin and stdout, then exit with its code."""
    out = claim_stdout()

    writing = threading.Lock()  # a configuration is answered by a thread of its own

    def write(line: bytes) -> None:
        with writing:
            write_all(out, line)

    framer = LineFramer()
    greeting = GuestHandshake(plugin, write)
    lines = _greet(plugin, greeting, framer)
    code = 0
    if greeting.phase is not HandshakePhase.STOPPING:
        from kaged.sdk.late_tls import import_asyncio  # noqa: PLC0415 - nor this before the loop

        import_asyncio()
        from kaged.sdk.looping import run_loop  # noqa: PLC0415 - the point of `GuestHandshake`

        code = run_loop(plugin, write, greeting.phase, lines, framer)
    sys.stderr.flush()
    # Threads of plain handlers may still run; the host has said shutdown, so do not wait for them.
    os._exit(code)


def _greet(plugin: Startable, greeting: GuestHandshake, framer: LineFramer) -> list[bytes]:
    """Answer what needs no event loop; return the lines from the first one on that does."""
    # Stays open: another thread may ring just when the waiting is over.
    bell = os.eventfd(0, os.EFD_CLOEXEC)
    waiting = select.poll()
    waiting.register(STDIN, select.POLLIN)
    waiting.register(bell, select.POLLIN)
    needed = plugin.when_needed(lambda: os.eventfd_write(bell, 1))
    while not (needed and greeting.phase is not HandshakePhase.NEW):
        ready = {fd for fd, _ in waiting.poll()}
        if bell in ready:
            needed = True
            waiting.unregister(bell)
        lines = read_lines(framer, plugin.log) if STDIN in ready else []
        if lines is None:  # the host is gone without a word
            greeting.end()
            return []
        for place, line in enumerate(lines):
            if line and not greeting.take(line):
                return lines[place:]
            if greeting.phase is HandshakePhase.STOPPING:
                return []
    return []
