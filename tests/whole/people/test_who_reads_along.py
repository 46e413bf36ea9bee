"""What is kept for private chats stays out of sessions and chats in which others read along."""

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
from whole.harness.project import Project
from whole.harness.services import CAGE, CALLER, SHELL, Bridge, capability, operation, step
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
BOX = "post.box"
ASK = {"questions": [{"id": "q", "title": "Sure?", "options": ["yes", "no"]}]}


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a mailbox that is for private chats, and mail that waits for a yes."""
    look = operation("look", requires_auth=False)
    box = capability(BOX, look, operation("send", mutating=True), sensitive=True)
    lines = capability("post.lines", operation("write", mutating=True))
    bridge = Bridge(
        module_path, "post", {"definitions": [box, lines]}, confirm=["box.send", "lines.write"]
    )
    config = f"{FRONT_END}{bridge.toml()}"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(daemon: Daemon, module_path: Path) -> Project:
    made = Project(module_path / "work", cage=CAGE, tools={**SHELL, "kaged.*": {"enabled": True}})
    shutil.copy(CALLER, made.root / "caller.py")
    look = step("invoke", capability=BOX, operation="look")
    made.write("look.json", json.dumps({"conversations": [[look]]}))
    return daemon.load(made)


LOOKS = call("shell.bash", command="python3 caller.py look.json")


def _begin(guest: Guest, project: Project) -> str:
    return str(guest.post(f"/projects/{project.id}/sessions")["id"])


def _run(guest: Guest, project: Project, session: str, how: str, **body: str) -> None:
    """Begin a run by a message, or by going on, and wait for its end."""
    place = f"/projects/{project.id}/sessions/{session}"
    run = guest.post(f"{place}/{how}", body)["run_id"]

    def ended() -> list[dict[str, Any]]:
        found = guest.get(f"{place}/runs")["items"]
        return [one for one in found if one["id"] == run and one["status"] in ENDED]

    wait_for(ended, "the end of the run")


def _look(daemon: Daemon) -> tuple[str, str | None, str]:
    row = daemon.audit("capability_invoke")[-1]["data"]
    return row["user_id"], row["chat_id"], row["outcome"]


def test_who_speaks_in_a_groups_session_from_a_private_chat_is_not_in_private_there(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob = guest("ann"), guest("bob", "group", "g-1")
    session = _begin(guest("ann", "group", "g-1"), shared)
    for who, name in ((ann, "ann"), (guest(""), "operator")):
        word = fresh(name)
        model.play(word, LOOKS, say(f"{word} done."))
        _run(who, shared, session, "message", text=f"{word} please")
        assert _look(daemon) == (name, "g-1", "denied")
    calls = bob.get(f"/projects/{shared.id}/sessions/{session}/tool-calls")["items"]
    assert len(calls) == 2
    assert all("capability_access_denied" in json.dumps(one) for one in calls)
    # The same words in a session of her own find her mail, and the operator's in one of theirs.
    for who, name, chat in ((ann, "ann", "private-ann"), (guest(""), "operator", None)):
        word = fresh(f"own{name}")
        model.play(word, LOOKS, say(f"{word} done."))
        _run(who, shared, _begin(who, shared), "message", text=f"{word} please")
        assert _look(daemon) == (name, chat, "ok")


def test_an_operator_in_somebodys_private_session_reads_out_nothing_of_theirs(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come
) -> None:
    session, word = _begin(guest("ann"), shared), fresh("helped")
    model.play(word, LOOKS, say(f"{word} done."))
    _run(guest(""), shared, session, "message", text=f"{word} please")
    assert _look(daemon) == ("operator", "private-ann", "denied")


def test_what_was_asked_in_a_group_goes_on_in_the_group_also_after_a_kill(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come
) -> None:
    session, word = _begin(guest("ann", "group", "g-1"), shared), fresh("killed")
    model.play(word, call("kaged.ask", **ASK), LOOKS, say(f"{word} done."))
    # Ann speaks from her private chat; the run is kept as one of the group's.
    _run(guest("ann"), shared, session, "message", text=f"{word} please")
    daemon.kill()
    daemon.start()
    ann = guest("ann")
    (asked,) = ann.get(f"/projects/{shared.id}/interactions?status=pending")["items"]
    place = f"/projects/{shared.id}/interactions/{asked['request_id']}/answer"
    ann.post(place, {"answers": {"q": "yes"}})
    runs = f"/projects/{shared.id}/sessions/{session}/runs"
    wait_for(lambda: ann.get(runs)["items"][0]["status"] == "completed", "the end of the run")
    assert _look(daemon) == ("ann", "g-1", "denied")


def _send(guest: Guest, project: Project, box: str, name: str, word: str) -> dict[str, Any]:
    wanted = step("invoke", capability=box, operation=name, input={"text": word})
    project.write("send.json", json.dumps({"conversations": [[wanted]]}))
    params = {"command": "python3 caller.py send.json"}
    body = {"agent": "primary", "tool": "shell.bash", "params": params}
    done = guest.post(f"/projects/{project.id}/tools/call", body)["result"]
    answer: dict[str, Any] = json.loads(done["stdout"])[0][0]
    return answer


def _link(guest: Guest, box: str) -> None:
    flow = guest.post("/services/links", {"capability": box})["flow_id"]
    guest.post(f"/services/links/{flow}/complete", {"code": "agreed"})


def test_consent_is_asked_and_given_in_the_chat_of_the_call_and_counts_there_only(
    shared: Project, guest: Come
) -> None:
    ann, here, bob = guest("ann"), guest("ann", "group", "g-2"), guest("bob", "group", "g-2")
    word = fresh("letter")
    _link(ann, "post.lines")
    refused = _send(ann, shared, "post.lines", "write", word)["error"]["data"]
    assert refused["code"] == "capability_mutation_not_confirmed"
    (plan,) = ann.get("/services/approvals")["approvals"]
    assert word in plan["summary"]
    number = plan["plan_id"]
    # Others read along in a group, and Bob is somebody else anywhere.
    for other in (here, bob, guest("bob")):
        assert other.get("/services/approvals") == {"approvals": []}
        for decision in ("confirm", "deny"):
            said = other.refused("POST", f"/services/approvals/{number}", {"decision": decision})
            assert said == (404, "approval_unknown")
        assert number not in json.dumps(other.get("/inbox"))
        assert other.refused("GET", f"/inbox/{number}") == (404, "inbox_request_not_found")
    assert ann.get(f"/inbox/{number}")["project_id"] == shared.id
    ann.post(f"/services/approvals/{number}", {"decision": "confirm"})
    # Her yes in private is none in the group, and is still there for the call that she saw.
    refused = _send(here, shared, "post.lines", "write", word)["error"]["data"]
    assert refused["code"] == "capability_mutation_not_confirmed"
    (asked,) = here.get("/services/approvals")["approvals"]
    assert asked["plan_id"] != number
    assert "result" in _send(ann, shared, "post.lines", "write", word)
    # What is asked in the group she may answer in private; Bob reads along and answers nothing.
    bobs = bob.refused("POST", f"/services/approvals/{asked['plan_id']}", {"decision": "confirm"})
    assert bobs == (404, "approval_unknown")
    ann.post(f"/services/approvals/{asked['plan_id']}", {"decision": "confirm"})
    assert "result" in _send(here, shared, "post.lines", "write", word)


def test_an_agent_shows_comments_for_the_operator_to_the_operator_alone(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    word = fresh("internal")
    number = shared.post("/issues", {"title": "One", "body": ""})["number"]
    for text, visibility in ((f"{word} inside", "operator_only"), ("for all", "all")):
        shared.post(f"/issues/{number}/comments", {"body": text, "visibility": visibility})
    use = {"agent": "primary", "tool": "kaged.issue", "params": {"action": "get", "number": number}}
    ann, operator = guest("ann"), guest("")
    for who, shown in ((ann, False), (operator, True)):
        said = json.dumps(who.post(f"/projects/{shared.id}/tools/call", use))
        assert "for all" in said
        assert (word in said) is shown
    # In a session of hers nobody's agent does, whoever has it look.
    reads = call("kaged.issue", action="get", number=number)
    for owner, who in ((ann, ann), (ann, operator), (operator, operator)):
        session, said = _begin(owner, shared), fresh("reads")
        model.play(said, reads, say("Read."))
        _run(who, shared, session, "message", text=f"{said} please")
        found = json.dumps(owner.get(f"/projects/{shared.id}/sessions/{session}/tool-calls"))
        assert "for all" in found
        assert (word in found) is (owner is operator)
