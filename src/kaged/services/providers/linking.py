"""How accounts of first-party providers are linked: `PasswordLinking` and `OAuthLinking`.

Both give a credential that the provider can use later; what is in it is theirs to know.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from kaged.base import JsonObject
from kaged.services.contract import (
    AuthBeginCall,
    AuthCompleteCall,
    AuthPollCall,
    AuthPollResult,
    AuthRevokeCall,
    CapabilityAuthBeginResult,
    CapabilityAuthCompleteResult,
    CapabilityAuthPending,
    CredentialHandle,
)
from kaged.services.errors import CapabilityAuthFlowInvalid, CapabilityInvalidInput
from kaged.services.providers.linkpage import LinkPage
from kaged.services.providers.oauth import OAuthClient

PASSWORD_KIND: Final = "password"  # noqa: S105 - the kind of a credential, not one

_NOT_IN_REF: Final = re.compile(r"[^A-Za-z0-9._@+-]+")
_REF_CHARS: Final = 96

TryLogin = Callable[[str, str], Awaitable[None]]
"""Logs in with a user name and a password; raises CapabilityError when that does not work."""


class Linking(Protocol):
    """What linking an account needs of whichever way it is done."""

    async def begin(self, call: AuthBeginCall) -> CapabilityAuthBeginResult:
        """Start."""
        ...

    async def complete(self, call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        """Finish with what the person brought back."""
        ...

    async def poll(self, call: AuthPollCall) -> AuthPollResult:
        """Ask whether the person has agreed elsewhere."""
        ...

    async def revoke(self, call: AuthRevokeCall) -> bool:
        """Notify the other side that the link has ended."""
        ...


class PasswordLinking:
    """Links accounts by a password that is typed into a page of the daemon's, not into a chat."""

    def __init__(self, page: LinkPage, title: str, try_login: TryLogin) -> None:
        self._page = page
        self._title = title
        self._try_login = try_login

    async def begin(self, call: AuthBeginCall) -> CapabilityAuthBeginResult:
        """Offer a page for this account."""
        url, ticket, ends_ms = await self._page.offer(self._title, self._try)
        return CapabilityAuthBeginResult(
            auth_url=url, expires_at_ms=ends_ms, flow_state={"ticket": ticket}
        )

    async def complete(self, call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        """Exchange the code that the page showed for a credential."""
        ticket = call.flow_state.get("ticket")
        credential = (
            self._page.take(ticket, call.authorization_code) if isinstance(ticket, str) else None
        )
        if credential is None:
            raise CapabilityAuthFlowInvalid(
                "that is not the code of this page, or its time is over; begin a new flow"
            )
        return await _linked(call.credentials, credential, call.account_hint)

    async def poll(self, call: AuthPollCall) -> AuthPollResult:
        """Refuse: the page gives a code."""
        raise CapabilityInvalidInput("this flow ends with a code, not by asking")

    async def revoke(self, call: AuthRevokeCall) -> bool:
        """Do nothing: a password has nobody to tell."""
        return False

    async def _try(self, address: str, user: str, password: str) -> JsonObject:
        user = user or address
        if not user:
            raise CapabilityInvalidInput("Your address or user name is missing.")
        await self._try_login(user, password)
        email = address if "@" in address else (user if "@" in user else "")
        credential: JsonObject = {
            "kind": PASSWORD_KIND,
            "username": user,
            "password": password,
            "account_email": email or None,
        }
        return credential


class OAuthLinking:
    """Links accounts at an authorization server."""

    def __init__(self, client: OAuthClient) -> None:
        self._client = client

    async def begin(self, call: AuthBeginCall) -> CapabilityAuthBeginResult:
        """Send the person to the authorization server."""
        return await self._client.begin()

    async def complete(self, call: AuthCompleteCall) -> CapabilityAuthCompleteResult:
        """Exchange the code of the callback for a credential."""
        credential = await self._client.complete(call.flow_state, call.authorization_code)
        return await self._link(call.credentials, credential, call.account_hint)

    async def poll(self, call: AuthPollCall) -> AuthPollResult:
        """Ask whether the person has typed the code in."""
        polled = await self._client.poll(call.flow_state)
        if isinstance(polled, CapabilityAuthPending):
            return polled
        return await self._link(call.credentials, polled, call.account_hint)

    async def revoke(self, call: AuthRevokeCall) -> bool:
        """Withdraw the tokens at the authorization server."""
        held = await call.credentials.get()
        return held is not None and await self._client.revoke(held)

    async def _link(
        self, handle: CredentialHandle, credential: JsonObject, hint: str | None
    ) -> CapabilityAuthCompleteResult:
        person = await self._client.person(credential)
        email = person.email or (hint if hint is not None and "@" in hint else None)
        credential |= {"account_email": email, "username": email}
        return await _linked(handle, credential, hint, name=person.name)


async def _linked(
    handle: CredentialHandle, credential: JsonObject, hint: str | None, name: str | None = None
) -> CapabilityAuthCompleteResult:
    await handle.put(credential)
    email = credential.get("account_email")
    label = hint or (email if isinstance(email, str) else None) or "default"
    metadata: JsonObject = {}
    if isinstance(email, str):
        metadata["account_email"] = email
    if name:
        metadata["account_name"] = name
    return CapabilityAuthCompleteResult(account_ref=_ref(label), metadata=metadata)


def _ref(label: str) -> str:
    return f"acct_{_NOT_IN_REF.sub('_', label).strip('_')[:_REF_CHARS] or 'default'}"
