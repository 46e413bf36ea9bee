"""Linking an account: a flow is short-lived, one person's, one capability's, and used once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import exactly, wait_for
from whole.harness.services import (
    Bridge,
    Desk,
    capability,
    code_of,
    error_of,
    invoking,
    operation,
    result_of,
    somebody,
    step,
)

ECHO = [operation("echo"), operation("ping", requires_auth=False)]
INVALID = "capability_auth_flow_invalid"
MISMATCH = "capability_auth_state_mismatch"


def offering(name: str, **plan: Any) -> dict[str, Any]:
    listed = [capability(f"{name}.email", *ECHO), capability(f"{name}.calendar", *ECHO)]
    return {"definitions": listed, **plan}


PLANS: dict[str, dict[str, Any]] = {
    "gog": {},
    "state": {"begin": {"expected_callback_state": "state-4711"}},
    "minute": {"expires_in": 60, "zone": True},
    "days": {"expires_in": 2 * 86400, "zone": True},
    "zoneless": {"expires_in": 120},
    "past": {"expires_in": -5, "zone": True},
    "quick": {"expires_in": 6, "zone": True},
    "slow": {"pause": 0.5},
    "moody": {},
    "http": {"begin": {"auth_url": "http://login.example/authorize"}},
    "leaky": {"complete": {"credential_material": {"refresh_token": "rt-0123456789abcdef"}}},
    "opaque": {"complete": {"credential_material": {"credential_key": "k1"}}},
    "denying": {"complete": {"error": {"code": "capability_auth_flow_denied", "message": "no"}}},
}


@pytest.fixture(scope="module")
def bridges(module_path: Path) -> dict[str, Bridge]:
    return {name: Bridge(module_path, name, offering(name, **plan)) for name, plan in PLANS.items()}


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], bridges: dict[str, Bridge]) -> Desk:
    return desks(*bridges.values()).open()


def begin(id_: str, hint: str | None = None) -> dict[str, Any]:
    return step("auth.begin", capability=id_, **({} if hint is None else {"account_hint": hint}))


def complete(first: int = 0, **given: Any) -> dict[str, Any]:
    return step("auth.complete", flow_id={"$": [first, "flow_id"]}, **(given or {"code": "ok"}))


def ahead(flow: dict[str, Any]) -> timedelta:
    """Return how far away a flow's end is, half a second less: clocks of processors differ."""
    text = flow["expires_at"]
    assert text.endswith("Z"), text
    now = datetime.now(UTC)  # noqa: TID251 - the daemon is a process with the system's clock
    return datetime.fromisoformat(text) - now - timedelta(seconds=0.5)


@whole("SC-RPC-08", "SC-AMB-08")
def test_a_flow_says_where_to_go_and_until_when(desk: Desk) -> None:
    ann = somebody()
    answers = desk.asks(
        ann, *(begin(f"{name}.email") for name in ("gog", "minute", "days", "zoneless", "past"))
    )
    plain, minute, days, zoneless = (result_of(one) for one in answers[:4])
    for flow in (plain, minute, days, zoneless):
        assert re.fullmatch(r"caf_[0-9a-f]{32,}", flow["flow_id"])
        assert flow["auth_url"] == "https://login.example/authorize"
        assert ahead(flow) > timedelta(0)
    assert timedelta(minutes=25) < ahead(plain) <= timedelta(minutes=30)
    assert ahead(minute) <= timedelta(seconds=60)
    assert timedelta(minutes=55) < ahead(days) <= timedelta(minutes=60)
    assert ahead(zoneless) <= timedelta(seconds=121)
    assert code_of(answers[4]) == "capability_invalid_output"
    # None of them harms another.
    shown = {one["capability"] for one in desk.ask(ann, "auth.list")["flows"]}
    assert shown == {"gog.email", "minute.email", "days.email", "zoneless.email"}
    assert code_of(desk.asks(ann, begin("http.email"))[0]) == "capability_invalid_output"


@whole("SC-AMB-08")
def test_the_operator_says_how_long_a_flow_lives_but_not_less_than_half_a_minute(
    own_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    bridge = Bridge(tmp_path, "gog", offering("gog"))
    short = own_desk(bridge, more="[capabilities]\nflow_ttl_seconds = 10\n")
    said = json.dumps(short.daemon.start(expect=False)) + short.daemon.log()
    assert "flow_ttl_seconds" in said
    desk = own_desk(bridge, more="[capabilities]\nflow_ttl_seconds = 90\n").open()
    flow = desk.ask(somebody(), "auth.begin", capability="gog.email")
    assert timedelta(0) < ahead(flow) <= timedelta(seconds=90)


@whole("SC-RPC-09", "SC-AUTH-09", "SC-AUTH-10", "SC-AMB-23")
@pytest.mark.parametrize(
    "given",
    [
        {"callback_url": "https://localhost/callback?code=abc&state=s"},
        {"callback_url": "<https://localhost/callback?code=abc>."},
        {"callback_url": "https://localhost/callback#code=abc"},
        {"code": "abc"},
        {"code": "code=abc"},
        {"code": "code=abc&state=s"},
        {"code": "https://localhost/callback?code=abc"},
        {"code": "(abc)."},
        {"code": "`abc`,"},
        {"code": " abc\n"},
        {"callback_url": "https://localhost/callback?code=abc", "code": "abc"},
    ],
)
def test_what_a_person_brings_back_links_one_account_of_theirs(
    desk: Desk, bridges: dict[str, Bridge], given: dict[str, str]
) -> None:
    ann = somebody()
    answers = desk.asks(
        ann,
        begin("opaque.email", "work"),
        complete(0, **given),
        invoking("opaque.email", account_ref="acct_work"),
        step("list"),
        step("auth.list"),
    )
    assert result_of(answers[1]) == {"ok": True, "account_ref": "acct_work"}
    asked = bridges["opaque"].asked("auth_complete")[-1]
    assert asked["code"] == asked["authorization_code"] == "abc"
    assert result_of(answers[2])["output"]["account"] == "acct_work"
    rows = {one["id"]: one for one in result_of(answers[3])["capabilities"]}
    assert [one["account_ref"] for one in rows["opaque.email"]["linked_accounts"]] == ["acct_work"]
    assert rows["opaque.calendar"]["linked_accounts"] == []
    assert result_of(answers[4]) == {"flows": []}
    if set(given) == {"callback_url", "code"}:  # somebody else sees nothing of it
        assert "acct_work" not in json.dumps(desk.ask(somebody(), "list"))


@whole("SC-AMB-09")
@pytest.mark.parametrize(
    ("given", "code"),
    [
        (
            {"callback_url": "https://x.example/?code=a", "code": "b"},
            "capability_auth_code_conflict",
        ),
        ({}, "capability_auth_code_missing"),
        ({"code": "  "}, "capability_auth_code_missing"),
        ({"callback_url": "https://x.example/?state=s"}, "capability_auth_code_missing"),
        ({"callback_url": "not a url"}, "capability_auth_callback_invalid"),
        ({"callback_url": "/callback?code=a"}, "capability_auth_callback_invalid"),
        ({"callback_url": "https://x.example/?code=a&code=b"}, "capability_auth_callback_invalid"),
        ({"callback_url": "https://x.example/?code=a&state=wrong"}, MISMATCH),
        ({"callback_url": "https://x.example/?error=access_denied"}, "capability_auth_flow_denied"),
        ({"callback_url": "https://x.example/?error=server_error"}, INVALID),
    ],
)
def test_what_cannot_be_used_is_said_and_asked_of_nobody(
    desk: Desk, bridges: dict[str, Bridge], given: dict[str, str], code: str
) -> None:
    ann = somebody()
    before = len(bridges["state"].asked("auth_complete"))
    named = step("auth.complete", flow_id={"$": [0, "flow_id"]}, **given)
    answers = desk.asks(ann, begin("state.email"), named)
    assert code_of(answers[1]) == code
    assert len(bridges["state"].asked("auth_complete")) == before
    assert desk.accounts(ann.user) == []


@whole("SC-AUTH-12")
def test_a_callback_with_another_state_or_none_is_refused(
    desk: Desk, bridges: dict[str, Bridge]
) -> None:
    ann = somebody()
    before = len(bridges["state"].asked("auth_complete"))
    url = "https://x.example/?code=a"
    answers = desk.asks(
        ann,
        begin("state.email"),
        complete(0, callback_url=f"{url}&state=state-4712"),
        complete(0, callback_url=url),
        complete(0, code="a"),
        complete(0, code="code=a&state=other"),
    )
    assert [code_of(one) for one in answers[1:]] == [MISMATCH] * 4
    assert len(bridges["state"].asked("auth_complete")) == before
    flow = result_of(answers[0])["flow_id"]
    right = f"{url}&state=state-4711"
    assert desk.ask(ann, "auth.complete", flow_id=flow, callback_url=right)["ok"] is True
    # And by the state alone: a callback finds its flow.
    desk.asks(ann, begin("state.calendar", "one"))
    done = desk.asks(
        ann,
        step("auth.complete_callback", callback_url=f"{url}&state=nobodys"),
        step("auth.complete_callback", callback_url=right),
    )
    assert code_of(done[0]) == MISMATCH
    assert result_of(done[1])["capability"] == "state.calendar"


@whole("SC-AUTH-02", "SC-AUTH-05", "SC-ERR-04")
def test_unknown_ended_used_and_foreign_flows_are_told_apart_by_nobody(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    quick = desk.ask(ann, "auth.begin", capability="quick.email")
    assert ahead(quick) < timedelta(seconds=7)
    early = desk.asks(ann, begin("quick.calendar", "in-time"), complete(0))
    assert result_of(early[1])["account_ref"] == "acct_in-time"
    used = desk.asks(ann, begin("gog.email", "once"), complete(0))
    foreign = desk.ask(bob, "auth.begin", capability="gog.email")
    wait_for(lambda: not desk.ask(ann, "auth.list", capability="quick.email")["flows"])
    tried = (
        "caf_" + "0" * 32,
        quick["flow_id"],
        result_of(used[0])["flow_id"],
        foreign["flow_id"],
    )
    errors = [desk.refusal(ann, "auth.complete", flow_id=flow_id, code="ok") for flow_id in tried]
    assert {one["data"]["code"] for one in errors} == {INVALID}
    assert len({one["message"] for one in errors}) == 1
    assert len({json.dumps(sorted(one["data"])) for one in errors}) == 1
    polled = [desk.refusal(ann, "auth.poll", flow_id=flow_id) for flow_id in tried]
    assert {one["message"] for one in polled} == {errors[0]["message"]}


@whole("SC-AUTH-04", "SC-AMB-32")
def test_nobody_else_can_complete_or_spoil_a_flow(desk: Desk, bridges: dict[str, Bridge]) -> None:
    ann, bob = somebody(), somebody()
    flow = desk.ask(ann, "auth.begin", capability="gog.email")["flow_id"]
    before = len(bridges["gog"].asked("auth_complete"))
    stolen = desk.asks(bob, *[step("auth.complete", flow_id=flow, code="ok")] * 6)
    assert [code_of(one) for one in stolen] == [INVALID] * 6
    assert len(bridges["gog"].asked("auth_complete")) == before
    assert desk.accounts(ann.user) == desk.accounts(bob.user) == []
    assert desk.ask(ann, "auth.complete", flow_id=flow, code="ok")["ok"] is True
    assert desk.accounts(bob.user) == []


@whole("SC-AUTH-06")
def test_a_flow_begins_only_for_what_there_is_and_may_be_used(desk: Desk) -> None:
    ann = somebody()
    answers = desk.asks(ann, begin("gog.nope"), begin("email"), begin(""))
    assert [code_of(one) for one in answers] == [
        "capability_not_found",
        "capability_invalid_input",
        "capability_invalid_input",
    ]
    assert desk.ask(ann, "auth.list") == {"flows": []}


@whole("SC-AMB-32")
def test_of_two_completions_at_once_one_succeeds(desk: Desk, bridges: dict[str, Bridge]) -> None:
    ann = somebody()
    flow = desk.ask(ann, "auth.begin", capability="slow.email")["flow_id"]
    before = len(bridges["slow"].asked("auth_complete"))
    done = desk.talk(ann, *[[step("auth.complete", flow_id=flow, code="ok")]] * 2)
    found = sorted("ok" if "result" in one else code_of(one) for [one] in done)
    assert found == [INVALID, "ok"]
    assert len(exactly(before + 1, lambda: bridges["slow"].asked("auth_complete"))) == before + 1


@whole("SC-AMB-32")
def test_a_provider_that_is_down_leaves_the_flow_and_a_denial_ends_it(
    desk: Desk, bridges: dict[str, Bridge]
) -> None:
    ann, moody = somebody(), bridges["moody"]
    down = {"error": {"code": "capability_backend_unavailable", "message": "not now"}}
    moody.plan(offering("moody", complete=down))
    answers = desk.asks(ann, begin("moody.email"), complete(0))
    assert code_of(answers[1]) == "capability_backend_unavailable"
    moody.plan(offering("moody"))
    flow = result_of(answers[0])["flow_id"]
    assert desk.ask(ann, "auth.complete", flow_id=flow, code="ok")["ok"] is True
    # Five failures are too many.
    moody.plan(offering("moody", complete=down))
    answers = desk.asks(ann, begin("moody.email", "more"), *[complete(0)] * 6)
    codes = [code_of(one) for one in answers[1:]]
    assert codes == ["capability_backend_unavailable"] * 5 + [INVALID]
    moody.plan(offering("moody"))
    # A denial ends it at once.
    answers = desk.asks(ann, begin("denying.email"), complete(0), complete(0))
    assert [code_of(one) for one in answers[1:]] == ["capability_auth_flow_denied", INVALID]


@whole("SC-AMB-34")
def test_beginning_twice_is_one_flow_and_ten_are_enough(
    desk: Desk, bridges: dict[str, Bridge]
) -> None:
    ann = somebody()
    before = len(bridges["gog"].asked("auth_begin"))
    same = desk.talk(ann, *[[begin("gog.email", "a")]] * 4)
    again, other, capability_ = desk.asks(
        ann, begin("gog.email", "a"), begin("gog.email", "b"), begin("gog.calendar", "a")
    )
    first = {result_of(one)["flow_id"] for [one] in same} | {result_of(again)["flow_id"]}
    assert len(first) == 1
    assert len({*first, result_of(other)["flow_id"], result_of(capability_)["flow_id"]}) == 3
    assert len(exactly(before + 3, lambda: bridges["gog"].asked("auth_begin"))) == before + 3
    more = desk.asks(ann, *(begin("gog.email", f"h{n}") for n in range(8)))
    assert [("result" in one) for one in more] == [True] * 7 + [False]
    assert code_of(more[7]) == "capability_rate_limited"
    assert desk.asks(somebody(), begin("gog.email"))[0]["result"]  # hers alone are too many
    done = desk.ask(ann, "auth.complete", flow_id=result_of(more[0])["flow_id"], code="ok")
    assert done["ok"] is True
    assert "result" in desk.asks(ann, begin("gog.email", "h7"))[0]


@whole("SC-AMB-23")
def test_a_link_that_carries_a_credential_links_nothing(desk: Desk) -> None:
    ann = somebody()
    answers = desk.asks(ann, begin("leaky.email"), complete(0), complete(0))
    assert code_of(answers[1]) == "capability_invalid_output"
    assert "rt-0123456789abcdef" not in json.dumps(answers)
    assert code_of(answers[2]) == INVALID  # the flow has gone with it
    assert desk.accounts(ann.user) == []
    assert "rt-0123456789abcdef" not in json.dumps(desk.daemon.audit())


@whole("SC-AMB-24")
def test_with_several_accounts_a_call_says_which(desk: Desk) -> None:
    ann, bob = somebody(), somebody()
    desk.link(bob, "gog.email", "bobs")
    desk.link(ann, "gog.email", "one")
    assert desk.invoke(ann, "gog.email")["account"] == "acct_one"
    desk.link(ann, "gog.email", "two")
    error = desk.refusal(ann, "invoke", capability="gog.email", operation="echo")
    assert error["data"]["code"] == "capability_account_ambiguous"
    assert "acct_one" in error["message"]
    assert "acct_two" in error["message"]
    for ref in ("acct_one", "acct_two"):
        assert desk.invoke(ann, "gog.email", account_ref=ref)["account"] == ref
    for ref in ("acct_bobs", "acct_three"):
        assert desk.code(ann, "gog.email", account_ref=ref) == "capability_auth_required"
    code, out, err = desk.ash(
        ann, "invoke", "-c", "gog.email", "-o", "echo", "--account", "acct_two", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out)["output"]["account"] == "acct_two"


@whole("SC-AUD-04")
def test_the_record_of_a_flow_cannot_complete_it(desk: Desk) -> None:
    ann = somebody()
    url = "https://x.example/?code=the-code-itself&state="
    answers = desk.asks(
        ann,
        begin("state.email"),
        complete(0, callback_url=f"{url}wrong-one"),
        complete(0, callback_url=f"{url}state-4711"),
    )
    flow = result_of(answers[0])["flow_id"]
    begun = desk.audit(ann, "capability_auth_begin")
    done = desk.audit(ann, "capability_auth_complete")
    assert [one["outcome"] for one in begun] == ["ok"]
    assert [(one["outcome"], one["error.code"]) for one in done] == [
        ("error", MISMATCH),
        ("ok", None),
    ]
    for row in (*begun, *done):
        assert row["capability.id"] == "state.email"
        assert row["flow_id"] != flow
        assert flow.startswith(row["flow_id"])
    everything = json.dumps(desk.daemon.audit(), ensure_ascii=False)
    for secret in ("the-code-itself", "state-4711", "wrong-one", flow):
        assert secret not in everything
    assert "the-code-itself" not in desk.daemon.log()
    error = error_of(answers[1])
    assert "state-4711" not in json.dumps(error)
