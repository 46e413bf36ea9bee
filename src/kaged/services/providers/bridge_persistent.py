"""`PersistentBridge`: one process for many requests, an envelope per line, matched by id."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

import structlog

from kaged.cage import CageProcess
from kaged.services.errors import CapabilityInvalidOutput, OutcomeLost
from kaged.services.providers.bridge_process import STDERR_LIMIT_BYTES, BridgeRunner, Collector
from kaged.wire.envelope import BridgeAnswer, EnvelopeViolation, parse_answer

PENDING_LIMIT: Final = 64
ABANDONED_LIMIT: Final = 256
SILENT_LIMIT: Final = 3  # so many requests without any answer, and it is started anew

_log = structlog.get_logger("kaged.services")


class _Lines(asyncio.Protocol):
    """Splits what a bridge writes into lines of a limited length."""

    def __init__(self, owner: PersistentBridge, process: CageProcess, limit: int) -> None:
        self._owner = owner
        self._process = process
        self._limit = limit
        self._buffer = bytearray()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            if line.strip():
                self._owner.line(self._process, line)
        if len(self._buffer) > self._limit:
            self._buffer.clear()
            self._owner.broke(self._process, "an answer is too long")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self._process)


class PersistentBridge:
    """Keeps a bridge running while it behaves; starts it anew after a crash.

    A bridge that answers twice, or answers what nobody asked, is ended: after that nothing it says
    can be matched with certainty.
    """

    def __init__(self, runner: BridgeRunner, limit_bytes: int) -> None:
        self._runner = runner
        self._limit = limit_bytes
        self._process: CageProcess | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._errors: Collector | None = None
        self._pending: dict[str, asyncio.Future[BridgeAnswer]] = {}
        # Their callers have gone; a late answer is no offence.
        self._abandoned: OrderedDict[str, None] = OrderedDict()
        self._silent = 0
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(PENDING_LIMIT)

    async def exchange(self, request_id: str, request: bytes) -> BridgeAnswer:
        """Send one request and wait for the answer with its id.

        Raises:
            OutcomeLost: the bridge ended before it answered.
            CapabilityInvalidOutput: it broke the protocol.
        """
        async with self._slots:
            await self._ready()
            assert self._writer is not None
            future: asyncio.Future[BridgeAnswer] = asyncio.get_running_loop().create_future()
            self._pending[request_id] = future
            self._writer.write(request + b"\n")
            try:
                return await future
            except asyncio.CancelledError:
                self._abandon(request_id)
                raise
            finally:
                self._pending.pop(request_id, None)

    async def close(self) -> None:
        """End the process."""
        self._drop()

    # ---- called by the pipe

    def line(self, process: CageProcess, line: bytes) -> None:
        """Take one line that the bridge wrote; one that was ended says nothing any more."""
        if process is not self._process:
            return
        try:
            answer = parse_answer(line, None)
        except EnvelopeViolation:
            self.broke(process, "a line is no envelope")
            return
        future = self._pending.pop(answer.id, None)
        if future is None or future.done():
            if answer.id in self._abandoned:
                del self._abandoned[answer.id]
                return
            self.broke(process, "an answer to no open request")
            return
        self._silent = 0
        future.set_result(answer)

    def broke(self, process: CageProcess, why: str) -> None:
        """End a bridge that broke the protocol; nobody gets anything of what it said."""
        if process is not self._process:
            return
        _log.warning("bridge.protocol_violated", why=why)
        self._fail(CapabilityInvalidOutput("the bridge broke the protocol"))
        self._drop()

    def lost(self, process: CageProcess) -> None:
        """Fail every waiting call: the bridge is gone."""
        if process is not self._process:
            return
        self._fail(OutcomeLost("the bridge ended before it answered"))
        self._drop()

    # ---- own

    async def _ready(self) -> None:
        async with self._starting:
            if self._process is not None and self._process.running and self._writer is not None:
                return
            self._drop()
            process = await self._runner.spawn()
            self._process = process
            self._abandoned.clear()
            errors = self._errors = Collector(STDERR_LIMIT_BYTES)
            await process.connect_stdout(lambda: _Lines(self, process, self._limit))
            await process.connect_stderr(lambda: errors)
            self._writer, _ = await process.connect_stdin(asyncio.BaseProtocol)

    def _abandon(self, request_id: str) -> None:
        self._abandoned[request_id] = None
        while len(self._abandoned) > ABANDONED_LIMIT:
            self._abandoned.popitem(last=False)
        self._silent += 1
        if self._silent >= SILENT_LIMIT and self._process is not None:
            self.lost(self._process)

    def _fail(self, error: CapabilityInvalidOutput | OutcomeLost) -> None:
        waiting, self._pending = self._pending, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(error)

    def _drop(self) -> None:
        process, self._process = self._process, None
        writer, self._writer = self._writer, None
        errors, self._errors = self._errors, None
        self._silent = 0
        if writer is not None:
            writer.close()
        if errors is not None:
            errors.close()
        if process is not None:
            process.close()
