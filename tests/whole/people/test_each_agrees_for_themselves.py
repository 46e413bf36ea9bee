"""In a group's session one person's yes to later calls is no yes to those of another."""

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
from whole.harness.talk import fresh

Come = Callable[..., Guest]


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon that asks before calls with effects once a session has read an account."""
    look = operation("look", requires_auth=False)
    bridge = Bridge(module_path, "post", {"definitions": [capability("post.lines", look)]})
    config = f'{FRONT_END}[pipeline]\nuntrusted = "ask"\n{bridge.toml()}'
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    yield made
    made.close()


def _waiting(guest: Guest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = guest.get("/inbox?kind=call_approval&state=pending")["items"]
    return found


def _agree(guest: Guest, choice: str) -> str:
    (asked,) = wait_for(lambda: _waiting(guest), "the question")
    answer = {"digest": asked["digest"], "answer": {"choice": choice}}
    guest.post(f"/inbox/{asked['id']}/answer", answer)
    return str(asked["id"])


def test_a_yes_for_the_session_is_for_the_one_who_gave_it(
    daemon: Daemon, module_path: Path, model: ModelServer, guest: Come
) -> None:
    project = Project(module_path / "work", cage=CAGE, tools=SHELL)
    shutil.copy(CALLER, project.root / "caller.py")
    look = step("invoke", capability="post.lines", operation="look")
    project.write("look.json", json.dumps({"conversations": [[look]]}))
    daemon.load(project)
    ann, bob = guest("ann", "group", "g-1"), guest("bob", "group", "g-1")
    session = str(ann.post(f"/projects/{project.id}/sessions")["id"])
    place = f"/projects/{project.id}/sessions/{session}"

    def tell(who: Guest, *turns: dict[str, Any]) -> str:
        word = fresh(who.person.user)
        model.play(word, *turns, say("Done."))
        return str(who.post(f"{place}/message", {"text": f"{word} please"})["run_id"])

    def ended(run: str) -> bool:
        (one,) = [one for one in ann.get(f"{place}/runs")["items"] if one["id"] == run]
        return one["status"] == "completed"

    writes = [call("file.write", path=f"{n}.txt", content="new\n") for n in range(4)]
    looks = call("shell.bash", command="python3 caller.py look.json")
    first = tell(ann, looks, writes[0], writes[1])
    assert _waiting(bob) == []
    _agree(ann, "session")
    wait_for(lambda: ended(first), "the end of Ann's run")
    assert (project.root / "1.txt").exists()
    # Bob's calls in the same session wait for Bob.
    second = tell(bob, writes[2])
    (asked,) = wait_for(lambda: _waiting(bob), "the question to Bob")
    assert _waiting(ann) == []
    answer = {"digest": asked["digest"], "answer": {"choice": "yes"}}
    assert ann.refused("POST", f"/inbox/{asked['id']}/answer", answer)[0] == 404
    assert not (project.root / "2.txt").exists()
    _agree(bob, "no")
    wait_for(lambda: ended(second), "the end of Bob's run")
    assert not (project.root / "2.txt").exists()
    # What Ann agreed to holds for her next calls.
    third = tell(ann, writes[3])
    wait_for(lambda: ended(third), "the end of Ann's second run")
    assert (project.root / "3.txt").exists()
