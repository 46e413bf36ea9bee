"""`PtyBroker`: owns the terminals that commands run on, and ends every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kaged.cage import CageProcess
from kaged.cage.orphan_processes import end_orphans
from kaged.toolbox.shell.errors import ShellSpawnFailed
from kaged.toolbox.shell.scrollback import OUTPUT_LIMIT_BYTES, Scrollback

KILL_GRACE_S: Final = 5.0  # AT-SHELL-07
DRAIN_S: Final = 0.1  # what is still on its way when the command has ended
KILLED_EXIT: Final = 137
MAX_SESSIONS: Final = 64

Sleep = Callable[[float], Awaitable[None]]
Start = Callable[[], Awaitable[CageProcess]]


@dataclass(frozen=True, slots=True)
class CommandExit:
    """How a command ended. On a timeout the code is always 137, whatever signal it took."""

    exit_code: int
    timed_out: bool
    signal: int | None


class PtySession:
    """One command on its terminal. Made by `PtyBroker.spawn`; run it to its end with `finish`."""

    def __init__(
        self, key: str, process: CageProcess, sleep: Sleep, output_bytes: int = OUTPUT_LIMIT_BYTES
    ) -> None:
        self.key = key
        self.process = process
        self.scrollback = Scrollback(output_bytes)
        self._sleep = sleep
        self._drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.ReadTransport | None = None

    async def attach(self) -> None:
        """Begin to read the terminal."""
        reader = _PtyReader(self.scrollback, self._drained)
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
            return CommandExit(KILLED_EXIT, timed_out=True, signal=report.signal)
        return CommandExit(report.exit_code, timed_out=False, signal=report.signal)

    async def end(self) -> None:
        """Kill the command and whatever it started, and wait until it is gone."""
        self.process.kill()
        await self.process.wait()
        if not self.process.caged:
            await asyncio.to_thread(end_orphans, self.key)

    def close(self) -> None:
        """Let go of the terminal."""
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

    async def spawn(self, key: str, start: Start) -> PtySession:
        """Start a command through `start` and read its terminal. Raises ShellSpawnFailed."""
        if self._closed:
            raise ShellSpawnFailed("the shell could not start: the daemon is ending")
        if len(self._sessions) >= MAX_SESSIONS:
            raise ShellSpawnFailed(
                f"the shell could not start: {MAX_SESSIONS} commands run already",
                fix="wait until one has ended",
            )
        if key in self._sessions:
            raise ShellSpawnFailed(f"the shell could not start: {key} runs already")
        session = PtySession(key, await start(), self._sleep, self._output_bytes)
        self._sessions[key] = session
        if self._closed:  # closed while it was on its way
            await self.dispose(session)
            raise ShellSpawnFailed("the shell could not start: the daemon is ending")
        try:
            await session.attach()
        except BaseException:  # cancelled, or nothing to read from; nobody else knows it yet
            await self.dispose(session)
            raise
        return session

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


class _PtyReader(asyncio.Protocol):
    def __init__(self, scrollback: Scrollback, drained: asyncio.Future[None]) -> None:
        self._scrollback = scrollback
        self._drained = drained

    def data_received(self, data: bytes) -> None:
        self._scrollback.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        # The end of a terminal is an error (EIO), not an end of file; both mean the same.
        if not self._drained.done():
            self._drained.set_result(None)


async def _until(what: Awaitable[object]) -> None:
    await what
