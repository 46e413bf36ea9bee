"""Service accounts: programs with a token of their own, which are never the operator."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.people import Guest, Person
from whole.harness.policies import CAPABILITIES, PolicySite, spy
from whole.harness.project import Project
from whole.harness.talk import ENDED, fresh

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "http-api.md"
Enter = Callable[..., Guest]


@pytest.fixture
def enter(daemon: Daemon) -> Iterator[Enter]:
    """Yield who comes in with a token, over TCP as programs do."""
    made: list[Guest] = []

    def come(token: str, **said: str) -> Guest:
        made.append(Guest(daemon, Person(), token=token, **said))
        return made[-1]

    yield come
    for one in made:
        one.close()


def _create(daemon: Daemon, name: str, *options: str) -> str:
    """Make an account on the command line; returns its token."""
    done = daemon.cli("service-account", "create", name, *options)
    (token,) = done.out.split()
    assert token.startswith("kgsa_"), done
    return token


def _rows(daemon: Daemon) -> dict[str, dict[str, Any]]:
    listed = json.loads(daemon.cli("service-account", "list", "--json").out)
    return {one["name"]: one for one in listed}


def test_an_account_uses_its_projects_and_sees_its_own_only(
    daemon: Daemon, project: Project, module_path: Path, enter: Enter, model: ModelServer
) -> None:
    closed = daemon.load(Project(module_path / "closed"))
    token = _create(daemon, "nightly", "--role", "ci", "--project", project.id, "--expires", "2h")
    nightly = enter(token)
    told = nightly.get("/auth/whoami")
    assert (told["operator_id"], told["via"]) == ("service:nightly", "service_account")
    assert [one["id"] for one in nightly.get("/projects")["items"]] == [project.id]
    assert nightly.refused("GET", f"/projects/{closed.id}") == (404, "project_not_found")
    assert nightly.refused("GET", "/audit") == (403, "operator_only")

    word = fresh("nightly")
    model.play(word, say(f"{word} done."))
    place = f"/projects/{project.id}/sessions"
    session = nightly.post(place)["id"]
    nightly.post(f"{place}/{session}/message", {"text": f"{word} please"})

    def ended() -> list[Any]:
        runs = nightly.get(f"{place}/{session}/runs")["items"]
        return [one for one in runs if one["status"] in ENDED]

    (run,) = wait_for(ended, "the end of the run")
    assert (run["status"], run["operator_id"]) == ("completed", "service:nightly")
    other = enter(_create(daemon, "weekly"))
    assert other.get(place)["total"] == 0
    assert other.refused("GET", f"{place}/{session}") == (404, "session_not_found")
    # Over MCP it is the same one.
    listed = json.dumps(nightly.mcp(project.id, "resources/list", {}))
    assert f"kaged://sessions/{session}" in listed
    assert session not in json.dumps(other.mcp(project.id, "resources/list", {}))
    row = _rows(daemon)["nightly"]
    assert (row["state"], row["roles"], row["projects"]) == ("active", ["ci"], [project.id])
    (made,) = [
        one for one in daemon.audit("service_account.created") if one["data"]["name"] == "nightly"
    ]
    assert made["data"]["projects"] == [project.id]


def test_every_route_is_the_operators_or_in_the_table_for_an_account_as_well(
    daemon: Daemon, project: Project, enter: Enter
) -> None:
    part = PAGE.read_text(encoding="utf-8").partition("## People behind a front end")[2]
    found = re.findall(r"`([A-Z]+) (/[^`]*)` \|$", part.partition("\n## ")[0], re.MULTILINE)
    # Accounts lead no team, and only leads have invitations.
    allowed = {one for one in found if "/people/invitations" not in one[1]}
    document = daemon.client.get("/api/v1/openapi.json").json()
    program = enter(_create(daemon, "walker"))
    tried = 0
    for path, ways in document["paths"].items():
        for method in (way.upper() for way in ways):
            if path == "/api/v1/auth/launch" and method == "GET":
                continue
            filled = re.sub(r"\{\w+\}", "1", path.replace("{project_id}", project.id))
            got = program.raw(method, filled)
            code = got.json()["error"]["code"] if got.is_error else ""
            assert (code == "operator_only") is ((method, path) not in allowed), (method, path)
            tried += 1
    assert tried > 100


def test_a_token_that_does_not_count_is_refused_with_its_reason_and_on_record(
    daemon: Daemon, enter: Enter
) -> None:
    good = _create(daemon, "gone", "--expires", "30m")
    assert enter(good).get("/auth/whoami")["operator_id"] == "service:gone"
    wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
    for token in (wrong, good[:-1], "kgsa_", f"{good}x", good.replace("kgsa_", "kgsa_0", 1)):
        assert enter(token).refused("GET", "/auth/whoami") == (401, "unauthenticated"), token
    daemon.cli("service-account", "revoke", "gone")
    assert enter(good).refused("GET", "/auth/whoami") == (401, "token_revoked")
    # Who has not the whole token does not learn that there was one.
    assert enter(wrong).refused("GET", "/auth/whoami") == (401, "unauthenticated")
    assert _rows(daemon)["gone"]["state"] == "revoked"
    again = daemon.cli("service-account", "create", "gone", code=None)
    assert again.code != 0
    assert "service_account_exists" in again.err + again.out
    unknown = daemon.cli("service-account", "revoke", "nobody", code=None)
    assert "service_account_not_found" in unknown.err + unknown.out
    reasons = {one["data"]["reason"] for one in daemon.audit("access.denied")}
    assert {"token_revoked", "unauthenticated"} <= reasons
    (row,) = [
        one for one in daemon.audit("service_account.revoked") if one["data"]["name"] == "gone"
    ]
    assert row["data"]["caller"]


def test_a_token_ends_by_itself_and_after_a_restart_all_is_as_it_was(
    daemon: Daemon, enter: Enter
) -> None:
    brief = daemon.post("/service-accounts", {"name": "brief", "expires_in_s": 1})["token"]
    lasting, taken = _create(daemon, "lasting"), _create(daemon, "taken-back")
    daemon.cli("service-account", "revoke", "taken-back")
    over = (401, "token_expired")

    def expired() -> bool:
        got = enter(brief).ask("GET", "/auth/whoami")
        code = got.json()["error"]["code"] if got.is_error else ""
        return (got.status_code, code) == over

    wait_for(expired, "the end of the token")
    daemon.restart()
    assert enter(lasting).get("/auth/whoami")["operator_id"] == "service:lasting"
    assert enter(brief).refused("GET", "/auth/whoami") == over
    assert enter(taken).refused("GET", "/auth/whoami") == (401, "token_revoked")
    # Nothing that the daemon keeps holds a token.
    for file in daemon.home.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert lasting.encode() not in data, file
            assert lasting.rpartition("_")[2].encode() not in data, file


def test_an_account_speaks_for_nobody_and_nobody_is_named_like_one(
    daemon: Daemon, enter: Enter, guest: Callable[..., Guest]
) -> None:
    token = _create(daemon, "speaker")
    told = enter(token, X_Kaged_User_Id="ann", X_Kaged_Chat_Type="private").get("/auth/whoami")
    assert told["operator_id"] == "service:speaker"
    refusal = guest("service:speaker").refused("GET", "/auth/whoami")
    assert refusal == (403, "access_denied")
    assert enter(token).refused("POST", "/service-accounts", {"name": "x"})[1] == "operator_only"


def test_a_typing_error_makes_no_account(daemon: Daemon) -> None:
    for options, said in (
        (("--project", "nowhere"), "project_not_found"),
        (("--expires", "soon"), "30d"),
        (("--operation", "Mail box"), "operations"),
    ):
        done = daemon.cli("service-account", "create", "wrong", *options, code=None)
        assert done.code != 0, options
        assert said in done.err + done.out, done
    assert "wrong" not in _rows(daemon)


def test_policies_see_a_service_with_its_roles(
    module_path: Path, model: ModelServer, tmp_path: Path
) -> None:
    site = PolicySite(tmp_path / "policies")
    daemon = Daemon(tmp_path / "h", config=site.config_toml(), local=model.local_toml())
    daemon.start()
    try:
        site.daemon = daemon
        wait_for(site.loads)
        project = daemon.load(Project(tmp_path / "p"))
        project.write("a.txt", "one\n")
        site.put(spy("spy", *CAPABILITIES))
        token = _create(daemon, "ci", "--role", "builder", "--team", "infra")
        program = Guest(daemon, Person(), token=token)
        body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
        program.post(f"/projects/{project.id}/tools/call", body)
        program.close()
        subject = site.view()["security"]["subject"]
        assert (subject["id"], subject["type"]) == ("service:ci", "service")
        assert (subject["roles"], subject["teams"]) == (["builder"], ["infra"])
        with sqlite3.connect(next(daemon.home.rglob("*.db"))) as conn:
            ((digest,),) = conn.execute("SELECT digest FROM service_account_tokens").fetchall()
        assert re.fullmatch(r"[0-9a-f]{64}", digest)
    finally:
        daemon.close()


def test_there_are_only_so_many_those_revoked_among_them(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "h")
    daemon.start()
    try:
        for number in range(200):
            daemon.post("/service-accounts", {"name": f"n{number}"})
        daemon.ask("DELETE", "/service-accounts/n0")
        refused = daemon.error("POST", "/service-accounts", {"name": "one-more"})
        assert (refused["status"], refused["code"]) == (409, "too_many_service_accounts")
        assert len(daemon.get("/service-accounts")["items"]) == 200
    finally:
        daemon.close()
