"""When a server has read the project: the signs of each kind, and how long they are waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kaged.base import JsonObject, ManualClock
from kaged.toolbox.lsp import loading
from kaged.toolbox.lsp.bridge import has_file_list
from kaged.toolbox.lsp.loading import Loading
from kaged.toolbox.lsp.server import LspServer
from kaged.wire.messages import Notification, Request

BEGIN: JsonObject = {"token": "t", "value": {"kind": "begin"}}
END: JsonObject = {"token": "t", "value": {"kind": "end"}}


async def test_progress_that_began_is_waited_for() -> None:
    found = Loading()
    assert await found.until_ready(20) is True
    found.progressed(BEGIN)
    waiting = asyncio.ensure_future(found.until_ready(20))  # noqa: TID251 - awaited below
    await asyncio.sleep(0)
    assert not waiting.done()
    found.progressed(END)
    assert await waiting is True
    found.progressed(BEGIN)
    assert await found.until_ready(0) is False


async def test_clangd_that_will_surely_begin_is_waited_for_however_late_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "CLANGD_GRACE_S", 0)
    found = Loading()
    found.server_named("clangd")
    assert found.waits_for_begin is True
    found.will_begin()
    waiting = asyncio.ensure_future(found.until_ready(20))  # noqa: TID251 - awaited below
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiting.done()
    found.created({"token": "t"})
    found.progressed(BEGIN)
    await asyncio.sleep(0)
    assert not waiting.done()
    found.progressed(END)
    assert await waiting is True


async def test_clangd_without_a_list_of_files_is_given_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "CLANGD_GRACE_S", 0)
    found = Loading()
    found.server_named("clangd")
    assert await found.until_ready(20) is True


async def test_clangd_that_does_not_begin_after_all_is_called_unready_once() -> None:
    found = Loading()
    found.server_named("clangd")
    found.will_begin()
    assert await found.until_ready(0) is False
    assert await found.until_ready(20) is True


@pytest.mark.parametrize("word", ["--background-index=0", "--background-index=false"])
async def test_clangd_that_was_told_to_read_nothing_is_not_waited_for(word: str) -> None:
    found = Loading()
    found.server_named("clangd", ("clangd", word))
    assert found.waits_for_begin is False
    assert await found.until_ready(0) is True


@pytest.mark.parametrize(
    ("name", "command"),
    [("basedpyright", ("x",)), ("", ("/usr/bin/pyright-langserver", "--stdio"))],
)
async def test_pyright_is_done_when_its_log_says_so(name: str, command: tuple[str, ...]) -> None:
    found = Loading()
    found.server_named(name, command)
    assert await found.until_ready(0) is False
    found.logged("Auto-excluding **/node_modules")
    assert found.busy is True
    found.logged("Found 3 source files")
    assert await found.until_ready(20) is True


def begin(title: str, token: str = "t") -> JsonObject:
    return {"token": token, "value": {"kind": "begin", "title": title}}


async def test_looks_for_problems_keep_no_question_about_the_project_waiting() -> None:
    found = Loading()
    found.created({"token": "t"})
    assert found.busy is True
    found.progressed(begin("diagnosing changed files"))
    assert (found.busy, found.tells_of_checks) == (False, True)
    assert await found.until_checked(0) is False
    found.progressed(begin("diagnosing saved files", "u"))
    waiting = asyncio.ensure_future(found.until_checked(20))  # noqa: TID251 - awaited below
    found.progressed(END)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    found.progressed({"token": "u", "value": {"kind": "end"}})
    assert await waiting is True


async def test_a_server_that_ends_while_it_looks_has_not_found_everything_in_order() -> None:
    found = Loading()
    found.progressed(begin("diagnosing opened files"))
    found.ended()
    assert await found.until_checked(20) is False


async def test_an_error_that_is_shown_as_a_progress_is_no_loading() -> None:
    found = Loading()
    found.created({"token": "t"})
    found.progressed(begin("Error loading workspace"))
    assert (found.busy, found.tells_of_checks) == (False, False)
    assert await found.until_ready(20) is True


async def test_a_progress_that_begins_and_ends_before_its_token_is_answered_is_over(
    clock: ManualClock,
) -> None:
    server = LspServer("rust", "/", clock, lambda _server, _report: None)
    made = Request(7, "window/workDoneProgress/create", {"token": "t"})
    server.asked(made)
    assert server.loading.busy is True
    server.notified(Notification("$/progress", BEGIN))
    server.notified(Notification("$/progress", END))
    assert await server.answer(made) is None
    assert server.loading.busy is False


def test_a_list_of_files_is_found_beside_or_above_the_open_files(tmp_path: Path) -> None:
    root = str(tmp_path)
    (tmp_path / "a/b").mkdir(parents=True)
    paths = [f"{root}/a/b/x.c"]
    assert has_file_list(root, paths) is False
    (tmp_path / "a/build").mkdir()
    (tmp_path / "a/build/compile_commands.json").write_text("[]", encoding="utf-8")
    assert has_file_list(root, paths) is True
    assert has_file_list(root, [f"{root}/y.c"]) is False
    (tmp_path / "compile_commands.json").write_text("[]", encoding="utf-8")
    assert has_file_list(root, []) is True
