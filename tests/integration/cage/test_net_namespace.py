"""The helper process: what it opens, how it ends, and what it refuses."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from kaged.cage.net import NamespaceHelper, NamespaceUnavailable, NetEvent, NetGate, probe_network
from kaged.cage.net.namespace import SocketSpec, TrialCage
from kaged.kernel.net import parse_target

BWRAP = shutil.which("bwrap") or "bwrap is not installed, and these tests need it"
WAIT_S = 5


@pytest.fixture
async def helper() -> AsyncIterator[NamespaceHelper]:
    made = NamespaceHelper()
    yield made
    await made.close()


@pytest.fixture
async def gate(helper: NamespaceHelper) -> AsyncIterator[NetGate]:
    events = list[NetEvent]()
    made = NetGate(events.append, helper=helper)
    yield made
    await made.close()


def open_files() -> list[str]:
    found = list[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing's own descriptor
            found.append(str(link.readlink()))
    return found


async def no_more_than(count: int) -> None:
    """Wait for what the loop closes a turn later; what is left behind stays open."""
    async with asyncio.timeout(30):
        while len(open_files()) > count:  # noqa: ASYNC110 - nobody tells of a closed file
            await asyncio.sleep(0.01)


def net_of(pid: int) -> int:
    return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def gone(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(pidfd, ended.set)
    try:
        async with asyncio.timeout(WAIT_S):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)


async def test_every_part_of_the_gate_works_here(helper: NamespaceHelper) -> None:
    rows = await probe_network(helper)
    assert [(row.id, row.ok, row.fix) for row in rows] == [
        ("net.namespace", True, ""),
        ("net.route", True, ""),
        ("net.ipv6", True, ""),
        ("net.trap", True, ""),
    ]


async def test_without_the_sandbox_tool_the_probe_says_so_and_how_to_get_it() -> None:
    rows = await probe_network(bwrap="/nonexistent/bwrap")
    assert [row.ok for row in rows] == [False] * 4
    assert "bubblewrap" in rows[0].fix
    rows = await probe_network(bwrap="/bin/false")
    assert [row.ok for row in rows] == [False] * 4


async def test_a_helper_that_cannot_start_is_reported_and_nothing_opens() -> None:
    helper = NamespaceHelper("/nonexistent/python")
    async with TrialCage(BWRAP) as pid:
        fd = net_of(pid)
        with pytest.raises(NamespaceUnavailable) as caught:
            await helper.open(fd, [SocketSpec("tcp", "127.0.0.1", 1)])
        os.close(fd)
    assert caught.value.data["step"] == "start"
    broken = NamespaceHelper("/bin/false")
    rows = await probe_network(broken)
    assert not rows[0].ok
    await broken.close()


async def test_sockets_come_back_in_order_and_live_in_the_cage(helper: NamespaceHelper) -> None:
    specs = [SocketSpec("tcp", "127.0.0.1", 700 + number) for number in range(260)]
    async with TrialCage(BWRAP) as pid:
        fd = net_of(pid)
        opened = await helper.open(fd, specs)
        assert [sock.getsockname()[1] for sock in opened] == list(range(700, 960))
        # The same ports are free out here: the sockets are not of this namespace.
        (dialled,) = await helper.open(fd, [], dial=[("127.0.0.1", 700)])
        accepted, _ = opened[0].accept()
        assert accepted.getpeername() == dialled.getsockname()
        for sock in (*opened, dialled, accepted):
            sock.close()
        os.close(fd)


async def test_a_failed_step_is_named_and_nothing_stays_open(helper: NamespaceHelper) -> None:
    async with TrialCage(BWRAP) as pid:
        fd = net_of(pid)
        before = len(open_files())
        twice = [SocketSpec("tcp", "127.0.0.1", 700)] * 2
        with pytest.raises(NamespaceUnavailable) as caught:
            await helper.open(fd, twice)
        assert caught.value.data == {"step": "tcp 127.0.0.1 700", "errno": errno.EADDRINUSE}
        await no_more_than(before + 1)  # the helper's control socket, at its first use
        os.close(fd)


async def test_the_daemons_own_network_is_never_touched(
    helper: NamespaceHelper, gate: NetGate
) -> None:
    plan = gate.prepare((parse_target("*"),))
    with pytest.raises(NamespaceUnavailable, match="not in a network of its own"):
        await gate.attach(os.getpid(), plan, cage="x", cage_id="x")
    own = net_of(os.getpid())
    with pytest.raises(NamespaceUnavailable) as caught:
        await helper.open(own, [SocketSpec("tcp", "127.0.0.1", 1)], plan.netlink)
    os.close(own)
    assert caught.value.data["step"] == "namespace"


async def test_a_cage_that_is_gone_or_somebody_elses_is_refused(gate: NetGate) -> None:
    plan = gate.prepare((parse_target("api.test:443"),))
    async with TrialCage(BWRAP) as pid:
        with pytest.raises(NamespaceUnavailable, match="not the cage that was started"):
            await gate.attach(pid, plan, cage="x", cage_id="x", parent_pid=1)
    with suppress(ProcessLookupError):
        await gone(pid)
    with pytest.raises(NamespaceUnavailable, match="has ended"):
        await gate.attach(pid, plan, cage="x", cage_id="x")


async def test_a_namespace_outlives_its_cage_only_as_long_as_the_session(gate: NetGate) -> None:
    plan = gate.prepare((parse_target("api.test:443"),))
    async with TrialCage(BWRAP) as pid:
        session = await gate.attach(pid, plan, cage="x", cage_id="x")
    # The cage is dead; closing, also twice, is still clean.
    await session.close()
    await session.close()
    with pytest.raises(RuntimeError):
        await session.add_listener(700, lambda _reader, _writer: asyncio.sleep(0))
    assert not [name for name in open_files() if "net:[" in name]


async def test_a_helper_that_died_is_started_again(helper: NamespaceHelper) -> None:
    async with TrialCage(BWRAP) as pid:
        fd = net_of(pid)
        for port in (700, 701):
            (sock,) = await helper.open(fd, [SocketSpec("tcp", "127.0.0.1", port)])
            sock.close()
            assert helper.pid is not None
            first = helper.pid
            os.killpg(first, signal.SIGKILL)
            await gone(first)
        (sock,) = await helper.open(fd, [SocketSpec("tcp", "127.0.0.1", 702)])
        sock.close()
        assert helper.pid != first
        os.close(fd)


async def test_the_helper_and_its_forks_end_with_the_daemon() -> None:
    code = """
import asyncio, sys
from pathlib import Path
from kaged.cage.net import NamespaceHelper, probe_network
async def main():
    helper = NamespaceHelper()
    await probe_network(helper)
    pid = helper.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    print(pid, *children, flush=True)
    sys.stdin.read()
asyncio.run(main())
"""
    daemon = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    pids = [int(word) for word in daemon.stdout.readline().split()]
    assert len(pids) >= 2
    watched = [pid for pid in pids if alive(pid)]
    daemon.kill()
    for pid in watched:
        if alive(pid):
            await gone(pid)
    daemon.communicate()
    assert not [pid for pid in pids if alive(pid)]


async def test_many_cages_are_attached_at_once(gate: NetGate) -> None:
    plan = gate.prepare((parse_target("api.test:443"), parse_target("localhost:5432")))
    before = len(open_files())

    async def one(number: int) -> None:
        async with TrialCage(BWRAP) as pid:
            session = await gate.attach(pid, plan, cage=f"c{number}", cage_id="x")
            await session.close()

    await asyncio.gather(*(one(number) for number in range(60)))
    await no_more_than(before + 1)
