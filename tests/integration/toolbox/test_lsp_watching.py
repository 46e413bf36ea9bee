"""Files that change behind the tools' backs: servers hear of them before the next question."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import LspLab
from kaged.toolbox.lsp.filesync import folders_of
from kaged.toolbox.lsp.languages import Languages
from kaged.toolbox.lsp.polling import CHANGED, CREATED, DELETED
from kaged.toolbox.lsp.watching import ProjectWatch


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


def watching(root: Path, max_folders: int = 100, max_pending: int = 100) -> ProjectWatch:
    """Return a watch of the Python files of a folder."""
    return ProjectWatch(
        str(root),
        Languages({"python": ("x",)}),
        lambda name: name == "skipped",
        max_folders=max_folders,
        max_pending=max_pending,
    )


def heard(watch: ProjectWatch, root: Path) -> dict[str, int]:
    """Return what was heard of since the last time, polled folders included."""
    watch.drain()
    watch.note(watch.poll())
    return {str(Path(path).relative_to(root)): kind for path, kind in watch.take("python").items()}


def put(root: Path, path: str, text: str = "x") -> Path:
    """Write a file below folders."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("limit", [0, 2, 100])
def test_folders_beyond_the_limit_of_watches_are_polled(tmp_path: Path, limit: int) -> None:
    old, gone = put(tmp_path, "b/old.py"), put(tmp_path, "c/deep/gone.py")
    put(tmp_path, "a/kept.py")
    put(tmp_path, "skipped/x.py")
    watch = watching(tmp_path, max_folders=limit)
    watch.begin()
    assert heard(watch, tmp_path) == {}
    put(tmp_path, "b/old.py", "longer")
    put(tmp_path, "new/er/n.py")
    put(tmp_path, "skipped/y.py")
    put(tmp_path, "c/note.txt")
    gone.unlink()
    expected = {"b/old.py": CHANGED, "new/er/n.py": CREATED, "c/deep/gone.py": DELETED}
    assert heard(watch, tmp_path) == expected
    assert heard(watch, tmp_path) == {}
    # What a tool did is left out, and what others do to the same file later is not.
    put(tmp_path, "b/old.py", "by a tool")
    put(tmp_path, "b/made.py", "by a tool")
    watch.forget(str(old))
    watch.forget(str(tmp_path / "b/made.py"))
    assert heard(watch, tmp_path) == {}
    put(tmp_path, "b/old.py", "by a person")
    put(tmp_path, "new/er/n.py", "longer")
    assert heard(watch, tmp_path) == {"b/old.py": CHANGED, "new/er/n.py": CHANGED}
    shutil.rmtree(tmp_path / "new")
    assert heard(watch, tmp_path) == {"new/er/n.py": DELETED}
    watch.close()
    put(tmp_path, "a/kept.py", "longer")
    assert heard(watch, tmp_path) == {}


def test_what_git_ignores_is_watched_with_what_the_rest_leaves(tmp_path: Path) -> None:
    for path in ("a_out/x.py", "b_out/x.py", "z/src/x.py"):
        put(tmp_path, path)
    kept = folders_of(str(tmp_path), [b"./z/src/x.py", b"./top.py"])
    assert kept == {str(tmp_path), str(tmp_path / "z"), str(tmp_path / "z/src")}
    watch = watching(tmp_path, max_folders=4)
    watch.begin(kept)
    for path in ("a_out/x.py", "b_out/x.py", "z/src/x.py"):
        put(tmp_path, path, "longer")
    by_kernel = {str(Path(one).relative_to(tmp_path)) for one in watch.take("python")}
    assert by_kernel == {"z/src/x.py", "a_out/x.py"}
    assert heard(watch, tmp_path) == {"b_out/x.py": CHANGED}
    watch.close()


def test_more_changes_than_are_kept_in_mind_are_a_reason_to_read_all(tmp_path: Path) -> None:
    watch = watching(tmp_path, max_pending=3)
    watch.begin()
    for number in range(3):
        put(tmp_path, f"f{number}.py")
    assert not watch.missed("python")
    put(tmp_path, "f3.py")
    assert watch.missed("python")
    watch.caught_up("python")
    assert not watch.missed("python")
    assert heard(watch, tmp_path) == {}
    watch.close()
