"""Hostile cages beside a healthy one: it keeps answering, and the daemon keeps serving it."""

from __future__ import annotations

import asyncio
import os

import pytest

from kaged.cage import CageProcess, CageRequest, Spawner
from kaged.cage.limits import LimitedResource
from kaged.kernel.policy import CageLimits, CagePolicy

ANSWER_WITHIN_S = 5.0  # a bound on each wait, not a measurement
QUESTIONS = 20
PYTHON = "/usr/bin/python3"

HOSTILE = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n",
    "memory hog": "x = []\nwhile True: x.append(bytearray(1 << 20))\n",
    "disk filler": (
        "import itertools\n"
        "for n in itertools.count():\n"
        "    for d in ('/tmp', '/dev/shm', '/run'):\n"
        "        try: open(f'{d}/{n}', 'wb').write(b'x' * (1 << 20))\n"
        "        except OSError: pass\n"
    ),
    "log flooder": "import os\nwhile True: os.write(2, b'x' * 65536)\n",
    "descriptor hoarder": (
        "import os, time\n"
        "held = []\n"
        "while True:\n"
        "    try: held.append(os.pipe())\n"
        "    except OSError: time.sleep(0.01)\n"
    ),
    "busy loop in every thread": (
        "import os\n"
        "for _ in range(8):\n"
        "    if os.fork() == 0:\n"
        "        while True: pass\n"
        "while True: pass\n"
    ),
    "inode hoarder": (
        "import itertools\n"
        "for n in itertools.count():\n"
        "    try: open(f'/tmp/{n}', 'w').close()\n"
        "    except OSError: pass\n"
    ),
}


class Answers(asyncio.Protocol):
    """Lines of a healthy program."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        for line in data.splitlines():
            self.lines.put_nowait(line)


class Drain(asyncio.Protocol):
    """Reads a flood away."""


async def drained(process: CageProcess) -> list[asyncio.BaseTransport]:
    return [
        (await process.connect_stdout(Drain))[0],
        (await process.connect_stderr(Drain))[0],
    ]


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_healthy_cage_keeps_answering_beside_a(spawner: Spawner, kind: str) -> None:
    limits = CageLimits(memory_mb=64, pids=30, tmpfs_mb=16, cpu_shares=64, open_files=256)
    healthy = await spawner.spawn(CageRequest("healthy", CagePolicy(), ("cat",)))
    reader, answers = await healthy.connect_stdout(Answers)
    writer, _ = await healthy.connect_stdin(asyncio.BaseProtocol)
    hostile = await spawner.spawn(
        CageRequest("hostile", CagePolicy(limits=limits), (PYTHON, "-c", HOSTILE[kind]))
    )
    transports = await drained(hostile)
    try:
        for number in range(QUESTIONS):
            writer.write(f"{number}\n".encode())
            async with asyncio.timeout(ANSWER_WITHIN_S):
                assert await answers.lines.get() == str(number).encode()
        # Another cage can be started meanwhile, and the hostile one can be ended.
        async with asyncio.timeout(60):
            async with await spawner.spawn(CageRequest("new", CagePolicy(), ("true",))) as third:
                assert (await third.wait()).clean
            hostile.kill()
            report = await hostile.wait()
        if kind == "memory hog" and LimitedResource.MEMORY in spawner.backend.enforces:
            assert "memory limit 64 MiB" in report.detail or report.cause == "stopped"
        assert healthy.running
    finally:
        for transport in (*transports, reader, writer):
            transport.close()
        healthy.close()
        hostile.close()


async def test_all_of_them_at_once(spawner: Spawner) -> None:
    limits = CageLimits(memory_mb=64, pids=15, tmpfs_mb=16, cpu_shares=64, open_files=256)
    healthy = await spawner.spawn(CageRequest("healthy", CagePolicy(), ("cat",)))
    reader, answers = await healthy.connect_stdout(Answers)
    writer, _ = await healthy.connect_stdin(asyncio.BaseProtocol)
    crowd: list[CageProcess] = []
    transports: list[asyncio.BaseTransport] = [reader, writer]
    for kind, program in HOSTILE.items():
        request = CageRequest(kind, CagePolicy(limits=limits), (PYTHON, "-c", program))
        crowd.append(await spawner.spawn(request))
        transports += await drained(crowd[-1])
    for number in range(QUESTIONS):
        writer.write(f"{number}\n".encode())
        async with asyncio.timeout(ANSWER_WITHIN_S * 4):
            assert await answers.lines.get() == str(number).encode()
    for one in crowd:
        one.close()
    async with asyncio.timeout(60):
        await asyncio.gather(*(one.wait() for one in crowd))
    for transport in transports:
        transport.close()
    healthy.close()
    await healthy.wait()


async def test_one_cage_cannot_use_the_scratch_of_another(spawner: Spawner) -> None:
    first = await spawner.spawn(
        CageRequest("a", CagePolicy(), ("sh", "-c", "echo x > /tmp/left-by-a; echo up; read x"))
    )
    assert first.stdout_fd is not None
    assert await asyncio.to_thread(os.read, first.stdout_fd, 10) == b"up\n"
    second = await spawner.spawn(
        CageRequest("b", CagePolicy(), ("sh", "-c", "ls -A /tmp /run /dev/shm; ls /proc"))
    )
    from kaged.cage.collect import collect

    done = await collect(second)
    assert b"left-by-a" not in done.stdout
    numbers = [word for word in done.stdout.split() if word.isdigit()]
    assert len(numbers) <= 4
    first.close()
    await first.wait()
