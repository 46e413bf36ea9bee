"""`AuditLog`: where events are recorded; the chain, the queue and the sink are behind it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from kaged.audit.chain import ChainKey
from kaged.audit.errors import AuditEventInvalid, AuditUnavailable
from kaged.audit.event import AuditEvent
from kaged.audit.events.causes import CAUSES, CauseKind
from kaged.audit.folding import FoldingGate, FoldingLimits
from kaged.audit.keyfile import HeadFile
from kaged.audit.pending import PendingEvent
from kaged.audit.pump import AuditLimits, AuditPump, Incident, PumpListener
from kaged.audit.redact import Redactor
from kaged.audit.row import AuditRow
from kaged.audit.sink import AuditSink
from kaged.audit.writer import ChainWriter
from kaged.base import Clock, Ids, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.kernel.decision import Decision

RULE = "audit.writable"
FOLDED_FIRST_S = 5.0
FOLDED_AGAIN_S = 60.0
_FIX = "free disk space or make the database writable; the daemon notices by itself"

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AuditHealth:
    """How the log is doing, for status pages.

    `lost` counts events of this process that found no room while the sink failed; none of them
    was ever reported as written. `chain_mismatch` is what the start found wrong with the chain.
    """

    ok: bool
    last_error: str | None
    queued: int
    written: int
    lost: int
    refused: int
    degraded_since_ms: int | None
    head_seq: int
    head_file_error: str | None
    chain_mismatch: JsonObject | None


class AuditLog:
    """Remembers what happened, for good and provably.

    `record` returns when the event is durable if an action depends on it, and otherwise as soon
    as it is queued. Nothing that was reported durable is ever lost. When the sink cannot write,
    `decide_mutation` says no and `record` of a gating event raises, so that nothing changes
    without a record; everything else goes on, and the gap itself becomes part of the record.

    Make one with `open`; it lives on the event loop it was opened in.
    """

    def __init__(
        self,
        sink: AuditSink,
        *,
        clock: Clock,
        ids: Ids,
        key: ChainKey,
        head_file: HeadFile | None = None,
        redactor: Redactor | None = None,
        limits: AuditLimits | None = None,
        folding: FoldingLimits | None = None,
    ) -> None:
        self._clock = clock
        self._gate = FoldingGate(clock, self._on_folding, folding)
        self._folded_s: float | None = None  # when what was counted was written last
        self._fold_timer: asyncio.TimerHandle | None = None
        self._limits = limits or AuditLimits()
        self.redactor = redactor or Redactor()
        self._writer = ChainWriter(sink, key, clock, ids, head_file)
        listener = PumpListener(self._on_settled, self._on_failed, self._own_event)
        self._pump = AuditPump(self._writer, clock, self._limits, listener)
        self._loop: asyncio.AbstractEventLoop | None = None
        # Who waits for room in the queue, in order; their events are queued for them.
        self._waiting_for_space: deque[tuple[PendingEvent, asyncio.Future[None]]] = deque()
        self._subscribers: tuple[Callable[[AuditRow], None], ...] = ()
        self._health_subscribers: tuple[Callable[[AuditHealth], None], ...] = ()
        self._mismatch: JsonObject | None = None
        self._was_degraded = False

    @classmethod
    async def open(
        cls,
        sink: AuditSink,
        *,
        clock: Clock,
        ids: Ids,
        key: ChainKey,
        head_file: HeadFile | None = None,
        redactor: Redactor | None = None,
        limits: AuditLimits | None = None,
        folding: FoldingLimits | None = None,
    ) -> AuditLog:
        """Continue the sink's chain, or begin one.

        A chain that does not end where its anchors say is continued all the same, with an event
        `audit.chain_mismatch` as its next row: from then on every check of the log reports it.

        Raises:
            AuditUnavailable: there is a mismatch and the sink cannot write the event about it.
        """
        log = cls(
            sink,
            clock=clock,
            ids=ids,
            key=key,
            head_file=head_file,
            redactor=redactor,
            limits=limits,
            folding=folding,
        )
        await log._start()
        return log

    @property
    def health(self) -> AuditHealth:
        """How the log is doing now."""
        pump, incident = self._pump, self._pump.incident
        return AuditHealth(
            ok=self._trouble() is None,
            last_error=self._trouble(),
            queued=pump.queued,
            written=pump.written,
            lost=pump.unwritten,
            refused=incident.refused if incident else 0,
            degraded_since_ms=incident.since_ms if incident else None,
            head_seq=self._writer.head.seq,
            head_file_error=self._writer.head_file_error,
            chain_mismatch=self._mismatch,
        )

    async def record(self, event: AuditEvent, *, durable: bool | None = None) -> None:
        """Write an event; returns when durable if it gates an action, else once it is queued.

        `durable` overrides the event's own `gates`, for calls that only sometimes change things.
        An event that need not be durable, of a guest whose share is used up, is counted instead.
        A full queue makes this wait its turn; cancelled then, it is not recorded. While the sink
        fails, an event that must be durable raises at once; another is queued as long as there is
        room, and counted as lost after that.

        Raises:
            AuditUnavailable: it is not durable, so what it announces must not be done.
        """
        wait = event.type.gates if durable is None else durable
        if not wait and self._folds(event):
            return
        entry = self._pending(event)
        if wait:
            await self._record_durable(entry)
        elif self._waiting_for_space or not self._pump.offer(entry):
            await self._record_later(entry)

    def offer(self, event: AuditEvent) -> bool:
        """Queue an event that nobody waits for, if there is room; else False: `await record` it.

        For those who write with every call: nearly always there is nothing to wait for.
        """
        if self._waiting_for_space:
            return False
        if self._folds(event):
            return True
        entry = PendingEvent(event, self._clock.now_ms(), self.redactor.rules)
        return self._pump.offer(entry)

    def post(self, event: AuditEvent) -> None:
        """Queue an event that gates nothing, without waiting; safe in any thread and callback.

        Has a reserve of its own behind a full queue. Should that be full too, it blocks for up to
        five seconds rather than lose the event; only while the sink fails is it counted as lost.

        Raises:
            AuditEventInvalid: the event gates an action; use `await record`.
            AuditUnavailable: the log is closed.
        """
        self.post_or_count(event)

    def post_or_count(self, event: AuditEvent) -> bool:
        """Do as `post`; return whether it was queued, not counted for a guest without a share."""
        if event.type.gates:
            raise AuditEventInvalid(f"{event.name} gates an action: await record() it")
        if self._folds(event):
            return False
        entry = self._pending(event)
        if self._pump.offer(entry, reserve=True) or self._pump.offer_waiting(entry):
            return True
        if self._pump.stopping:
            raise self._unavailable()
        self._pump.count_lost(event.name)
        return True

    @property
    def folding(self) -> FoldingGate:
        """Who counts what guests cause beyond their share."""
        return self._gate

    def write_folded(self) -> None:
        """Write what was counted instead of written so far; for who reads the log now."""
        if self._fold_timer is not None:
            self._fold_timer.cancel()
            self._fold_timer = None

        def write(event: AuditEvent) -> bool:
            self._folded_s = self._clock.monotonic_s()
            return self._pump.offer(self._pending(event), reserve=True)

        self._gate.drain(write)

    async def flush(self) -> None:
        """Return when everything recorded before is durable.

        Raises:
            AuditUnavailable: the sink cannot write it now.
        """
        await self._record_durable(PendingEvent(None, self._clock.now_ms(), self.redactor.rules))

    async def retry(self) -> AuditHealth:
        """Try a failed sink now instead of at the next interval; return the health afterwards."""
        if self._pump.incident is not None:
            changed = asyncio.get_running_loop().create_future()

            def note(health: AuditHealth) -> None:
                if not changed.done():
                    changed.set_result(health)

            stop = self.subscribe_health(note)
            try:
                self._pump.probe()
                await asyncio.wait([changed], timeout=self._limits.record_timeout_s)
            finally:
                stop()
        return self.health

    async def close(self) -> None:
        """Write what is queued and counted, and end. Safe to call twice."""
        self._gate.close()
        self.write_folded()
        await asyncio.to_thread(self._pump.stop)
        self._grant_space()

    def decide_mutation(self) -> Decision:
        """Return whether something may be changed now: no, if it could not be recorded."""
        trouble = self._trouble()
        if trouble is None:
            return _WRITABLE
        return Decision.deny(RULE, f"the audit log cannot be written: {trouble}", _FIX)

    def require_writable(self) -> None:
        """Raise AuditUnavailable if something that must be recorded could not be."""
        if self._trouble() is not None:
            self._pump.count_refused()
            raise self._unavailable()

    def subscribe(self, callback: Callable[[AuditRow], None]) -> Callable[[], None]:
        """Call `callback` on the loop with each row once it is durable, in order.

        Gives a function that ends the subscription. Read what came before from the store.
        """
        self._subscribers = (*self._subscribers, callback)

        def end() -> None:
            self._subscribers = tuple(one for one in self._subscribers if one is not callback)

        return end

    def subscribe_health(self, callback: Callable[[AuditHealth], None]) -> Callable[[], None]:
        """Call `callback` on the loop when writing begins to fail, fails again or recovers."""
        self._health_subscribers = (*self._health_subscribers, callback)

        def end() -> None:
            self._health_subscribers = tuple(
                one for one in self._health_subscribers if one is not callback
            )

        return end

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._mismatch = await asyncio.to_thread(self._writer.open)
        self._pump.start()
        if self._mismatch is not None:
            _log.error("audit.chain_mismatched", **self._mismatch)
            try:
                await self.record(AuditEvent("audit.chain_mismatch", self._mismatch), durable=True)
            except BaseException:
                await self.close()
                raise

    def _folds(self, event: AuditEvent) -> bool:
        return CAUSES[event.name].kind is CauseKind.GUEST and self._gate.fold(event)

    def _on_folding(self) -> None:
        self._call(self._plan_folded)

    def _plan_folded(self) -> None:
        """Write what is counted from now on soon; in a minute if that was done just now."""
        if self._loop is None or self._fold_timer is not None or self._pump.stopping:
            return
        now_s = self._clock.monotonic_s()
        again = self._folded_s is not None and now_s - self._folded_s < FOLDED_AGAIN_S
        delay_s = FOLDED_AGAIN_S if again else FOLDED_FIRST_S
        self._fold_timer = self._loop.call_later(delay_s, self._fold_time)

    def _fold_time(self) -> None:
        self._fold_timer = None
        self.write_folded()
        if self._gate.has_folded:  # the queue had no room
            self._plan_folded()

    def _pending(self, event: AuditEvent) -> PendingEvent:
        return PendingEvent(event, self._clock.now_ms(), self.redactor.rules)

    def _own_event(self, name: str, data: JsonObject) -> PendingEvent:
        return self._pending(AuditEvent(name, data))

    async def _record_durable(self, entry: PendingEvent) -> None:
        entry.waiter = asyncio.get_running_loop().create_future()
        if self._trouble() is not None:
            self._pump.count_refused()
            raise self._unavailable()
        try:
            async with asyncio.timeout(self._limits.record_timeout_s):
                if self._waiting_for_space or not self._pump.offer(entry):
                    await self._record_later(entry)
                await entry.waiter
        except TimeoutError as error:
            raise self._unavailable("the disk does not answer") from error

    async def _record_later(self, entry: PendingEvent) -> None:
        queued = asyncio.get_running_loop().create_future()
        # No await since the queue said "full": the pump's answer to that cannot have come yet.
        self._waiting_for_space.append((entry, queued))
        if self._pump.incident is not None or self._pump.stopping:
            self._grant_space()
        await queued

    def _grant_space(self) -> None:
        """Queue the events of those who wait, in order, as far as there is room."""
        while self._waiting_for_space:
            entry, queued = self._waiting_for_space[0]
            if not queued.done() and not self._pump.offer(entry):
                if self._pump.stopping or (entry.waiter and self._pump.incident):
                    queued.set_exception(self._unavailable())
                elif self._pump.incident is not None:
                    self._pump.count_lost(entry.name)
                else:
                    return  # the pump says when there is room again
            self._waiting_for_space.popleft()
            if not queued.done():
                queued.set_result(None)

    def _trouble(self) -> str | None:
        pump = self._pump
        if pump.incident is not None:
            return pump.incident.error
        if pump.stopping:
            return "it is closed"
        return "the disk does not answer" if pump.stalled else None

    def _unavailable(self, reason: str | None = None) -> AuditUnavailable:
        why = reason or self._trouble() or "the queue is full"
        return AuditUnavailable(f"the audit log cannot be written: {why}", fix=_FIX)

    def _on_settled(
        self, waiters: list[asyncio.Future[None]], rows: Sequence[AuditRow], room: bool
    ) -> None:
        degraded_before, self._was_degraded = self._was_degraded, False
        if waiters or room or degraded_before or self._subscribers:
            self._call(self._settle, waiters, rows, room, degraded_before)

    def _on_failed(self, waiters: list[asyncio.Future[None]], incident: Incident) -> None:
        self._was_degraded = True
        self._call(self._fail, waiters, incident)

    def _call(self, function: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            # The loop is closed: nobody is left who could wait or listen.
            _log.warning("audit.log_orphaned")

    def _settle(
        self,
        waiters: list[asyncio.Future[None]],
        rows: Sequence[AuditRow],
        room: bool,
        recovered: bool,
    ) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if room:
            self._grant_space()
        for callback in self._subscribers:
            self._deliver(callback, rows)
        if recovered:
            self._tell_health()

    def _fail(self, waiters: list[asyncio.Future[None]], incident: Incident) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(self._unavailable(incident.error))
        self._grant_space()
        self._tell_health()

    def _deliver(self, callback: Callable[[AuditRow], None], rows: Sequence[AuditRow]) -> None:
        try:
            for row in rows:
                callback(row)
        except Exception as error:  # noqa: BLE001 - boundary: a listener never harms the log
            _log.warning("audit.listener_failed", error=repr(error))

    def _tell_health(self) -> None:
        health = self.health
        for callback in self._health_subscribers:
            callback(health)


_WRITABLE = Decision.allow(RULE)
