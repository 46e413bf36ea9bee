"""`kaged pipeline trace REQUEST`: what each policy saw, changed and decided in a call made before.

It is shown to the operator and to whoever made the call, and to nobody else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from whole.harness.daemon import Daemon, wait_for
from whole.harness.model import ModelServer, call, say
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.policies import POST, PRE, PolicySite, gives, spy
from whole.harness.project import Project
from whole.harness.talk import ENDED, fresh

REDIRECTS = gives(
    "PluginResult(modified_payload=payload.model_copy(update={'args': {**payload.args,"
    " 'path': 'b.txt'}}), modified_extensions=ext.model_copy(update={"
    "'security': grown(ext, 'moved')}))",
    "append_labels",
    name="redirects",
    priority=10,
)
SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
DENIES = gives(
    "PluginResult(continue_processing=False, violation=PluginViolation(reason='closed',"
    f" description='The archive opens at nine. {SECRET}', code='closed_now'))"
    " if payload.args['path'] == 'b.txt' else None",
    name="denies",
    priority=20,
)
GONE = (404, "pipeline_trace_not_found")


@pytest.fixture(scope="module")
def settings() -> str:
    return FRONT_END


@pytest.fixture(scope="module")
def people(daemon: Daemon) -> Iterator[dict[str, Guest]]:
    made = {
        "ann": Guest(daemon, Person("ann", "private", "chat-ann")),
        "bob": Guest(daemon, Person("bob", "private", "chat-bob")),
        "ann in a group": Guest(daemon, Person("ann", "group", "everybody")),
    }
    yield made
    for one in made.values():
        one.close()


def refused_call(who: Guest, project: Project) -> str:
    """Ask for a file that policies keep, as a person; returns the id of the request."""
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    got = who.ask("POST", f"/projects/{project.id}/tools/call", body)
    assert got.status_code == 403, got.text
    return str(got.json()["error"]["request_id"])


def steps(found: Any) -> list[tuple[str, str, str]]:
    return [(one["hook"], one["plugin"], one["outcome"]) for one in found["steps"]]


def test_a_trace_shows_each_policy_in_order_with_what_it_saw_changed_and_decided(
    daemon: Daemon, shared: Project, site: PolicySite, people: dict[str, Guest]
) -> None:
    site.put(REDIRECTS, DENIES, spy("never", priority=30))
    request = refused_call(people["ann"], shared)
    found = people["ann"].get(f"/pipeline/traces/{request}")
    assert steps(found) == [(PRE, "redirects", "allowed"), (PRE, "denies", "denied")]
    first, second = found["steps"]
    assert first["mode"] == "sequential"
    assert first["changed"] == ["security.labels", "payload.args.path"]
    assert "security.labels" in first["saw"]
    assert "security" in first["read"]
    assert second["changed"] == []
    assert "security.labels" not in second["saw"]  # it has not the right to
    assert (second["code"], second["reason"]) == ("closed_now", "closed")
    assert second["description"].startswith("The archive opens at nine.")
    assert min(one["duration_ns"] for one in found["steps"]) >= 0
    assert not found["cut"]
    # Values are in none of it, and what looks like a secret is in no word.
    assert "a.txt" not in json.dumps(found)
    assert SECRET not in json.dumps(found)
    # The operator sees it by command, as data and as a table.
    asked = ("pipeline", "trace", request)
    assert daemon.cli(*asked, "--json").json == found
    shown = daemon.cli(*asked).out
    assert "redirects" in shown
    assert "The archive opens at nine." in shown
    assert SECRET not in shown


def test_a_trace_is_of_its_own_request_and_of_whoever_made_it(
    daemon: Daemon, shared: Project, site: PolicySite, people: dict[str, Guest]
) -> None:
    site.put(REDIRECTS, DENIES)
    anns, bobs = (refused_call(people[name], shared) for name in ("ann", "bob"))
    for mine, other, who in ((anns, bobs, "ann"), (bobs, anns, "bob")):
        assert len(people[who].get(f"/pipeline/traces/{mine}")["steps"]) == 2
        assert people[who].refused("GET", f"/pipeline/traces/{other}") == GONE
    # In a group others read along.
    assert people["ann in a group"].refused("GET", f"/pipeline/traces/{anns}") == GONE
    done = daemon.cli("pipeline", "trace", "req_" + "0" * 26, code=None)
    assert done.code != 0
    assert "No trace of the request" in done.err
    # What the operator does is nobody else's.
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    own = daemon.error("POST", f"/projects/{shared.id}/tools/call", body)["request_id"]
    assert len(daemon.get(f"/pipeline/traces/{own}")["steps"]) == 2
    assert people["ann"].refused("GET", f"/pipeline/traces/{own}") == GONE


def test_what_is_kept_of_one_request_has_a_bound(
    daemon: Daemon, shared: Project, site: PolicySite, people: dict[str, Guest]
) -> None:
    site.put(*(spy(f"spy-{number}", priority=number + 1) for number in range(205)))
    body = {"agent": "primary", "tool": "file.read", "params": {"path": "a.txt"}}
    path = f"/projects/{shared.id}/tools/call"
    request = people["ann"].post(path, body)["request_id"]
    found = people["ann"].get(f"/pipeline/traces/{request}")
    assert found["cut"]
    assert [one["plugin"] for one in found["steps"]] == [f"spy-{one}" for one in range(200)]
    shown = daemon.cli("pipeline", "trace", request)
    assert "more steps than are kept" in shown.err
    # A second request begins anew.
    site.put(spy("alone"))
    again = people["ann"].post(path, body)["request_id"]
    assert steps(people["ann"].get(f"/pipeline/traces/{again}")) == [(PRE, "alone", "allowed")]


def test_the_operator_says_of_which_steps_traces_are_kept(
    daemon: Daemon, shared: Project, site: PolicySite, people: dict[str, Guest]
) -> None:
    config = daemon.home / "config.toml"
    before = config.read_text(encoding="utf-8")

    def keep(what: str) -> None:
        more = f'[pipeline]\ntraces = "{what}"\n'
        config.write_text(before.replace("[pipeline]\n", more, 1), encoding="utf-8")
        site.hang_up()

    site.put(REDIRECTS, DENIES)
    try:
        keep("refusals")
        request = refused_call(people["ann"], shared)
        assert steps(people["ann"].get(f"/pipeline/traces/{request}")) == [
            (PRE, "denies", "denied")
        ]
        keep("off")
        request = refused_call(people["ann"], shared)
        assert people["ann"].refused("GET", f"/pipeline/traces/{request}") == GONE
        assert "no trace" in daemon.cli("pipeline", "trace", request, code=None).err.lower()
    finally:
        config.write_text(before, encoding="utf-8")
        site.hang_up()
    request = refused_call(people["ann"], shared)
    assert len(people["ann"].get(f"/pipeline/traces/{request}")["steps"]) == 2


def test_a_trace_survives_a_restart_and_both_sides_of_a_call_are_in_it(
    daemon: Daemon, shared: Project, site: PolicySite, model: ModelServer
) -> None:
    fails = gives("1 / 0", name="fails", on_error="ignore", hooks=[POST])
    later = spy("later", hooks=[PRE], mode="fire_and_forget")
    site.put(spy("looks", hooks=[PRE, POST]), fails, later)
    word = fresh("traced")
    model.play(word, call("file.read", path="a.txt"), say("Done."))
    session = daemon.post(f"/projects/{shared.id}/sessions", {})["id"]
    place = f"/projects/{shared.id}/sessions/{session}"
    daemon.post(f"{place}/message", {"text": f"{word} please"})
    wait_for(lambda: daemon.get(f"{place}/runs")["items"][0]["status"] in ENDED, "its end")
    (row,) = daemon.audit("tool.called", text=session)
    path = f"/pipeline/traces/{row['request_id']}"
    wait_for(lambda: len(daemon.get(path)["steps"]) == 4, "the one in the background")
    before = daemon.get(path)
    assert sorted(steps(before)) == [
        (POST, "fails", "ZeroDivisionError"),
        (POST, "looks", "allowed"),
        (PRE, "later", "allowed"),
        (PRE, "looks", "allowed"),
    ]
    failed = next(one for one in before["steps"] if one["plugin"] == "fails")
    assert failed["code"] == "plugin_error"
    assert "division by zero" in failed["reason"]
    daemon.restart()
    wait_for(site.loads)
    assert daemon.get(path) == before
    assert daemon.cli("pipeline", "trace", row["request_id"], "--json").json == before
    # With the session goes what is known of it.
    daemon.ask("DELETE", place)
    assert daemon.error("GET", path)["code"] == "pipeline_trace_not_found"
