"""A run that a script starts acts for whom the run acted that the script was told of."""

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
from whole.harness.scripts import Scripts, command
from whole.harness.services import CAGE, CALLER, Bridge, capability, operation
from whole.harness.talk import fresh

Come = Callable[..., Guest]
LOOK = {"method": "capability.invoke", "params": {"capability": "post.box", "operation": "look"}}
ECHO = """
kage.request_capabilities({'session_write'})
local count = 0
kage.on('agent_end', function()
  count = count + 1
  if count % 2 == 1 then kage.send_message('%s') end
end)
"""


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer) -> Iterator[Daemon]:
    """Yield a daemon with a front end and a bridge that says who called."""
    look = operation("look", requires_auth=False)
    bridge = Bridge(module_path, "post", {"definitions": [capability("post.box", look)]})
    made = Daemon(module_path / "h", config=f"{FRONT_END}{bridge.toml()}", local=model.local_toml())
    made.start()
    yield made
    made.close()


@pytest.fixture
def shared(daemon: Daemon, tmp_path: Path) -> Project:
    """Return a project whose agent runs commands."""
    made = Project(tmp_path / "work")
    made.describe(cage=CAGE)
    made.write("job.json", json.dumps({"conversations": [[LOOK]]}))
    shutil.copy(CALLER, made.root / "caller.py")
    return daemon.load(made)


@pytest.fixture
def scripts(daemon: Daemon, shared: Project) -> Iterator[Scripts]:
    """Yield the scripts of the project."""
    made = Scripts(daemon, shared)
    yield made
    made.close()


def _ended(ask: Callable[[str], Any], session: str, count: int) -> list[dict[str, Any]]:
    def look() -> list[dict[str, Any]]:
        found = ask(f"/sessions/{session}/runs")["items"]
        done = [one for one in found if one["status"] in {"completed", "failed"}]
        return done if len(done) == count else []

    return wait_for(look, "the runs")


def _invoked(daemon: Daemon, session: str) -> list[tuple[Any, ...]]:
    rows = [one["data"] for one in daemon.audit("capability_invoke")]
    names = ("user_id", "chat_type", "chat_id", "outcome")
    mine = [one for one in rows if one.get("session_key") == session]
    return [tuple(one.get(name) for name in names) for one in mine]


def test_what_a_script_starts_acts_for_the_person_of_the_run_before_it(
    daemon: Daemon, shared: Project, scripts: Scripts, model: ModelServer, guest: Come
) -> None:
    def echoing() -> str:
        """Load the script anew, with words of its own; returns what to say."""
        word, echoed = fresh("hello"), fresh("echo")
        model.play(word, say("Hello."))
        model.play(echoed, call("shell.bash", command="python3 caller.py job.json"), say("Looked."))
        scripts.load(echo=ECHO.replace("%s", f"{echoed} please"))
        return word

    scripts.grant(echo=["session_write"])
    chats = {
        "ann": ("private", "private-ann"),
        "bob": ("group", "g-1"),
        "cid": ("private", "private-cid"),
    }
    sessions = {}
    for name, chat in chats.items():
        person = guest(name, *chat)
        place = f"/projects/{shared.id}"
        session = sessions[name] = str(person.post(f"{place}/sessions")["id"])
        person.post(f"{place}/sessions/{session}/message", {"text": f"{echoing()} there"})
        runs = _ended(lambda path, of=person, at=place: of.get(f"{at}{path}"), session, 2)
        assert [one["status"] for one in runs] == ["completed", "completed"], runs
        assert [one["operator_id"] for one in runs] == [name, name]
        [claims] = _invoked(daemon, session)
        assert claims[:3] == (name, *chat)
        # What it took is counted as theirs.
        mine = person.get("/usage?by=person")["items"]
        assert [(one["name"], one["runs"]) for one in mine] == [(name, 2)]
    # And the operator's own is the operator's.
    own = str(shared.post("/sessions", {})["id"])
    shared.post(f"/sessions/{own}/message", {"text": f"{echoing()} there"})
    runs = _ended(shared.get, own, 2)
    assert [one["operator_id"] for one in runs] == ["operator", "operator"]
    [claims] = _invoked(daemon, own)
    assert claims[:2] == ("operator", "private")
    # A script's message in a person's session does not make that the operator's current one.
    assert shared.get("/sessions/tree")["current"] in {None, own}


LATER = """
kage.request_capabilities({'session_write'})
local first = true
kage.on('agent_end', function()
  if first then
    first = false
    kage.defer(function() kage.send_message('%s') end, 300)
  end
end)
"""


def test_what_a_script_does_later_is_about_the_session_that_it_was_told_of_before(
    shared: Project, scripts: Scripts, model: ModelServer, guest: Come
) -> None:
    """Bob's session is the one used last by then, and the project has no current one."""
    later = fresh("later")
    model.play(later, say(f"Secret of Ann {later}."))
    scripts.grant(later=["session_write"])
    scripts.load(later=LATER.replace("%s", f"{later} please"))
    place = f"/projects/{shared.id}"
    sessions = {}
    for name in ("ann", "bob"):
        person, word = guest(name), fresh("hello")
        model.play(word, say("Hello."))
        session = sessions[name] = str(person.post(f"{place}/sessions")["id"])
        person.post(f"{place}/sessions/{session}/message", {"text": f"{word} there"})
    runs = _ended(shared.get, sessions["ann"], 2)
    assert [one["operator_id"] for one in runs] == ["ann", "ann"]
    runs = _ended(shared.get, sessions["bob"], 1)
    assert later not in json.dumps(guest("bob").get(f"{place}/sessions/{sessions['bob']}/entries"))


def test_a_script_that_was_told_of_no_session_reaches_none_of_a_persons(
    shared: Project, scripts: Scripts, model: ModelServer, guest: Come
) -> None:
    word, spoken = fresh("hello"), fresh("spoken")
    model.play(word, say("Hello."))
    place = f"/projects/{shared.id}/sessions"
    ann = guest("ann")
    session = str(ann.post(place)["id"])
    ann.post(f"{place}/{session}/message", {"text": f"{word} there"})
    _ended(shared.get, session, 1)
    scripts.grant(probe=["session_write"])
    code = f"kage.send_message('{spoken}') return #kage.session.entries()"
    scripts.load(probe="kage.request_capabilities({'session_write'})\n" + command("eval", code))
    assert scripts.value("eval") == {"value": 0}
    assert spoken not in json.dumps(shared.get(f"/sessions/{session}/entries"))
    assert shared.get(f"/sessions/{session}/runs")["total"] == 1
