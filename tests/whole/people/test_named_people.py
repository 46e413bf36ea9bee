"""`[people]` of the operator: who may use which project and operation, and what policies see."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest
from whole.harness.policies import CAPABILITIES, PolicySite, changes, spy
from whole.harness.project import Project
from whole.harness.services import CAGE, CALLER, SHELL, Bridge, capability, operation
from whole.harness.talk import ENDED, fresh

Come = Callable[..., Guest]
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"

HEADERS = """
[auth.front_end]
roles = "X-Kaged-Roles"
teams = "X-Kaged-Teams"
claims = { department = "X-Department" }
"""
PEOPLE = """
[people.ann]
roles = ["lead"]
teams = ["blue"]
operations = ["post.box.*"]
[people.bob]
projects = ["open-house"]
operations = ["post.box.look"]
[people.cy]
projects = []
"""


@pytest.fixture(scope="module")
def site(module_path: Path) -> PolicySite:
    return PolicySite(module_path / "policies")


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, site: PolicySite) -> Iterator[Daemon]:
    """Yield a daemon whose operator names people, with a policy file and a bridge."""
    ops = [operation("look", requires_auth=False), operation("send", requires_auth=False)]
    bridge = Bridge(module_path, "post", {"definitions": [capability("post.box", *ops)]})
    config = f"{FRONT_END}{HEADERS}{PEOPLE}{site.config_toml()}{bridge.toml()}"
    made = Daemon(module_path / "h", config=config, local=model.local_toml())
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def closed(daemon: Daemon, module_path: Path) -> Project:
    """Return a project that Bob may not use."""
    return daemon.load(Project(module_path / "closed-house", cage=CAGE, tools=SHELL))


@pytest.fixture(scope="module")
def opened(daemon: Daemon, module_path: Path) -> Project:
    """Return the project that Bob may use."""
    return daemon.load(Project(module_path / "open-house", cage=CAGE, tools=SHELL))


def _project_routes() -> list[tuple[str, str]]:
    part = PAGE.read_text(encoding="utf-8").partition("## People behind a front end")[2]
    rows = re.findall(r"`([A-Z]+) (/[^`]*)` \|$", part.partition("\n## ")[0], re.MULTILINE)
    return [(way, path) for way, path in rows if "{project_id}" in path and way != "WS"]


def test_a_project_that_is_not_on_the_list_does_not_exist_by_any_route(
    daemon: Daemon, opened: Project, closed: Project, guest: Come
) -> None:
    routes = _project_routes()
    assert len(routes) > 30
    bob, cy = guest("bob"), guest("cy")
    unknown = re.sub(r".$", "0" if closed.id[-1] != "0" else "1", closed.id)
    for method, path in routes:
        filled = re.sub(r"\{\w+\}", "x1", path.replace("{project_id}", closed.id))
        for stranger in (bob, cy):
            got = stranger.raw(method, filled)
            assert got.status_code == 404, (method, path, got.text)
            error = got.json()["error"]
            assert error["code"] == "project_not_found", (method, path)
        # It is answered like one that nobody has.
        twin = bob.raw(method, filled.replace(closed.id, unknown)).json()["error"]
        assert twin["message"].replace(unknown, closed.id) == error["message"]
    assert [one["id"] for one in bob.get("/projects")["items"]] == [opened.id]
    assert cy.get("/projects")["items"] == []
    assert {closed.id, opened.id} <= {one["id"] for one in guest("ann").get("/projects")["items"]}
    assert bob.get(f"/projects/{opened.id}")["id"] == opened.id
    rows = [one["data"] for one in daemon.audit("access.denied")]
    assert "project_not_allowed" in {one["reason"] for one in rows}


def test_who_is_not_named_may_use_nothing_once_somebody_is(opened: Project, guest: Come) -> None:
    eve = guest("eve")
    assert eve.get("/projects")["items"] == []
    refusal = eve.refused("POST", f"/projects/{opened.id}/sessions", {})
    assert refusal == (404, "project_not_found")
    # The operator is not one of the people.
    assert guest("").get(f"/projects/{opened.id}")["id"] == opened.id


def _subject(site: PolicySite) -> dict[str, Any]:
    found: dict[str, Any] = site.seen("spy")[-1]["extensions"]["security"]["subject"]
    return found


def _use(guest: Guest, project: Project) -> None:
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    guest.post(f"/projects/{project.id}/tools/call", body)


def test_a_policy_sees_the_roles_teams_and_claims_of_each_person(
    site: PolicySite, opened: Project, guest: Come, model: ModelServer
) -> None:
    opened.write("a.txt", "one\n")
    site.put(spy("spy", *CAPABILITIES))
    said = {"X_Kaged_Roles": "dev, r%C3%A9viseur", "X_Department": "R&D"}
    _use(guest("ann", **said), opened)
    ann = _subject(site)
    _use(guest("bob", X_Kaged_Teams="red"), opened)
    bob = _subject(site)
    assert (ann["id"], ann["type"], sorted(ann["roles"]), ann["teams"], ann["claims"]) == (
        "ann", "user", ["dev", "lead", "réviseur"], ["blue"], {"department": "R&D"},
    )  # fmt: skip
    assert (bob["id"], bob["roles"], bob["teams"], bob["claims"]) == ("bob", [], ["red"], {})

    # The same in a run of a session, whose calls come from an agent and not from a request.
    word = fresh("roles")
    model.play(word, call("file.read", path="a.txt"), say(f"{word} done."))
    person = guest("ann", **said)
    session = person.post(f"/projects/{opened.id}/sessions")["id"]
    place = f"/projects/{opened.id}/sessions/{session}"
    person.post(f"{place}/message", {"text": f"{word} please"})
    wait_for(lambda: [r for r in person.get(f"{place}/runs")["items"] if r["status"] in ENDED])
    assert {key: _subject(site)[key] for key in ("id", "roles", "claims")} == {
        "id": "ann", "roles": ann["roles"], "claims": ann["claims"],
    }  # fmt: skip
    # What was not agreed on is not believed.
    _use(guest("bob", X_Roles="lead", X_Kaged_Claims="department=R&D"), opened)
    assert (_subject(site)["roles"], _subject(site)["claims"]) == ([], {})


PARTS = {"read_roles": "roles", "read_teams": "teams", "read_claims": "claims"}


@whole("EX-CAP-03", "EX-CAP-04", "EX-CAP-05", "EX-FILT-09")
def test_each_capability_shows_a_policy_its_part_of_the_person_and_no_other(
    site: PolicySite, opened: Project, guest: Come
) -> None:
    opened.write("a.txt", "one\n")
    labels = changes("security=grown(ext, 'pii')", "append_labels", name="marks", priority=1)
    both = spy("both", "read_roles", "read_labels")
    site.put(labels, both, *(spy(one, one) for one in PARTS), spy("all", *CAPABILITIES))
    _use(guest("ann", X_Kaged_Roles="dev", X_Department="research-4711"), opened)
    ann = site.view("all")["security"]["subject"]
    assert {part: ann[part] for part in PARTS.values()} == {
        "roles": ["dev", "lead"], "teams": ["blue"], "claims": {"department": "research-4711"},
    }  # fmt: skip
    for by, part in {**PARTS, "both": "roles"}.items():
        (seen,) = site.seen(by)
        shown = seen["extensions"]["security"]
        for other in PARTS.values():
            wanted = ann[other] if other == part else type(ann[other])()
            assert shown["subject"][other] == wanted, (by, other)
        assert (shown["subject"]["id"], shown["subject"]["type"]) == ("ann", "user")
        assert shown["labels"] == (["pii"] if by == "both" else [])
        # Nor is it anywhere else in what the policy is given.
        assert ("research-4711" in json.dumps(seen)) is (part == "claims"), by
        assert ('"blue"' in json.dumps(seen)) is (part == "teams"), by


@pytest.mark.parametrize(
    "said",
    [
        {"X_Kaged_Roles": ",".join(f"r{n}" for n in range(65))},
        {"X_Kaged_Roles": "a,,b"},
        {"X_Kaged_Teams": "x" * 129},
        {"X_Kaged_Roles": "a%2Cb"},
        {"X_Department": "y" * 513},
        {"X_Department": "a%00b"},
    ],
)
def test_headers_that_make_no_sense_refuse_the_request(guest: Come, said: dict[str, str]) -> None:
    assert guest("ann", **said).refused("GET", "/auth/whoami") == (403, "access_denied")


def _invoke(guest: Guest, project: Project, name: str) -> dict[str, Any]:
    """Invoke an operation from a command in the agent's cage; returns the answer."""
    step = {"method": "capability.invoke", "params": {"capability": "post.box", "operation": name}}
    project.write("job.json", json.dumps({"conversations": [[step]]}))
    shutil.copy(CALLER, project.root / "caller.py")
    params = {"command": "python3 caller.py job.json"}
    body = {"agent": "primary", "tool": "shell.bash", "params": params}
    done = guest.post(f"/projects/{project.id}/tools/call", body)["result"]
    assert done["exit_code"] == 0, done
    answer: dict[str, Any] = json.loads(done["stdout"])[0][0]
    return answer


def test_an_operation_outside_the_list_is_refused_and_on_record(
    daemon: Daemon, opened: Project, guest: Come
) -> None:
    ann, bob = guest("ann"), guest("bob")
    for person, name in ((ann, "look"), (ann, "send"), (bob, "look")):
        assert "result" in _invoke(person, opened, name), (person.person, name)
    refused = _invoke(bob, opened, "send")
    assert refused["error"]["data"]["code"] == "capability_access_denied"
    rows = [one["data"] for one in daemon.audit("capability_invoke")]
    told = [(one["user_id"], one["operation"], one["outcome"]) for one in rows]
    assert ("bob", "send", "denied") in told, told
    assert ("bob", "look", "ok") in told
    (row,) = [one for one in rows if (one["user_id"], one["operation"]) == ("bob", "send")]
    assert row["error.code"] == "capability_access_denied", row


def test_a_changed_list_counts_from_the_next_request_on_and_a_faulty_one_changes_nothing(
    daemon: Daemon, closed: Project, opened: Project, guest: Come
) -> None:
    bob, place = guest("bob"), f"/projects/{closed.id}"
    kept = (daemon.home / "config.toml").read_text(encoding="utf-8")

    def reload(text: str) -> list[str]:
        before = len(daemon.audit("daemon.config_reloaded"))
        daemon.write("config.toml", text)
        os.kill(daemon.pid, signal.SIGHUP)
        wait_for(lambda: len(daemon.audit("daemon.config_reloaded")) > before)
        problems: list[str] = daemon.audit("daemon.config_reloaded")[-1]["data"]["problems"]
        return problems

    assert bob.refused("GET", place) == (404, "project_not_found")
    try:
        reload(kept.replace('projects = ["open-house"]', f'projects = ["{closed.id}"]'))
        assert bob.get(place)["id"] == closed.id
        assert bob.refused("GET", f"/projects/{opened.id}") == (404, "project_not_found")
        # A list that nobody can read leaves the one before in force.
        (problem,) = reload(kept.replace('projects = ["open-house"]', "project = 7"))
        line = kept.splitlines().index('projects = ["open-house"]') + 1
        assert f":{line}:" in problem, problem
        assert "people.bob.project" in problem
        assert "projects" in problem
        assert bob.get(place)["id"] == closed.id
        # A project that nobody has is named with its line.
        reload(kept.replace('"open-house"', '"open-hose"'))
        rows = {one["id"]: one for one in daemon.get("/doctor")["rows"]}
        assert rows["people"]["status"] == "warn"
        assert f"config.toml:{line}: people.bob.projects: 'open-hose'" in rows["people"]["cause"]
    finally:
        reload(kept)
    assert bob.get(f"/projects/{opened.id}")["id"] == opened.id


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[people.ann]\nprojcts = []\n", "people.ann.projcts"),
        ('[people.ann]\nroles = "lead"\n', "people.ann.roles"),
        ('[people.ann]\noperations = ["Post box"]\n', "people.ann.operations[0]"),
        ('[people."a b"]\nroles = []\n', 'people."a b"'),
        ('[people."service:ci"]\nroles = []\n', 'people."service:ci"'),
        ('[auth.front_end]\nroles = "Authorization"\n', "auth.front_end.roles"),
        ('[auth.front_end]\nrole = "X-R"\n', "auth.front_end.role"),
    ],
)
def test_a_daemon_does_not_start_on_a_list_that_it_cannot_read(
    tmp_path: Path, text: str, named: str
) -> None:
    daemon = Daemon(tmp_path / "h", config=text)
    said = daemon.start(expect=False)
    told = json.dumps(said, ensure_ascii=False) + daemon.log()
    assert named in told.replace('\\"', '"'), told
    daemon.close()
