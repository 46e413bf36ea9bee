"""`BridgeFieldFlows`: what a bridge needs to know of a person, typed into a page of the daemon's.

A bridge whose `auth_begin` names fields gets a page: a password or a token goes from there to the
bridge, which tries it, and into the vault. Nothing of it passes through a chat; what does is a code
that is worth nothing without the flow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final, cast

from kaged.base import JsonObject
from kaged.services import contract
from kaged.services.errors import (
    CapabilityAuthFlowInvalid,
    CapabilityInvalidInput,
    CapabilityInvalidOutput,
)
from kaged.services.flow_checks import checked_fields
from kaged.services.providers.linkpage import LinkForm, LinkPage
from kaged.wire.bridge_methods import AccountLinked, AuthBegun

PAGE: Final = "kaged.page"
"""The member of a flow's state that is ours; no bridge may set it."""

_KIND: Final = "fields"

Submit = Callable[
    [str, JsonObject, dict[str, str], str | None, contract.CapabilityCallContext],
    Awaitable[AccountLinked],
]
"""Gives a bridge the capability, its state of the flow, the values, the hint and the caller."""


class BridgeFieldFlows:
    """The flows of one bridge that end with fields. Without a page there are none."""

    def __init__(self, page: LinkPage | None, submit: Submit) -> None:
        self._page = page
        self._submit = submit

    async def begin(
        self, call: contract.AuthBeginCall, begun: AuthBegun
    ) -> contract.CapabilityAuthBeginResult:
        """Open the page of a flow. Raises CapabilityError when it cannot be."""
        if self._page is None:
            raise CapabilityInvalidOutput("there is no page for the fields of this bridge")
        fields = checked_fields(
            tuple(contract.AuthField(one.name, one.label, one.secret) for one in begun.fields)
        )
        if not any(one.secret for one in fields):
            raise CapabilityInvalidOutput("a flow with fields needs a secret one among them")
        kept: JsonObject = {
            "capability_id": call.capability_id,
            "account_hint": call.account_hint,
            "context": cast("JsonObject", asdict(call.context)),
            "fields": [{"name": o.name, "label": o.label, "secret": o.secret} for o in fields],
            "bridge": begun.flow_state,
        }
        url, ticket, ends_ms = await self._page.offer(_form(kept, call.begun_by), self._try(kept))
        return contract.CapabilityAuthBeginResult(
            auth_url=url,
            expires_at_ms=ends_ms,
            flow_state={PAGE: {**kept, "ticket": ticket}},
            fields=fields,
        )

    async def complete(
        self, call: contract.AuthCompleteCall, kept: JsonObject
    ) -> contract.CapabilityAuthCompleteResult:
        """Trade the code of the page in. Raises CapabilityAuthFlowInvalid."""
        found = None
        if self._page is not None:
            found = self._page.take(str(kept["ticket"]), call.authorization_code)
        if found is None:
            raise CapabilityAuthFlowInvalid(
                "that is not the code of this page, or its time is over; begin a new flow"
            )
        return await _linked(call.credentials, found)

    async def submit(self, call: contract.AuthSubmitCall) -> contract.CapabilityAuthCompleteResult:
        """Try what a person typed in elsewhere than on the page, which closes if it works."""
        kept = page_of(call.flow_state)
        if kept is None:
            raise CapabilityInvalidInput("this flow has no fields to fill in")
        found = await self._try(kept)(call.values)
        self.cancel(kept)
        return await _linked(call.credentials, found)

    async def resume(self, call: contract.AuthResumeCall, kept: JsonObject) -> bool:
        """Open the page of a flow again after a restart; False when it has ended."""
        return self._page is not None and await self._page.reopen(
            str(kept["ticket"]),
            call.auth_url,
            call.expires_at_ms,
            _form(kept, call.begun_by),
            self._try(kept),
        )

    def cancel(self, kept: JsonObject) -> None:
        """Close the page of a flow."""
        if self._page is not None:
            self._page.end(str(kept["ticket"]))

    def _try(self, kept: JsonObject) -> Callable[[dict[str, str]], Awaitable[JsonObject]]:
        hint = kept["account_hint"]

        async def attempt(values: dict[str, str]) -> JsonObject:
            linked = await self._submit(
                str(kept["capability_id"]),
                cast("JsonObject", kept["bridge"]),
                values,
                hint if isinstance(hint, str) else None,
                contract.CapabilityCallContext(**cast("dict[str, Any]", kept["context"])),
            )
            hidden = [values[one.name] for one in _form(kept).fields if one.secret]
            return {
                "kind": _KIND,
                "values": {**values},
                "secret": [*hidden],  # whatever a field is called, its value counts as a secret
                "linked": cast("JsonObject", asdict(linked)),
            }

        return attempt


def page_of(flow_state: JsonObject) -> JsonObject | None:
    """Return what is kept of a flow with a page of ours; None for any other flow."""
    kept = flow_state.get(PAGE)
    return kept if isinstance(kept, dict) else None


async def typed_values(credentials: contract.CredentialHandle | None) -> JsonObject | None:
    """Return what a person typed in to link an account; None for one that was linked otherwise."""
    held = None if credentials is None else await credentials.get()
    if held is None or held.get("kind") != _KIND:
        return None
    values = held.get("values")
    return values if isinstance(values, dict) else None


def _form(kept: JsonObject, begun_by: tuple[contract.FlowStarter, ...] = ()) -> LinkForm:
    fields = cast("list[dict[str, Any]]", kept["fields"])
    return LinkForm(
        f"Link an account for {kept['capability_id']}",
        tuple(contract.AuthField(**one) for one in fields),
        str(kept["capability_id"]),
        str(cast("JsonObject", kept["context"])["user_id"]),
        begun_by,
    )


async def _linked(
    credentials: contract.CredentialHandle, found: JsonObject
) -> contract.CapabilityAuthCompleteResult:
    linked = cast("dict[str, Any]", found.pop("linked"))
    await credentials.put(found)
    return contract.CapabilityAuthCompleteResult(**linked)
