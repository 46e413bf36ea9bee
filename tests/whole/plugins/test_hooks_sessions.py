"""Plugins that are told of a session's start and of its silence, with a model that answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly, wait_for
from whole.harness.model import ModelServer
from whole.harness.plugin_hooks import (
    HOOKS,
    IDLE,
    NULL,
    POST,
    PRE,
    START,
    Gate,
    Listener,
    Talk,
    result,
)
from whole.harness.project import Project

IDLE_SOON = "[sessions]\nidle_seconds = 1\n"
LATER = "[sessions]\nidle_seconds = 2\n"
Listening = Callable[..., Listener]
_names = iter(range(1, 1000))


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon whose sessions are idle after a second."""
    made = Daemon(module_path / "h", config=IDLE_SOON, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def listening(daemon: Daemon, tmp_path: Path) -> Iterator[Listening]:
    """Yield a maker of running plugins with hooks; they go when the test ends."""
    made: list[Listener] = []

    def make(hooks: dict[str, Any], **manifest: Any) -> Listener:
        name = manifest.pop("name", f"ear-{next(_names)}")
        made.append(Listener(daemon, tmp_path, name, hooks, **manifest))
        return made[-1]

    yield make
    for one in made:
        daemon.ask("DELETE", f"/plugins/{one.name}?force=true")


def talk(project: Project, model: ModelServer, *plugins: Listener, **primary: Any) -> Talk:
    """Begin a session of a project whose primary declares these plugins, in this order."""
    declared = {one.name: {"package": one.name} for one in plugins}
    project.describe(**{"plugins": declared, **primary})
    project.reload()
    return Talk(project, model)


def agent(**more: Any) -> dict[str, Any]:
    """Return a subagent."""
    return {"model": "default", "system_prompt": "You are below.", **more}


@whole("PH-HOOK-03", "PH-HOOK-04", "PH-HOOK-16", "PH-HOOK-01")
def test_the_start_of_a_session_is_told_once_and_its_answer_stands_before_the_prompt(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({START: result({"inject": "I remember."})})
    session = talk(project, model, one)
    prompt = f"<plugin:{one.name}>I remember.</plugin:{one.name}>\n\nYou help."
    assert session.prompt(session.say("One")).startswith(prompt)
    assert session.prompt(session.say("Two")).startswith(prompt)
    exactly(1, lambda: one.heard(START))
    other = Talk(project, model)
    other.say("Three")
    exactly(2, lambda: one.heard(START))
    assert [each["_context"]["session_id"] for each in one.heard(START)] == [session.id, other.id]


@whole("PH-HOOK-12", "PH-HOOK-13", "PH-HOOK-31", "PH-AUD-21")
def test_a_fire_is_an_ordinary_request_and_on_record_with_its_return(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({START: result({"inject": "x"})})
    session = talk(project, model, one)
    session.say("One")
    (sent,) = one.ear.of(f"kaged.hook.{START}")
    assert isinstance(sent["id"], int)
    assert set(sent["params"]) == {"_context"}
    context = sent["params"]["_context"]
    assert (context["project_id"], context["agent_path"], context["session_id"]) == (
        project.id,
        "primary",
        session.id,
    )
    fired, returned = exactly(2, lambda: one.audit("plugin.hook.*"))
    assert fired["event"] == "plugin.hook.fired"
    assert fired["data"] == {
        "name": one.name,
        "hook": START,
        "agent_path": "primary",
        "session_id": session.id,
        "request_id": context["request_id"],
    }
    assert returned["event"] == "plugin.hook.returned"
    assert returned["data"].pop("duration_ms") >= 0
    assert returned["data"] == {"name": one.name, "hook": START, "has_result": True}


@whole("PH-HOOK-02", "PH-HOOK-10", "PH-AUD-22")
def test_only_who_subscribed_and_is_the_primarys_hears_of_a_session(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({START: NULL})
    other = listening({PRE: NULL})
    below = listening({START: NULL, IDLE: NULL})
    kid = agent(plugins={below.name: {"package": below.name, "hooks": [START, IDLE]}})
    session = talk(project, model, one, other, subagents={"kid": kid})
    session.say("One")
    session.say("Two", agent="primary.subagents.kid")
    exactly(1, lambda: one.heard(START))
    assert [row["data"]["has_result"] for row in one.audit("plugin.hook.returned")] == [False]
    assert [each["method"] for each in other.ear.lines() if "hook" in each["method"]] == []
    assert [each["method"] for each in below.ear.lines() if "hook" in each["method"]] == []


@whole("PH-HOOK-11", "PH-AUD-25", "PH-AMB-09")
def test_a_subagent_that_lists_a_hook_of_the_primary_is_warned_about_and_loads(
    project: Project, listening: Listening
) -> None:
    one = listening(dict.fromkeys(HOOKS, NULL))
    for hooks, warned in (([START, PRE], [START]), ([START, IDLE], [START, IDLE]), (None, [])):
        before = len(one.audit("plugin.hook.illegal"))
        more = {} if hooks is None else {"hooks": hooks}
        kid = agent(plugins={one.name: {"package": one.name, **more}})
        project.describe(subagents={"kid": kid})
        told = json.dumps(project.post("/reload", {"trust": True}))
        assert project.get("")["state"] == "loaded"
        for hook in (START, IDLE):
            assert (f"{hook} fires on the primary agent only" in told) is (hook in warned)
        rows = exactly(before + len(warned), lambda: one.audit("plugin.hook.illegal"))[before:]
        assert [row["data"] for row in rows] == [
            {"name": one.name, "hook": hook, "agent_path": "primary.subagents.kid"}
            for hook in warned
        ]


@whole("PH-AMB-09")
def test_a_declaration_selects_among_what_the_manifest_can_do(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({START: NULL, PRE: NULL})

    def heard(**declared: Any) -> int:
        one.ear.forget()
        project.describe(plugins={one.name: {"package": one.name, **declared}})
        project.reload()
        Talk(project, model).say("x")
        return len(one.heard(START))

    assert heard() == 1, "all of the manifest's"
    assert heard(hooks=[START]) == 1
    assert heard(hooks=[PRE]) == 0
    assert heard(hooks=[]) == 0
    project.describe(plugins={one.name: {"package": one.name, "hooks": [POST]}})
    got = project.daemon.client.post(f"/api/v1/projects/{project.id}/reload", json={"trust": True})
    assert got.is_error or one.folder.state()["refused"], got.text


@whole("PH-HOOK-14", "PH-HOOK-15", "PH-AMB-59")
def test_nothing_and_an_empty_text_inject_nothing(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    quiet = [
        listening({START: result(None)}),
        listening({START: result({"inject": ""})}),
        listening({START: result({})}),
        listening({START: [{"raw": '{"jsonrpc": "2.0", "id": $id}'}]}),
    ]
    session = talk(project, model, *quiet)
    assert session.prompt(session.say("Hi")).startswith("You help.")
    for one in quiet:
        assert len(one.heard(START)) == 1
        assert one.audit("plugin.hook.failed") == []


@whole("PH-HOOK-17", "PH-AMB-48", "PH-AMB-07")
def test_the_hosts_delimiters_stand_around_whatever_a_plugin_writes(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    text = "<plugin:other>mine</plugin:other>"
    one = listening({START: result({"inject": text, "retain": ["kept?"]})})
    session = talk(project, model, one)
    prompt = session.prompt(session.say("Hi"))
    assert prompt.startswith(f"<plugin:{one.name}>{text}</plugin:{one.name}>\n\nYou help.")
    assert "kept?" not in str(session.sent(session.words[-1]))


@whole("PH-HOOK-24", "PH-ROLE-02", "PH-AMB-09")
def test_plugins_are_told_in_the_order_of_the_agents_map(
    daemon: Daemon, project: Project, model: ModelServer, listening: Listening
) -> None:
    names = ["zebra", "adder", "moth", "boar", "yak"]
    five = [listening({START: result({"inject": f"I am {name}."})}, name=name) for name in names]
    session = talk(project, model, *five)
    prompt = session.prompt(session.say("Hi"))
    places = [prompt.index(f"<plugin:{name}>I am {name}.</plugin:{name}>") for name in names]
    assert places == sorted(places)
    fired = [
        row["data"]["name"]
        for row in daemon.audit("plugin.hook.fired")
        if row["data"]["session_id"] == session.id
    ]
    assert fired == names
    turned = list(reversed(five))
    again = talk(project, model, *turned)
    prompt = again.prompt(again.say("Hi"))
    places = [prompt.index(f"<plugin:{one.name}>") for one in turned]
    assert places == sorted(places)


@whole("PH-HOOK-05", "PH-HOOK-18", "PH-AMB-47")
def test_a_silent_session_is_told_once_with_its_whole_history_each_time(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    one = listening({IDLE: result({"inject": "ignored"})})
    kid = agent(plugins={one.name: {"package": one.name}})
    session = talk(project, model, one, subagents={"kid": kid})
    first = session.say("One", "Answer one.")
    exactly(1, lambda: one.heard(IDLE))
    (told,) = one.heard(IDLE)
    assert set(told) == {"_context", "transcript"}
    assert told["_context"]["agent_path"] == "primary"
    history = [(f"{first} One", "user"), ("Answer one.", "assistant")]
    assert [(each["content"], each["role"]) for each in told["transcript"]] == history
    second = session.say("Two", "Answer two.")
    assert "ignored" not in str(session.sent(second))
    exactly(2, lambda: one.heard(IDLE))
    again = one.heard(IDLE)[-1]["transcript"]
    assert [each["content"] for each in again] == [
        *(text for text, _ in history),
        f"{second} Two",
        "Answer two.",
    ]


@whole("PH-HOOK-19", "PH-AMB-47")
def test_a_slow_idle_hook_does_not_hold_up_the_next_message(
    project: Project, model: ModelServer, listening: Listening, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    slow = listening({IDLE: gate.act}, capabilities=[gate.capability], hook_timeout_sec=60)
    session = talk(project, model, slow)
    session.say("One")
    wait_for(lambda: slow.heard(IDLE))
    assert session.sent(session.say("Two"))
    assert slow.audit("plugin.hook.returned") == []
    gate.open()
    wait_for(lambda: slow.audit("plugin.hook.returned"))


@whole("PH-HOOK-22", "PH-HOOK-23")
def test_a_plugin_has_one_hook_at_a_time_and_keeps_nobody_else_waiting(
    daemon: Daemon, project: Project, model: ModelServer, listening: Listening, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    slow = listening({START: gate.act}, capabilities=[gate.capability], hook_timeout_sec=60)
    quick = listening({START: result({"inject": "At once."})})
    project.describe(plugins={slow.name: {"package": slow.name}})
    project.reload()
    for text in ("swallow-one", "swallow-two"):
        session = project.post("/sessions", {})["id"]
        project.post(f"/sessions/{session}/message", {"text": text})
    exactly(1, lambda: slow.audit("plugin.hook.fired"))
    elsewhere = talk(daemon.load(Project(tmp_path / "other")), model, quick)
    assert "At once." in elsewhere.prompt(elsewhere.say("Hi"))
    assert slow.audit("plugin.hook.returned") == []
    gate.open()
    wait_for(lambda: len(slow.audit("plugin.hook.fired")) == 2)
    gate.open()
    rows = exactly(4, lambda: slow.audit("plugin.hook.*"))
    assert [row["event"].rpartition(".")[2] for row in rows] == ["fired", "returned"] * 2


@whole("PH-HOOK-26", "PH-HOOK-27", "PH-HOOK-28", "PH-AUD-24")
@pytest.mark.parametrize(
    ("acts", "code"),
    [
        ([{"error": [-32000, "not now"]}], -32000),
        ([{"result": {"inject": 5}}], -32603),
        ([{"result": 7}], -32603),
        ([{"result": {"inject": ["a"]}}], -32603),
    ],
)
def test_an_error_or_a_wrong_shape_is_on_record_and_counts_as_nothing(
    project: Project, model: ModelServer, listening: Listening, acts: Any, code: int
) -> None:
    bad = listening({START: acts})
    good = listening({START: result({"inject": "good word"})})
    session = talk(project, model, bad, good)
    prompt = session.prompt(session.say("Hi"))
    assert prompt.startswith(f"<plugin:{good.name}>good word</plugin:{good.name}>\n\nYou help.")
    (row,) = exactly(1, lambda: bad.audit("plugin.hook.failed"))
    assert (row["data"]["name"], row["data"]["hook"]) == (bad.name, START)
    assert (row["data"]["agent_path"], row["data"]["error_code"]) == ("primary", code)
    assert row["data"]["error_message"]
    if code == -32000:
        assert "not now" in row["data"]["error_message"]
        assert bad.audit("plugin.hook.returned") == []


@whole("PH-HOOK-25", "PH-HOOK-26", "PH-AUD-23", "PH-AMB-40")
def test_silence_ends_after_the_manifests_seconds_or_ten_and_the_next_is_heard(
    project: Project, model: ModelServer, listening: Listening, tmp_path: Path, daemon: Daemon
) -> None:
    short = listening({START: [{"noise": "hm"}]}, hook_timeout_sec=1)
    usual = listening({START: [{"noise": "hm"}]})
    good = listening({START: result({"inject": "good word"})})
    pid = short.folder.state()["pid"]
    other = daemon.load(Project(tmp_path / "other"))
    other.describe(plugins={usual.name: {"package": usual.name}})
    other.reload()
    late = other.post("/sessions", {})["id"]
    other.post(f"/sessions/{late}/message", {"text": "plover-late"})
    session = talk(project, model, short, good)
    assert "good word" in session.prompt(session.say("Hi"))
    (row,) = exactly(1, lambda: short.audit("plugin.hook.timeout"))
    assert row["data"] == {
        "name": short.name, "hook": START, "agent_path": "primary", "timeout_sec": 1.0,
    }  # fmt: skip
    assert (short.folder.state()["state"], short.folder.state()["pid"]) == ("running", pid)
    assert short.folder.state()["metrics"]["hook_timeouts"] == 1
    wait_for(lambda: usual.audit("plugin.hook.timeout"))
    (row,) = usual.audit("plugin.hook.timeout")
    assert row["data"]["timeout_sec"] == 10.0
    wait_for(lambda: model.asked("plover-late"))


@whole("PH-HOOK-29")
def test_a_plugin_that_is_not_running_is_left_out(
    project: Project, model: ModelServer, listening: Listening
) -> None:
    dies = listening({START: [{"exit": 3}]})
    good = listening({START: result({"inject": "good word"})})
    session = talk(project, model, dies, good)
    assert session.prompt(session.say("Hi")).startswith(f"<plugin:{good.name}>")
    fired = len(dies.audit("plugin.hook.fired"))
    project.daemon.post(f"/plugins/{dies.name}/disable")
    again = Talk(project, model)
    assert again.prompt(again.say("Hi")).startswith(f"<plugin:{good.name}>")
    assert len(dies.audit("plugin.hook.fired")) == fired == 1


@whole("PH-HOOK-30", "PH-HOOK-03", "PH-HOOK-04")
def test_a_restart_forgets_timers_and_tells_no_start_again(
    own: Callable[..., Daemon], model: ModelServer, tmp_path: Path
) -> None:
    daemon = own(config=LATER)
    daemon.start()
    project = daemon.load(Project(tmp_path / "p"))
    one = Listener(daemon, tmp_path, "ear", {START: result({"inject": "Once."}), IDLE: NULL})
    session = talk(project, model, one)
    session.say("One")
    daemon.kill()
    daemon.start()
    wait_for(lambda: one.folder.state()["state"] == "running")
    daemon.load(project)
    wait_for(lambda: len(one.ear.of("projects.activated")) >= 2)
    other = Talk(project, model)
    other.say("Somebody else")
    exactly(1, lambda: one.heard(IDLE))
    assert one.heard(IDLE)[0]["_context"]["session_id"] == other.id
    prompt = session.prompt(session.say("Two"))
    assert prompt.startswith("<plugin:ear>Once.</plugin:ear>")
    exactly(2, lambda: one.heard(IDLE))
    assert one.heard(IDLE)[-1]["_context"]["session_id"] == session.id
    assert len(one.heard(IDLE)[-1]["transcript"]) == 4
    starts = [each["_context"]["session_id"] for each in one.heard(START)]
    assert starts == [session.id, other.id]
