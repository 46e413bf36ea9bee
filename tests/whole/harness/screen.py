"""`Screen`: a terminal that shows what a person would see of `kaged …`, and types for them."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path
from typing import Self

import pyte

from whole.harness.daemon import KAGED, PATIENCE_S, Daemon

ENTER, ESCAPE, CTRL_C, CTRL_D, TAB, UP = "\r", "\x1b", "\x03", "\x04", "\t", "\x1b[A"
PASTE = "\x1b[200~{}\x1b[201~"
WHERE = b"\x1b[6n"


class Screen:
    """One command on a terminal of its own; use it inside `with`."""

    def __init__(
        self,
        daemon: Daemon,
        *arguments: str,
        cwd: Path,
        columns: int = 80,
        lines: int = 40,
        term: str = "xterm-256color",
        **more: str,
    ) -> None:
        Daemon.spoken += 1
        self._screen = pyte.HistoryScreen(columns, lines, history=2000, ratio=1)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        self._leader, follower = pty.openpty()
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(follower, termios.TIOCSWINSZ, size)
        self._process = subprocess.Popen(
            [KAGED, *arguments],
            env={**daemon.env, "TERM": term, **more},
            cwd=cwd,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            close_fds=True,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509 - so that Ctrl-C reaches it as from a keyboard
        )
        os.close(follower)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        os.close(self._leader)

    @property
    def text(self) -> str:
        """Everything that can be seen, with what has been scrolled away above."""
        columns = self._screen.columns
        above = [
            "".join(line[at].data for at in range(columns)).rstrip()
            for line in self._screen.history.top
        ]
        return "\n".join([*above, *(line.rstrip() for line in self._screen.display)])

    def colors_of(self, text: str) -> set[str]:
        """Return the colors in which the last line that holds a text is written."""
        for number in range(self._screen.lines - 1, -1, -1):
            row = self._screen.buffer[number]
            line = "".join(row[at].data for at in range(self._screen.columns))
            at = line.rfind(text)
            if at >= 0:
                return {row[one].fg for one in range(at, at + len(text))}
        raise AssertionError(f"{text!r} is not to be seen:\n{self.text}")

    def type(self, *keys: str) -> None:
        """Press these keys."""
        for one in keys:
            os.write(self._leader, one.encode())

    def until(self, *texts: str, gone: str = "") -> str:
        """Wait until all of these can be seen, and `gone` cannot; returns what can be seen."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            seen = self.text
            if all(one in seen for one in texts) and (not gone or gone not in seen):
                return seen
            if not self._read(0.2):
                break
        seen = self.text
        assert all(one in seen for one in texts), f"{texts} cannot be seen:\n{seen}"
        assert not gone or gone not in seen, f"{gone!r} can be seen:\n{seen}"
        return seen

    def wait(self) -> int:
        """Wait until the command is over; returns its exit code."""
        end = time.monotonic() + PATIENCE_S
        while self._read(0.2):
            assert time.monotonic() < end, self.text
        return self._process.wait(PATIENCE_S)

    def _read(self, pause_s: float) -> bool:
        """Take what was written; returns whether there can be more."""
        if not select.select([self._leader], [], [], pause_s)[0]:
            return True
        try:
            data = os.read(self._leader, 65536)
        except OSError:  # the terminal closes with its last user
            return False
        self.raw += data
        # What this terminal does not know, others ignore as well.
        self._stream.feed(re.sub(rb"\x1b\[\?2026[hl]", b"", data))
        for _ in range(data.count(WHERE)):
            cursor = self._screen.cursor
            os.write(self._leader, f"\x1b[{cursor.y + 1};{cursor.x + 1}R".encode())
        return bool(data)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
