"""The audit log on a real database: found, paged, exported, and checked after tampering."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tracemalloc
from collections.abc import Callable

import pytest
from sqlalchemy import text

from fakes.store_home import StoreHome, edited, enabled
from kaged.audit import (
    AuditEvent,
    AuditFilter,
    AuditUnavailable,
    ChainHead,
    ChainKey,
    FindingKind,
    VerifyReport,
    verify_export,
)
from kaged.audit.chain import GENESIS
from kaged.base import ManualClock
from kaged.store import StoreError
from raising import raises_code
from requirements import requirement


async def report_of(home: StoreHome, key: ChainKey | None = None) -> VerifyReport:
    store = await home.store(read_only=True)
    return await store.audit.verify(key or home.key, home.head_file)


def kinds(report: VerifyReport) -> set[FindingKind]:
    return {finding.kind for finding in report.findings}


@requirement("AT-AUD-03")
async def test_large_and_sensitive_params_do_not_reach_the_database(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)
    for key in ("content", "old_string", "new_string", "body", "data"):
        await log.record(
            AuditEvent(
                "tool.called",
                {
                    "tool_name": "file.write",
                    "caller": "primary",
                    "session_id": "ses_1",
                    "run_id": "run_1",
                    "request_id": "req_1",
                    "params": {
                        "path": "a.py",
                        key: "MARKER" + "x" * 1_000_000,
                        "env": {"HOME": "ENVIRON"},
                    },
                },
            )
        )
    await log.flush()
    rows = [row async for row in store.audit.iter_rows()]
    assert len(rows) == 5
    for row in rows:
        params = row.data["params"]
        assert isinstance(params, dict)
        (note,) = [value for value in params.values() if str(value).startswith("[")]
        assert str(note).startswith("[1000006 characters, sha256:")
        assert params["path"] == "a.py"
    await home.close()
    on_disk = home.database.read_bytes()
    assert b"MARKER" not in on_disk
    assert b"ENVIRON" not in on_disk


async def test_rows_are_found_by_every_part_of_a_filter(
    home: StoreHome, clock: ManualClock
) -> None:
    store = await home.store()
    log = await home.log(store)
    start = clock.now_ms()
    await log.record(edited("one%_\\"))
    clock.advance(10)
    await log.record(
        AuditEvent("project.loaded", {"root": "/r", "slug": "s"}, project_id="p1", request_id="r1")
    )
    clock.advance(10)
    await log.record(
        AuditEvent("plugin.hook.illegal", {"name": "n", "hook": "h", "agent_path": "Ü"})
    )
    await log.record(enabled("zwei"))

    async def found(**wanted: object) -> list[int]:
        page = await store.audit.query(
            AuditFilter(**wanted),  # pyright: ignore[reportArgumentType] - one part at a time
            oldest_first=True,
        )
        return [row.seq for row in page.items]

    assert await found() == [1, 2, 3, 4]
    assert await found(names=("plugin.*",)) == [3, 4]
    assert await found(names=("plugin.hook.*", "file.edited")) == [1, 3]
    assert await found(names=("plugin",)) == []
    assert await found(names=("*",)) == [1, 2, 3, 4]
    assert await found(project_id="p1") == [2]
    assert await found(request_id="r1") == [2]
    assert await found(since_ms=start + 10_000) == [2, 3, 4]
    assert await found(until_ms=start + 10_000) == [1]
    assert await found(text="ZWEI") == [4]
    assert await found(text="%_") == [1]
    assert await found(text="_%") == []
    assert await found(after_seq=3) == [4]
    assert await store.audit.get(2) is not None
    assert await store.audit.get(99) is None


async def test_pages_follow_each_other_while_rows_arrive(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)
    for number in range(25):
        await log.record(edited(f"{number}"))
    await log.flush()
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = await store.audit.query(cursor=cursor, limit=10)
        seen.extend(row.seq for row in page.items)
        await log.record(enabled("meanwhile"))
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == list(range(25, 0, -1))
    forward = await store.audit.query(cursor="c20", limit=3, oldest_first=True)
    assert [row.seq for row in forward.items] == [21, 22, 23]
    with raises_code("invalid_cursor", StoreError):
        await store.audit.query(cursor="7")


async def test_an_export_of_the_database_can_be_checked_elsewhere(home: StoreHome) -> None:
    await home.filled(5000)
    store = await home.store(read_only=True)
    whole = b"".join([part async for part in store.audit.export(home.key)])
    report = verify_export(whole.splitlines(keepends=True), home.key)
    assert report.ok
    assert report.complete
    assert report.rows == 5000
    some = AuditFilter(text="42")
    part = b"".join([part async for part in store.audit.export(home.key, some)])
    selected = verify_export(part.splitlines(keepends=True), home.key)
    assert selected.ok
    assert not selected.complete
    assert 0 < selected.rows < 5000


async def test_sql_cannot_change_or_remove_a_row(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("a"))
    for statement in (
        "UPDATE audit_events SET data = '{}'",
        "DELETE FROM audit_events",
        "INSERT OR REPLACE INTO audit_events SELECT * FROM audit_events",
    ):
        with pytest.raises(StoreError):
            await store.write(lambda conn, sql=statement: conn.execute(text(sql)))
    assert (await store.audit.verify(home.key, home.head_file)).ok


# An export made by someone with the key vouches for the rows that are there, not for the anchors.
ANCHORS = {FindingKind.TRUNCATED, FindingKind.ANCHOR_MISSING, FindingKind.ANCHOR_INVALID}
Tamper = Callable[[sqlite3.Connection], object]
TAMPERING: dict[str, tuple[Tamper, FindingKind]] = {
    "edit": (
        lambda c: c.execute("UPDATE audit_events SET data = '{}' WHERE seq = 20"),
        FindingKind.EDITED,
    ),
    "edit the time": (
        lambda c: c.execute("UPDATE audit_events SET ts_ms = ts_ms + 1 WHERE seq = 20"),
        FindingKind.EDITED,
    ),
    "add a project": (
        lambda c: c.execute("UPDATE audit_events SET project_id = 'x' WHERE seq = 20"),
        FindingKind.EDITED,
    ),
    "remove the first": (
        lambda c: c.execute("DELETE FROM audit_events WHERE seq = 1"),
        FindingKind.MISSING,
    ),
    "remove some": (
        lambda c: c.execute("DELETE FROM audit_events WHERE seq BETWEEN 10 AND 12"),
        FindingKind.MISSING,
    ),
    "remove the newest": (
        lambda c: c.execute("DELETE FROM audit_events WHERE seq > 45"),
        FindingKind.TRUNCATED,
    ),
    "remove all": (lambda c: c.execute("DELETE FROM audit_events"), FindingKind.TRUNCATED),
    "remove the newest and the anchor": (
        lambda c: c.executescript(
            "DELETE FROM audit_events WHERE seq > 45; DELETE FROM audit_anchor;"
        ),
        FindingKind.TRUNCATED,
    ),
    "remove and close the gap": (
        lambda c: c.executescript(
            "DELETE FROM audit_events WHERE seq = 10;"
            "UPDATE audit_events SET seq = seq - 1 WHERE seq > 10;"
        ),
        FindingKind.EDITED,
    ),
    "swap two rows": (
        lambda c: c.executescript(
            "UPDATE audit_events SET seq = -1 WHERE seq = 10;"
            "UPDATE audit_events SET seq = 10 WHERE seq = 11;"
            "UPDATE audit_events SET seq = 11 WHERE seq = -1;"
        ),
        FindingKind.EDITED,
    ),
    "repeat a row at the end": (
        lambda c: c.execute(
            "INSERT INTO audit_events SELECT 51, id, ts_ms, name, project_id, request_id, data, "
            "(SELECT hash FROM audit_events WHERE seq = 50), hash FROM audit_events WHERE seq = 20"
        ),
        FindingKind.EDITED,
    ),
    "write bytes that are no text": (
        lambda c: c.execute(
            "UPDATE audit_events SET data = CAST(x'FFFE80' AS TEXT) WHERE seq = 20"
        ),
        FindingKind.EDITED,
    ),
    "write a blob": (
        lambda c: c.execute("UPDATE audit_events SET hash = x'00' WHERE seq = 20"),
        FindingKind.EDITED,
    ),
    "remove the anchor": (
        lambda c: c.execute("DELETE FROM audit_anchor"),
        FindingKind.ANCHOR_MISSING,
    ),
    "forge the anchor": (
        lambda c: c.execute("UPDATE audit_anchor SET seq = 40"),
        FindingKind.ANCHOR_INVALID,
    ),
}


@pytest.mark.parametrize("what", TAMPERING)
async def test_tampering_with_the_database_is_found(home: StoreHome, what: str) -> None:
    await home.filled(50)
    assert (await report_of(home)).ok
    tamper, kind = TAMPERING[what]
    conn = home.raw()
    tamper(conn)
    conn.close()
    report = await report_of(home)
    assert not report.ok
    assert kind in kinds(report)
    # A tampered row is still shown and exported, and the export fails its check too.
    store = await home.store(read_only=True)
    rows = [row async for row in store.audit.iter_rows()]
    json.dumps([row.to_json() for row in rows])
    lines = b"".join([part async for part in store.audit.export(home.key)])
    assert (kind in ANCHORS) == verify_export(lines.splitlines(keepends=True), home.key).ok


async def test_a_chain_replaced_by_one_made_with_another_key_is_found(home: StoreHome) -> None:
    await home.filled(20)
    forger = ChainKey(b"f" * 32)
    store = await home.store(read_only=True)
    rows = [row async for row in store.audit.iter_rows()]
    await home.close()
    conn = home.raw()
    last = GENESIS
    for row in rows:
        forged = row._replace(data_json='{"innocent":true}', prev_hash=last)
        last = forger.row_hash(forged)
        conn.execute(
            "UPDATE audit_events SET data = ?, prev_hash = ?, hash = ? WHERE seq = ?",
            (forged.data_json, forged.prev_hash, last, row.seq),
        )
    anchor = forger.sign_anchor(ChainHead(len(rows), last), 1)
    conn.execute(
        "UPDATE audit_anchor SET seq = ?, hash = ?, ts_ms = ?, key_id = ?, mac = ?", tuple(anchor)
    )
    conn.close()
    assert (await report_of(home, forger)).findings[0].kind is FindingKind.OTHER_KEY  # the file
    report = await report_of(home)
    assert report.total >= 20
    assert kinds(report) >= {FindingKind.EDITED, FindingKind.OTHER_KEY, FindingKind.REPLACED}


async def test_the_check_of_a_long_chain_needs_little_memory(home: StoreHome) -> None:
    await home.filled(30_000)
    store = await home.store(read_only=True)
    tracemalloc.start()
    try:
        report = await store.audit.verify(home.key, home.head_file)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert report.rows == 30_000
    assert peak < 16 * 1024 * 1024


async def test_the_loop_stays_free_while_a_chain_is_checked(home: StoreHome) -> None:
    await home.filled(10_000)
    store = await home.store(read_only=True)
    turns = 0
    checking = asyncio.gather(store.audit.verify(home.key))
    while not checking.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await checking)[0].ok
    assert turns > 10


async def test_a_clock_that_goes_backwards_keeps_the_order(
    home: StoreHome, clock: ManualClock
) -> None:
    store = await home.store()
    log = await home.log(store)
    await log.record(edited("first"))
    clock.set_wall(1000)
    await log.record(edited("second"))
    clock.set_wall(0)
    await log.record(enabled("third"))
    rows = [row async for row in store.audit.iter_rows()]
    assert [row.seq for row in rows] == [1, 2, 3]
    assert rows[0].ts_ms > rows[1].ts_ms > rows[2].ts_ms
    assert (await store.audit.verify(home.key, home.head_file)).ok
    newest = await store.audit.query(limit=1)
    assert newest.items[0].name == "plugin.enabled"


async def test_trust_and_projects_are_remembered(home: StoreHome, clock: ManualClock) -> None:
    store = await home.store()
    made = await store.projects.upsert("/srv/a", "a", "A")
    assert not made.trusted
    clock.advance(5)
    trusted = await store.projects.agree(made.id, {"things": ["a"]}, "ada")
    assert trusted is not None
    assert (trusted.trusted_at_ms, trusted.trusted_by) == (clock.now_ms(), "ada")
    again = await store.projects.upsert("/srv/a", "a2", "A2")
    assert (again.id, again.slug, again.trusted) == (made.id, "a2", True)
    assert again.agreed == {"things": ["a"]}
    assert await store.projects.get(made.id) == again
    revoked = await store.projects.withdraw(made.id)
    assert revoked is not None
    assert (revoked.trusted_at_ms, revoked.trusted_by, revoked.agreed) == (None, None, None)
    assert await store.projects.agree("prj_unknown", {}, "ada") is None
    assert await store.projects.get("prj_unknown") is None
    await store.projects.mark_unloaded(made.id)
    unloaded = await store.projects.get(made.id)
    assert unloaded is not None
    assert unloaded.loaded_at_ms is None
    assert await store.projects.remove(made.id)
    assert not await store.projects.remove(made.id)


async def test_a_log_goes_on_after_a_restart_without_a_word(home: StoreHome) -> None:
    for _ in range(3):
        store = await home.store()
        log = await home.log(store)
        await log.record(enabled("a"))
        assert log.health.chain_mismatch is None
        await home.close()
    report = await report_of(home)
    assert report.ok
    assert report.rows == 3
    assert report.anchors == ("file", "table")


async def test_two_logs_on_one_database_follow_each_other(home: StoreHome) -> None:
    store = await home.store()
    one, two = await home.log(store), await home.log(store)
    for number in range(5):
        await one.record(enabled(f"one {number}"))
        await two.record(enabled(f"two {number}"))
    report = await store.audit.verify(home.key)
    assert report.ok
    assert report.rows == 10


async def test_a_row_put_in_the_way_by_another_program_stops_changes_until_a_restart(
    home: StoreHome,
) -> None:
    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("a"))
    conn = home.raw()
    conn.execute(
        "INSERT INTO audit_events SELECT seq + 1, id, ts_ms, name, project_id, request_id, data, "
        "hash, hash FROM audit_events"
    )
    conn.close()
    with pytest.raises(AuditUnavailable, match="not written by this daemon"):
        await log.record(enabled("b"))
    assert not log.decide_mutation().allowed
    await home.close()
    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("c"))
    assert log.health.chain_mismatch is not None
    assert kinds(await store.audit.verify(home.key, home.head_file)) >= {
        FindingKind.EDITED,
        FindingKind.RECORDED,
    }


async def test_rows_removed_under_a_running_daemon_stop_changes(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)
    for name in ("a", "b", "c"):
        await log.record(enabled(name))
    conn = home.raw()
    conn.execute("DELETE FROM audit_events WHERE seq > 1")
    conn.close()
    with pytest.raises(AuditUnavailable):
        await log.record(enabled("d"))
    assert not log.decide_mutation().allowed
    await home.close()
    store = await home.store()
    log = await home.log(store)
    assert log.health.chain_mismatch is not None
    await log.record(enabled("e"))
