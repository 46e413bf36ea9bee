"""Who calls is what the host signed: tokens that are refused, and words beside a token that do
nothing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import exactly
from whole.harness.services import (
    METHODS,
    OPERATOR,
    Bridge,
    Desk,
    capability,
    code_of,
    error_of,
    invoking,
    linking,
    operation,
    read_token,
    result_of,
    signed,
    somebody,
    step,
)

KEY = "the-hosts-own-signing-key-of-32b"
HEADER = {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 1}
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "service-capabilities.md"
IDENTITY = {
    "user_id": "mallory",
    "chat_id": "elsewhere",
    "chat_type": "private",
    "provider": "carrier-pigeon",
    "thread_id": "t-9",
    "session_key": "ses_other",
    "source_username": "mallory",
    "source_display_name": "Mallory",
}


@pytest.fixture(scope="module")
def gog(module_path: Path) -> Bridge:
    plan = {
        "definitions": [
            capability("gog.email", operation("echo"), operation("ping", requires_auth=False)),
            capability("gog.secret", operation("ping", requires_auth=False), sensitive=True),
        ]
    }
    return Bridge(module_path, "gog", plan)


@pytest.fixture(scope="module")
def acme(module_path: Path) -> Bridge:
    plan = {"definitions": [capability("acme.email", operation("ping", requires_auth=False))]}
    return Bridge(module_path, "acme", plan)


@pytest.fixture(scope="module")
def desk(desks: Callable[..., Desk], gog: Bridge, acme: Bridge) -> Desk:
    return desks(gog, acme, env={"ASH_CONTEXT_TOKEN_SECRET": KEY.encode().hex()}).open()


def rejected(desk: Desk) -> Counter[tuple[str, str]]:
    """Return how often each reason is on record; the tests of this module make a flood together."""
    rows = [one["data"] for one in desk.daemon.audit("capability_token_rejected")]
    found = Counter((one["reason"], one["method"]) for one in rows)
    for folded in desk.daemon.audit("audit.folded"):
        if folded["data"]["kind"] == "capability_token_rejected":
            for one in folded["data"]["details"]:
                found[one["reason"], one["method"]] += one["count"]
    return found


def refused_token(answer: Any) -> str:
    """Return the reason for which a token was refused."""
    error = error_of(answer)
    assert error["code"] == -32602
    found = re.match(r"Invalid context token \((\w+)\)", error["message"])
    assert found is not None, error
    return found[1]


def test_the_methods_here_are_all_that_are_documented() -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    named = re.findall(r"^\| `(capability\.[\w.]+)` \|", text, re.MULTILINE)
    assert set(named) == set(METHODS)


@whole("SC-TOK-01")
def test_without_a_token_nothing_is_looked_at(desk: Desk, gog: Bridge) -> None:
    ann = somebody()
    before, seen = len(gog.calls()), rejected(desk)
    params = {"capability": "gog.email", "operation": "ping", "flow_id": "caf_1", "code": "x"}
    tries = [
        [{"method": method, "params": {**params, "account_ref": "a"}, "token": token}]
        for method in METHODS
        for token in ("absent", None, "")
    ]
    answers = desk.talk(ann, *tries)
    assert [refused_token(one) for [one] in answers] == ["missing"] * len(tries)
    assert rejected(desk) - seen == Counter({("missing", method): 3 for method in METHODS})
    assert len(gog.calls()) == before
    assert desk.audit(ann) == []
    assert desk.accounts(ann.user) == []


FORGERIES: list[tuple[str, dict[str, Any]]] = [
    ("decode", {"flip": 0}),
    ("decode", {"flip": 1}),
    ("signature", {"flip": 2}),
    ("signature", {"key": "another-key-that-nobody-gave-out"}),
    ("signature", {"claims": {"sub": "mallory"}, "key": "another-key-that-nobody-gave-out"}),
    ("header", {"header": {"alg": "none"}}),
    ("header", {"header": {"alg": "none"}, "key": KEY}),
    ("header", {"header": {"typ": "JWT"}, "key": KEY}),
    ("claims", {"claims": {"sub": "mallory"}, "key": KEY}),
    ("claims", {"claims": {"chat_type": "private"}, "key": KEY}),
]


@whole("SC-TOK-02")
def test_a_token_that_was_changed_in_any_way_is_refused_by_every_method(
    desk: Desk, gog: Bridge
) -> None:
    """Even one that is signed with the host's own key: it is not this cage's."""
    ann = somebody("group")
    before = len(gog.calls())
    params = {"capability": "gog.email", "operation": "ping", "flow_id": "caf_1", "code": "x"}
    tries = [
        [{"method": method, "params": params, "forge": how} for _, how in half]
        for method in METHODS
        for half in (FORGERIES[:5], FORGERIES[5:])
    ]
    answers = desk.talk(ann, *tries)
    for found, wanted in zip(answers, tries, strict=True):
        reasons = [reason for reason, how in FORGERIES if how in [one["forge"] for one in wanted]]
        for answer, reason in zip(found, reasons, strict=True):
            # A changed letter of base64 may still be JSON; it is refused one step later then.
            assert refused_token(answer) in {reason, "header" if reason == "decode" else reason}, (
                wanted
            )
    assert len(gog.calls()) == before


REASONS: list[tuple[str, dict[str, Any]]] = [
    ("missing", {"token": " "}),
    ("format", {"token": "only.two"}),
    ("decode", {"token": "a b.c.d"}),
    ("header", {"forge": {"header": {"alg": "none"}}}),
    ("signature", {"forge": {"key": "another-key-that-nobody-gave-out"}}),
    ("claims", {"forge": {"claims": {"sub": "mallory"}, "key": KEY}}),
]


@whole("SC-AUD-05", "SC-AMB-05")
def test_every_reason_is_on_record_once_with_the_method_and_nothing_of_the_token(
    desk: Desk,
) -> None:
    seen = rejected(desk)
    tries = [[{"method": method, **bad} for _, bad in REASONS] for method in METHODS]
    answers = desk.talk(somebody(), *tries)
    for found in answers:
        assert [refused_token(one) for one in found] == [reason for reason, _ in REASONS]
    wanted = Counter({(reason, method): 1 for reason, _ in REASONS for method in METHODS})
    assert rejected(desk) - seen == wanted
    rows = [one["data"] for one in desk.daemon.audit("capability_token_rejected")]
    assert all(set(one) == {"reason", "method"} for one in rows)


@whole("SC-TOK-03", "SC-TOK-06")
def test_a_token_has_a_time_and_a_user_or_it_is_none(desk: Desk) -> None:
    """Checked as a bridge written in shell checks it: with the key, by `kaged bridge claims`."""
    said = desk.run(OPERATOR, 'printf %s "$ASH_CONTEXT_TOKEN"')["stdout"]
    now = read_token(said)[1]["iat"]
    base = {"ver": 1, "sub": "ann", "iat": now, "exp": now + 300, "aud": "bridge:gog"}

    def claims(**changed: Any) -> tuple[int, str]:
        merged = {**base, **changed}
        payload = {key: value for key, value in merged.items() if value != "absent"}
        done = desk.daemon.cli(
            *("bridge", "claims", "-n", "gog"),
            stdin=signed(KEY.encode(), HEADER, payload),
            env={"ASH_CONTEXT_TOKEN_SECRET": KEY.encode().hex()},
            code=None,
        )
        return done.code, done.out

    code, out = claims()
    assert (code, json.loads(out)["sub"]) == (0, "ann")
    assert claims(iat=now - 310, exp=now - 10)[0] == 0  # within the allowed skew
    for bad in (
        {"iat": now - 400, "exp": now - 100},
        {"iat": now + 120, "exp": now + 300},
        {"sub": "absent"},
        {"sub": ""},
        {"sub": 7},
        {"sub": " "},
    ):
        assert claims(**bad) == (6, ""), bad
    # And over the channel, where nobody but the host makes tokens at all.
    ann = somebody()
    for changed in ({"sub": "absent"}, {"sub": ""}, {"exp": now - 100}, {"iat": now + 120}):
        forge = {"claims": changed, "key": KEY}
        [answer] = desk.asks(ann, {"method": METHODS[0], "params": {}, "forge": forge})
        assert refused_token(answer) == "claims"


@whole("SC-TOK-04", "SC-TOK-10", "SC-AMB-10")
def test_a_bridge_is_told_what_the_cages_token_says_and_nothing_else(
    desk: Desk, gog: Bridge
) -> None:
    routing = set(IDENTITY) - {"user_id"} | {"sub"}
    people = (somebody(), somebody("supergroup"), OPERATOR)
    for person in people:
        said = desk.run(
            person,
            'printf %s "$ASH_CONTEXT_TOKEN"; '
            "ash-sb capability invoke -c gog.email -o ping --json >/dev/null",
        )
        header, own = read_token(said["stdout"])
        assert header == HEADER
        assert own["exp"] - own["iat"] >= 300
        assert own["ver"] == 1
        assert re.fullmatch(r"[0-9a-f]{32}", own["jti"])
        told = read_token(gog.asked("invoke")[-1]["context_token"])[1]
        assert {name: told.get(name) for name in routing} == {n: own.get(n) for n in routing}
        assert own["sub"] == (person.user or "operator")
        assert own.get("chat_type") == "private" if person is OPERATOR else person.chat_type
        if person is not OPERATOR:
            assert (own["chat_id"], own["chat_type"]) == (person.chat_id, person.chat_type)
            # Nobody said anything about these, so they are not there.
            assert {"thread_id", "source_username", "source_display_name"}.isdisjoint(told)
        assert own["session_key"].startswith("ses_")
    bare = somebody()
    desk.run(type(bare)(bare.user, "", ""), "ash-sb capability invoke -c gog.email -o ping")
    told = read_token(gog.asked("invoke")[-1]["context_token"])[1]
    assert told["sub"] == bare.user
    assert {"chat_id", "chat_type", "thread_id"}.isdisjoint(told)


@whole("SC-TOK-05", "SC-RPC-13", "SC-AMB-07")
def test_what_a_caller_says_about_itself_beside_the_token_changes_nothing(
    desk: Desk, gog: Bridge
) -> None:
    ann, bob = somebody(), somebody()
    desk.link(ann, "gog.email", "anns")
    desk.link(bob, "gog.email", "bobs")
    lies = {**IDENTITY, "user_id": bob.user, "chat_id": bob.chat_id}
    listed, invoked, begun, done = desk.asks(
        ann,
        step("list", **lies),
        invoking("gog.email", **lies),
        step("auth.begin", capability="gog.email", account_hint="more", **lies),
        step("auth.complete", flow_id={"$": [2, "flow_id"]}, code="x", **lies),
    )
    [row] = [one for one in result_of(listed)["capabilities"] if one["id"] == "gog.email"]
    assert [one["account_ref"] for one in row["linked_accounts"]] == ["acct_anns"]
    output = result_of(invoked)["output"]
    assert (output["account"], output["claims"]["sub"]) == ("acct_anns", ann.user)
    assert output["claims"]["chat_id"] == ann.chat_id
    assert {"thread_id", "source_username"}.isdisjoint(output["claims"])
    result_of(begun)
    assert result_of(done)["account_ref"] == "acct_more"
    for method in ("auth_begin", "auth_complete"):
        told = read_token(gog.asked(method)[-1]["context_token"])[1]
        assert (told["sub"], told["chat_id"]) == (ann.user, ann.chat_id), method
    assert {one["account_ref"] for one in desk.accounts(ann.user)} == {"acct_anns", "acct_more"}
    assert [one["account_ref"] for one in desk.accounts(bob.user)] == ["acct_bobs"]
    # The names are on record, the values are not.
    [invoke] = desk.audit(ann, "capability_invoke")
    assert invoke["identity_fields"] == sorted(IDENTITY)
    everything = json.dumps(desk.audit(ann))
    assert "mallory" not in everything
    assert bob.user not in everything
    # From a group, saying "private" does not open what is for private chats.
    group = ann.in_chat("group")
    for method in ("invoke", "auth.begin"):
        refused = desk.refusal(
            group, method, capability="gog.secret", operation="ping", chat_type="private"
        )
        assert refused["data"]["code"] == "capability_access_denied", method


@whole("SC-TOK-11")
@pytest.mark.parametrize("place", ["input", "account_ref", "account_hint", "idempotency_key"])
def test_no_word_anywhere_picks_somebody_elses_account(desk: Desk, gog: Bridge, place: str) -> None:
    ann, bob = somebody(), somebody()
    desk.link(ann, "gog.email", "mine")
    desk.link(bob, "gog.email", "bobs")
    value: Any = {"user_id": bob.user} if place == "input" else bob.user
    if place == "account_ref":
        assert desk.code(ann, "gog.email", account_ref="acct_bobs") == "capability_auth_required"
        assert desk.code(ann, "gog.email", account_ref=bob.user) == "capability_auth_required"
        assert gog.asked("invoke", account_ref="acct_bobs") == []
    else:
        output = desk.invoke(ann, "gog.email", **{place: value})
        assert (output["account"], output["claims"]["sub"]) == ("acct_mine", ann.user)


@whole("SC-TOK-08", "SC-ERR-03", "SC-AUTH-07", "SC-AUTH-08")
def test_a_good_token_is_not_yet_an_account(desk: Desk, gog: Bridge) -> None:
    ann, bob = somebody(), somebody()
    assert desk.code(ann, "gog.email") == "capability_auth_required"
    before = len(gog.calls())
    ping = desk.invoke(ann, "gog.email", "ping")
    assert ping["account"] is None
    assert len(gog.calls()) == before + 1
    desk.link(ann, "gog.email")
    assert desk.invoke(ann, "gog.email")["account"] == "acct_default"
    assert desk.code(bob, "gog.email") == "capability_auth_required"


@whole("SC-SEC-06", "SC-AMB-11")
def test_bridges_have_keys_of_their_own_and_none_of_them_opens_the_host(
    desk: Desk, gog: Bridge, acme: Bridge
) -> None:
    ann = somebody()
    desk.asks(ann, invoking("gog.email", "ping"), invoking("acme.email", "ping"))
    keys = {
        one.name: one.log("invoke")[-1]["env"]["ASH_CONTEXT_TOKEN_SECRET"] for one in (gog, acme)
    }
    assert len({*keys.values(), KEY, KEY.encode().hex()}) == 4
    for one in (gog, acme):
        token = one.asked("invoke")[-1]["context_token"]
        assert read_token(token)[1]["aud"] == f"bridge:{one.name}"
        # Unmodified bridges verify it with their key; the other bridge's key does not fit.
        for name, key in keys.items():
            done = desk.daemon.cli(
                *("bridge", "claims", "-n", one.name),
                stdin=token,
                env={"ASH_CONTEXT_TOKEN_SECRET": key},
                code=None,
            )
            assert done.code == (0 if name == one.name else 6)
        # Nor does the host take it for a sandbox's.
        [answer] = desk.asks(ann, {"method": METHODS[1], "params": {}, "token": token})
        assert refused_token(answer) in {"signature", "claims"}
    # Nothing in the cage holds the host's key, in any spelling, nor a bridge's.
    said = desk.run(ann, "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'")
    secrets = (KEY, KEY.encode().hex(), *keys.values())
    assert "ASH_CONTEXT_TOKEN=" in said["stdout"]
    for secret in secrets:
        assert secret not in said["stdout"]
        # Put together inside, so that the question itself is not what is found.
        found = desk.run(
            ann,
            f"a='{secret[:20]}'; b='{secret[20:]}'; "
            'grep -rlF -D skip -e "$a$b" / --exclude-dir=proc --exclude-dir=sys '
            "--exclude-dir=usr --exclude-dir=dev 2>/dev/null; true",
        )
        assert found["stdout"] == ""
    # What is forged inside is refused.
    forge = {"claims": {"sub": "mallory"}, "key": "whatever somebody inside could think of"}
    [answer] = desk.asks(ann, {"method": METHODS[0], "params": {}, "forge": forge})
    assert refused_token(answer) == "signature"


@whole("SC-TOK-07")
def test_a_call_stops_at_the_first_step_that_fails(desk: Desk, gog: Bridge) -> None:
    """One request with everything wrong; each mend moves the refusal one step further."""
    group = somebody("group")
    before = len(gog.calls())
    wrong = {"capability": "gog.secret", "operation": "none", "input": [], "account_ref": "x"}
    bad, denied = desk.asks(
        group,
        {"method": METHODS[1], "params": wrong, "token": "x.y.z"},
        step("invoke", **wrong),
    )
    assert refused_token(bad) == "decode"
    assert code_of(denied) == "capability_access_denied"
    person = group.in_chat("private", "c-9")
    codes = [
        code_of(one)
        for one in desk.asks(
            person,
            step("invoke", **wrong),
            step("invoke", **{**wrong, "operation": "ping"}),
            step("invoke", **{**wrong, "operation": "ping", "account_ref": None}),
        )
    ]
    assert codes == [
        "capability_invalid_input",
        "capability_auth_required",
        "capability_invalid_input",
    ]
    assert len(gog.calls()) == before
    gates = [one.get("gate") for one in desk.audit(person, "capability_invoke")]
    assert gates == ["capability", "operation", "account", "input"]
    right = {"capability": "gog.secret", "operation": "ping"}
    result_of(desk.asks(person, step("invoke", **right))[0])
    assert len(exactly(before + 1, gog.calls)) == before + 1


@whole("SC-RPC-07")
def test_one_call_is_one_operation_of_one_person(desk: Desk, gog: Bridge) -> None:
    ann = somebody()
    before = len(gog.log("invoke"))
    answers = desk.asks(ann, *linking("gog.email"), invoking("gog.email", input={"n": 1}))
    assert result_of(answers[-1])["ok"] is True
    mine = exactly(before + 1, lambda: gog.log("invoke"))[before:]
    told = read_token(mine[0]["request"]["params"]["context_token"])[1]
    assert (told["sub"], mine[0]["request"]["params"]["operation"]) == (ann.user, "echo")
