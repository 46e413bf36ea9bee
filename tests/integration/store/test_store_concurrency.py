"""Many writers, many readers, other processes: nobody ever meets a locked database."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select, text

from fakes.store_home import StoreHome, edited, enabled
from kaged.audit import AuditFilter
from kaged.store import StoreConflict, StoreError, StoreUnavailable
from kaged.store.schema import projects
from raising import raises_code

EACH = 8
"""Writes of one of twenty writers, of which some are waited for on disk."""
CHILD = Path(__file__).parent / "children" / "look.py"


def add_project(root: str) -> Callable[[Connection], str]:
    def work(conn: Connection) -> str:
        conn.execute(
            insert(projects).values(
                id=root, root=root, slug="s", name="n", trusted=False, created_at_ms=1
            )
        )
        return root

    return work


class Hold:
    """A unit that keeps the writer busy until the test lets go, so that others gather behind it."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()

    def __call__(self, _: Connection) -> None:
        self.entered.set()
        assert self.gate.wait(20)


async def test_twenty_writers_readers_and_a_second_process_never_meet_a_lock(
    home: StoreHome,
) -> None:
    store = await home.store()
    log = await home.log(store)
    done = asyncio.Event()

    async def write(worker: int) -> None:
        for number in range(EACH):
            await store.projects.upsert(f"/srv/{worker}/{number}", f"s{number}", "n")
            await log.record(edited(f"{worker}/{number}"), durable=number % 5 == 0)

    async def read() -> int:
        rounds = 0
        while not done.is_set():
            page = await store.audit.query(AuditFilter(names=("file.*",)), limit=20)
            listed = await store.projects.list()
            assert [row.seq for row in page.items] == sorted(
                (row.seq for row in page.items), reverse=True
            )
            assert len({project.root for project in listed}) == len(listed)
            rounds += 1
        return rounds

    child = await asyncio.to_thread(_start_look, home)
    try:
        async with asyncio.TaskGroup() as group:
            readers = [group.create_task(read()) for _ in range(5)]
            async with asyncio.TaskGroup() as writers:
                for worker in range(20):
                    writers.create_task(write(worker))
            done.set()
        await log.flush()
        out, _ = await asyncio.to_thread(child.communicate, b"stop\n", 60)
    finally:
        child.kill()
    assert child.returncode == 0, out.decode()
    rounds, found = (int(word) for word in out.split()[-2:])
    assert rounds > 0
    assert found == 0, out.decode()
    assert all(reader.result() > 0 for reader in readers)
    assert len(await store.projects.list()) == 20 * EACH
    report = await store.audit.verify(home.key, home.head_file)
    assert report.ok
    assert report.rows == 20 * EACH


def _start_look(home: StoreHome) -> subprocess.Popen[bytes]:
    """Start a process that verifies the chain again and again until it is told to stop."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line == b"ready\n", line + child.stdout.read()
    return child


async def test_another_programs_write_lock_is_waited_for(home: StoreHome) -> None:
    store = await home.store()
    other = sqlite3.connect(home.database, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.gather(store.projects.upsert("/srv/a", "a", "A"))
    assert await store.projects.list() == ()  # reading goes on meanwhile
    assert not writing.done()
    other.execute("COMMIT")
    other.close()
    await writing
    assert len(await store.projects.list()) == 1


async def test_a_lock_that_is_never_released_is_no_locked_error(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.store.backends.sqlite.BUSY_TIMEOUT_MS", 10)
    store = await home.store()
    other = sqlite3.connect(home.database, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="another program holds it") as caught:
        await store.projects.upsert("/srv/a", "a", "A")
    assert "close other programs" in str(caught.value.fix)
    other.execute("ROLLBACK")
    other.close()
    await store.projects.upsert("/srv/a", "a", "A")
    assert store.status.last_error is None


async def test_a_unit_that_fails_is_undone_alone(home: StoreHome) -> None:
    store = await home.store()
    hold = Hold()

    def half(conn: Connection) -> None:
        add_project("/half")(conn)
        raise LookupError("changed my mind")

    holding = asyncio.gather(store.write(hold))
    await asyncio.to_thread(hold.entered.wait, 20)
    units = [
        store.write(add_project("/one")),
        store.write(half),
        store.write(add_project("/one")),
        store.write(add_project("/two")),
        store.write(lambda conn: conn.execute(text("SELECT nonsense"))),
    ]
    together = asyncio.gather(*units, return_exceptions=True)
    await asyncio.sleep(0)
    hold.gate.set()
    await holding
    one, mind, conflict, two, nonsense = await together
    assert (one, two) == ("/one", "/two")
    assert isinstance(mind, LookupError)
    assert isinstance(conflict, StoreConflict)
    assert type(nonsense) is StoreError
    assert {project.root for project in await store.projects.list()} == {"/one", "/two"}
    assert store.status.last_error is None


async def test_what_was_to_be_stored_is_in_no_error_and_in_no_error_behind_it(
    home: StoreHome,
) -> None:
    """Errors are logged with their causes, and values may be what a reader must not see."""
    store = await home.store()
    wrong = text("SELECT nonsense WHERE :value")
    for ask in (store.read, store.write):
        with pytest.raises(StoreError) as refused:
            await ask(lambda conn: conn.execute(wrong, {"value": "canary-4711"}))
        behind: BaseException | None = refused.value
        while behind is not None:
            assert "canary-4711" not in str(behind)
            behind = behind.__cause__


async def test_units_that_wait_together_share_one_commit(home: StoreHome) -> None:
    store = await home.store()
    hold = Hold()

    def before(conn: Connection) -> object:
        return conn.execute(text("SELECT count(*) FROM projects")).scalar()

    holding = asyncio.gather(store.write(hold))
    await asyncio.to_thread(hold.entered.wait, 20)
    first = asyncio.gather(store.write(add_project("/one")), store.write(before))
    await asyncio.sleep(0)
    assert await store.read(before) == 0
    hold.gate.set()
    await holding
    assert await first == ["/one", 1]
    assert await store.read(before) == 1


async def test_a_unit_cancelled_before_it_began_does_not_run(home: StoreHome) -> None:
    store = await home.store()
    hold = Hold()

    async with asyncio.TaskGroup() as group:
        group.create_task(store.write(hold))
        await asyncio.to_thread(hold.entered.wait, 20)
        unwanted = group.create_task(store.write(add_project("/unwanted")))
        await asyncio.sleep(0)
        unwanted.cancel()
        await asyncio.sleep(0)
        hold.gate.set()
    assert await store.projects.list() == ()


async def test_a_reader_cannot_write(home: StoreHome) -> None:
    store = await home.store()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.read(add_project("/sneaky"))
    assert await store.projects.list() == ()


async def test_a_read_sees_one_state_throughout(home: StoreHome) -> None:
    store = await home.store()
    entered, go = threading.Event(), threading.Event()

    def count_twice(conn: Connection) -> list[int]:
        first = len(conn.execute(select(projects.c.id)).all())
        entered.set()
        assert go.wait(20)
        return [first, len(conn.execute(select(projects.c.id)).all())]

    reading = asyncio.gather(store.read(count_twice))
    await asyncio.to_thread(entered.wait, 20)
    await store.projects.upsert("/srv/a", "a", "A")
    go.set()
    assert await reading == [[0, 0]]


ENDLESS = text(
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
)


async def test_a_query_that_takes_too_long_is_stopped_and_frees_its_reader(
    home: StoreHome,
) -> None:
    store = await home.store()
    for _ in range(6):  # more than there are readers
        with raises_code("store_timeout", StoreError):
            await store.read(lambda conn: conn.execute(ENDLESS).scalar(), timeout_s=0.02)
    assert await store.projects.list() == ()


async def test_a_cancelled_query_is_stopped(home: StoreHome) -> None:
    store = await home.store()
    entered = threading.Event()

    def endless(conn: Connection) -> None:
        entered.set()
        conn.execute(ENDLESS)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(store.read(endless)) for _ in range(6)]
        await asyncio.to_thread(entered.wait, 20)
        for task in tasks:
            task.cancel()
    assert await store.projects.list() == ()


async def test_closing_stops_queries_and_finishes_writes(home: StoreHome) -> None:
    store = await home.store()
    entered = threading.Event()

    def endless(conn: Connection) -> None:
        entered.set()
        conn.execute(ENDLESS)

    reading = asyncio.gather(store.read(endless), return_exceptions=True)
    await asyncio.to_thread(entered.wait, 20)
    writing = asyncio.gather(*(store.write(add_project(f"/{number}")) for number in range(50)))
    await asyncio.sleep(0)
    await store.close()
    assert isinstance((await reading)[0], StoreError)
    assert len(await writing) == 50
    again = await home.store()
    assert len(await again.projects.list()) == 50


async def test_a_log_survives_the_stores_neighbours_failing_units(home: StoreHome) -> None:
    store = await home.store()
    log = await home.log(store)

    def fail(conn: Connection) -> None:
        conn.execute(text("SELECT nonsense"))

    async def neighbour() -> None:
        for _ in range(20):
            with pytest.raises(StoreError):
                await store.write(fail)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(neighbour())
        for number in range(50):
            await log.record(enabled(f"{number}"))
    assert (await store.audit.verify(home.key, home.head_file)).rows == 50
    assert log.health.ok


async def test_a_unit_that_loses_the_transaction_does_not_take_the_others_with_it(
    home: StoreHome,
) -> None:
    store = await home.store()
    hold = Hold()

    def lose(conn: Connection) -> None:
        add_project("/lost")(conn)
        conn.exec_driver_sql("ROLLBACK")  # as SQLite itself does after some errors
        raise RuntimeError("gone")

    holding = asyncio.gather(store.write(hold))
    await asyncio.to_thread(hold.entered.wait, 20)
    together = asyncio.gather(
        store.write(add_project("/one")),
        store.write(lose),
        store.write(add_project("/two")),
        return_exceptions=True,
    )
    await asyncio.sleep(0)
    hold.gate.set()
    await holding
    one, lost, two = await together
    assert (one, two) == ("/one", "/two")
    assert isinstance(lost, RuntimeError)
    assert {project.root for project in await store.projects.list()} == {"/one", "/two"}


async def test_a_write_that_takes_too_long_for_a_thread_is_reported_and_dropped(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await home.store()
    hold = Hold()
    holding = asyncio.gather(store.write(hold))
    await asyncio.to_thread(hold.entered.wait, 20)
    monkeypatch.setattr("kaged.store.database.WRITE_TIMEOUT_S", 0.01)
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await asyncio.to_thread(store.write_blocking, add_project("/late"))
    hold.gate.set()
    await holding
    assert await store.projects.list() == ()


async def test_too_many_waiting_reads_are_refused(
    home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await home.store()
    monkeypatch.setattr("kaged.store.readers.WAITING_LIMIT", 3)
    gate, entered = threading.Event(), threading.Event()

    def hold(_: Connection) -> None:
        entered.set()
        assert gate.wait(20)

    holding = asyncio.gather(*(store.read(hold) for _ in range(3)))
    await asyncio.to_thread(entered.wait, 20)
    with pytest.raises(StoreUnavailable, match="wait already"):
        await store.projects.list()
    gate.set()
    await holding
    assert await store.projects.list() == ()
