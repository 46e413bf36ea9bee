"""Files that change behind the tools' backs: servers hear of them before the next question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fakes.lsp_lab import LspLab
from kaged.toolbox.lsp.languages import Languages
from kaged.toolbox.lsp.watching import CHANGED, CREATED, DELETED, ProjectWatch


def outside(lab: LspLab) -> list[tuple[str, int]]:
    """Return the file notifications the planned server got, by name."""
    return [
        (one["uri"].rpartition("/project/")[2], one["type"])
        for message in lab.received("workspace/didChangeWatchedFiles")
        for one in message["params"]["changes"]
    ]


async def test_a_server_hears_of_changes_that_no_tool_made(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.write("old.py", "x = 1\n")
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", **at)
    assert outside(lab) == []
    lab.write("b.py", "y = 1\n")
    lab.write("b.txt", "nobody's\n")
    lab.write("node_modules/c.py", "nobody's\n")
    lab.write("deep/er/d.py", "z = 1\n")
    (lab.root / "old.py").unlink()
    lab.write("a.py", "x = 2\n")  # it is open: its text is sent, as always
    await lab.lsp("hover", **at)
    assert sorted(outside(lab)) == [
        ("b.py", CREATED),
        ("deep/er/d.py", CREATED),
        ("old.py", DELETED),
    ]
    assert lab.received("textDocument/didChange")[-1]["params"]["contentChanges"] == [
        {"text": "x = 2\n"}
    ]
    lab.write("deep/er/d.py", "z = 2\n")
    (lab.root / "b.py").rename(lab.root / "e.py")
    await lab.lsp("hover", **at)
    assert sorted(outside(lab)[3:]) == [
        ("b.py", DELETED),
        ("deep/er/d.py", CHANGED),
        ("e.py", CHANGED),
    ]


async def test_what_tools_do_is_not_told_twice(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", **at)
    await lab.tool_lab.call("file.create", path="./n.py", content="n = 1\n")
    await lab.tool_lab.call("file.read", path="./n.py")
    await lab.tool_lab.call("edit.text", path="./n.py", old_string="1", new_string="2")
    await lab.lsp("hover", **at)
    assert outside(lab) == [("n.py", CREATED)]
    lab.answer("workspace/willRenameFiles", {"result": None})
    await lab.lsp("rename_file", path="./n.py", new_path="./m.py")
    await lab.lsp("hover", **at)
    assert sorted(outside(lab)[1:]) == [("m.py", CREATED), ("n.py", DELETED)]


async def test_a_server_that_starts_later_is_told_nothing_of_the_past(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", **at)
    lab.write("b.py", "y = 1\n")
    await lab.lsp("reload", path="./a.py")
    await lab.lsp("hover", **at)
    told = outside(lab)
    assert told in ([], [("b.py", CREATED)])  # it runs anew; hearing of it again does no harm


def test_many_changes_are_bounded(tmp_path: Path) -> None:
    watch = ProjectWatch(str(tmp_path), Languages({"python": ("x",)}), lambda _: False)
    watch.begin()
    for number in range(50):
        (tmp_path / f"f{number}.py").write_text("x", encoding="utf-8")
    found = watch.take("python")
    assert len(found) == 50
    assert set(found.values()) == {CREATED}
    assert watch.take("python") == {}
    watch.close()
    (tmp_path / "late.py").write_text("x", encoding="utf-8")
    assert watch.take("python") == {}
