"""A language server's life: one question at a time, garbage, idleness, indexing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import LspLab, span
from kaged.base import ManualClock
from kaged.toolbox.lsp import ServerStopReason
from kaged.toolbox.lsp.server import LspServer
from requirements import requirement


def pid(lab: LspLab, language: str = "python") -> int | None:
    server = lab.bridge.pool.running(language)
    return None if server is None else server.pid


def gone(number: int) -> bool:
    return not Path(f"/proc/{number}").exists()


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
    lab.answer("textDocument/hover", {"result": None, "sleep_s": 0.05})
    lab.answer("textDocument/definition", {"result": None})
    await lab.lsp("diagnostics", path="./a.py")
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(lab.lsp("hover", path="./a.py", line=1, character=0))
        group.create_task(lab.lsp("definition", path="./a.py", line=1, character=0))
    assert most == [1]
    assert [one for one in lab.methods() if "hover" in one or "definition" in one] == [
        "textDocument/hover",
        "textDocument/hover",
        "textDocument/hover",
        "textDocument/definition",
    ]


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
    # It was asked first, as the protocol has it, and only then killed.
    assert [one["method"] for one in lab.received("shutdown", "exit")] == ["shutdown", "exit"]
    assert lab.events[-1][1]["reason"] == reason.value
    refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./a.py")
    assert refusal.code == "lsp_server_unavailable"
    await lab.close()


async def test_garbage_never_hangs_a_caller(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.answer("textDocument/hover", "garbage")
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    refusal = await lab.tool_lab.refusal("code.lsp", action="hover", **at)
    assert refusal.code == "lsp_server_unavailable"
    lab.plan(answers={})
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 0


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
