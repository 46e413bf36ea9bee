"""Invitations: people without any other sign-in come in as whom the operator named, once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.people import Guest, Person
from whole.harness.project import Project

PEOPLE = """
[people.ann]
roles = ["editor"]
teams = ["docs"]
projects = ["{project}"]

[people.bob]
projects = []
"""
Enter = Callable[..., Guest]


@pytest.fixture(scope="module")
def project(module_path: Path) -> Project:
    return Project(module_path / "open-house")


@pytest.fixture(scope="module")
def daemon(module_path: Path, model: ModelServer, project: Project) -> Iterator[Daemon]:
    made = Daemon(
        module_path / "h",
        config=PEOPLE.format(project=project.root.name),
        local=model.local_toml(),
    )
    made.start()
    made.load(project)
    made.load(Project(module_path / "closed"))
    yield made
    made.close()


@pytest.fixture
def enter(daemon: Daemon) -> Iterator[Enter]:
    made: list[Guest] = []

    def come(token: str, **said: str) -> Guest:
        made.append(Guest(daemon, Person(), token=token, **said))
        return made[-1]

    yield come
    for one in made:
        one.close()


@pytest.fixture
def browser(daemon: Daemon) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=daemon.url, trust_env=False, timeout=60) as made:
        Daemon.spoken += 1
        yield made


def invite(daemon: Daemon, person: str, *options: str) -> dict[str, Any]:
    made = json.loads(daemon.cli("people", "invite", person, *options, "--json").out)
    assert made["state"] == "open"
    return dict(made)


def trade(daemon: Daemon, code: str) -> httpx.Response:
    """Accept an invitation as a program does."""
    url = f"{daemon.url}/api/v1/auth/invitation/token"
    return httpx.post(url, data={"code": code}, timeout=60, trust_env=False)


def listed(daemon: Daemon, id_: str) -> dict[str, Any]:
    found = json.loads(daemon.cli("people", "list", "--json").out)
    return next(one for one in found if one["id"] == id_)


def rows(daemon: Daemon, id_: str) -> list[str]:
    names = ("invitation.created", "invitation.accepted", "invitation.revoked")
    return [one["event"] for one in daemon.audit(*names) if one["data"]["id"] == id_]


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_who_accepts_is_whom_the_operator_named_with_what_people_says(
    daemon: Daemon, project: Project, enter: Enter
) -> None:
    made = invite(daemon, "ann")
    got = trade(daemon, made["code"])
    assert got.status_code == 200, got.text
    assert got.json()["person_id"] == "ann"
    ann = enter(got.json()["token"])
    told = ann.get("/auth/whoami")
    assert (told["operator_id"], told["via"], told["operator"]) == ("ann", "invitation", False)
    assert (told["roles"], told["teams"]) == (["editor"], ["docs"])
    assert [one["id"] for one in ann.get("/projects")["items"]] == [project.id]
    assert ann.refused("GET", "/people/invitations") == (403, "operator_only")
    assert ann.refused("POST", "/people/invitations", {"person_id": "cy"}) == (403, "operator_only")
    # The second use, by anybody, and a code that is nearly right.
    assert code_of(trade(daemon, made["code"])) == (403, "invitation_invalid")
    near = made["code"][:-1] + ("A" if made["code"][-1] != "A" else "B")
    for wrong in (near, "kgin_", got.json()["token"], "x"):
        assert code_of(trade(daemon, wrong)) == (403, "invitation_invalid")
    # A second person: their things are their own.
    bob = enter(trade(daemon, invite(daemon, "bob")["code"]).json()["token"])
    assert bob.get("/auth/whoami")["operator_id"] == "bob"
    assert bob.get("/projects")["items"] == []
    session = ann.post(f"/projects/{project.id}/sessions")["id"]
    assert bob.refused("GET", f"/projects/{project.id}/sessions/{session}")[0] == 404
    assert "kaged://" in json.dumps(ann.mcp(project.id, "resources/list", {}))
    # Headers of a front end name nobody for somebody who is known already.
    assert enter(ann.token, X_Kaged_User_Id="bob").get("/auth/whoami")["operator_id"] == "ann"
    assert rows(daemon, made["id"]) == ["invitation.created", "invitation.accepted"]
    row = listed(daemon, made["id"])
    assert (row["state"], row["person_id"]) == ("accepted", "ann")
    for secret in (made["code"], ann.token):
        assert secret not in json.dumps(daemon.audit()) + daemon.log() + json.dumps(row)


def test_a_browser_looks_without_using_it_up_and_comes_in_once(
    daemon: Daemon, browser: httpx.Client
) -> None:
    made = invite(daemon, "ann")
    place = made["url"].removeprefix(daemon.url.rstrip("/"))
    # Whoever shows a preview of the link uses nothing up.
    first, page = browser.get(place, timeout=60), browser.get(place, timeout=60)
    assert first.text == page.text
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert "You are invited to kaged as <b>ann</b>" in page.text
    assert "set-cookie" not in page.headers
    [code] = re.findall(r'name="code" value="(.+?)"', page.text)
    foreign = {"Origin": "https://elsewhere.example"}
    form, path = {"code": code}, "/api/v1/auth/invitation"
    assert code_of(browser.post(path, data=form, headers=foreign, timeout=60)) == (
        403,
        "origin_not_allowed",
    )
    own = {"Origin": daemon.url.rstrip("/")}
    done = browser.post(path, data=form, headers=own, timeout=60)
    assert done.status_code == 303, done.text
    assert "HttpOnly" in done.headers["set-cookie"]
    assert "samesite=strict" in done.headers["set-cookie"].lower()
    assert browser.get("/api/v1/auth/whoami", timeout=60).json()["operator_id"] == "ann"
    # A page elsewhere cannot use the cookie, and the link is used up.
    sites = {"Sec-Fetch-Site": "cross-site"}
    assert browser.get("/api/v1/auth/whoami", headers=sites, timeout=60).is_error
    assert code_of(browser.get(place, timeout=60)) == (403, "invitation_invalid")
    assert code_of(browser.post(path, data=form, headers=own, timeout=60))[0] == 403
    # Signing out ends the access itself, not only the cookie here.
    cookie = browser.cookies["kaged_session"]
    assert browser.delete("/api/v1/auth/session", headers=own, timeout=60).status_code == 204
    browser.cookies.set("kaged_session", cookie)
    assert code_of(browser.get("/api/v1/auth/whoami", timeout=60)) == (401, "unauthenticated")
    assert listed(daemon, made["id"])["state"] == "revoked"


def test_the_command_line_signs_in_with_an_invitation_and_out_again(
    daemon: Daemon, module_path: Path, project: Project
) -> None:
    env = {"XDG_STATE_HOME": str(module_path / "anns"), "KAGED_HOME": str(module_path / "annshome")}
    made = invite(daemon, "ann", "--access", "2h")
    done = daemon.cli("login", daemon.url, "--invitation", made["url"], env=env)
    assert "as ann" in done.out + done.err
    remote = {**env, "KAGED_URL": daemon.url}
    shown = json.loads(daemon.cli("project", "list", "--json", env=remote).out)
    assert project.id in json.dumps(shown)
    again = daemon.cli("login", daemon.url, "--invitation", made["code"], env=env, code=None)
    assert again.code != 0
    assert "used already" in again.err
    daemon.cli("logout", daemon.url, env=env)
    assert listed(daemon, made["id"])["state"] == "revoked"


def test_a_revoked_or_expired_one_lets_nobody_in_also_after_a_restart(
    daemon: Daemon, enter: Enter, project: Project
) -> None:
    unused, used = invite(daemon, "ann"), invite(daemon, "ann")
    daemon.cli("people", "sign-out", "ann")  # who was let in before this test
    ann = enter(trade(daemon, used["code"]).json()["token"])
    for one in (unused, used):
        daemon.cli("people", "revoke", one["id"])
        assert listed(daemon, one["id"])["state"] == "revoked"
    assert code_of(trade(daemon, unused["code"])) == (403, "invitation_invalid")
    assert ann.refused("GET", "/auth/whoami") == (401, "unauthenticated")
    assert rows(daemon, used["id"])[-1] == "invitation.revoked"
    signed_out, bobs = (trade(daemon, invite(daemon, one)["code"]) for one in ("ann", "bob"))
    assert "1 invitations" in daemon.cli("people", "sign-out", "ann").out
    assert enter(signed_out.json()["token"]).refused("GET", "/auth/whoami")[0] == 401
    assert enter(bobs.json()["token"]).get("/auth/whoami")["operator_id"] == "bob"
    missing = daemon.error("DELETE", "/people/invitations/01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert missing["code"] == "invitation_not_found"
    short = daemon.post("/people/invitations", {"person_id": "ann", "expires_in_s": 1})
    wait_for(lambda: listed(daemon, short["id"])["state"] == "expired", "its end")
    assert code_of(trade(daemon, short["code"])) == (403, "invitation_invalid")
    kept, waiting = invite(daemon, "ann"), invite(daemon, "ann")
    token = trade(daemon, kept["code"]).json()["token"]
    daemon.kill()
    daemon.start()
    assert enter(token).get("/auth/whoami")["operator_id"] == "ann"
    assert trade(daemon, waiting["code"]).status_code == 200
    for one in (unused, used, short, kept):
        assert code_of(trade(daemon, one["code"])) == (403, "invitation_invalid")
    assert enter(ann.token).refused("GET", "/auth/whoami") == (401, "unauthenticated")


def test_nobody_is_invited_whom_people_does_not_let_in(daemon: Daemon) -> None:
    for person, words in (
        ("cy", "[people] names others only"),
        (daemon.get("/auth/whoami")["operator_id"], "is the operator"),
        ("service:nightly", "no id of a person"),
        ("no body", "no id of a person"),
    ):
        done = daemon.cli("people", "invite", person, code=None)
        assert done.code != 0
        assert "invitation_refused" in done.err
        assert words in done.err
    made = [daemon.post("/people/invitations", {"person_id": "bob"}) for _ in range(20)]
    refused = daemon.error("POST", "/people/invitations", {"person_id": "bob"})
    assert refused["code"] == "too_many_invitations"
    daemon.cli("people", "revoke", made[-1]["id"])
    assert invite(daemon, "bob")["state"] == "open"
    invited = {one["data"]["person_id"] for one in daemon.audit("invitation.created")}
    assert invited <= {"ann", "bob"}
