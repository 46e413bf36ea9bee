"""Calls: their answers, idempotency, consent, and what is on record of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fakes.audit_sink import MemorySink
from fakes.service_lab import FakeProvider, ServiceLab, definition, operations
from kaged.base import JsonObject
from kaged.kernel.identity import Actor, VouchedBy
from kaged.services.contract import (
    AuthBeginCall,
    CapabilityAuthBeginResult,
    CapabilityOperation,
    InvokeCall,
)
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
)
from raising import raises_code
from requirements import requirement


@pytest.fixture
async def linked(lab: ServiceLab) -> ServiceLab:
    await lab.link()
    lab.provider.calls.clear()
    return lab


# ---- answers


@requirement("SC-RPC-01", "SC-RPC-02")
async def test_list_has_one_key_and_rows_of_known_shape(linked: ServiceLab) -> None:
    asked: list[dict[str, Any]] = [{}, {"include_unavailable": True}]
    for params in asked:
        answer = await linked.call("list", **params)
        assert set(answer) == {"capabilities"}
        [row] = answer["capabilities"]
        assert isinstance(row["id"], str)
        assert isinstance(row["description"], str)
        assert isinstance(row["available"], bool)
        assert isinstance(row["requires_auth"], bool)
    with pytest.raises(CapabilityInvalidInput):
        await linked.call("list", include_unavailable="yes")
    detailed = await linked.call("list", include_operations=True)
    names = [one["name"] for one in detailed["capabilities"][0]["operation_details"]]
    assert names == ["list_messages", "ping", "send", "whoami"]


@requirement("SC-RPC-03", "SC-RPC-04", "SC-RPC-14", "SC-AMB-20")
async def test_a_group_chat_learns_nothing_of_private_accounts(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    await lab.register(FakeProvider("gog", definition(sensitive=True)))
    await lab.link("alice")

    async def rows(user: str, chat: str, **params: Any) -> list[Any]:
        token = lab.token(user, chat)
        found: list[Any] = (await lab.call("list", token=token, **params))["capabilities"]
        return found

    [private] = await rows("alice", "private")
    assert private["available"] is True
    assert private["authenticated"] is True
    assert private["requires_auth"] is True
    [unlinked] = await rows("bob", "private")
    assert unlinked["available"] is True  # being linked or not does not matter
    assert await rows("alice", "group") == []
    [hidden] = await rows("alice", "group", include_unavailable=True)
    assert hidden["available"] is False
    assert [hidden] == await rows("bob", "group", include_unavailable=True)
    assert "acct" not in json.dumps(hidden)


@requirement("SC-RPC-05", "SC-RPC-06", "SC-RPC-07")
async def test_invoke_runs_one_operation_and_names_the_call(linked: ServiceLab) -> None:
    lab = linked
    wrong: list[dict[str, Any]] = [
        {"operation": "ping"},
        {"capability": "gog.email"},
        {"capability": "gog.email", "operation": "ping", "input": []},
    ]
    for broken in wrong:
        with pytest.raises(CapabilityInvalidInput):
            await lab.call("invoke", **broken)
    assert lab.provider.calls == []
    answer = await lab.call("invoke", capability="gog.email", operation="whoami")
    assert set(answer) == {"ok", "output", "request_id"}
    assert answer["ok"] is True
    assert isinstance(answer["output"], dict)
    [call] = lab.provider.calls
    assert (call.operation, call.context.user_id, call.idempotency_key) == ("whoami", "alice", None)
    token = lab.token()
    ids = [(await lab.invoke("ping", token=token))["request_id"] for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(one.startswith("cap_") for one in ids)
    assert len(lab.provider.calls) == 1001
    audited = {record["request_id"] for record in await lab.seen("capability_invoke")}
    assert set(ids) <= audited


@requirement("SC-AMB-24")
async def test_the_account_is_the_only_one_or_the_named_one(lab: ServiceLab) -> None:
    await lab.link(hint="work")
    assert (await lab.invoke("whoami"))["output"]["account"] == "acct_work"
    await lab.link(hint="home")
    with raises_code("capability_account_ambiguous", CapabilityError) as several:
        await lab.invoke("whoami")
    assert "acct_home" in several.value.message
    assert "acct_work" in several.value.message
    assert (await lab.invoke("whoami", account_ref="acct_home"))["output"]["account"] == "acct_home"
    await lab.link("bob", hint="bobs")
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", account_ref="acct_bobs")


@requirement("SC-PROV-08")
@pytest.mark.parametrize(
    "key",
    [
        "access_token",
        "refresh_token",
        "id_token",
        "client_secret",
        "cookie",
        "Set-Cookie",
        "authorization",
    ],
)
async def test_an_output_with_a_credential_is_refused_whole(linked: ServiceLab, key: str) -> None:
    shapes: list[JsonObject] = [
        {key: "v", "marker": "MARKER"},
        {"outer": {"inner": {key: "v"}}, "marker": "MARKER"},
        {"items": [{"fine": 1}, {key: None}], "marker": "MARKER"},
    ]
    for shape in shapes:

        async def leak(call: InvokeCall, shape: JsonObject = shape) -> JsonObject:
            return shape

        linked.provider.on_invoke = leak
        with pytest.raises(CapabilityInvalidOutput) as refused:
            await linked.invoke("whoami")
        assert "MARKER" not in str(refused.value)
    rejected = await linked.seen("capability_output_rejected")
    assert len(rejected) == 3
    assert "MARKER" not in json.dumps(rejected)


@requirement("SC-AMB-21")
async def test_an_output_must_match_its_schema(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    wanted: JsonObject = {"type": "object", "required": ["messages"]}
    listing = CapabilityOperation("ls", "List.", requires_auth=False, output_schema=wanted)
    provider = FakeProvider("gog", definition(operations=operations(listing)))
    await lab.register(provider)
    assert (await lab.invoke("ls"))["ok"]

    async def nothing(call: InvokeCall) -> JsonObject:
        return {"other": 1}

    provider.on_invoke = nothing
    with pytest.raises(CapabilityInvalidOutput):
        await lab.invoke("ls")
    remote = CapabilityOperation(
        "ls", "List.", input_schema={"$ref": "https://schemas.example/x.json"}
    )
    with pytest.raises(CapabilityInvalidInput):
        await lab.register(FakeProvider("acme", definition("acme.x", operations={"ls": remote})))
    broken = CapabilityOperation("ls", "List.", input_schema={"type": "no such type"})
    with pytest.raises(CapabilityInvalidInput):
        await lab.register(FakeProvider("acme", definition("acme.x", operations={"ls": broken})))
    assert lab.registry.provider("acme") is None


@requirement("SC-SEC-08")
async def test_a_providers_own_words_are_not_repeated(linked: ServiceLab) -> None:
    async def fail(call: InvokeCall) -> JsonObject:
        raise RuntimeError("MARKER-77 token=abc /etc/secret")

    linked.provider.on_invoke = fail
    with pytest.raises(CapabilityBackendUnavailable) as failed:
        await linked.invoke("whoami")
    assert "MARKER" not in str(failed.value)

    async def says(call: InvokeCall) -> JsonObject:
        credential = await call.credentials.get() if call.credentials else None
        secret = (credential or {})["refresh_token"]
        raise CapabilityBackendUnavailable(f"upstream said: {secret} Bearer abcdef0123456789abcd")

    linked.provider.on_invoke = says
    with pytest.raises(CapabilityBackendUnavailable) as failed:
        await linked.invoke("whoami")
    assert "refresh-alice" not in str(failed.value)
    assert "abcdef0123456789" not in str(failed.value)
    assert "upstream said" in str(failed.value)


async def test_a_provider_that_takes_too_long_is_given_up(empty_lab: ServiceLab) -> None:
    provider = FakeProvider()
    await empty_lab.register(provider, timeout_s=0.05)

    async def hang(call: InvokeCall) -> JsonObject:
        await asyncio.Event().wait()
        return {}

    provider.on_invoke = hang
    with pytest.raises(CapabilityBackendUnavailable):
        await empty_lab.invoke("ping")


# ---- idempotency


@requirement("SC-RPC-12")
async def test_a_repeat_with_the_same_key_does_nothing_twice(linked: ServiceLab) -> None:
    first = await linked.invoke("send", given={"to": "x"}, idempotency_key="k1")
    again = await linked.invoke("send", given={"to": "x"}, idempotency_key="k1")
    assert len(linked.provider.calls) == 1
    assert again["output"] == first["output"]
    assert again["request_id"] == first["request_id"]
    assert again["replayed"] is True
    assert "replayed" not in first


@requirement("SC-AMB-19")
async def test_each_clause_of_idempotency(linked: ServiceLab) -> None:
    lab = linked
    send: dict[str, Any] = {"given": {"to": "x"}}
    await lab.invoke("send", idempotency_key="k", **send)
    # Another input is a conflict; order of keys is not another input.
    with raises_code("capability_idempotency_conflict", CapabilityError):
        await lab.invoke("send", given={"to": "y"}, idempotency_key="k")
    await lab.invoke("send", given={"a": 1, "b": 2}, idempotency_key="order")
    assert (await lab.invoke("send", given={"b": 2, "a": 1}, idempotency_key="order"))["replayed"]
    # The scope has the user, the capability, the operation and the account in it.
    await lab.link("bob")
    count = len(lab.provider.of(InvokeCall))
    await lab.invoke("send", "bob", idempotency_key="k", **send)
    assert len(lab.provider.of(InvokeCall)) == count + 1
    # A repeat while it runs waits, and the provider is called once.
    started, go = asyncio.Event(), asyncio.Event()

    async def slow(call: InvokeCall) -> JsonObject:
        started.set()
        await go.wait()
        return {"sent": True}

    lab.provider.on_invoke = slow
    count = len(lab.provider.of(InvokeCall))
    one = lab.tasks.start(lab.invoke("send", idempotency_key="both", **send), "call")
    await started.wait()
    two = lab.tasks.start(lab.invoke("send", idempotency_key="both", **send), "call")
    for _ in range(20):
        await asyncio.sleep(0)
    go.set()
    first, second = await asyncio.gather(one, two)
    assert len(lab.provider.of(InvokeCall)) == count + 1
    assert second["replayed"] is True
    assert first["request_id"] == second["request_id"]

    # A crash after dispatch is unknown, and stays so.
    async def crash(call: InvokeCall) -> JsonObject:
        raise OSError("gone")

    lab.provider.on_invoke = crash
    with pytest.raises(CapabilityBackendUnavailable):
        await lab.invoke("send", idempotency_key="lost", **send)
    lab.provider.on_invoke = None
    count = len(lab.provider.of(InvokeCall))
    with raises_code("capability_outcome_unknown", CapabilityError):
        await lab.invoke("send", idempotency_key="lost", **send)
    assert len(lab.provider.of(InvokeCall)) == count
    # Kept for a day.
    lab.clock.advance(24 * 3600 - 60)
    assert (await lab.invoke("send", idempotency_key="both", **send))["replayed"]
    lab.clock.advance(120)
    assert "replayed" not in await lab.invoke("send", idempotency_key="both", **send)

    # What changes nothing only carries the key.
    lab.provider.calls.clear()
    await lab.invoke("whoami", idempotency_key="r")
    await lab.invoke("whoami", idempotency_key="r")
    assert [call.idempotency_key for call in lab.provider.calls] == ["r", "r"]


async def test_what_never_reached_the_provider_may_be_tried_again(linked: ServiceLab) -> None:
    async def refuse(call: InvokeCall) -> JsonObject:
        raise CapabilityError("log in again", code="capability_auth_required")

    linked.provider.on_invoke = refuse
    with raises_code("capability_auth_required", CapabilityError):
        await linked.invoke("send", idempotency_key="k")
    linked.provider.on_invoke = None
    assert "replayed" not in await linked.invoke("send", idempotency_key="k")

    async def wrong(call: InvokeCall) -> JsonObject:
        raise CapabilityInvalidInput("no such recipient")

    linked.provider.on_invoke = wrong
    for _ in range(2):
        with pytest.raises(CapabilityInvalidInput, match="no such recipient"):
            await linked.invoke("send", idempotency_key="bad")
    assert len(linked.provider.of(InvokeCall)) == 3


async def test_a_captured_request_cannot_do_its_work_twice(linked: ServiceLab) -> None:
    token = linked.token()
    first = await linked.invoke("send", given={"to": "x"}, token=token)
    again = await linked.invoke("send", given={"to": "x"}, token=token)
    assert again["replayed"] is True
    assert again["request_id"] == first["request_id"]
    assert len(linked.provider.calls) == 1
    assert "replayed" not in await linked.invoke("send", given={"to": "y"}, token=token)
    assert "replayed" not in await linked.invoke("send", given={"to": "x"})  # a fresh token


async def test_an_output_too_large_to_keep_is_replayed_as_done(linked: ServiceLab) -> None:
    async def big(call: InvokeCall) -> JsonObject:
        return {"text": "word " * 60_000}

    linked.provider.on_invoke = big
    await linked.invoke("send", idempotency_key="k")
    again = await linked.invoke("send", idempotency_key="k")
    assert again["output"] == {"status": "completed"}


@pytest.mark.parametrize("key", ["x" * 256, "a b", "a\nb", 7, ["k"]])
async def test_a_malformed_key_is_refused(linked: ServiceLab, key: Any) -> None:
    with pytest.raises(CapabilityInvalidInput):
        await linked.invoke("send", idempotency_key=key)
    assert linked.provider.calls == []


async def test_a_caller_that_goes_away_leaves_an_unknown_outcome(linked: ServiceLab) -> None:
    started = asyncio.Event()
    ended: list[str] = []

    async def slow(call: InvokeCall) -> JsonObject:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return {}

    linked.provider.on_invoke = slow
    task = linked.tasks.start(linked.invoke("send", idempotency_key="k"), "call")
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cancelled"]
    linked.provider.on_invoke = None
    with raises_code("capability_outcome_unknown", CapabilityError):
        await linked.invoke("send", idempotency_key="k")


@requirement("SC-AMB-40")
async def test_what_was_under_way_when_the_host_died_is_unknown_afterwards(
    tmp_path: Path,
) -> None:
    """The host is not closed but left behind, as SIGKILL leaves it: nothing more is written."""
    lab = await ServiceLab(tmp_path).open()
    await lab.register()
    flow = await lab.call("auth.begin", capability="gog.email", account_hint="later")
    await lab.link()
    started = asyncio.Event()

    async def hang(call: InvokeCall) -> JsonObject:
        started.set()
        await asyncio.Event().wait()
        return {}

    lab.provider.on_invoke = hang
    running = lab.tasks.start(lab.invoke("send", idempotency_key="k"), "call")
    await started.wait()
    copy = tmp_path / "after"
    copy.mkdir()
    await lab.store.backup(copy / "kaged.db")
    (copy / "vault.key").write_bytes((tmp_path / "vault.key").read_bytes())
    (copy / "vault.key").chmod(0o600)
    again = await ServiceLab(copy, lab.clock).open()
    await again.register()
    assert await again.calls.settle() == 1
    with raises_code("capability_outcome_unknown", CapabilityError):
        await again.invoke("send", idempotency_key="k")
    assert again.provider.calls == []
    assert (await again.invoke("whoami"))["ok"]
    assert (await again.call("auth.complete", flow_id=flow["flow_id"], code="c"))["ok"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await again.close()
    await lab.close()


# ---- consent

OPERATOR = Actor.operator("op", VouchedBy.UNIX)


async def test_an_operation_waits_for_its_owners_consent(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    provider = FakeProvider()
    await lab.register(provider, confirm=("email.send",))
    await lab.link()
    provider.calls.clear()
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send", given={"to": "x"})
    plan = waits.value.data["plan_id"]
    assert isinstance(plan, str)
    assert provider.calls == []
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send", given={"to": "x"})
    assert waits.value.data["plan_id"] == plan  # asked once
    [shown] = await lab.consents.list(OPERATOR)
    assert "to: x" in shown.summary
    # Nothing a sandbox sends confirms it.
    with raises_code("capability_mutation_not_confirmed", CapabilityError):
        await lab.invoke("send", given={"to": "x"}, mutation_plan_id=plan, confirmed=True)
    assert await lab.consents.decide(plan, allowed=True, who=OPERATOR) is not None
    with raises_code("capability_mutation_plan_mismatch", CapabilityError):
        await lab.invoke("send", given={"to": "y"}, mutation_plan_id=plan)
    await lab.link("bob")
    with raises_code("capability_mutation_plan_mismatch", CapabilityError):
        await lab.invoke("send", "bob", given={"to": "x"}, mutation_plan_id=plan)
    assert (await lab.invoke("send", given={"to": "x"}, mutation_plan_id=plan))["ok"]
    with raises_code("capability_mutation_not_confirmed", CapabilityError):  # used once
        await lab.invoke("send", given={"to": "x"}, mutation_plan_id=plan)
    assert (await lab.invoke("whoami"))["ok"]  # reading needs none


@pytest.mark.parametrize("other", ["account", "thread", "no thread", "chat"])
async def test_a_consent_is_for_the_account_the_thread_and_the_chat_it_was_asked_in(
    empty_lab: ServiceLab, other: str
) -> None:
    lab = empty_lab
    provider = FakeProvider()
    await lab.register(provider, confirm=("email.send",))
    here = {"token": lab.token(thread_id="t-1"), "account_ref": await lab.link(hint="one")}
    there: dict[str, Any] = dict(here)
    second = await lab.link(hint="two")
    match other:
        case "account":
            there["account_ref"] = second
        case "thread":
            there["token"] = lab.token(thread_id="t-2")
        case "chat":
            there["token"] = lab.token(thread_id="t-1", chat_id="c-2")
        case _:
            there["token"] = lab.token()
    provider.calls.clear()
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send", given={"to": "x"}, **here)
    plan = str(waits.value.data["plan_id"])
    await lab.consents.decide(plan, allowed=True, who=OPERATOR)
    with raises_code("capability_mutation_plan_mismatch", CapabilityError):
        await lab.invoke("send", given={"to": "x"}, mutation_plan_id=plan, **there)
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send", given={"to": "x"}, **there)
    assert waits.value.data["plan_id"] != plan
    assert provider.calls == []
    assert (await lab.invoke("send", given={"to": "x"}, **here))["ok"]


async def test_a_refused_or_stale_consent_does_not_count(empty_lab: ServiceLab) -> None:
    lab = empty_lab
    await lab.register(FakeProvider(), confirm=("email.*",))
    await lab.link()
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send")
    plan = str(waits.value.data["plan_id"])
    await lab.consents.decide(plan, allowed=False, who=OPERATOR)
    assert await lab.consents.decide(plan, allowed=True, who=OPERATOR) is None
    with raises_code("capability_mutation_not_confirmed", CapabilityError, match="denied"):
        await lab.invoke("send", mutation_plan_id=plan)
    with raises_code("capability_mutation_not_confirmed", CapabilityError) as waits:
        await lab.invoke("send")
    late = str(waits.value.data["plan_id"])
    assert late != plan
    lab.clock.advance(1801)
    assert await lab.consents.decide(late, allowed=True, who=OPERATOR) is None


# ---- audit


@requirement("SC-AUD-01", "SC-AMB-31")
async def test_every_call_leaves_one_record(linked: ServiceLab) -> None:
    lab = linked
    answer = await lab.invoke(
        "list_messages", given={"folder": "VALUE-OF-INPUT"}, token=lab.token("alice", chat_id="c1")
    )
    [record] = await lab.seen("capability_invoke")
    assert record["outcome"] == "ok"
    assert record["request_id"] == answer["request_id"]
    assert record["capability.id"] == "gog.email"
    assert record["operation"] == "list_messages"
    assert record["user_id"] == "alice"
    assert record["chat_id"] == "c1"
    assert record["chat_type"] == "private"
    assert record["account_ref"] == "acct_default"
    assert record["input_keys"] == ["folder"]
    assert record["mutating"] is False
    assert record["error.code"] is None
    assert record["duration_ms"] >= 0
    assert len(record["token_id"]) == 32
    assert "VALUE-OF-INPUT" not in json.dumps(await lab.seen())
    await lab.invoke("send", idempotency_key="k")
    await lab.invoke("send", idempotency_key="k")
    outcomes = [one["outcome"] for one in await lab.seen("capability_invoke")]
    assert outcomes == ["ok", "ok", "replayed"]
    assert len(await lab.seen("capability_invoke_intent")) == 1


@requirement("SC-AMB-31")
async def test_a_call_that_cannot_be_recorded_is_not_made(tmp_path: Path) -> None:
    sink = MemorySink()
    lab = await ServiceLab(tmp_path).open(sink=sink)
    await lab.register(FakeProvider("gog", definition(sensitive=True)))
    provider = lab.registry.provider("gog")
    assert provider is not None
    fake = provider.provider
    assert isinstance(fake, FakeProvider)
    await lab.link()
    await lab.audit.flush()
    fake.calls.clear()
    sink.fail_with = OSError("disk full")
    for operation in ("send", "whoami", "send"):  # one that changes, one that is sensitive
        with pytest.raises(CapabilityBackendUnavailable):
            await lab.invoke(operation)
        await asyncio.sleep(0)
        if operation == "send":
            assert fake.calls == []
            with pytest.raises(CapabilityError):
                await lab.invoke(operation)
    assert fake.calls == []
    sink.fail_with = None
    await lab.audit.retry()
    assert (await lab.invoke("send"))["ok"]
    await lab.close()


@requirement("SC-AUD-02", "SC-AUD-04")
async def test_no_record_holds_a_token_a_code_or_a_state(lab: ServiceLab) -> None:
    async def begin(call: AuthBeginCall) -> CapabilityAuthBeginResult:
        return CapabilityAuthBeginResult(
            "https://login.example/?q=QUERY-VALUE",
            flow_state={"verifier": "VERIFIER-VALUE-0001"},
            expected_callback_state="STATE-VALUE-0001",
        )

    lab.provider.on_begin = begin
    token = lab.token()
    flow = await lab.call("auth.begin", token=token, capability="gog.email")
    wrong = "https://h/?code=CODE-VALUE-0001&state=OTHER-STATE-01"
    with pytest.raises(CapabilityError):
        await lab.call("auth.complete", token=token, flow_id=flow["flow_id"], callback_url=wrong)
    right = "https://h/?code=CODE-VALUE-0001&state=STATE-VALUE-0001"
    await lab.call("auth.complete", token=token, flow_id=flow["flow_id"], callback_url=right)
    await lab.invoke("whoami", token=token)
    records = await lab.seen()
    text = json.dumps(records)
    for marker in ("CODE-VALUE", "STATE-VALUE", "OTHER-STATE", "VERIFIER", "QUERY-VALUE"):
        assert marker not in text
    assert flow["flow_id"] not in text
    [begun] = await lab.seen("capability_auth_begin")
    assert begun["flow_id"] == flow["flow_id"][:12]
    completes = await lab.seen("capability_auth_complete")
    assert [one["outcome"] for one in completes] == ["error", "ok"]
    assert [one["error.code"] for one in completes] == ["capability_auth_state_mismatch", None]
    assert {one["capability.id"] for one in completes} == {"gog.email"}
    for start in range(len(token) - 16):
        assert token[start : start + 17] not in text
