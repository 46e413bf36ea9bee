"""Budgets in dollars: by the operator's own prices, by published ones, and where there is none.

Three projects use three models of one server: one has a price of the operator's, of one the price
is published, of one nobody knows it.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, say
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.policies import PolicySite, spy
from whole.harness.project import Project
from whole.harness.talk import ENDED

PEOPLE = '[people.ann]\nteams = ["crew"]\n[people.cat]\nteams = ["crew"]\n[people.bob]\n'
OWN = "[models.own.usd_per_million]\ninput = 250_000\noutput = 1_000_000\ncached = 0\n"
HOOKS = ["cmf.llm_input", "cmf.llm_output"]


@pytest.fixture(scope="module")
def models(model: ModelServer) -> str:
    """Return the operator's models."""
    published = model.local_toml()
    return published + model.local_toml("own") + OWN + model.local_toml("nobodys", name="riddle-1")


@pytest.fixture(scope="module")
def daemon(module_path: Path, models: str, site: PolicySite) -> Iterator[Daemon]:
    """Yield the module's daemon."""
    config = site.config_toml() + FRONT_END + PEOPLE
    made = Daemon(module_path / "h", config=config, local=models)
    made.start()
    site.daemon = made
    wait_for(site.loads)
    yield made
    made.close()


@pytest.fixture(scope="module")
def projects(daemon: Daemon, module_path: Path) -> dict[str, Project]:
    """Return a project for each model."""
    aliases = ("default", "own", "nobodys")
    return {one: daemon.load(Project(module_path / one, model=one)) for one in aliases}


def budget(state: Path, **options: Any) -> dict[str, Any]:
    """Return the entry of a budget."""
    return {
        "name": "money",
        "kind": "kaged.pipeline.policies.CostBudget",
        "hooks": HOOKS,
        "capabilities": ["read_subject", "read_teams"],
        "config": {"state_file": str(state), **options},
    }


def tells(project: Project, who: str, word: str) -> dict[str, Any]:
    """Let somebody say a word to the agent; returns the run when it has ended."""
    guest = Guest(project.daemon, Person(who, "private", f"private-{who}"))
    place = f"/projects/{project.id}/sessions"
    place = f"{place}/{guest.post(place)['id']}"
    guest.post(f"{place}/message", {"text": word})
    runs: list[dict[str, Any]] = wait_for(
        lambda: [one for one in guest.get(f"{place}/runs")["items"] if one["status"] in ENDED]
    )
    guest.close()
    return runs[0]


def used(state: Path) -> dict[str, float]:
    """Return what the budget has counted."""
    found: dict[str, float] = json.loads(state.read_text())["used"]
    return found


def test_what_the_operator_pays_is_counted_and_ends_the_day_of_a_person_and_of_a_team(
    daemon: Daemon, site: PolicySite, projects: dict[str, Project], model: ModelServer
) -> None:
    state = site.folder / "own.json"
    site.put(budget(state, people={"ann": 0.5, "bob": 1e9}, team=0.75), spy("spy", hooks=HOOKS))
    for word in ("dingo-ann", "dingo-ann-again", "dingo-cat", "dingo-bob", "dingo-bob-again"):
        model.play(word, say("Yes."))
    first = tells(projects["own"], "ann", "dingo-ann")
    assert first["status"] == "completed"
    took = first["usage"]
    cost = (took["input_tokens"] - took["cached_tokens"]) / 4 + took["output_tokens"]
    assert took["cost_usd"] == cost > 1
    assert used(state) == {"person:ann": cost, "team:crew": cost}
    (told,) = site.seen("spy", "cmf.llm_output")
    assert float(told["extensions"]["meta"]["properties"]["cost_usd"]) == cost
    # She has nothing left, nor has who shares the team's budget; somebody else has.
    for who, whose in (("ann", "person ann"), ("cat", "team crew")):
        refused = tells(projects["own"], who, f"dingo-{who}-again" if who == "ann" else "dingo-cat")
        assert refused["status"] == "failed"
        assert f"the dollars of {whose} are used up for today" in refused["error"]["message"]
    assert tells(projects["own"], "bob", "dingo-bob")["status"] == "completed"
    assert tells(projects["own"], "bob", "dingo-bob-again")["status"] == "completed"
    # It is the money that `kaged usage` shows.
    rows = {one["name"]: one for one in json.loads(daemon.cli("usage", "--json").out)}
    assert {who: rows[who]["cost_usd"] for who in ("ann", "bob")} == {
        "ann": used(state)["person:ann"],
        "bob": used(state)["person:bob"],
    }


def test_published_prices_count_where_the_operator_names_none(
    daemon: Daemon, site: PolicySite, projects: dict[str, Project], model: ModelServer
) -> None:
    state = site.folder / "published.json"
    site.put(budget(state, person=0.000_001))
    model.play("dhole-one", say("Yes."))
    run = tells(projects["default"], "bob", "dhole-one")
    assert run["status"] == "completed"
    assert used(state) == {"person:bob": pytest.approx(run["usage"]["cost_usd"])}
    assert 0.000_001 < run["usage"]["cost_usd"] < 0.01
    assert tells(projects["default"], "bob", "dhole-two")["status"] == "failed"
    # A restart gives nothing back.
    loads = len(site.loads())
    daemon.kill()
    daemon.start()
    wait_for(lambda: len(site.loads()) > loads)
    assert tells(projects["default"], "bob", "dhole-three")["status"] == "failed"


def test_what_nobody_can_count_is_denied_until_the_operator_says_what_it_costs(
    daemon: Daemon,
    site: PolicySite,
    projects: dict[str, Project],
    model: ModelServer,
    models: str,
) -> None:
    state = site.folder / "nobodys.json"
    site.put(budget(state, person=5))
    for word in ("jackal-one", "jackal-two"):
        model.play(word, say("Yes."))
    refused = tells(projects["nobodys"], "bob", "jackal-one")
    assert refused["status"] == "failed"
    assert "nobody knows what the model nobodys costs" in refused["error"]["message"]
    assert "[models.nobodys.usd_per_million]" in refused["error"]["message"]
    assert not state.exists()
    free = "[models.nobodys.usd_per_million]\ninput = 0\noutput = 0\n"
    daemon.write("local.toml", models + free)
    os.kill(daemon.pid, signal.SIGHUP)
    wait_for(lambda: tells(projects["nobodys"], "bob", "jackal-two")["status"] == "completed")


def test_a_count_of_tokens_is_none_of_money(site: PolicySite) -> None:
    state = site.folder / "tokens.json"
    state.write_text('{"day": "2026-11-18", "used": {"person:ann": 7}}')
    (said,) = site.refused(budget(state, person=5))
    assert "not a count of dollars" in said
    assert state.read_text() == '{"day": "2026-11-18", "used": {"person:ann": 7}}'
