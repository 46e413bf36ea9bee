"""What the actions of `code.lsp` ask, give and refuse, seen through dispatch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import ALL_CAPABILITIES, LspLab, span
from fakes.tool_lab import cage
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import FsRequirement
from kaged.toolbox.lsp.tool import ACTIONS, DEFINITION, requires_of
from kaged.workspace.errors import FileWriteFailed
from requirements import requirement

POSITIONAL = (
    "definition",
    "references",
    "rename",
    "code_actions",
    "hover",
    "type_definition",
    "implementation",
)
CANARY = "CANARY_7f3"


def location(lab: LspLab, path: str, line: int, start: int = 0, end: int = 1) -> dict[str, Any]:
    return {"uri": lab.uri(path), "range": span(line, start, end)}


# -- parameters ------------------------------------------------------------------------------------


@requirement("AT-REG-12", "AT-AMB-15")
def test_the_tool_has_fourteen_actions() -> None:
    properties: Any = DEFINITION.parameters["properties"]
    assert properties["action"]["enum"] == [
        "diagnostics",
        "definition",
        "references",
        "symbols",
        "rename",
        "rename_file",
        "code_actions",
        "hover",
        "type_definition",
        "implementation",
        "status",
        "reload",
        "capabilities",
        "request",
    ]
    assert DEFINITION.namespace == "code"


@requirement("AT-LSP-01", "AT-AMB-16", "AT-DISP-12")
async def test_a_path_is_needed_by_all_actions_but_four(lab: LspLab) -> None:
    for action in ACTIONS:
        if action in {"status", "reload"}:
            await lab.lsp(action)
            continue
        given: dict[str, Any] = {"line": 1, "character": 0, "new_name": "x", "new_path": "./x.py"}
        if action == "request":
            given = {"method": "x/y", "language": "python"}
        elif action == "capabilities":
            given = {"language": "python"}
        if action in {"capabilities", "request"}:
            lab.answer("x/y", {"result": 1})
            await lab.lsp(action, **given)
            continue
        refusal = await lab.tool_lab.refusal("code.lsp", action=action, **given)
        assert refusal.code == "invalid_params", action
        assert "path" in refusal.message
    wrong: list[dict[str, Any]] = [{}, {"action": "fly", "path": "./a.py"}, {"action": 3}]
    for broken in wrong:
        assert (await lab.tool_lab.refusal_with("code.lsp", broken)).code == "invalid_params"


@requirement("AT-LSP-02", "AT-DISP-12")
@pytest.mark.parametrize("action", POSITIONAL)
async def test_position_actions_need_line_and_column(lab: LspLab, action: str) -> None:
    lab.write("a.py", "x = 1\n")
    base: dict[str, Any] = {"action": action, "path": "./a.py", "new_name": "y"}
    for given in (
        {},
        {"line": 1},
        {"character": 0},
        {"line": 0, "character": 0},
        {"line": 1, "character": -1},
        {"line": "1", "character": 0},
        {"line": True, "character": 0},
        {"line": 99, "character": 0},
    ):
        refusal = await lab.tool_lab.refusal_with("code.lsp", {**base, **given})
        assert refusal.code == "invalid_params", given


@requirement("AT-LSP-59")
async def test_a_missing_file_or_a_directory_starts_no_server(lab: LspLab) -> None:
    lab.write("src/a.py", "x = 1\n")
    for action in POSITIONAL:
        given: dict[str, Any] = {"line": 1, "character": 0, "new_name": "y"}
        missing = await lab.tool_lab.refusal("code.lsp", action=action, path="./nope.py", **given)
        assert missing.code == "file_not_found"
        folder = await lab.tool_lab.refusal("code.lsp", action=action, path="./src", **given)
        assert folder.code == "invalid_params"
    assert (await lab.tool_lab.refusal("code.lsp", action="symbols", path="./src")).code == (
        "invalid_params"
    )
    assert (await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./no")).code == (
        "file_not_found"
    )
    assert lab.events == []


@requirement("AT-LSP-03", "AT-AMB-36")
async def test_lines_count_from_one_and_columns_in_characters(lab: LspLab) -> None:
    lab.write("a.py", "\nx = '😀' + name\n")
    lab.answer("textDocument/definition", {"result": location(lab, "a.py", 1, 11, 15)})
    found = await lab.lsp("definition", path="./a.py", line=2, character=10)
    (asked,) = lab.received("textDocument/definition")
    assert asked["params"]["position"] == {"line": 1, "character": 11}
    assert found["definitions"][0]["line"] == 2
    assert found["definitions"][0]["character"] == 10


@pytest.mark.parametrize(
    ("encoding", "units"), [("utf-8", 13), ("utf-16", 11), ("utf-32", 10), ("latin", 11)]
)
async def test_columns_are_converted_for_whatever_the_server_counts_in(
    lab: LspLab, encoding: str, units: int
) -> None:
    lab.write("a.py", "\nx = '😀' + name\n")
    lab.plan(capabilities={**ALL_CAPABILITIES, "positionEncoding": encoding})
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", path="./a.py", line=2, character=10)
    (asked,) = lab.received("textDocument/hover")
    assert asked["params"]["position"]["character"] == units


async def test_a_symbol_can_be_named_instead_of_a_column(lab: LspLab) -> None:
    lab.write("a.py", "total = total + subtotal\n")
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", path="./a.py", line=1, symbol="subtotal")
    await lab.lsp("hover", path="./a.py", line=1, symbol="total#2")
    columns = [one["params"]["position"]["character"] for one in lab.received("textDocument/hover")]
    assert columns == [16, 8]
    for symbol in ("total", "sub", "total#3", "nothing"):
        refusal = await lab.tool_lab.refusal(
            "code.lsp", action="hover", path="./a.py", line=1, symbol=symbol
        )
        assert refusal.code == "invalid_params"


# -- what it needs ---------------------------------------------------------------------------------


@requirement("AT-LSP-24", "AT-AMB-07")
async def test_reading_is_enough_for_all_actions_but_the_renames(lab: LspLab) -> None:
    lab.write("src/a.py", "ERR\n")
    lab.write("data/b.py", f"ERR {CANARY}\n")
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    edit = {"changes": {lab.uri("src/a.py"): [{"range": span(0, 0, 3), "newText": "new"}]}}
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    lab.answer("textDocument/rename", {"result": edit})
    at: dict[str, Any] = {"line": 1, "character": 0}
    assert (await caged.call("code.lsp", action="diagnostics", path="./src/a.py"))["count"] == 1
    whole = await caged.call("code.lsp", action="diagnostics", path="./")
    assert [one["path"] for one in whole["diagnostics"]] == ["./src/a.py"]
    assert CANARY not in json.dumps(whole)
    for action in ACTIONS:
        if action in {"status", "reload", "capabilities"}:
            continue
        extra = {"new_name": "x", "new_path": "./src/c.py", "method": "a/b"}
        refusal = await caged.refusal("code.lsp", action=action, path="./data/b.py", **at, **extra)
        assert refusal.code == "capability_denied", action
    refusal = await caged.refusal(
        "code.lsp", action="rename", path="./src/a.py", new_name="new", **at
    )
    assert (refusal.code, refusal.number) == ("rename_scope_exceeds_cage", -32000)
    assert caged.audit.names()[-1] == "tool.denied"


def test_what_each_action_requires() -> None:
    for action in ACTIONS:
        wanted = FsMode.RW if action in {"rename", "rename_file"} else FsMode.RO
        assert requires_of(action) == (FsRequirement(wanted),)


@requirement("AT-LSP-25")
async def test_what_a_server_cannot_do_is_empty_or_said_so(lab: LspLab) -> None:
    lab.write("a.py", "x = 1\n")
    lab.plan(capabilities={"textDocumentSync": 1, "diagnosticProvider": {}})
    at: dict[str, Any] = {"path": "./a.py", "line": 1, "character": 0}
    for action in ("definition", "type_definition", "implementation"):
        assert await lab.lsp(action, **at) == {"definitions": []}
    assert await lab.lsp("references", **at) == {"references": [], "count": 0}
    assert await lab.lsp("symbols", path="./a.py") == {"symbols": [], "count": 0}
    assert await lab.lsp("code_actions", **at) == {"actions": [], "count": 0}
    for action in ("hover", "rename"):
        refusal = await lab.tool_lab.refusal("code.lsp", action=action, new_name="y", **at)
        assert refusal.code == "invalid_params"
        assert "unsupported by server" in str(refusal.detail)


# -- diagnostics -----------------------------------------------------------------------------------


@requirement("AT-LSP-26", "AT-LSP-27")
async def test_diagnostics_have_all_their_fields_and_can_be_narrowed(lab: LspLab) -> None:
    lab.write("a.py", "ok\n  ERR here\nWARN\n")
    said = await lab.lsp("diagnostics", path="./a.py")
    assert said["path"] == "./a.py"
    assert said["count"] == 2
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
    for severity, count in (("error", 1), ("warning", 1), ("hint", 0), ("all", 2)):
        narrowed = await lab.lsp("diagnostics", path="./a.py", severity=severity)
        assert (narrowed["count"], len(narrowed["diagnostics"])) == (count, count)


@requirement("AT-LSP-28")
@pytest.mark.parametrize("how", ["pull", "versioned", "unversioned", "stale"])
async def test_diagnostics_belong_to_the_present_content(lab: LspLab, how: str) -> None:
    if how != "pull":
        without = {k: v for k, v in ALL_CAPABILITIES.items() if k != "diagnosticProvider"}
        lab.plan(capabilities=without, publish=how)
    lab.write("a.py", "ERR\n")
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 1
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="ERR", new_string="fine")
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 0
    await lab.tool_lab.call(
        "edit.text", path="./a.py", old_string="fine", new_string="ERR ERR\nERR"
    )
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 2


def _telling(lab: LspLab) -> None:
    """Let the server be one that pushes, repeats no list, and tells of its looks for problems."""
    without = {k: v for k, v in ALL_CAPABILITIES.items() if k != "diagnosticProvider"}
    lab.plan(capabilities=without, publish="told", name="gopls")


async def test_a_list_from_the_middle_of_several_changes_is_not_the_last_word(
    lab: LspLab,
) -> None:
    _telling(lab)
    lab.write("a.py", "USES one\n")
    lab.write("b.py", "DEF one\n")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("file.read", path="./b.py")
    assert (await lab.lsp("diagnostics", path="./a.py"))["diagnostics"] == []
    # By the time of the second edit the server has said that `two` does not exist.
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="one", new_string="two")
    await lab.tool_lab.call("edit.text", path="./b.py", old_string="one", new_string="two")
    said = await lab.lsp("diagnostics", path="./a.py")
    assert (said["diagnostics"], said.get("complete", True)) == ([], True)
    await lab.tool_lab.call("edit.text", path="./b.py", old_string="two", new_string="six")
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 1


async def test_a_list_that_is_not_repeated_after_an_edit_still_counts(lab: LspLab) -> None:
    _telling(lab)
    lab.write("a.py", "fine\n")
    await lab.tool_lab.call("file.read", path="./a.py")
    assert (await lab.lsp("diagnostics", path="./a.py"))["diagnostics"] == []
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="fine", new_string="good")
    said = await lab.lsp("diagnostics", path="./a.py")
    assert (said["diagnostics"], said.get("complete", True)) == ([], True)


async def test_a_look_for_problems_that_never_ends_is_not_taken_for_clean(tmp_path: Path) -> None:
    lab = LspLab(tmp_path, limit_s=1.0)
    _telling(lab)
    value = {"kind": "begin", "title": "diagnosing initial workspace load"}
    begin = {"method": "$/progress", "params": {"token": 1, "value": value}}
    lab.plan(on_initialized=[begin], publish=None)
    lab.write("a.py", "ERR\n")
    said = await lab.lsp("diagnostics", path="./a.py")
    assert (said["diagnostics"], said["complete"]) == ([], False)
    await lab.close()


async def test_a_server_that_was_thought_to_tell_of_its_looks_and_does_not_is_heard(
    lab: LspLab,
) -> None:
    _telling(lab)
    lab.plan(publish="versioned")
    lab.write("a.py", "ERR\n")
    assert (await lab.lsp("diagnostics", path="./a.py"))["count"] == 1


async def test_a_server_that_says_nothing_is_never_taken_for_clean(tmp_path: Path) -> None:
    lab = LspLab(tmp_path, limit_s=1.0)
    lab.plan(capabilities={"textDocumentSync": 1})
    lab.write("a.py", "ERR\n")
    said = await lab.lsp("diagnostics", path="./a.py")
    assert said["complete"] is False
    assert said["pending_servers"] == ["python"]
    await lab.close()


@requirement("AT-LSP-29")
async def test_a_directory_is_checked_file_by_file_in_each_language(tmp_path: Path) -> None:
    lab = LspLab(tmp_path)
    both = {"python": lab.fake_command(), "go": lab.fake_command(), "rust": ("no-such-program",)}
    await lab.close()
    lab = LspLab(_fresh(tmp_path), commands=both)
    for path in ("src/a.py", "src/deep/b.py", "src/c.go", "src/d.txt"):
        lab.write(path, "ERR\n")
    said = await lab.lsp("diagnostics", path="./src")
    assert [one["path"] for one in said["diagnostics"]] == [
        "./src/c.go",
        "./src/a.py",
        "./src/deep/b.py",
    ]
    assert "skipped" not in said
    lab.write("src/e.rs", "ERR\n")
    said = await lab.lsp("diagnostics", path="./src")
    assert (said["count"], said["skipped"]) == (3, ["rust"])
    lab.write("only/f.rs", "ERR\n")
    refusal = await lab.tool_lab.refusal("code.lsp", action="diagnostics", path="./only")
    assert refusal.code == "lsp_server_not_found"
    await lab.close()


# -- where things are ------------------------------------------------------------------------------


@requirement("AT-LSP-30", "AT-LSP-33", "AT-LSP-34")
@pytest.mark.parametrize("action", ["definition", "type_definition", "implementation"])
async def test_targets_come_in_every_form_the_protocol_has(lab: LspLab, action: str) -> None:
    lab.write("a.py", "use(thing)\n")
    lab.write("src/types.py", "import os\ndef thing(): ...\n")
    method = {
        "definition": "textDocument/definition",
        "type_definition": "textDocument/typeDefinition",
        "implementation": "textDocument/implementation",
    }[action]
    place = location(lab, "src/types.py", 1, 4, 9)
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
        lab.answer(method, {"result": answer})
        said = await lab.lsp(action, path="./a.py", line=1, character=4)
        assert said == {"definitions": [wanted] * count}


@requirement("AT-LSP-31", "AT-AMB-10", "AT-FILT-05")
async def test_a_target_outside_the_cage_has_no_content(lab: LspLab) -> None:
    lab.write("src/a.py", "use\n")
    lab.write("lib/b.py", f"\n{CANARY} = 1\n")
    (lab.root / "src/link.py").symlink_to(lab.root / "lib/b.py")
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    for place in ("lib/b.py", "src/link.py"):
        answer = {"uri": (lab.root / place).as_uri(), "range": span(1, 0, 5)}
        lab.answer("textDocument/definition", {"result": [answer]})
        said = await caged.call(
            "code.lsp", action="definition", path="./src/a.py", line=1, character=0
        )
        assert said == {"definitions": [{"path": "./lib/b.py", "line": 2, "outside_cage": True}]}


@requirement("AT-LSP-32")
async def test_a_target_outside_the_project_is_named_and_not_shown(
    lab: LspLab, tmp_path: Path
) -> None:
    lab.write("a.py", "use\n")
    outside = tmp_path / "stdlib.py"
    outside.write_text(f"\n{CANARY}\n", encoding="utf-8")
    answer = {"uri": outside.as_uri(), "range": span(1, 0, 3)}
    lab.answer("textDocument/definition", {"result": answer})
    said = await lab.lsp("definition", path="./a.py", line=1, character=0)
    assert said["definitions"] == [{"path": str(outside), "line": 2, "outside_project": True}]
    caged = lab.tool_lab_for(cage("ro ./", root=lab.root))
    said = await caged.call("code.lsp", action="definition", path="./a.py", line=1, character=0)
    assert said["definitions"] == [{"path": "stdlib.py", "line": 2, "outside_cage": True}]


@requirement("AT-LSP-35", "AT-LSP-36")
async def test_references_are_counted_and_shown_as_far_as_the_cage_goes(lab: LspLab) -> None:
    lab.write("src/a.py", "name\nname\n")
    lab.write("lib/b.py", f"{CANARY} name\n")
    places = [
        location(lab, "src/a.py", 0, 0, 4),
        location(lab, "src/a.py", 1, 0, 4),
        location(lab, "lib/b.py", 0, 11, 15),
    ]
    lab.answer("textDocument/references", {"result": places})
    at: dict[str, Any] = {"action": "references", "path": "./src/a.py", "line": 1, "character": 0}
    said = await lab.tool_lab.call("code.lsp", **at)
    assert said["count"] == 3
    assert said["references"][2] == {
        "path": "./lib/b.py",
        "line": 1,
        "character": 11,
        "preview": f"{CANARY} name",
    }
    assert not any("outside_cage" in one for one in said["references"])
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    narrowed = await caged.call("code.lsp", **at, include_declaration=True)
    assert narrowed["count"] == 3
    assert narrowed["references"][2] == {"path": "./lib/b.py", "line": 1, "outside_cage": True}
    assert CANARY not in json.dumps(narrowed)
    asked = [one["params"]["context"] for one in lab.received("textDocument/references")]
    assert asked[0] == {"includeDeclaration": False}
    assert asked[-1] == {"includeDeclaration": True}


# -- symbols and hover -----------------------------------------------------------------------------


@requirement("AT-LSP-37", "AT-LSP-38")
async def test_symbols_are_flat_in_source_order_with_words_for_kinds(lab: LspLab) -> None:
    lab.write("a.py", "class A:\n    def one(self): ...\n    def two(self): ...\ndef f(): ...\n")
    lab.answer("textDocument/documentSymbol", {"result": _tree()})
    said = await lab.lsp("symbols", path="./a.py")
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
    one = await lab.lsp("symbols", path="./a.py", limit=1)
    assert [symbol["name"] for symbol in one["symbols"]] == ["A"]
    for broken in ({"scope": "workspace"}, {"limit": 0}, {"scope": "galaxy"}):
        refusal = await lab.tool_lab.refusal("code.lsp", action="symbols", path="./a.py", **broken)
        assert refusal.code == "invalid_params"


@requirement("AT-LSP-39")
async def test_workspace_symbols_outside_the_cage_have_no_name(lab: LspLab) -> None:
    lab.write("src/a.py", "def serve(): ...\n")
    lab.write("lib/b.py", f"def serve_{CANARY}(): ...\n")
    found = [
        {"name": "serve", "kind": 12, "location": location(lab, "src/a.py", 0, 4, 9)},
        {"name": f"serve_{CANARY}", "kind": 12, "location": location(lab, "lib/b.py", 0, 4, 9)},
    ]
    lab.answer("workspace/symbol", {"result": found})
    ask: dict[str, Any] = {"action": "symbols", "path": "./src", "scope": "workspace"}
    said = await lab.tool_lab.call("code.lsp", **ask, query="serve")
    assert [one["name"] for one in said["symbols"]] == ["serve", f"serve_{CANARY}"]
    assert lab.received("workspace/symbol")[0]["params"] == {"query": "serve"}
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    narrowed = await caged.call("code.lsp", **ask, query="serve")
    assert narrowed["symbols"][1] == {"path": "./lib/b.py", "line": 1, "outside_cage": True}
    assert CANARY not in json.dumps(narrowed)


@requirement("AT-LSP-50", "AT-LSP-51")
async def test_hover_splits_signature_and_documentation(lab: LspLab) -> None:
    lab.write("a.py", "\nname = 1\n")
    markdown = "```python\n(variable) name: int\n```\n---\nThe name of *it*."
    contents = {"kind": "markdown", "value": markdown}
    lab.answer("textDocument/hover", {"result": {"contents": contents, "range": span(1, 0, 4)}})
    assert await lab.lsp("hover", path="./a.py", line=2, character=1) == {
        "content": "(variable) name: int",
        "documentation": "The name of *it*.",
        "range": {"start": {"line": 2, "character": 0}, "end": {"line": 2, "character": 4}},
    }
    lab.answer("textDocument/hover", {"result": None})
    assert await lab.lsp("hover", path="./a.py", line=1, character=0) == {
        "content": None,
        "documentation": None,
        "range": None,
    }


# -- code actions ----------------------------------------------------------------------------------


@requirement("AT-LSP-47", "AT-LSP-48")
async def test_code_actions_inform_and_change_nothing(lab: LspLab) -> None:
    file = lab.write("a.py", "ERR naem\n")
    fix = {
        "title": "Change spelling to 'name'",
        "kind": "quickfix",
        "isPreferred": True,
        "edit": {"changes": {lab.uri("a.py"): [{"range": span(0, 4, 8), "newText": "name"}]}},
    }
    command = {"title": "Organize", "command": "organize", "arguments": []}
    lab.answer("textDocument/codeAction", {"result": [fix, command]})
    said = await lab.lsp("code_actions", path="./a.py", line=1, character=1)
    assert said == {
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
    assert file.read_text("utf-8") == "ERR naem\n"
    await lab.lsp("code_actions", path="./a.py", line=1, character=1, include_diagnostics=False)
    given = [one["params"]["context"]["diagnostics"] for one in _asked(lab)]
    assert [len(one) for one in given] == [1, 0]


@requirement("AT-LSP-49")
async def test_lazy_edits_are_fetched_and_foreign_text_is_left_out(lab: LspLab) -> None:
    lab.write("src/a.py", "x\n")
    lab.write("lib/b.py", f"{CANARY}\n")
    lab.plan(capabilities={**ALL_CAPABILITIES, "codeActionProvider": {"resolveProvider": True}})
    lab.answer("textDocument/codeAction", {"result": [{"title": "Fix", "data": 1}]})
    edits = {
        lab.uri("src/a.py"): [{"range": span(0, 0, 1), "newText": "y"}],
        lab.uri("lib/b.py"): [{"range": span(0, 0, 10), "newText": f"{CANARY}_new"}],
    }
    lab.answer("codeAction/resolve", {"result": {"title": "Fix", "edit": {"changes": edits}}})
    caged = lab.tool_lab_for(cage("ro ./src", root=lab.root))
    said = await caged.call(
        "code.lsp", action="code_actions", path="./src/a.py", line=1, character=0
    )
    assert said["actions"][0]["edits"] == [
        {"path": "./src/a.py", "line": 1, "old": "x", "new": "y"},
        {"path": "./lib/b.py", "line": 1, "outside_cage": True},
    ]
    assert CANARY not in json.dumps(said)


# -- rename ----------------------------------------------------------------------------------------


def _rename_plan(lab: LspLab, form: str) -> dict[str, Any]:
    """Rename `old` to `new` in three files; the second has it twice on a line with an emoji."""
    lab.write("src/a.py", "old = 1\n")
    (lab.root / "src/b.py").write_bytes("\ufeffx = '😀' + old + old\r\n".encode())
    lab.write("src/c.py", "use(old)\n")
    edits = {
        "src/a.py": [span(0, 0, 3)],
        "src/b.py": [span(0, 11, 14), span(0, 17, 20)],
        "src/c.py": [span(0, 4, 7)],
    }
    changes = {
        lab.uri(path): [{"range": one, "newText": "new"} for one in spans]
        for path, spans in edits.items()
    }
    if form == "changes":
        return {"changes": changes}
    return {
        "documentChanges": [
            {"textDocument": {"uri": uri, "version": None}, "edits": one}
            for uri, one in changes.items()
        ]
    }


@requirement("AT-LSP-40", "AT-LSP-44", "AT-LSP-03")
@pytest.mark.parametrize("form", ["changes", "documentChanges"])
async def test_a_rename_changes_every_file(lab: LspLab, form: str) -> None:
    edit = _rename_plan(lab, form)
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    lab.answer("textDocument/rename", {"result": edit})
    said = await lab.lsp("rename", path="./src/a.py", line=1, character=0, new_name="new")
    assert said == {
        "changes": [
            {"path": "./src/a.py", "edits": 1},
            {"path": "./src/b.py", "edits": 2},
            {"path": "./src/c.py", "edits": 1},
        ],
        "total_edits": 4,
        "files_changed": 3,
    }
    assert (lab.root / "src/a.py").read_text("utf-8") == "new = 1\n"
    assert (lab.root / "src/b.py").read_bytes() == "\ufeffx = '😀' + new + new\r\n".encode()
    assert (lab.root / "src/c.py").read_text("utf-8") == "use(new)\n"
    edited = lab.tool_lab.audit.of("file.edited")
    assert [(one["path"], one["replacements"]) for one in edited] == [
        ("./src/a.py", 1),
        ("./src/b.py", 2),
        ("./src/c.py", 1),
    ]
    await lab.lsp("diagnostics", path="./src/a.py")
    changed = lab.received("textDocument/didChange")
    assert changed[0]["params"]["contentChanges"] == [{"text": "new = 1\n"}]
    assert changed[0]["params"]["textDocument"]["version"] == 2


@requirement("AT-LSP-41")
async def test_what_cannot_be_renamed_is_left_alone(lab: LspLab) -> None:
    edit = _rename_plan(lab, "changes")
    at: dict[str, Any] = {"path": "./src/a.py", "line": 1, "character": 0, "new_name": "new"}
    lab.answer("textDocument/rename", {"result": edit})
    lab.answer("textDocument/prepareRename", {"result": None})
    assert (await lab.tool_lab.refusal("code.lsp", action="rename", **at)).code == (
        "rename_not_possible"
    )
    lab.answer("textDocument/prepareRename", {"error": {"code": -32602, "message": "keyword"}})
    refusal = await lab.tool_lab.refusal("code.lsp", action="rename", **at)
    assert (refusal.code, "keyword" in refusal.message) == ("rename_not_possible", True)
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    lab.answer("textDocument/rename", {"error": {"code": -32803, "message": "no"}})
    assert (await lab.tool_lab.refusal("code.lsp", action="rename", **at)).code == (
        "rename_not_possible"
    )
    assert "textDocument/rename" in lab.methods()
    assert (lab.root / "src/a.py").read_text("utf-8") == "old = 1\n"
    empty = await lab.tool_lab.refusal("code.lsp", action="rename", **(at | {"new_name": ""}))
    assert empty.code == "invalid_params"


@requirement("AT-LSP-42", "AT-FAIL-10")
async def test_a_rename_beyond_the_cage_or_project_changes_nothing(
    lab: LspLab, tmp_path: Path
) -> None:
    edit = _rename_plan(lab, "changes")
    lab.write("lib/d.py", "old\n")
    foreign = tmp_path / "foreign.py"
    foreign.write_text("old\n", encoding="utf-8")
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    at: dict[str, Any] = {"path": "./src/a.py", "line": 1, "character": 0, "new_name": "new"}
    caged = lab.tool_lab_for(cage("rw ./src", "ro ./lib", root=lab.root))
    before = {path: path.read_bytes() for path in lab.root.rglob("*.py")}
    for uri, tool_lab, shown in (
        (lab.uri("lib/d.py"), caged, "./lib/d.py"),
        (foreign.as_uri(), lab.tool_lab, str(foreign)),
    ):
        more = {**edit["changes"], uri: [{"range": span(0, 0, 3), "newText": "new"}]}
        lab.answer("textDocument/rename", {"result": {"changes": more}})
        refusal = await tool_lab.refusal("code.lsp", action="rename", **at)
        assert refusal.code == "rename_scope_exceeds_cage"
        assert refusal.detail == {"paths": [shown]}
        assert "primary" in (refusal.fix or "")
    assert {path: path.read_bytes() for path in lab.root.rglob("*.py")} == before
    assert foreign.read_text("utf-8") == "old\n"
    assert lab.tool_lab.audit.of("file.edited") == []


@requirement("AT-LSP-43")
@pytest.mark.parametrize("failing", [0, 1, 2])
async def test_a_write_that_fails_takes_the_whole_rename_back(
    lab: LspLab, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    edit = _rename_plan(lab, "changes")
    lab.answer("textDocument/prepareRename", {"result": span(0, 0, 3)})
    lab.answer("textDocument/rename", {"result": edit})
    before = {path: path.read_bytes() for path in lab.root.rglob("*.py")}
    from kaged.workspace import batch

    real, swaps = batch.put, []

    def put(*args: Any, **kwargs: Any) -> Any:
        swaps.append(1)
        if len(swaps) == failing + 1:
            raise FileWriteFailed("./x", "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(batch, "put", put)
    await lab.tool_lab.refusal(
        "code.lsp", action="rename", path="./src/a.py", line=1, character=0, new_name="new"
    )
    assert len(swaps) > failing
    assert {path: path.read_bytes() for path in lab.root.rglob("*.py")} == before
    assert lab.tool_lab.audit.of("file.edited") == []


@requirement("AT-LSP-45", "AT-SYNC-07")
async def test_a_file_moves_with_all_that_refers_to_it(lab: LspLab) -> None:
    renames = {"fileOperations": {"willRename": {"filters": []}}}
    lab.plan(capabilities={**ALL_CAPABILITIES, "workspace": renames})
    lab.write("src/util.py", "x = 1\n")
    lab.write("src/main.py", "import util\n")
    edit = {"changes": {lab.uri("src/main.py"): [{"range": span(0, 7, 11), "newText": "tool"}]}}
    lab.answer("workspace/willRenameFiles", {"result": edit})
    said = await lab.lsp("rename_file", path="./src/util.py", new_path="./src/tool.py")
    assert said == {
        "old_path": "./src/util.py",
        "new_path": "./src/tool.py",
        "changes": [{"path": "./src/main.py", "edits": 1}],
        "total_edits": 1,
        "files_changed": 1,
    }
    assert not (lab.root / "src/util.py").exists()
    assert (lab.root / "src/tool.py").read_text("utf-8") == "x = 1\n"
    assert (lab.root / "src/main.py").read_text("utf-8") == "import tool\n"
    await lab.lsp("diagnostics", path="./src/tool.py")
    asked = {"files": [{"oldUri": lab.uri("src/util.py"), "newUri": lab.uri("src/tool.py")}]}
    assert lab.received("workspace/willRenameFiles")[0]["params"] == asked
    assert lab.received("workspace/didRenameFiles")[0]["params"] == asked
    closed = [one["params"]["textDocument"]["uri"] for one in lab.received("textDocument/didClose")]
    opened = [one["params"]["textDocument"]["uri"] for one in lab.received("textDocument/didOpen")]
    assert closed == [lab.uri("src/util.py")]
    assert lab.uri("src/tool.py") in opened
    written = lab.tool_lab.audit.of("file.written")
    assert [(one["path"], one["bytes"]) for one in written] == [("./src/tool.py", 6)]


@requirement("AT-LSP-46")
async def test_a_move_that_cannot_be_changes_nothing(lab: LspLab) -> None:
    lab.write("src/a.py", "x\n")
    lab.write("src/b.py", "y\n")
    lab.write("lib/c.py", "z\n")
    caged = lab.tool_lab_for(cage("rw ./src", "ro ./lib", root=lab.root))
    for tool_lab, old, new, code in (
        (lab.tool_lab, "./src/none.py", "./src/n.py", "file_not_found"),
        (lab.tool_lab, "./src/a.py", "./src/b.py", "file_exists"),
        (lab.tool_lab, "./src/a.py", "../out.py", "invalid_params"),
        (caged, "./src/a.py", "./lib/d.py", "rename_scope_exceeds_cage"),
        (caged, "./lib/c.py", "./src/d.py", "rename_scope_exceeds_cage"),
    ):
        refusal = await tool_lab.refusal("code.lsp", action="rename_file", path=old, new_path=new)
        assert refusal.code == code, (old, new)
    assert sorted(str(one.relative_to(lab.root)) for one in lab.root.rglob("*.py")) == [
        "lib/c.py",
        "src/a.py",
        "src/b.py",
    ]


@requirement("AT-DISP-20")
async def test_without_a_bridge_the_call_fails_with_a_code(tmp_path: Path) -> None:
    from fakes.tool_lab import ToolLab
    from kaged.toolbox.lsp import lsp_tools

    tool_lab = ToolLab(tmp_path, lsp_tools(lambda _: None))
    assert (await tool_lab.refusal("code.lsp", action="status")).code == "lsp_server_unavailable"


def _asked(lab: LspLab) -> list[dict[str, Any]]:
    return lab.received("textDocument/codeAction")


def _tree() -> list[dict[str, Any]]:
    def symbol(name: str, kind: int, line: int, start: int, *children: Any) -> dict[str, Any]:
        at = span(line, start, start + len(name))
        return {
            "name": name,
            "kind": kind,
            "range": span(line, 0, 30),
            "selectionRange": at,
            "children": list(children),
        }

    return [
        symbol("A", 5, 0, 6, symbol("one", 6, 1, 8), symbol("two", 6, 2, 8)),
        symbol("f", 12, 3, 4),
    ]


def _fresh(folder: Path) -> Path:
    made = folder / "fresh"
    made.mkdir()
    return made
