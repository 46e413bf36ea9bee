"""Scripts act later, look at usage, compact, and speak in the session."""

from __future__ import annotations

import json

from whole.harness.conversation import begin, entries, exchange, say_to
from whole.harness.daemon import wait_for
from whole.harness.model import ModelServer, say
from whole.harness.project import Project
from whole.harness.scripts import Scripts, command

TIMES = """
seen = {}
local function note(word) return function() seen[#seen + 1] = word end end
kage.schedule(note('scheduled'))
kage.defer(note('deferred'), 20)
local stop = kage.defer(note('stopped'), 1)
stop() stop()
local ticks, off = 0, nil
off = kage.timer(function()
  ticks = ticks + 1
  if ticks == 3 then off() seen[#seen + 1] = 'ticked' end
end, 50)
kage.timer(function() error('tired', 0) end, 50)
kage.defer(function() asks = { pcall(kage.ui.confirm, 'a', 'b') } end, 1)
""" + command("eval", "return { seen, asks }")


def test_later_calls_come_once_or_again_and_stop(scripts: Scripts) -> None:
    scripts.load(times=TIMES)
    seen, asks = wait_for(
        lambda: value if "ticked" in (value := scripts.again())[0] else [], "the timer"
    )
    assert seen[0] == "scheduled"
    assert sorted(seen) == ["deferred", "scheduled", "ticked"]
    assert asks == [False, "kage.ui.confirm: no dialogs from a timer"]
    told = scripts.notices()
    assert told.count("a later call raised and is over: tired") == 1
    # A reload ends all of them: the second script's own timer runs, the first one's never again.
    scripts.load(again="kage.timer(function() kage.notify('tick') end, 50)")
    wait_for(lambda: scripts.notices().count("tick") >= 2)
    assert scripts.notices().count("a later call raised and is over: tired") == 1


def test_later_calls_are_bounded(scripts: Scripts) -> None:
    words = scripts.eval("""
      local problems = {}
      local function try(fn, ...)
        local ok, words = pcall(fn, ...)
        problems[#problems + 1] = ok and 'taken' or words
      end
      try(kage.timer, function() end, 49)
      try(kage.defer, function() end, -1)
      try(kage.defer, function() end, 1e12)
      try(kage.defer, 'text', 1)
      for _ = 1, 16 do kage.defer(function() end, 86400000) end
      try(kage.schedule, function() end)
      return problems
    """)
    assert [one.partition(":")[0] for one in words[:4]] == [
        "kage.timer",
        "kage.defer",
        "kage.defer",
        "kage.defer",
    ]
    assert "at most 16 calls waiting" in words[4]


def test_usage_is_that_of_the_last_turn(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    assert scripts.eval("return kage.context_usage() == nil") is True
    exchange(project, model, "usage-ibis")
    found = scripts.eval("return kage.context_usage()")
    assert found["model"] == "default"
    assert found["context_window"] > 1000
    last = [one for one in entries(project, begin_of(project)) if one.get("role") == "assistant"]
    assert found["output_tokens"] == last[-1]["content"]["usage"]["output"]


def begin_of(project: Project) -> str:
    return str(project.get("/sessions/current")["id"])


def test_a_script_compacts_the_session_with_a_wish(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    project.describe(compaction={"strategy": "summarize"})
    project.reload()
    session = begin(project)
    for number in range(4):
        exchange(project, model, f"stork-{number}", say("word " * 60), session=session)
    model.play("stork-0", say("They spoke of storks."))
    scripts.eval("kage.compact('Keep the names of birds.') return 1")
    made = wait_for(
        lambda: [one for one in entries(project, session) if one["kind"] == "compaction"]
    )
    assert len(made) == 1
    asked = json.dumps(model.asked("Keep the names of birds."))
    assert "word word" in asked


SPEAKS = """
kage.request_capabilities({'session_write'})
count = 0
kage.on('turn_end', function(turn)
  count = count + 1
  if count == 1 then kage.send_message('cormorant two') end
end)
""" + command("eval", "kage.send_message('cormorant three') return count")


def test_a_message_of_a_script_is_delivered_in_the_run_or_starts_one(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    scripts.grant(speaks=["session_write"])
    scripts.load(speaks=SPEAKS)
    for word in ("one", "two", "three"):
        model.play(f"cormorant {word}", say(f"Answer {word}."))
    session = begin(project)
    run = say_to(project, session, "cormorant one")
    assert (run["status"], run["steps"]) == ("completed", 2), "the second message is the same run"
    scripts.again()
    runs = wait_for(
        lambda: [
            one
            for one in project.get(f"/sessions/{session}/runs")["items"]
            if one["status"] == "completed" and one["id"] != run["id"]
        ]
    )
    assert [one["operator_id"] for one in runs] == ["operator"]
    said = [one for one in entries(project, session) if one.get("role") == "user"]
    texts = [one["content"]["content"][0]["text"] for one in said]
    assert texts == ["cormorant one", "cormorant two", "cormorant three"]
    moves = [one["move"] for one in scripts.audit("lua.session.asked")]
    assert moves == ["send_message", "send_message"]


def test_a_message_needs_its_power_waits_if_asked_to_and_never_goes_round_for_ever(
    scripts: Scripts, project: Project, model: ModelServer
) -> None:
    assert scripts.eval("return type(kage.send_message)") == "nil"
    scripts.grant(chatty=["session_write"])
    scripts.load(
        chatty="kage.request_capabilities({'session_write'})\n"
        "kage.on('agent_end', function() kage.send_message('gannet again') end)\n"
        + command("eval", "kage.send_message('first this', { trigger_turn = false }) return 1")
    )
    session = begin(project)
    scripts.again()
    assert project.get(f"/sessions/{session}/runs")["items"] == []
    model.play("gannet start", say("Yes."))
    model.play("gannet again", *[say("Yes.")] * 12)
    say_to(project, session, "gannet start")
    told = wait_for(
        lambda: [one for one in scripts.notices() if "messages in a row that no person" in one]
    )
    assert len(told) == 1
    said = [one for one in entries(project, session) if one.get("role") == "user"]
    texts = [one["content"]["content"][0]["text"] for one in said]
    assert texts[:2] == ["first this", "gannet start"]
    assert texts.count("gannet again") == 10
    scripts.load()
