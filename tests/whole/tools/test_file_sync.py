"""What language servers hear of files that tools read, write and move, in a running daemon.

The server is pyright, behind a relay that writes down what it is sent; a planned server stands in
where a real one would not do the odd thing that a row is about.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.servers import PYRIGHT, ServedProject

OTHER = "primary.subagents.other"
WRONG = "x: int = 'no number'\n"
RIGHT = "x: int = 1\n"


@pytest.fixture(scope="module")
def py(daemon: Daemon, module_path: Path) -> ServedProject:
    """Return a project with pyright; two files were read and written before it was started."""
    folder = module_path / "py"
    folder.mkdir()
    project = ServedProject(daemon, folder)
    project.relayed("python", PYRIGHT)
    project.write("early/read.py", "early = 1\n")
    project.call("file.read", path="early/read.py")
    project.call("file.write", path="early/written.py", content="early = 2\n")
    project.write("first.py", RIGHT)
    assert project.received() == []
    project.lsp("diagnostics", path="first.py")
    return project


@pytest.fixture
def planned(daemon: Daemon, tmp_path: Path) -> ServedProject:
    """Return a project without a server yet."""
    return ServedProject(daemon, tmp_path)


def errors(project: ServedProject, path: str, agent: str = "primary") -> int:
    """Return how many errors the server finds in a file."""
    got = project.lsp("diagnostics", agent, path=path, severity="error")
    assert got.get("complete", True) is True, got
    return int(got["count"])


@whole("AT-SYNC-03", "AT-AMB-14")
def test_files_touched_before_the_server_started_are_opened_when_it_starts(
    py: ServedProject, planned: ServedProject
) -> None:
    planned.planned("python")
    for name in ("a.py", "b.py", "c.js"):
        planned.write(name, "x\n")
    planned.call("file.read", path="a.py")
    planned.call("file.read", path="c.js")
    planned.lsp("diagnostics", path="b.py")
    assert len(planned.told("didOpen", "a.py")) == len(planned.told("didOpen", "b.py")) == 1
    assert planned.told("didOpen", "c.js") == []
    for path, text in (("early/read.py", "early = 1\n"), ("early/written.py", "early = 2\n")):
        opened = py.told("didOpen", path)[0]["textDocument"]
        assert (opened["text"], opened["languageId"]) == (text, "python")
    methods = [str(one.get("method")) for one in py.received()]
    asked = next(n for n, one in enumerate(methods) if one.startswith("textDocument/diagnostic"))
    assert methods.index("initialized") < methods.index("textDocument/didOpen") < asked
    assert "workspace/didOpen" not in methods


@whole("AT-SYNC-01")
def test_reading_a_file_opens_it_once(py: ServedProject) -> None:
    text = "b = 'caf\xe9'\n"
    py.write("one/b.py", text)
    py.write("one/picture.py", b"\0\1\2")
    py.call("file.read", path="one/b.py", limit=1)
    (opened,) = exactly(1, lambda: py.told("didOpen", "one/b.py"))
    document = opened["textDocument"]
    assert {key: document[key] for key in ("languageId", "version", "text")} == {
        "languageId": "python",
        "version": 1,
        "text": text,
    }
    py.call("file.read", path="one/b.py")
    py.call("file.read", path="one/picture.py")
    py.call("file.read", OTHER, path="one/b.py")
    py.lsp("diagnostics", path="one/b.py")
    exactly(1, lambda: py.told("didOpen", "one/b.py"))
    assert py.told("didChange", "one/b.py") == []
    assert py.told("didOpen", "one/picture.py") == []


@whole("AT-SYNC-02", "AT-FILE-37", "AT-EDIT-14", "AT-AMB-46")
def test_every_change_is_sent_whole_with_a_growing_version(
    daemon: Daemon, py: ServedProject
) -> None:
    path = "two/a.py"
    py.write(path, "a = 1\n")
    py.call("file.read", path=path)
    py.call("edit.text", path=path, old_string="1", new_string="2")
    py.call("edit.text", path=path, old_string="2", new_string="3")
    exactly(2, lambda: py.told("didChange", path))
    py.call("file.write", path=path, content="a = 4\n")
    py.call("edit.ast", path=path, rewrites={"a = $N": "a = $N + 1"}, dry_run=False)
    py.call("file.create", path="two/new.py", content="made = 1\n")
    sent = exactly(4, lambda: py.told("didChange", path))
    texts = [one["contentChanges"][-1]["text"] for one in sent]
    assert texts == ["a = 2\n", "a = 3\n", "a = 4\n", "a = 4 + 1\n"]
    assert all(set(one) == {"text"} for each in sent for one in each["contentChanges"])
    versions = [one["textDocument"]["version"] for one in sent]
    (opened,) = py.told("didOpen", path)
    assert [opened["textDocument"]["version"], *versions] == [1, 2, 3, 4, 5]
    (made,) = exactly(1, lambda: py.told("didOpen", "two/new.py"))
    assert made["textDocument"]["text"] == "made = 1\n"
    rows = daemon.audit("file.written", "file.edited", project_id=py.id)
    assert [one["event"] for one in rows if one["data"]["path"] == f"./{path}"] == [
        "file.edited",
        "file.edited",
        "file.written",
        "file.edited",
    ]


@whole("AT-SYNC-02", "AT-EAST-23")
def test_all_files_of_one_rewrite_are_told_also_those_that_nobody_had_opened(
    py: ServedProject,
) -> None:
    for name in ("a", "b"):
        py.write(f"many/{name}.py", "old_name(1)\n")
    py.call("file.read", path="many/a.py")
    py.call("edit.ast", path="many", rewrites={"old_name($A)": "print($A)"}, dry_run=False)
    exactly(1, lambda: py.told("didChange", "many/a.py"))
    exactly(1, lambda: py.told("didOpen", "many/b.py"))
    for name in ("a", "b"):
        assert last_text(py, f"many/{name}.py") == "print(1)\n"


def last_text(project: ServedProject, path: str) -> str:
    """Return what the server has for the content of a file now."""
    texts = [one["textDocument"]["text"] for one in project.told("didOpen", path)]
    changed = project.told("didChange", path)
    return str((texts + [one["contentChanges"][-1]["text"] for one in changed])[-1])


@whole("AT-SYNC-02", "AT-SYNC-07")
def test_a_rename_is_told_and_a_moved_file_is_closed_and_opened_anew(py: ServedProject) -> None:
    py.write("pack/__init__.py", "")
    py.write("pack/lib.py", "def helper() -> int:\n    return 1\n")
    py.write("pack/use.py", "from pack.lib import helper\n\nprint(helper())\n")
    py.call("file.read", path="pack/use.py")
    py.call("file.read", path="pack/lib.py")
    got = py.lsp("rename", path="pack/lib.py", line=1, symbol="helper", new_name="assistant")
    assert got["files_changed"] == 2
    for path in ("pack/lib.py", "pack/use.py"):
        wait_for(lambda path=path: py.told("didChange", path))
        assert last_text(py, path) == py.read(path)
        assert "assistant" in py.read(path)
    # What others import stays where it is, because this server does not change imports.
    py.lsp("rename_file", path="pack/use.py", new_path="pack/base.py")
    exactly(1, lambda: py.told("didClose", "pack/use.py"))
    exactly(1, lambda: py.told("didOpen", "pack/base.py"))
    assert last_text(py, "pack/base.py") == py.read("pack/base.py")
    versions = [one["textDocument"]["version"] for one in py.told("didChange", "pack/use.py")]
    assert versions == sorted(set(versions))


@whole("AT-SYNC-04", "AT-SYNC-05")
def test_an_error_that_one_agent_writes_another_sees_at_once(py: ServedProject) -> None:
    py.write("shared.py", RIGHT)
    assert errors(py, "shared.py", OTHER) == 0
    py.call("file.read", path="shared.py")
    for _ in range(3):
        py.call("edit.text", path="shared.py", old_string="1", new_string="'no number'")
        assert errors(py, "shared.py", OTHER) == 1
        py.call("edit.text", path="shared.py", old_string="'no number'", new_string="1")
        assert errors(py, "shared.py") == 0
        assert errors(py, "shared.py", OTHER) == 0


@whole("AT-SYNC-08")
def test_reading_again_brings_the_server_up_to_date(py: ServedProject) -> None:
    py.write("behind.py", RIGHT)
    py.call("file.read", path="behind.py")
    exactly(1, lambda: py.told("didOpen", "behind.py"))
    py.write("behind.py", WRONG)
    py.call("file.read", path="behind.py")
    (sent,) = exactly(1, lambda: py.told("didChange", "behind.py"))
    assert sent["contentChanges"][-1]["text"] == WRONG
    assert errors(py, "behind.py") == 1


@whole("AT-SYNC-09")
def test_what_a_command_does_to_a_file_is_told_before_the_next_question(py: ServedProject) -> None:
    for name in ("shelled.py", "other.py"):
        py.write(name, RIGHT)
        assert errors(py, name) == 0
    py.call("shell.bash", command=f"cat > shelled.py <<'E'\n{WRONG}E")
    assert errors(py, "other.py") == 0
    (sent,) = exactly(1, lambda: py.told("didChange", "shelled.py"))
    assert sent["contentChanges"][-1]["text"] == WRONG
    assert errors(py, "shelled.py") == 1


@whole("AT-SYNC-09")
def test_another_text_of_the_same_length_and_time_is_told_for_every_file(py: ServedProject) -> None:
    """As when two texts are written within one tick of the file system's clock."""
    names = ("tick/a.py", "tick/b.py")
    for name in (*names, "asked.py"):
        py.write(name, RIGHT)
        assert errors(py, name) == 0
    for number, text in enumerate(("x: str = 1\n", "x: int = 2\n", "x: str = 2\n"), 1):
        assert len(text) == len(RIGHT)
        for name in names:
            before = (py.root / name).stat()
            py.write(name, text)
            os.utime(py.root / name, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert errors(py, "asked.py") == 0
        for name in names:
            sent = exactly(number, lambda name=name: py.told("didChange", name))
            assert sent[-1]["contentChanges"][-1]["text"] == text
    assert [errors(py, name) for name in names] == [1, 1]


@whole("AT-SYNC-12", "AT-AMB-36")
def test_an_odd_name_makes_the_way_there_and_back(py: ServedProject) -> None:
    name = "\xe4 b.py"
    py.write(name, "x = 0; value = 1\nprint(value)\n")
    assert py.lsp("diagnostics", path=name)["path"] == f"./{name}"
    found = py.lsp("definition", path=name, line=2, symbol="value")["definitions"]
    # Lines count from one, characters from nought.
    places = [(one["path"], one["line"], one["character"]) for one in found]
    assert places == [(f"./{name}", 1, 7)]
    again = py.lsp("definition", path=name, line=2, character=6)["definitions"]
    assert again == found
    uris = [
        one["params"]["textDocument"]["uri"]
        for one in py.received()
        if one.get("method") == "textDocument/didOpen"
    ]
    assert f"file://{py.root}/%C3%A4%20b.py" in uris


@whole("AT-SYNC-06")
def test_after_a_crash_every_file_is_opened_again_as_it_is_now(py: ServedProject) -> None:
    for name in ("kept/a.py", "kept/b.py"):
        py.write(name, RIGHT)
        py.call("file.read", path=name)
    py.call("file.write", path="kept/b.py", content="b: int = 7\n")
    wait_for(lambda: py.told("didChange", "kept/b.py"))
    (server,) = [one for one in py.lsp("status")["servers"] if one["language"] == "python"]
    starts = len([one for one in py.received() if one.get("method") == "initialize"])
    os.kill(server["pid"], signal.SIGKILL)
    wait_for(lambda: py.daemon.audit("code.lsp.server_crashed", project_id=py.id))
    py.call("file.write", path="kept/a.py", content=WRONG)
    assert errors(py, "kept/a.py") == 1
    messages = py.received()
    begun = [n for n, one in enumerate(messages) if one.get("method") == "initialize"]
    assert len(begun) == starts + 1
    fresh = messages[begun[-1] :]
    methods = [str(one.get("method")) for one in fresh]
    asked = next(n for n, one in enumerate(methods) if one.startswith("textDocument/diagnostic"))
    opened = {
        one["params"]["textDocument"]["uri"]: one["params"]["textDocument"]["text"]
        for one in fresh[:asked]
        if one.get("method") == "textDocument/didOpen"
    }
    expected = {"kept/a.py": WRONG, "kept/b.py": "b: int = 7\n", "early/read.py": "early = 1\n"}
    for path, text in expected.items():
        assert opened[(py.root / path).as_uri()] == text, path


@whole("AT-SYNC-10")
@pytest.mark.parametrize("wanted", [True, False, {"includeText": True}])
def test_a_server_that_asks_for_it_is_told_of_saves(planned: ServedProject, wanted: object) -> None:
    sync = {"openClose": True, "change": 1, "save": wanted}
    asked = {"textDocumentSync": sync, "diagnosticProvider": {"interFileDependencies": False}}
    planned.planned("python", capabilities=asked)
    planned.write("a.py", "one\n")
    planned.lsp("diagnostics", path="a.py")
    planned.call("file.read", path="a.py")
    planned.call("edit.text", path="a.py", old_string="one", new_string="two")
    exactly(1, lambda: planned.told("didChange", "a.py"))
    exactly(1 if wanted else 0, lambda: planned.told("didSave", "a.py"))


@whole("AT-SYNC-13")
def test_files_open_under_the_names_that_the_protocol_has_for_languages(
    planned: ServedProject,
) -> None:
    wanted = {
        "a.ts": "typescript",
        "b.tsx": "typescriptreact",
        "c.js": "javascript",
        "d.jsx": "javascriptreact",
        "e.py": "python",
        "f.rs": "rust",
        "g.go": "go",
    }
    planned.planned("typescript", "javascript", "python", "rust", "go")
    for name in wanted:
        planned.write(name, "x\n")
        planned.lsp("diagnostics", path=name)
    for name, language in wanted.items():
        (opened,) = planned.told("didOpen", name)
        assert opened["textDocument"]["languageId"] == language, name


@pytest.fixture
def talkative(own: Callable[..., Daemon], tmp_path: Path) -> ServedProject:
    """Return a project of a daemon that logs everything."""
    daemon = own(config='[logging]\nlevel = "debug"\n')
    daemon.start()
    return ServedProject(daemon, tmp_path)


@whole("AT-SYNC-11")
def test_files_are_read_and_written_whatever_becomes_of_the_server(
    talkative: ServedProject,
) -> None:
    project = talkative
    project.planned("python")
    for name in ("a.py", "b.py", "shut.py"):
        project.write(name, "one\n")
        project.lsp("diagnostics", path=name)
        project.call("file.read", path=name)

    def work(number: int) -> None:
        content = f"# {number}\n" + "x = 1\n" * 20_000
        project.call("file.write", path="a.py", content=content)
        assert project.read("a.py") == content
        project.call("edit.text", path="a.py", old_string=f"# {number}\n", new_string="# end\n")
        project.call("file.create", path=f"new{number}.py", content=content)
        assert project.call("file.read", path="a.py", limit=1)["content"] == "1: # end"

    def pid() -> Any:
        servers = project.lsp("status")["servers"]
        return next(one["pid"] for one in servers if one["language"] == "python")

    os.kill(pid(), signal.SIGSTOP)  # it does not take what it is told any more
    for number in range(3):
        work(number)
    os.kill(pid(), signal.SIGCONT)
    os.kill(pid(), signal.SIGKILL)
    work(3)
    wait_for(lambda: project.daemon.audit("code.lsp.server_crashed", project_id=project.id))
    work(4)
    # A file that cannot be shown to the server stops no question, and is in the log.
    (project.root / "shut.py").chmod(0)
    project.lsp("diagnostics", path="b.py")
    assert "lsp.sync_failed" in project.daemon.log()
