"""What the actions of `code.lsp` ask, give and refuse, seen through dispatch."""

from __future__ import annotations

from pathlib import Path

from fakes.lsp_lab import ALL_CAPABILITIES, LspLab
from kaged.toolbox.lsp.tool import ACTIONS, CHANGING
from requirements import requirement

# -- parameters ------------------------------------------------------------------------------------


async def test_an_unknown_way_of_counting_columns_is_taken_for_the_protocols_own(
    lab: LspLab,
) -> None:
    lab.write("a.py", "\nx = '😀' + name\n")
    lab.plan(capabilities={**ALL_CAPABILITIES, "positionEncoding": "latin"})
    lab.answer("textDocument/hover", {"result": None})
    await lab.lsp("hover", path="./a.py", line=2, character=10)
    (asked,) = lab.received("textDocument/hover")
    assert asked["params"]["position"]["character"] == 11


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


def test_what_each_action_requires() -> None:
    assert set(ACTIONS) > CHANGING == {"rename", "rename_file"}


# -- diagnostics -----------------------------------------------------------------------------------


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


# -- where things are ------------------------------------------------------------------------------


# -- symbols and hover -----------------------------------------------------------------------------


# -- code actions ----------------------------------------------------------------------------------


# -- rename ----------------------------------------------------------------------------------------


@requirement("AT-DISP-20")
async def test_without_a_bridge_the_call_fails_with_a_code(tmp_path: Path) -> None:
    from fakes.tool_lab import ToolLab
    from kaged.toolbox.lsp import lsp_tools

    tool_lab = ToolLab(tmp_path, lsp_tools(lambda _: None))
    assert (await tool_lab.refusal("code.lsp", action="status")).code == "lsp_server_unavailable"
