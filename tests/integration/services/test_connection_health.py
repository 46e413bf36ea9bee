"""Whether linked accounts work: found out by calls and tests, kept, and told to their owners."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.service_lab import ServiceLab
from kaged.base import JsonObject
from kaged.inbox import RequestFilter, RequestKind, RequestState
from kaged.services.contract import AuthCheckCall, InvokeCall
from kaged.services.errors import (
    CapabilityBackendUnavailable,
    CapabilityError,
    CapabilityInvalidInput,
    OutcomeLost,
    account_refused,
    auth_required,
)

ID = "gog.email"


async def asked(lab: ServiceLab, user: str) -> list[tuple[str, str]]:
    """Return what waits for somebody."""
    wanted = RequestFilter(
        owner=user, kinds=(RequestKind.ACCOUNT_RELINK,), state=RequestState.PENDING
    )
    found, _ = await lab.inbox.rows.page(wanted, 10, 0)
    return [(one.title, one.details[0]) for one in found]


async def status(lab: ServiceLab, user: str) -> str:
    [account] = await lab.accounts.of(user, ID)
    return account.status


async def fails(lab: ServiceLab, error: Exception, user: str = "alice") -> None:
    async def invoke(_call: InvokeCall) -> JsonObject:
        raise error

    lab.provider.on_invoke = invoke
    with pytest.raises(CapabilityError):
        await lab.invoke("whoami", user)
    lab.provider.on_invoke = None


@pytest.mark.parametrize(
    ("error", "found", "told"),
    [
        (auth_required("ended"), "expired", 1),
        (account_refused("no"), "revoked", 1),
        (CapabilityBackendUnavailable("gone"), "unreachable", 0),
        (OutcomeLost("late"), "unreachable", 0),
        (RuntimeError("bug"), "unreachable", 0),
        (CapabilityInvalidInput("no such folder"), "active", 0),
    ],
)
async def test_calls_find_out_how_an_account_is(
    lab: ServiceLab, error: Exception, found: str, told: int
) -> None:
    await lab.link("alice")
    await lab.link("bob")
    for _ in range(2):  # the second failure says nothing new
        await fails(lab, error)
        assert (await status(lab, "alice"), await status(lab, "bob")) == (found, "active")
        assert len(await asked(lab, "alice")) == told
        assert await asked(lab, "bob") == []
    await lab.audit.flush()
    changes = [row for row in lab.events if row[0] == "capability_account_status"]
    assert len(changes) == (found != "active")
    # What works again is asked for no longer.
    assert (await lab.invoke("whoami"))["ok"]
    assert await status(lab, "alice") == "active"
    assert await asked(lab, "alice") == []
    # And another failure is told again.
    await fails(lab, error)
    assert len(await asked(lab, "alice")) == told


async def test_a_refused_account_stays_so_while_its_service_is_down(lab: ServiceLab) -> None:
    await lab.link("alice")
    await fails(lab, account_refused("no"))
    await fails(lab, CapabilityBackendUnavailable("gone"))
    assert await status(lab, "alice") == "revoked"
    await fails(lab, auth_required("ended"))
    assert await status(lab, "alice") == "expired"
    [(title, why)] = await asked(lab, "alice")
    assert title == "Link default@example.org with gog.email again."
    assert why == "Its access has ended."


@pytest.mark.parametrize("how", ["link", "revoke"])
async def test_linking_again_or_taking_back_ends_the_request(lab: ServiceLab, how: str) -> None:
    ref = await lab.link("alice")
    await fails(lab, account_refused("no"))
    assert len(await asked(lab, "alice")) == 1
    if how == "link":
        await lab.link("alice")
        assert await status(lab, "alice") == "active"
    else:
        await lab.call("auth.revoke", capability=ID, account_ref=ref)
    assert await asked(lab, "alice") == []


async def test_a_check_uses_the_account_of_its_owner_and_only_where_that_can_be_done(
    lab: ServiceLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for user in ("alice", "bob"):
        await lab.link(user)
    capability = lab.registry.get(ID)
    [alice] = await lab.accounts.of("alice", ID)
    assert not await lab.health.check(alice, capability)  # its provider has no way to
    assert not await lab.health.check(alice, None)  # its provider is gone
    seen: list[Any] = []

    async def auth_check(call: AuthCheckCall) -> bool:
        seen.append((call.context.user_id, await call.credentials.get()))
        raise account_refused(f"{seen[-1][1]['refresh_token']} is not known")

    monkeypatch.setattr(lab.provider, "auth_check", auth_check, raising=False)
    assert await lab.health.check(alice, capability)
    [(user, held)] = seen
    assert user == "alice"
    assert "alice" in held["refresh_token"]
    [alice] = await lab.accounts.of("alice", ID)
    assert alice.status == "revoked"
    assert held["refresh_token"] not in str(alice.status_reason)
    assert await status(lab, "bob") == "active"
