"""Session verbs of scripts: what they see, and that only the host moves, between turns."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from fakes.lua_lab import PATIENCE_S, LuaLab
from fakes.session_lab import PROJECT, message, texts
from kaged.base import iso_utc
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


@requirement("LC-SESS-01", "LC-SESS-02")
async def test_entries_are_metadata_in_order_and_never_text(mover: LuaLab) -> None:
    session = await mover.current()
    marker = "MARKER-TEXT"
    await mover.host_sessions.transcript.append(
        session,
        [
            message(marker, EntryRole.ASSISTANT),
            message(marker, EntryRole.TOOL_RESULT),
            EntryDraft(EntryKind.CUSTOM, {"kind": "x", "data": {"note": marker}}),
        ],
    )
    found = await _entries(mover)
    stored = await mover.host_sessions.transcript.entries(session)
    assert [one["id"] for one in found] == [one.id for one in stored]
    for shown, entry in zip(found, stored, strict=True):
        wanted = {"id", "kind", "ts"} | ({"role"} if entry.kind is EntryKind.MESSAGE else set())
        assert set(shown) == wanted
        assert (shown["kind"], shown["ts"]) == (entry.kind.value, iso_utc(entry.ts_ms))
        assert shown.get("role") == (entry.role.value if entry.role else None)
    assert marker not in json.dumps(found)


@requirement("LC-SESS-03", "LC-AMB-18")
async def test_switch_takes_ids_and_locators_and_nothing_else(mover: LuaLab) -> None:
    first = await mover.current()
    second = await mover.host_sessions.session("other")
    found: Any = (await mover.run("list")).structured
    values = {one["id"]: one["value"] for one in found["list"]}
    assert set(values) == {first, second}
    for target, expected in ((second, second), (values[first], first), (values[second], second)):
        await mover.run("go", target)
        assert await mover.current() == expected
    for wrong in ("../../other/session", "/etc/passwd"):
        said = await mover.run("go", wrong)
        assert await mover.current() == second
        assert said.notices, wrong


@requirement("LC-SESS-04", "LC-SESS-05", "LC-SESS-06")
async def test_fork_to_lands_on_the_branch_and_fork_stays(mover: LuaLab) -> None:
    old = await mover.current()
    before = await mover.host_sessions.transcript.entries(old)
    await mover.run("fork-to", before[1].id)
    landed = await mover.current()
    assert landed != old
    assert [one.id for one in await mover.host_sessions.transcript.entries(landed)][1:] == [
        before[1].id
    ]
    assert await mover.host_sessions.transcript.entries(old) == before

    await mover.run("go", old)
    await mover.run("fork-to")
    whole = await mover.host_sessions.transcript.entries(await mover.current())
    assert [one.id for one in whole[1:]] == [one.id for one in before[1:]]
    assert whole[0].id != before[0].id
    assert whole[0].kind is EntryKind.HEADER

    await mover.run("go", old)
    count = len(await mover.sessions.list())
    await mover.run("fork")
    assert await mover.current() == old
    assert len(await mover.sessions.list()) == count + 1


@requirement("LC-SESS-11")
async def test_every_entry_of_the_picker_is_a_fork_point(mover: LuaLab) -> None:
    old = await mover.current()
    shown = await _entries(mover)
    for index, one in enumerate(shown):
        await mover.run("fork-to", one["id"])
        made = await mover.host_sessions.transcript.entries(await mover.current())
        assert [entry.id for entry in made[1:]] == [each["id"] for each in shown[1 : index + 1]]
        await mover.run("go", old)


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


VETO = "kage.on('session_before_switch', function(target) last = target return {%s} end)\n"


@requirement("LC-SESS-08", "LC-SESS-09")
async def test_a_veto_of_the_asker_itself_keeps_everything(mover: LuaLab) -> None:
    old = await mover.current()
    before = await mover.host_sessions.transcript.entries(old)
    count = len(await mover.sessions.list())
    await mover.load(mover=COMMANDS + VETO % "cancel = 'not now'")
    said = await mover.run("fork-to")
    assert await mover.current() == old
    assert await mover.host_sessions.transcript.entries(old) == before
    assert len(await mover.sessions.list()) == count
    assert [one["message"] for one in said.notices] == ["session_before_switch: not now"]
    await mover.load(mover=COMMANDS)
    await mover.run("fork-to")
    assert await mover.current() != old


@requirement("LC-SESS-09")
async def test_the_handler_may_ask_a_person_first(mover: LuaLab) -> None:
    ask = """
    kage.on('session_before_switch', function()
      if not kage.ui.confirm('Move?', 'really') then return {cancel = 'you said no'} end
    end)"""
    await mover.load(mover=COMMANDS + ask)
    dialogs = mover.runtime.dialogs

    async def person(answer: bool) -> None:
        found = await dialogs.wait(PATIENCE_S)
        dialogs.answer(str(found[0]["id"]), answer)

    old = await mover.current()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(mover.run("fork-to", interactive=True), person(False))
    assert await mover.current() == old
    await mover.run("fork-to")  # nobody can be asked
    assert await mover.current() == old
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(mover.run("fork-to", interactive=True), person(True))
    assert await mover.current() != old


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


@requirement("LC-AMB-11")
async def test_wrong_types_raise_and_wrong_targets_are_told_later(mover: LuaLab) -> None:
    old = await mover.current()
    found = await mover.eval(
        ASK
        + """
        local function tries(...) local ok, e = pcall(...) return {ok, e} end
        return {tries(kage.session.switch, 3), tries(kage.session.switch, ''),
          tries(kage.session.fork_to, {}), tries(kage.session.fork, 4),
          {true, tostring(select('#', kage.session.switch('zzz')))}}""",
        "mover",
    )
    assert [one[0] for one in found] == [False, False, False, False, True]
    assert found[4][1] == "0"  # returns nothing at all
    assert await mover.current() == old
    await mover.load(mover=COMMANDS)
    unknown = await mover.run("fork-to", "NOPE")
    ambiguous = await mover.run("fork-to", "0")
    assert await mover.current() == old
    assert len(unknown.notices) == len(ambiguous.notices) == 1


@requirement("LC-AMB-12")
async def test_one_slot_the_last_wins_and_nothing_moves_under_the_handler(mover: LuaLab) -> None:
    old = await mover.current()
    other = await mover.host_sessions.session("other")
    found: Any = await mover.eval(
        ASK
        + f"""
        local before = kage.session.entries()
        kage.session.switch('{other}')
        kage.session.fork_to()
        local after = kage.session.entries()
        return {{#before, before[1].id == after[1].id}}""",
        "mover",
    )
    assert found == [3, True]
    landed = await mover.current()
    assert landed not in {old, other}
    record = await mover.host_sessions.service.get(PROJECT, landed)
    assert record.parent_session == old
    # Asked for during a run, and loaded anew before its end: forgotten.
    run = await mover.host_sessions.service.begin_run(
        landed, cause=mover.host_sessions.MESSAGE, model="scripted"
    )
    await mover.load(mover=COMMANDS)
    await mover.run("go", other)
    assert mover.host_sessions.navigation.pending(landed)
    await mover.load()
    assert not mover.host_sessions.navigation.pending(landed)
    await _end_run(mover, run.id)


@requirement("LC-AMB-13")
@pytest.mark.parametrize(
    ("said", "vetoed"),
    [
        ("cancel = 'because'", "session_before_switch: because"),
        ("cancel = true", "session_before_switch: cancelled"),
        ("cancel = 'both', patch = 'x'", "session_before_switch: both"),
        ("cancel = false", None),
        ("", None),
    ],
)
async def test_each_form_of_a_veto(mover: LuaLab, said: str, vetoed: str | None) -> None:
    old = await mover.current()
    await mover.load(
        a_first=VETO % said,
        b_second="""kage.on('session_before_switch', function() asked = true end)
        kage.register_command{name='asked', description='', handler=function()
          return tostring(asked) end}""",
        mover=COMMANDS,
    )
    found = await mover.run("fork-to")
    assert (await mover.current() == old) is (vetoed is not None)
    assert (vetoed in [one["message"] for one in found.notices]) is (vetoed is not None)
    assert (await mover.run("asked")).text == ("nil" if vetoed else "true")


async def test_a_handler_redirects_and_the_target_is_text(mover: LuaLab) -> None:
    other, third = (
        await mover.host_sessions.session("other"),
        await mover.host_sessions.session("third"),
    )
    await mover.load(
        guard="kage.on('session_before_switch', function(target) kage.notify(target)"
        f" return {{patch = '{third}'}} end)",
        mover=COMMANDS,
    )
    found = await mover.run("go", other)
    assert found.notices[0]["message"] == other
    assert await mover.current() == third


LONG = "('a'):rep(300000):find(('a-'):rep(60) .. 'b')"  # ends only with its worker


@requirement("LC-AMB-13")
@pytest.mark.parametrize("fault", ["error('x')", "while true do end", "error({})", LONG])
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
