"""`PluginTalk`: the host's side of the wire for one plugin process, spoken by a test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, cast

PATIENCE_S = 10.0
HANDSHAKE = {
    "daemon_version": "0.1.0",
    "api_version": 1,
    "storage_available": True,
    "projects": [],
}


class PluginTalk:
    """Starts a plugin command uncaged and exchanges raw lines with it; every wait has a bound."""

    def __init__(self, command: Sequence[str | Path], name: str = "sample") -> None:
        self._command = [str(part) for part in command]
        self._name = name
        self._process: asyncio.subprocess.Process | None = None
        self.received: list[dict[str, Any]] = []

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(  # noqa: TID251 - the test is the host
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=8 * 1024 * 1024,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self.process
        if process.returncode is None:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()
        # Read to the end so that the transports close before the loop does.
        if process.stdout is not None:
            await process.stdout.read()

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    def send(self, message: object) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    async def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = await self.process.stdout.readline()
        assert line.endswith(b"\n"), f"the plugin ended: {line!r}"
        message = cast("dict[str, Any]", json.loads(line))
        self.received.append(message)
        return message

    async def request(self, request_id: int, method: str, params: Any = None) -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
        return await self.receive()

    async def error_code(self, request_id: int, method: str, params: Any = None) -> int:
        answer = await self.request(request_id, method, params)
        assert answer["id"] == request_id
        return int(answer["error"]["code"])

    async def greet(self) -> dict[str, Any]:
        return await self.request(1, "initialize", {**HANDSHAKE, "plugin_name": self._name})

    async def handshake(self) -> dict[str, Any]:
        answer = await self.greet()
        self.send({"jsonrpc": "2.0", "method": "initialized", "params": {}})
        assert (await self.receive())["method"] == "catalog.updated"
        return answer

    async def exit_code(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    async def stderr(self) -> str:
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE_S):
            return (await self.process.stderr.read()).decode()
