"""Work that goes on after a kill: for the same person, in the same chat, with what they may now."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest
from whole.harness.policies import CAPABILITIES, PolicySite, spy
from whole.harness.project import Project
from whole.harness.services import CAGE, CALLER, Bridge, capability, operation
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
ASK = {"questions": [{"id": "q", "title": "Sure?", "options": ["yes", "no"]}]}
LOOK = {"method": "capability.invoke", "params": {"capability": "post.box", "operation": "look"}}
HEADERS = '[auth.front_end]\nroles = "X-Kaged-Roles"\nclaims = { department = "X-Department" }\n'
PEOPLE = '[people.ann]\nroles = ["lead"]\n[people.bob]\nroles = ["guest"]\n'
SAID = {
    "ann": {"X_Kaged_Roles": "dev", "X_Department": "R&D", "X_Kaged_Thread_Id": "t-1"},
    "bob": {"X_Kaged_Roles": "ops"},
}
CHATS = {"ann": ("private", "private-ann"), "bob": ("group", "g-1")}


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    made = PolicySite(module_path / "policies")
    made.write(spy("spy", *CAPABILITIES))
    return made


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, site: PolicySite) -> Iterator[Daemon]:
    """Yield a daemon whose operator names two people, with a policy that looks and a bridge."""
    look = operation("look", requires_auth=False)
    bridge = Bridge(module_path, "post", {"definitions": [capability("post.box", look)]})
    config = f"{FRONT_END}{HEADERS}{PEOPLE}{site.config_toml()}{bridge.toml()}"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, module_path: Path) -> Project:
    """Return a project whose agent runs commands, with a workflow of two steps."""
    made = Project(module_path / "work")
    steps = [{"message": "{{word}}1 first"}, {"message": "{{word}}2 second"}]
    inputs = {"word": {"type": "string", "required": True}}
    both = {"description": "Do it.", "inputs": inputs, "invokable_by": ["guest"], "steps": steps}
    made.describe(top={"workflows": {"both": both}}, cage=CAGE)
    made.write("job.json", json.dumps({"conversations": [[LOOK]]}))
    shutil.copy(CALLER, made.root / "caller.py")
    return daemon.load(made)


@pytest.fixture
def come(guest: Come) -> Callable[[str], Guest]:
    """Return who lets Ann and Bob in, each in the chat of theirs; again after each start."""
    return lambda name: guest(name, *CHATS[name], **SAID[name])


def _ask(guest: Guest, project: Project, word: str) -> str:
    """Let the agent ask something in a session; returns the session."""
    session = str(guest.post(f"/projects/{project.id}/sessions")["id"])
    guest.post(f"/projects/{project.id}/sessions/{session}/message", {"text": f"{word} please"})
    _waiting(guest, project, session)
    return session


def _waiting(guest: Guest, project: Project, session: str) -> str:
    def look() -> list[str]:
        found = guest.get(f"/projects/{project.id}/interactions?status=pending")["items"]
        return [str(one["request_id"]) for one in found if one["session_id"] == session]

    asked = wait_for(look, "the question")[0]
    wait_for(lambda: _runs(guest, project, session)[0]["status"] == "paused", "the pause")
    return asked


def _answer(guest: Guest, project: Project, session: str) -> None:
    number = _waiting(guest, project, session)
    place = f"/projects/{project.id}/interactions/{number}/answer"
    guest.post(place, {"answers": {"q": "yes"}})


def _runs(guest: Guest, project: Project, session: str) -> list[dict[str, Any]]:
    return list(guest.get(f"/projects/{project.id}/sessions/{session}/runs")["items"])


def _all_runs(project: Project, session: str) -> list[dict[str, Any]]:
    return list(project.get(f"/sessions/{session}/runs")["items"])


def _went_on(guest: Guest, project: Project, session: str) -> dict[str, Any]:
    def look() -> list[dict[str, Any]]:
        found = _runs(guest, project, session)
        return [one for one in found if one["cause"] == "answer" and one["status"] in ENDED]

    return wait_for(look, "the run that goes on")[0]


def _looks(daemon: Daemon, after: int) -> dict[str, dict[str, Any]]:
    rows = [one for one in daemon.audit("capability_invoke") if one["seq"] > after]
    return {one["data"]["user_id"]: one["data"] for one in rows}


def _newest(daemon: Daemon) -> int:
    return int(daemon.get("/audit?limit=1")["items"][0]["seq"])


def _subjects(site: PolicySite, hook: str = "tool_pre_invoke") -> dict[str, dict[str, Any]]:
    """Return whom the agent's own calls were made for; those on accounts know `[people]` only."""
    rows = [one for one in site.seen("spy", hook) if one["payload"].get("name") != "post.box.look"]
    found = [one["extensions"]["security"] for one in rows]
    return {one["subject"]["id"]: one["subject"] for one in found if one.get("subject")}


def test_two_people_go_on_as_themselves_after_a_kill(
    daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer,
    come: Callable[[str], Guest],
) -> None:  # fmt: skip
    sessions: dict[str, str] = {}
    for name in ("ann", "bob"):
        word = fresh(name)
        model.play(
            word,
            call("kaged.ask", **ASK),
            call("shell.bash", command="python3 caller.py job.json"),
            say(f"{word} done."),
        )
        sessions[name] = _ask(come(name), shared, word)
    verified = {name: _runs(come(name), shared, one)[0] for name, one in sessions.items()}
    daemon.kill()
    daemon.start()
    site.seen_file.write_text("", encoding="utf-8")
    before = _newest(daemon)
    # The operator answers for Bob: it is his work all the same.
    ann = come("ann")
    _answer(ann, shared, sessions["ann"])
    (asked,) = shared.get("/interactions?status=pending")["items"]
    shared.post(f"/interactions/{asked['request_id']}/answer", {"answers": {"q": "yes"}})
    for name, session in sessions.items():
        run = _went_on(come(name), shared, session)
        assert (run["status"], run["operator_id"]) == ("completed", name), run
        # What the front end said is as old as their last request, and says so.
        assert run["verified_at"] == verified[name]["verified_at"] is not None
    looked = _looks(daemon, before)
    assert {name: (one["outcome"], one["chat_id"]) for name, one in looked.items()} == {
        "ann": ("ok", "private-ann"),
        "bob": ("ok", "g-1"),
    }
    assert looked["ann"]["thread_id"] == "t-1"
    subjects = _subjects(site)
    assert sorted(subjects["ann"]["roles"]) == ["dev", "lead"]
    assert subjects["ann"]["claims"] == {"department": "R&D"}
    assert sorted(subjects["bob"]["roles"]) == ["guest", "ops"]
    assert set(subjects) == {"ann", "bob"}


def test_who_was_removed_meanwhile_does_nothing_more_and_who_was_changed_has_the_new_roles(
    daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer,
    come: Callable[[str], Guest],
) -> None:  # fmt: skip
    sessions: dict[str, str] = {}
    for name in ("ann", "bob"):
        word = fresh(name)
        again = call("shell.bash", command="python3 caller.py job.json")
        model.play(word, call("kaged.ask", **ASK), again, say(f"{word} done."))
        sessions[name] = _ask(come(name), shared, word)
    daemon.kill()
    kept = (daemon.home / "config.toml").read_text(encoding="utf-8")
    changed = kept.replace('[people.bob]\nroles = ["guest"]\n', "").replace('"lead"', '"chief"')
    daemon.write("config.toml", changed)
    try:
        daemon.start()
        site.seen_file.write_text("", encoding="utf-8")
        before = _newest(daemon)
        for one in shared.get("/interactions?status=pending")["items"]:
            shared.post(f"/interactions/{one['request_id']}/answer", {"answers": {"q": "yes"}})
        operator = shared.get(f"/sessions/{sessions['bob']}/runs")
        assert operator["total"] >= 1

        def ended(name: str) -> dict[str, Any]:
            def look() -> list[dict[str, Any]]:
                found = shared.get(f"/sessions/{sessions[name]}/runs")["items"]
                return [one for one in found if one["cause"] == "answer" and one["ended_at"]]

            return wait_for(look, f"the end of {name}'s run")[0]

        assert ended("ann")["status"] == "completed"
        refused = ended("bob")
        assert (refused["status"], refused["error"]["code"]) == ("failed", "actor_not_allowed")
        assert set(_looks(daemon, before)) == {"ann"}
        assert sorted(_subjects(site)["ann"]["roles"]) == ["chief", "dev"]
        assert "bob" not in _subjects(site)
        # The next start finds his answer again, and adds no second failure.
        daemon.restart()
        wait_for(lambda: daemon.log().count("sessions.not_resumed") > 1, "the look at his answer")
        assert [one["cause"] for one in _all_runs(shared, sessions["bob"])].count("answer") == 1
    finally:
        daemon.stop()
        daemon.write("config.toml", kept)
        daemon.start()
    # Who is allowed again goes on with it.
    wait_for(
        lambda: _all_runs(shared, sessions["bob"])[0]["status"] == "completed", "his run's end"
    )


def test_the_later_steps_of_a_workflow_act_for_whom_the_first_one_acted(
    daemon: Daemon, site: PolicySite, shared: Project, model: ModelServer,
    come: Callable[[str], Guest],
) -> None:  # fmt: skip
    word = fresh("steps")
    look = call("shell.bash", command="python3 caller.py job.json")
    model.play(f"{word}1", call("kaged.ask", **ASK), say("First."))
    model.play(f"{word}2", look, say("Second."))
    place = f"/projects/{shared.id}"
    run = str(
        come("ann").post(f"{place}/workflows/both/runs", {"inputs": {"word": word}})["run_id"]
    )
    _waiting(come("ann"), shared, run)
    daemon.kill()
    daemon.start()
    before = _newest(daemon)
    ann = come("ann")
    _answer(ann, shared, run)

    def done() -> dict[str, Any] | None:
        found: dict[str, Any] = ann.get(f"{place}/runs/{run}")
        return found if found["status"] != "running" else None

    ended = wait_for(done, "the end of the workflow")
    assert ended is not None
    assert ended["status"] == "succeeded", ended
    looked = _looks(daemon, before)
    assert {name: one["chat_id"] for name, one in looked.items()} == {"ann": "private-ann"}
    assert {one["operator_id"] for one in _runs(ann, shared, run)} == {"ann"}
