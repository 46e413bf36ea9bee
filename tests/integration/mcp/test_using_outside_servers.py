"""Agents use tools, prompts and resources of outside MCP servers that run in cages."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from fakes.mcp_lab import PROJECT, McpStage, calculator, mcp_stage, rogue, text_of
from fakes.running_daemon import ANY_PORT, kaged, require_error_shape

READER = "primary.subagents.reader"


async def test_an_agent_uses_a_server_that_is_made_with_the_official_sdk(tmp_path: Path) -> None:
    async with mcp_stage(tmp_path, calculator()) as stage:
        found = await stage.settled("calc")
        assert found["claims"].startswith("calculator")
        assert {one["name"] for one in found["tools"]} >= {"calc.add", "calc.count", "calc.fail"}
        added = await stage.call("calc.add", {"a": 2, "b": 3})
        assert added["result"]["structured"] == {"result": 5}
        assert added["result"]["from"] == "outside MCP server calc"
        wrong = await stage.call("calc.add", {"a": "two", "b": 3})
        require_error_shape(wrong, "invalid_params")
        failed = await stage.call("calc.fail", {"why": "no luck"})
        assert "executing tool fail" in require_error_shape(failed, "mcp_call_failed")["message"]
        secrets = await stage.call("calc.secrets", {})
        assert secrets["result"]["structured"] == {"CALC_KEY": "s3cret"}
        called = [one["data"]["tool_name"] for one in await stage.audited("tool.called")]
        assert called == ["calc.add", "calc.add", "calc.fail", "calc.secrets"]
        # And on to the clients of our own server: tools, progress, prompts and resources.
        heard: list[float] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(progress)
            assert total == 3

        async with stage.http() as client:
            tools = {one.name: one for one in (await client.list_tools()).tools}
            assert tools["calc_add"].annotations is not None
            assert tools["calc_add"].annotations.open_world_hint is True
            counted = await client.call_tool("calc_count", {"upto": 3}, progress_callback=hear)
            assert counted.is_error is False, counted.content
            assert set(heard) <= {1.0, 2.0, 3.0}
            assert heard
            (prompt,) = (await client.list_prompts()).prompts
            assert prompt.name == "calc.explain"
            got = await client.get_prompt("calc.explain", {"topic": "cages"})
            assert "Explain cages" in text_of(got.messages[0].content)
            resource = next(
                one
                for one in (await client.list_resources(cursor="sessions.0")).resources
                if "calc" in str(one.uri)
            )
            read = (await client.read_resource(str(resource.uri))).contents[0]
            assert text_of(read) == "3.14159"
            with pytest.raises(MCPError, match="mcp_prompt_not_found"):
                await client.get_prompt("other.explain", {})
        async with stage.http(READER) as client:
            assert (await client.list_prompts()).prompts == []
            with pytest.raises(MCPError, match="mcp_resource_not_found"):
                await client.read_resource(str(resource.uri))
        fetched = await stage.audited("mcp.prompt_fetched")
        assert fetched[0]["data"]["prompt"] == "explain"


async def test_the_operator_says_who_may_use_which_tools(tmp_path: Path) -> None:
    config = "".join(
        (
            rogue("good", name="out", more=f'agents = ["{READER}"]\ndeny_tools = ["wh*"]'),
            rogue("good", name="calc", more='projects = ["another"]'),
        )
    )
    async with mcp_stage(tmp_path, config, serve=False) as stage:
        await stage.settled("out")
        await stage.settled("calc")
        for agent, names in (("primary", set[str]()), (READER, {"out.echo"})):
            listed = await stage.inside.client.get(
                f"/api/v1/projects/{stage.project_id}/tools", params={"agent": agent}
            )
            owned = {one["name"] for one in listed.json()["tools"] if one["plugin_name"]}
            assert owned == names
        assert (await stage.call("out.echo", {"text": "x"}, READER))["result"]["text"]
        require_error_shape(await stage.call("out.echo", {}), "tool_not_found")
        require_error_shape(await stage.call("out.where", {}, READER), "tool_not_found")
        require_error_shape(await stage.call("calc.echo", {}), "tool_not_found")


async def test_a_killed_server_comes_back_and_its_tools_stay(tmp_path: Path) -> None:
    async with mcp_stage(tmp_path, rogue("good"), serve=False) as stage:
        first = await stage.settled()
        os.kill(first["pid"], signal.SIGKILL)
        await stage.eventually("mcp.server_crashed")
        listed = await stage.inside.client.get(f"/api/v1/projects/{stage.project_id}/tools")
        assert "out.echo" in {one["name"] for one in listed.json()["tools"]}
        second = await stage.settled()
        assert second["pid"] != first["pid"]
        assert second["restarts"] == 1
        assert (await stage.call("out.echo", {"text": "x"}))["result"]["text"] == '{"text": "x"}'


async def test_the_commands_show_restart_and_approve_servers(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    config = rogue("rug", state=state) + "[mcp.servers.far]\nenabled = false\ncommand = 'x'\n"
    async with mcp_stage(tmp_path, config) as stage:
        await stage.settled()

        async def run(*words: str) -> str:
            done = await asyncio.to_thread(kaged, stage.home, *words)
            assert done.returncode == 0, done.stderr
            return done.stdout + done.stderr

        shown = await run("mcp", "servers")
        assert "out" in shown
        assert "running" in shown
        assert "switched off" in shown
        assert "rogue server in mode rug" in await run("mcp", "logs", "out")
        await stage.call("out.echo", {"text": "change"})
        await stage.eventually("mcp.tool_changed", 2)
        assert "waits for approval" in await run("mcp", "servers")
        doctor = (await stage.inside.client.get("/api/v1/doctor")).json()
        row = next(one for one in doctor["rows"] if one["id"] == "mcp")
        assert (row["status"], "held back" in row["cause"]) == ("warn", True)
        require_error_shape(await stage.call("out.echo", {}), "tool_not_found")
        assert "offers 2 tools" in await run("mcp", "approve", "out")
        assert "running" in await run("mcp", "restart", "out")
        restarted = (await stage.audited("mcp.server_restarted"))[0]
        assert restarted["data"]["server"] == "out"
        missing = await asyncio.to_thread(kaged, stage.home, "mcp", "logs", "nobody")
        assert missing.returncode != 0
        assert "mcp_server_not_found" in missing.stderr


async def test_held_back_tools_wait_in_the_inbox(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    async with mcp_stage(tmp_path, rogue("rug", state=state)) as stage:
        await stage.settled()
        client = stage.inside.client

        async def waiting() -> list[Any]:
            query = {"state": "pending", "kind": "mcp_tools"}
            return list((await client.get("/api/v1/inbox", params=query)).json()["items"])

        async def answer(asked: Any, choice: str) -> int:
            body = {"digest": asked["digest"], "answer": {"choice": choice}}
            url = f"/api/v1/inbox/{asked['id']}/answer"
            return (await client.post(url, json=body)).status_code

        assert await waiting() == []
        await stage.call("out.echo", {"text": "change"})
        await stage.eventually("mcp.tool_changed", 2)
        [asked] = await waiting()
        assert asked["title"] == "Offer the changed tools of the MCP server out?"
        assert len(asked["details"]) == 2
        assert await answer(asked, "no") == 200
        require_error_shape(await stage.call("out.echo", {}), "tool_not_found")
        assert await waiting() == []
        # Started again, the server still offers what was refused; nobody is asked twice.
        assert (await client.post("/api/v1/mcp/servers/out/restart")).status_code == 200
        assert await waiting() == []
        assert await answer(asked, "yes") == 409
        assert (await client.post("/api/v1/mcp/servers/out/approve")).status_code == 200


async def test_a_yes_in_the_inbox_offers_held_back_tools(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    async with mcp_stage(tmp_path, rogue("rug", state=state)) as stage:
        await stage.settled()
        await stage.call("out.echo", {"text": "change"})
        await stage.eventually("mcp.tool_changed", 2)
        client = stage.inside.client
        [asked] = (await client.get("/api/v1/inbox", params={"state": "pending"})).json()["items"]
        body = {"digest": asked["digest"], "answer": {"choice": "yes"}}
        done = await client.post(f"/api/v1/inbox/{asked['id']}/answer", json=body)
        assert done.status_code == 200, done.text
        server = (await client.get("/api/v1/mcp/servers/out")).json()
        assert (server["pending"], sum(one["offered"] for one in server["tools"])) == (0, 2)
        approved = await stage.audited("mcp.tools_approved")
        assert "operator" in {one["data"]["how"] for one in approved}


async def test_a_new_configuration_starts_and_stops_servers(tmp_path: Path) -> None:
    async with mcp_stage(tmp_path, rogue("good"), serve=False) as stage:
        await stage.settled()
        await _configure(stage, rogue("good", name="calc"))
        await stage.settled("calc")
        require_error_shape(await stage.server("out"), "mcp_server_not_found")
        require_error_shape(await stage.call("out.echo", {}), "tool_not_found")
        assert (await stage.call("calc.echo", {"text": "x"}))["result"]["text"]


async def test_an_agent_calls_an_outside_tool_in_a_session_that_a_client_then_reads(
    tmp_path: Path,
) -> None:
    turns: list[dict[str, Any]] = [
        {"call": [{"tool": "out.echo", "with": {"text": "from the agent"}}]},
        {"say": "The server has answered."},
    ]
    async with mcp_stage(tmp_path, rogue("good"), turns=turns) as stage:
        await stage.settled()
        base = f"/api/v1/projects/{stage.project_id}/sessions"
        session = (await stage.inside.client.post(base, json={})).json()["id"]
        said = await stage.inside.client.post(f"{base}/{session}/message", json={"text": "Go."})
        sessions: Any = stage.inside.daemon.services.subsystems.sessions
        async with asyncio.timeout(60):
            await sessions.driver.wait(said.json()["run_id"])
        called = (await stage.audited("tool.called"))[0]["data"]
        assert (called["tool_name"], called["session_id"]) == ("out.echo", session)
        async with stage.http() as client:
            read = (await client.read_resource(f"kaged://sessions/{session}")).contents[0]
        assert "The server has answered." in text_of(read)
        assert "outside MCP server out" in text_of(read)


async def test_a_server_behind_a_url_is_reached_from_a_cage(tmp_path: Path) -> None:
    """The server is this daemon itself, which speaks MCP over HTTP."""
    project = PROJECT.replace("    out.*: {enabled: true}", "    far.*: {enabled: true}", 1)
    async with mcp_stage(tmp_path, project=project) as stage:
        token = (stage.inside.places.state_dir / "http-token").read_text(encoding="utf-8").strip()
        url = stage.mcp_url(READER).replace("127.0.0.1", "localhost")
        config = f'[mcp.servers.far]\nurl = "{url}"\nenv = {{ MCP_AUTHORIZATION = "%s" }}\n'
        await _configure(stage, config % f"Bearer {token}")
        found = await stage.settled("far")
        assert found["claims"].startswith("kaged")
        read = await stage.call("far.file_read", {"path": "docs/open.txt"})
        assert read["result"]["structured"]["content"] == "1: hello"
        refused = await stage.call("far.file_read", {"path": "secret.txt"})
        error = require_error_shape(refused, "mcp_call_failed")
        assert "capability_denied" in error["message"]
        await _configure(stage, config % "Bearer wrong")
        await stage.eventually("mcp.server_crashed")
        assert "401" in (await stage.server("far"))["note"]


async def test_policy_plugins_stand_around_prompts_and_resources(tmp_path: Path) -> None:
    (tmp_path / "gatekeeper.py").write_text(POLICY, encoding="utf-8")
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path), encoding="utf-8")
    config = f'[pipeline]\nfile = "{file}"\n{rogue("good")}'
    async with mcp_stage(tmp_path, config) as stage:
        await stage.settled()
        await _pipeline_ready(stage)
        async with stage.http() as client:
            got = await client.get_prompt("out.greet", {"who": "Ann"})
            assert text_of(got.messages[0].content) == "Say hello to Ann and be kind."
            with pytest.raises(MCPError, match="pipeline_refused"):
                await client.get_prompt("out.greet", {"who": "Mallory"})
            uri = "kaged://mcp/out/note%3A%2F%2Fone"
            assert text_of((await client.read_resource(uri)).contents[0]) == "noted"
            with pytest.raises(MCPError, match="pipeline_refused"):
                await client.read_resource("kaged://mcp/out/note%3A%2F%2Fsecret")
            with pytest.raises(MCPError, match="pipeline_refused"):
                await client.read_resource("kaged://issues/13")


PIPELINE = """\
plugin_dirs: ["{folder}"]
plugins:
  - name: gatekeeper
    kind: gatekeeper.Gatekeeper
    mode: sequential
    priority: 1
    hooks: [prompt_pre_fetch, prompt_post_fetch, resource_pre_fetch]
"""
POLICY = """\
from kaged.pipeline import Plugin, PluginResult, PluginViolation


class Gatekeeper(Plugin):
    async def prompt_pre_fetch(self, payload, context):
        if payload.args.get("who") == "Mallory":
            return self.no("nobody greets Mallory")
        return PluginResult()

    async def prompt_post_fetch(self, payload, context):
        text = payload.result.messages[0].content.text.replace(".", " and be kind.")
        message = {"role": "user", "content": {"type": "text", "text": text}}
        changed = payload.model_copy(update={"result": {"messages": [message]}})
        return PluginResult(modified_payload=changed)

    async def resource_pre_fetch(self, payload, context):
        if "secret" in payload.uri or payload.uri.endswith("issues/13"):
            return self.no("that stays here")
        return PluginResult()

    def no(self, reason):
        violation = PluginViolation(reason=reason, description=reason, code="NO")
        return PluginResult(continue_processing=False, violation=violation)
"""


async def _configure(stage: McpStage, config: str) -> None:
    """Write another configuration and have the daemon read it, as SIGHUP does."""
    from kaged.config.settings import read_settings

    daemon: Any = stage.inside.daemon
    (stage.home / "config.toml").write_text(f"{ANY_PORT}{config}", encoding="utf-8")
    daemon.state.settings = read_settings(stage.inside.places, {"HOME": str(stage.home)})
    await daemon.startup.reload()


async def _pipeline_ready(stage: McpStage) -> None:
    async with asyncio.timeout(60):
        while True:
            doctor = (await stage.inside.client.get("/api/v1/status")).json()
            if not any("pipeline" in one for one in doctor["warnings"]):
                return
            await asyncio.sleep(0.05)
