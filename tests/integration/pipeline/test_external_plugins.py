"""Plugins behind a real MCP server, made with the official SDK, in a cage of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.mcp_sdk import framework_table
from fakes.mcp_sdk import server_table as table
from kaged.app.pipeline import plugin_kinds
from kaged.base import Ids, SystemClock
from kaged.cage import CageProcess, Spawner
from kaged.mcp.errors import McpCallFailed, McpServerUnavailable
from kaged.mcp.server import McpServer
from kaged.mcp.table import cage_request, parse_table
from kaged.pipeline import (
    ControlExecutionStatus,
    Extensions,
    GlobalContext,
    Pipeline,
    PluginConfig,
    PluginError,
    PluginResult,
    ToolPreInvokePayload,
)
from unit.pipeline.material import full_extensions

HOOK = "tool_pre_invoke"
OLD_SERVER = """read l
echo '{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "1999"}}'
cat"""
CALL = ToolPreInvokePayload(name="db.query", args={"q": "select 1"})


class Place:
    """A pipeline with one external plugin."""

    def __init__(self, pipeline: Pipeline, spawner: Spawner) -> None:
        self.pipeline = pipeline
        self._spawner = spawner

    async def call(self, extensions: Extensions | None = None) -> PluginResult[Any]:
        result, _ = await self.pipeline.invoke_hook(
            HOOK, CALL, GlobalContext("r"), extensions=extensions or full_extensions()
        )
        return result

    @property
    def server(self) -> CageProcess:
        """The one process that runs."""
        (process,) = self._spawner.running
        return process

    def kill(self) -> None:
        os.kill(self.server.pid, signal.SIGKILL)


class Bench:
    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._made: list[Pipeline] = []

    async def place(self, name: str, *capabilities: str, **settings: Any) -> Place:
        place, problems = await self.try_place(name, *capabilities, **settings)
        assert not problems, problems
        return place

    async def try_place(
        self, name: str, *capabilities: str, mcp: Any = None, **settings: Any
    ) -> tuple[Place, list[str]]:
        clock = SystemClock()
        pipeline = Pipeline(clock, Ids(clock), kinds=plugin_kinds(self._spawner))
        self._made.append(pipeline)
        report = await pipeline.load_configs(
            [
                PluginConfig.model_validate(
                    {
                        "name": name,
                        "kind": "external",
                        "hooks": [HOOK],
                        "mcp": mcp or table(),
                        "capabilities": list(capabilities),
                        **settings,
                    }
                )
            ]
        )
        return Place(pipeline, self._spawner), [str(problem) for problem in report.problems]

    async def close(self) -> None:
        for pipeline in self._made:
            await pipeline.close()


@pytest.fixture
async def bench(spawner: Spawner) -> AsyncIterator[Bench]:
    made = Bench(spawner)
    yield made
    await made.close()


async def test_an_external_plugin_sees_its_view_and_changes_what_it_may(bench: Bench) -> None:
    place = await bench.place("edits", "write_headers")
    before = full_extensions()
    result = await place.call(before)
    assert result.modified_payload is not None
    assert result.modified_payload.args == {"q": "select 1", "n": [1]}
    after = result.modified_extensions
    assert after is not None
    assert after.http is not None
    assert before.http is not None
    assert after.http.headers == {**before.http.headers, "x-new": "1"}
    assert after.request == before.request
    assert after.agent == before.agent
    assert after.custom == {"mine": 1}
    assert "agent" not in result.metadata["saw"]
    assert "delegation" not in result.metadata["saw"]
    assert "http" in result.metadata["saw"]
    (record,) = result.executions
    assert [change.slot for change in record.discarded] == ["request"]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("raises", "Error executing"),
        ("errs", "its own error"),
        ("exits", "answer"),
    ],
)
async def test_a_server_that_fails_is_a_failed_plugin_and_the_next_call_has_a_fresh_one(
    bench: Bench, name: str, word: str
) -> None:
    place = await bench.place(name, on_error="fail")
    for _ in range(2):
        with pytest.raises(PluginError, match=word):
            await place.call()


async def test_a_killed_server_is_replaced_by_the_next_call(bench: Bench) -> None:
    place = await bench.place("plain", on_error="ignore")
    assert (await place.call()).metadata == {"calls": 1, "env": "yes"}
    assert (await place.call()).metadata == {"calls": 2, "env": "yes"}
    gone = place.server
    place.kill()
    await gone.wait()  # what lives in the cage dies a moment after the one who holds it
    await place.call()  # this one may still meet the dead one, which is an error that is ignored
    assert (await place.call()).metadata["calls"] in {1, 2}
    assert place.server is not gone


async def test_a_hanging_hook_is_timed_out_and_its_server_lives_on(bench: Bench) -> None:
    place = await bench.place("hangs", on_error="ignore", timeout_s=0.3)
    server = place.server
    (record,) = (await place.call()).executions
    assert record.status is ControlExecutionStatus.TIMEOUT
    (record,) = (await place.call()).executions
    assert record.status is ControlExecutionStatus.TIMEOUT
    assert place.server is server


async def test_the_server_reaches_nothing_that_was_not_written_down(
    bench: Bench, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x", encoding="utf-8")
    place = await bench.place("looks", mcp=table(env={"SECRET_FILE": str(secret)}))
    found = (await place.call()).metadata
    assert set(found["reach"].values()) == {False}, found
    assert found["pid"] < 100  # a process table of its own


@pytest.mark.parametrize(
    ("name", "mcp", "word"),
    [
        ("unknown", None, "not known to its MCP server"),
        ("p", {"proto": "SSE", "url": "http://x"}, "SSE is not supported"),
        ("p", {"proto": "STDIO"}, "either cmd or script"),
        ("p", {"cmd": ["x"], "uds": "/x"}, "uds"),
        ("p", {"cmd": ["x"], "cage": {"net": ["not a target!"]}}, "cage"),
        ("p", {"cmd": ["/usr/bin/does-not-exist"]}, "cannot be reached"),
        ("p", {"cmd": ["/bin/sh", "-c", "echo broken >&2; exit 1"]}, "broken"),
        ("p", {"cmd": ["/bin/sh", "-c", OLD_SERVER]}, "1999"),
    ],
)
async def test_a_server_that_cannot_be_used_is_a_problem_of_its_entry(
    bench: Bench, name: str, mcp: Any, word: str
) -> None:
    _, problems = await bench.try_place(name, mcp=mcp)
    (problem,) = problems
    assert word in problem
    assert f"'{name}'" in problem


async def test_the_client_on_its_own(spawner: Spawner) -> None:
    server = McpServer(spawner, cage_request("t", parse_table(table())), name="t", timeout_s=20)
    known = await server.call_tool("get_plugin_config", {"name": "p"})
    assert isinstance(known, dict)
    assert known["name"] == "p"
    assert await server.call_tool("get_plugin_config", {"name": "unknown"}) is None
    with pytest.raises(McpCallFailed, match="no_such_tool"):
        await server.call_tool("no_such_tool", {})
    await server.close()
    with pytest.raises(McpServerUnavailable, match="closed"):
        await server.call_tool("get_plugin_config", {"name": "p"})


THEIRS = """
from cpex.framework import Plugin, PluginViolation, ToolPreInvokeResult

class Theirs(Plugin):
    async def tool_pre_invoke(self, payload, context):
        if payload.args["q"] == "drop":
            no = PluginViolation(reason="no drops", description="d", code="DROP")
            return ToolPreInvokeResult(continue_processing=False, violation=no)
        args = {**payload.args, "seen": context.global_context.request_id}
        return ToolPreInvokeResult(modified_payload=payload.model_copy(update={"args": args}))
"""


async def test_the_published_frameworks_own_plugin_server_serves_us_unmodified(
    bench: Bench, tmp_path: Path
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "theirs.py").write_text(THEIRS, encoding="utf-8")
    (tmp_path / "config.yaml").write_text(
        "plugins:\n  - {name: theirs, kind: theirs.Theirs, hooks: [tool_pre_invoke]}\n",
        encoding="utf-8",
    )
    place = await bench.place("theirs", mcp=framework_table(tmp_path))
    result = await place.call()
    assert result.modified_payload is not None
    assert result.modified_payload.args == {"q": "select 1", "seen": "r"}
    assert result.modified_extensions is None
    denied, _ = await place.pipeline.invoke_hook(
        HOOK, CALL.model_copy(update={"args": {"q": "drop"}}), GlobalContext("r")
    )
    assert denied.violation is not None
    assert (denied.violation.code, denied.violation.plugin_name) == ("DROP", "theirs")
