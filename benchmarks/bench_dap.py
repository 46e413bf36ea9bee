"""`debug` with debugpy against a minimal client of the same adapter, in the same run.

Launch, stop at a breakpoint, look at the variables, go on to the end; both take turns, so that both
see the same machine.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.dap_lab import (  # noqa: E402  # pyright: ignore[reportMissingImports] - beside the tests
    DapLab,
)
from scoreboard import Row, at_most, row, show  # noqa: E402 - likewise

ROUNDS = 5
PROGRAM = "def double(x):\n    y = x * 2\n    return y\n\n\nprint(double(21))\n"
LINE = 2


class Minimal:
    """The least that speaks to a debug adapter: frames, numbers, and futures for events."""

    def __init__(self) -> None:
        self._seq = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._events: dict[str, asyncio.Queue[Any]] = {}

    async def start(self, root: Path) -> None:
        self._process = await asyncio.create_subprocess_exec(  # noqa: TID251 - the peer is outside of kaged
            sys.executable, "-m", "debugpy.adapter",
            cwd=root,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._reading = asyncio.ensure_future(self._read())  # noqa: TID251 - likewise

    def ask(self, command: str, arguments: Any = None) -> asyncio.Future[Any]:
        self._seq += 1
        message = {"seq": self._seq, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        future = self._waiting[self._seq] = asyncio.get_running_loop().create_future()
        return future

    async def event(self, name: str) -> Any:
        return await self._events.setdefault(name, asyncio.Queue()).get()

    async def _read(self) -> None:
        out = self._process.stdout
        assert out is not None
        while header := await out.readuntil(b"\r\n\r\n"):
            length = int(header.split(b":")[1])
            message = json.loads(await out.readexactly(length))
            if message["type"] == "event":
                queue = self._events.setdefault(message["event"], asyncio.Queue())
                queue.put_nowait(message.get("body"))
            elif message["type"] == "response":
                self._waiting.pop(message["request_seq"]).set_result(message.get("body"))

    async def close(self) -> None:
        self._reading.cancel()
        self._process.kill()
        await self._process.wait()


async def plain(root: Path) -> None:
    """Do the round with the minimal client; it asks what the tool's answers hold."""
    script = str(root / "main.py")
    client = Minimal()
    await client.start(root)
    await client.ask("initialize", {"adapterID": "x", "pathFormat": "path"})
    launching = client.ask(
        "launch",
        {"program": script, "cwd": str(root), "python": [shutil.which("python3")],
         "stopOnEntry": True, "console": "internalConsole", "justMyCode": False,
         "redirectOutput": True},
    )  # fmt: skip
    await client.event("initialized")
    await client.ask("setExceptionBreakpoints", {"filters": []})
    await client.ask("configurationDone")
    await launching
    await _stop(client)
    await client.ask("threads")
    await client.ask(
        "setBreakpoints", {"source": {"path": script}, "breakpoints": [{"line": LINE}]}
    )
    await client.ask("continue", {"threadId": 1})
    frame = await _stop(client)
    scopes = await client.ask("scopes", {"frameId": frame})
    reference = scopes["scopes"][0]["variablesReference"]
    found = await client.ask("variables", {"variablesReference": reference})
    assert any(one["name"] == "x" for one in found["variables"])
    await client.ask("continue", {"threadId": 1})
    await client.event("exited")
    await client.close()


async def _stop(client: Minimal) -> int:
    stop = await client.event("stopped")
    stack = await client.ask("stackTrace", {"threadId": stop["threadId"], "levels": 1})
    return stack["stackFrames"][0]["id"]


async def ours(lab: Any) -> None:
    """Do the same round with the tool."""
    await lab.debug("launch", runtime="python", script="./main.py")
    await lab.debug("set_breakpoint", path="./main.py", line=LINE)
    assert (await lab.debug("continue"))["breakpoint_id"] == 1
    found = await lab.debug("variables")
    assert any(one["name"] == "x" for one in found["variables"])
    assert (await lab.debug("continue"))["status"] == "exited"


async def _all() -> list[Row]:
    folder = Path(tempfile.mkdtemp(prefix="kaged-bench-dap-"))
    lab = DapLab(folder, wait_s=60.0)
    lab.write("main.py", PROGRAM)
    mine: list[float] = []
    theirs: list[float] = []
    try:
        for number in range(ROUNDS + 1):
            began = time.perf_counter()
            await plain(lab.root)
            middle = time.perf_counter()
            await ours(lab)
            ended = time.perf_counter()
            await lab.debug("disconnect")
            if number:
                theirs.append(middle - began)
                mine.append(ended - middle)
    finally:
        await lab.close()
        shutil.rmtree(folder, ignore_errors=True)
    # The best of each: what else the machine does only ever adds.
    first, second = min(mine) * 1000, min(theirs) * 1000
    return [
        row(
            "debug: launch, breakpoint, variables, exit with debugpy",
            first,
            "ms",
            against="a minimal client",
            peer=second,
            target=at_most(50, first - second, "ms added"),
            samples=mine,
        )
    ]


def run() -> list[Row]:
    """Return the rows of this benchmark."""
    return asyncio.run(_all())


if __name__ == "__main__":
    show(run())
