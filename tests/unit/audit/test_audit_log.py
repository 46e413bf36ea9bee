"""The log: durable when it says so, bounded, and closed to changes when it cannot write."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest

from kaged.audit import (
    EVENT_TYPES,
    AuditEvent,
    AuditEventInvalid,
    AuditLimits,
    AuditLog,
    AuditRow,
    AuditUnavailable,
)
from kaged.audit.events import FieldKind
from kaged.audit.pending import PendingEvent
from kaged.base import JsonObject, JsonValue
from kaged.kernel.decision import CapabilityDenied
from kaged.kernel.describe import require
from requirements import requirement
from unit.audit.log_bench import BOUND_S, Bench, edited, enabled


def sample(name: str) -> AuditEvent:
    """Make an event of any declared type."""
    values: dict[FieldKind, JsonValue] = {
        FieldKind.TEXT: "x",
        FieldKind.CUT: "x",
        FieldKind.SQL: "x",
        FieldKind.ANY: "x",
        FieldKind.INTEGER: 1,
        FieldKind.NUMBER: 1.5,
        FieldKind.FLAG: True,
        FieldKind.LIST: [],
        FieldKind.TAIL: [],
        FieldKind.OBJECT: {},
    }
    data: JsonObject = {field.name: values[field.kind] for field in EVENT_TYPES[name].fields}
    return AuditEvent(name, data)


async def test_an_event_that_gates_is_durable_when_record_returns(bench: Bench) -> None:
    log = await bench.open()
    await log.record(enabled())
    assert bench.sink.names() == ["plugin.enabled"]
    assert bench.sound()


async def test_an_event_that_gates_nothing_is_queued_without_waiting(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.gate.clear()
    await log.record(edited())
    assert bench.sink.names() == []
    bench.sink.gate.set()
    await log.flush()
    assert bench.sink.names() == ["file.edited"]


async def test_an_offered_event_is_queued_if_there_is_room_and_else_not_at_all(
    bench: Bench,
) -> None:
    log = await bench.open(AuditLimits(queue_events=3, batch_events=4))
    bench.sink.gate.clear()
    taken = 0
    while log.offer(edited(f"{taken}")):
        taken += 1
    assert taken >= 3
    later = asyncio.gather(log.record(edited("later")))
    await asyncio.sleep(0)
    bench.sink.gate.set()
    await later
    await log.flush()
    assert log.offer(edited("after"))
    await log.flush()
    paths = [row.data["path"] for row in bench.sink.rows]
    assert paths == [*map(str, range(taken)), "later", "after"]
    assert bench.sound()


async def test_an_offered_event_never_overtakes_one_that_waits_for_room(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=1, batch_events=1))
    bench.sink.gate.clear()
    while log.offer(edited("first")):
        pass
    waiting = asyncio.gather(log.record(edited("waits")))
    await asyncio.sleep(0)
    log._pump._queue.clear()  # room, of which nobody has heard yet
    assert not log.offer(edited("pushes in"))
    bench.sink.gate.set()
    log._grant_space()
    await waiting
    await log.flush()
    assert [row.data["path"] for row in bench.sink.rows][-1] == "waits"


async def test_a_closed_log_takes_no_offers(bench: Bench) -> None:
    log = await bench.open()
    await log.close()
    assert not log.offer(edited())


async def test_the_caller_can_ask_for_durability_of_any_event(bench: Bench) -> None:
    log = await bench.open()
    await log.record(edited(), durable=True)
    assert bench.sink.names() == ["file.edited"]


async def test_events_are_kept_in_the_order_in_which_they_were_recorded(bench: Bench) -> None:
    log = await bench.open()
    for number in range(500):
        if number % 7 == 0:
            log.post(edited(f"{number}"))
        else:
            await log.record(edited(f"{number}"), durable=number % 50 == 1)
    await log.flush()
    assert [row.data["path"] for row in bench.sink.rows] == [f"{number}" for number in range(500)]
    assert [row.seq for row in bench.sink.rows] == list(range(1, 501))
    assert bench.sound()


async def test_events_that_wait_together_share_a_commit(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.gate.clear()
    await log.record(edited())
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(log.record(enabled(f"{number}")))
        await asyncio.sleep(0)
        bench.sink.gate.set()
    assert bench.sink.batches == [1, 100]


async def test_a_batch_is_bounded(bench: Bench) -> None:
    log = await bench.open(AuditLimits(batch_events=10))
    bench.sink.gate.clear()
    for _ in range(95):
        await log.record(edited())
    bench.sink.gate.set()
    await log.flush()
    assert max(bench.sink.batches) <= 10
    assert sum(bench.sink.batches) == 95


async def test_a_full_queue_makes_record_wait_and_loses_nothing(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=10, batch_events=4))
    bench.sink.gate.clear()

    async def busy(worker: int) -> None:
        for number in range(50):
            await log.record(edited(f"{worker}/{number}"))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(busy(worker)) for worker in range(4)]
        await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
        for _ in range(20):
            await asyncio.sleep(0)
        assert log.health.queued <= 10
        assert not any(task.done() for task in tasks)
        bench.sink.gate.set()
    await log.flush()
    paths = [str(row.data["path"]) for row in bench.sink.rows]
    assert len(paths) == 200
    for worker in range(4):
        mine = [path for path in paths if path.startswith(f"{worker}/")]
        assert mine == [f"{worker}/{number}" for number in range(50)]


async def test_a_queue_is_bounded_by_size_too(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_chars=2000))
    bench.sink.gate.clear()
    waiting = asyncio.gather(*(log.record(edited("x" * 900)) for _ in range(20)))
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    for _ in range(50):
        await asyncio.sleep(0)
    assert log.health.queued <= 3
    bench.sink.gate.set()
    await waiting


async def test_a_cancelled_record_keeps_its_event_and_disturbs_no_other(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.gate.clear()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(log.record(enabled("first")))
        second = group.create_task(log.record(enabled("second")))
        await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
        first.cancel()
        await asyncio.sleep(0)
        bench.sink.gate.set()
        await second
    assert [row.data["name"] for row in bench.sink.rows] == ["first", "second"]


async def test_post_takes_events_from_any_thread(bench: Bench) -> None:
    log = await bench.open()
    threads = [threading.Thread(target=lambda: log.post(edited())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    await log.flush()
    assert len(bench.sink.rows) == 20
    assert bench.sound()


async def test_post_has_a_reserve_behind_a_full_queue(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=5, post_timeout_s=0.01))
    bench.sink.gate.clear()
    log.post(edited("first"))
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    for number in range(10):
        log.post(edited(f"{number}"))
    assert log.health.queued == 10
    log.post(edited("one too many"))
    assert log.health.lost == 1
    bench.sink.gate.set()
    await log.flush()
    assert len(bench.sink.rows) == 11


async def test_post_blocks_rather_than_lose_an_event(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await bench.open(AuditLimits(queue_events=5, post_timeout_s=BOUND_S))
    bench.sink.gate.clear()
    log.post(edited())
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    wait = log._pump.offer_waiting
    waited: list[str] = []

    def opened(entry: PendingEvent) -> bool:
        waited.append(entry.name)
        bench.sink.gate.set()
        return wait(entry)

    monkeypatch.setattr(log._pump, "offer_waiting", opened)
    for _ in range(30):
        log.post(edited())
    await log.flush()
    assert waited
    assert len(bench.sink.rows) == 31
    assert log.health.lost == 0


async def test_post_refuses_an_event_that_gates(bench: Bench) -> None:
    log = await bench.open()
    with pytest.raises(AuditEventInvalid, match="await record"):
        log.post(enabled())


async def test_a_failing_sink_refuses_what_must_be_durable(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = OSError(28, "No space left on device")
    with pytest.raises(AuditUnavailable, match="No space left") as caught:
        await log.record(enabled())
    assert caught.value.code == "audit_unavailable"
    assert caught.value.fix
    assert not log.health.ok
    assert "No space left" in str(log.health.last_error)


async def test_changes_are_denied_while_the_sink_fails_and_allowed_after(bench: Bench) -> None:
    log = await bench.open()
    assert log.decide_mutation().allowed
    log.require_writable()
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    decision = log.decide_mutation()
    assert not decision.allowed
    assert decision.rule == "audit.writable"
    with pytest.raises(CapabilityDenied):
        require(decision)
    with pytest.raises(AuditUnavailable):
        log.require_writable()
    bench.sink.fail_with = None
    assert (await log.retry()).ok
    assert log.decide_mutation().allowed


async def test_reads_go_on_while_the_sink_fails_and_their_events_are_kept(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    for number in range(5):
        await log.record(edited(f"{number}"))
        log.post(edited(f"posted {number}"))
    bench.clock.advance(90)
    bench.sink.fail_with = None
    await log.retry()
    await log.flush()
    names = bench.sink.names()
    assert names == ["audit.degraded", *["file.edited"] * 10, "audit.recovered"]
    assert bench.sink.rows[0].data["error"] == "RuntimeError: broken"
    recovered = bench.sink.rows[-1].data
    assert recovered["lost"] == 0
    assert recovered["refused"] == 1
    assert recovered["duration_ms"] == 90_000
    assert bench.sound()


async def test_what_found_no_room_while_the_sink_failed_is_counted_in_the_log(
    bench: Bench,
) -> None:
    log = await bench.open(AuditLimits(queue_events=5, retry_first_s=60, post_timeout_s=0.01))
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    for number in range(8):
        await log.record(edited(f"{number}"))
    assert log.health.lost == 3
    bench.sink.fail_with = None
    await log.retry()
    recovered = bench.sink.rows[-1].data
    assert recovered["lost"] == 3
    assert recovered["lost_by_name"] == {"file.edited": 3}
    assert [row.data.get("path") for row in bench.sink.rows[1:-1]] == ["0", "1", "2", "3", "4"]


async def test_an_event_that_must_be_durable_fails_at_once_while_the_sink_fails(
    bench: Bench,
) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    bench.sink.entered.clear()
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    assert not bench.sink.entered.is_set()


async def test_all_who_wait_hear_of_a_failure_not_only_those_in_the_batch(bench: Bench) -> None:
    log = await bench.open(AuditLimits(batch_events=1, retry_first_s=60))
    bench.sink.gate.clear()
    bench.sink.fail_with = RuntimeError("broken")
    waiting = asyncio.gather(
        *(log.record(enabled(f"{number}")) for number in range(5)), return_exceptions=True
    )
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    bench.sink.gate.set()
    outcomes = await waiting
    assert all(isinstance(outcome, AuditUnavailable) for outcome in outcomes)
    assert all("broken" in str(outcome) for outcome in outcomes)
    assert bench.sink.rows == []


async def test_one_failure_is_tried_again_before_anyone_hears_of_it(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("a fluke")
    bench.sink.fail_times = 1
    await log.record(enabled())
    assert bench.sink.names() == ["plugin.enabled"]
    assert log.health.ok


async def test_a_batch_that_was_kept_although_the_sink_failed_is_not_kept_twice(
    bench: Bench,
) -> None:
    log = await bench.open()
    bench.sink.fail_with = TimeoutError("no answer after the commit")
    bench.sink.fail_times = 1
    bench.sink.keep_then_fail = True
    await log.record(enabled())
    assert bench.sink.names() == ["plugin.enabled"]
    await log.record(enabled("next"))
    assert bench.sound()


async def test_a_batch_kept_in_doubt_is_settled_when_the_sink_answers_again(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = TimeoutError("no answer")
    await log.record(edited("kept"))
    with pytest.raises(AuditUnavailable):
        await log.flush()
    bench.sink.keep_then_fail = True
    bench.sink.fail_times = 2
    await log.retry()
    bench.sink.fail_with = None
    await log.retry()
    await log.flush()
    assert bench.sink.names().count("file.edited") == 1
    assert bench.sound()


async def test_another_daemon_on_the_same_chain_is_followed(bench: Bench) -> None:
    one = await bench.open()
    two = await bench.open()
    await one.record(enabled("one"))
    await two.record(enabled("two"))
    await one.record(enabled("three"))
    assert [row.data["name"] for row in bench.sink.rows] == ["one", "two", "three"]
    assert bench.sound()


async def test_a_forged_row_in_the_way_stops_all_changes(bench: Bench) -> None:
    log = await bench.open()
    await log.record(enabled())
    real = bench.sink.rows[-1]
    bench.sink.rows.append(real._replace(seq=2, prev_hash=real.hash))
    with pytest.raises(AuditUnavailable, match="not written by this daemon"):
        await log.record(enabled())
    assert not log.decide_mutation().allowed


async def test_a_write_that_hangs_counts_as_failed_after_a_while(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.gate.clear()
    await log.record(edited())
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    assert log.decide_mutation().allowed
    bench.clock.advance(11)
    assert not log.decide_mutation().allowed
    assert "does not answer" in str(log.health.last_error)
    bench.sink.gate.set()


async def test_a_durable_record_does_not_wait_for_ever(bench: Bench) -> None:
    log = await bench.open(AuditLimits(record_timeout_s=0.01))
    bench.sink.gate.clear()
    with pytest.raises(AuditUnavailable, match="does not answer"):
        await log.record(enabled())
    bench.sink.gate.set()


async def test_listeners_hear_of_every_row_in_order_once_it_is_durable(bench: Bench) -> None:
    log = await bench.open()
    heard: list[AuditRow] = []
    end = log.subscribe(heard.append)
    for number in range(100):
        await log.record(edited(f"{number}"))
    await log.flush()
    assert heard == bench.sink.rows
    end()
    await log.record(enabled())
    assert len(heard) == 100


async def test_a_listener_that_fails_harms_nobody(bench: Bench) -> None:
    log = await bench.open()
    heard: list[AuditRow] = []

    def broken(row: AuditRow) -> None:
        raise RuntimeError(row.name)

    log.subscribe(broken)
    log.subscribe(heard.append)
    await log.record(enabled())
    await log.record(enabled())
    assert len(heard) == 2


async def test_health_listeners_hear_of_failure_and_recovery(bench: Bench) -> None:
    log = await bench.open()
    heard: list[bool] = []
    log.subscribe_health(lambda health: heard.append(health.ok))
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    bench.sink.fail_with = None
    await log.retry()
    assert heard == [False, True]


async def test_closing_writes_what_is_queued(bench: Bench) -> None:
    log = await bench.open()
    for _ in range(100):
        await log.record(edited())
    await log.close()
    assert len(bench.sink.rows) == 100
    with pytest.raises(AuditUnavailable, match="closed"):
        await log.record(enabled())
    with pytest.raises(AuditUnavailable, match="closed"):
        await log.record(edited())
    with pytest.raises(AuditUnavailable, match="closed"):
        log.post(edited())
    assert not log.decide_mutation().allowed
    await log.close()


async def test_closing_on_a_failing_sink_ends_and_says_what_is_lost(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("broken")
    for _ in range(3):
        await log.record(edited())
    with pytest.raises(AuditUnavailable):
        await log.flush()
    await log.close()
    assert log.health.lost == 3
    assert bench.sink.rows == []


async def test_closing_an_idle_log_on_a_failing_sink_ends(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    await log.close()


async def test_a_clock_that_goes_backwards_does_not_change_the_order(bench: Bench) -> None:
    log = await bench.open()
    for wall in (5_000_000_000, 1000, 0, -50, 10**18):
        bench.clock.set_wall(wall)
        await log.record(edited(f"{wall}"), durable=True)
    rows = bench.sink.rows
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert rows[1].ts_ms == 1000
    assert bench.sound()
    for row in rows:
        assert row.to_json()["timestamp"]


@requirement("PH-AUD-32")
async def test_every_event_has_an_iso_8601_timestamp(bench: Bench) -> None:
    log = await bench.open()
    for name in EVENT_TYPES:
        bench.clock.advance(1.5)
        await log.record(sample(name), durable=True)
    assert len(bench.sink.rows) == len(EVENT_TYPES)
    for row in bench.sink.rows:
        stamp = row.to_json()["timestamp"]
        assert isinstance(stamp, str)
        moment = datetime.fromisoformat(stamp)
        assert moment.tzinfo == UTC
        assert round(moment.timestamp() * 1000) == row.ts_ms
        assert row.to_json()["event"] == row.name


@pytest.mark.parametrize("value", ["\ud800", float("nan"), 10**400, [{}] * 9999])
async def test_a_hostile_payload_does_not_break_the_chain(bench: Bench, value: JsonValue) -> None:
    log = await bench.open()
    event = AuditEvent(
        "tool.called",
        {
            "tool_name": "t\ud800",
            "caller": "c",
            "session_id": None,
            "run_id": None,
            "params": {"x": value},
        },
        project_id="prj\udfff",
        request_id="r" * 10_000,
    )
    await log.record(event, durable=True)
    await log.record(enabled())
    assert bench.sound()
    assert len(str(bench.sink.rows[0].request_id)) <= 120
    for row in bench.sink.rows:
        row.to_json()


async def test_a_task_that_never_pauses_does_not_starve_the_others(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=4, batch_events=4))
    stop = False

    async def flood() -> None:
        while not stop:
            await log.record(edited("flood"))

    async with asyncio.TaskGroup() as group:
        group.create_task(flood())
        group.create_task(flood())
        for number in range(20):
            await log.record(enabled(f"{number}"))
        stop = True
    assert bench.sink.names().count("plugin.enabled") == 20


async def test_a_record_cancelled_while_it_waits_for_room_is_not_recorded(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=1))
    bench.sink.gate.clear()
    await log.record(edited("in the sink"))
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    await log.record(edited("queued"))
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(log.record(edited("cancelled")))
        behind = group.create_task(log.record(edited("behind")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        bench.sink.gate.set()
        await behind
    await log.flush()
    paths = [row.data["path"] for row in bench.sink.rows]
    assert paths == ["in the sink", "queued", "behind"]


async def test_closing_answers_those_who_wait_for_room(bench: Bench) -> None:
    log = await bench.open(AuditLimits(queue_events=1))
    bench.sink.gate.clear()
    await log.record(edited("in the sink"))
    await asyncio.to_thread(bench.sink.entered.wait, BOUND_S)
    await log.record(edited("queued"))
    waiting = asyncio.gather(
        log.record(edited("too late")), log.record(enabled("too late")), return_exceptions=True
    )
    await asyncio.sleep(0)
    closing = asyncio.gather(log.close())
    await asyncio.to_thread(_until_stopping, log)
    bench.sink.gate.set()
    await closing
    outcomes = await waiting
    kept = [row.data.get("path") for row in bench.sink.rows]
    assert kept == ["in the sink", "queued"]
    assert all(isinstance(outcome, AuditUnavailable) for outcome in outcomes)


def _until_stopping(log: AuditLog) -> None:
    with log._pump._cond:
        assert log._pump._cond.wait_for(lambda: log._pump.stopping, BOUND_S)


async def test_a_retry_that_fails_again_says_so(bench: Bench) -> None:
    log = await bench.open()
    bench.sink.fail_with = RuntimeError("broken")
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    bench.sink.fail_with = RuntimeError("still broken")
    health = await log.retry()
    assert not health.ok
    assert "still broken" in str(health.last_error)
    bench.sink.fail_with = None
    assert (await log.retry()).ok
    assert (await log.retry()).ok


async def test_a_bug_in_the_logs_own_thread_closes_it_to_changes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await bench.open(AuditLimits(record_timeout_s=0.2))

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(log._pump, "_next_batch", broken)
    with pytest.raises(AuditUnavailable):
        await log.record(enabled())
    assert not log.decide_mutation().allowed
    assert "a bug" in str(log.health.last_error)
    assert not (await log.retry()).ok


async def test_what_a_guest_causes_beyond_its_share_is_counted_and_told_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From any thread, without anybody who asks; a row is there again when the log is closed."""
    monkeypatch.setattr("kaged.audit.log.FOLDED_FIRST_S", 0.01)
    log = await bench.open()
    await asyncio.to_thread(lambda: [log.post(sample("plugin.stdout_noise")) for _ in range(500)])

    def counted() -> int:
        rows = [row for row in bench.sink.rows if row.name == "audit.folded"]
        return sum(row.data["count"] for row in rows)  # type: ignore[misc]

    while counted() < 400:  # noqa: ASYNC110 - the sink is a thread's
        await asyncio.sleep(0.001)
    assert bench.sink.names().count("plugin.stdout_noise") == 100
    await log.record(sample("plugin.stdout_noise"))
    assert log.offer(sample("plugin.stdout_noise"))
    await log.record(sample("plugin.stdout_noise"), durable=True)  # who must know is told
    await log.close()
    assert counted() == 402
    assert bench.sink.names().count("plugin.stdout_noise") == 101
    assert bench.sink.names().count("plugin.stdout_noise") == 101
    assert bench.sound()
