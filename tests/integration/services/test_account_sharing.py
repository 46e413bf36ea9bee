"""What a share of an account cannot be used for, when things change while a call is under way."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.kernel.identity import Actor, PersonFacts, PersonGrant, VouchedBy
from kaged.services.account_sharing import ShareDraft
from kaged.services.confirmation import SHARED_PLANS
from kaged.services.contract import InvokeCall
from kaged.services.errors import CapabilityError
from raising import raises_code
from requirements import requirement

MAIL = "gog.email"
ALICE = Actor.person(PersonFacts("alice"), PersonGrant(), VouchedBy.BEARER)


@pytest.fixture
async def lab(lab: ServiceLab) -> ServiceLab:
    """Return a host at which Alice has linked an account."""
    await lab.link()
    return lab


async def shared(lab: ServiceLab, *operations: str, person: str = "bob") -> str:
    """Let Alice share her account; returns the share."""
    names = operations or ("whoami",)
    draft = ShareDraft(MAIL, "acct_default", person, None, names, None)
    return (await lab.sharing.share(draft, ALICE)).share_id


@requirement("SC-POL-17")
async def test_what_the_owner_may_not_do_anymore_is_not_done_for_others(lab: ServiceLab) -> None:
    share = await shared(lab)
    assert (await lab.invoke("whoami", "bob", account_ref=share))["output"]["user"] == "alice"
    lab.grants["alice"] = PersonGrant(operations=frozenset({"gog.email.send"}))
    with raises_code("capability_access_denied", CapabilityError):
        await lab.invoke("whoami", "bob", account_ref=share)
    lab.grants["alice"] = PersonGrant(operations=frozenset())
    with raises_code("capability_access_denied", CapabilityError):
        await lab.invoke("whoami", "bob", account_ref=share)
    listed = (await lab.call("list", "bob"))["capabilities"]
    assert not any(one.get("shared_accounts") for one in listed)


@requirement("SC-POL-17")
async def test_a_share_that_ends_while_a_call_waits_stops_the_call(
    lab: ServiceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = await shared(lab)
    secrets_of = lab.vault.known

    async def ends(*args: Any) -> Any:
        # The last thing that is waited for before the provider: the share was found good by then.
        await lab.sharing.end(share, ALICE)
        return await secrets_of(*args)

    monkeypatch.setattr(lab.vault, "known", ends)
    with raises_code("capability_auth_required", CapabilityError):
        await lab.invoke("whoami", "bob", account_ref=share)
    assert lab.provider.of(InvokeCall) == []
    assert await lab.seen("capability_shared_use") == []


@requirement("SC-POL-17")
async def test_a_share_that_expires_is_used_no_more_and_makes_room(lab: ServiceLab) -> None:
    draft = ShareDraft(MAIL, "acct_default", "bob", None, ("whoami",), 60)
    share = (await lab.sharing.share(draft, ALICE)).share_id
    assert (await lab.invoke("whoami", "bob", account_ref=share))["ok"]
    lab.clock.advance(60)
    with raises_code("capability_access_denied", CapabilityError):
        await lab.invoke("whoami", "bob", account_ref=share)
    [row] = await lab.sharing.list(ALICE, None, 10, 0)
    assert row["state"] == "expired"
    again = await lab.sharing.share(draft, ALICE)
    assert [one["share_id"] for one in await lab.sharing.list(ALICE, None, 10, 0)] == [
        again.share_id
    ]


@requirement("SC-POL-17")
async def test_a_provider_remembers_apart_what_is_done_by_a_share(lab: ServiceLab) -> None:
    share = await shared(lab)
    read: list[JsonObject | None] = []

    async def remember(call: InvokeCall) -> JsonObject:
        read.append(await call.state.get("seen"))
        await call.state.put("seen", {"by": call.context.user_id, "chat": call.context.chat_id})
        return {"user": call.context.user_id, "account": "x", "messages": []}

    lab.provider.on_invoke = remember
    await lab.invoke("whoami")
    await lab.invoke("whoami", "bob", account_ref=share)
    await lab.invoke("whoami", "bob", account_ref=share)
    assert read == [None, None, {"by": "alice", "chat": None}]
    # What was remembered of the share goes with it, and a new one begins afresh.
    await lab.sharing.end(share, ALICE)
    again = await shared(lab)
    await lab.invoke("whoami", "bob", account_ref=again)
    await lab.invoke("whoami")
    assert read[3] is None
    assert read[4] == {"by": "alice", "chat": None}


@requirement("SC-POL-17")
async def test_others_fill_only_a_part_of_what_may_wait_for_the_owner(lab: ServiceLab) -> None:
    await lab.close()
    await lab.open()
    await lab.register(confirm=("email.send",))
    share = await shared(lab, "send")
    for number in range(SHARED_PLANS):
        with raises_code("capability_mutation_not_confirmed", CapabilityError):
            await lab.invoke("send", "bob", account_ref=share, given={"to": f"n{number}"})
    with raises_code("capability_rate_limited", CapabilityError):
        await lab.invoke("send", "bob", account_ref=share, given={"to": "one more"})
    with raises_code("capability_mutation_not_confirmed", CapabilityError):
        await lab.invoke("send", given={"to": "her own"})


@requirement("SC-POL-17")
async def test_a_share_that_cannot_be_recorded_is_not_made(
    lab: ServiceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_args: object, **_more: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(lab.audit, "record", full)
        with pytest.raises(OSError, match="disk full"):
            await shared(lab)
    assert await lab.sharing.list(ALICE, None, 10, 0) == []
