"""`EngineRunner`: runs an engine's program and reads what it prints, until it is enough.

The programs run without a cage: they read the project with the daemon's own eyes, and the caller's
cage is applied to what they found. Of the daemon's environment
they get what names the operator's own git settings, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, TypeAlias, cast

from kaged.base.lazy_dataclass import dataclass
from kaged.cage import Spawner, Uncaged, UncagedRequest

STDERR_LIMIT_BYTES: Final = 16 * 1024
PIECE_BYTES: Final = 16 * 1024
"""What is read of an output before it is the others' turn; to read a whole pipe takes too long."""
_REASON: Final = Uncaged("search engine of the daemon; results are filtered by the caller's cage")


Feed: TypeAlias = Callable[[bytes], bool]
"""Takes a program's output as it comes; True when no more is wanted."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a run ended. `stopped`: the reader had enough. `timed_out`: the time was up."""

    exit_code: int | None
    stderr: str
    stopped: bool
    timed_out: bool


class _Output(asyncio.Protocol):
    def __init__(self, feed: Feed, enough: Callable[[], None]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopped = False
        self._feed = feed
        self._enough = enough
        self._transport: asyncio.ReadTransport | None = None
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        if self._over():
            return
        if self._transport is not None:
            # A program that prints faster than we read would have the loop to itself: event loops
            # read as long as there is something. One piece, then it is the others' turn.
            self._transport.pause_reading()
        self._waiting += data
        self._take_piece()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        while self._waiting and not self._over():
            self._take_piece()
        if not self.ended.done():
            self.ended.set_result(None)

    def _over(self) -> bool:
        return self.stopped or self.ended.done()

    def _take_piece(self) -> None:
        if self._transport is not None:
            asyncio.get_running_loop().call_soon(self._go_on)
        piece, self._waiting = self._waiting[:PIECE_BYTES], self._waiting[PIECE_BYTES:]
        try:
            self.stopped = self._feed(piece)
        except Exception as error:  # noqa: BLE001 - boundary: handed on to the caller of `run`
            self.ended.set_exception(error)
            self._enough()
            return
        if self.stopped:
            self._enough()

    def _go_on(self) -> None:
        if self._waiting and not self._over():
            self._take_piece()
        elif self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()  # also when all is over: how else would it end


class _Errors(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.kept = bytearray()

    def data_received(self, data: bytes) -> None:
        self.kept += data[: STDERR_LIMIT_BYTES - len(self.kept)]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class EngineRunner:
    """Starts engine programs, so many at once as two per processor.

    `env` is all they get; left out, it is where git keeps the operator's own ignore file.
    """

    def __init__(
        self,
        spawner: Spawner,
        *,
        env: tuple[tuple[str, str], ...] | None = None,
        slots: int | None = None,
    ) -> None:
        self._spawner = spawner
        self._env = _own_git_settings() if env is None else env
        self._slots = asyncio.Semaphore(slots or 2 * (os.cpu_count() or 1))

    async def run(
        self, argv: tuple[str, ...], cwd: str, feed: Feed, time_s: float, name: str
    ) -> ChildExit:
        """Run a program to its end, or until the reader has enough or the time is up.

        Cancelling ends the program too. When this returns, it is gone.
        """
        try:
            async with asyncio.timeout(time_s), self._slots:
                return await self._run(argv, cwd, feed, name)
        except TimeoutError:
            return ChildExit(None, "", stopped=False, timed_out=True)

    async def _run(self, argv: tuple[str, ...], cwd: str, feed: Feed, name: str) -> ChildExit:
        request = UncagedRequest(name, _REASON, argv, cwd=cwd, env=self._env)
        async with await self._spawner.spawn(request) as process:
            os.close(process.take_fd("stdin"))  # or ripgrep would wait for text to search
            reading, output = await process.connect_stdout(lambda: _Output(feed, process.kill))
            try:
                complaining, errors = await process.connect_stderr(_Errors)
                try:
                    report = await process.wait()
                    await output.ended
                    await errors.ended
                finally:
                    complaining.close()
            finally:
                reading.close()
        return ChildExit(
            exit_code=report.exit_code,
            stderr=errors.kept.decode("utf-8", "replace"),
            stopped=output.stopped,
            timed_out=False,
        )


def _own_git_settings() -> tuple[tuple[str, str], ...]:
    names = ("HOME", "XDG_CONFIG_HOME")
    return tuple((name, os.environ[name]) for name in names if os.environ.get(name))
