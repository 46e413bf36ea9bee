"""The page of a link names the person, and the agent and project that began it, or says none."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from requirements.marker import whole
from whole.harness.people import Guest
from whole.harness.project import Project
from whole.harness.services import (
    CAGE,
    PYTHON,
    SHELL,
    Bridge,
    Desk,
    Person,
    provider_toml,
    somebody,
)

HARBOUR_BRIDGE = Path(__file__).parents[3] / "plugins" / "examples" / "harbour-bridge" / "bridge.py"
HELPER = "primary.subagents.helper"
PAGED = ("keyed.api", "harbour.locker")  # a page for a first-party provider, one for a bridge
NOWHERE = "http://127.0.0.1:9"  # opening a page asks nobody
DESCRIPTION = """\
description = "A service"
[operations.me]
description = "Say hello."
path = "/me"
"""
HOSTILE = '</b><script>alert("x")</script>&amp;' + "long " * 30
WITHOUT_AGENT = "began it directly, without an agent."


class Place(NamedTuple):
    """Where things are begun: a daemon with two projects, one with a hostile name."""

    desk: Desk
    plain: Project
    hostile: Project

    def begin(self, person: Person, project: Project, agent: str, id_: str, hint: str) -> str:
        """Begin a link as an agent does, in its cage; returns the address of the page."""
        words = f"ash-sb capability auth begin --capability {id_} --account {hint}"
        body = {"agent": agent, "tool": "shell.bash", "params": {"command": words}}
        path = f"/api/v1/projects/{project.id}/tools/call"
        got = self.desk.front_end.post(path, json=body, headers=person.headers)
        assert got.is_success, got.text
        result = got.json()["result"]
        found = re.search(r"Auth URL: (\S+)", result["stdout"])
        assert found is not None, result
        return found[1]

    def restart(self) -> None:
        self.desk.reopen(kill=True)
        for one in (self.plain, self.hostile):
            self.desk.daemon.load(one)


@pytest.fixture(scope="module")
def place(desks: Callable[..., Desk], module_path: Path) -> Place:
    keyed = {"description": "api.toml", "base_url": NOWHERE, "auth": "token", "check_path": "/me"}
    state = module_path / "harbour"
    state.mkdir(mode=0o700)
    locker = Bridge(
        module_path,
        "harbour",
        command=[*PYTHON, str(HARBOUR_BRIDGE)],
        env={"HARBOUR_URL": NOWHERE, "HARBOUR_STATE": str(state)},
    )
    desk = desks(locker, more=provider_toml("keyed", type="rest", settings=keyed))
    desk.daemon.write("api.toml", DESCRIPTION)
    helper = {"model": "default", "system_prompt": "You help.", "cage": CAGE, "tools": SHELL}
    made = [Project(module_path / name) for name in ("plain", "hostile")]
    for project, name in zip(made, ("Letters", HOSTILE), strict=True):
        project.describe(
            top={"project": {"name": name}}, cage=CAGE, tools=SHELL, subagents={"helper": helper}
        )
    desk.open()
    return Place(desk, *(desk.daemon.load(one) for one in made))


def shown(address: str) -> str:
    """Return the markup of a page."""
    got = httpx.get(address, trust_env=False, timeout=60)
    assert got.status_code == 200, got.text
    return got.text


def names(agent: str, project: str) -> str:
    return f"the agent <b>{agent}</b> of the project <b>{project}</b>"


@pytest.mark.parametrize("id_", PAGED)
def test_a_page_names_the_person_and_the_agent_that_began_also_after_a_restart(
    place: Place, id_: str
) -> None:
    ann, bob = somebody(), somebody()
    hers = place.begin(ann, place.plain, "primary", id_, "one")
    his = place.begin(bob, place.plain, HELPER, id_, "one")
    for _ in range(2):
        page = shown(hers)
        assert f"as <b>{id_}</b> for <b>{ann.user}</b>" in page
        assert f"It was begun by {names('primary', 'Letters')}." in page
        assert "helper" not in page
        page = shown(his)
        assert f"as <b>{id_}</b> for <b>{bob.user}</b>" in page
        assert f"It was begun by {names(HELPER, 'Letters')}." in page
        assert WITHOUT_AGENT not in page
        place.restart()
        # A page is open again as soon as the flow is asked for.
        assert place.begin(ann, place.plain, "primary", id_, "one") == hers
        assert place.begin(bob, place.plain, HELPER, id_, "one") == his


@whole("SC-AMB-34")
@pytest.mark.parametrize("id_", PAGED)
def test_agents_that_share_a_flow_are_all_named(place: Place, id_: str) -> None:
    """The second begin gives the same page, which must not name the first agent alone."""
    ann = somebody()
    first = place.begin(ann, place.plain, "primary", id_, "shared")
    assert "helper" not in shown(first)
    assert place.begin(ann, place.plain, HELPER, id_, "shared") == first
    both = f"{names('primary', 'Letters')} and by {names(HELPER, 'Letters')}."
    assert both in shown(first)
    place.restart()
    assert place.begin(ann, place.plain, "primary", id_, "shared") == first
    assert both in shown(first)
    other = place.begin(ann, place.plain, HELPER, id_, "other")
    assert f"It was begun by {names(HELPER, 'Letters')}." in shown(other)


@pytest.mark.parametrize("id_", PAGED)
def test_a_hostile_name_is_text_and_bounded(place: Place, id_: str) -> None:
    page = shown(place.begin(somebody(), place.hostile, "primary", id_, "x"))
    assert "<script" not in page
    found = re.search(r"the agent <b>primary</b> of the project <b>([^<]*)</b>", page)
    assert found is not None, page
    assert html.unescape(found[1]) == HOSTILE[:79] + "…"


@pytest.mark.parametrize("id_", PAGED)
def test_without_an_agent_the_page_says_so(place: Place, id_: str) -> None:
    ann = somebody()
    with contextlib.closing(Guest(place.desk.daemon, ann)) as guest:
        wanted = {"capability": id_, "account_hint": "own"}
        flow = guest.post("/services/links", wanted)
        # What a request claims beside it is nobody's name.
        claimed = guest.refused("POST", "/services/links", {**wanted, "agent": "primary"})
    assert claimed == (422, "invalid_request")
    page = shown(flow["auth_url"])
    assert f"for <b>{ann.user}</b>" in page
    assert f" {ann.user} {WITHOUT_AGENT}" in page
    assert "the agent" not in page
    # An agent that begins the same is named beside the person.
    assert place.begin(ann, place.plain, "primary", id_, "own") == flow["auth_url"]
    both = f"It was begun by {names('primary', 'Letters')}. {ann.user} also {WITHOUT_AGENT}"
    assert both in shown(flow["auth_url"])
    place.restart()
    assert both in shown(place.begin(ann, place.plain, "primary", id_, "own"))
