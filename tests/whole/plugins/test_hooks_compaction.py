"""Plugins around the compaction of a window: observers, the designated compactor, and its faults.

The model's own requests show what a compaction left; the audit trail shows who did it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.plugin_hooks import (
    IDLE,
    NULL,
    POST,
    PRE,
    START,
    CompactingPlugin,
    Gate,
    Listener,
    Talk,
    result,
)
from whole.harness.project import Project

Listening = Callable[..., Listener]
Compacting = Callable[..., CompactingPlugin]
KID = "primary.subagents.kid"
_names = iter(range(1, 1000))


@pytest.fixture
def listening(daemon: Daemon, tmp_path: Path) -> Iterator[Listening]:
    """Yield a maker of running plugins with hooks; they go when the test ends."""
    made: list[Listener] = []

    def make(hooks: dict[str, Any], **manifest: Any) -> Listener:
        name = manifest.pop("name", f"watch-{next(_names)}")
        made.append(Listener(daemon, tmp_path, name, hooks, **manifest))
        return made[-1]

    yield make
    for one in made:
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")


@pytest.fixture
def compacting(daemon: Daemon, tmp_path: Path) -> Iterator[Compacting]:
    """Yield a maker of running compactors; they go when the test ends."""
    made: list[CompactingPlugin] = []

    def make(how: str, **manifest: Any) -> CompactingPlugin:
        made.append(CompactingPlugin(daemon, tmp_path, f"smart-{next(_names)}", how, **manifest))
        return made[-1]

    yield make
    for one in made:
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")


def talk(
    project: Project, model: ModelServer, *plugins: Listener | CompactingPlugin, **primary: Any
) -> Talk:
    """Begin a session whose primary declares these plugins, and fill it."""
    declared = {one.name: {"package": one.name} for one in plugins}
    project.describe(**{"plugins": declared, **primary})
    project.reload()
    session = Talk(project, model)
    session.fill()
    return session


def delegate(name: str, **more: Any) -> dict[str, Any]:
    """Return the compaction block that designates a plugin."""
    return {"delegate": {"plugin": name}, **more}


@whole("PH-HOOK-09", "PH-HOOK-20", "PH-HOOK-21", "PH-AMB-07")
def test_observers_are_told_before_and_after_and_what_they_say_is_kept(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    pre = {"retain": ["first thing", "second thing"], "inject": "Before."}
    post = {"retain": ["third thing"], "inject": "After."}
    one = listening({PRE: result(pre), POST: result(post)})
    session = talk(project, model, one)
    done = session.compact()
    (before,), (after,) = one.heard(PRE), one.heard(POST)
    for told in (before, after):
        assert set(told) == {
            "_context", "role", "messages_being_compacted", "messages_remaining", "strategy",
            "trigger",
        }  # fmt: skip
        assert (told["role"], told["strategy"]) == ("observer", "drop")
        assert isinstance(told["trigger"], str)
        assert told["_context"]["agent_path"] == "primary"
        for name in ("messages_being_compacted", "messages_remaining"):
            assert all(set(each) >= {"id", "role", "content"} for each in told[name])
        assert told["messages_being_compacted"]
    assert done["compacted"] is True
    texts = session.texts(session.say("And now?"))
    (note,) = [each for each in texts if "To be kept in mind" in each]
    places = [note.index(text) for text in ("first thing", "second thing", "third thing")]
    assert places == sorted(places)
    for text in ("Before.", "After."):
        assert f"<plugin:{one.name}>{text}</plugin:{one.name}>" in note
    gone = [each["content"] for each in before["messages_being_compacted"]]
    assert not set(gone) & set(texts)
    stays = [each["content"] for each in after["messages_remaining"]]
    assert set(stays) <= set(texts)


@whole("PH-HOOK-06", "PH-HOOK-07", "PH-HOOK-01")
def test_the_strategy_runs_between_the_two_hooks(
    project: Project, model: ModelServer, listening: Listening, tmp_path: Path
) -> None:
    word = f"auk{next(_names)}q"
    before, after = Gate(tmp_path / "before"), Gate(tmp_path / "after")
    one = listening(
        {PRE: before.act, POST: after.act},
        hook_timeout_sec=60,
        capabilities=[before.capability, after.capability],
    )
    session = talk(project, model, one, compaction={"strategy": "summarize"})
    session.say(f"{word} is what it is about.", "x" * 400)
    session.fill(3)
    model.play(word, say("It was about numbers."))
    asked = len(model.asked(word))
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(session.compact)
        wait_for(lambda: one.heard(PRE))
        assert exactly(asked, lambda: model.asked(word)), "the first hook still thinks"
        before.open()
        wait_for(lambda: one.heard(POST))
        assert len(model.asked(word)) == asked + 1, "the summary is made"
        assert session.events("compaction.completed") == []
        after.open()
        told = done.result()
    assert (told["strategy"], told["summary"]) == ("summarize", "It was about numbers.")
    assert one.heard(PRE)[0]["strategy"] == one.heard(POST)[0]["strategy"] == "summarize"
    assert "It was about numbers." in str(session.texts(session.say("Well?")))


@whole("PH-HOOK-07", "PH-ROLE-18")
def test_a_strategy_that_fails_is_dropped_before_the_second_hook(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({PRE: NULL, POST: NULL})
    session = talk(project, model, one, compaction={"strategy": "summarize"})
    assert session.compact()["fallback"] is True
    (pre,), (post,) = one.heard(PRE), one.heard(POST)
    assert (pre["strategy"], post["strategy"]) == ("summarize", "drop")


@whole("PH-HOOK-20", "PH-AUD-34", "PH-HOOK-06")
def test_a_window_that_fills_up_is_compacted_by_itself(
    daemon: Daemon, project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({PRE: NULL, POST: NULL})
    probe = talk(project, model, one)
    tokens = probe.compact()["tokens_before"]
    one.ear.forget()
    project.describe(
        plugins={one.name: {"package": one.name}}, compaction={"threshold": tokens + 100}
    )
    project.reload()
    session = Talk(project, model)
    session.fill(7)
    assert {each["trigger"] for each in one.heard(PRE)} == {"threshold_crossed"}
    assert {each["trigger"] for each in one.heard(POST)} == {"threshold_crossed"}
    events = [row["event"] for row in session.events("compaction.*")]
    assert events[:2] == ["compaction.triggered", "compaction.completed"]


@whole("PH-HOOK-08", "PH-ROLE-06", "PH-HOOK-06")
def test_each_agents_window_is_its_own_and_so_are_its_plugins(
    project: Project, model: ModelServer, listening: Listening, compacting: Compacting
) -> None:
    top = listening({PRE: NULL, POST: NULL})
    low = listening({PRE: NULL, POST: NULL})
    first, second = compacting("good"), compacting("good")
    kid = {
        "model": "default",
        "system_prompt": "You are below.",
        "plugins": {one.name: {"package": one.name} for one in (low, second)},
        "compaction": delegate(second.name),
    }
    session = talk(
        project, model, top, first, subagents={"kid": kid}, compaction=delegate(first.name)
    )
    for one in (first, second):
        assert one.folder.state()["refused"] == []
    for number in range(5):
        session.say(f"Below {number} " + "y" * 300, "z" * 300, agent=KID)
    session.compact(KID)
    assert (len(low.heard(PRE)), len(low.heard(POST))) == (1, 1)
    assert low.heard(PRE)[0]["_context"]["agent_path"] == KID
    assert (len(second.asked()), first.asked()) == (1, [])
    assert top.heard(PRE) == top.heard(POST) == []
    session.compact()
    assert (len(top.heard(PRE)), len(low.heard(PRE))) == (1, 1)
    assert (len(first.asked()), len(second.asked())) == (1, 1)


@whole("PH-ROLE-03", "PH-ROLE-07", "PH-ROLE-08", "PH-ROLE-10")
def test_exactly_the_designated_compactors_list_goes_to_the_model(
    project: Project, model: ModelServer, compacting: Compacting
) -> None:
    smart = compacting("good")
    session = talk(project, model, smart, compaction=delegate(smart.name, strategy="summarize"))
    asked = len(model.asked())
    done = session.compact()
    assert len(model.asked()) == asked, "nobody summed up"
    assert (done["strategy"], done["fallback"]) == ("summarize", False)
    (told,) = smart.asked()
    assert told["role"] == "compactor"
    word = session.say("Last.")
    staying = [each["content"] for each in told["messages_remaining"]]
    going = len(told["messages_being_compacted"])
    assert session.texts(word)[1:] == [
        staying[0],
        f"summary of {going}",
        *staying[1:],
        f"{word} Last.",
    ]
    undesignated = compacting("good")
    plain = talk(project, model, undesignated)
    assert plain.compact()["strategy"] == "drop"
    assert undesignated.asked() == []


@whole("PH-ROLE-12", "PH-ROLE-14")
def test_what_the_compactor_names_is_marked_and_its_summary_is_on_record(
    project: Project, model: ModelServer, compacting: Compacting
) -> None:
    smart = compacting("good")
    session = talk(project, model, smart, compaction=delegate(smart.name))
    session.compact()
    going = [each["id"] for each in smart.asked()[0]["messages_being_compacted"]]
    exported = project.daemon.client.get(
        f"/api/v1/projects/{project.id}/sessions/{session.id}/export"
    )
    lines = [json.loads(line) for line in exported.text.splitlines()]
    marked = [each["id"] for each in lines if each.get("superseded_by") or each.get("superseded")]
    assert marked == going
    (row,) = exactly(1, lambda: session.events("compaction.completed"))
    assert (row["data"]["summary"], row["data"]["plugin"]) == ("what was said", smart.name)
    assert row["data"]["fallback"] is False


FAULTS = {
    "no_role": ("PH-ROLE-09", "PH-ROLE-17"),
    "observer": ("PH-ROLE-09",),
    "no_messages": ("PH-ROLE-10", "PH-ROLE-17"),
    "malformed": ("PH-ROLE-20", "PH-ROLE-17"),
    "odd_role": ("PH-ROLE-20",),
    "no_superseded": ("PH-ROLE-12", "PH-ROLE-17"),
    "foreign": ("PH-ROLE-13",),
    "drops_keep": ("PH-ROLE-11", "PH-ROLE-17", "PH-AUD-31"),
    "error": ("PH-ROLE-15",),
    "hang": ("PH-ROLE-16",),
    "exit": ("PH-ROLE-19", "PH-ROLE-15"),
    "disabled": ("PH-ROLE-19",),
}


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=whole("PH-ROLE-18", "PH-AMB-51", *rows))
        for how, rows in FAULTS.items()
    ],
)
def test_a_compactor_that_fails_leads_to_drop_and_the_session_goes_on(
    project: Project, model: ModelServer, compacting: Compacting, how: str
) -> None:
    smart = compacting(how, hook_timeout_sec=1)
    session = talk(project, model, smart, compaction=delegate(smart.name))
    if how == "disabled":
        project.daemon.post(f"/plugins/{smart.name}/disable")
    done = session.compact()
    assert (done["strategy"], done["fallback"], done["compacted"]) == ("drop", True, True)
    word = session.say("Still there?")
    texts = session.texts(word)
    assert texts[-1] == f"{word} Still there?"
    assert not any("summary of" in each for each in texts)
    assert "once" not in texts
    assert any("earlier messages" in each for each in texts)
    rows = exactly(3, lambda: session.events("compaction.*"))
    assert [row["event"] for row in rows] == [
        "compaction.triggered",
        "compaction.failed",
        "compaction.completed",
    ]
    assert len({row["data"]["compaction_id"] for row in rows}) == 1
    assert rows[2]["data"]["fallback"] is True
    dropped = smart.folder.audit("compactor_dropped_always_keep")
    assert bool(dropped) is (how == "drops_keep")
    if how == "hang":
        assert smart.folder.audit("plugin.hook.timeout")


@whole("PH-ROLE-05", "PH-AUD-28", "PH-AMB-10")
def test_the_second_compactor_of_an_agent_is_refused_there_and_only_there(
    project: Project, model: ModelServer, compacting: Compacting
) -> None:
    first, second = compacting("good"), compacting("good")
    kid = {
        "model": "default",
        "system_prompt": "x",
        "plugins": {second.name: {"package": second.name}},
    }
    declared = {one.name: {"package": one.name} for one in (first, second)}
    project.describe(plugins=declared, subagents={"kid": kid}, compaction=delegate(first.name))
    project.reload()
    rows = exactly(1, lambda: second.folder.audit("plugin.role_violation"))
    assert rows[0]["data"] == {
        "first": first.name,
        "second": second.name,
        "agent_path": "primary",
    }
    assert first.folder.state()["refused"] == []
    (refused,) = second.folder.state()["refused"]
    assert refused.startswith(f"{project.id} primary:")
    assert second.folder.state()["state"] == "running"
    session = Talk(project, model)
    session.fill()
    session.compact()
    assert (len(first.asked()), second.asked()) == (1, [])


@whole("PH-AMB-10", "PH-ROLE-07")
def test_a_delegate_must_be_there_and_be_a_compactor_and_has_three_names(
    project: Project, model: ModelServer, compacting: Compacting, listening: Listening
) -> None:
    smart = compacting("good")
    watch = listening({PRE: NULL})
    for name in (watch.name, "nobody"):
        project.describe(plugins={watch.name: {"package": watch.name}}, compaction=delegate(name))
        got = project.daemon.client.post(
            f"/api/v1/projects/{project.id}/reload", json={"trust": True}
        )
        told = got.text if got.is_error else str(watch.folder.state()["refused"]) + got.text
        assert name in told, told
        assert got.is_error or watch.folder.state()["refused"] or "delegate" in told, told
    for name in ("squeezer", smart.name, f"@scope/{smart.name}"):
        project.describe(
            plugins={"squeezer": {"package": f"@scope/{smart.name}"}}, compaction=delegate(name)
        )
        project.reload()
        session = Talk(project, model)
        session.fill()
        before = len(smart.asked())
        assert session.compact()["fallback"] is False
        assert len(smart.asked()) == before + 1


@whole("PH-ROLE-04", "PH-AMB-53", "PH-AMB-08")
def test_roles_decide_whose_answer_counts(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    shaped = {
        "role": "compactor",
        "messages": [{"role": "user", "content": "taken over"}],
        "superseded": [],
    }
    nobody = listening({PRE: result(shaped), POST: NULL})
    says = {"inject": "unheard", "retain": ["unheard too"]}
    only = listening(
        {START: result(says), PRE: result(says), POST: result(says)}, roles=["compactor"]
    )
    session = talk(project, model, nobody, only)
    session.compact()
    texts = "\n".join(session.texts(session.say("Well?")))
    assert "taken over" not in texts
    assert "unheard" not in texts
    assert [each["role"] for each in nobody.heard(PRE)] == ["observer"]
    assert only.heard(PRE) == [], "a compactor that is not designated is not asked"
    assert [each["role"] for each in only.heard(POST)] == ["observer"]
    assert len(only.heard(START)) == 1


@whole("PH-AMB-08", "PH-HOOK-21")
def test_who_has_both_roles_is_addressed_in_the_one_it_is_designated_for(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    both = listening({PRE: NULL, POST: NULL, IDLE: NULL}, roles=["observer", "compactor"])
    watch = listening({PRE: NULL, POST: NULL})
    session = talk(project, model, both, watch)
    session.compact()
    assert [each["role"] for each in both.heard(PRE)] == ["observer"]
    project.describe(
        plugins={one.name: {"package": one.name} for one in (both, watch)},
        compaction=delegate(both.name),
    )
    project.reload()
    other = Talk(project, model)
    other.fill()
    other.compact()
    assert [each["role"] for each in both.heard(PRE)] == ["observer", "compactor"]
    assert {each["role"] for each in watch.heard(PRE)} == {"observer"}
    assert {each["role"] for each in (*both.heard(POST), *watch.heard(POST))} == {"observer"}
    wait_for(lambda: other.events("compaction.completed"))
