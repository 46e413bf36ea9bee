"""A person at a terminal who answers one prompt after the other."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from collections.abc import Callable, Sequence

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon

CTRL_C = "\x03"
Answer = str | Callable[[str], str | None]
"""What is typed, or what is done with the screen so far; it returns what is typed, if anything."""


def at_prompts(
    daemon: Daemon, *arguments: str, answers: Sequence[tuple[str, Answer]]
) -> tuple[int, str]:
    """Run `kaged …` on a terminal of its own and answer its prompts in order.

    Returns the exit code and everything that the terminal showed.
    """
    Daemon.spoken += 1
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [KAGED, *arguments],
        env={**daemon.env, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
        cwd=daemon.home,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - so that Ctrl-C reaches it as from a keyboard
    )
    os.close(follower)
    screen, seen, left = "", 0, list(answers)
    while True:
        ready, _, _ = select.select([leader], [], [], PATIENCE_S)
        assert ready, screen
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the terminal closes with its last user
            break
        if not piece:
            break
        screen += piece.decode("utf-8", "replace")
        while left and (at := screen.find(left[0][0], seen)) >= 0:
            prompt, answer = left.pop(0)
            seen = at + len(prompt)
            typed = answer(screen) if callable(answer) else answer
            os.write(leader, (typed or "").encode())
    os.close(leader)
    code = process.wait(PATIENCE_S)
    assert not left, (left, screen)
    return code, screen.replace("\r\n", "\n")


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
