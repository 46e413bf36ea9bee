"""Hosts that lack something: nothing starts, the reason names doctor's row, nothing is left."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from integration.cage.conftest import Events
from kaged.cage import (
    CageRequest,
    CageSettings,
    CageStartFailed,
    CageUnavailable,
    Spawner,
    WrongThread,
)
from kaged.cage import seccomp as seccomp_module
from kaged.cage.collect import collect
from kaged.cage.facts import gather_facts
from kaged.cage.limits import LimitedResource, LimitGroup, LimitStat
from kaged.cage.probe import probe_host
from kaged.cage.proberow import Status
from kaged.cage.setup_helper import SetupDone, SetupHelper, SetupTask
from kaged.cage.startgate import StartGate
from kaged.kernel.net import NetTarget
from kaged.kernel.policy import CageLimits, CagePolicy

REQUEST = CageRequest("test", CagePolicy(), ("sh", "-c", "echo ran > /tmp/x; echo ran"))


def program(place: Path, name: str, text: str) -> str:
    path = place / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def our_children() -> set[int]:
    return {
        int(word)
        for task in Path("/proc/self/task").iterdir()
        for word in (task / "children").read_text(encoding="ascii").split()
    }


def our_descriptors() -> set[str]:
    return {one.name for one in Path("/proc/self/fd").iterdir()}


async def refusal(spawner: Spawner, events: Events, row: str | None) -> str:
    """Spawn, expect the refusal with this row, and no process at all."""
    before = our_children()
    with pytest.raises((CageUnavailable, CageStartFailed)) as caught:
        await spawner.spawn(REQUEST)
    if row is not None:
        assert isinstance(caught.value, CageUnavailable)
        assert caught.value.row == row
    assert our_children() - before <= {spawner.setup_helper.pid}
    assert spawner.running == frozenset()
    assert events.names() == ["cage.refused"]
    assert events.last("cage.refused")["what"] == "test"
    await spawner.close()
    return str(caught.value)


async def test_without_bubblewrap_nothing_starts(
    cage_cache: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = replace(gather_facts(cage_cache), bwrap=None)
    spawner = Spawner(CageSettings(cache_dir=cage_cache), on_event=events, facts=facts)
    assert "apt" in await refusal(spawner, events, "cage.bwrap")


async def test_an_old_bubblewrap_is_not_used(cage_cache: Path, events: Events, place: Path) -> None:
    old = program(place, "bwrap", 'echo "bubblewrap 0.4.1"')
    spawner = Spawner(CageSettings(cache_dir=cage_cache, bwrap=old), on_event=events)
    assert "too old" in await refusal(spawner, events, "cage.bwrap")


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("bwrap: No permissions to create new namespace, likely because ...", "cage.namespaces"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "cage.loopback"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "cage.mounts"),
        ("bwrap: something new went wrong", None),
    ],
)
async def test_what_bubblewrap_says_names_the_row(
    cage_cache: Path, events: Events, place: Path, said: str, row: str | None
) -> None:
    facts = gather_facts(cage_cache)
    failing = program(place, "bwrap", f'echo "{said}" >&2; exit 1')
    spawner = Spawner(
        CageSettings(cache_dir=cage_cache),
        on_event=events,
        facts=replace(facts, bwrap=failing),
    )
    text = await refusal(spawner, events, row)
    assert said.split(": ", 1)[1][:20] in text


async def test_a_bubblewrap_that_vanishes_is_noticed(
    cage_cache: Path, events: Events, place: Path
) -> None:
    facts = replace(gather_facts(cage_cache), bwrap=str(place / "gone"), setpriv=None, uid=1, gid=1)
    settings = CageSettings(cache_dir=cage_cache, allow_cgroups=False)
    spawner = Spawner(settings, on_event=events, facts=facts)
    await refusal(spawner, events, "cage.bwrap")


async def test_a_bubblewrap_that_vanishes_is_named_whatever_starts_it(
    cage_cache: Path, events: Events, place: Path
) -> None:
    facts = replace(gather_facts(cage_cache), bwrap=str(place / "gone"))
    spawner = Spawner(CageSettings(cache_dir=cage_cache), on_event=events, facts=facts)
    said = await refusal(spawner, events, None)
    assert "no longer installed" in said or f"{place}/gone" in said  # root drops its rights first


async def test_without_a_filter_nothing_starts(
    spawner: Spawner, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    seccomp_module.seccomp_program.cache_clear()
    monkeypatch.setitem(sys.modules, "pyseccomp", None)  # as if it could not be imported
    try:
        await refusal(spawner, events, "cage.seccomp")
    finally:
        seccomp_module.seccomp_program.cache_clear()


class BrokenGroup:
    """A cgroup that takes no process."""

    destroyed = False

    join_files = ("/proc/self/no-such-file",)
    enter_words: tuple[str, ...] = ()
    enter_files: tuple[str, ...] = ()

    def settle(self) -> None: ...

    def stat(self) -> LimitStat:
        return LimitStat()

    def destroy(self) -> bool:
        self.destroyed = True
        return True


class BrokenBackend:
    """A cgroup tree that fails when a cage is made or joined."""

    name = "broken"
    enforces = frozenset(LimitedResource)

    def __init__(self, *, create: bool) -> None:
        self._create = create
        self.group = BrokenGroup()

    def create(self, key: str, limits: CageLimits) -> LimitGroup:
        if self._create:
            raise OSError(28, "No space left on device")
        return self.group

    def sweep(self) -> int:
        return 0

    def close(self) -> None: ...


@pytest.mark.parametrize("create", [True, False])
async def test_without_its_limits_nothing_starts(
    cage_cache: Path, events: Events, create: bool
) -> None:
    backend = BrokenBackend(create=create)
    spawner = Spawner(CageSettings(cache_dir=cage_cache), on_event=events, backend=backend)
    await refusal(spawner, events, "cage.limits")
    assert backend.group.destroyed is not create


async def test_a_steward_that_fails_starts_nothing(cage_cache: Path, events: Events) -> None:
    class Failing(SetupHelper):
        async def run(self, setup_task: SetupTask) -> SetupDone:
            raise CageStartFailed("limits could not be set: no")

    spawner = Spawner(CageSettings(cache_dir=cage_cache), on_event=events, setup_helper=Failing())
    await refusal(spawner, events, None)


async def test_a_bwrap_that_dies_during_setup_is_not_a_problem_of_limits() -> None:
    helper = SetupHelper()
    child = await asyncio.create_subprocess_exec("/bin/true")  # noqa: TID251 - no cage wanted
    await child.wait()
    try:
        for groups in ((), ("/proc/self/comm",)):
            task = SetupTask(1, child.pid, os.getuid(), os.getgid(), groups, (), ())
            with pytest.raises(CageStartFailed, match="bwrap ended before"):
                await helper.run(task)
    finally:
        helper.close()


async def test_a_steward_that_cannot_be_started_starts_nothing(
    cage_cache: Path, events: Events
) -> None:
    spawner = Spawner(
        CageSettings(cache_dir=cage_cache),
        on_event=events,
        setup_helper=SetupHelper("/no/such/python"),
    )
    assert "setup helper" in await refusal(spawner, events, None)


async def test_a_steward_that_dies_is_started_again(spawner: Spawner) -> None:
    await collect(await spawner.spawn(REQUEST))
    first = spawner.setup_helper.pid
    assert first is not None
    os.kill(first, 9)
    for _ in range(3):  # one spawn may meet the dying one; it is refused, never unlimited
        try:
            done = await collect(await spawner.spawn(REQUEST))
        except CageStartFailed:
            continue
        assert done.stdout == b"ran\n"
        break
    assert spawner.setup_helper.pid not in {None, first}


async def test_an_error_that_is_nobodys_fault_still_leaves_nothing(
    spawner: Spawner, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    await collect(await spawner.spawn(REQUEST))  # the setup helper runs from now on
    before = our_children()
    monkeypatch.setattr(StartGate, "release", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        await spawner.spawn(REQUEST)
    assert our_children() == before


async def test_cancelling_a_start_leaves_nothing(spawner: Spawner) -> None:
    await collect(await spawner.spawn(REQUEST))
    spawner.launchers.close()  # what it keeps in stock is no leftover
    before, fds = our_children(), our_descriptors()
    for turns in range(1, 40):
        task = asyncio.ensure_future(spawner.spawn(REQUEST))  # noqa: TID251 - to be cancelled here
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            process = await task
        except asyncio.CancelledError:
            continue
        await collect(process)
    spawner.launchers.close()
    assert our_children() == before
    assert our_descriptors() == fds


async def test_network_without_a_gate_is_refused(spawner: Spawner, events: Events) -> None:
    policy = CagePolicy(net=(NetTarget("api.test", 443),))
    with pytest.raises(CageUnavailable) as caught:
        await spawner.spawn(CageRequest("test", policy, ("true",)))
    assert caught.value.row == "cage.net"
    assert events.names() == ["cage.refused"]


async def test_a_gate_that_fails_starts_nothing(cage_cache: Path, events: Events) -> None:
    class Plan:
        environment: tuple[tuple[str, str], ...] = ()
        files: tuple[tuple[str, str], ...] = ()

    class Gate:
        def prepare(self, targets: tuple[NetTarget, ...], asks: bool = False) -> Plan:
            return Plan()

        async def attach(self, child_pid: int, plan: Plan, **_: object) -> Any:
            assert Path(f"/proc/{child_pid}").exists()
            raise CageStartFailed("no namespace")

    spawner = Spawner(CageSettings(cache_dir=cage_cache), on_event=events, gate=Gate())
    before = our_children()
    policy = CagePolicy(net=(NetTarget("api.test", 443),))
    with pytest.raises(CageStartFailed, match="no namespace"):
        await spawner.spawn(CageRequest("test", policy, ("true",)))
    assert our_children() - before <= {spawner.setup_helper.pid}
    await spawner.close()


async def test_a_spawn_from_another_thread_is_refused(spawner: Spawner) -> None:
    def elsewhere() -> None:
        asyncio.run(spawner.spawn(REQUEST))

    with pytest.raises(WrongThread):
        await asyncio.to_thread(elsewhere)


async def test_doctor_finds_this_machine_fit(cage_cache: Path) -> None:
    rows = await probe_host(CageSettings(cache_dir=cage_cache))
    found = {row.id: row for row in rows}
    assert [row for row in rows if row.status is Status.FAIL] == []
    assert all(row.protects and row.detail for row in rows)
    assert all(row.fix for row in rows if row.status is Status.WARN)
    for name in ("cage.selftest", "cage.seccomp", "cage.namespaces", "cage.runtime.python3"):
        assert found[name].status is Status.OK, found[name]
    assert "refused" in found["cage.selftest"].detail


async def test_doctor_names_what_is_missing_and_the_command_that_helps(
    cage_cache: Path, place: Path
) -> None:
    old = program(place, "bwrap", 'echo "bubblewrap 0.4.1"')
    rows = await probe_host(CageSettings(cache_dir=cage_cache, bwrap=old))
    bad = [row for row in rows if row.status is Status.FAIL]
    assert [row.id for row in bad] == ["cage.bwrap"]
    assert "bubblewrap" in bad[0].fix
    assert not any(row.id == "cage.selftest" for row in rows)


async def test_doctor_says_when_a_trial_cage_does_not_start(cage_cache: Path, place: Path) -> None:
    real = gather_facts(cage_cache).bwrap
    text = (
        'case "$*" in --version|--help) exec ' + str(real) + ' "$@";; esac\n'
        'echo "bwrap: No permissions to create new namespace" >&2; exit 1'
    )
    rows = await probe_host(CageSettings(cache_dir=cage_cache, bwrap=program(place, "bwrap", text)))
    bad = [row for row in rows if row.status is Status.FAIL]
    assert [row.id for row in bad] == ["cage.namespaces"]
    assert bad[0].fix


async def test_doctor_says_when_its_cache_cannot_be_written(place: Path) -> None:
    (place / "file").touch()
    rows = await probe_host(CageSettings(cache_dir=place / "file/cache"))
    assert [(row.id, row.status) for row in rows] == [("cage.shelf", Status.FAIL)]


async def test_doctor_warns_of_a_set_uid_bubblewrap(cage_cache: Path, place: Path) -> None:
    real = gather_facts(cage_cache).bwrap
    assert real is not None
    copy = place / "bwrap"
    copy.write_bytes(Path(real).read_bytes())
    copy.chmod(0o755 | stat.S_ISUID)
    rows = await probe_host(CageSettings(cache_dir=cage_cache, bwrap=str(copy)))
    found = {row.id: row for row in rows}
    assert found["cage.bwrap"].status is Status.WARN
    assert "chmod u-s" in found["cage.bwrap"].fix
