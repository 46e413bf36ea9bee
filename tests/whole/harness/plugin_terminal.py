"""A person at a terminal who reads a question about a plugin and types an answer."""

from __future__ import annotations

import os
import pty
import select
import subprocess
from pathlib import Path

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon


def at_terminal(
    daemon: Daemon, *arguments: str, answer: str, question: str = "[y/N]", cwd: Path | None = None
) -> tuple[int, str]:
    """Run `kaged …` on a terminal, type `answer` at the question; returns code and screen."""
    Daemon.spoken += 1
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [KAGED, *arguments],
        env={**daemon.env, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
        cwd=cwd or daemon.home,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        close_fds=True,
    )
    os.close(follower)
    text, answered = "", False
    while True:
        ready, _, _ = select.select([leader], [], [], PATIENCE_S)
        assert ready, text
        try:
            piece = os.read(leader, 65536)
        except OSError:  # the terminal closes with its last user
            break
        if not piece:
            break
        text += piece.decode("utf-8", "replace")
        if not answered and question in text:
            os.write(leader, f"{answer}\n".encode())
            answered = True
    os.close(leader)
    return process.wait(PATIENCE_S), text.replace("\r\n", "\n")
