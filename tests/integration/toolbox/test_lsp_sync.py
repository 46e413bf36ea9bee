"""Servers know of files what tools and the disk know."""

from __future__ import annotations

from typing import Any

from fakes.file_clock import FileClock
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


@requirement("AT-SYNC-09")
async def test_a_text_of_equal_length_in_the_same_moment_is_sent_for_every_file(
    lab: LspLab, file_clock: FileClock
) -> None:
    """File times tell nothing then; see `kaged.base.file_stamp`."""
    for name in ("a.py", "b.py", "c.py"):
        lab.write(name, "fine\n")
        await lab.lsp("diagnostics", path=f"./{name}")
    for text in ("ERR1\n", "ERR2\n"):
        lab.write("a.py", text)
        lab.write("b.py", text)
        await lab.lsp("diagnostics", path="./c.py")
        for name in ("a.py", "b.py"):
            sent = texts(lab, "textDocument/didChange", name)[-1]
            assert sent["contentChanges"][-1]["text"] == text
    assert [len(texts(lab, "textDocument/didChange", one)) for one in ("a.py", "b.py")] == [2, 2]


@requirement("AT-SYNC-09")
async def test_a_file_whose_time_can_be_relied_on_is_not_read_again(
    lab: LspLab, file_clock: FileClock
) -> None:
    lab.write("a.py", "fine\n")
    lab.write("b.py", "fine\n")
    file_clock.settle()
    await lab.lsp("diagnostics", path="./a.py")
    # What no disk does any more: another text with the same time. Whoever reads would see it.
    lab.write("a.py", "ERR1\n")
    await lab.lsp("diagnostics", path="./b.py")
    assert texts(lab, "textDocument/didChange", "a.py") == []
    await lab.lsp("diagnostics", path="./a.py")  # the file that is asked about is always read
    assert len(texts(lab, "textDocument/didChange", "a.py")) == 1


async def test_previews_are_of_a_text_that_was_replaced_in_the_same_moment(
    lab: LspLab, file_clock: FileClock
) -> None:
    lab.write("a.py", "fine\n")
    spot = {"line": 0, "character": 0}
    places = [
        {"uri": (lab.root / name).as_uri(), "range": {"start": spot, "end": spot}}
        for name in ("b.py", "c.py")
    ]
    lab.answer("textDocument/references", {"result": places})
    for text in ("one1", "two2"):
        lab.write("b.py", text)
        lab.write("c.py", text)
        found = await lab.lsp("references", path="./a.py", line=1, character=0)
        assert [one["preview"] for one in found["references"]] == [text, text]
