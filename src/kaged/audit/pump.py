"""`AuditPump`: the bounded queue and the one thread that empties it into the chain."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import field

from kaged.audit.pending import PendingEvent
from kaged.audit.row import AuditRow
from kaged.audit.writer import ChainWriter
from kaged.base import Clock, JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """How much the log holds in memory and how long it waits.

    A queue that is full makes `record` wait; `post`, which cannot wait, has as much room again.
    Events that nobody waits for linger for a moment, so that many of them share one commit.
    """

    queue_events: int = 8192
    queue_chars: int = 32 * 1024 * 1024
    batch_events: int = 2048
    batch_chars: int = 4 * 1024 * 1024
    linger_s: float = 0.02
    linger_events: int = 512
    record_timeout_s: float = 30.0
    post_timeout_s: float = 5.0
    stall_s: float = 10.0
    retry_first_s: float = 0.25
    retry_max_s: float = 5.0


@dataclass(slots=True)
class Incident:
    """A time in which the sink could not be written."""

    started: PendingEvent
    since_ms: int
    since_s: float
    error: str
    error_code: str
    retry_s: float
    refused: int = 0
    lost: Counter[str] = field(default_factory=Counter[str])


class PumpListener:
    """What the pump tells its owner; called in the pump's thread."""

    def __init__(
        self,
        settled: Callable[[list[asyncio.Future[None]], Sequence[AuditRow], bool], None],
        failed: Callable[[list[asyncio.Future[None]], Incident], None],
        event: Callable[[str, JsonObject], PendingEvent],
    ) -> None:
        self.settled = settled
        self.failed = failed
        self.event = event


class AuditPump:
    """Takes pending events from any thread and writes them in batches from its own.

    Each batch is one commit, so that the more events arrive, the fewer commits each needs. Order
    of arrival is order in the chain. While the sink fails, those that nobody waits for stay
    queued and are tried again; those that someone waits for are given back as failed at once.
    """

    def __init__(
        self, writer: ChainWriter, clock: Clock, limits: AuditLimits, listener: PumpListener
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._limits = limits
        self._listener = listener
        self._lock = threading.RLock()
        self._cond = threading.Condition(self._lock)
        self._queue: deque[PendingEvent] = deque()
        self._chars = 0
        self._space_wanted = False
        self._probe = False
        self._stopping = False
        self._gave_up = False
        self._idle = False  # the thread waits for work; telling a busy one costs time for nothing
        self._lingering = False
        self._awaited = 0  # queued events that someone waits for
        self._thread = threading.Thread(target=self._run, name="kaged-audit", daemon=True)
        self._busy_since_s: float | None = None
        self.incident: Incident | None = None
        self.written = 0
        self.unwritten = 0

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued, one last try if the sink fails, and end. Blocks until then."""
        with self._cond:
            self._stopping = True
            self._cond.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def stopping(self) -> bool:
        """Whether no more events are taken."""
        return self._stopping

    @property
    def queued(self) -> int:
        """How many events wait."""
        return len(self._queue)

    @property
    def stalled(self) -> bool:
        """Whether one write has been taking longer than any disk should."""
        since = self._busy_since_s
        return since is not None and self._clock.monotonic_s() - since > self._limits.stall_s

    def offer(self, entry: PendingEvent, *, reserve: bool = False) -> bool:
        """Queue an event; False when there is no room, and the listener hears when there is."""
        limits = self._limits
        factor = 2 if reserve else 1
        # The lock itself and not the condition around it, and `_has_space`, `_add` and `_is_due`
        # written out: this is where the event loop passes with every event.
        with self._lock:
            queue = self._queue
            if (
                len(queue) < limits.queue_events * factor
                and self._chars < limits.queue_chars * factor
                and not self._stopping
            ):
                queue.append(entry)
                self._chars += entry.size
                if entry.waiter is not None:
                    self._awaited += 1
                if self._idle or (
                    self._lingering
                    and (
                        entry.waiter is not None
                        or len(queue) >= limits.linger_events
                        or self._chars >= limits.batch_chars
                    )
                ):
                    # Once is enough: it takes a while until the thread has its turn.
                    self._idle = self._lingering = False
                    self._cond.notify_all()
                return True
            self._space_wanted = True
            return False

    def offer_waiting(self, entry: PendingEvent) -> bool:
        """Queue an event, blocking this thread for a while if there is no room."""
        with self._cond:
            self._cond.wait_for(
                lambda: self._has_space(True) or self.incident is not None or self._stopping,
                timeout=self._limits.post_timeout_s,
            )
            if not self._has_space(True):
                return False
            self._add(entry)
            self._cond.notify_all()
            return True

    def count_lost(self, name: str) -> None:
        """Remember that an event found no room; the log says so once it can be written again."""
        with self._cond:
            if self.incident is not None:
                self.incident.lost[name] += 1
            self.unwritten += 1

    def count_refused(self) -> None:
        """Remember that something was not done because its event could not be written."""
        with self._cond:
            if self.incident is not None:
                self.incident.refused += 1

    def probe(self) -> None:
        """Try a failed sink again now instead of at the next interval."""
        with self._cond:
            self._probe = True
            self._cond.notify_all()

    def _add(self, entry: PendingEvent) -> None:
        self._queue.append(entry)
        self._chars += entry.size
        if entry.waiter is not None:
            self._awaited += 1

    def _is_due(self) -> bool:
        """Return whether what is queued should be written now."""
        limits = self._limits
        return (
            self._awaited > 0
            or self._stopping
            or len(self._queue) >= limits.linger_events
            or self._chars >= limits.batch_chars
        )

    def _has_space(self, reserve: bool) -> bool:
        limits = self._limits
        factor = 2 if reserve else 1
        return (
            len(self._queue) < limits.queue_events * factor
            and self._chars < limits.queue_chars * factor
            and not self._stopping
        )

    def _run(self) -> None:
        try:
            while (batch := self._take()) is not None:
                if batch or self.incident is not None:
                    self._write(batch)
                due_s = self._writer.head_due_s
                if due_s is not None and due_s <= 0:
                    self._writer.write_head()
            self._writer.write_head()
        except BaseException as error:  # noqa: BLE001 - boundary: the root of this thread
            # Whatever this is: nobody may go on waiting, and nothing that must be recorded may
            # happen.
            self._failed([], error)
            _log.critical("audit.thread_ended", error=repr(error), exc_info=error)

    def _take(self) -> list[PendingEvent] | None:
        """Wait for work; return the next batch, an empty one for a retry or the head file."""
        with self._cond:
            if self.incident is not None:
                self._cond.wait_for(
                    lambda: self._stopping or self._probe, timeout=self.incident.retry_s
                )
                self._probe = False
                if self._gave_up:
                    return None
                return self._next_batch()
            while not self._queue:
                if self._stopping:
                    return None
                due_s = self._writer.head_due_s
                if due_s is not None and due_s <= 0:
                    return []
                self._idle = True
                self._cond.wait(due_s)
                self._idle = False
            self._lingering = True
            self._cond.wait_for(self._is_due, timeout=self._limits.linger_s)
            self._lingering = False
            return self._next_batch()

    def _next_batch(self) -> list[PendingEvent]:
        batch: list[PendingEvent] = []
        chars = 0
        queue, limits = self._queue, self._limits
        while queue and len(batch) < limits.batch_events and chars < limits.batch_chars:
            entry = queue.popleft()
            batch.append(entry)
            chars += entry.size
            if entry.waiter is not None:
                self._awaited -= 1
        self._chars -= chars
        return batch

    def _write(self, batch: list[PendingEvent]) -> None:
        incident = self.incident
        entries = batch
        if incident is not None:
            entries = [incident.started, *batch, self._recovered(incident)]
        self._busy_since_s = self._clock.monotonic_s()
        try:
            rows = self._written(entries)
        except Exception as error:  # noqa: BLE001 - boundary: a sink may fail in any way it likes
            self._failed(batch, error)
        else:
            self._succeeded(batch, rows)
        finally:
            self._busy_since_s = None

    def _written(self, entries: list[PendingEvent]) -> tuple[AuditRow, ...]:
        try:
            return self._writer.write(entries)
        except Exception as error:  # noqa: BLE001 - boundary: see above; one failure may be a fluke
            _log.warning("audit.write_retried", error=_text(error))
        return self._writer.write(entries)

    def _succeeded(self, batch: list[PendingEvent], rows: tuple[AuditRow, ...]) -> None:
        waiters = [entry.waiter for entry in batch if entry.waiter is not None]
        with self._cond:
            recovered = self.incident
            self.incident = None
            self.written += len(rows)
            room = self._space_wanted
            self._space_wanted = False
            self._cond.notify_all()
        if recovered is not None:
            _log.warning(
                "audit.recovered",
                lost=recovered.lost.total(),
                refused=recovered.refused,
            )
        self._listener.settled(waiters, rows, room)

    def _failed(self, batch: list[PendingEvent], error: BaseException) -> None:
        started = self._listener.event(
            "audit.degraded", {"error": _text(error), "error_code": _code(error)}
        )
        with self._cond:
            # Those that someone waits for fail now, wherever they stand; the others keep order.
            everything = [*batch, *self._queue]
            self._queue = deque(entry for entry in everything if entry.waiter is None)
            self._chars = sum(entry.size for entry in self._queue)
            self._awaited = 0
            waiters = [entry.waiter for entry in everything if entry.waiter is not None]
            incident, is_new = self._incident_after(error, started)
            incident.refused += len(waiters)
            self._space_wanted = False
            if self._stopping:
                self._gave_up = True
                self.unwritten += len(self._queue)
                self._queue.clear()
            self._cond.notify_all()
        if is_new:
            _log.error("audit.write_failed", error=incident.error)
        if self._stopping and self.unwritten:
            _log.critical("audit.events_not_written", count=self.unwritten)
        self._listener.failed(waiters, incident)

    def _incident_after(self, error: BaseException, started: PendingEvent) -> tuple[Incident, bool]:
        known = self.incident
        if known is not None:
            known.error, known.error_code = _text(error), _code(error)
            known.retry_s = min(known.retry_s * 2, self._limits.retry_max_s)
            return known, False
        self.incident = Incident(
            started=started,
            since_ms=self._clock.now_ms(),
            since_s=self._clock.monotonic_s(),
            error=_text(error),
            error_code=_code(error),
            retry_s=self._limits.retry_first_s,
        )
        return self.incident, True

    def _recovered(self, incident: Incident) -> PendingEvent:
        with self._cond:
            lost = dict(incident.lost)
            refused = incident.refused
        duration_s = self._clock.monotonic_s() - incident.since_s
        return self._listener.event(
            "audit.recovered",
            {
                "duration_ms": round(duration_s * 1000),
                "lost": sum(lost.values()),
                "refused": refused,
                "lost_by_name": {**lost},
            },
        )


def _text(error: BaseException) -> str:
    return error.message if isinstance(error, KagedError) else f"{type(error).__name__}: {error}"


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, KagedError) else "internal"
