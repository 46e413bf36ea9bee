"""What MCP clients try, and what comes of it."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fakes.mcp_lab import McpStage, mcp_stage
from fakes.running_daemon import environment, kaged, make_project, start_daemon

HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "rude\u202e\n", "version": "9" * 500},
    },
}


@pytest.fixture
async def stage() -> AsyncIterator[McpStage]:
    with tempfile.TemporaryDirectory(prefix="kgm-") as folder:
        async with mcp_stage(Path(folder).resolve()) as found:
            yield found


def stream(stage: McpStage, agent: str = "primary") -> Any:
    path = f"/api/v1/projects/{stage.project_id}/mcp/stream?agent={agent}"
    return unix_connect(stage.inside.socket, f"ws://kaged{path}", compression=None, max_size=None)


async def say(ws: ClientConnection, message: Any) -> None:
    await ws.send(json.dumps(message).encode() + b"\n")


async def hear(ws: ClientConnection) -> Any:
    async with asyncio.timeout(60):
        return json.loads(await ws.recv())


async def pour(ws: ClientConnection, piece: bytes, times: int) -> None:
    """Send the same piece again and again, then wait for an answer."""
    for _ in range(times):
        await ws.send(piece)
    await hear(ws)


async def greeted(ws: ClientConnection) -> None:
    await say(ws, HELLO)
    assert (await hear(ws))["result"]["serverInfo"]["name"] == "kaged"
    await say(ws, {"jsonrpc": "2.0", "method": "notifications/initialized"})


async def test_a_message_beyond_the_limit_ends_the_stream(stage: McpStage) -> None:
    async with stream(stage) as ws:
        await greeted(ws)
        with pytest.raises(ConnectionClosed):
            await pour(ws, b"x" * 32 * 1024, 200)
        assert ws.close_code == 1009
    async with stream(stage) as ws:
        await greeted(ws)


async def test_lines_that_are_no_messages_are_put_up_with_up_to_a_point(stage: McpStage) -> None:
    async with stream(stage) as ws:
        await ws.send(
            b"\n".join([b"hello?", b"{}", b'{"jsonrpc": "1.0"}', b"\xff\xfe", b"[]", b""])
        )
        await greeted(ws)
        with pytest.raises(ConnectionClosed):
            await pour(ws, b"nonsense\n", 200)
        assert ws.close_code == 1008


async def test_one_client_has_so_many_calls_and_no_more(stage: McpStage) -> None:
    async with stream(stage) as ws:
        await greeted(ws)
        for number in range(1, 41):
            call = {
                "name": "shell_bash",
                "arguments": {"command": "until [ -e go ]; do sleep 0.1; done"},
            }
            await say(ws, {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": call})
        refused = [await hear(ws) for _ in range(8)]
        codes = {one["result"]["_meta"]["kaged/error"]["code"] for one in refused}
        assert codes == {"mcp_too_many_calls"}
        (stage.root / "go").touch()
        done = [await hear(ws) for _ in range(32)]
        assert all(one["result"]["isError"] is False for one in done)


async def test_what_a_client_calls_itself_is_harmless_on_record(stage: McpStage) -> None:
    async with stream(stage) as ws:
        await greeted(ws)
        await say(ws, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        await hear(ws)
    came = (await stage.eventually("mcp.client_came"))[0]["data"]["client"]
    assert came.startswith("rude 999")
    assert "\u202e" not in came
    assert len(came) <= 120


async def test_leaving_in_the_middle_of_a_call_ends_it(stage: McpStage) -> None:
    async with stream(stage) as ws:
        await greeted(ws)
        call = {"name": "shell_bash", "arguments": {"command": "touch begun; sleep 600"}}
        await say(ws, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        async with asyncio.timeout(60):
            while not (stage.root / "begun").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.02)
    ended = await stage.eventually("tool.completed")
    assert ended[0]["data"]["success"] is False
    await stage.eventually("mcp.client_left")


async def test_the_stream_has_the_access_rules_of_the_api(stage: McpStage) -> None:
    url = stage.inside.url.replace("http://", "ws://")
    path = f"{url}/api/v1/projects/{stage.project_id}/mcp/stream"
    token = (stage.inside.places.state_dir / "http-token").read_text(encoding="utf-8").strip()
    own = {"Authorization": f"Bearer {token}"}
    attempts: list[tuple[str, dict[str, str], int]] = [
        (path, {}, 401),
        (path, {**own, "Origin": "http://evil.example"}, 403),
        (f"{path}?agent=nobody", own, 404),
        (f"{path}?agent=../..", own, 422),
        (path.replace("prj_", "prx_"), own, 422),
    ]
    for where, headers, status in attempts:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(where, additional_headers=headers):
                pass
        assert refused.value.response.status_code == status
    async with connect(path, additional_headers=own) as ws:
        await greeted(ws)


@pytest.mark.timeout(240)  # three processes start one after the other
async def test_a_relay_says_why_when_its_daemon_goes() -> None:
    with tempfile.TemporaryDirectory(prefix="kgm-") as folder:
        home, project = Path(folder) / "h", make_project(Path(folder) / "p")
        daemon = start_daemon(home, forked=True)
        try:
            assert kaged(home, "project", "load", "--trust", str(project)).returncode == 0
            relay = await asyncio.create_subprocess_exec(  # noqa: TID251 - the client's own server
                *daemon.argv, "mcp", "--project", str(project),
                env=environment(home),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            assert relay.stdin is not None
            assert relay.stdout is not None
            relay.stdin.write(json.dumps(HELLO).encode() + b"\n")
            async with asyncio.timeout(150):
                assert b"kaged" in await relay.stdout.readline()
                await asyncio.to_thread(daemon.stop)
                _, said = await relay.communicate()
            assert relay.returncode not in {0, None}
            assert b"mcp_stream_ended" in said
        finally:
            daemon.kill()
