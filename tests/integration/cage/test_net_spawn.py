"""The gate as the spawner uses it: a full cage, its system-call filter included."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fakes.stocked_cache import stocked
from kaged.cage import CageKind, CageRequest, CageSettings, Spawner
from kaged.cage.net import LoopbackService, NetEvent, NetGate
from kaged.kernel.net import parse_target
from kaged.kernel.policy import CagePolicy
from requirements import requirement

WAIT_S = 30


@dataclass
class Lab:
    """A spawner with a gate, and a server on the machine's loopback."""

    spawner: Spawner
    port: int
    events: list[NetEvent] = field(default_factory=list[NetEvent])

    async def run(
        self,
        grants: list[str],
        code: str,
        services: tuple[LoopbackService, ...] = (),
        kind: CageKind = CageKind.PLUGIN,
    ) -> dict[str, Any]:
        net = tuple(parse_target(text) for text in grants)
        request = CageRequest(
            name="plugin:lab",
            policy=CagePolicy(net=net),
            command=(
                "python3",
                "-I",
                "-c",
                f"import json, os, socket\nsaid = {{}}\n{code}\nprint(json.dumps(said))",
            ),
            services=services,
            kind=kind,
        )
        async with asyncio.timeout(WAIT_S), await self.spawner.spawn(request) as process:
            out = await _read_all(process.take_fd("stdout"))
            errors = await _read_all(process.take_fd("stderr"))
            report = await process.wait()
        assert report.exit_code == 0, errors.decode()
        return json.loads(out)


async def _read_all(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the machine")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    events = list[NetEvent]()
    gate = NetGate(events.append)
    await gate.start()
    spawner = Spawner(CageSettings(cache_dir=stocked(tmp_path / "cache")), gate=gate)
    yield Lab(spawner, port, events)
    await spawner.close()
    await gate.close()
    server.close()


async def test_a_granted_service_answers_and_is_recorded_under_the_cages_name(lab: Lab) -> None:
    said = await lab.run(
        [f"localhost:{lab.port}"],
        f"""
with socket.create_connection(("localhost", {lab.port}), timeout=5) as sock:
    said["direct"] = sock.recv(100).decode()
with socket.create_connection(("127.0.0.1", 808), timeout=5) as sock:
    sock.sendall(b"CONNECT localhost:{lab.port} HTTP/1.1\\r\\n\\r\\n")
    said["proxy"] = sock.recv(100).decode().split("\\r\\n")[0]
said["variables"] = sorted(name for name in os.environ if "proxy" in name.lower())
""",
    )
    assert said == {
        "direct": "the machine",
        "proxy": "HTTP/1.1 200 Connection established",
        "variables": ["HTTPS_PROXY", "NO_PROXY", "https_proxy", "no_proxy"],
    }
    assert {event.cage for event in lab.events} == {"plugin:lab"}
    assert all(event.cage_id for event in lab.events)
    assert [(event.host, event.port) for event in lab.events] == [("localhost", lab.port)] * 2


@requirement("PH-CAGE-12", "PH-CAGE-15")
@pytest.mark.parametrize("kind", [CageKind.PLUGIN, CageKind.AGENT])
async def test_a_cage_without_network_grants_has_a_network_of_its_own_and_no_way_out(
    lab: Lab, kind: CageKind
) -> None:
    said = await lab.run(
        [],
        f"""
said["namespace"] = os.readlink("/proc/self/ns/net")
def attempt(family, place):
    with socket.socket(family) as sock:
        sock.settimeout(5)
        return sock.connect_ex(place)
said["internet"] = attempt(socket.AF_INET, ("1.1.1.1", 443))
said["internet6"] = attempt(socket.AF_INET6, ("2606:4700:4700::1111", 443))
said["machine"] = attempt(socket.AF_INET, ("127.0.0.1", {lab.port}))
said["proxy"] = attempt(socket.AF_INET, ("127.0.0.1", 808))
said["interfaces"] = [name for _, name in socket.if_nameindex()]
""",
        kind=kind,
    )
    assert said.pop("namespace") != str(Path("/proc/self/ns/net").readlink())
    assert said == {
        "internet": errno.ENETUNREACH,
        "internet6": errno.ENETUNREACH,
        "machine": errno.ECONNREFUSED,
        "proxy": errno.ECONNREFUSED,
        "interfaces": ["lo"],
    }
    assert lab.events == []


async def test_a_service_of_the_daemon_is_found_on_loopback_without_any_network_grant(
    lab: Lab,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"daemon heard " + await reader.readexactly(5))
        await writer.drain()

    said = await lab.run(
        [],
        """
with socket.create_connection(("127.0.0.1", 750), timeout=5) as sock:
    sock.sendall(b"hello")
    said["service"] = sock.recv(100).decode()
with socket.socket() as sock:
    said["outside"] = sock.connect_ex(("1.1.1.1", 443)) != 0
said["variables"] = [name for name in os.environ if "proxy" in name.lower()]
""",
        services=(LoopbackService(750, answer),),
    )
    assert said == {"service": "daemon heard hello", "outside": True, "variables": []}


async def test_cages_in_a_row_leave_no_descriptor_behind(lab: Lab) -> None:
    code = f'said["got"] = socket.create_connection(("localhost", {lab.port}), 5).recv(50).decode()'
    grants = [f"localhost:{lab.port}"]
    assert await lab.run(grants, code) == {"got": "the machine"}
    lab.spawner.launchers.close()  # those in stock wait for the next cage
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        await lab.run(grants, code)
    lab.spawner.launchers.close()
    # The loop closes some of them a turn later; what is left behind stays.
    async with asyncio.timeout(30):
        while len(list(Path("/proc/self/fd").iterdir())) > before:  # noqa: ASYNC110 - the kernel's
            await asyncio.sleep(0.01)
