"""Session verbs of scripts: what they see, and that only the host moves, between turns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fakes.lua_lab import LuaLab
from fakes.session_lab import message, texts
from kaged.lua.limits import ScriptLimits
from kaged.sessions.entry import EntryDraft, EntryKind, EntryRole
from kaged.sessions.move import SwitchIntent
from kaged.store.agent_run_rows import AgentRunStatus, RunResult
from requirements import requirement

ASK = "kage.request_capabilities({'session_write'})\n"
COMMANDS = (
    ASK
    + """
kage.register_command{name='go', description='', handler=function(raw) kage.session.switch(raw) end}
kage.register_command{name='fork-to', description='', handler=function(raw)
  kage.session.fork_to(raw ~= '' and raw or nil) end}
kage.register_command{name='fork', description='', handler=function(raw)
  kage.session.fork(raw ~= '' and raw or nil) end}
kage.register_command{name='entries', description='', handler=function()
  return {structured = {list = kage.session.entries()}} end}
kage.register_command{name='list', description='', handler=function()
  return {structured = {list = kage.session.list()}} end}
kage.on('turn_end', function() seen = kage.session.entries() end)
kage.register_command{name='seen', description='', handler=function()
  return {structured = {list = seen}} end}
"""
)


@pytest.fixture
async def mover(lab: LuaLab) -> LuaLab:
    """Return a lab with a script that may move, and a current session of two messages."""
    lab.grants["mover"] = ["session_write"]
    await lab.load(mover=COMMANDS)
    await lab.begin("one", "two")
    return lab


async def _entries(lab: LuaLab) -> list[dict[str, Any]]:
    found: Any = (await lab.run("entries")).structured
    return found["list"]


@requirement("LC-SESS-07", "LC-AMB-15")
async def test_a_move_asked_for_in_a_turn_waits_for_its_end(mover: LuaLab) -> None:
    old = await mover.current()
    run = await mover.host_sessions.service.begin_run(
        old, cause=mover.host_sessions.MESSAGE, model="scripted"
    )
    await mover.run("fork-to")
    assert await mover.current() == old
    # A tool's result is stored while the run goes on; still nobody moves.
    await mover.host_sessions.transcript.append(old, [message("result", EntryRole.TOOL_RESULT)])
    assert await mover.host_sessions.navigation.apply(old) is None
    assert await mover.current() == old
    await _end_run(mover, run.id)
    await mover.host_sessions.navigation.apply(old)
    landed = await mover.current()
    assert landed != old
    assert texts(await mover.host_sessions.transcript.entries(landed))[-1] == "result"


async def _end_run(lab: LuaLab, run_id: str) -> None:
    await lab.host_sessions.service.finish_run(run_id, RunResult(AgentRunStatus.COMPLETED))


@requirement("LC-SAFE-04")
async def test_no_script_moves_but_through_the_one_function_that_asks_first(
    mover: LuaLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    async def asked(_intent: SwitchIntent) -> None:
        steps.append("asked")

    branches = mover.host_sessions.store.branches
    set_current, fork = branches.set_current, branches.fork

    async def spy_current(*args: Any, **kwargs: Any) -> Any:
        steps.append("moved")
        return await set_current(*args, **kwargs)

    async def spy_fork(*args: Any, **kwargs: Any) -> Any:
        steps.append("moved")
        return await fork(*args, **kwargs)

    monkeypatch.setattr(branches, "set_current", spy_current)
    monkeypatch.setattr(branches, "fork", spy_fork)
    mover.host_sessions.navigation.before_switch.append(asked)
    old = await mover.current()
    other = await mover.host_sessions.session("other")
    await mover.run("go", other)
    await mover.run("fork-to")
    await mover.run("go", old)
    assert steps == ["asked", "moved"] * 3
    # While a run is active nothing is even asked.
    run = await mover.host_sessions.service.begin_run(old)
    await mover.run("go", other)
    assert len(steps) == 6
    await _end_run(mover, run.id)
    await mover.host_sessions.navigation.apply(old)
    assert steps == ["asked", "moved"] * 4


LONG = "('a'):rep(300000):find(('a-'):rep(60) .. 'b')"  # ends only with its worker


@requirement("LC-AMB-13")
@pytest.mark.parametrize("fault", ["while true do end", LONG])
async def test_a_handler_that_fails_has_said_no(mover: LuaLab, fault: str) -> None:
    mover.limits = ScriptLimits(instructions=5_000_000, compute_s=2.0)
    old = await mover.current()
    await mover.load(
        guard=f"kage.on('session_before_switch', function() {fault} end)", mover=COMMANDS
    )
    found = await mover.run("fork-to")
    assert await mover.current() == old
    assert any("session_before_switch" in str(one["message"]) for one in found.notices)


@requirement("LC-AMB-14")
async def test_ids_kinds_times_and_roles_are_what_scripts_expect(mover: LuaLab) -> None:
    session = await mover.current()
    append = mover.host_sessions.transcript.append
    kinds = [
        EntryDraft(EntryKind.THINKING_LEVEL_CHANGE, {"level": "high"}),
        EntryDraft(EntryKind.MODEL_CHANGE, {"model": "other"}),
        EntryDraft(EntryKind.LABEL, {"text": "here", "anchor": "x"}),
        EntryDraft(EntryKind.TITLE, {"title": "named"}),
        EntryDraft(EntryKind.CUSTOM, {"kind": "note", "data": {}}),
        message("sys", EntryRole.SYSTEM),
    ]
    await append(session, kinds)
    await append(session, [message(str(number)) for number in range(1000)])
    found = await _entries(mover)
    ids = [one["id"] for one in found]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids) == 1009
    assert found[0]["kind"] == "header"
    allowed = {kind.value for kind in EntryKind}
    assert {one["kind"] for one in found} <= allowed
    for one in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["ts"])
        assert ("role" in one) is (one["kind"] == "message")
    last = await mover.exchange("ask", "answer")
    seen: Any = (await mover.run("seen")).structured
    assert seen["list"][-1] == {**seen["list"][-1], "id": last, "role": "assistant"}


async def test_a_custom_entry_is_written_when_the_command_has_returned(mover: LuaLab) -> None:
    await mover.eval("kage.session.append_entry('probe.note', {title = 'x'}) return 1", "mover")
    entries = await mover.host_sessions.transcript.entries(await mover.current())
    assert entries[-1].kind is EntryKind.CUSTOM
    assert entries[-1].content["data"] == {"title": "x"}
