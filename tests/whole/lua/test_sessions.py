"""Session verbs of scripts in a running daemon: what they see, and that only the host moves."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.conversation import begin, current, ended, entries, exchange, say_to, send
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command

ASK = "kage.request_capabilities({'session_write'})\n"
MOVER = (
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
VETO = "kage.on('session_before_switch', function(target) last = target return {%s} end)\n"
ASKED = """kage.on('session_before_switch', function() asked = true end)
kage.register_command{name='asked', description='', handler=function() return tostring(asked) end}
"""


@pytest.fixture
def mover(scripts: Scripts) -> Scripts:
    """Return scripts of which `mover` may move, with a command for each verb."""
    scripts.grant(mover=["session_write"])
    scripts.load(mover=MOVER)
    return scripts


def listed(mover: Scripts) -> list[dict[str, Any]]:
    """Return what `kage.session.entries()` gives."""
    found: list[dict[str, Any]] = mover.value("entries")["list"]
    return found


def ids(project: Project, session: str) -> list[str]:
    """Return the ids of what a session shows, header first."""
    return [str(one["id"]) for one in entries(project, session)]


def count(project: Project) -> int:
    """Return how many sessions there are."""
    return len(project.get("/sessions")["items"])


def same_as_stored(shown: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    """See that a script is shown exactly the metadata of what is stored, in order."""
    assert [one["id"] for one in shown] == [one["id"] for one in stored]
    for mine, entry in zip(shown, stored, strict=True):
        wanted = {"id", "kind", "ts"} | ({"role"} if entry["kind"] == "message" else set())
        assert set(mine) == wanted
        assert (mine["kind"], mine["ts"]) == (entry["kind"], entry["ts"])
        assert mine.get("role") == (entry["role"] if entry["kind"] == "message" else None)


@whole("LC-SESS-01", "LC-SESS-02")
def test_entries_are_metadata_in_order_and_never_text(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    project.write("a.txt", "marker-text in a file\n")
    turns = [call("file.read", path="a.txt"), say("marker-text in an answer")]
    session = exchange(project, model, "wallaby marker-text", *turns)
    mover.eval(
        ASK + "kage.session.append_entry('note', {text = 'marker-text'}) return 1",
        "mover",
        other=MOVER.replace("go", "go2", 1),
    )
    mover.load(mover=MOVER)
    stored = entries(project, session)
    assert "marker-text" in json.dumps(stored)
    roles = [one["role"] for one in stored if one["kind"] == "message"]
    assert roles == ["user", "assistant", "tool_result", "assistant"]
    same_as_stored(listed(mover), stored)
    assert "marker-text" not in json.dumps(listed(mover))


@whole("LC-SESS-01", "LC-SESS-02", "LC-AMB-14")
def test_a_compacted_session_still_shows_every_entry_and_the_compaction(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    project.describe(compaction={"strategy": "summarize", "threshold": 500})
    project.reload()
    project.write("a.txt", "one two three\n" * 200)
    session = begin(project)
    for number in range(3):
        turns = [call("file.read", path="a.txt"), say(f"marker-text {number}")]
        exchange(project, model, f"bandicoot-{number}", *turns, session=session)
    before = listed(mover)
    same_as_stored(before, entries(project, session))
    model.play("", say("marker-text of a summary"))
    project.post(f"/sessions/{session}/compact", {})
    after = listed(mover)
    assert after[: len(before)] == before, "nothing is taken away by a compaction"
    assert "compaction" in [one["kind"] for one in after[len(before) :]]
    same_as_stored(after, entries(project, session))
    assert "marker-text" not in json.dumps(after)
    exchange(project, model, "bandicoot-after", session=session)
    same_as_stored(listed(mover), entries(project, session))
    assert listed(mover)[: len(after)] == after


@whole("LC-SESS-03", "LC-AMB-18")
def test_switch_takes_ids_and_locators_and_nothing_else(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    first = exchange(project, model, "dingo-first")
    second = exchange(project, model, "dingo-second", session=begin(project, current=False))
    values = {one["id"]: one["value"] for one in mover.value("list")["list"]}
    assert set(values) == {first, second}
    assert [one.get("current") for one in mover.value("list")["list"] if one["id"] == first] == [
        True
    ]
    for target, expected in (
        (second, second),
        (values[first], first),
        (values[second], second),
        (first, first),
    ):
        assert mover.run("go", target)["notices"] == []
        assert current(project) == expected
    outside = project.write("session.json", "{}")
    for wrong in ("../../other/session", "/etc/passwd", str(outside), "ses_", "nowhere"):
        said = mover.run("go", wrong)
        assert current(project) == first, wrong
        assert len(said["notices"]) == 1, wrong


@whole("LC-SESS-04", "LC-SESS-05", "LC-SESS-06")
def test_fork_to_lands_on_the_branch_and_fork_stays(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    old = exchange(project, model, "emu-one")
    exchange(project, model, "emu-two", session=old)
    before = entries(project, old)
    point = before[2]["id"]
    unique = next(
        point[:size] for size in range(1, 27)
        if sum(one["id"].startswith(point[:size]) for one in before) == 1
    )  # fmt: skip
    mover.run("fork-to", unique)
    landed = current(project)
    assert landed != old
    assert ids(project, landed)[1:] == [one["id"] for one in before[1:3]]
    assert entries(project, old) == before

    mover.run("go", old)
    mover.run("fork-to")
    whole_one = entries(project, current(project))
    assert [one["id"] for one in whole_one[1:]] == [one["id"] for one in before[1:]]
    assert whole_one[0]["id"] != before[0]["id"]
    branch = current(project)
    assert branch not in {old, landed}
    made = project.get(f"/sessions/{branch}")
    assert (made["parent_session"], made["parent_entry"]) == (old, before[-1]["id"])
    asked = mover.audit("lua.session.asked")[-1]
    assert (asked["move"], asked.get("entry_id")) == ("fork_to", None)
    exchange(project, model, "emu-three", session=branch)
    assert ids(project, branch)[: len(before)][1:] == [one["id"] for one in before[1:]]
    assert len(ids(project, branch)) > len(before), "it is live"
    assert (whole_one[0]["kind"], before[0]["kind"]) == ("header", "header")
    assert entries(project, old) == before

    mover.run("go", old)
    known = count(project)
    mover.run("fork")
    assert current(project) == old
    assert count(project) == known + 1
    mover.run("fork-to")
    assert current(project) != old
    assert count(project) == known + 2


@whole("LC-SESS-11")
def test_every_entry_of_the_picker_is_a_fork_point(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    project.write("a.txt", "one\n")
    old = exchange(project, model, "cassowary-all", call("file.read", path="a.txt"), say("Yes."))
    shown = listed(mover)
    assert len(shown) >= 5
    for index, one in enumerate(shown):
        mover.run("fork-to", one["id"])
        assert current(project) != old
        made = entries(project, current(project))
        assert made[0]["kind"] == "header"
        assert [entry["id"] for entry in made[1:]] == [each["id"] for each in shown[1 : index + 1]]
        mover.run("go", old)
        assert current(project) == old


WAITS = "while [ ! -e gate ]; do sleep 0.02; done; echo through"


@whole("LC-SESS-07", "LC-SAFE-04", "LC-AMB-15")
def test_a_move_asked_for_in_a_turn_waits_for_its_end_and_then_asks_first(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    project.describe(cage={"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]})
    project.reload()
    guard = (
        "kage.on('session_before_switch', function() asked = (asked or 0) + 1\n"
        "  kage.fs.write('asked.txt', tostring(asked)) end)\n"
    )
    mover.load(
        guard=guard,
        mover=MOVER + "kage.on('turn_start', function() kage.session.fork_to() end)\n",
    )
    session = begin(project)
    model.play("kookaburra-turn", call("shell.bash", command=WAITS), say("Done."))
    run = send(project, session, "kookaburra-turn")
    # The move is asked for, the tool still runs: nobody moves and nobody is asked.
    wait_for(lambda: mover.audit("lua.session.asked"))
    shown = wait_for(lambda: found if (found := project.get(f"/sessions/{session}"))["pending"]
                     else None)  # fmt: skip
    assert shown is not None
    assert shown["active_run"] == run
    assert current(project) == session
    assert count(project) == 1
    assert not (project.root / "asked.txt").exists()
    assert mover.audit("lua.session.applied") == []
    project.write("gate", "")
    assert ended(project, session, run)["status"] == "completed"
    landed = wait_for(lambda: now if (now := current(project)) != session else None)
    assert landed is not None
    results = [one for one in entries(project, landed) if one["role"] == "tool_result"]
    assert "through" in json.dumps(results), "the call's result came along"
    assert len(model.asked("kookaburra-turn")) == 1, "it changed before the next turn began"
    assert project.read("asked.txt") == "1"
    (applied,) = mover.audit("lua.session.applied")
    assert applied["plugin"] == "mover"


@whole("LC-SESS-08", "LC-SESS-09", "LC-AMB-13")
def test_a_veto_of_the_asker_itself_keeps_everything(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    old = exchange(project, model, "platypus-veto")
    before = entries(project, old)
    mover.load(mover=MOVER + VETO % "cancel = 'not now'")
    said = mover.run("fork-to")
    assert current(project) == old
    assert entries(project, old) == before
    assert count(project) == 1
    assert [one["message"] for one in said["notices"]] == ["session_before_switch: not now"]
    mover.load(mover=MOVER)
    mover.run("fork-to")
    assert current(project) != old
    assert count(project) == 2


@whole("LC-SESS-09")
def test_the_handler_may_ask_a_person_first(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    ask = """
    kage.on('session_before_switch', function()
      if not kage.ui.confirm('Move?', 'really') then return {cancel = 'you said no'} end
    end)"""
    mover.load(mover=MOVER + ask)
    old = exchange(project, model, "quoll-asks")
    mover.answered(lambda: mover.run("fork-to", interactive=True), False)
    assert current(project) == old
    said = mover.run("fork-to")
    assert [one["message"] for one in said["notices"]] == ["session_before_switch: you said no"]
    assert current(project) == old, "nobody can be asked"
    mover.answered(lambda: mover.run("fork-to", interactive=True), True)
    assert current(project) != old


@whole("LC-AMB-11")
def test_wrong_types_raise_and_wrong_targets_are_told_later(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    old = exchange(project, model, "lorikeet-wrong")
    found = mover.eval(
        ASK
        + """
        local function tries(...) local ok, e = pcall(...) return {ok, e} end
        return {tries(kage.session.switch, 3), tries(kage.session.switch, ''),
          tries(kage.session.switch), tries(kage.session.fork_to, {}),
          tries(kage.session.fork_to, 7), tries(kage.session.fork, 4),
          {true, tostring(select('#', kage.session.switch('zzz')))}}""",
        "mover",
    )
    assert [one[0] for one in found] == [False] * 6 + [True]
    assert found[6][1] == "0", "it gives back nothing at all"
    assert current(project) == old
    mover.load(mover=MOVER)
    begin(project, current=False)
    for name, target in (("fork-to", "NOPE"), ("fork-to", "0"), ("go", "nope"), ("go", "ses_")):
        said = mover.run(name, target)
        assert len(said["notices"]) == 1, (name, target)
        assert current(project) == old
    assert count(project) == 2


@whole("LC-AMB-12")
def test_one_slot_the_last_wins_and_nothing_moves_under_the_handler(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    old = exchange(project, model, "magpie-slot")
    other = exchange(project, model, "magpie-other", session=begin(project, current=False))
    found = mover.eval(
        ASK
        + f"""
        local before = kage.session.entries()
        kage.session.switch('{other}')
        kage.session.fork_to()
        local after = kage.session.entries()
        return {{#before, #after, before[1].id == after[1].id}}""",
        "mover",
    )
    assert found == [len(entries(project, old)), len(entries(project, old)), True]
    landed = current(project)
    assert landed not in {old, other}
    assert project.get(f"/sessions/{landed}")["parent_session"] == old
    assert count(project) == 3


@whole("LC-AMB-12")
def test_a_reload_clears_what_was_asked_for(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    project.describe(cage={"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]})
    project.reload()
    session = begin(project)
    model.play("cockatoo-reload", call("shell.bash", command=WAITS), say("Done."))
    run = send(project, session, "cockatoo-reload")
    wait_for(lambda: project.get(f"/sessions/{session}")["active_run"])
    mover.run("fork-to")
    assert project.get(f"/sessions/{session}")["pending"]
    mover.reload()
    assert project.get(f"/sessions/{session}")["pending"] == []
    project.write("gate", "")
    ended(project, session, run)
    exchange(project, model, "cockatoo-after", session=session)
    assert (current(project), count(project)) == (session, 1)


@whole("LC-AMB-13")
@pytest.mark.parametrize(
    ("said", "vetoed"),
    [
        ("cancel = 'because'", "session_before_switch: because"),
        ("cancel = true", "session_before_switch: cancelled"),
        ("cancel = 1", "session_before_switch: "),
        ("cancel = 'both', patch = 'x'", "session_before_switch: both"),
        ("cancel = false", None),
        ("", None),
    ],
)
def test_each_form_of_a_veto(
    mover: Scripts, project: Project, model: ModelServer, said: str, vetoed: str | None
) -> None:
    old = exchange(project, model, f"heron-{said}")
    mover.load(a_first=VETO % said, b_second=ASKED, mover=MOVER)
    found = mover.run("fork-to")
    assert (current(project) == old) is (vetoed is not None)
    shown = [one["message"] for one in found["notices"]]
    assert len(shown) == (0 if vetoed is None else 1)
    assert all(one.startswith(vetoed or "") for one in shown)
    assert mover.run("asked")["text"] == ("nil" if vetoed else "true")


@whole("LC-AMB-13")
def test_a_handler_redirects_and_the_target_is_a_text(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    old = exchange(project, model, "ibis-old")
    other, third = (
        exchange(project, model, f"ibis-{name}", session=begin(project, current=False))
        for name in ("other", "third")
    )
    redirect = (
        "kage.on('session_before_switch', function(target)"
        f" kage.notify(type(target) .. ' ' .. target) return {{patch = '{third}'}} end)"
    )
    mover.load(guard=redirect, later=ASKED, mover=MOVER)
    found = mover.run("go", other)
    assert found["notices"][0]["message"] == f"string {other}"
    assert current(project) == third
    assert mover.run("asked")["text"] == "nil", "the first of either decides"
    mover.load(guard=redirect.replace(third, "nowhere"), mover=MOVER)
    mover.run("go", old)
    assert current(project) == third, "a new target is resolved like any other"


@whole("LC-AMB-13")
@pytest.mark.parametrize("fault", ["error('x')", "error({})", "local t = {} t.x.y = 1"])
def test_a_handler_that_fails_has_said_no(
    mover: Scripts, project: Project, model: ModelServer, fault: str
) -> None:
    old = exchange(project, model, f"stork {fault}")
    mover.load(guard=f"kage.on('session_before_switch', function() {fault} end)", mover=MOVER)
    found = mover.run("fork-to")
    assert current(project) == old
    assert count(project) == 1
    assert any("session_before_switch" in str(one["message"]) for one in found["notices"])


@whole("LC-AMB-14")
def test_ids_kinds_times_and_roles_are_what_scripts_expect(
    mover: Scripts, project: Project, model: ModelServer, daemon: Daemon
) -> None:
    session = exchange(project, model, "pelican-kinds")
    daemon.ask("PATCH", f"/projects/{project.id}/sessions/{session}", {"title": "named"})
    fill = (
        ASK
        + "for i = 1, 60 do kage.session.append_entry('note', {n = i}) end"
        + f" kage.session.set_label('{entries(project, session)[1]['id']}', 'here') return 1"
    )
    mover.eval(fill, "mover")
    for _ in range(3):
        mover.again()
    mover.load(mover=MOVER)
    found = listed(mover)
    shown = [one["id"] for one in found]
    assert shown == sorted(shown)
    assert len(set(shown)) == len(shown) > 240
    assert found[0]["kind"] == "header"
    allowed = "header message thinking_level_change model_change compaction label title custom"
    kinds = {one["kind"] for one in found}
    assert {"header", "message", "label", "title", "custom"} <= kinds <= set(allowed.split())
    for one in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["ts"])
        assert ("role" in one) is (one["kind"] == "message")
    # Current when turn_end handlers run: the turn's own answer is in it.
    exchange(project, model, "pelican-turn", session=session)
    last = entries(project, session)[-1]
    seen = wait_for(lambda: mover.value("seen").get("list"))
    assert seen[-1] == {
        "id": last["id"],
        "kind": "message",
        "role": "assistant",
        "ts": last["ts"],
    }


@whole("LC-AMB-17")
def test_every_use_of_a_power_is_on_record(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(probe=["exec", "session_write"])
    old = exchange(project, model, "toucan-audit")
    other = begin(project, current=False)
    scripts.eval(
        "kage.request_capabilities({'exec', 'session_write', 'crypto'})\n"
        "kage.exec{cmd='sh', args={'-c', 'echo output-text; exit 3'}}\n"
        f"kage.session.switch('{other}') return 1"
    )
    assert current(project) == other
    granted = scripts.audit("lua.capability.granted")
    assert sorted((one["plugin"], one["capability"]) for one in granted) == [
        ("probe", "exec"),
        ("probe", "session_write"),
    ]
    (refused,) = scripts.audit("lua.capability.refused")
    assert (refused["plugin"], refused["capability"]) == ("probe", "crypto")
    (ran,) = scripts.audit("lua.exec")
    assert (ran["plugin"], ran["cmd"], ran["args_count"], ran["exit_code"]) == ("probe", "sh", 2, 3)
    assert ran["duration_ms"] >= 0
    assert "output-text" not in json.dumps(ran)
    (asked,) = scripts.audit("lua.session.asked")
    (applied,) = scripts.audit("lua.session.applied")
    assert asked["plugin"] == applied["plugin"] == "probe"
    assert asked["move"] == applied["move"] == "switch"
    scripts.load(
        guard="kage.on('session_before_switch', function() return {cancel='no'} end)",
        probe=command(
            "eval", f"kage.request_capabilities({{'session_write'}}) kage.session.switch('{old}')"
        ),
    )
    scripts.again()
    assert current(project) == other
    (vetoed,) = scripts.audit("lua.session.vetoed")
    assert (vetoed["plugin"], vetoed["vetoed_by"], vetoed["move"]) == ("probe", "guard", "switch")
    assert len(scripts.audit("lua.session.applied")) == 1


@whole("LC-AMB-23")
def test_answers_are_asked_for_in_order_of_file_names(
    mover: Scripts, project: Project, model: ModelServer
) -> None:
    sources = {
        stem: f"""{"kage.sleep_ms(300)" if stem == "a_slow" else ""}
        for turn = 1, 2 do
          kage.on('transform_context', function(list)
            list[#list + 1] = {{role = 'user', content = {{{{type = 'text',
              text = 'order {stem} ' .. turn}}}}}}
            return list end)
        end
        kage.on('session_before_switch', function() kage.notify('{stem}') end)"""
        for stem in ("c_last", "a_slow", "b_mid")
    }
    mover.load(**sources, z_mover=MOVER)
    model.play("order c_last 2", say("Seen."))
    session = begin(project)
    assert say_to(project, session, "crane-order")["status"] == "completed"
    (asked,) = model.asked("crane-order")
    order = re.findall(r"order (\w+ \d)", json.dumps(asked["messages"]))
    assert order == [f"{stem} {turn}" for stem in ("a_slow", "b_mid", "c_last") for turn in (1, 2)]
    mover.grant(z_mover=["session_write"])
    mover.reload()
    said = mover.run("fork-to")
    assert [one["message"] for one in said["notices"]] == ["a_slow", "b_mid", "c_last"]


@whole("LC-AMB-23")
def test_a_script_blocked_in_exec_delays_only_its_own_events(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(blocked=["exec"])
    scripts.load(
        blocked="""
        kage.request_capabilities({'exec'})
        order = {}
        kage.on('turn_end', function(turn)
          kage.exec{cmd='sh', args={'-c', 'while [ ! -e gate ]; do sleep 0.02; done'}}
          order[#order+1] = 'turn_end' end)
        kage.on('agent_end', function(turn) order[#order+1] = 'agent_end' end)
        kage.register_command{name='order', description='', handler=function()
          return {structured = {list = order}} end}""",
        free="""for _, name in ipairs({'turn_end', 'agent_end'}) do
          kage.on(name, function() kage.fs.write('free-' .. name, 'heard') end) end""",
    )
    session = exchange(project, model, "finch-blocked")
    for name in ("turn_end", "agent_end"):
        wait_for((project.root / f"free-{name}").exists)
    assert scripts.audit("lua.exec") == [], "the other one still waits"
    project.write("gate", "")
    found = wait_for(lambda: value if len(value := scripts.value("order")["list"]) == 2 else None)
    assert found == ["turn_end", "agent_end"]
    assert current(project) == session
