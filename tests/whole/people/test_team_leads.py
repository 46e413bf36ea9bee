"""Leads of teams: each invites people into their own team, with what the operator wrote for it."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.project import Project

TEAMS = """
[people.ann]
[people.ben]
[people.bob]
teams = ["support"]

[teams.support]
leads = ["ann"]
roles = ["helper"]
projects = ["helpdesk"]

[teams.ops]
leads = ["ben"]
projects = ["machines"]
operations = ["post.box.*"]

[teams.idle]
leads = ["ann"]
"""
PLACE = "/people/invitations"
REFUSED = (409, "invitation_refused")
NOT_FOUND = (404, "invitation_not_found")
OPERATOR_ONLY = (403, "operator_only")


class Team:
    """The daemon, and the people who come in."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self._made: list[Guest] = []
        self.ann, self.ben, self.bob = (self.person(one) for one in ("ann", "ben", "bob"))

    def person(self, name: str, chat: str = "private") -> Guest:
        """Return somebody whom the front end names."""
        self._made.append(Guest(self.daemon, Person(name, chat, f"{chat}-{name}")))
        return self._made[-1]

    def enter(self, code: str) -> Guest:
        """Accept an invitation as a program does, and come in."""
        got = self.trade(code)
        assert got.status_code == 200, got.text
        return self.holder(got.json()["token"])

    def holder(self, token: str) -> Guest:
        self._made.append(Guest(self.daemon, Person(), token=token))
        return self._made[-1]

    def trade(self, code: str) -> httpx.Response:
        url = f"{self.daemon.url}/api/v1/auth/invitation/token"
        return httpx.post(url, data={"code": code}, timeout=60, trust_env=False)

    def close(self) -> None:
        for one in self._made:
            one.close()


@pytest.fixture(scope="module")
def team(module_path: Path, model: ModelServer) -> Iterator[Team]:
    daemon = Daemon(module_path / "h", config=FRONT_END + TEAMS, local=model.local_toml())
    daemon.start()
    for name in ("helpdesk", "machines"):
        daemon.load(Project(module_path / name))
    made = Team(daemon)
    yield made
    made.close()
    daemon.close()


def invite(lead: Guest, name: str, into: str) -> dict[str, Any]:
    return dict(lead.post(PLACE, {"person_id": name, "team": into}))


def ids(who: Guest) -> set[str]:
    return {one["id"] for one in who.get(PLACE)["items"]}


def reload(daemon: Daemon, text: str) -> list[str]:
    """Let the daemon read other settings; returns what is wrong with them."""
    before = len(daemon.audit("daemon.config_reloaded"))
    daemon.write("config.toml", text)
    os.kill(daemon.pid, signal.SIGHUP)
    rows = wait_for(lambda: daemon.audit("daemon.config_reloaded")[before:], "the reload")
    return list(rows[-1]["data"]["problems"])


def projects(who: Guest) -> list[str]:
    return [one["slug"] for one in who.get("/projects")["items"]]


def test_each_is_told_which_teams_they_lead(team: Team) -> None:
    operator = team.person("")
    told = {one.person.user: one.get("/auth/whoami")["leads"] for one in (team.ann, team.ben)}
    assert told == {"ann": ["idle", "support"], "ben": ["ops"]}
    assert team.bob.get("/auth/whoami")["leads"] == []
    assert operator.get("/auth/whoami")["leads"] == ["idle", "ops", "support"]


def test_two_leads_invite_into_their_own_team_and_nowhere_else(team: Team) -> None:
    dora, ed = invite(team.ann, "dora", "support"), invite(team.ben, "ed", "ops")
    assert re.fullmatch(r"team:support:dora-[0-9a-z]{8}", dora["person_id"])
    assert re.fullmatch(r"team:ops:ed-[0-9a-z]{8}", ed["person_id"])
    told = {}
    for made, where in ((dora, "helpdesk"), (ed, "machines")):
        guest = team.enter(made["code"])
        told[where] = guest.get("/auth/whoami")
        assert told[where]["operator_id"] == made["person_id"]
        assert told[where]["operator"] is False
        assert projects(guest) == [where]
        # Who was invited leads nobody.
        assert guest.refused("POST", PLACE, {"person_id": "x", "team": "support"}) == OPERATOR_ONLY
        assert guest.refused("GET", PLACE) == OPERATOR_ONLY
    assert (told["helpdesk"]["teams"], told["helpdesk"]["roles"]) == (["support"], ["helper"])
    assert (told["machines"]["teams"], told["machines"]["roles"]) == (["ops"], [])
    for lead, other in ((team.ann, "ops"), (team.ben, "support"), (team.ann, "nowhere")):
        assert lead.refused("POST", PLACE, {"person_id": "fay", "team": other}) == REFUSED
    # No team, one that opens nothing, and names that are no names.
    for body in (
        {"person_id": "bob"},
        {"person_id": "fay", "team": ""},
        {"person_id": "fay", "team": "idle"},
        {"person_id": "ops:fay", "team": "support"},
        {"person_id": "service:fay", "team": "support"},
        {"person_id": "no body", "team": "support"},
    ):
        assert team.ann.refused("POST", PLACE, body) == REFUSED, body
    # What would be more rights than the section's is no field of a request.
    more = {"person_id": "fay", "team": "support", "projects": ["machines"]}
    assert team.ann.refused("POST", PLACE, more) == (422, "invalid_request")
    # Where others read along nobody is invited, and who leads no team invites nobody.
    group = team.person("ann", "group")
    assert group.refused("POST", PLACE, {"person_id": "fay", "team": "support"}) == REFUSED
    for body in ({"person_id": "fay", "team": "support"}, {}):
        assert team.bob.refused("POST", PLACE, body) == OPERATOR_ONLY
    assert team.bob.refused("DELETE", f"{PLACE}/{dora['id']}") == OPERATOR_ONLY


def test_the_name_of_somebody_who_exists_makes_somebody_new(team: Team) -> None:
    """A lead who opens the link themselves is nobody whose things are already here."""
    helpdesk = team.bob.get("/projects")["items"][0]["id"]
    session = team.bob.post(f"/projects/{helpdesk}/sessions")["id"]
    first, second = (team.enter(invite(team.ann, "bob", "support")["code"]) for _ in range(2))
    names = {one.get("/auth/whoami")["operator_id"] for one in (first, second, team.bob)}
    assert len(names) == 3
    theirs = first.post(f"/projects/{helpdesk}/sessions")["id"]
    for who, other in ((first, session), (second, theirs), (second, session)):
        assert who.refused("GET", f"/projects/{helpdesk}/sessions/{other}")[0] == 404
    # Nor does a front end name people who were invited.
    said = first.get("/auth/whoami")["operator_id"]
    assert team.person(said).refused("GET", "/auth/whoami") == (403, "access_denied")


def test_leads_see_and_revoke_their_own_and_the_operator_all(team: Team) -> None:
    hers, his = invite(team.ann, "gil", "support"), invite(team.ben, "hal", "ops")
    operators = json.loads(team.daemon.cli("people", "invite", "bob", "--json").out)
    words = ("people", "invite", "ida", "--team", "support", "--json")
    new = json.loads(team.daemon.cli(*words).out)
    assert new["person_id"].startswith("team:support:ida-")
    assert hers["id"] in ids(team.ann)
    assert his["id"] in ids(team.ben)
    assert ids(team.ann).isdisjoint(ids(team.ben))
    assert ids(team.ann).isdisjoint({operators["id"], new["id"]})
    listed = json.loads(team.daemon.cli("people", "list", "--json").out)
    makers = {one["id"]: one["created_by"] for one in listed}
    assert (makers[hers["id"]], makers[his["id"]]) == ("ann", "ben")
    assert {operators["id"], new["id"]} <= set(makers)
    gil, hal = team.enter(hers["code"]), team.enter(his["code"])
    for lead, other in ((team.ann, his), (team.ben, hers), (team.ann, operators), (team.ann, new)):
        assert lead.refused("DELETE", f"{PLACE}/{other['id']}") == NOT_FOUND
    assert projects(gil) == ["helpdesk"]
    done = team.ann.ask("DELETE", f"{PLACE}/{hers['id']}")
    assert (done.status_code, done.json()["state"]) == (200, "revoked")
    assert gil.refused("GET", "/auth/whoami") == (401, "unauthenticated")
    assert projects(hal) == ["machines"]
    team.daemon.cli("people", "revoke", his["id"])
    assert hal.refused("GET", "/auth/whoami") == (401, "unauthenticated")
    rows = team.daemon.audit("invitation.created", "invitation.revoked")
    on_record = [
        (one["event"], one["data"]["caller"])
        for one in rows
        if one["data"]["id"] in (hers["id"], his["id"])
    ]
    assert on_record[:3] == [
        ("invitation.created", "ann"),
        ("invitation.created", "ben"),
        ("invitation.revoked", "ann"),
    ]
    assert on_record[3][1] not in {"ann", "ben"}


def test_the_command_line_of_a_lead_does_the_same(team: Team, tmp_path: Path) -> None:
    made = json.loads(team.daemon.cli("people", "invite", "ben", "--json").out)
    env = {"XDG_STATE_HOME": str(tmp_path / "s"), "KAGED_HOME": str(tmp_path / "h")}
    team.daemon.cli("login", team.daemon.url, "--invitation", made["url"], env=env)
    env["KAGED_URL"] = team.daemon.url
    words = ("people", "invite", "joy", "--team", "ops", "--access", "2h", "--json")
    joy = json.loads(team.daemon.cli(*words, env=env).out)
    assert projects(team.enter(joy["code"])) == ["machines"]
    listed = json.loads(team.daemon.cli("people", "list", "--json", env=env).out)
    assert joy["id"] in {one["id"] for one in listed}
    assert {one["created_by"] for one in listed} == {"ben"}
    assert "revoked" in team.daemon.cli("people", "revoke", joy["id"], env=env).out
    other = team.daemon.cli("people", "invite", "joy", "--team", "support", env=env, code=None)
    assert "invitation_refused" in other.err
    alone = team.daemon.cli("people", "invite", "joy", env=env, code=None)
    assert "invitation_refused" in alone.err


def test_twenty_open_ones_are_enough_for_each_lead(team: Team) -> None:
    before = [one for one in team.ann.get(PLACE)["items"] if one["state"] == "open"]
    made = [invite(team.ann, "kim", "support") for _ in range(20 - len(before))]
    body = {"person_id": "kim", "team": "support"}
    assert team.ann.refused("POST", PLACE, body) == (409, "too_many_invitations")
    invite(team.ben, "lou", "ops")
    assert team.ann.ask("DELETE", f"{PLACE}/{made[0]['id']}").is_success
    assert invite(team.ann, "kim", "support")["state"] == "open"


def test_the_file_decides_at_each_moment_also_after_a_restart(team: Team) -> None:
    """Last: it changes who leads what."""
    mia = invite(team.ben, "mia", "ops")
    guest = team.enter(mia["code"])
    waiting = invite(team.ben, "ned", "ops")
    team.daemon.kill()
    team.daemon.start()
    guest, ben = team.holder(guest.token), team.person("ben")
    assert projects(guest) == ["machines"]
    assert {mia["id"], waiting["id"]} <= ids(ben)
    # A lead is a person, never somebody who was invited into a team.
    config = team.daemon.home / "config.toml"
    good = config.read_text(encoding="utf-8")
    problems = reload(team.daemon, good.replace('["ben"]', f'["{mia["person_id"]}"]'))
    assert "teams.ops.leads" in str(problems)
    assert mia["id"] in ids(ben)
    # Ben leads nobody any more; whom he invited stays.
    reload(team.daemon, good.replace('leads = ["ben"]', 'leads = ["bob"]'))
    assert ben.refused("GET", PLACE) == OPERATOR_ONLY
    assert ben.refused("DELETE", f"{PLACE}/{mia['id']}") == OPERATOR_ONLY
    assert ids(team.person("bob")) == set()
    assert projects(guest) == ["machines"]
    # Without the team there is nothing left to use, and nobody to invite.
    reload(team.daemon, good.partition("[teams.ops]")[0])
    assert projects(guest) == []
    assert projects(team.enter(waiting["code"])) == []
    assert ben.refused("POST", PLACE, {"person_id": "x", "team": "ops"}) == OPERATOR_ONLY
