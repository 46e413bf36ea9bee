"""Tokens: who calls is what the token says, and without a valid one nothing happens."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from typing import Any

import pytest

from fakes.service_lab import KEY, FakeProvider, ServiceLab, definition
from kaged.base import ManualClock
from kaged.services.caller import ContextTokens, without_claims
from kaged.services.contract import InvokeCall
from kaged.services.errors import CapabilityError, CapabilityInvalidInput
from kaged.services.rpc import CapabilityRpc
from kaged.wire.token_keys import TokenKey
from kaged.wire.tokens import RoutingClaims, TokenRejected, mint_token
from raising import raises_code
from requirements import requirement

PARAMS: dict[str, dict[str, Any]] = {
    "capability.list": {},
    "capability.invoke": {"capability": "gog.email", "operation": "ping", "input": {}},
    "capability.auth.begin": {"capability": "gog.email"},
    "capability.auth.list": {},
    "capability.auth.complete": {"flow_id": "caf_0", "code": "c"},
    "capability.auth.complete_callback": {"code": "c"},
    "capability.auth.poll": {"flow_id": "caf_0"},
    "capability.auth.cancel": {"flow_id": "caf_0"},
    "capability.auth.revoke": {"capability": "gog.email", "account_ref": "acct_default"},
}


def _segment(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def _signed(claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    head = header or {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 1}
    text = f"{_segment(head)}.{_segment(claims)}"
    signature = base64.urlsafe_b64encode(KEY.sign(text.encode())).rstrip(b"=").decode()
    return f"{text}.{signature}"


def _claims(lab: ServiceLab, **changes: Any) -> dict[str, Any]:
    now = lab.clock.now_ms() // 1000
    found: dict[str, Any] = {
        "ver": 1,
        "sub": "alice",
        "iat": now,
        "exp": now + 300,
        "jti": "0" * 32,
    }
    found.update(changes)
    return {name: value for name, value in found.items() if value is not ...}


def _flipped(token: str, part: int) -> str:
    pieces = token.split(".")
    middle = len(pieces[part]) // 2
    letter = pieces[part][middle]
    swapped = "A" if letter != "A" else "B"
    pieces[part] = pieces[part][:middle] + swapped + pieces[part][middle + 1 :]
    return ".".join(pieces)


def test_every_method_is_in_the_table_of_this_file() -> None:
    class _Any:
        def __getattr__(self, name: str) -> Any:
            return self

    assert set(CapabilityRpc(_Any()).methods) == set(PARAMS)  # type: ignore[arg-type]


@requirement("SC-TOK-01")
@pytest.mark.parametrize("token", [..., None, ""])
async def test_every_method_wants_a_token(lab: ServiceLab, token: Any) -> None:
    for method, given in PARAMS.items():
        params = given if token is ... else {**given, "context_token": token}
        with pytest.raises(TokenRejected) as refused:
            await lab.rpc.call(method, params)
        assert refused.value.reason == "missing"
        assert refused.value.message.startswith("Invalid context token (missing)")
    assert lab.provider.calls == []
    rejected = await lab.seen("capability_token_rejected")
    assert rejected == [{"reason": "missing", "method": method} for method in PARAMS]
    assert {name for name, _ in lab.events} == {
        "capability_provider_registered",
        "capability_token_rejected",
    }
    assert await lab.rows.all_flows() == ()


@requirement("SC-TOK-02")
async def test_a_token_that_was_tampered_with_is_refused_by_every_method(lab: ServiceLab) -> None:
    good = lab.token()
    other = TokenKey(b"somebody else's signing key.....")
    unsigned = f"{_segment({'alg': 'none', 'typ': 'ASH_CONTEXT', 'ver': 1})}.{good.split('.')[1]}."
    claims = _claims(lab)
    variants = [
        _flipped(good, 0),
        _flipped(good, 1),
        _flipped(good, 2),
        mint_token(other, "alice", clock=lab.clock),
        unsigned,
        f"{good.rpartition('.')[0]}.",  # no signature at all
        _signed(claims, {"alg": "none", "typ": "ASH_CONTEXT", "ver": 1}),
        _signed(claims, {"alg": "HS512", "typ": "ASH_CONTEXT", "ver": 1}),
        _signed(claims, {"alg": "RS256", "typ": "ASH_CONTEXT", "ver": 1}),
        _signed(claims, {"alg": "HS256", "typ": "JWT", "ver": 1}),
        _signed(claims, {"alg": "HS256", "typ": "ASH_CONTEXT", "ver": 2}),
        _signed({**claims, "aud": "bridge:gog"}),
        mint_token(KEY.for_bridge("gog"), "alice", clock=lab.clock),
        good + "=",
        good.replace(".", "..", 1),
        good + ".x",
        "a.b",
        "💥.💥.💥",
    ]
    for method, params in PARAMS.items():
        for token in variants:
            with pytest.raises(TokenRejected):
                await lab.rpc.call(method, {**params, "context_token": token})
    assert lab.provider.calls == []
    assert len(await lab.seen("capability_token_rejected")) == len(variants) * len(PARAMS)


@requirement("SC-TOK-03")
async def test_a_token_counts_only_in_its_own_time(lab: ServiceLab) -> None:
    token = lab.token()
    call = {**PARAMS["capability.invoke"], "context_token": token}
    assert (await lab.rpc.call("capability.invoke", call))["ok"]
    lab.clock.set_wall(lab.clock.now_ms() - 31_000)  # issued in the future beyond the skew
    with pytest.raises(TokenRejected):
        await lab.rpc.call("capability.invoke", call)
    lab.clock.set_wall(lab.clock.now_ms() + 31_000 + 300_000 + 29_000)
    assert (await lab.rpc.call("capability.invoke", call))["ok"]
    lab.clock.set_wall(lab.clock.now_ms() + 3_000)
    with pytest.raises(TokenRejected):
        await lab.rpc.call("capability.invoke", call)


@requirement("SC-TOK-04", "SC-PROV-13")
async def test_the_provider_sees_each_claim_and_never_the_token(lab: ServiceLab) -> None:
    token = lab.token(
        "u-1",
        "private",
        chat_id="c-2",
        provider="telegram",
        thread_id="t-3",
        session_key="s-4",
        source_username="n-5",
        source_display_name="d-6",
    )
    await lab.invoke("ping", token=token)
    [call] = lab.provider.of(InvokeCall)
    assert asdict(call.context) == {
        "user_id": "u-1",
        "chat_id": "c-2",
        "chat_type": "private",
        "provider": "telegram",
        "thread_id": "t-3",
        "session_key": "s-4",
        "source_username": "n-5",
        "source_display_name": "d-6",
    }
    assert token not in repr(call)
    assert token.split(".")[1] not in repr(call)


@requirement("SC-TOK-10")
async def test_claims_that_are_absent_arrive_as_none(lab: ServiceLab) -> None:
    token = _signed(_claims(lab, jti=...))
    await lab.invoke("ping", token=token)
    [call] = lab.provider.of(InvokeCall)
    fields = asdict(call.context)
    assert fields.pop("user_id") == "alice"
    assert set(fields.values()) == {None}
    assert len(fields) == 7


@requirement("SC-TOK-05", "SC-RPC-13")
@pytest.mark.parametrize("method", ["list", "invoke", "auth.begin", "auth.complete"])
async def test_identity_beside_the_token_changes_nothing(lab: ServiceLab, method: str) -> None:
    sensitive = FakeProvider("acme", definition("acme.email", sensitive=True))
    await lab.register(sensitive)
    flow = await lab.call("auth.begin", "alice", capability="acme.email")
    forged = {
        "user_id": "bob",
        "chat_id": "c9",
        "chat_type": "private",
        "provider": "x",
        "thread_id": "x",
        "session_key": "x",
        "source_username": "x",
        "source_display_name": "x",
    }
    own: dict[str, dict[str, Any]] = {
        "list": {"include_unavailable": True},
        "invoke": {"capability": "acme.email", "operation": "ping"},
        "auth.begin": {"capability": "acme.email", "account_hint": "forged"},
        "auth.complete": {"flow_id": flow["flow_id"], "code": "c"},
    }
    group = lab.token("alice", "group")
    if method == "list":
        rows = (await lab.call("list", token=group, **own["list"], **forged))["capabilities"]
        assert {row["id"]: row["available"] for row in rows}["acme.email"] is False
    else:
        with raises_code("capability_access_denied", CapabilityError):
            await lab.call(method, token=group, **own[method], **forged)
    # The same in a private chat goes on under the token's own scope.
    answer = await lab.call(method, "alice", **own[method], **forged)
    assert answer
    users = {call.context.user_id for call in sensitive.calls}
    assert users <= {"alice"}
    assert all(call.context.chat_id is None for call in sensitive.calls)


@requirement("SC-AMB-07")
async def test_identity_parameters_are_overwritten_or_removed_and_only_named_in_the_audit(
    lab: ServiceLab,
) -> None:
    await lab.invoke("ping", user_id="bob-the-forger", chat_id="chat-of-bob")
    [call] = lab.provider.of(InvokeCall)
    assert call.context.user_id == "alice"
    assert call.context.chat_id is None
    [record] = await lab.seen("capability_invoke")
    assert record["identity_fields"] == ["chat_id", "user_id"]
    assert "bob" not in json.dumps(record)

    caller = lab.tokens.caller(lab.token("alice", "private", chat_id="real"))
    _, clean = without_claims(caller, {"chat_id": "forged", "thread_id": "forged", "input": {}})
    assert clean == {"chat_id": "real", "input": {}}


@requirement("SC-TOK-06")
@pytest.mark.parametrize("subject", [..., "", 7, " ", None, ["alice"]])
async def test_a_signed_token_without_a_user_is_refused(lab: ServiceLab, subject: Any) -> None:
    with pytest.raises(TokenRejected) as refused:
        await lab.invoke("ping", token=_signed(_claims(lab, sub=subject)))
    assert refused.value.reason == "claims"
    assert lab.provider.calls == []


@requirement("SC-TOK-07")
async def test_a_failure_stops_the_walk_at_its_step(lab: ServiceLab) -> None:
    steps: list[str] = []
    sensitive = FakeProvider("acme", definition("acme.email", sensitive=True))

    async def leak(call: InvokeCall) -> Any:
        steps.append("provider")
        return {"access_token": "x"}

    sensitive.on_invoke = leak
    await lab.register(sensitive)
    known, choose = lab.vault.known, lab.accounts.choose

    async def spy_known(scope: Any) -> Any:
        steps.append("vault")
        return await known(scope)

    async def spy_choose(*args: Any, **rest: Any) -> Any:
        steps.append("account")
        return await choose(*args, **rest)

    lab.vault.known = spy_known
    lab.accounts.choose = spy_choose
    bad: dict[str, Any] = {"capability": "acme.email", "operation": "whoami", "input": {}}
    with pytest.raises(TokenRejected):  # wrong token, group chat, not linked, leaking provider
        await lab.rpc.call("capability.invoke", {**bad, "context_token": "x.y.z"})
    assert steps == []
    with raises_code("capability_access_denied", CapabilityError):  # then only the token is good
        await lab.call("invoke", token=lab.token("alice", "group"), **bad)
    assert steps == []
    with raises_code("capability_auth_required", CapabilityError):  # then the chat is good, too
        await lab.call("invoke", **bad)
    assert steps == ["account"]
    await lab.link(capability="acme.email")
    steps.clear()
    with pytest.raises(CapabilityError) as refused:  # and then all but the output
        await lab.call("invoke", **bad)
    assert refused.value.code == "capability_invalid_output"
    assert steps == ["account", "vault", "provider", "vault"]


@requirement("SC-TOK-08", "SC-AUTH-07", "SC-ERR-03")
async def test_a_valid_token_is_not_enough(lab: ServiceLab) -> None:
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami")
    await lab.link("alice")
    assert (await lab.invoke("whoami"))["ok"]
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", "bob")


@requirement("SC-TOK-11")
async def test_no_text_anywhere_chooses_another_users_scope(lab: ServiceLab) -> None:
    await lab.link("alice")
    await lab.link("bob")
    read: list[Any] = []
    get, known = lab.vault_rows.get, lab.vault.known

    async def spy(user_id: str, capability_id: str, account_ref: str) -> Any:
        read.append((user_id, capability_id, account_ref))
        return await get(user_id, capability_id, account_ref)

    async def spy_known(scope: Any) -> Any:
        read.append((scope.user_id, scope.capability_id, scope.account_ref))
        return await known(scope)

    lab.vault_rows.get = spy
    lab.vault.known = spy_known
    answer = await lab.invoke(
        "send",
        "alice",
        given={"user_id": "bob", "account": {"user_id": "bob"}},
        user_id="bob",
        idempotency_key="user_id=bob",
        account_hint="bob",
    )
    assert answer["output"]["user"] == "alice"
    assert {key[0] for key in read} == {"alice"}
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", "alice", account_ref="bob")


@requirement("SC-AMB-05")
@pytest.mark.parametrize(
    ("reason", "token"),
    [
        ("missing", ""),
        ("format", "a.b"),
        ("decode", "!!.!!.!!"),
        ("header", "x"),
        ("signature", "y"),
        ("claims", "z"),
    ],
)
async def test_a_refused_token_names_its_reason_and_is_on_record(
    lab: ServiceLab, reason: str, token: str
) -> None:
    bad = {
        "x": _signed(_claims(lab), {"alg": "none", "typ": "ASH_CONTEXT"}),
        "y": mint_token(TokenKey(b"another key of sixteen"), "alice", clock=lab.clock),
        "z": _signed(_claims(lab, sub="")),
    }.get(token, token)
    for method in ("list", "invoke", "auth.begin", "auth.complete"):
        with pytest.raises(TokenRejected) as refused:
            await lab.call(method, token=bad, **PARAMS[f"capability.{method}"])
        assert refused.value.message.startswith(f"Invalid context token ({reason})")
    records = await lab.seen("capability_token_rejected")
    assert [one["reason"] for one in records] == [reason] * 4
    assert [one["method"] for one in records] == [
        "capability.list",
        "capability.invoke",
        "capability.auth.begin",
        "capability.auth.complete",
    ]


@requirement("SC-AUD-05")
async def test_no_part_of_a_refused_token_is_in_the_audit(lab: ServiceLab) -> None:
    good = lab.token("very-particular-user-id-0001")
    variants = {
        "missing": "",
        "format": "onlyone.segmentpair",
        "decode": "%%%%notbase64%%%%.aaaa.bbbb",
        "header": _signed(_claims(lab), {"alg": "none", "typ": "ASH_CONTEXT"}),
        "signature": _flipped(good, 2),
        "claims": _signed(_claims(lab, sub="")),
    }
    for token in variants.values():
        with pytest.raises(TokenRejected):
            await lab.invoke("ping", token=token)
    records = await lab.seen("capability_token_rejected")
    assert [one["reason"] for one in records] == list(variants)
    text = json.dumps(records)
    for token in variants.values():
        for segment in token.split("."):
            assert len(segment) < 5 or segment not in text


async def test_an_odd_key_for_a_parameter_is_no_crash(lab: ServiceLab) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await lab.call("invoke", capability=["gog.email"], operation=7, input=[])


def test_no_token_is_made_for_nobody() -> None:
    tokens = ContextTokens(KEY, ManualClock())
    assert tokens.mint(None) is None
    assert tokens.mint("  ") is None
    assert tokens.mint("alice", routing=RoutingClaims(chat_type="private")) is not None
