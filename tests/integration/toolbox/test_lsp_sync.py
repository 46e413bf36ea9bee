"""Servers know of files what tools and the disk know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakes.lsp_lab import ALL_CAPABILITIES, LspLab
from fakes.tool_lab import cage
from requirements import requirement


def texts(lab: LspLab, method: str, path: str) -> list[dict[str, Any]]:
    return [
        one["params"]
        for one in lab.received(method)
        if one["params"]["textDocument"]["uri"] == lab.uri(path)
    ]


@requirement("AT-SYNC-01")
async def test_reading_a_file_opens_it_once(lab: LspLab) -> None:
    lab.write("a.py", "a = 1\n")
    lab.write("b.py", "b = 'é'\n")
    await lab.lsp("diagnostics", path="./a.py")
    await lab.tool_lab.call("file.read", path="./b.py")
    await lab.tool_lab.call("file.read", path="./b.py")
    await lab.lsp("diagnostics", path="./a.py")
    (opened,) = texts(lab, "textDocument/didOpen", "b.py")
    assert opened["textDocument"] == {
        "uri": lab.uri("b.py"),
        "languageId": "python",
        "version": 1,
        "text": "b = 'é'\n",
    }
    assert texts(lab, "textDocument/didChange", "b.py") == []


@requirement("AT-SYNC-02")
async def test_every_change_is_sent_whole_with_a_growing_version(lab: LspLab) -> None:
    lab.write("a.py", "one\n")
    await lab.lsp("diagnostics", path="./a.py")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="one", new_string="two")
    await lab.tool_lab.call("file.write", path="./a.py", content="three\n")
    await lab.tool_lab.call("file.create", path="./new.py", content="made\n")
    await lab.lsp("diagnostics", path="./a.py")
    sent = texts(lab, "textDocument/didChange", "a.py")
    assert [one["textDocument"]["version"] for one in sent] == [2, 3]
    assert [one["contentChanges"] for one in sent] == [[{"text": "two\n"}], [{"text": "three\n"}]]
    (made,) = texts(lab, "textDocument/didOpen", "new.py")
    assert made["textDocument"]["text"] == "made\n"


@requirement("AT-SYNC-04", "AT-SYNC-05")
async def test_what_one_agent_edits_another_sees_at_once(lab: LspLab) -> None:
    lab.write("a.py", "fine\n")
    other = lab.tool_lab_for(cage("ro ./", root=lab.root), "ses_2", "primary.subagents.b")
    await other.call("code.lsp", action="diagnostics", path="./a.py")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="fine", new_string="ERR")
    assert (await other.call("code.lsp", action="diagnostics", path="./a.py"))["count"] == 1
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="ERR", new_string="fine")
    assert (await other.call("code.lsp", action="diagnostics", path="./a.py"))["count"] == 0


@requirement("AT-SYNC-08")
async def test_reading_again_brings_the_server_up_to_date(lab: LspLab) -> None:
    file = lab.write("a.py", "fine\n")
    await lab.lsp("diagnostics", path="./a.py")
    file.write_text("ERR\n", encoding="utf-8")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.until(lambda: bool(texts(lab, "textDocument/didChange", "a.py")))
    (sent,) = texts(lab, "textDocument/didChange", "a.py")
    assert sent["contentChanges"] == [{"text": "ERR\n"}]


@requirement("AT-SYNC-09")
async def test_changes_past_the_tools_are_noticed_before_each_question(lab: LspLab) -> None:
    file = lab.write("a.py", "fine\n")
    lab.write("b.py", "fine\n")
    await lab.lsp("diagnostics", path="./a.py")
    file.write_text("ERR ERR\n", encoding="utf-8")
    await lab.lsp("diagnostics", path="./b.py")
    (sent,) = texts(lab, "textDocument/didChange", "a.py")
    assert sent["contentChanges"] == [{"text": "ERR ERR\n"}]
    file.unlink()
    await lab.lsp("diagnostics", path="./b.py")
    assert len(texts(lab, "textDocument/didClose", "a.py")) == 1


@requirement("AT-SYNC-10")
@pytest.mark.parametrize("wanted", [True, False])
async def test_saves_are_told_to_servers_that_ask(lab: LspLab, wanted: bool) -> None:
    lab.plan(capabilities={**ALL_CAPABILITIES, "textDocumentSync": {"change": 1, "save": wanted}})
    lab.write("a.py", "one\n")
    await lab.lsp("diagnostics", path="./a.py")
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("edit.text", path="./a.py", old_string="one", new_string="two")
    await lab.lsp("diagnostics", path="./a.py")
    assert len(texts(lab, "textDocument/didSave", "a.py")) == int(wanted)


@requirement("AT-SYNC-11")
async def test_a_dead_server_fails_no_file_operation(lab: LspLab) -> None:
    file = lab.write("a.py", "one\n")
    await lab.lsp("diagnostics", path="./a.py")
    server = lab.bridge.pool.running("python")
    assert server is not None
    await server.kill()
    await lab.tool_lab.call("file.read", path="./a.py")
    await lab.tool_lab.call("file.write", path="./a.py", content="two\n")
    assert file.read_text("utf-8") == "two\n"


@requirement("AT-SYNC-12")
async def test_odd_names_make_the_round_trip(lab: LspLab) -> None:
    name = "ä b#%.py"
    lab.write(name, "ERR\n")
    lab.answer(
        "textDocument/definition",
        {
            "result": {
                "uri": (lab.root / name).as_uri(),
                "range": {
                    "start": {"line": 0, "character": 0},
                    "end": {"line": 0, "character": 3},
                },
            }
        },
    )
    assert (await lab.lsp("diagnostics", path=f"./{name}"))["path"] == f"./{name}"
    found = await lab.lsp("definition", path=f"./{name}", line=1, character=0)
    assert found["definitions"][0]["path"] == f"./{name}"
    (opened,) = lab.received("textDocument/didOpen")
    uri = opened["params"]["textDocument"]["uri"]
    assert uri.endswith("/%C3%A4%20b%23%25.py")


@requirement("AT-SYNC-13")
async def test_files_open_under_the_protocols_language_ids(tmp_path: Path) -> None:
    lab = LspLab(tmp_path)
    await lab.close()
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    languages = ("typescript", "javascript", "python", "rust", "go")
    lab = LspLab(fresh, commands=dict.fromkeys(languages, _command(fresh, lab)))
    wanted = {
        "a.ts": "typescript",
        "b.tsx": "typescriptreact",
        "c.js": "javascript",
        "d.jsx": "javascriptreact",
        "e.py": "python",
        "f.rs": "rust",
        "g.go": "go",
    }
    for name in wanted:
        lab.write(name, "x\n")
        await lab.lsp("diagnostics", path=f"./{name}")
    opened = {
        Path(one["params"]["textDocument"]["uri"]).name: one["params"]["textDocument"]["languageId"]
        for one in lab.received("textDocument/didOpen")
    }
    assert opened == wanted
    await lab.close()


def _command(folder: Path, lab: LspLab) -> tuple[str, ...]:
    program, script, *_ = lab.fake_command()
    return (program, script, str(folder / "plan.json"), str(folder / "log.jsonl"))
