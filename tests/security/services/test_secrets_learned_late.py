"""Secrets that come up while a provider works: renewed tokens, fresh credentials, state, names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from encodings_of_secrets import encodings
from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    InvokeCall,
)
from kaged.services.errors import CapabilityError, CapabilityInvalidInput
from kaged.services.secret_search import SecretForms
from requirements import requirement

OLD = "at-old-9f8e7d6c5b4a3928-QWERTY"
NEW = "at-new-0a1b2c3d4e5f6071-ZXCVBN"
CLIENT = "client-secret-of-the-operator-42"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ServiceLab]:
    found = await ServiceLab(tmp_path).open()

    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        await call.credentials.put({"access_token": OLD})
        return CapabilityAuthCompleteResult("acct_work")

    found.provider.on_complete = complete
    await found.register(secrets=SecretForms.of([CLIENT]))
    yield found
    await found.close()


async def renewed(call: InvokeCall) -> None:
    """Renew the account's token, as a provider does whose service refuses the old one."""
    assert call.credentials is not None

    async def renew(_stale: JsonObject) -> JsonObject:
        return {"access_token": NEW}

    held = await call.credentials.get()
    assert held is not None
    await call.credentials.refresh(held, renew)


async def everything(lab: ServiceLab, *more: Any) -> str:
    stored = b"".join(one.read_bytes() for one in lab.root.rglob("*") if one.is_file())
    return json.dumps([await lab.seen(), *more], default=str) + stored.decode("latin-1")


@requirement("SC-SEC-04", "SC-SEC-08")
@pytest.mark.parametrize("kind", [CapabilityInvalidInput, RuntimeError])
async def test_a_token_that_was_renewed_in_the_call_is_not_in_its_error(
    lab: ServiceLab, kind: type[Exception]
) -> None:
    await lab.link()
    shown: list[str] = []

    async def fail(call: InvokeCall) -> JsonObject:
        await renewed(call)
        raise kind(f"the service said: no such item for {call.input_data['as']}")

    lab.provider.on_invoke = fail
    with capture_logs() as logs:
        for token in (OLD, NEW, CLIENT):
            for written in encodings(token).values():
                with pytest.raises(CapabilityError) as failed:
                    await lab.invoke("whoami", given={"as": written})
                shown.append(f"{failed.value} {failed.value.data} {failed.value.noted}")
                assert written not in shown[-1]
    said = await everything(lab, shown, logs)
    for token in (OLD, NEW, CLIENT):
        assert token not in said


async def test_a_token_is_not_in_the_error_of_a_later_call_either(lab: ServiceLab) -> None:
    await lab.link()

    async def fail(call: InvokeCall) -> JsonObject:
        await renewed(call)
        raise CapabilityInvalidInput(f"no: {NEW}")

    lab.provider.on_invoke = fail
    for _ in range(2):
        with pytest.raises(CapabilityError, match=r"no: \[redacted\]"):
            await lab.invoke("whoami")
    # A refusal of a mutating call is kept for its repeats.
    for _ in range(2):
        with pytest.raises(CapabilityError, match=r"no: \[redacted\]"):
            await lab.invoke("send", idempotency_key="k")
    assert NEW not in await everything(lab)


@requirement("SC-SEC-04")
async def test_a_token_that_another_call_renewed_meanwhile_is_not_in_the_output(
    lab: ServiceLab,
) -> None:
    """A provider that remembers tokens itself quotes one that this call never read."""
    await lab.link()
    waits, goes_on = asyncio.Event(), asyncio.Event()

    async def give(call: InvokeCall) -> JsonObject:
        if call.input_data["as"] == "renews":
            await renewed(call)
            return {}
        waits.set()
        await goes_on.wait()
        return {"text": call.input_data["as"]}

    lab.provider.on_invoke = give
    for token in (NEW, OLD):  # the new one first: when that call began nobody knew it
        waits.clear()
        goes_on.clear()
        async with asyncio.TaskGroup() as group:
            quoting = group.create_task(_refused(lab, token))
            await waits.wait()
            await lab.invoke("whoami", given={"as": "renews"})
            goes_on.set()
        assert quoting.result() == "capability_invalid_output", token
    said = await everything(lab)
    assert OLD not in said
    assert NEW not in said


@requirement("SC-SEC-04")
async def test_a_token_that_another_call_renewed_first_is_not_in_the_error(lab: ServiceLab) -> None:
    await lab.link()

    async def fail(call: InvokeCall) -> JsonObject:
        assert call.credentials is not None
        if call.input_data["as"] == "renews":
            await renewed(call)
            return {}
        held = await call.credentials.get()
        assert held is not None
        await lab.invoke("whoami", given={"as": "renews"})

        async def renew(_stale: JsonObject) -> JsonObject:
            raise AssertionError("a token that rotates must not be used twice")

        assert await call.credentials.refresh(held, renew) == {"access_token": NEW}
        raise CapabilityInvalidInput(f"no: {NEW}")

    lab.provider.on_invoke = fail
    with pytest.raises(CapabilityError, match=r"no: \[redacted\]"):
        await lab.invoke("whoami", given={"as": "fails"})


async def _refused(lab: ServiceLab, token: str) -> str:
    """Let the provider quote a token in its output; returns the code of the refusal."""
    with pytest.raises(CapabilityError) as refused:
        await lab.invoke("whoami", given={"as": token})
    return refused.value.code


async def test_a_token_that_could_not_be_stored_is_not_in_the_error(
    lab: ServiceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.link()

    async def full(*_: object) -> None:
        raise CapabilityInvalidInput("the disk is full")

    monkeypatch.setattr(lab.vault, "put", full)

    async def fail(call: InvokeCall) -> JsonObject:
        try:
            await renewed(call)
        except CapabilityInvalidInput as error:
            raise CapabilityInvalidInput(f"{error.message} and {NEW} is lost") from None
        return {}

    lab.provider.on_invoke = fail
    with pytest.raises(CapabilityError, match=r"the disk is full and \[redacted\] is lost"):
        await lab.invoke("whoami")


@requirement("SC-AMB-23")
@pytest.mark.parametrize("place", ["account_name", "account_email", "anything", "account_ref"])
@pytest.mark.parametrize("name", ["plain", "upper", "base64 at 0", "hex", "percent even"])
async def test_an_account_whose_name_is_its_token_is_not_linked(
    lab: ServiceLab, place: str, name: str
) -> None:
    """An OAuth server whose userinfo repeats the token."""

    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        await call.credentials.put({"access_token": NEW})
        written = encodings(NEW)[name]
        if place == "account_ref":
            return CapabilityAuthCompleteResult(written)
        return CapabilityAuthCompleteResult("acct_work", metadata={place: written})

    lab.provider.on_complete = complete
    flow = await lab.call("auth.begin", capability="gog.email")
    with pytest.raises(CapabilityError) as refused:
        await lab.call("auth.complete", flow_id=flow["flow_id"], code="agreed")
    assert refused.value.code == "capability_invalid_output"
    assert await lab.accounts.of("alice", "gog.email") == ()
    assert encodings(NEW)[name] not in await everything(lab, str(refused.value))
    # The next one, with a name that is one, is linked.
    lab.provider.on_complete = None
    assert await lab.link() == "acct_default"


async def test_an_error_while_linking_does_not_repeat_the_fresh_token(lab: ServiceLab) -> None:
    async def complete(call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        await call.credentials.put({"access_token": NEW})
        raise CapabilityInvalidInput(f"userinfo failed for {NEW} of {CLIENT}")

    lab.provider.on_complete = complete
    flow = await lab.call("auth.begin", capability="gog.email")
    with pytest.raises(CapabilityError, match=r"userinfo failed for \[redacted\] of \[redacted\]"):
        await lab.call("auth.complete", flow_id=flow["flow_id"], code="agreed")


@pytest.mark.parametrize("key", ["code_verifier", "device_code", "client_secret"])
async def test_the_page_of_a_flow_holds_no_secret_of_the_flow(lab: ServiceLab, key: str) -> None:
    async def begin(call: AuthBeginCall) -> CapabilityAuthBeginResult:
        return CapabilityAuthBeginResult(
            f"https://login.example/?challenge={NEW.upper()}", flow_state={key: NEW}
        )

    lab.provider.on_begin = begin
    with pytest.raises(CapabilityError) as refused:
        await lab.call("auth.begin", capability="gog.email")
    assert refused.value.code == "capability_invalid_output"
    assert NEW.upper() not in await everything(lab)


async def test_a_provider_cannot_keep_a_secret_in_its_state(lab: ServiceLab) -> None:
    await lab.link()

    async def keep(call: InvokeCall) -> JsonObject:
        await renewed(call)
        assert call.state is not None
        await call.state.put("cursor", {"page": 2})
        await call.state.put("session", {"cookie": encodings(NEW)["base64 at 1"]})
        return {}

    lab.provider.on_invoke = keep
    with pytest.raises(CapabilityError) as refused:
        await lab.invoke("whoami")
    assert refused.value.code == "capability_invalid_output"
    said = await everything(lab)
    assert encodings(NEW)["base64 at 1"] not in said
    assert "cursor" in said


async def test_the_record_of_a_refused_output_does_not_hold_a_key_that_is_a_secret(
    lab: ServiceLab,
) -> None:
    await lab.link()

    async def give(call: InvokeCall) -> JsonObject:
        await renewed(call)
        return {f"{'x' * 50}{NEW}": {"access_token": 1}, "y": {OLD: [{"cookie": 2}]}}

    lab.provider.on_invoke = give
    with pytest.raises(CapabilityError):
        await lab.invoke("whoami")
    [row] = await lab.seen("capability_output_rejected")
    assert row["rule"] == "credential key"
    said = await everything(lab)
    for token in (OLD, NEW):
        assert token[:14] not in said
