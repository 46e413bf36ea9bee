"""OPA and Cedar decide about the calls of people, asked with the same document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whole.harness.daemon import Daemon
from whole.harness.opa import RegoServer
from whole.harness.people import FRONT_END, Guest, Person
from whole.harness.policies import POST, PRE, PolicySite
from whole.harness.project import Project

REGO = """package kaged
import rego.v1

default allow := false
allow if not startswith(input.payload.name, "shell.")
allow if "admin" in input.extensions.security.subject.roles

decision := {"allow": true} if allow
decision := {
    "allow": false,
    "reason": "commands are for admins",
    "description": sprintf("%s is no admin", [input.extensions.security.subject.id]),
    "code": "not_admin",
} if not allow

readers := true if input.payload.name == "file.read"
clean := true if not contains(json.marshal(input.payload.result), "secret")
words := "yes"
"""
CEDAR = """
@id("files") permit(principal, action, resource)
    when { resource in [Tool::"file.read", Tool::"file.create"] };
@id("admins") permit(principal in Role::"admin", action == Action::"tool_pre_invoke", resource);
@id("no-env") forbid(principal, action, resource)
    when { context.payload has args && context.payload.args has path
           && context.payload.args.path like "*.env" };
@id("contractors") forbid(principal in Group::"contractors", action, resource)
    when { resource == Tool::"file.create" };
"""
CAGE = {"fs": [{"mode": "rw", "path": "."}], "capabilities": ["shell"]}
SEES = ["read_subject", "read_roles", "read_teams", "read_labels"]
PEOPLE = '[people.ann]\nroles = ["admin"]\n[people.bob]\nroles = ["reader"]\n'
READ = ("file.read", {"path": "a.txt"})
RUN = ("shell.bash", {"command": "echo ran"})


@pytest.fixture(scope="module")
def settings() -> str:
    return FRONT_END + PEOPLE


@pytest.fixture(scope="module")
def work(daemon: Daemon, module_path: Path) -> Project:
    made = daemon.load(Project(module_path / "office", cage=CAGE))
    for name, text in (("a.txt", "one\n"), ("b.txt", "the secret\n"), ("c.env", "K=1\n")):
        made.write(name, text)
    return made


@pytest.fixture(scope="module")
def opa() -> Iterator[RegoServer]:
    made = RegoServer(REGO, token="opa-token-1")
    yield made
    made.close()


@pytest.fixture
def use(daemon: Daemon, work: Project) -> Iterator[Callable[..., dict[str, Any]]]:
    """Yield a way to call a tool as a person; returns the answer of the daemon."""
    guests: dict[str, Guest] = {}

    def call(who: str, what: tuple[str, dict[str, Any]]) -> dict[str, Any]:
        guest = guests.setdefault(who, Guest(daemon, Person(who, "private", f"private-{who}")))
        body = {"agent": "primary", "tool": what[0], "params": what[1]}
        got: dict[str, Any] = guest.ask("POST", f"/projects/{work.id}/tools/call", body).json()
        return got

    yield call
    for one in guests.values():
        one.close()


def _opa(server: RegoServer, document: str, **more: Any) -> dict[str, Any]:
    config = {"url": f"{server.url}/{document}", "token": "opa-token-1", **more}
    kind = "kaged.pipeline.policies.OpaPolicy"
    return {"name": "opa", "kind": kind, "hooks": [PRE], "capabilities": SEES, "config": config}


def _cedar(folder: Path, text: str = CEDAR, **more: Any) -> dict[str, Any]:
    file = folder / "house.cedar"
    file.write_text(text, encoding="utf-8")
    config = {"policies": str(file), **more}
    kind = "kaged.pipeline.policies.CedarPolicy"
    return {"name": "cedar", "kind": kind, "hooks": [PRE], "capabilities": SEES, "config": config}


def _why(answer: dict[str, Any]) -> str:
    return json.dumps(answer["error"])


def test_opa_allows_one_person_what_it_denies_another_and_its_words_arrive(
    site: PolicySite, daemon: Daemon, opa: RegoServer, use: Callable[..., dict[str, Any]]
) -> None:
    site.put(_opa(opa, "decision"))
    assert use("ann", RUN)["result"]["stdout"] == "ran\n"
    assert "result" in use("bob", READ)
    refused = use("bob", RUN)
    assert "commands are for admins" in _why(refused)
    asked = opa.asked[-1]
    assert asked["hook"] == PRE
    assert (asked["payload"]["name"], asked["payload"]["args"]["command"]) == (
        "shell.bash",
        "echo ran",
    )
    assert asked["extensions"]["security"]["subject"]["id"] == "bob"
    assert "http" not in asked["extensions"], "it sees what its capabilities show"
    row = [one["data"] for one in daemon.audit("tool.denied")][-1]
    assert row["denied_by"] == "opa"
    assert "commands are for admins" in row["detail"]


def test_a_document_that_is_undefined_for_a_call_denies_it(
    site: PolicySite, opa: RegoServer, use: Callable[..., dict[str, Any]]
) -> None:
    site.put(_opa(opa, "readers"))
    assert "result" in use("bob", READ)
    assert "OPA has no decision about this call" in _why(use("ann", RUN))


def test_opa_looks_at_results_too(
    site: PolicySite, opa: RegoServer, use: Callable[..., dict[str, Any]]
) -> None:
    site.put({**_opa(opa, "clean"), "hooks": [POST]})
    assert "result" in use("ann", READ)
    refused = use("ann", ("file.read", {"path": "b.txt"}))
    assert "the secret" not in json.dumps(refused)
    assert "error" in refused


@pytest.mark.parametrize(
    ("document", "mode", "said"),
    [
        ("decision", "broken", "not JSON"),
        ("decision", "flood", "more than"),
        ("decision", "hang", "did not answer within"),
        ("words", "", "neither true, false nor an object"),
    ],
)
def test_a_server_without_a_decision_stops_the_call(
    site: PolicySite,
    daemon: Daemon,
    opa: RegoServer,
    use: Callable[..., dict[str, Any]],
    document: str,
    mode: str,
    said: str,
) -> None:
    site.put(_opa(opa, document, timeout_s=0.2 if mode == "hang" else 30))
    opa.mode = mode
    try:
        assert "error" in use("ann", READ)
    finally:
        opa.mode = ""
    rows = [one["data"] for one in daemon.audit("pipeline.plugin_failed")]
    assert said in json.dumps(rows[-1])


def test_a_server_that_is_gone_or_wants_another_token_stops_the_call(
    site: PolicySite, daemon: Daemon, opa: RegoServer, use: Callable[..., dict[str, Any]]
) -> None:
    site.put(_opa(opa, "decision", token="other"))
    assert "error" in use("ann", READ)
    gone = RegoServer(REGO)
    gone.close()
    site.put(_opa(gone, "decision"))
    assert "error" in use("ann", READ)
    rows = [json.dumps(one["data"]) for one in daemon.audit("pipeline.plugin_failed")]
    assert "answered 401" in rows[-2]
    assert "cannot be reached" in rows[-1]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://opa.example.org/v1/data/kaged", "another machine needs https"),
        ("https://u:p@opa.example.org/v1/data/kaged", "must not contain a password"),
        ("http://127.0.0.1:8181/", "data API"),
        ("ftp://127.0.0.1/v1/data/a", "write the address"),
    ],
)
def test_an_address_that_cannot_be_right_is_refused(
    site: PolicySite, opa: RegoServer, url: str, said: str
) -> None:
    (problem,) = site.refused({**_opa(opa, "decision"), "config": {"url": url}})
    assert said in problem


def test_cedar_allows_one_person_what_it_denies_another_and_names_its_policy(
    site: PolicySite, daemon: Daemon, module_path: Path, use: Callable[..., dict[str, Any]]
) -> None:
    site.put(_cedar(module_path))
    assert use("ann", RUN)["result"]["stdout"] == "ran\n"
    assert "result" in use("bob", READ)
    assert "no Cedar policy permits it" in _why(use("bob", RUN))
    env = ("file.read", {"path": "c.env"})
    for who in ("bob", "ann"):
        assert "Cedar policy no-env forbids it" in _why(use(who, env))
    assert [one["data"]["denied_by"] for one in daemon.audit("tool.denied")][-1] == "cedar"


def test_entities_of_the_operator_say_more_about_people_and_do_not_replace_what_is_verified(
    site: PolicySite, module_path: Path, use: Callable[..., dict[str, Any]]
) -> None:
    groups = {"type": "Group", "id": "contractors"}
    entities = [
        {"uid": groups, "attrs": {}, "parents": []},
        {"uid": {"type": "User", "id": "bob"}, "attrs": {"roles": ["admin"]}, "parents": [groups]},
    ]
    file = module_path / "entities.json"
    file.write_text(json.dumps(entities), encoding="utf-8")
    site.put(_cedar(module_path, entities=str(file)))
    creating = ("file.create", {"path": "new.txt", "content": "x"})
    assert "result" in use("ann", creating)
    assert "contractors forbids it" in _why(use("bob", creating))
    assert "no Cedar policy permits it" in _why(use("bob", RUN)), "a file makes nobody an admin"


def test_a_cedar_policy_that_cannot_be_evaluated_denies(
    site: PolicySite, daemon: Daemon, module_path: Path, use: Callable[..., dict[str, Any]]
) -> None:
    text = (
        "permit(principal, action, resource);"
        'forbid(principal, action, resource) when { context.payload.args.nothing == "x" };'
    )
    site.put(_cedar(module_path, text))
    assert "error" in use("ann", READ)
    rows = [json.dumps(one["data"]) for one in daemon.audit("pipeline.plugin_failed")]
    assert "cannot be evaluated" in rows[-1]


@pytest.mark.parametrize(
    ("text", "config", "said"),
    [
        ("permit(", {}, "policies: "),
        (CEDAR, {"entities": "/nowhere/e.json"}, "cannot be read"),
        (CEDAR, {"entities": "e.json"}, "absolute path"),
        (CEDAR, {"schema": "x"}, "schema"),
    ],
)
def test_a_cedar_file_that_cannot_be_right_is_refused_when_it_is_put_in_force(
    site: PolicySite, module_path: Path, text: str, config: dict[str, str], said: str
) -> None:
    (problem,) = site.refused(_cedar(module_path, text, **config))
    assert said in problem
