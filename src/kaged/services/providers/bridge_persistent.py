"""`PersistentBridge`: processes that live for many requests, an envelope per line, matched by id.

No process serves two people at the same time: whoever is kept waiting by a call that hangs, or
loses an answer because the process died, is the person who made that call.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kaged.base.log import get_logger
from kaged.cage import CageProcess
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityInvalidOutput,
    OutcomeLost,
)
from kaged.services.providers.bridge_process import (
    STANDBY_IDLE_S,
    STDERR_LIMIT_BYTES,
    BridgeRunner,
    Collector,
)
from kaged.wire.envelope import BridgeAnswer, EnvelopeViolation, parse_answer

PENDING_LIMIT: Final = 64
"""How many requests of one person are open at a time; further ones wait."""

_log = get_logger("kaged.services")


class PersistentBridge:
    """A bounded number of processes of one bridge, each for one person at a time.

    The calls of a person go to the process that serves them already, otherwise to one that serves
    nobody, otherwise to a new one. When there are `most`, a call waits for one that is free.
    """

    def __init__(
        self, runner: BridgeRunner, limit_bytes: int, most: int, idle_s: float = STANDBY_IDLE_S
    ) -> None:
        self._runner = runner
        self._limit = limit_bytes
        self._most = most
        self._idle_s = idle_s
        self._processes: list[_LiveProcess] = []
        self._changed = asyncio.Condition()

    async def exchange(self, person: str, request_id: str, request: bytes) -> BridgeAnswer:
        """Send one request for a person and wait for the answer with its id.

        Waiting for a free process counts against the caller's time.

        Raises:
            OutcomeLost: the bridge ended before it answered.
            CapabilityInvalidOutput: it broke the protocol.
            CapabilityBackendUnavailable: it cannot be started.
        """
        process = await self._take(person)
        try:
            return await process.ask(request_id, request)
        finally:
            await self._give_back(process)

    async def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.end()

    # ---- own

    async def _take(self, person: str) -> _LiveProcess:
        async with self._changed:
            while (found := self._for(person)) is None:
                await self._changed.wait()
            found.person = person
            found.calls += 1
            return found

    def _for(self, person: str) -> _LiveProcess | None:
        # One that died while nobody used it holds no place.
        self._processes = [one for one in self._processes if one.calls or not one.ended]
        usable = [one for one in self._processes if not one.ended]
        for one in usable:
            if one.calls and one.person == person:
                return one
        for one in usable:
            if not one.calls:
                return one
        if len(self._processes) >= self._most:
            return None
        made = _LiveProcess(self._runner, self._limit)
        self._processes.append(made)
        return made

    async def _give_back(self, process: _LiveProcess) -> None:
        process.calls -= 1  # before the lock: a caller that is cancelled here has gone all the same
        if process.calls == 0:
            if process.ended:
                process.end()
            elif any(one is not process and not one.calls for one in self._processes):
                loop = asyncio.get_running_loop()
                loop.call_later(self._idle_s, self._discard, process, process.served)
        async with self._changed:
            self._changed.notify_all()

    def _discard(self, process: _LiveProcess, served: int) -> None:
        """End a process that nobody has used meanwhile."""
        if not process.calls and process.served == served:
            process.end()


class _LiveProcess:
    """One process of a bridge and its open requests, all of one person.

    A process that answers twice, or answers what nobody asked, is ended: after that nothing it
    says can be matched with certainty. One whose caller gave up is given no further calls: what
    keeps it from answering is not known.
    """

    def __init__(self, runner: BridgeRunner, limit_bytes: int) -> None:
        self.person = ""
        self.calls = 0
        self.served = 0
        self.ended = False
        self._runner = runner
        self._limit = limit_bytes
        self._process: CageProcess | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._errors: Collector | None = None
        self._pending: dict[str, asyncio.Future[BridgeAnswer]] = {}
        self._abandoned: set[str] = set()
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(PENDING_LIMIT)

    async def ask(self, request_id: str, request: bytes) -> BridgeAnswer:
        """Send a request and wait for its answer; raises what `PersistentBridge.exchange` does."""
        async with self._slots:
            await self._ready()
            assert self._writer is not None
            future: asyncio.Future[BridgeAnswer] = asyncio.get_running_loop().create_future()
            self._pending[request_id] = future
            self._writer.write(request + b"\n")
            try:
                return await future
            except asyncio.CancelledError:
                self._abandoned.add(request_id)
                self.ended = True
                raise
            finally:
                self.served += 1
                self._pending.pop(request_id, None)

    def end(self) -> None:
        """End the process; whoever still waits for it has lost the outcome. Safe to call twice."""
        self._fail(OutcomeLost("the bridge ended before it answered"))

    # ---- called by the pipe

    def line(self, line: bytes) -> None:
        """Take one line that the bridge wrote; one that was ended says nothing any more."""
        if self._process is None:
            return
        try:
            answer = parse_answer(line, None)
        except EnvelopeViolation:
            self.broke("a line is no envelope")
            return
        future = self._pending.pop(answer.id, None)
        if future is not None and not future.done():
            future.set_result(answer)
        elif answer.id in self._abandoned:
            self._abandoned.discard(answer.id)  # its caller has gone: a late answer is no offence
        else:
            self.broke("an answer to no open request")

    def broke(self, why: str) -> None:
        """End a bridge that broke the protocol; nobody gets anything of what it said."""
        _log.warning("bridge.protocol_violated", why=why)
        self._fail(CapabilityInvalidOutput("the bridge broke the protocol"))

    # ---- own

    async def _ready(self) -> None:
        async with self._starting:
            if self._writer is not None:
                return
            if self.ended:
                raise CapabilityBackendUnavailable("the bridge has just ended")
            try:
                process = self._process = await self._runner.spawn()
            except BaseException:
                self.ended = True
                raise
            errors = self._errors = Collector(STDERR_LIMIT_BYTES)
            await process.connect_stdout(lambda: _Lines(self, self._limit))
            await process.connect_stderr(lambda: errors)
            self._writer, _ = await process.connect_stdin(asyncio.BaseProtocol)

    def _fail(self, error: CapabilityInvalidOutput | OutcomeLost) -> None:
        self.ended = True
        waiting, self._pending = self._pending, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.close()
        if self._errors is not None:
            self._errors.close()
        if process is not None:
            process.close()


class _Lines(asyncio.Protocol):
    """Splits what a bridge writes into lines of a limited length."""

    def __init__(self, owner: _LiveProcess, limit: int) -> None:
        self._owner = owner
        self._limit = limit
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if line.strip():
                self._owner.line(line)
        if len(self._buffer) > self._limit:
            self._buffer.clear()
            self._owner.broke("an answer is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.end()
