"""What a person typed into the page of a bridge is kept, and counts as a secret by its field."""

from __future__ import annotations

import pytest

from kaged.base import JsonObject
from kaged.services import contract
from kaged.services.errors import CapabilityInvalidInput
from kaged.services.known_secrets import secret_texts
from kaged.services.providers.bridge_fields import PAGE, BridgeFieldFlows, typed_values
from kaged.services.secret_search import CallSecrets
from kaged.services.vault import StagedCredential
from kaged.wire.bridge_methods import AccountLinked

FIELDS: JsonObject = {
    "capability_id": "harbour.locker",
    "account_hint": None,
    "context": {"user_id": "ann"},
    "fields": [
        {"name": "berth", "label": "Berth", "secret": False},
        {"name": "pin", "label": "PIN", "secret": True},
    ],
    "bridge": {"n": 1},
    "ticket": "t",
}


async def linked(*_: object) -> AccountLinked:
    return AccountLinked("acct_west", {}, {"account_name": "West"})


def submitted(flow_state: JsonObject, staged: StagedCredential) -> contract.AuthSubmitCall:
    values = {"berth": "the west quay", "pin": "open sesame"}
    context = contract.CapabilityCallContext("ann")
    return contract.AuthSubmitCall(
        "harbour.locker", None, flow_state, values, context, credentials=staged
    )


async def test_a_value_is_a_secret_because_its_field_is_whatever_both_look_like() -> None:
    known = CallSecrets()
    staged = StagedCredential(known)
    found = await BridgeFieldFlows(None, linked).submit(submitted({PAGE: FIELDS}, staged))
    assert found == contract.CapabilityAuthCompleteResult("acct_west", {}, {"account_name": "West"})
    assert staged.payload is not None
    assert "open sesame" in secret_texts(staged.payload)
    assert "the west quay" not in secret_texts(staged.payload)
    assert known.found_in_text("it is Open%20Sesame, of course")
    assert await typed_values(staged) == {"berth": "the west quay", "pin": "open sesame"}


async def test_accounts_that_were_linked_otherwise_have_no_values() -> None:
    staged = StagedCredential(CallSecrets())
    assert await typed_values(None) is None
    assert await typed_values(staged) is None
    await staged.put({"kind": "oauth", "values": {"pin": "open sesame"}})
    assert await typed_values(staged) is None
    with pytest.raises(CapabilityInvalidInput):
        await BridgeFieldFlows(None, linked).submit(submitted({"n": 1}, staged))
