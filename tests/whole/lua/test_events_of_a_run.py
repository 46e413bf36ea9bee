"""What a script hears of a run and of moves between sessions, and what it can change or stop."""

from __future__ import annotations

from typing import Any

from whole.harness.conversation import begin, current, entries, exchange
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts
from whole.harness.talk import Talk, asked, fresh

HEARD = ("before_agent_start", "message_start", "message_update", "after_provider_response",
         "session_open", "session_close", "model_select", "tool_call")  # fmt: skip
EAR = (
    "seen = {}\n"
    + "".join(
        f"kage.on('{name}', function(event) seen[#seen + 1] = {{name = '{name}', data = event}} "
        "end)\n"
        for name in HEARD
    )
    + "kage.register_command{name='seen', description='', handler=function()\n"
    "local all = seen seen = {} return {structured = {list = all}} end}\n"
)


def seen(scripts: Scripts) -> list[dict[str, Any]]:
    """Return what the script heard since it was asked last."""
    found = scripts.value("seen")["list"]
    return [one for one in found if one] if isinstance(found, list) else []


def names(heard: list[dict[str, Any]]) -> list[str]:
    """Return the names of what was heard, each once, in order of the first time."""
    return list(dict.fromkeys(str(one["name"]) for one in heard))


def test_a_script_hears_the_run_in_order_and_the_words_as_they_come(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(ear=EAR)
    project.write("a.txt", "x\n")
    exchange(project, model, fresh("heron"), call("file.read", path="a.txt"), say("Read it all."))
    heard: list[dict[str, Any]] = []

    def whole_run() -> bool:
        heard.extend(seen(scripts))
        return names(heard).count("after_provider_response") == 1 and "Read it all." in words()

    def words() -> str:
        updates = [one["data"] for one in heard if one["name"] == "message_update"]
        return "".join(str(one["delta"]) for one in updates)

    wait_for(whole_run, "the whole run")
    assert names(heard) == [
        "before_agent_start",
        "after_provider_response",
        "tool_call",
        "message_start",
        "message_update",
    ]


def test_a_script_hears_moves_and_its_veto_keeps_a_session_from_being_left_or_forked(
    scripts: Scripts, daemon: Daemon, project: Project, model: ModelServer
) -> None:
    first = exchange(project, model, fresh("egret"))
    second = begin(project, current=False)
    scripts.load(ear=EAR)
    project.post(f"/sessions/{second}/switch")
    heard: list[dict[str, Any]] = []

    def moved() -> bool:
        heard.extend(seen(scripts))
        return {"session_open", "session_close"} <= set(names(heard))

    wait_for(moved, "the move")
    (opened,) = [one["data"] for one in heard if one["name"] == "session_open"]
    assert (opened["id"], opened["from"]) == (second, first)
    veto = "kage.on('%s', function() return {cancel = true, reason = 'stay here'} end)\n"
    scripts.load(guard=veto % "session_before_switch" + veto % "session_before_fork")
    for path, body in (
        (f"/sessions/{first}/switch", None),
        (f"/sessions/{first}/fork", {"switch": True}),
        (f"/sessions/{first}/fork", {"switch": False}),
    ):
        error = daemon.error("POST", f"/projects/{project.id}{path}", body)
        assert (error["status"], error["code"]) == (409, "session_move_vetoed"), error
    assert current(project) == second
    assert len(project.get("/sessions?limit=200")["items"]) == 2, "nothing was forked either"


def test_a_script_changes_what_is_sent_to_the_model_and_nothing_that_is_kept(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(
        editor="kage.on('before_provider_request', function(event)\n"
        "for _, one in ipairs(event.messages) do\n"
        "for _, block in ipairs(one.content) do\n"
        "if block.text then block.text = block.text:gsub('please', 'changed') end\n"
        "end end return event end)\n"
    )
    talk = Talk(project, model)
    run = talk.hear(say("Yes."))
    assert "changed" in str(asked(model, run["word"])[-1]["messages"])
    assert "changed" not in str(entries(project, talk.id))


def test_a_script_ends_a_run_after_a_turn(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.load(stop="kage.on('should_stop_after_turn', function(turn) return true end)\n")
    project.write("a.txt", "x\n")
    talk = Talk(project, model)
    run = talk.hear(call("file.read", path="a.txt"), say("Never said."))
    assert len(asked(model, run["word"])) == 1
    assert "Never said." not in str(talk.entries())
