"""`PtyBroker`: owns the terminals, or pipes, that commands write to, and ends every command."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import signal
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol, cast

from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageProcess
from kaged.cage.orphan_processes import end_orphans
from kaged.toolbox.shell.scrollback import OUTPUT_LIMIT_BYTES, Scrollback
from kaged.tools import ToolError

KILL_GRACE_S: Final = 5.0  # AT-SHELL-07
DRAIN_S: Final = 0.1  # what is still on its way when the command has ended
KILLED_EXIT: Final = 128 + signal.SIGKILL
MAX_SESSIONS: Final = 64
FLOOD_PIPE_BYTES: Final = 1024 * 1024
MAX_FLOOD_PIPES: Final = 8
"""So many commands at once have such a pipe: the kernel counts the pipes of all of a user."""
FLOOD_READ_BYTES: Final = 128 * 1024
FLOOD_PAUSE_S: Final = 0.001
"""After a read of less, such a pipe is left to fill: far fewer wake-ups take the flood in."""

Sleep = Callable[[float], Awaitable[None]]
Start = Callable[[], Awaitable[CageProcess]]


class ShellSpawnFailed(ToolError):
    """The command could not be started; the message has the system's reason."""

    code = "shell_spawn_failed"


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a command ended. On a timeout it counts as killed, whatever signal it took."""

    exit_code: int
    timed_out: bool
    signal: int | None


class PtySession:
    """One command and its output. Made by `PtyBroker.spawn`; run it to its end with `finish`."""

    def __init__(
        self, key: str, process: CageProcess, sleep: Sleep, scrollback: Scrollback
    ) -> None:
        self.key = key
        self.process = process
        self.scrollback = scrollback
        self._sleep = sleep
        self._drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.ReadTransport | None = None
        self.floods = False
        """Whether its pipe was made larger."""

    async def attach(self, on_flood: Callable[[PtySession, int], bool]) -> None:
        """Begin to read what it writes; `on_flood` gets the pipe of one that writes too much."""
        reader = _OutputReader(self.scrollback, self._drained, lambda fd: on_flood(self, fd))
        self._transport, _ = await self.process.connect_stdout(lambda: reader)

    async def finish(self, timeout_s: float) -> CommandExit:
        """Wait for the command itself, not for its terminal, which a child may hold open.

        When the time is up its process group gets SIGTERM, and SIGKILL after five seconds. Nothing
        that it started is left when this returns or is cancelled.
        """
        try:
            in_time = await self._ends_within(timeout_s)
            if not in_time:
                self.process.terminate()
                await self._ends_within(KILL_GRACE_S)
        finally:
            await self.end()
        report = await self.process.wait()
        await self._drain()
        if not in_time:
            return CommandExit(KILLED_EXIT, timed_out=True, signal=signal.SIGKILL)
        return CommandExit(report.exit_code, timed_out=False, signal=report.signal)

    async def end(self) -> None:
        """Kill the command and whatever it started, and wait until it is gone."""
        self.process.kill()
        await self.process.wait()
        if not self.process.caged:
            await asyncio.to_thread(end_orphans, self.key)

    def close(self) -> None:
        """Let go of the terminal or pipe."""
        if self._transport is not None:
            self._transport.close()
        self.process.close()

    async def _ends_within(self, seconds: float) -> bool:
        async with asyncio.TaskGroup() as group:
            racing = {
                group.create_task(one)
                for one in (_until(self.process.wait()), _until(self._sleep(seconds)))
            }
            await asyncio.wait(racing, return_when=asyncio.FIRST_COMPLETED)
            for task in racing:
                task.cancel()
        return self.process.report is not None

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.shield(self._drained)
        except TimeoutError:
            return  # held open by something that left the group: not ours to wait for


class PtyBroker:
    """Starts commands on terminals of its own and knows every one that still runs."""

    def __init__(
        self, sleep: Sleep = asyncio.sleep, output_bytes: int = OUTPUT_LIMIT_BYTES
    ) -> None:
        self._output_bytes = output_bytes
        self._sleep = sleep
        self._sessions: dict[str, PtySession] = {}
        self._closed = False

    @property
    def sessions(self) -> Mapping[str, PtySession]:
        """The commands that run now, by key."""
        return MappingProxyType(self._sessions)

    async def spawn(self, key: str, start: Start, *, terminal: bool = True) -> PtySession:
        """Start a command through `start` and read its output. Raises ShellSpawnFailed.

        `terminal` says whether `start` gives it one, whose line ends are not the command's own.
        """
        if self._closed:
            raise ShellSpawnFailed("the shell could not start: the daemon is ending")
        if len(self._sessions) >= MAX_SESSIONS:
            raise ShellSpawnFailed(
                f"the shell could not start: {MAX_SESSIONS} commands run already",
                fix="wait until one has ended",
            )
        if key in self._sessions:
            raise ShellSpawnFailed(f"the shell could not start: {key} runs already")
        shown = Scrollback(self._output_bytes, terminal=terminal)
        session = PtySession(key, await start(), self._sleep, shown)
        self._sessions[key] = session
        if self._closed:  # closed while it was on its way
            await self.dispose(session)
            raise ShellSpawnFailed("the shell could not start: the daemon is ending")
        try:
            await session.attach(self._take_flood)
        except BaseException:  # cancelled, or nothing to read from; nobody else knows it yet
            await self.dispose(session)
            raise
        return session

    def _take_flood(self, session: PtySession, fd: int) -> bool:
        """Let a pipe hold more, so that each wake-up takes in more of a flood; whether it does."""
        if sum(one.floods for one in self._sessions.values()) < MAX_FLOOD_PIPES:
            with contextlib.suppress(OSError):  # a terminal, or beyond what a user's pipes may hold
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, FLOOD_PIPE_BYTES)
                session.floods = True
        return session.floods

    def scrollback(self, key: str) -> str | None:
        """Return what a running command has shown so far; None when there is no such command."""
        session = self._sessions.get(key)
        return None if session is None else session.scrollback.text()

    async def dispose(self, session: PtySession) -> None:
        """End one command and forget it. Safe to call twice."""
        try:
            await session.end()
        finally:
            session.close()
            self._sessions.pop(session.key, None)

    async def dispose_all(self) -> None:
        """End every command; nothing can be started afterwards."""
        self._closed = True
        await asyncio.gather(*(self.dispose(one) for one in tuple(self._sessions.values())))


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class _OutputReader(asyncio.Protocol):
    def __init__(
        self,
        scrollback: Scrollback,
        drained: asyncio.Future[None],
        on_flood: Callable[[int], bool],
    ) -> None:
        self._scrollback = scrollback
        self._drained = drained
        self._on_flood = on_flood
        self._floods: bool | None = None
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._scrollback.feed(data)
        transport = self._transport
        if not self._scrollback.truncated or transport is None:
            return
        if self._floods is None:
            pipe: _HasFileno | None = transport.get_extra_info("pipe")
            self._floods = pipe is not None and self._on_flood(pipe.fileno())
        if self._floods and len(data) < FLOOD_READ_BYTES and transport.is_reading():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(FLOOD_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        # The end of a terminal is an error (EIO), not an end of file; both mean the same.
        if not self._drained.done():
            self._drained.set_result(None)


async def _until(what: Awaitable[object]) -> None:
    await what
