"""Children of tests that are killed by the hundred: each is forked from one that has loaded all.

A script that calls `serve_forks` loads what it needs once. For each line that `ForkedChildren`
sends it forks a child that runs `main` with these words, and says how it ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_BEGUN: Final = "\x1ebegun "
_ENDED: Final = "\x1eended "


def serve_forks(main: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Fork a child for each line of standard input, one after the other, until it ends."""
    for line in sys.stdin:
        words = json.loads(line)
        pid = os.fork()  # noqa: TID251 - nothing but this thread runs here
        if not pid:
            code = 1
            try:
                os.write(1, f"{_BEGUN}{os.getpid()}\n".encode())
                asyncio.run(main(*words))
                code = 0
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(1, f"{_ENDED}{code}\n".encode())


class ForkedChildren:
    """A script that serves forks, and the child that runs now."""

    def __init__(self, script: Path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(script), "--forks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._pid = 0
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.returncode is None and self._pid:
            self.kill()
        self._server.kill()
        self._server.communicate()

    def start(self, *words: str) -> None:
        """Start a child with these words; the one before must have ended."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self.returncode = None
        self._server.stdin.write(f"{json.dumps(words)}\n")
        self._server.stdin.flush()
        begun = self._server.stdout.readline()
        assert begun.startswith(_BEGUN), begun
        self._pid = int(begun.removeprefix(_BEGUN))

    def lines(self) -> Iterator[str]:
        """Return what the child writes, line by line, until it has ended."""
        assert self._server.stdout is not None
        for line in self._server.stdout:
            # What a killed child had begun to write stands before the word of its server.
            text, mark, code = line.partition(_ENDED)
            if mark:
                self.returncode = int(code)
                if text:
                    yield text
                return
            yield line

    def kill(self) -> None:
        """End it as a power cut would."""
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; returns how it ended."""
        for _ in self.lines():
            pass
        assert self.returncode is not None
        return self.returncode
