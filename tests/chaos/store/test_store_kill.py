"""The process dies in the middle of it: what was acknowledged is there, and the chain is whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from fakes.store_home import StoreHome, enabled

CHILDREN = Path(__file__).parent / "children"
ROUNDS = 4
ACKNOWLEDGED = 60


def run_and_kill(home: StoreHome, round_: int) -> set[str]:
    """Let a child record as fast as it can, kill it after some events; return the acknowledged."""
    child = subprocess.Popen(
        [sys.executable, str(CHILDREN / "record.py"), str(home.root), str(round_)],
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    lines: list[bytes] = []
    with child:
        try:
            for line in child.stdout:
                lines.append(line)
                if len(lines) == ACKNOWLEDGED + round_ * 17:
                    break
        finally:
            child.kill()
        # What the child had written to the pipe before it died was acknowledged too.
        lines.extend(child.stdout.read().splitlines(keepends=True))
    assert child.returncode == -signal.SIGKILL
    return {line.decode().strip() for line in lines if line.endswith(b"\n")}


async def test_every_acknowledged_event_survives_kill_nine_and_the_chain_verifies(
    home: StoreHome,
) -> None:
    acknowledged: set[str] = set()
    for round_ in range(ROUNDS):
        acknowledged |= run_and_kill(home, round_)
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
    assert len(acknowledged) >= ROUNDS * ACKNOWLEDGED


async def test_a_migration_killed_half_way_leaves_the_database_as_it_was(home: StoreHome) -> None:
    await home.filled(20)
    child = subprocess.run(
        [sys.executable, str(CHILDREN / "die_migrating.py"), str(home.root)],
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL
    store = await home.store()  # the version before: its schema is untouched
    assert store.migrated is None
    assert (await store.audit.verify(home.key, home.head_file)).rows == 20
    assert len(list(home.backups.iterdir())) == 1


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
