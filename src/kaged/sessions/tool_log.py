"""`ToolCallLog`: keeps every tool call of every session, and tells of it as it happens.

Dispatch does not wait for it. Calls are written in batches by one task, a moment after there is
something new: a commit for every start and end would hold up the entries of the same session, which
the loop waits for. `flush` returns when all of it is on disk.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import KW_ONLY, replace
from typing import Final

import msgspec

from kaged.base import Clock, JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.sessions.lifecycle import Lifecycle, SessionEvent
from kaged.store.errors import StoreError
from kaged.store.tool_call_rows import CallChange, ToolCallRecord, ToolCallRows, ToolCallStatus
from kaged.tools.outcomes import ToolOutcome, ToolStart

PENDING_LIMIT: Final = 10_000
BATCH_LIMIT: Final = 256
RESULT_LIMIT_BYTES: Final = 256 * 1024
EVENT_RESULT_LIMIT_BYTES: Final = 32 * 1024
PREVIEW_BYTES: Final = 2000
LINGER_S: Final = 0.02
"""How long news waits for more of it. What was begun stands in the transcript before, durably."""

_log = get_logger("kaged.sessions")

_encode = msgspec.json.Encoder().encode

Redact = Callable[[JsonValue], JsonValue]


@dataclass(eq=False)
class ToolCallLog:
    """Takes starts and outcomes from the dispatcher. Use it from the event loop only.

    `redact` takes the secrets out of params, the way the audit log does.
    """

    rows: ToolCallRows
    lifecycle: Lifecycle
    redact: Redact
    _: KW_ONLY
    clock: Clock

    def __post_init__(self) -> None:
        self._tasks = Tasks("tool calls")
        self._calls: dict[ToolStart, CallChange] = {}
        self._pending: dict[CallChange, None] = {}
        self._writing: asyncio.Task[None] | None = None
        self._due: asyncio.TimerHandle | None = None
        self._closed = False
        self.lost = 0

    # -- what dispatch tells -------------------------------------------------------------------

    def tool_started(self, start: ToolStart) -> None:
        """Take note of a call that begins."""
        context = start.context
        begun = ToolCallRecord(
            request_id=context.request_id,
            session_id=context.session_id,
            run_id=context.run_id,
            project_id=context.project_id,
            caller=context.caller,
            tool_name=start.tool_name,
            tool_version="",
            schema_hash="",
            params=self.redact(start.params),
            status=ToolCallStatus.RUNNING,
            result=None,
            error=None,
            started_at_ms=self.clock.now_ms(),
            finished_at_ms=None,
        )
        change = self._calls[start] = CallChange(begun)
        self._note(change)
        self._tell("tool.started", begun, {"params": begun.params})

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take note of how a call ended."""
        change = None if outcome.start is None else self._calls.pop(outcome.start, None)
        if change is None:
            return
        begun = change.begun
        # While nothing can be written, what waits in memory stays small.
        behind = len(self._pending) > BATCH_LIMIT
        result, size = _bounded(outcome.result, PREVIEW_BYTES if behind else RESULT_LIMIT_BYTES)
        change.ended = replace(
            begun,
            tool_version=outcome.tool_version,
            schema_hash=outcome.schema_hash,
            status=_status(outcome),
            result=result,
            error=outcome.error,
            finished_at_ms=self.clock.now_ms(),
        )
        self._note(change)
        shown = result if size <= EVENT_RESULT_LIMIT_BYTES else _cut(outcome.result, size)
        self._tell(
            "tool.finished",
            begun,
            {
                "status": change.ended.status.value,
                "duration_ms": outcome.duration_ms,
                "error": outcome.error,
                "result": shown,
            },
        )

    # -- what the daemon asks ------------------------------------------------------------------

    async def flush(self) -> None:
        """Return when everything noted so far is on disk, or cannot be put there now."""
        if self._pending or not self._idle:
            await asyncio.shield(self._work())

    async def close(self) -> None:
        """Write what is left and take no more. Safe to call twice."""
        if not self._closed:
            await self.flush()
            self._closed = True
            await self._tasks.close()

    # -- own -----------------------------------------------------------------------------------

    def _note(self, change: CallChange) -> None:
        if self._closed:
            self.lost += 1
            return
        self._pending[change] = None
        if len(self._pending) > PENDING_LIMIT:
            del self._pending[next(iter(self._pending))]
            self.lost += 1
            if self.lost == 1 or self.lost % PENDING_LIMIT == 0:
                _log.error("tool_calls.lost", lost=self.lost)
        if len(self._pending) >= BATCH_LIMIT:
            self._work()
        elif self._due is None:
            self._due = asyncio.get_running_loop().call_later(LINGER_S, self._work)

    @property
    def _idle(self) -> bool:
        return self._writing is None or self._writing.done()

    def _work(self) -> asyncio.Task[None]:
        """Start the writing task unless it runs; returns it."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write_batches(), "write")
        return self._writing

    async def _write_batches(self) -> None:
        while self._pending:
            batch = list(self._pending)[:BATCH_LIMIT]
            for change in batch:
                del self._pending[change]
            try:
                await self.rows.write(batch)
            except StoreError as error:
                _log.error("tool_calls.not_written", calls=len(batch), error=error.message)
                # First in line again, with what is new about them since.
                self._pending = {**dict.fromkeys(batch), **self._pending}
                return  # the next call tries again

    def _tell(self, name: str, call: ToolCallRecord, more: JsonObject) -> None:
        data: JsonObject = {
            "request_id": call.request_id,
            "caller": call.caller,
            "tool_name": call.tool_name,
            **more,
        }
        self.lifecycle.emit(SessionEvent(name, call.session_id, call.project_id, call.run_id, data))


def _status(outcome: ToolOutcome) -> ToolCallStatus:
    if outcome.cancelled:
        return ToolCallStatus.CANCELLED
    if outcome.denied:
        return ToolCallStatus.DENIED
    return ToolCallStatus.COMPLETED if outcome.error is None else ToolCallStatus.FAILED


def _bounded(result: JsonValue, limit: int) -> tuple[JsonValue, int]:
    """Return a result as it may be kept, and how large it is."""
    size = len(_encoded(result))
    return (result, size) if size <= limit else (_cut(result, size), size)


def _cut(result: JsonValue, size: int) -> JsonObject:
    preview = _encoded(result)[:PREVIEW_BYTES].decode("utf-8", "ignore")
    return {"truncated": True, "bytes": size, "preview": preview}


def _encoded(result: JsonValue) -> bytes:
    try:
        return _encode(result)
    except UnicodeEncodeError:
        return json.dumps(result).encode()
