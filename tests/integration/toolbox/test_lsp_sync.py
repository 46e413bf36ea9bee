"""Servers know of files what tools and the disk know."""

from __future__ import annotations

from typing import Any

from fakes.lsp_lab import LspLab
from requirements import requirement


def texts(lab: LspLab, method: str, path: str) -> list[dict[str, Any]]:
    return [
        one["params"]
        for one in lab.received(method)
        if one["params"]["textDocument"]["uri"] == lab.uri(path)
    ]


@requirement("AT-SYNC-09")
async def test_a_file_removed_past_the_tools_is_closed_before_the_next_question(
    lab: LspLab,
) -> None:
    file = lab.write("a.py", "fine\n")
    lab.write("b.py", "fine\n")
    await lab.lsp("diagnostics", path="./a.py")
    file.unlink()
    await lab.lsp("diagnostics", path="./b.py")
    assert len(texts(lab, "textDocument/didClose", "a.py")) == 1


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
