"""What outside MCP servers try, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.outside_lab import OutsideLab
from kaged.mcp.errors import McpAnswerInvalid, McpCallFailed, McpServerUnavailable
from kaged.mcp.outside import OutsideServer
from kaged.mcp.progress import PROGRESS
from kaged.mcp.states import McpServerState
from kaged.tools import InvalidToolParams, Tool, ToolDefinition
from kaged.tools.schema import ParamSchema
from requirements import requirement


async def nothing(_call: object) -> None:
    """Stand in for a built-in tool."""


def builtin(name: str) -> Tool:
    parameters = {"type": "object", "additionalProperties": False}
    return Tool(ToolDefinition(name, "file", "The real one.", dict(parameters), {}, ()), nothing)


async def test_a_server_that_lies_about_its_tools_shadows_nothing(lab: OutsideLab) -> None:
    lab.registry.register(builtin("file.read"))
    server = await lab.start("lies")
    assert server.state is McpServerState.RUNNING
    assert set(lab.registry.names("out")) == {
        "out.file_read",
        "out.a_b",
        "out.agent-coder",
        "out.kaged_issue",
        "out.fine",
    }
    real = lab.registry.get("file.read")
    assert real is not None
    assert real.definition.description == "The real one."
    # Two tools with one name: the first stays, and the call reaches it under its own name.
    status = server.status()
    why = {str(one["original"]): one["why"] for one in _tools(status) if not one["offered"]}
    assert "taken by 'a/b'" in str(why["a.b"])
    assert "inputSchema" in str(why["no_schema"])
    assert "object" in str(why["list_schema"])
    # Its own name for itself is a claim, and harmless.
    assert status["name"] == "out"
    assert "\u202e" not in str(status["claims"])
    assert len(str(status["claims"])) <= 120


async def test_descriptions_are_labelled_and_carry_nothing_invisible(lab: OutsideLab) -> None:
    await lab.start("lies")
    entry = lab.registry.get("out.file_read")
    assert entry is not None
    said = entry.definition.description
    assert said.startswith("Tool of the outside MCP server 'out'.")
    assert "no instruction" in said
    assert "I am the real file.read" in said
    assert not {"\u202e", "\u200b", "\U000e0041"} & set(said)


async def test_schema_bombs_are_left_out_and_the_rest_is_bounded(lab: OutsideLab) -> None:
    server = await lab.start("bombs")
    assert set(lab.registry.names()) == {"out.regex", "out.chatty"}
    left_out = {one["original"]: one["why"] for one in _tools(server.status()) if one["why"]}
    assert set(left_out) == {"deep", "wide", "long", "online", "broken"}
    assert "outside" in str(left_out["online"])
    chatty = lab.registry.get("out.chatty")
    assert chatty is not None
    assert len(chatty.definition.description) < 2500
    regex = lab.registry.get("out.regex")
    assert regex is not None
    # A pattern that would take for ever counts as not matching.
    with pytest.raises(InvalidToolParams):
        ParamSchema(regex.definition.parameters).parse({"text": "a" * 60 + "!"})


async def test_a_server_with_a_thousand_tools_brings_as_many_as_there_may_be(
    lab: OutsideLab,
) -> None:
    await lab.start("many")
    assert len(lab.registry) == 256


async def test_an_endless_list_of_tools_has_an_end(lab: OutsideLab) -> None:
    server = await lab.start("pages")
    assert server.state is McpServerState.RUNNING
    assert len(lab.registry) == 0


async def test_huge_answers_are_cut_and_huge_lines_end_the_server(lab: OutsideLab) -> None:
    await lab.start("huge", output_bytes=10_000)
    answer = await lab.call("out.echo", text="x")
    assert answer["truncated"] is True
    assert len(json.dumps(answer)) < 11_000
    assert "structured" not in answer
    assert answer["from"] == "outside MCP server out"
    other = await lab.start("line", name="long-line")
    with pytest.raises(McpServerUnavailable):
        await lab.call("long-line.echo")
    crashed = await lab.recorded("mcp.server_crashed")
    assert crashed[0]["server"] == "long-line"
    await lab.until(other, McpServerState.RUNNING)  # it was started again


async def test_a_server_that_hangs_costs_its_caller_the_timeout_and_is_replaced(
    lab: OutsideLab,
) -> None:
    server = await lab.start("hangs", timeout_s=0.2)
    first = _pid(server)
    with pytest.raises(McpServerUnavailable, match="did not answer"):
        await lab.call("out.echo")
    crashed = await lab.recorded("mcp.server_crashed")
    assert "does not answer" in crashed[0]["reason"]
    await lab.until(server, McpServerState.RUNNING)
    assert _pid(server) != first


async def test_a_server_that_dies_in_a_call_is_started_again_and_then_given_up(
    lab: OutsideLab,
) -> None:
    server = await lab.start("dies")
    for attempt in range(5):
        await lab.until(server, McpServerState.RUNNING)
        with pytest.raises(McpServerUnavailable, match="ended before it answered"):
            await lab.call("out.echo")
        await lab.recorded("mcp.server_crashed", attempt + 1)
    await lab.until(server, McpServerState.FAILED)
    assert lab.waited == [1.0, 2.0, 4.0, 8.0]
    assert lab.audit.of("mcp.server_failed")[0]["total_failures"] == 5
    assert len(lab.registry) == 0, "tools of a server that was given up leave the desk"
    await server.restart()
    assert server.state is McpServerState.RUNNING
    assert lab.registry.get("out.echo") is not None


@pytest.mark.parametrize("mode", ["never", "ancient"])
async def test_a_server_that_does_not_start_is_given_up_with_a_reason(
    lab: OutsideLab, mode: str
) -> None:
    server = await lab.start(mode)
    await lab.until(server, McpServerState.FAILED)
    assert {"never": "do not want to", "ancient": "1999-01-01"}[mode] in server.note
    assert server.lines[0] == f"rogue server in mode {mode}"


async def test_calls_while_a_server_is_down_fail_at_once(lab: OutsideLab) -> None:
    server = await lab.start("good")
    await lab.call("out.echo", text="x")
    handler = lab.registry.get("out.echo")
    assert handler is not None
    server.state = McpServerState.CRASHED
    with pytest.raises(McpServerUnavailable, match="not running"):
        await lab.call("out.echo", text="x")
    server.state = McpServerState.RUNNING


async def test_noise_on_stdout_is_put_up_with_and_garbage_is_not(lab: OutsideLab) -> None:
    quiet = await lab.start("noise", name="noisy")
    assert quiet.state is McpServerState.RUNNING
    assert (await lab.call("noisy.echo", text="x"))["text"] == '{"text": "x"}'
    await lab.start("garbage")
    with pytest.raises(McpServerUnavailable):
        await lab.call("out.echo")
    crashed = await lab.recorded("mcp.server_crashed")
    assert "no messages" in crashed[0]["reason"]


async def test_a_flood_of_notifications_leads_to_one_list_and_no_harm(lab: OutsideLab) -> None:
    server = await lab.start("flood")
    assert (await lab.call("out.echo"))["text"] == "flooded"
    async with asyncio.timeout(60):
        while 1.0 not in lab.waited:  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)
    assert server.state is McpServerState.RUNNING


async def test_a_server_gets_nothing_from_the_host_when_it_asks(lab: OutsideLab) -> None:
    server = await lab.start("asks")
    assert (await lab.call("out.echo"))["text"] == "asked"
    assert server.state is McpServerState.RUNNING


@pytest.mark.parametrize(
    ("mode", "kind", "words"),
    [
        ("fails", McpCallFailed, "the disk is full"),
        ("refuses", McpCallFailed, "not today"),
        ("nonsense", McpAnswerInvalid, "invalid tool result"),
    ],
)
async def test_a_failing_tool_is_an_error_with_its_own_words(
    lab: OutsideLab, mode: str, kind: type[Exception], words: str
) -> None:
    await lab.start(mode)
    with pytest.raises(kind, match=words):
        await lab.call("out.echo")


async def test_an_answer_that_is_not_the_declared_one_is_refused_and_recorded(
    lab: OutsideLab,
) -> None:
    await lab.start("typed")
    assert (await lab.call("out.echo", text="x"))["structured"] == {"n": 1}
    with pytest.raises(McpAnswerInvalid, match="does not match its schema"):
        await lab.call("out.echo")
    assert lab.audit.of("mcp.answer_invalid")[0]["tool"] == "out.echo"


async def test_a_server_reaches_nothing_outside_its_cage(
    lab: OutsideLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAEMON_SECRET", "not for servers")
    secret = tmp_path / "secret.txt"
    secret.write_text("for the operator only", encoding="utf-8")
    listener = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    paths = [str(secret), "/etc/shadow", str(Path.home() / ".bashrc"), "/proc/1/environ"]
    await lab.start("looks", *paths, env={"PORT": str(port), "GIVEN": "yes"})
    found = json.loads((await lab.call("out.echo"))["text"])
    listener.close()
    assert found[str(secret)] == "FileNotFoundError"
    assert found["/etc/shadow"] in {"FileNotFoundError", "PermissionError"}
    assert "secret" not in found["/proc/1/environ"].lower()
    assert found["write"] != "wrote"
    assert found["net"] != "connected"
    assert "GIVEN" in found["env"]
    assert "DAEMON_SECRET" not in found["env"]


async def test_a_changed_tool_is_noticed_held_back_and_recorded(lab: OutsideLab) -> None:
    server = await lab.start("rug")
    agreed = lab.audit.of("mcp.tools_approved")
    assert agreed == [{**agreed[0], "server": "out", "tools": ["echo"], "how": "first use"}]
    await lab.call("out.echo", text="change")
    changed = await lab.recorded("mcp.tool_changed", 2)
    assert {(one["tool"], one["what"], one["offered"]) for one in changed} == {
        ("echo", "changed", False),
        ("extra", "added", False),
    }
    assert changed[0]["before"] != changed[0]["after"]
    async with asyncio.timeout(60):
        while lab.registry.get("out.echo") is not None:  # noqa: ASYNC110 - the host sets no event
            await asyncio.sleep(0.01)
    assert server.status()["pending"] == 2
    # Neither a restart of the server nor one of the daemon makes it forget.
    await server.restart()
    assert len(lab.registry) == 0
    lab.approvals.load()
    await server.restart()
    assert len(lab.registry) == 0
    await server.approve("req_1", "ann")
    assert set(lab.registry.names()) == {"out.echo", "out.extra"}
    entry = lab.registry.get("out.echo")
    assert entry is not None
    assert "path" in str(entry.definition.parameters)
    assert lab.audit.of("mcp.tools_approved")[-1]["how"] == "operator"


async def test_what_was_agreed_to_must_be_kept_or_nothing_is_offered(
    lab: OutsideLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lab.approvals, "agree", full)
    server = await lab.start("good")
    await lab.until(server, McpServerState.FAILED)
    assert "No space left" in server.note
    assert len(lab.registry) == 0


async def test_an_operator_who_follows_changes_has_them_on_record(lab: OutsideLab) -> None:
    await lab.start("rug", follow=True)
    await lab.call("out.echo", text="change")
    changed = await lab.recorded("mcp.tool_changed", 2)
    assert all(one["offered"] for one in changed)
    async with asyncio.timeout(60):
        while lab.registry.get("out.extra") is None:  # noqa: ASYNC110 - the host sets no event
            await asyncio.sleep(0.01)


async def test_a_given_up_call_is_cancelled_on_the_wire_and_progress_comes_through(
    lab: OutsideLab,
) -> None:
    await lab.start("slow")
    heard: list[tuple[float, float | None, str]] = []
    enough = asyncio.Event()

    def hear(done: float, total: float | None, message: str) -> None:
        heard.append((done, total, message))
        if len(heard) == 3:
            enough.set()

    PROGRESS.set(hear)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(lab.call("out.echo"))
        async with asyncio.timeout(60):
            await enough.wait()
        call.cancel()
    assert heard == [(0.0, 3.0, "step"), (1.0, 3.0, "step"), (2.0, 3.0, "step")]
    async with asyncio.timeout(60):
        while not (lab.state / "cancelled").exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)


@requirement("AT-AMB-50")
async def test_tools_are_named_after_their_server_and_called_by_their_own_names(
    lab: OutsideLab,
) -> None:
    lab.registry.register(builtin("file.read"))
    server = await lab.start("named", name="web-kit")
    assert lab.registry.names("web-kit") == ("web-kit.a_b", "web-kit.getUser")
    later = next(one for one in _tools(server.status()) if one["original"] == "a.b")
    assert str(later["why"]).startswith("tool_name_collision")
    for name, original in (("web-kit.a_b", "a/b"), ("web-kit.getUser", "getUser")):
        entry = lab.registry.get(name)
        assert entry is not None
        assert (entry.definition.source.value, entry.definition.plugin_name) == (
            "plugin",
            "web-kit",
        )
        assert (await lab.call(name))["text"] == original


def _tools(status: Any) -> list[dict[str, Any]]:
    return status["tools"]


def _pid(server: OutsideServer) -> object:
    return server.status()["pid"]
