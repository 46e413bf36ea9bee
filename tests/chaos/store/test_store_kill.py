"""The process dies in the middle of it: what was acknowledged is there, and the chain is whole."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.forked_children import ForkedChildren
from fakes.store_home import StoreHome, enabled
from kaged.base import Ids, ManualClock
from thorough import THOROUGH, counted

CHILDREN = Path(__file__).parent / "children"
ROUNDS = counted(4, 50, 500)
ROUNDS_OF_A_HOME = 25
MIGRATIONS = counted(1, 20, 500)
ACKNOWLEDGED = 60
LAST_ROW = 64
PATIENCE_S = 4 * 3600 if THOROUGH else 300


def run_and_kill(children: ForkedChildren, home: StoreHome, round_: int) -> set[str]:
    """Let a child record as fast as it can, kill it after some events; return the acknowledged."""
    children.start(str(home.root), str(round_))
    seen: list[str] = []
    for line in children.lines():
        seen.append(line)
        if len(seen) == ACKNOWLEDGED + round_ % 8 * 17:
            children.kill()
    # What the child had written to the pipe before it died was acknowledged too.
    assert children.returncode == -signal.SIGKILL
    return {line.strip() for line in seen if line.endswith("\n")}


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.thorough
async def test_every_acknowledged_event_survives_kill_nine_and_the_chain_verifies(
    tmp_path: Path, clock: ManualClock, ids: Ids
) -> None:
    total = 0
    with ForkedChildren(CHILDREN / "record.py") as children:
        # Each home sees some deaths: its chain is read twice after each of them.
        for first in range(0, ROUNDS, ROUNDS_OF_A_HOME):
            root = tmp_path / f"home{first}"
            root.mkdir()
            home = StoreHome(root, clock, ids)
            rounds = range(first, min(ROUNDS, first + ROUNDS_OF_A_HOME))
            total += await killed_again_and_again(children, home, rounds)
            shutil.rmtree(root)
    assert total >= ROUNDS * ACKNOWLEDGED


async def killed_again_and_again(children: ForkedChildren, home: StoreHome, rounds: range) -> int:
    """Kill the daemon's store once a round and require what it had said; return how much."""
    acknowledged: set[str] = set()
    for round_ in rounds:
        acknowledged |= await asyncio.to_thread(run_and_kill, children, home, round_)
        # First as a stranger who only looks, beside the files the dead process left behind.
        look = await home.store(read_only=True)
        report = await look.audit.verify(home.key, home.head_file)
        assert report.ok, report.findings
        await home.close()
        # Then as the next daemon.
        store = await home.store()
        log = await home.log(store)
        assert log.health.chain_mismatch is None
        await log.record(enabled(f"after {round_}"))
        kept = {
            str(row.data["name"])
            async for row in store.audit.iter_rows()
            if row.name == "plugin.enabled"
        }
        assert acknowledged <= kept
        assert (await store.audit.verify(home.key, home.head_file)).ok
        await home.close()
    return len(acknowledged)


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.thorough
async def test_a_migration_killed_half_way_leaves_the_database_as_it_was(home: StoreHome) -> None:
    await home.filled(20)
    await home.close()
    with ForkedChildren(CHILDREN / "die_migrating.py") as children:
        for number in range(MIGRATIONS):
            rows = LAST_ROW - number % LAST_ROW  # the first dies with most of it done
            children.start(str(home.root), str(rows))
            assert await asyncio.to_thread(children.wait) == -signal.SIGKILL
            store = await home.store()  # the version before: its schema is untouched
            assert store.migrated is None
            assert (await store.audit.verify(home.key, home.head_file)).rows == 20
            assert 1 <= len(list(home.backups.iterdir())) <= number + 1
            await home.close()


async def test_a_first_start_killed_half_way_is_simply_done_again(home: StoreHome) -> None:
    child = subprocess.run(
        [sys.executable, str(CHILDREN / "die_creating.py"), str(home.root)],
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL
    assert not home.database.exists()
    store = await home.store()
    log = await home.log(store)
    await log.record(enabled("first"))
    assert (await store.audit.verify(home.key, home.head_file)).rows == 1
