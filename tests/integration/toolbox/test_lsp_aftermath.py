"""With `diagnose_edits` the result of a change says what it broke, if a server runs already."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fakes.lsp_lab import LspLab
from fakes.tool_lab import ToolLab
from kaged.base import JsonObject
from kaged.toolbox.ast import AstWorkers, WorkerEngine, ast_tools
from kaged.toolbox.files import file_tools
from kaged.toolbox.lsp.aftermath import EditDiagnosis
from kaged.toolbox.search import EngineRunner, RipgrepEngine
from requirements import requirement


class Watched(LspLab):
    """The lab with watched file tools; `there` False is a project without a bridge."""

    def __init__(self, folder: Path, wait_s: float = 20.0) -> None:
        self.there = True
        self.diagnosis = EditDiagnosis(lambda _: self.bridge if self.there else None, wait_s)
        read, *changing = file_tools()
        super().__init__(folder, tools=(read, *map(self.diagnosis.watch, changing)))


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    made = Watched(tmp_path)
    yield made
    await made.close()


@requirement("AT-BEY-16")
async def test_a_change_tells_what_it_broke(watched: Watched) -> None:
    watched.write("a.py", "fine\nold ERR\n")
    await watched.lsp("diagnostics", path="./a.py")
    await watched.tool_lab.call("file.read", path="a.py")
    edited = await watched.tool_lab.call(
        "edit.text", path="a.py", old_string="fine", new_string="ERR"
    )
    (new,) = edited["diagnostics"]
    assert (new["path"], new["line"], new["severity"]) == ("./a.py", 1, "error")
    again = await watched.tool_lab.call(
        "edit.text", path="a.py", old_string="old", new_string="new"
    )
    assert again["diagnostics"] == []
    written = await watched.tool_lab.call("file.write", path="a.py", content="fine\n")
    assert written["diagnostics"] == []
    made = await watched.tool_lab.call("file.create", path="b.py", content="ERR\nERR\n")
    assert [one["line"] for one in made["diagnostics"]] == [1, 2]


async def test_no_server_is_started_for_it(watched: Watched) -> None:
    watched.write("a.py", "fine\n")
    await watched.tool_lab.call("file.read", path="a.py")
    edited = await watched.tool_lab.call(
        "edit.text", path="a.py", old_string="fine", new_string="ERR"
    )
    assert "diagnostics" not in edited
    assert watched.bridge.pool.running("python") is None
    await watched.lsp("diagnostics", path="./a.py")
    text = await watched.tool_lab.call("file.create", path="notes.txt", content="ERR\n")
    assert "diagnostics" not in text
    watched.there = False
    other = await watched.tool_lab.call("file.create", path="b.py", content="ERR\n")
    assert "diagnostics" not in other


async def test_a_server_that_does_not_answer_holds_no_edit_up(tmp_path: Path) -> None:
    lab = Watched(tmp_path, wait_s=0.2)
    try:
        lab.write("a.py", "fine\n")
        await lab.lsp("diagnostics", path="./a.py")
        lab.answer("textDocument/diagnostic", "hang")
        await lab.tool_lab.call("file.read", path="a.py")
        async with asyncio.timeout(60):
            edited = await lab.tool_lab.call(
                "edit.text", path="a.py", old_string="fine", new_string="ERR"
            )
        assert "diagnostics" not in edited
        assert (lab.root / "a.py").read_text(encoding="utf-8") == "ERR\n"
    finally:
        await lab.close()


async def test_an_applied_rewrite_tells_of_all_its_files(watched: Watched) -> None:
    workers = AstWorkers(watched.spawner)
    finder = RipgrepEngine(EngineRunner(watched.spawner))
    edit = ast_tools(WorkerEngine(workers), finder)[1]
    tool_lab = ToolLab(watched.root, [watched.diagnosis.watch(edit)], workspace=watched.workspace)
    try:
        for name in ("a.py", "b.py"):
            watched.write(name, "fine(1)\n")
        await watched.lsp("diagnostics", path="./a.py")
        asked: JsonObject = {"rewrites": {"fine($X)": "ERR($X)"}, "lang": "python"}
        tried = await tool_lab.call("edit.ast", **asked)
        assert "diagnostics" not in tried
        applied = await tool_lab.call("edit.ast", **asked, dry_run=False)
        assert [one["path"] for one in applied["diagnostics"]] == ["./a.py", "./b.py"]
    finally:
        await workers.close()


async def test_a_failed_change_fails_as_always(watched: Watched) -> None:
    watched.write("a.py", "fine\n")
    await watched.lsp("diagnostics", path="./a.py")
    error = await watched.tool_lab.refusal("file.write", path="a.py", content="x")
    assert error.code == "file_not_read"
