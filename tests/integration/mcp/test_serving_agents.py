"""Clients of the official SDK use an agent's tools, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from fakes.mcp_lab import McpStage, appears, error_of, mcp_stage, text_of
from fakes.running_daemon import WAIT_S, require_error_shape
from kaged.tools import Tool, ToolDefinition, ToolSource

READER = "primary.subagents.reader"
Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[McpStage]:
    async with mcp_stage(tmp_path) as found:
        yield found


EVERY = ["stdio auto", "stdio legacy", "http auto", "http legacy"]
"""Both transports, each with the newest protocol and with the one that begins with a handshake."""


@pytest.fixture(params=["stdio legacy", "http auto"])
def connect(request: pytest.FixtureRequest, stage: McpStage) -> Connect:
    transport, mode = request.param.split()
    way: Any = stage.stdio if transport == "stdio" else stage.http

    def open_client(*args: Any, **options: Any) -> Any:
        return way(*args, mode=mode, **options)

    return open_client


@pytest.mark.parametrize("connect", EVERY, indirect=True)
async def test_a_client_lists_and_calls_the_tools_of_an_agent(
    stage: McpStage, connect: Connect
) -> None:
    async with connect() as client:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        read = tools["file_read"]
        assert read.title == "file.read"
        assert read.input_schema["required"] == ["path"]
        assert read.annotations is not None
        assert read.annotations.read_only_hint is True
        shell = tools["shell_bash"].annotations
        assert shell is not None
        assert (shell.read_only_hint, shell.destructive_hint, shell.open_world_hint) == (
            False,
            True,
            True,
        )
        assert "debug" not in tools
        # The SDK holds structured results against the declared schema.
        found = await client.call_tool("file_read", {"path": "docs/open.txt"})
        assert found.is_error is False
        assert found.structured_content is not None
        assert found.structured_content["content"] == "1: hello"
        assert json.loads(text_of(found.content[0])) == found.structured_content
        by_own_name = await client.call_tool("file.read", {"path": "docs/open.txt"})
        assert by_own_name.structured_content == found.structured_content
        # A session of its own: what was read is known, and may be written.
        wrote = await client.call_tool("file_write", {"path": "docs/open.txt", "content": "bye\n"})
        assert wrote.is_error is False, wrote.content
    assert (stage.root / "docs" / "open.txt").read_text(encoding="utf-8") == "bye\n"


async def test_refusals_are_tool_errors_with_code_and_fix(
    stage: McpStage, connect: Connect
) -> None:
    async with connect(READER) as client:
        refused = await client.call_tool("file_read", {"path": "secret.txt"})
        assert refused.is_error is True
        error = error_of(refused)
        assert error["code"] == "capability_denied"
        assert error["fix"]
        assert error["message"] in text_of(refused.content[0])
        assert str(stage.root) not in str(refused.content)
        unknown = await client.call_tool("shell_bash", {"command": "id"})
        assert error_of(unknown)["code"] == "tool_not_found"
        wrong = await client.call_tool("file_read", {"path": 5, "caller": "primary"})
        assert error_of(wrong)["code"] == "invalid_params"
        root_only = await client.call_tool("kaged.issue", {"action": "list"})
        code = error_of(root_only)["code"]
        assert code in {"tool_not_found", "principal_scope_violation"}
    denied = await stage.audited("tool.denied")
    assert denied[0]["request_id"] == error["request_id"]


async def test_the_edge_supplies_session_and_run_and_the_trail_says_who_called(
    stage: McpStage, connect: Connect
) -> None:
    async with connect(READER) as client:
        await client.call_tool("file_read", {"path": "docs/open.txt", "session_id": "ses_mine"})
        await client.call_tool("file_read", {"path": "docs/open.txt"})
    async with connect() as client:
        await client.call_tool("file_read", {"path": "docs/open.txt"})
    called = [one["data"] for one in await stage.audited("tool.called")]
    came = [one["data"] for one in await stage.audited("mcp.client_came")]
    assert [one["caller"] for one in called] == [READER, READER, "primary"]
    assert called[0]["session_id"] == called[1]["session_id"] == came[0]["session_id"]
    assert called[0]["run_id"] == came[0]["run_id"]
    assert called[2]["session_id"] == came[1]["session_id"] != called[0]["session_id"]
    assert len({one["request_id"] for one in called}) == 3
    assert all(one["session_id"].startswith("ses_") for one in called)
    assert "mcp" in came[0]["client"]
    assert came[0]["operator_id"]


async def test_a_client_reads_issues_and_sessions_as_resources(
    stage: McpStage, connect: Connect
) -> None:
    await stage.inside.client.post(
        f"/api/v1/projects/{stage.project_id}/issues", json={"title": "Mend it", "body": "Soon."}
    )
    async with connect() as client:
        await client.call_tool("file_read", {"path": "docs/open.txt"})
        listed = (await client.list_resources()).resources
        more = await client.list_resources(cursor="sessions.0")
        uris = [str(one.uri) for one in (*listed, *more.resources)]
        assert "kaged://issues/1" in uris
        issue = (await client.read_resource("kaged://issues/1")).contents[0]
        assert json.loads(text_of(issue))["title"] == "Mend it"
        session = next(uri for uri in uris if uri.startswith("kaged://sessions/"))
        content = (await client.read_resource(session)).contents[0]
        assert json.loads(text_of(content))["id"] in session
        for wrong in ("kaged://issues/77", "kaged://issues/../x", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="mcp_resource_not_found"):
                await client.read_resource(wrong)
    async with connect(READER) as client:
        assert (await client.list_resources()).resources == []
        for hidden in ("kaged://issues/1", session):
            with pytest.raises(MCPError, match="mcp_resource_not_found"):
                await client.read_resource(hidden)
    reads = [one["data"]["success"] for one in await stage.audited("mcp.resource_read")]
    assert reads == [True, True, False, False, False, False, False]


async def test_a_long_call_tells_that_it_still_runs(
    stage: McpStage, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kaged.serve.mcp import server  # the SDK's part, loaded like the daemon does

    monkeypatch.setattr(server.AgentServer.__init__, "__kwdefaults__", {"heartbeat_s": 0.05})
    heard: list[float] = []
    enough = stage.root / "enough"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)
        assert message is not None
        assert "shell_bash" in message
        if len(heard) == 2:
            enough.touch()

    async with connect() as client:
        ended = await client.call_tool(
            "shell_bash",
            {"command": "until [ -e enough ]; do sleep 0.02; done; echo done"},
            progress_callback=hear,
        )
    assert ended.structured_content is not None
    assert ended.structured_content["stdout"] == "done\n"
    assert heard == sorted(heard)


@pytest.mark.parametrize("connect", EVERY, indirect=True)
async def test_a_cancelled_call_ends_its_command(stage: McpStage, connect: Connect) -> None:
    begun, pid = stage.root / "begun", stage.root / "pid"
    async with connect() as client:
        script = "trap 'touch ended; exit' TERM HUP INT; echo $$ > pid; touch begun; "
        call = asyncio.create_task(  # noqa: TID251 - the test's own, awaited below
            client.call_tool("shell_bash", {"command": script + "while :; do sleep 0.05; done"})
        )
        await appears(begun)
        assert pid.read_text(encoding="utf-8").strip()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        ended = await stage.eventually("tool.completed")
        assert ended[0]["data"]["success"] is False
        # The client goes on, and so does everybody else.
        again = await client.call_tool("file_read", {"path": "docs/open.txt"})
        assert again.is_error is False


async def test_a_client_hears_when_the_dispatcher_changes(stage: McpStage) -> None:
    async def quiet(call: Any) -> Any:
        return {}

    tool_service: Any = stage.inside.daemon.services.subsystems.tools
    for way in (stage.stdio, stage.http):
        changed = asyncio.Event()

        async def hear(message: Any, changed: asyncio.Event = changed) -> None:
            if getattr(message, "method", "") == "notifications/tools/list_changed":
                changed.set()

        async with way(mode="legacy", message_handler=hear) as client:
            before = {one.name for one in (await client.list_tools()).tools}
            definition = ToolDefinition(
                name="out.new",
                namespace="out",
                description="New.",
                parameters={"type": "object"},
                returns={},
                requires=(),
                source=ToolSource.PLUGIN,
                plugin_name="out",
            )
            tool_service.registry.register(Tool(definition, quiet), outside=True)
            async with asyncio.timeout(60):
                await changed.wait()
            after = {one.name for one in (await client.list_tools()).tools}
            assert after - before == {"out_new"}
            tool_service.registry.withdraw("out.new")


async def test_a_subscribed_client_of_the_newest_protocol_hears_it_as_well(
    stage: McpStage,
) -> None:
    async def quiet(call: Any) -> Any:
        return {}

    tool_service: Any = stage.inside.daemon.services.subsystems.tools
    async with stage.http(mode="2026-07-28") as client:
        await client.list_tools()
        async with client.listen(tools_list_changed=True) as heard:
            definition = ToolDefinition(
                name="out.other",
                namespace="out",
                description="New.",
                parameters={"type": "object"},
                returns={},
                requires=(),
                source=ToolSource.PLUGIN,
                plugin_name="out",
            )
            tool_service.registry.register(Tool(definition, quiet), outside=True)
            async with asyncio.timeout(60):
                async for event in heard:
                    assert type(event).__name__ == "ToolsListChanged"
                    break


async def test_http_has_the_access_rules_of_the_api(stage: McpStage) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    async with httpx.AsyncClient(trust_env=False, timeout=WAIT_S) as plain:
        url = stage.mcp_url()
        bare = await plain.post(url, json=body)
        assert bare.status_code == 401
        require_error_shape(bare.json(), "unauthenticated")
        forged = await plain.post(url, json=body, headers={"Authorization": "Bearer nope"})
        assert forged.status_code == 401
        rebound = await plain.post(url, json=body, headers={"Host": "evil.example"})
        assert rebound.status_code == 421
        token = (stage.inside.places.state_dir / "http-token").read_text(encoding="utf-8").strip()
        own = {"Authorization": f"Bearer {token}"}
        page = await plain.post(url, json=body, headers={**own, "Origin": "http://evil.example"})
        assert page.status_code == 403
        large = await plain.post(url, content=b"x" * (2 * 1024 * 1024), headers=own)
        assert large.status_code == 413
        lost = await plain.post(stage.mcp_url("primary.subagents.nobody"), json=body, headers=own)
        assert lost.status_code == 404
        require_error_shape(lost.json(), "agent_not_found")
        odd = await plain.post(stage.mcp_url("../x"), json=body, headers=own)
        require_error_shape(odd.json(), "invalid_request")


async def test_a_session_belongs_to_the_agent_that_it_was_opened_for(stage: McpStage) -> None:
    """A session id is no way from a caged agent to the root."""
    token = (stage.inside.places.state_dir / "http-token").read_text(encoding="utf-8").strip()
    headers = {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
    }
    hello = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }
    async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=WAIT_S) as plain:
        opened = await plain.post(stage.mcp_url(READER), json=hello)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        listed = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
        other = await plain.post(stage.mcp_url("primary"), json=listed, headers=session)
        assert other.status_code == 404


async def test_clients_are_cut_off_when_their_project_goes(stage: McpStage) -> None:
    async with stage.stdio(mode="legacy") as client:
        await client.list_tools()
        gone = await stage.inside.client.delete(f"/api/v1/projects/{stage.project_id}")
        assert gone.status_code == 204
        await stage.eventually("mcp.client_left")
        with pytest.raises((MCPError, OSError)):
            await client.list_tools()
