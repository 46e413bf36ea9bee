"""`Child`: a started process until it is reaped, watched through a pidfd on the event loop.

A pidfd works with every event loop, needs no signal handler and no thread, and never means another
process once the number is used again. Only `waitid` goes by the number: uvloop makes every
descriptor that it watches non-blocking, and a wait on such a pidfd fails instead of waiting. Until
we reap it, the number of our own child is its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from kaged.cage.errors import SpawnFailed
from kaged.cage.hints import resource_fix


class Child:
    """One direct child of the daemon. `exited` holds its return code, negative for a signal."""

    def __init__(
        self,
        pid: int,
        process: subprocess.Popen[bytes] | None = None,
        before_reap: Callable[[], None] | None = None,
    ) -> None:
        self.pid = pid
        self._process = process
        self._before_reap = before_reap
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = -1
        try:
            self._pidfd = os.pidfd_open(pid)
            self._loop.add_reader(self._pidfd, self._ready)
        except OSError as error:
            if self._pidfd >= 0:
                os.close(self._pidfd)
                self._pidfd = -1
            self._end_unwatched()
            raise SpawnFailed(
                f"the process cannot be watched: {error}", fix=resource_fix(error)
            ) from error

    @property
    def running(self) -> bool:
        """Whether it has not been reaped yet."""
        return self._pidfd >= 0

    def signal(self, number: int) -> None:
        """Send a signal to this very process; nothing happens when it is gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill_group_now(self) -> None:
        """Kill its whole process group, which it leads, and reap it without the event loop."""
        if self._pidfd >= 0:
            _kill_group(self.pid)
            self._reap(os.WEXITED)

    def _ready(self) -> None:
        if self._pidfd >= 0 and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self._reap(os.WEXITED | os.WNOHANG)

    def _reap(self, options: int) -> None:
        if self._before_reap is not None:
            # Until it is reaped, its number stands for its process group and nothing else.
            self._before_reap()
        found = os.waitid(os.P_PID, self.pid, options)
        if found is None:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._note_end(code)
        if not self.exited.done():
            self.exited.set_result(code)

    def _end_unwatched(self) -> None:
        _kill_group(self.pid)
        _, status = os.waitpid(self.pid, 0)
        self._note_end(os.waitstatus_to_exitcode(status))

    def _note_end(self, code: int) -> None:
        if self._process is not None:
            self._process.returncode = code  # or its destructor would wait for another process


def _kill_group(pid: int) -> None:
    # Neither needs a descriptor, so that it works when there are none left.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
