"""What `code.lsp` asks a language server, and what it makes of every form of answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.agents import agent, caged, path_of
from whole.harness.code import ALL_CAPABILITIES, PlannedServer, span
from whole.harness.project import Project

CANARY = "CANARY_7f3"
READER = path_of("reader")
POSITIONAL = [
    "definition",
    "references",
    "rename",
    "code_actions",
    "hover",
    "type_definition",
    "implementation",
]
METHODS = {
    "definition": "textDocument/definition",
    "type_definition": "textDocument/typeDefinition",
    "implementation": "textDocument/implementation",
}
AT = {"line": 1, "character": 0}


@pytest.fixture
def server(project: Project) -> PlannedServer:
    """Return a planned server, and an agent that may read `src`."""
    reader = agent("code.*", "file.*", cage=caged("ro:./src"))
    return PlannedServer(project, subagents={"reader": reader})


@whole("AT-LSP-02", "AT-DISP-12")
@pytest.mark.parametrize("action", POSITIONAL)
def test_a_position_is_a_line_and_a_column(server: PlannedServer, action: str) -> None:
    server.project.write("a.py", "x = 1\n")
    wrong: list[dict[str, Any]] = [
        {},
        {"line": 1},
        {"character": 0},
        {"line": 0, "character": 0},
        {"line": -1, "character": 0},
        {"line": 1, "character": -1},
        {"line": "1", "character": 0},
        {"line": True, "character": 0},
        {"line": 99, "character": 0},
    ]
    for given in wrong:
        refused = server.refusal(action, path="./a.py", new_name="y", **given)
        assert refused["code"] == "invalid_params", given


@whole("AT-LSP-59")
def test_what_is_not_there_or_is_a_folder_starts_no_server(server: PlannedServer) -> None:
    server.project.write("src/a.py", "x = 1\n")
    for action in POSITIONAL:
        refused = server.refusal(action, path="./nope.py", new_name="y", **AT)
        assert refused["code"] == "file_not_found", action
        refused = server.refusal(action, path="./src", new_name="y", **AT)
        assert refused["code"] == "invalid_params", action
    assert server.refusal("symbols", path="./src")["code"] == "invalid_params"
    assert server.refusal("diagnostics", path="./none")["code"] == "file_not_found"
    assert server.status()["state"] == "not_started"
    assert server.received() == []


@whole("AT-LSP-03", "AT-AMB-36")
@pytest.mark.parametrize(
    ("encoding", "units"), [(None, 11), ("utf-8", 13), ("utf-16", 11), ("utf-32", 10)]
)
def test_lines_count_from_one_and_columns_in_characters(
    server: PlannedServer, encoding: str | None, units: int
) -> None:
    server.project.write("a.py", "\nx = '😀' + name\n")
    if encoding:
        server.plan(capabilities={**ALL_CAPABILITIES, "positionEncoding": encoding})
    server.answer(METHODS["definition"], {"result": server.place("a.py", 1, units, units + 4)})
    found = server.ask("definition", path="./a.py", line=2, character=10)
    [asked] = server.received(METHODS["definition"])
    assert asked["params"]["position"] == {"line": 1, "character": units}
    [place] = found["definitions"]
    assert (place["line"], place["character"]) == (2, 10)
    told = server.ask("capabilities", language="python")
    assert told["position_encoding"] == (encoding or "utf-16")


@whole("AT-LSP-24", "AT-FILT-07", "AT-PERM-22")
def test_reading_is_enough_for_all_actions_but_the_renames(server: PlannedServer) -> None:
    server.project.write("src/a.py", "ERR\n")
    server.project.write("data/b.py", f"ERR {CANARY}\n")
    edit = {"changes": {server.uri("src/a.py"): [{"range": span(0, 0, 3), "newText": "new"}]}}
    server.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    server.answer("textDocument/rename", {"result": edit})
    assert server.ask("diagnostics", READER, path="./src/a.py")["count"] == 1
    around = server.ask("diagnostics", READER, path="./")
    assert [one["path"] for one in around["diagnostics"]] == ["./src/a.py"]
    assert around["count"] == 1
    assert CANARY not in json.dumps(around)
    assert server.ask("diagnostics", path="./")["count"] == 2
    extra = {"new_name": "x", "new_path": "./src/c.py", "method": "a/b"}
    for action in [*POSITIONAL, "diagnostics", "symbols", "rename_file", "request"]:
        refused = server.refusal(action, READER, path="./data/b.py", **AT, **extra)
        assert refused["code"] == "capability_denied", action
    refused = server.refusal("rename", READER, path="./src/a.py", new_name="new", **AT)
    assert refused["code"] == "rename_scope_exceeds_cage"
    assert server.project.read("src/a.py") == "ERR\n"


@whole("AT-LSP-25")
def test_what_a_server_cannot_do_is_empty_or_said_so(server: PlannedServer) -> None:
    server.project.write("a.py", "x = 1\n")
    server.plan(capabilities={"textDocumentSync": 1, "diagnosticProvider": {}})
    at = {"path": "./a.py", **AT}
    for action in METHODS:
        assert server.ask(action, **at) == {"definitions": []}
    assert server.ask("references", **at) == {"references": [], "count": 0}
    assert server.ask("symbols", path="./a.py") == {"symbols": [], "count": 0}
    assert server.ask("code_actions", **at) == {"actions": [], "count": 0}
    for action in ("hover", "rename"):
        refused = server.refusal(action, new_name="y", **at)
        assert refused["code"] == "invalid_params"
        assert "unsupported by server" in json.dumps(refused["data"]["detail"])
    asked = {one for one in server.methods() if one.startswith("textDocument/")}
    assert asked <= {"textDocument/didOpen", "textDocument/didClose"}


@whole("AT-LSP-26", "AT-LSP-27")
def test_diagnostics_have_all_their_fields_and_can_be_narrowed(server: PlannedServer) -> None:
    server.project.write("a.py", "ok\n  ERR here\nWARN\n")
    said = server.ask("diagnostics", path="./a.py")
    assert (said["path"], said["count"]) == ("./a.py", 2)
    assert said["diagnostics"][0] == {
        "line": 2,
        "character": 2,
        "end_line": 2,
        "end_character": 5,
        "severity": "error",
        "message": "ERR on line 2",
        "code": "17",
        "source": "fake",
    }
    counts = {"error": 1, "warning": 1, "information": 0, "hint": 0, "all": 2}
    for severity, count in counts.items():
        narrowed = server.ask("diagnostics", path="./a.py", severity=severity)
        assert (narrowed["count"], len(narrowed["diagnostics"])) == (count, count)
        assert severity == "all" or {one["severity"] for one in narrowed["diagnostics"]} <= {
            severity
        }
    assert server.refusal("diagnostics", path="./a.py", severity="x")["code"] == "invalid_params"


@whole("AT-LSP-28")
@pytest.mark.parametrize("how", ["pull", "versioned", "unversioned", "stale"])
def test_diagnostics_belong_to_the_present_content(server: PlannedServer, how: str) -> None:
    if how != "pull":
        without = {k: v for k, v in ALL_CAPABILITIES.items() if k != "diagnosticProvider"}
        server.plan(capabilities=without, publish=how)
    project = server.project
    project.write("a.py", "ERR\n")
    assert server.ask("diagnostics", path="./a.py")["count"] == 1
    project.call("file.read", path="./a.py")
    project.call("edit.text", path="./a.py", old_string="ERR", new_string="fine")
    assert server.ask("diagnostics", path="./a.py")["count"] == 0
    project.call("edit.text", path="./a.py", old_string="fine", new_string="ERR ERR\nERR")
    assert server.ask("diagnostics", path="./a.py")["count"] == 2


@whole("AT-LSP-29")
def test_a_folder_is_checked_file_by_file_in_each_language(server: PlannedServer) -> None:
    project = server.project
    command = server.command
    servers = [
        {"lang": "python", "command": command},
        {"lang": "quux", "command": command},
        {"lang": "rust", "command": ["no-such-program"]},
    ]
    project.describe(cage="disabled", top={"lsp": {"servers": servers}})
    project.reload()
    for path in ("src/a.py", "src/deep/b.py", "src/c.quux", "src/d.txt"):
        project.write(path, "ERR\n")
    said = server.ask("diagnostics", path="./src")
    assert sorted(one["path"] for one in said["diagnostics"]) == [
        "./src/a.py",
        "./src/c.quux",
        "./src/deep/b.py",
    ]
    assert (said["path"], said["count"], said.get("skipped", [])) == ("./src", 3, [])
    project.write("src/e.rs", "ERR\n")
    said = server.ask("diagnostics", path="./src")
    assert (said["count"], said["skipped"]) == (3, ["rust"])
    project.write("only/f.rs", "ERR\n")
    assert server.refusal("diagnostics", path="./only")["code"] == "lsp_server_not_found"


@whole("AT-LSP-30", "AT-LSP-33", "AT-LSP-34")
@pytest.mark.parametrize("action", METHODS)
def test_targets_come_in_every_form_the_protocol_has(server: PlannedServer, action: str) -> None:
    server.project.write("a.py", "use(thing)\n")
    server.project.write("src/types.py", "import os\ndef thing(): ...\n")
    place = server.place("src/types.py", 1, 4, 9)
    link = {
        "targetUri": place["uri"],
        "targetRange": span(1, 0, 16),
        "targetSelectionRange": place["range"],
    }
    wanted = {
        "path": "./src/types.py",
        "line": 2,
        "character": 4,
        "preview": "def thing(): ...",
    }
    for answer, count in ((place, 1), ([place, place], 2), ([link], 1), (None, 0), ([], 0)):
        server.answer(METHODS[action], {"result": answer})
        said = server.ask(action, path="./a.py", line=1, character=4)
        assert said == {"definitions": [wanted] * count}


@whole("AT-LSP-31", "AT-AMB-10", "AT-FILT-05", "AT-FILT-01")
@pytest.mark.parametrize("action", METHODS)
def test_a_target_outside_the_cage_has_no_content(server: PlannedServer, action: str) -> None:
    server.project.write("src/a.py", "use\n")
    server.project.write("lib/b.py", f"\n{CANARY} = 1\n")
    (server.project.root / "src/link.py").symlink_to("../lib/b.py")
    for place in ("lib/b.py", "src/link.py"):
        server.answer(METHODS[action], {"result": [server.place(place, 1, 0, 5)]})
        said = server.ask(action, READER, path="./src/a.py", **AT)
        assert said == {"definitions": [{"path": "./lib/b.py", "line": 2, "outside_cage": True}]}
        [own] = server.ask(action, path="./src/a.py", **AT)["definitions"]
        assert own["preview"] == f"{CANARY} = 1"


@whole("AT-LSP-32")
def test_a_target_outside_the_project_is_named_and_not_shown(server: PlannedServer) -> None:
    server.project.write("src/a.py", "use\n")
    outside = server.project.root.with_name("stdlib.py")
    outside.write_text(f"\n{CANARY}\n", encoding="utf-8")
    answer = {"uri": outside.as_uri(), "range": span(1, 0, 3)}
    server.answer(METHODS["definition"], {"result": answer})
    said = server.ask("definition", path="./src/a.py", **AT)
    assert said["definitions"] == [{"path": str(outside), "line": 2, "outside_project": True}]
    said = server.ask("definition", READER, path="./src/a.py", **AT)
    assert [one["outside_cage"] for one in said["definitions"]] == [True]
    assert CANARY not in json.dumps(said)
    assert str(outside.parent) not in json.dumps(said)


@whole("AT-LSP-35", "AT-LSP-36", "AT-FILT-03")
def test_references_are_counted_and_shown_as_far_as_the_cage_goes(server: PlannedServer) -> None:
    server.project.write("src/a.py", "name\nname\n")
    server.project.write("lib/b.py", f"{CANARY} name\n")
    places = [
        server.place("src/a.py", 0, 0, 4),
        server.place("src/a.py", 1, 0, 4),
        server.place("lib/b.py", 0, 11, 15),
    ]
    server.answer("textDocument/references", {"result": places})
    said = server.ask("references", path="./src/a.py", **AT)
    assert said["count"] == 3
    assert said["references"][2] == {
        "path": "./lib/b.py",
        "line": 1,
        "character": 11,
        "preview": f"{CANARY} name",
    }
    assert not any("outside_cage" in one for one in said["references"])
    narrowed = server.ask("references", READER, path="./src/a.py", include_declaration=True, **AT)
    assert narrowed["count"] == 3
    assert narrowed["references"][2] == {"path": "./lib/b.py", "line": 1, "outside_cage": True}
    assert CANARY not in json.dumps(narrowed)
    asked = [one["params"]["context"] for one in server.received("textDocument/references")]
    assert asked == [{"includeDeclaration": False}, {"includeDeclaration": True}]


def tree() -> list[dict[str, Any]]:
    """Return nested symbols: a class with two methods, and a function."""

    def symbol(name: str, kind: int, line: int, start: int, *children: Any) -> dict[str, Any]:
        at = span(line, start, start + len(name))
        inner = list(children)
        whole_span = span(line, 0, 30)
        return {
            "name": name,
            "kind": kind,
            "range": whole_span,
            "selectionRange": at,
            "children": inner,
        }

    return [
        symbol("A", 5, 0, 6, symbol("one", 6, 1, 8), symbol("two", 6, 2, 8)),
        symbol("f", 12, 3, 4),
    ]


@whole("AT-LSP-37", "AT-LSP-38")
def test_symbols_are_flat_in_source_order_with_words_for_kinds(server: PlannedServer) -> None:
    text = "class A:\n    def one(self): ...\n    def two(self): ...\ndef f(): ...\n"
    server.project.write("a.py", text)
    server.answer("textDocument/documentSymbol", {"result": tree()[::-1]})
    said = server.ask("symbols", path="./a.py")
    assert [(one["name"], one["kind"], one["line"]) for one in said["symbols"]] == [
        ("A", "class", 1),
        ("one", "method", 2),
        ("two", "method", 3),
        ("f", "function", 4),
    ]
    assert said["symbols"][1] == {
        "name": "one",
        "kind": "method",
        "path": "./a.py",
        "line": 2,
        "character": 8,
    }
    assert said["count"] == 4
    one = server.ask("symbols", path="./a.py", limit=1)
    assert [symbol["name"] for symbol in one["symbols"]] == ["A"]
    for wrong in ({"scope": "workspace"}, {"limit": 0}, {"scope": "galaxy"}):
        assert server.refusal("symbols", path="./a.py", **wrong)["code"] == "invalid_params"


@whole("AT-LSP-39", "AT-FILT-02")
def test_symbols_of_the_project_that_lie_outside_the_cage_have_no_name(
    server: PlannedServer,
) -> None:
    server.project.write("src/a.py", "def serve(): ...\n")
    server.project.write("lib/b.py", f"def serve_{CANARY}(): ...\n")
    found = [
        {"name": "serve", "kind": 12, "location": server.place("src/a.py", 0, 4, 9)},
        {"name": f"serve_{CANARY}", "kind": 12, "location": server.place("lib/b.py", 0, 4, 9)},
    ]
    server.answer("workspace/symbol", {"result": found})
    ask: dict[str, Any] = {"path": "./src", "scope": "workspace", "query": "serve"}
    said = server.ask("symbols", **ask)
    assert [one["name"] for one in said["symbols"]] == ["serve", f"serve_{CANARY}"]
    assert server.received("workspace/symbol")[0]["params"] == {"query": "serve"}
    narrowed = server.ask("symbols", READER, **ask)
    assert narrowed["symbols"][1] == {"path": "./lib/b.py", "line": 1, "outside_cage": True}
    assert CANARY not in json.dumps(narrowed)


@whole("AT-LSP-50", "AT-LSP-51")
def test_hover_splits_signature_and_documentation(server: PlannedServer) -> None:
    server.project.write("a.py", "\nname = 1\n")
    markdown = "```python\n(variable) name: int\n```\n---\nThe name of *it*."
    contents = {"kind": "markdown", "value": markdown}
    server.answer("textDocument/hover", {"result": {"contents": contents, "range": span(1, 0, 4)}})
    assert server.ask("hover", path="./a.py", line=2, character=1) == {
        "content": "(variable) name: int",
        "documentation": "The name of *it*.",
        "range": {"start": {"line": 2, "character": 0}, "end": {"line": 2, "character": 4}},
    }
    server.answer("textDocument/hover", {"result": None})
    assert server.ask("hover", path="./a.py", **AT) == {
        "content": None,
        "documentation": None,
        "range": None,
    }
