"""The example `rewind.lua`: words and files go back together, and nothing is ever lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.lua_lab import LuaLab
from fakes.session_lab import texts
from requirements import requirement

REWIND = Path(__file__).parents[3] / "plugins" / "examples" / "rewind.lua"


@pytest.fixture
async def rewind(lab: LuaLab) -> LuaLab:
    """Return a project in git with the example loaded and both grants."""
    lab.repository()
    lab.grants["rewind"] = ["session_write", "exec"]
    await lab.begin()
    await lab.load(rewind=REWIND.read_text(encoding="utf-8"))
    assert lab.script("rewind").state == "running", lab.script("rewind").error
    return lab


async def _said(lab: LuaLab) -> list[str]:
    return texts(await lab.host_sessions.transcript.entries(await lab.current()))


def _file(lab: LuaLab, name: str = "a.txt") -> str:
    return (lab.work / name).read_text(encoding="utf-8")


@requirement("LC-EX-02")
async def test_a_turn_leaves_a_snapshot_and_nothing_else_in_the_repository(
    rewind: LuaLab,
) -> None:
    before = (rewind.git("rev-parse", "HEAD"), rewind.git("branch"), rewind.git("stash", "list"))
    index = (rewind.work / ".git" / "index").read_bytes()
    await rewind.exchange("go", "done", {"a.txt": "two\n", "new.txt": "fresh\n"})
    refs = rewind.git("for-each-ref", "--format=%(objectname)", "refs/kaged/rewind").split()
    held = {rewind.git("show", f"{one}:a.txt") for one in refs}
    assert {"one", "two"} <= held
    assert any("new.txt" in rewind.git("ls-tree", "--name-only", one) for one in refs)
    after = (rewind.git("rev-parse", "HEAD"), rewind.git("branch"), rewind.git("stash", "list"))
    assert after == before
    assert (rewind.work / ".git" / "index").read_bytes() == index


async def test_several_undos_are_redone_one_by_one(rewind: LuaLab) -> None:
    for number in ("1", "2", "3"):
        await rewind.exchange(f"ask {number}", f"did {number}", {"a.txt": number})
    for expected in ("2", "1", "one\n"):
        assert not (await rewind.run("undo")).is_error
        assert _file(rewind) == expected
    assert await _said(rewind) == []
    assert (await rewind.run("undo")).is_error
    for expected in ("1", "2", "3"):
        assert not (await rewind.run("redo")).is_error
        assert _file(rewind) == expected
    assert (await rewind.run("redo")).is_error


async def test_changes_by_hand_to_other_files_stay(rewind: LuaLab) -> None:
    await rewind.exchange("go", "done", {"a.txt": "two\n"})
    (rewind.work / "notes.txt").write_text("mine\n", encoding="utf-8")
    assert not (await rewind.run("undo")).is_error
    assert _file(rewind) == "one\n"
    assert _file(rewind, "notes.txt") == "mine\n"


@requirement("LC-EX-02")
async def test_an_ignored_file_in_the_way_is_never_overwritten(rewind: LuaLab) -> None:
    await rewind.exchange("one", "done", {"out.log": "first\n"})
    await rewind.exchange("two", "done", {})
    (rewind.work / "out.log").unlink()
    await rewind.exchange("three", "removed it", {".gitignore": "*.log\n"})
    (rewind.work / "out.log").write_text("precious\n", encoding="utf-8")
    await rewind.run("undo")
    assert _file(rewind, "out.log") == "precious\n"


async def test_without_anybody_to_ask_rewind_changes_nothing(rewind: LuaLab) -> None:
    await rewind.exchange("first", "done one", {"a.txt": "two\n"})
    before = await rewind.current()
    found = await rewind.run("rewind")
    assert found.text == "rewind: cancelled"
    assert await rewind.current() == before


async def test_a_veto_leaves_words_and_files(rewind: LuaLab) -> None:
    await rewind.load(
        zz_guard="kage.on('session_before_switch', function() return {cancel='no'} end)"
    )
    await rewind.exchange("go", "done", {"a.txt": "two\n"})
    before = await rewind.current()
    found = await rewind.run("undo")
    assert any("session_before_switch: no" in str(one["message"]) for one in found.notices), found
    assert await rewind.current() == before
    assert _file(rewind) == "two\n"


async def test_undo_works_after_the_worker_was_started_anew(rewind: LuaLab) -> None:
    await rewind.exchange("go", "done", {"a.txt": "two\n"})
    await rewind.load()
    assert not (await rewind.run("undo")).is_error
    assert _file(rewind) == "one\n"
