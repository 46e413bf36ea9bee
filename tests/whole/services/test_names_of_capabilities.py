"""A capability has one full name on the whole host, and belongs to whoever owns its namespace.

Bridges and a provider that comes with kaged (an HTTP API) stand under the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import wait_for
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    code_of,
    invoking,
    operation,
    provider_toml,
    result_of,
    somebody,
    step,
)

PING = operation("ping", requires_auth=False)
API = """\
description = "An API"
[operations.ping]
description = "Say hello."
path = "/ping"
"""


def rest_toml(name: str, **section: Any) -> str:
    """Return a section with a provider that comes with kaged, without accounts."""
    settings = {
        "description": "api.toml",
        "base_url": "http://127.0.0.1:9",
        "auth": "none",
        "name": "email",
        "sensitive": False,
    }
    return provider_toml(name, type="rest", settings=settings, **section)


@pytest.fixture(scope="module")
def bridges(module_path: Path) -> dict[str, Bridge]:
    def offers(name: str, *ids: str, **section: Any) -> Bridge:
        listed = [capability(one, operation("echo"), PING) for one in ids]
        return Bridge(module_path, name, {"definitions": listed}, **section)

    made = [
        offers("gog", "gog.email", "gog.calendar"),
        offers("acme", "acme.email"),
        offers("later", "gog.email", "gog.more", namespace="gog"),
        offers("rest-later", "api.more", namespace="api"),
        offers("foreign", "foreign.fine", "acme.stolen"),
        offers("gogx", "gog.email"),
        offers("upper", "Upper.email"),
        offers("bare", "email"),
        offers("twice", "twice.email", "twice.email"),
        offers("line", "line.em\nail"),
        offers("deep", "deep.a.b"),
        offers("trimmed", "  trimmed.e_m-9  "),
    ]
    return {one.name: one for one in made}


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], bridges: dict[str, Bridge]) -> Desk:
    made = desks(*bridges.values(), more=rest_toml("api"))
    made.daemon.write("api.toml", API)
    made.open()
    # Every provider has been asked by then: calls wait for that.
    made.ask(somebody(), "list")
    return made


def listed(desk: Desk) -> list[str]:
    return [one["id"] for one in desk.ask(somebody(), "list")["capabilities"]]


@whole("SC-NS-01")
def test_every_capability_is_listed_once_by_its_full_name(desk: Desk) -> None:
    assert listed(desk) == sorted(
        ["acme.email", "api.email", "gog.calendar", "gog.email", "trimmed.e_m-9"]
    )
    shown = desk.daemon.cli("capability", "list").out
    for one in listed(desk):
        assert shown.count(one) == 1, one


@whole("SC-NS-02", "SC-AMB-03")
@pytest.mark.parametrize(
    "given",
    ["email", "", "a.b.c", "Gog.email", "gog.", ".email", "gog email", "gog.em\nail", 7, None],
)
def test_what_is_no_full_name_is_refused_and_never_guessed(
    desk: Desk, bridges: dict[str, Bridge], given: Any
) -> None:
    before = len(bridges["gog"].calls())
    answers = desk.asks(
        somebody(),
        step("invoke", capability=given, operation="ping"),
        step("auth.begin", capability=given),
        step("auth.revoke", capability=given, account_ref="x"),
    )
    assert [code_of(one) for one in answers] == ["capability_invalid_input"] * 3
    assert len(bridges["gog"].calls()) == before


@whole("SC-ERR-01")
@pytest.mark.parametrize("given", ["gog.nothing", "gog.nope", "nobody.email", " gog.nope "])
def test_a_full_name_that_nobody_offers_is_not_found(desk: Desk, given: str) -> None:
    answers = desk.asks(
        somebody(),
        step("invoke", capability=given, operation="ping"),
        step("auth.begin", capability=given),
    )
    assert [code_of(one) for one in answers] == ["capability_not_found"] * 2


@whole("SC-AMB-04")
def test_blanks_around_a_name_are_cut_when_it_is_offered_and_when_it_is_asked_for(
    desk: Desk,
) -> None:
    for given in ("trimmed.e_m-9", "  trimmed.e_m-9 ", "\ttrimmed.e_m-9"):
        assert desk.invoke(somebody(), given, "ping")["account"] is None, given
    for given in ("trimmed.e_m-9\n", "trimmed .e_m-9", "trimmed.E_m-9", "trimmed.e_m-9.", "-a.b"):
        assert desk.code(somebody(), given, "ping") == "capability_invalid_input", given


@whole("SC-NS-03", "SC-NS-07")
@pytest.mark.parametrize(
    ("later", "first", "missing"),
    [("later", "gog.email", "gog.more"), ("rest-later", "api.email", "api.more")],
)
def test_whoever_comes_second_with_a_namespace_is_refused_and_the_first_stays(
    desk: Desk, bridges: dict[str, Bridge], later: str, first: str, missing: str
) -> None:
    """The first is a bridge, or comes with kaged."""
    person = somebody()
    one, two = desk.asks(person, invoking(first, "ping"), invoking(missing, "ping"))
    if first == "gog.email":
        assert result_of(one)["output"]["account"] is None
        assert bridges["gog"].asked("invoke")[-1]["capability_id"] == first
    else:  # it was asked; nothing listens there
        assert code_of(one) == "capability_backend_unavailable"
    assert code_of(two) == "capability_not_found"
    assert bridges[later].calls() == []
    told = desk.daemon.log()
    assert "already has a provider" in told
    assert [one["name"] for one in desk.providers() if one["name"] == later] == []


@whole("SC-NS-06", "SC-PROV-06")
@pytest.mark.parametrize(
    ("name", "asked", "named"),
    [
        ("foreign", "foreign.fine", "acme.stolen"),
        ("foreign", "acme.stolen", "acme.stolen"),
        ("gogx", "gogx.email", "gog.email"),
        ("upper", "upper.email", "Upper.email"),
        ("bare", "bare.email", "email"),
        ("twice", "twice.email", "twice.email"),
        ("line", "line.email", "line.em"),
        ("deep", "deep.a", "deep.a.b"),
    ],
)
def test_a_provider_with_a_name_that_is_not_its_own_offers_nothing_at_all(
    desk: Desk, bridges: dict[str, Bridge], name: str, asked: str, named: str
) -> None:
    assert desk.code(somebody(), asked, "ping") == "capability_not_found"
    assert bridges[name].calls() == []
    rows = desk.daemon.audit("capability_provider_unavailable")
    [row] = [one["data"] for one in rows if one["data"]["provider"] == name]
    assert row["reason"] == "capability_invalid_input"
    assert named in row["detail"]
    assert name in row["detail"] or name in named  # who, and which name


@whole("SC-NS-04", "SC-NS-05", "SC-AUTH-11")
def test_the_same_short_name_in_two_namespaces_is_two_things(desk: Desk) -> None:
    ann = somebody()
    desk.link(ann, "gog.email", "work")
    codes = [
        code_of(one) for one in desk.asks(ann, invoking("acme.email"), invoking("gog.calendar"))
    ]
    assert codes == ["capability_auth_required"] * 2
    desk.link(ann, "acme.email", "work")
    kept = {(one["capability"], one["account_ref"]) for one in desk.accounts(ann.user)}
    assert kept == {("gog.email", "acct_work"), ("acme.email", "acct_work")}
    gone = desk.ask(ann, "auth.revoke", capability="gog.email", account_ref="acct_work")
    assert gone["ok"] is True
    assert [one["capability"] for one in desk.accounts(ann.user)] == ["acme.email"]
    assert desk.code(ann, "gog.email") == "capability_auth_required"
    assert desk.invoke(ann, "acme.email")["account"] == "acct_work"


@whole("SC-AUTH-03")
def test_the_name_of_a_flow_is_long_chance_and_says_nothing_of_the_next(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    begins = [step("auth.begin", capability="gog.email", account_hint=f"h{n}") for n in range(8)]
    names = [
        result_of(one)["flow_id"].removeprefix("caf_")
        for person in (ann, bob)
        for one in desk.asks(person, *begins)
    ]
    assert len(set(names)) == 16
    for name in names:
        assert re.fullmatch(r"[0-9a-f]{32,}", name), "128 bits and more, 4 in a letter"
    # No letter stays in its place, and those who began one after the other have no order.
    assert all(len(set(letters)) > 4 for letters in zip(*names, strict=True))
    assert names != sorted(names)
    # Nearly right is as wrong as anything.
    name = names[0]
    near = name[:-1] + ("a" if name[-1] != "a" else "b")
    guesses = [step("auth.complete", flow_id=f"caf_{one}", code="x") for one in (near, name[:-1])]
    refused = [code_of(one) for one in desk.asks(ann, *guesses)]
    assert refused == ["capability_auth_flow_invalid"] * 2


@whole("SC-AUTH-11")
def test_pending_flows_are_found_by_the_capability_they_were_begun_for(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    desk.ask(bob, "auth.begin", capability="gog.email")
    begun = desk.asks(
        ann,
        step("auth.begin", capability="gog.email", account_hint="a"),
        step("auth.begin", capability="gog.email", account_hint="b"),
        step("auth.begin", capability="gog.calendar", account_hint="a"),
        step("auth.begin", capability="acme.email", account_hint="a"),
    )
    flows = [result_of(one)["flow_id"] for one in begun]
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [0, 1, 2, 3]),
        ({"capability": "gog.email"}, [0, 1]),
        ({"capability": "gog.calendar"}, [2]),
        ({"capability": "acme.email"}, [3]),
        ({"account_hint": "a"}, [0, 2, 3]),
        ({"capability": "gog.email", "account_hint": "b"}, [1]),
        ({"capability": "gog.calendar", "account_hint": "b"}, []),
        ({"capability": "api.email"}, []),
    ]
    found = desk.asks(ann, *(step("auth.list", **given) for given, _ in cases))
    for (given, wanted), answer in zip(cases, found, strict=True):
        shown = {one["flow_id"] for one in result_of(answer)["flows"]}
        assert shown == {flows[n] for n in wanted}, given
    # A code without a flow's name completes the one that the capability says, and no other.
    answers = desk.asks(
        ann,
        step("auth.complete_callback", code="x"),
        step("auth.complete_callback", code="x", capability="gog.calendar"),
        step("auth.list"),
    )
    assert code_of(answers[0]) == "capability_auth_flow_ambiguous"
    assert result_of(answers[1])["flow_id"] == flows[2]
    left = {one["flow_id"] for one in result_of(answers[2])["flows"]}
    assert left == {flows[0], flows[1], flows[3]}
    assert [one["capability"] for one in desk.accounts(ann.user)] == ["gog.calendar"]
    assert desk.code(ann, "gog.email") == "capability_auth_required"


@whole("SC-AMB-35")
def test_what_a_bridge_offers_changes_only_when_the_operator_asks_it_again(
    desk: Desk, bridges: dict[str, Bridge]
) -> None:
    acme = bridges["acme"]
    plan = {"definitions": [capability("acme.email", PING), capability("acme.new", PING)]}
    acme.plan(plan)
    assert desk.code(somebody(), "acme.new", "ping") == "capability_not_found"
    for bad in ("gog.email", "acme.email"):
        acme.plan({"definitions": [*plan["definitions"], capability(bad, PING)]})
        error = desk.daemon.error("POST", "/services/providers/acme/refresh")
        assert error["code"] == "capability_invalid_input", error
        assert desk.code(somebody(), "acme.new", "ping") == "capability_not_found"
        desk.invoke(somebody(), "acme.email", "ping")
    acme.plan(plan)
    desk.daemon.cli("capability", "refresh", "acme")
    assert desk.invoke(somebody(), "acme.new", "ping")["account"] is None
    wait_for(lambda: "acme.new" in listed(desk))
