"""`Child`: a started process until it is reaped, watched through a pidfd on the event loop.

A pidfd works with every event loop, needs no signal handler and no thread, and never means another
process once the number is used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable

from kaged.cage.errors import SpawnFailed


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
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._note_end(os.waitstatus_to_exitcode(status))
            raise SpawnFailed(f"the process cannot be watched: {error}") from error
        self._loop.add_reader(self._pidfd, self._ready)

    @property
    def running(self) -> bool:
        """Whether it has not been reaped yet."""
        return self._pidfd >= 0

    def signal(self, number: int) -> None:
        """Send a signal to this very process; nothing happens when it is gone."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def await_stop(self) -> None:
        """Wait, for the microseconds it takes, until a SIGSTOP has taken effect or it has ended."""
        if self._pidfd >= 0:
            os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill_now(self) -> None:
        """Kill and reap without the event loop, for the end of the daemon itself."""
        if self._pidfd >= 0:
            self.signal(signal.SIGKILL)
            self._reap(os.WEXITED)

    def _ready(self) -> None:
        if self._pidfd >= 0 and os.waitid(
            os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            self._reap(os.WEXITED | os.WNOHANG)

    def _reap(self, options: int) -> None:
        if self._before_reap is not None:
            # Until it is reaped, its number stands for its process group and nothing else.
            self._before_reap()
        found = os.waitid(os.P_PIDFD, self._pidfd, options)
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

    def _note_end(self, code: int) -> None:
        if self._process is not None:
            self._process.returncode = code  # or its destructor would wait for another process


__all__ = ["Child"]
