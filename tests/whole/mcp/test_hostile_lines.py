"""Lines by the thousand to the daemon's own MCP server: each has its answer, none harms it."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import unix_connect
from websockets.exceptions import ConnectionClosed

import thorough
from thorough import THOROUGH, counted
from whole.edge.test_requests_from_the_document import COMPLAINTS, resident_bytes
from whole.harness.daemon import Daemon
from whole.harness.project import Project

LINES = counted(400, 10_000, 100_000)
PER_CLIENT, NOISE = 400, 0.15
CLIENTS = 4
PATIENCE_S = 60.0
GROWTH_BYTES = 64 * 1024 * 1024
CLOSES = {1000, 1008}
METHODS = (
    *("ping", "tools/list", "tools/call", "resources/list", "resources/read", "prompts/list"),
    *("prompts/get", "logging/setLevel", "completion/complete", "initialize", "tools/none", ""),
    *("resources/templates/list", "resources/subscribe", "elicitation/create", "sampling/x"),
)
NOTICES = ("notifications/initialized", "notifications/cancelled", "notifications/progress", "x/y")
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**70, 1.5, "", "x", "\u0000", "é" * 20, [], {}, [1], {"a": 1}),
    *({"name": "file.read", "arguments": {"path": "a.txt"}}, {"name": "file.read"}, {"name": 5}),
    *({"name": "none"}, {"uri": "file:///etc/passwd"}, {"level": "debug"}, {"cursor": "x"}),
    *({"requestId": 1}, {"progressToken": 1, "progress": 2}, {"_meta": {"progressToken": []}}),
)
HELLO = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}

LAST = {"jsonrpc": "2.0", "id": "last", "method": "ping"}


def drawn_line(dice: random.Random, number: int) -> tuple[bytes, bool]:
    """Return a line, and whether it is a request that must be answered."""
    if dice.random() < NOISE:
        text = json.dumps([{"jsonrpc": "2.0", "method": "ping"}, dice.choice(ODD)]).encode()
        junk = dice.randbytes(dice.randrange(1, 60)).replace(b"\n", b" ")
        return dice.choice([junk, text, text[: dice.randrange(1, len(text))], b"[" * 500]), False
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    kind = dice.randrange(8)
    if kind == 0:
        message |= {"id": dice.choice([1, "x", 10**9]), "result": dice.choice(ODD)}
        return json.dumps(message).encode(), False
    if kind == 1:
        message |= {"method": dice.choice(NOTICES), "params": {"requestId": dice.choice(["q", 1])}}
        return json.dumps(message).encode(), False
    message |= {"id": f"n{number}", "method": dice.choice(METHODS)}
    params = dice.choice(ODD)
    if isinstance(params, dict):
        message["params"] = params
    return json.dumps(message).encode(), True


async def one_client(socket: str, path: str, dice: random.Random, seen: Counter[str]) -> None:
    """Speak as one client until its lines are said; whoever talks nonsense may be cut off."""
    async with unix_connect(socket, f"ws://kaged{path}", max_size=None) as stream:
        wanted: set[str] = {"hello"}
        answered: set[str] = set()

        async def listen() -> None:
            rest = b""
            async for piece in stream:
                rest += piece if isinstance(piece, bytes) else piece.encode()
                *lines, rest = rest.split(b"\n")
                for line in filter(None, lines):
                    message = json.loads(line)
                    if isinstance(message.get("id"), str) and "method" not in message:
                        answered.add(message["id"])
                        seen["errors" if "error" in message else "results"] += 1
                if not wanted - answered:
                    return

        async def talk() -> None:
            for number in range(PER_CLIENT):
                line, is_request = drawn_line(dice, number)
                if is_request:
                    wanted.add(f"n{number}")
                await stream.send(line + b"\n")
                seen["lines"] += 1
            await stream.send(json.dumps(LAST).encode() + b"\n")

        try:
            async with asyncio.timeout(PATIENCE_S):
                await stream.send(json.dumps(HELLO).encode() + b"\n")
                await listen()
                wanted.add("last")
                async with asyncio.TaskGroup() as group:
                    group.create_task(listen())
                    group.create_task(talk())
        except* ConnectionClosed:
            seen[f"closed {stream.close_code}"] += 1
            seen["cut off wrongly"] += stream.close_code not in CLOSES
        else:
            seen["heard out"] += 1
            assert wanted <= answered, wanted - answered


@pytest.mark.thorough(random=True)
@pytest.mark.timeout(3600 if THOROUGH else 200)
def test_every_request_among_hostile_lines_is_answered(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    socket = daemon.start()["socket"]
    project = daemon.load(Project(tmp_path / "p"))
    project.write("a.txt", "one\n")
    path = f"/api/v1/projects/{project.id}/mcp/stream?agent=primary"
    dice = random.Random(thorough.SEED)
    seen: Counter[str] = Counter()

    async def several() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS if THOROUGH else 1):
                group.create_task(one_client(socket, path, dice, seen))

    early = 0
    while seen["lines"] < LINES:
        asyncio.run(several())
        size = resident_bytes(daemon.pid)
        if seen["lines"] <= LINES // 5 or not early:
            early = size
        assert size - early < GROWTH_BYTES, (early, size)
    assert not seen["cut off wrongly"], seen
    assert seen["results"], seen
    assert seen["errors"], seen
    assert daemon.running
    said = [line for line in daemon.log().splitlines() if any(one in line for one in COMPLAINTS)]
    assert not said, said[:20]
    if THOROUGH:
        sys.stdout.write(f"{dict(seen)}, {resident_bytes(daemon.pid) >> 20} MiB\n")
