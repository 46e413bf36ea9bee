"""Many agents on one server, and a rename over many files that fails at each of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import LspLab, span
from fakes.tool_lab import cage
from kaged.workspace import batch
from kaged.workspace.errors import FileWriteFailed
from requirements import requirement

FILES = 200
AGENTS = 20


@requirement("AT-LSP-04")
async def test_twenty_agents_share_one_server_and_have_their_turns(lab: LspLab) -> None:
    for number in range(AGENTS):
        lab.write(f"src/f{number}.py", "ERR\n" * (number + 1))
    tool_labs = [
        lab.tool_lab_for(
            cage("ro ./src", root=lab.root), f"ses_{number}", f"primary.subagents.a{number}"
        )
        for number in range(AGENTS)
    ]
    async with asyncio.timeout(60):
        answers: list[Any] = await asyncio.gather(
            *(
                tool_lab.call("code.lsp", action="diagnostics", path=f"./src/f{number}.py")
                for number, tool_lab in enumerate(tool_labs)
            )
        )
    assert [one["count"] for one in answers] == list(range(1, AGENTS + 1))
    assert lab.methods().count("initialize") == 1
    assert lab.event_names() == ["code.lsp.server_spawned"]


def contents(lab: LspLab) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in lab.root.rglob("*.py")}


@pytest.fixture
async def quick_lab() -> AsyncIterator[LspLab]:
    """Yield a project in memory: 200 renames of 200 files are no work for a disk."""
    with tempfile.TemporaryDirectory(prefix="kaged-test-", dir="/dev/shm") as folder:
        made = LspLab(Path(folder))
        yield made
        await made.close()


@requirement("AT-LSP-43")
async def test_a_rename_over_200_files_is_whole_or_did_not_happen(
    quick_lab: LspLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = quick_lab
    names = [f"src/f{number:03}.py" for number in range(FILES)]
    for name in names:
        lab.write(name, "old = 1\n")
    edit = {"range": span(0, 0, 3), "newText": "new"}
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    lab.answer(
        "textDocument/rename", {"result": {"changes": {lab.uri(name): [edit] for name in names}}}
    )
    before = contents(lab)
    real = batch.put
    state = {"done": 0, "failing": 0}

    def put(*args: Any, **kwargs: Any) -> Any:
        state["done"] += 1
        if state["done"] == state["failing"] + 1:
            raise FileWriteFailed("./x", "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(batch, "put", put)
    rename = {"action": "rename", "path": f"./{names[0]}", "line": 1, "character": 0}
    monkeypatch.setattr(batch, "sync_filesystem", lambda *_: None)  # it is the whole machine's
    for failing in range(FILES):
        state.update(done=0, failing=failing)
        refusal = await lab.tool_lab.refusal("code.lsp", **rename, new_name="new")
        assert refusal.code == "file_write_failed"
        assert contents(lab) == before, f"file {failing}"
    assert lab.tool_lab.audit.of("file.edited") == []
    monkeypatch.setattr(batch, "put", real)
    said = await lab.tool_lab.call("code.lsp", **rename, new_name="new")
    assert said["files_changed"] == FILES
    assert set(contents(lab).values()) == {b"new = 1\n"}
