"""A language server's life: start, one at a time, crash, hang, idle, reload, end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import ALL_CAPABILITIES, LspLab, span
from fakes.tool_lab import cage
from kaged.base import ManualClock
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp import ServerStopReason
from kaged.toolbox.lsp.server import LspServer
from requirements import requirement


def pid(lab: LspLab, language: str = "python") -> int | None:
    server = lab.bridge.pool.running(language)
    return None if server is None else server.pid


def gone(number: int) -> bool:
    return not Path(f"/proc/{number}").exists()


@requirement("AT-LSP-05")
async def test_nothing_runs_before_the_first_question(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.lsp("status")
    assert pid(lab) is None
    await lab.lsp("diagnostics", path="./a.py")
    assert pid(lab) is not None
    assert lab.events[0] == (
        "code.lsp.server_spawned",
        {"language": "python", "command": list(lab.fake_command())},
    )


@requirement("AT-LSP-04")
async def test_all_agents_share_one_server_per_language(lab: LspLab) -> None:
    lab.write("a.py", "ERR\n")
    other = lab.tool_lab_for(cage("ro ./", root=lab.root), "ses_2", "primary.subagents.coder")
    async with asyncio.TaskGroup() as group:
        for tool_lab in (lab.tool_lab, other, lab.tool_lab):
            group.create_task(tool_lab.call("code.lsp", action="diagnostics", path="./a.py"))
    assert lab.methods().count("initialize") == 1
    assert lab.event_names() == ["code.lsp.server_spawned"]


@requirement("AT-LSP-06", "AT-SYNC-03", "AT-AMB-14")
async def test_the_handshake_is_in_order_and_ends_with_the_known_files(lab: LspLab) -> None:
    lab.write("a.py", "a = 1\n")
    lab.write("b.py", "b = 1\n")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.lsp("diagnostics", path="./b.py")
    first, second, *rest = lab.received()
    assert first["method"] == "initialize"
    assert first["params"]["rootUri"] == lab.uri(".").rstrip("/.")
    assert first["params"]["workspaceFolders"][0]["uri"] == lab.uri(".").rstrip("/.")
    assert second["method"] == "initialized"
    opened = [one["params"]["textDocument"]["uri"] for one in rest if "didOpen" in one["method"]]
    assert opened == [lab.uri("a.py"), lab.uri("b.py")]


@requirement("AT-LSP-16")
async def test_the_command_is_started_without_a_shell(tmp_path: Path) -> None:
    lab = LspLab(tmp_path)
    odd = (*lab.fake_command()[:2], *lab.fake_command()[2:], "; touch /tmp/never")
    lab.bridge.pool._slots["python"].command = odd
    lab.write("a.py", "x\n")
    await lab.lsp("diagnostics", path="./a.py")
    server = lab.bridge.pool.running("python")
    assert server is not None
    raw = Path(f"/proc/{server.pid}/cmdline").read_bytes().split(b"\0")
    assert b"; touch /tmp/never" in raw
    await lab.close()


@requirement("AT-LSP-20")
async def test_questions_go_out_one_at_a_time_in_order(
    lab: LspLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.write("a.py", "x = 1\n")
    real, waiting, most = LspServer.request, [0], [0]

    async def request(self: LspServer, *args: Any, **kwargs: Any) -> Any:
        # The planned server reads nothing while it thinks, so what is sent is counted here.
        waiting[0] += 1
        most[0] = max(most[0], waiting[0])
        try:
            return await real(self, *args, **kwargs)
        finally:
            waiting[0] -= 1

    monkeypatch.setattr(LspServer, "request", request)
    lab.answer("textDocument/hover", {"result": None, "sleep_s": 0.2})
    await lab.lsp("diagnostics", path="./a.py")
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(lab.lsp("hover", path="./a.py", line=1, character=0))
        group.create_task(lab.lsp("definition", path="./a.py", line=1, character=0))
        await asyncio.sleep(0.1)
        assert lab.methods().count("textDocument/hover") == 1
        lab.answer("textDocument/definition", {"result": None})
    assert most == [1]
    assert [one for one in lab.methods() if "hover" in one or "definition" in one] == [
        "textDocument/hover",
        "textDocument/hover",
        "textDocument/hover",
        "textDocument/definition",
    ]


@requirement("AT-LSP-22", "AT-FAIL-03", "AT-AMB-17", "AT-AUD-07", "AT-SYNC-06")
async def test_a_server_that_dies_fails_one_call_and_is_back_for_the_next(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.write("b.py", "y = 1\n")
    await lab.tool_lab.call("file.read", path="./b.py")
    await lab.lsp("diagnostics", path="./a.py")
    lab.answer("textDocument/hover", "die")
    refusal = await lab.tool_lab.refusal(
        "code.lsp", action="hover", path="./a.py", line=1, character=0
    )
    assert refusal.code == "lsp_server_unavailable"
    lab.answer("textDocument/hover", {"result": {"contents": "int"}})
    before = len(lab.received())
    assert (await lab.lsp("hover", path="./a.py", line=1, character=0))["content"] == "int"
    again = [one.get("method") for one in lab.received()[before:]]
    assert again.count("textDocument/didOpen") == 2
    assert max(i for i, one in enumerate(again) if one == "textDocument/didOpen") < again.index(
        "textDocument/hover"
    )
    name, data = lab.events[1]
    assert name == "code.lsp.server_crashed"
    assert (data["language"], data["exit_code"], data["restart_count"]) == ("python", 9, 0)


@requirement("AT-LSP-23")
async def test_a_server_that_keeps_dying_is_given_up_for_the_session(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.plan(die_at_start=True)
    for _ in range(6):
        refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./a.py")
        assert refusal.code == "lsp_server_unavailable"
    assert lab.methods().count("initialize") == 4
    lab.plan(die_at_start=False)
    assert (await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./a.py")).code == (
        "lsp_server_unavailable"
    )
    newer = lab.tool_lab_for(session_id="ses_new")
    assert (await newer.call("code.lsp", action="diagnostics", path="./a.py"))["count"] == 0


@requirement("AT-LSP-53", "AT-AUD-08")
async def test_reload_brings_back_a_server_that_was_given_up(lab: LspLab) -> None:
    lab.write("a.py", "ERR\n")
    await lab.lsp("diagnostics", path="./a.py")
    first = pid(lab)
    lab.answer("textDocument/hover", "die")
    for _ in range(5):
        await lab.tool_lab.refusal("code.lsp", action="hover", path="./a.py", line=1, character=0)
    lab.plan(answers={})
    before = len(lab.received())
    assert await lab.lsp("reload") == {"reloaded": ["python"], "count": 1}
    await lab.until(
        lambda: "textDocument/didOpen" in [one.get("method") for one in lab.received()[before:]]
    )
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 1
    assert pid(lab) not in (None, first)
    await lab.lsp("reload", language="python")
    assert ("code.lsp.server_stopped", {"language": "python", "reason": "reload"}) in lab.events


@requirement("AT-LSP-21", "AT-FAIL-04")
async def test_a_server_that_hangs_is_killed_and_starts_again(tmp_path: Path) -> None:
    lab = LspLab(tmp_path, limit_s=1.0)
    lab.write("a.py", "x = 1\n")
    await lab.lsp("diagnostics", path="./a.py")
    hung = pid(lab)
    lab.answer("textDocument/hover", "hang")
    refusal = await lab.tool_lab.refusal(
        "code.lsp", action="hover", path="./a.py", line=1, character=0
    )
    assert refusal.code == "lsp_timeout"
    assert hung is not None
    assert gone(hung)
    assert lab.event_names()[-1] == "code.lsp.server_crashed"
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 0
    assert lab.bridge.pool.status("python")["restart_count"] == 1
    await lab.close()


@requirement("AT-LSP-07", "AT-AUD-08")
async def test_an_unused_server_is_stopped_after_ten_minutes(
    tmp_path: Path, clock: ManualClock
) -> None:
    lab = LspLab(tmp_path, clock=clock)
    lab.write("a.py", "x = 1\n")
    await lab.lsp("diagnostics", path="./a.py")
    number = pid(lab)
    assert number is not None
    clock.advance(599)
    await lab.bridge.pool.stop_idle()
    assert not gone(number)
    clock.advance(2)
    await lab.bridge.pool.stop_idle()
    assert gone(number)
    assert lab.methods()[-2:] == ["shutdown", "exit"]
    assert lab.events[-1] == (
        "code.lsp.server_stopped",
        {"language": "python", "reason": "idle_timeout"},
    )
    await lab.lsp("diagnostics", path="./a.py")
    assert pid(lab) not in (None, number)
    assert lab.bridge.pool.status("python")["restart_count"] == 0
    await lab.close()


@requirement("AT-LSP-08", "AT-LSP-09", "AT-AUD-08")
@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.parametrize("reason", [ServerStopReason.PROJECT, ServerStopReason.DAEMON])
async def test_the_end_of_a_project_leaves_no_process(
    tmp_path: Path, reason: ServerStopReason, stubborn: bool
) -> None:
    lab = LspLab(tmp_path)
    lab.plan(ignore_exit=stubborn)
    lab.write("a.py", "x = 1\n")
    await lab.lsp("diagnostics", path="./a.py")
    number = pid(lab)
    assert number is not None
    await lab.bridge.close(reason)
    assert gone(number)
    assert lab.events[-1][1]["reason"] == reason.value
    refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./a.py")
    assert refusal.code == "lsp_server_unavailable"
    await lab.close()


@requirement("AT-LSP-14", "AT-FAIL-02")
async def test_a_missing_program_says_how_to_get_it(tmp_path: Path) -> None:
    commands = {"python": ("pyright-langserver", "--stdio")}
    lab = LspLab(tmp_path, commands=commands, environ={"PATH": ""}, tools=file_tools())
    lab.write("a.py", "x = 1\n")
    refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./a.py")
    assert refusal.code == "lsp_server_not_found"
    assert isinstance(refusal.detail, dict)
    assert refusal.detail["language"] == "python"
    assert refusal.detail["command"] == ["pyright-langserver", "--stdio"]
    assert "install" in str(refusal.detail["install"])
    assert "x = 1" in (await lab.tool_lab.call("file.read", path="./a.py"))["content"]
    await lab.close()


@requirement("AT-LSP-15")
async def test_a_file_of_no_known_language_has_no_server(lab: LspLab) -> None:
    lab.write("notes.xyz", "?\n")
    refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./notes.xyz")
    assert refusal.code == "lsp_server_not_found"
    assert lab.events == []


@requirement("AT-LSP-18", "AT-LSP-19")
async def test_whatever_the_server_asks_is_answered_and_changes_nothing(lab: LspLab) -> None:
    file = lab.write("a.py", "x = 1\n")
    edit = {"changes": {lab.uri("a.py"): [{"range": _all(), "newText": "hacked"}]}}
    asked: list[dict[str, Any]] = [
        {"id": "c1", "method": "workspace/configuration", "params": {"items": [{}, {}]}},
        {"id": 2, "method": "client/registerCapability", "params": {"registrations": []}},
        {"id": 3, "method": "window/workDoneProgress/create", "params": {"token": "t"}},
        {
            "method": "$/progress",
            "params": {"token": "t", "value": {"kind": "end"}},
        },
        {"id": 4, "method": "workspace/applyEdit", "params": {"edit": edit}},
        {"id": 5, "method": "workspace/workspaceFolders"},
        {"id": 6, "method": "some/unknown", "params": {}},
        {"method": "telemetry/event", "params": {}},
    ]
    lab.plan(before={"textDocument/hover": asked})
    lab.answer("textDocument/hover", {"result": {"contents": "int"}})
    assert (await lab.lsp("hover", path="./a.py", line=1, character=0))["content"] == "int"
    await lab.lsp("diagnostics", path="./a.py")  # the server has read all of it by now
    answers = {one["id"]: one for one in lab.received() if "method" not in one}
    assert answers["c1"]["result"] == [None, None]
    assert answers[2]["result"] is None
    assert answers[3]["result"] is None
    assert answers[4]["result"]["applied"] is False
    assert answers[5]["result"][0]["uri"] == lab.uri(".").rstrip("/.")
    assert answers[6]["error"]["code"] == -32601
    assert file.read_text("utf-8") == "x = 1\n"


@requirement("AT-LSP-57")
async def test_an_error_of_the_server_is_passed_on_and_the_server_stays(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.answer("textDocument/hover", {"error": {"code": -32803, "message": "request failed"}})
    await lab.lsp("diagnostics", path="./a.py")
    number = pid(lab)
    refusal = await lab.tool_lab.refusal(
        "code.lsp", action="hover", path="./a.py", line=1, character=0
    )
    assert isinstance(refusal.detail, dict)
    assert (refusal.detail["code"], refusal.detail["message"]) == (-32803, "request failed")
    assert pid(lab) == number


@requirement("AT-LSP-58")
async def test_the_first_call_waits_while_the_server_loads(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.answer("textDocument/definition", {"result": []})
    begin = {"method": "$/progress", "params": {"token": 1, "value": {"kind": "begin"}}}
    lab.plan(on_initialized=[begin])
    async with asyncio.TaskGroup() as group:
        call = group.create_task(lab.lsp("definition", path="./a.py", line=1, character=0))
        await lab.until(lambda: "textDocument/definition" in lab.methods())
        await asyncio.sleep(0.2)
        assert not call.done()
        found = [{"uri": lab.uri("a.py"), "range": _all()}]
        lab.answer("textDocument/definition", {"result": found})
        server = lab.bridge.pool.running("python")
        assert server is not None
        server.loading.progressed({"token": 1, "value": {"kind": "end"}})
        assert len((await call)["definitions"]) == 1


@pytest.mark.parametrize("fault", ["garbage", "flood"])
async def test_garbage_and_floods_never_hang_a_caller(lab: LspLab, fault: str) -> None:
    lab.write("a.py", "x = 1\n")
    lab.answer("textDocument/hover", fault)
    async with asyncio.timeout(30):
        if fault == "garbage":
            refusal = await lab.tool_lab.refusal(
                "code.lsp", action="hover", path="./a.py", line=1, character=0
            )
            assert refusal.code == "lsp_server_unavailable"
        else:
            assert (await lab.lsp("hover", path="./a.py", line=1, character=0))["content"] is None
        lab.plan(answers={})
        assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 0


@requirement("AT-LSP-52")
async def test_status_tells_of_every_server_and_starts_none(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    (before,) = (await lab.lsp("status"))["servers"]
    assert (before["state"], before["pid"]) == ("not_started", None)
    await lab.lsp("diagnostics", path="./a.py")
    status = await lab.lsp("status", path="./a.py")
    (after,) = status["servers"]
    assert status["count"] == 1
    assert after["state"] == "running"
    assert after["pid"] == pid(lab)
    assert after["open_files"] == 1
    assert after["command"] == list(lab.fake_command())
    assert after["idle_seconds"] >= 0


@requirement("AT-LSP-54")
async def test_capabilities_come_back_as_the_server_said_them(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    said = await lab.lsp("capabilities", path="./a.py")
    assert said["capabilities"] == ALL_CAPABILITIES
    assert said["language"] == "python"
    assert said["server_info"] == {"name": "fake", "version": "1"}
    assert said["position_encoding"] == "utf-16"
    refusal = await lab.tool_lab.refusal("code.lsp", action="capabilities")
    assert refusal.code == "invalid_params"


@requirement("AT-LSP-55", "AT-LSP-56")
async def test_raw_requests_are_for_callers_without_a_cage(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.answer("textDocument/foldingRange", {"result": [{"startLine": 0, "endLine": 1}]})
    params: dict[str, Any] = {"textDocument": {"uri": lab.uri("a.py")}}
    said = await lab.lsp(
        "request", path="./a.py", method="textDocument/foldingRange", params=params
    )
    assert said == {
        "method": "textDocument/foldingRange",
        "result": [{"startLine": 0, "endLine": 1}],
    }
    for method in ("initialize", "shutdown", "exit", "textDocument/didOpen"):
        refusal = await lab.tool_lab.refusal(
            "code.lsp", action="request", path="./a.py", method=method
        )
        assert refusal.code == "invalid_params"
    caged = lab.tool_lab_for(cage("rw ./", root=lab.root))
    refusal = await caged.refusal(
        "code.lsp", action="request", path="./a.py", method="textDocument/foldingRange"
    )
    assert refusal.code == "capability_denied"


def _all() -> dict[str, Any]:
    return {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}


@requirement("AT-BEY-05")
async def test_a_question_that_nobody_waits_for_any_more_is_cancelled(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    lab.answer("textDocument/hover", "hang")
    asking = asyncio.ensure_future(lab.lsp("hover", **at))  # noqa: TID251 - awaited below
    await lab.until(lambda: bool(lab.received("textDocument/hover")))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await lab.until(lambda: bool(lab.received("$/cancelRequest")))
    (question,) = lab.received("textDocument/hover")
    (cancelled,) = lab.received("$/cancelRequest")
    assert cancelled["params"] == {"id": question["id"]}
    lab.answer("textDocument/hover", {"result": {"contents": "an x"}})
    assert (await lab.lsp("hover", **at))["content"] == "an x"
    assert lab.methods().count("initialize") == 1


async def test_a_rename_waits_for_the_whole_project_and_is_refused_before(lab: LspLab) -> None:
    lab.write("a.py", "old = 1\n")
    lab.answer("textDocument/hover", {"result": None})
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    edit = {"range": span(0, 0, 3), "newText": "new"}
    lab.answer("textDocument/rename", {"result": {"changes": {lab.uri("a.py"): [edit]}}})
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    await lab.lsp("hover", **at)
    server = lab.bridge.pool.running("python")
    assert server is not None
    server.loading.progressed({"token": 1, "value": {"kind": "begin"}})
    lab.bridge.limit_s = 0.05
    refusal = await lab.tool_lab.refusal("code.lsp", action="rename", new_name="new", **at)
    assert refusal.code == "rename_not_possible"
    assert refusal.detail == {"indexing": True}
    assert lab.received("textDocument/rename") == []
    lab.bridge.limit_s = 30.0
    renaming = asyncio.ensure_future(lab.lsp("rename", new_name="new", **at))  # noqa: TID251 - awaited below
    for _ in range(50):
        await asyncio.sleep(0)
    assert not renaming.done()
    server.loading.progressed({"token": 1, "value": {"kind": "end"}})
    assert (await renaming)["files_changed"] == 1
    assert (lab.root / "a.py").read_text("utf-8") == "new = 1\n"
