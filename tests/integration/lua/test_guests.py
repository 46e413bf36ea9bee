"""Scripts written as those of both generations are, and our examples: they load and work."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.lua_lab import LuaLab
from kaged.sessions.transforms import ContextDraft

ROOT = Path(__file__).parents[3]
GUESTS = ROOT / "tests" / "guests" / "lua"
EXAMPLES = ROOT / "plugins" / "examples"


async def _load(lab: LuaLab, *files: Path) -> None:
    sources = {path.stem: path.read_text(encoding="utf-8") for path in files}
    await lab.load(**sources)
    for script in lab.runtime.scripts:
        assert script.state == "running", (script.stem, script.error)


@pytest.mark.parametrize("granted", [True, False])
async def test_everything_loads_together_with_and_without_grants(
    lab: LuaLab, granted: bool
) -> None:
    files = sorted([*GUESTS.glob("*.lua"), *EXAMPLES.glob("*.lua")])
    assert len(files) >= 8
    if granted:
        lab.grants = {path.stem: ["session_write", "exec", "context"] for path in files}
    await lab.begin()
    await _load(lab, *files)
    await lab.exchange("go", "done")
    assert not [one for one in lab.notices() if "raised" in one]


async def test_an_early_rewind_moves_words_and_tracked_files(lab: LuaLab) -> None:
    lab.repository()
    lab.grants["early_rewind"] = ["session_write", "exec"]
    await lab.begin()
    await _load(lab, GUESTS / "early_rewind.lua")
    await lab.exchange("one", "did one", {"a.txt": "two\n"})
    await lab.exchange("two", "did two", {"a.txt": "three\n"})
    found = await lab.run("eu")
    assert (found.text, found.is_error) == ("undone", False)
    assert (lab.work / "a.txt").read_text(encoding="utf-8") == "two\n"
    assert len(await lab.sessions.entries()) == 3


async def test_a_late_card_is_appended_and_drawn(lab: LuaLab) -> None:
    await lab.begin("hello")
    await _load(lab, GUESTS / "late_blocks.lua")
    assert (await lab.run("demo-card", "My title")).text == "appended My title"
    assert (await lab.run("card")).text == "dismissed"
    entries = await lab.host_sessions.transcript.entries(await lab.current())
    assert entries[-1].content["data"] == {"title": "My title"}
    drawn = await lab.runtime.ask_ui(
        "late_blocks", "render", {"what": "block", "kind": "demo.card", "block": {"title": "T"}}
    )
    assert drawn["lines"] == [[{"text": "T", "bold": True}], [{"text": "-", "dim": True}]]


async def test_notices_of_a_run_and_changes_to_its_request(lab: LuaLab) -> None:
    lab.repository()
    session = await lab.begin()
    await _load(
        lab,
        GUESTS / "early_git_status.lua",
        GUESTS / "late_tps.lua",
        GUESTS / "early_transform.lua",
        EXAMPLES / "note-time.lua",
    )
    await lab.exchange("go", "done")
    assert "on main" in lab.notices()
    assert "late: 0 tokens, ok=true" in lab.notices()
    await lab.host_sessions.service.begin_run(session)
    draft = ContextDraft([{"role": "user", "content": []}])
    found = await lab.transforms.context(session, draft)
    assert "stamp " in str(found)
    assert "Today is " in str(found)


async def test_ask_first_keeps_the_session_when_nobody_is_there(lab: LuaLab) -> None:
    session = await lab.begin("hello")
    other = await lab.host_sessions.session("other")
    await _load(lab, EXAMPLES / "ask-first.lua")
    lab.host_sessions.navigation.request_switch(session, other)
    await lab.host_sessions.navigation.apply(session)
    assert await lab.current() == session
    assert f"* {session}" in str((await lab.run("branches")).text)
