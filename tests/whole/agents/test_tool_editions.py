"""Callers that say which parameters they have read are told when a tool has others by now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from requirements.marker import whole
from whole.harness.agents import tools_of
from whole.harness.daemon import Daemon
from whole.harness.mcp import python
from whole.harness.plugin import PluginFolder
from whole.harness.project import Project

BEFORE = {"type": "object", "properties": {"content": {"type": "string"}}}
AFTER = {**BEFORE, "properties": {"text": {"type": "string"}}, "required": ["text"]}


@whole("AT-BEY-03")
def test_a_call_for_the_parameters_of_before_is_told_of_those_of_now(
    daemon: Daemon, plugin: Callable[..., PluginFolder], project: Project
) -> None:
    one = plugin()
    tool = f"{one.name}.retain"

    def offer(schema: dict[str, Any]) -> str:
        """Install the plugin with a tool that takes this; returns its schema's hash."""
        told = {"name": "retain", "description": "Keeps it.", "parameters_schema": schema}
        one.write({"on": {tool: [{"echo": True}]}}, name=one.name, tools=[told])
        one.run()
        project.describe(plugins={one.name: {"package": one.name}})
        project.reload()
        [found] = [each for each in tools_of(project) if each["name"] == tool]
        return str(found["schema_hash"])

    def call(schema_hash: str | None, **params: Any) -> dict[str, Any]:
        return {"tool": tool, "params": params, "schema_hash": schema_hash}

    old = offer(BEFORE)
    assert project.post("/tools/call", call(old, content="x"))["result"]["content"] == "x"
    daemon.ask("DELETE", f"/plugins/{one.name}")
    new = offer(AFTER)
    assert new != old
    where = f"/projects/{project.id}/tools/call"
    refused = daemon.error("POST", where, call(old, text="x"))
    assert refused["code"] == "invalid_params"
    detail = refused["data"]["detail"]
    assert (detail["schema_hash"], detail["called_with"]) == (new, old)
    assert detail["parameters"]["required"] == ["text"]
    for said in (new, None):
        assert project.post("/tools/call", call(said, text="x"))["result"]["text"] == "x"

    # The same by MCP: a client hands back what the listing told it.
    def asked(schema_hash: str) -> tuple[str, dict[str, Any]]:
        given = {"name": f"{one.name}_retain", "arguments": {"text": "x"}}
        return "callTool", {**given, "meta": {"kaged/schema_hash": schema_hash}}

    _, stale, right = python(daemon, project, asked(old), asked(new), transport="http")
    assert stale["result"]["isError"] is True
    assert "other parameters now" in str(stale["result"]["content"])
    assert right["result"].get("isError", False) is False

    # And on record, with every call: which parameters the tool had.
    rows = daemon.get(f"/projects/{project.id}/sessions")["items"]
    calls = [
        each for row in rows for each in project.get(f"/sessions/{row['id']}/tool-calls")["items"]
    ]
    hashes = [each["schema_hash"] for each in calls if each["tool_name"] == tool]
    assert (hashes.count(old), set(hashes)) == (1, {old, new})
