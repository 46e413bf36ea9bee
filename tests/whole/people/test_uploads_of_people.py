"""Files that people give along: read by runs for that person in that chat, and by nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.services import CAGE
from whole.harness.talk import fresh

Come = Callable[..., Guest]
FORM = {"fields": [{"name": "paper", "label": "Paper", "type": "file"}]}
SHELF = "/opt/kaged/uploads"


@pytest.fixture
def shared(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose agent runs commands, with a workflow that takes a file."""
    made = Project(tmp_path / "work")
    inputs = {"paper": {"type": "file", "required": True}, "word": {"type": "string"}}
    flow = {
        "description": "Read it.",
        "inputs": inputs,
        "invokable_by": ["guest"],
        "steps": [{"message": "{{word}} {{paper}}"}],
    }
    made.describe(top={"workflows": {"look": flow}}, cage=CAGE)
    return daemon.load(made)


def _file(text: str) -> dict[str, Any]:
    return {"name": "../paper.txt", "content_base64": base64.b64encode(text.encode()).decode()}


def _give(guest: Guest, project: Project, model: ModelServer, secret: str, session: str) -> str:
    """Let the agent ask for a file in a session, give it one, and return its path."""
    word, place = fresh("form"), f"/projects/{project.id}"
    model.play(word, call("kaged.form", **FORM), say("Thanks."))
    guest.post(f"{place}/sessions/{session}/message", {"text": f"{word} please"})

    def asked() -> list[str]:
        found = guest.get(f"{place}/interactions?status=pending")["items"]
        return [str(one["request_id"]) for one in found if one["session_id"] == session]

    number = wait_for(asked, "the form")[0]
    answer = {"answers": {}, "files": {"paper": _file(secret)}}
    given = guest.post(f"{place}/interactions/{number}/answer", answer)
    path = str(given["answer"]["answers"]["paper"])
    assert path == f"{SHELF}/{session}/{number}/paper.txt"

    def ended() -> bool:
        runs = guest.get(f"{place}/sessions/{session}/runs")["items"]
        return runs[0]["status"] == "completed"

    wait_for(ended, "the run that goes on")
    return path


def _begin(guest: Guest, project: Project) -> str:
    return str(guest.post(f"/projects/{project.id}/sessions")["id"])


def _called(guest: Guest, project: Project, tool: str, **params: Any) -> str:
    body = {"agent": "primary", "tool": tool, "params": params}
    return guest.ask("POST", f"/projects/{project.id}/tools/call", body).text


def _seen(guest: Guest, project: Project, path: str) -> str:
    """Return what somebody's agent finds, by command and by tool."""
    shell = _called(guest, project, "shell.bash", command=f"cat {path}; ls -R {SHELF}")
    texts = [shell, _called(guest, project, "kaged.upload", path=path)]
    texts.append(_called(guest, project, "file.read", path=path))
    texts.append(_called(guest, project, "search.grep", pattern="secret-"))
    return "\n".join(texts)


def test_a_file_is_seen_by_runs_for_the_person_who_gave_it_and_by_no_others(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    people = {name: guest(name) for name in ("ann", "bob")}
    secrets = {name: fresh("secret") for name in people}
    paths: dict[str, list[str]] = {}
    for name, person in people.items():
        session = _begin(person, shared)
        # The second file beside the first, and one of another session.
        paths[name] = [
            _give(person, shared, model, secrets[name], session),
            _give(person, shared, model, secrets[name], session),
            _give(person, shared, model, secrets[name], _begin(person, shared)),
        ]
        assert len(set(paths[name])) == 3
    for name, person in people.items():
        other = "bob" if name == "ann" else "ann"
        for path in paths[name]:
            command = _called(person, shared, "shell.bash", command=f"cat {path}")
            assert secrets[name] in command
            assert secrets[name] in _called(person, shared, "kaged.upload", path=path)
            writing = _called(person, shared, "shell.bash", command=f"echo x > {path}")
            assert "Read-only file system" in writing or "Permission denied" in writing
        for path in paths[other]:
            found = _seen(person, shared, path)
            assert secrets[other] not in found
            assert Path(path).parts[4] not in found.replace(path, ""), "not even that it exists"
        # Climbing out of one's own folder leads nowhere either.
        for path in (f"{SHELF}/../uploads/x/y", f"{SHELF}/../../../etc/passwd", "/etc/passwd"):
            assert "upload_not_found" in _called(person, shared, "kaged.upload", path=path)
        # In a group, where others read along, what was given in private is not there.
        group = guest(name, "group", "g-1")
        assert secrets[name] not in _seen(group, shared, paths[name][0])
    # The operator's runs see neither, and nothing of it is in the project.
    for path in (*paths["ann"], *paths["bob"]):
        assert shared.fail("kaged.upload", path=path)["code"] == "upload_not_found"
    texts = [one.read_bytes() for one in shared.root.rglob("*") if one.is_file()]
    assert not any(word.encode() in text for text in texts for word in secrets.values())


def test_in_a_group_a_file_is_for_runs_of_its_person_in_that_group(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, secret = guest("ann", "group", "g-7"), guest("bob", "group", "g-7"), fresh("secret")
    session = _begin(ann, shared)
    path = _give(ann, shared, model, secret, session)
    assert secret in _seen(ann, shared, path)
    assert secret not in _seen(bob, shared, path)
    assert secret not in _seen(guest("ann"), shared, path)
    assert secret not in _seen(guest("ann", "group", "g-8"), shared, path)
    # Bob goes on in the same session, and in a fork of his: it acts for him then.
    place = f"/projects/{shared.id}/sessions"
    fork = str(bob.post(f"{place}/{session}/fork")["session"]["id"])
    for where in (session, fork):
        word = fresh("read")
        model.play(word, call("shell.bash", command=f"cat {path}"), say("Read."))
        run = bob.post(f"{place}/{where}/message", {"text": f"{word} please"})["run_id"]

        def ended(where: str = where, run: str = run) -> list[dict[str, Any]]:
            found = bob.get(f"{place}/{where}/runs")["items"]
            return [one for one in found if one["id"] == run and one["status"] == "completed"]

        wait_for(ended, "the run")
        assert secret not in json.dumps(bob.get(f"{place}/{where}/entries?limit=500"))


def test_a_fork_reads_on_and_the_file_goes_with_its_session_after_a_restart_too(
    daemon: Daemon, shared: Project, model: ModelServer, guest: Come, tmp_path: Path
) -> None:
    ann, secret = guest("ann"), fresh("secret")
    session, kept = _begin(ann, shared), _begin(ann, shared)
    path = _give(ann, shared, model, secret, session)
    stays = _give(ann, shared, model, secret, kept)
    place = f"/projects/{shared.id}/sessions"
    fork = str(ann.post(f"{place}/{session}/fork")["session"]["id"])
    word = fresh("read")
    model.play(word, call("shell.bash", command=f"cat {path}"), say("Read."))
    ann.post(f"{place}/{fork}/message", {"text": f"{word} please"})
    wait_for(lambda: secret in json.dumps(ann.get(f"{place}/{fork}/entries?limit=500")))
    daemon.cli("backup", str(tmp_path / "all.tar.gz"))
    home = daemon.home / "uploads"
    assert home.stat().st_mode & 0o777 == 0o700
    daemon.kill()
    daemon.start()
    assert secret in _seen(guest("ann"), shared, path)
    bob = guest("bob")
    assert bob.refused("DELETE", f"{place}/{session}") == (404, "session_not_found")
    again = guest("ann")
    assert again.ask("DELETE", f"{place}/{session}").is_success
    assert secret not in _seen(again, shared, path)
    assert secret in _seen(again, shared, stays)
    assert not [*home.glob(f"*/{session}")]


def test_a_file_for_a_workflow_is_its_starters(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, secret, word = guest("ann"), guest("bob"), fresh("secret"), fresh("flow")
    model.play(word, say("Looked."))
    body = {"inputs": {"word": word}, "files": {"paper": _file(secret)}}
    run = ann.post(f"/projects/{shared.id}/workflows/look/runs", body)["run_id"]
    path = ann.get(f"/projects/{shared.id}/runs/{run}")["inputs"]["paper"]
    assert path.startswith(f"{SHELF}/{run}/")
    assert secret in _seen(ann, shared, path)
    assert secret not in _seen(bob, shared, path)


def test_the_operator_who_answers_for_a_person_gives_it_to_that_person(
    shared: Project, model: ModelServer, guest: Come
) -> None:
    ann, bob, secret, word = guest("ann"), guest("bob"), fresh("secret"), fresh("form")
    model.play(word, call("kaged.form", **FORM), say("Thanks."))
    session = _begin(ann, shared)
    place = f"/projects/{shared.id}"
    ann.post(f"{place}/sessions/{session}/message", {"text": f"{word} please"})
    wait_for(lambda: ann.get(f"{place}/interactions?status=pending")["items"])
    [asked] = ann.get(f"{place}/interactions?status=pending")["items"]
    given = shared.post(
        f"/interactions/{asked['request_id']}/answer",
        {"answers": {}, "files": {"paper": _file(secret)}},
    )
    path = given["answer"]["answers"]["paper"]
    assert secret in _seen(ann, shared, path)
    assert secret not in _seen(bob, shared, path)
