"""A rename over many files that fails at each of them."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import LspLab, span
from kaged.workspace import batch
from kaged.workspace.errors import FileWriteFailed
from requirements import requirement

FILES = 200


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
    # Each place takes as many writes as files before it, and as many to take them back.
    for failing in (0, 1, FILES // 2, FILES - 1):
        state.update(done=0, failing=failing)
        refusal = await lab.tool_lab.refusal("code.lsp", **rename, new_name="new")
        assert refusal.code == "file_write_failed"
        assert contents(lab) == before, f"file {failing}"
    assert lab.tool_lab.audit.of("file.edited") == []
    monkeypatch.setattr(batch, "put", real)
    said = await lab.tool_lab.call("code.lsp", **rename, new_name="new")
    assert said["files_changed"] == FILES
    assert set(contents(lab).values()) == {b"new = 1\n"}
