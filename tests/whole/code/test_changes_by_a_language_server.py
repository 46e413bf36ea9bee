"""Changes that a language server proposes: fixes that are shown, renames that are made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of, rows_of
from whole.harness.code import ALL_CAPABILITIES, PlannedServer, span
from whole.harness.project import Project

CANARY = "CANARY_7f3"
READER = path_of("reader")
WRITER = path_of("writer")
AT = {"line": 1, "character": 0}


@pytest.fixture
def server(project: Project) -> PlannedServer:
    """Return a planned server, with a reader of `src` and a writer of it who also reads `lib`."""
    return PlannedServer(
        project,
        subagents={
            "reader": agent("code.*", cage=caged("ro:./src")),
            "writer": agent("code.*", cage=caged("rw:./src", "ro:./lib")),
            "both": agent("code.*", cage=caged("rw:./src")),
        },
    )


@whole("AT-LSP-47", "AT-LSP-48")
def test_code_actions_inform_and_change_nothing(server: PlannedServer) -> None:
    server.project.write("a.py", "ERR naem\n")
    changes = {server.uri("a.py"): [{"range": span(0, 4, 8), "newText": "name"}]}
    fix = {
        "title": "Change spelling to 'name'",
        "kind": "quickfix",
        "isPreferred": True,
        "edit": {"changes": changes},
    }
    command = {"title": "Organize", "command": "organize", "arguments": []}
    server.answer("textDocument/codeAction", {"result": [fix, command]})
    at = {"path": "./a.py", "line": 1, "character": 1}
    assert server.ask("code_actions", **at) == {
        "actions": [
            {
                "title": "Change spelling to 'name'",
                "kind": "quickfix",
                "preferred": True,
                "edits": [{"path": "./a.py", "line": 1, "old": "naem", "new": "name"}],
            },
            {"title": "Organize", "kind": None, "preferred": False, "edits": []},
        ],
        "count": 2,
    }
    assert server.project.read("a.py") == "ERR naem\n"
    server.ask("code_actions", include_diagnostics=False, **at)
    asked = server.received("textDocument/codeAction")
    assert [len(one["params"]["context"]["diagnostics"]) for one in asked] == [1, 0]
    assert "workspace/executeCommand" not in server.methods()


def test_what_an_action_would_insert_can_be_made_with_edit_text(server: PlannedServer) -> None:
    """An insertion and a name that is there twice come with lines that are there once."""
    server.project.write("a.py", "import os\n\nprint(path)\nERR print(path)\n")
    edits = [
        {"range": span(0, 0, 0), "newText": "import sys\n"},
        {"range": span(3, 10, 14), "newText": "sys.path"},
        {"range": span(2, 6, 10), "newText": "os.path"},
    ]
    fix = {"title": "Import it", "edit": {"changes": {server.uri("a.py"): edits}}}
    server.answer("textDocument/codeAction", {"result": [fix]})
    (action,) = server.ask("code_actions", path="./a.py", line=4, character=1)["actions"]
    first, *others = action["edits"]
    assert first["line"] == 1
    assert first["old"] != ""
    server.project.call("file.read", path="./a.py")
    more = [{"old_string": one["old"], "new_string": one["new"]} for one in others]
    server.project.call(
        "edit.text",
        path="./a.py",
        old_string=first["old"],
        new_string=first["new"],
        more_edits=more,
    )
    assert server.project.read("a.py") == (
        "import sys\nimport os\n\nprint(os.path)\nERR print(sys.path)\n"
    )


@whole("AT-LSP-49", "AT-FILT-07")
def test_lazy_edits_are_fetched_and_foreign_text_is_left_out(server: PlannedServer) -> None:
    server.project.write("src/a.py", "x\n")
    server.project.write("lib/b.py", f"{CANARY}\n")
    lazy = {**ALL_CAPABILITIES, "codeActionProvider": {"resolveProvider": True}}
    server.plan(capabilities=lazy)
    server.answer("textDocument/codeAction", {"result": [{"title": "Fix", "data": 1}]})
    edits = {
        server.uri("src/a.py"): [{"range": span(0, 0, 1), "newText": "y"}],
        server.uri("lib/b.py"): [{"range": span(0, 0, 10), "newText": f"{CANARY}_new"}],
    }
    server.answer("codeAction/resolve", {"result": {"title": "Fix", "edit": {"changes": edits}}})
    said = server.ask("code_actions", READER, path="./src/a.py", **AT)
    assert said["actions"][0]["edits"] == [
        {"path": "./src/a.py", "line": 1, "old": "x", "new": "y"},
        {"path": "./lib/b.py", "line": 1, "outside_cage": True},
    ]
    assert CANARY not in json.dumps(said)


def rename_plan(server: PlannedServer, form: str) -> dict[str, Any]:
    """Rename `old` to `new` in three files; the second has it twice on a line with an emoji."""
    server.project.write("src/a.py", "old = 1\n")
    server.project.write("src/b.py", "\ufeffx = '😀' + old + old\r\n")
    server.project.write("src/c.py", "use(old)\n")
    edits = {
        "src/a.py": [span(0, 0, 3)],
        "src/b.py": [span(0, 11, 14), span(0, 17, 20)],
        "src/c.py": [span(0, 4, 7)],
    }
    changes = {
        server.uri(path): [{"range": one, "newText": "new"} for one in spans]
        for path, spans in edits.items()
    }
    server.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    if form == "changes":
        return {"changes": changes}
    documents = [
        {"textDocument": {"uri": uri, "version": None}, "edits": one}
        for uri, one in changes.items()
    ]
    return {"documentChanges": documents}


RENAME = {"path": "./src/a.py", "line": 1, "character": 0, "new_name": "new"}


@whole("AT-LSP-40", "AT-LSP-44")
@pytest.mark.parametrize("form", ["changes", "documentChanges"])
def test_a_rename_changes_every_file(server: PlannedServer, form: str) -> None:
    server.answer("textDocument/rename", {"result": rename_plan(server, form)})
    said = server.ask("rename", **RENAME)
    assert said == {
        "changes": [
            {"path": "./src/a.py", "edits": 1},
            {"path": "./src/b.py", "edits": 2},
            {"path": "./src/c.py", "edits": 1},
        ],
        "total_edits": 4,
        "files_changed": 3,
    }
    assert server.project.read("src/a.py") == "new = 1\n"
    second = (server.project.root / "src/b.py").read_bytes()
    assert second == "\ufeffx = '😀' + new + new\r\n".encode()
    assert server.project.read("src/c.py") == "use(new)\n"
    edited = [one["data"] for one in rows_of(server.project, "file.edited")]
    assert [(one["path"], one["replacements"]) for one in edited] == [
        ("./src/a.py", 1),
        ("./src/b.py", 2),
        ("./src/c.py", 1),
    ]
    server.ask("diagnostics", path="./src/a.py")
    changed = server.received("textDocument/didChange")
    assert changed[0]["params"]["contentChanges"] == [{"text": "new = 1\n"}]
    assert changed[0]["params"]["textDocument"]["version"] == 2


@whole("AT-LSP-41")
def test_what_cannot_be_renamed_is_left_alone(server: PlannedServer) -> None:
    edit = rename_plan(server, "changes")
    server.answer("textDocument/rename", {"result": edit})
    server.answer("textDocument/prepareRename", {"result": None})
    assert server.refusal("rename", **RENAME)["code"] == "rename_not_possible"
    server.answer("textDocument/prepareRename", {"error": {"code": -32602, "message": "keyword"}})
    refused = server.refusal("rename", **RENAME)
    assert (refused["code"], "keyword" in refused["message"]) == ("rename_not_possible", True)
    assert "textDocument/rename" not in server.methods()
    server.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    server.answer("textDocument/rename", {"error": {"code": -32803, "message": "no"}})
    assert server.refusal("rename", **RENAME)["code"] == "rename_not_possible"
    assert "textDocument/rename" in server.methods()
    assert server.project.read("src/a.py") == "old = 1\n"
    assert server.refusal("rename", **{**RENAME, "new_name": ""})["code"] == "invalid_params"


@whole("AT-LSP-42", "AT-FAIL-10")
def test_a_rename_beyond_the_cage_or_project_changes_nothing(server: PlannedServer) -> None:
    edit = rename_plan(server, "changes")
    server.project.write("lib/d.py", "old\n")
    foreign = server.project.root.with_name("foreign.py")
    foreign.write_text("old\n", encoding="utf-8")
    files = sorted(server.project.root.rglob("*.py"))
    before = [path.read_bytes() for path in files]
    for uri, who, shown in (
        (server.uri("lib/d.py"), WRITER, "./lib/d.py"),
        (foreign.as_uri(), "primary", str(foreign)),
        ("untitled:Untitled-1", "primary", "untitled:Untitled-1"),  # no file at all
    ):
        more = {**edit["changes"], uri: [{"range": span(0, 0, 3), "newText": "new"}]}
        server.answer("textDocument/rename", {"result": {"changes": more}})
        refused = server.refusal("rename", who, **RENAME)
        assert refused["code"] == "rename_scope_exceeds_cage"
        assert refused["data"]["detail"] == {"paths": [shown]}
        assert "primary" in refused["data"]["fix"]
    assert [path.read_bytes() for path in files] == before
    assert foreign.read_text("utf-8") == "old\n"
    assert rows_of(server.project, "file.edited") == []
    server.answer("textDocument/rename", {"result": edit})
    assert server.ask("rename", WRITER, **RENAME)["files_changed"] == 3


@whole("AT-LSP-43")
@pytest.mark.parametrize("failing", ["one", "two", "three"])
def test_a_write_that_fails_takes_the_whole_rename_back(
    server: PlannedServer, failing: str
) -> None:
    changes: dict[str, Any] = {}
    for folder in ("one", "two", "three"):
        server.project.write(f"{folder}/a.py", "old = 1\n")
        changes[server.uri(f"{folder}/a.py")] = [{"range": span(0, 0, 3), "newText": "new"}]
    server.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    server.answer("textDocument/rename", {"result": {"changes": changes}})
    locked = server.project.root / failing
    locked.chmod(0o555)
    try:
        server.refusal("rename", **{**RENAME, "path": "./one/a.py"})
    finally:
        locked.chmod(0o755)
    for folder in ("one", "two", "three"):
        assert server.project.read(f"{folder}/a.py") == "old = 1\n"
        assert [one.name for one in (server.project.root / folder).iterdir()] == ["a.py"]
    assert rows_of(server.project, "file.edited") == []
    assert server.ask("rename", **{**RENAME, "path": "./one/a.py"})["files_changed"] == 3


@whole("AT-LSP-45")
def test_a_file_moves_with_all_that_refers_to_it(server: PlannedServer) -> None:
    renames = {"fileOperations": {"willRename": {"filters": []}}}
    server.plan(capabilities={**ALL_CAPABILITIES, "workspace": renames})
    server.project.write("src/util.py", "x = 1\n")
    server.project.write("src/main.py", "import util\n")
    changes = {server.uri("src/main.py"): [{"range": span(0, 7, 11), "newText": "tool"}]}
    server.answer("workspace/willRenameFiles", {"result": {"changes": changes}})
    said = server.ask("rename_file", path="./src/util.py", new_path="./src/tool.py")
    assert said == {
        "old_path": "./src/util.py",
        "new_path": "./src/tool.py",
        "changes": [{"path": "./src/main.py", "edits": 1}],
        "total_edits": 1,
        "files_changed": 1,
    }
    assert not (server.project.root / "src/util.py").exists()
    assert server.project.read("src/tool.py") == "x = 1\n"
    assert server.project.read("src/main.py") == "import tool\n"
    server.ask("diagnostics", path="./src/tool.py")
    asked = {"files": [{"oldUri": server.uri("src/util.py"), "newUri": server.uri("src/tool.py")}]}
    assert server.received("workspace/willRenameFiles")[0]["params"] == asked
    assert server.received("workspace/didRenameFiles")[0]["params"] == asked
    closed = server.received("textDocument/didClose")
    assert [one["params"]["textDocument"]["uri"] for one in closed] == [server.uri("src/util.py")]
    opened = server.received("textDocument/didOpen")
    assert server.uri("src/tool.py") in [one["params"]["textDocument"]["uri"] for one in opened]


@whole("AT-LSP-46", "AT-PERM-08")
def test_a_move_that_cannot_be_changes_nothing(server: PlannedServer) -> None:
    server.project.write("src/a.py", "x\n")
    server.project.write("src/b.py", "y\n")
    server.project.write("lib/c.py", "z\n")
    for who, old, new, code in (
        ("primary", "./src/none.py", "./src/n.py", "file_not_found"),
        ("primary", "./src/a.py", "./src/b.py", "file_exists"),
        ("primary", "./src/a.py", "../out.py", "invalid_params"),
        (WRITER, "./src/a.py", "./lib/d.py", "rename_scope_exceeds_cage"),
        (WRITER, "./lib/c.py", "./src/d.py", "rename_scope_exceeds_cage"),
    ):
        refused = server.refusal("rename_file", who, path=old, new_path=new)
        assert refused["code"] == code, (old, new)
    renames = {"fileOperations": {"willRename": {"filters": []}}}
    server.plan(capabilities={**ALL_CAPABILITIES, "workspace": renames})
    changes = {server.uri("lib/c.py"): [{"range": span(0, 0, 1), "newText": "q"}]}
    server.answer("workspace/willRenameFiles", {"result": {"changes": changes}})
    refused = server.refusal("rename_file", WRITER, path="./src/a.py", new_path="./src/n.py")
    assert refused["code"] == "rename_scope_exceeds_cage"
    root = server.project.root
    assert sorted(str(one.relative_to(root)) for one in root.rglob("*.py")) == [
        "lib/c.py",
        "src/a.py",
        "src/b.py",
    ]
    assert server.project.read("lib/c.py") == "z\n"


def left_out(server: PlannedServer, *paths: str) -> dict[str, Any]:
    """Let the server rename `greet` in these files only, at their first line."""
    edits = [{"range": span(0, 4, 9), "newText": "welcome"}]
    server.answer("textDocument/prepareRename", {"result": span(0, 4, 9)})
    server.answer(
        "textDocument/rename", {"result": {"changes": {server.uri(one): edits for one in paths}}}
    )
    return {"path": "./src/a.py", "line": 1, "symbol": "greet", "new_name": "welcome"}


@whole("AT-LSP-40")
def test_a_rename_that_leaves_a_use_behind_changes_nothing(server: PlannedServer) -> None:
    project = server.project
    project.write("src/a.py", "def greet(): pass\n")
    project.write("src/b.py", "x = greet\n\nprint(greet())\n")
    project.write("src/comments.py", '# greet\n"greet"\n')
    project.write("src/c.py", "x = greeting\n")
    project.write("src/d.txt", "greet\n")
    project.write("lib/e.py", "\ngreet\n")
    project.write(".gitignore", "out/\n")
    project.write("out/f.py", "greet\n")
    declared = server.place("src/a.py", 0, 4, 9)
    server.answer("textDocument/definition", {"result": declared})
    rename = left_out(server, "src/a.py", "src/b.py")
    refused = server.refusal("rename", **rename)
    assert refused["code"] == "rename_not_possible"
    assert refused["data"]["detail"] == {"missed": ["./lib/e.py"], "count": 1}
    assert project.read("src/a.py") == "def greet(): pass\n"
    assert project.read("src/b.py") == "x = greet\n\nprint(greet())\n"
    asked = {
        (one["params"]["textDocument"]["uri"], one["params"]["position"]["line"])
        for one in server.received("textDocument/definition")
    }
    assert asked == {(server.uri("src/a.py"), 0), (server.uri("lib/e.py"), 1)}
    # One who may not read the file learns no more than where it is.
    refused = server.refusal("rename", path_of("both"), **rename)
    assert (refused["data"]["detail"]["missed"], "lib" in refused["message"]) == (
        ["./lib/e.py"],
        True,
    )
    # Nobody can say what the name means there: the rename is made, and its caller can look.
    server.answer("textDocument/definition", {"result": None})
    said = server.ask("rename", **rename)
    assert said["files_changed"] == 2
    assert said["unresolved"] == [{"path": "./lib/e.py", "line": 2, "preview": "greet"}]
    assert project.read("src/b.py").startswith("x = welcome")
    # Only the question's own file stayed open.
    server.answer("textDocument/hover", {"result": None})
    server.ask("hover", path="./src/a.py", line=1, character=0)
    gone = server.received("textDocument/didClose")
    assert {one["params"]["textDocument"]["uri"] for one in gone} == {
        server.uri(one) for one in ("lib/e.py", "src/comments.py")
    }


@whole("AT-LSP-40")
@pytest.mark.parametrize("line", ["from a import greet as greet", "def greet(): return greet"])
def test_a_name_that_is_kept_as_an_alias_may_stay_in_use(server: PlannedServer, line: str) -> None:
    project = server.project
    project.write("src/a.py", "def greet(): pass\n")
    project.write("src/b.py", f"{line}\n")
    project.write("lib/e.py", "greet\n")
    server.answer("textDocument/definition", {"result": server.place("src/a.py", 0, 4, 9)})
    start = line.index("greet")
    edits = {
        server.uri("src/a.py"): [{"range": span(0, 4, 9), "newText": "welcome"}],
        server.uri("src/b.py"): [{"range": span(0, start, start + 5), "newText": "welcome"}],
    }
    server.answer("textDocument/prepareRename", {"result": span(0, 4, 9)})
    server.answer("textDocument/rename", {"result": {"changes": edits}})
    rename = {"path": "./src/a.py", "line": 1, "symbol": "greet", "new_name": "welcome"}
    if " as " in line:
        assert server.ask("rename", **rename)["files_changed"] == 2
        assert project.read("src/b.py") == "from a import welcome as greet\n"
    else:
        assert server.refusal("rename", **rename)["code"] == "rename_not_possible"
