"""`LinkedProvider`: how accounts of first-party providers are linked, by password or OAuth.

Both leave a credential that the provider can use later; what is in it is theirs to know.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Final

from kaged.base import JsonObject
from kaged.services import contract
from kaged.services.errors import (
    CapabilityAuthFlowInvalid,
    CapabilityInvalidInput,
    auth_required,
)
from kaged.services.providers.linkpage import LinkForm, LinkPage
from kaged.services.providers.oauth import OAuthClient

PASSWORD_KIND: Final = "password"  # noqa: S105 - the kind of a credential, not one

_FIELDS: Final = (
    contract.AuthField("email", "Address"),
    contract.AuthField("username", "User name, if it is another"),
    contract.AuthField("password", "Password", secret=True),
)
_NOT_IN_REF: Final = re.compile(r"[^A-Za-z0-9._@+-]+")
_REF_CHARS: Final = 96


class LinkedProvider(ABC):
    """A provider whose accounts are linked at an authorization server, if there is one.

    Otherwise by a password that is typed into a page of the daemon's, not into a chat.
    """

    def __init__(
        self, namespace: str, *, page: LinkPage, page_title: str, oauth: OAuthClient | None
    ) -> None:
        self.namespace = namespace
        self._page = page
        self._page_title = page_title
        self._oauth = oauth

    async def auth_begin(self, call: contract.AuthBeginCall) -> contract.CapabilityAuthBeginResult:
        """Start linking an account: at the authorization server, or with a page of our own."""
        if self._oauth is not None:
            return await self._oauth.begin()
        form = self._form(call.capability_id, call.context.user_id, call.begun_by)
        url, ticket, ends_ms = await self._page.offer(form, self._try_typed)
        return contract.CapabilityAuthBeginResult(
            auth_url=url,
            expires_at_ms=ends_ms,
            flow_state={"ticket": ticket},
            fields=form.fields,
        )

    def _form(
        self, capability_id: str, person: str, begun_by: tuple[contract.FlowStarter, ...]
    ) -> LinkForm:
        return LinkForm(self._page_title, _FIELDS, capability_id, person, begun_by)

    async def auth_complete(
        self, call: contract.AuthCompleteCall
    ) -> contract.CapabilityAuthCompleteResult:
        """Exchange the code of the callback, or of the page, for a credential."""
        if self._oauth is not None:
            credential = await self._oauth.complete(call.flow_state, call.authorization_code)
            return await self._linked(self._oauth, call, credential)
        ticket = call.flow_state.get("ticket")
        found = (
            self._page.take(ticket, call.authorization_code) if isinstance(ticket, str) else None
        )
        if found is None:
            raise CapabilityAuthFlowInvalid(
                "that is not the code of this page, or its time is over; begin a new flow"
            )
        return await _kept(call, found)

    async def auth_submit(
        self, call: contract.AuthSubmitCall
    ) -> contract.CapabilityAuthCompleteResult:
        """Try what a person typed in elsewhere than on the page, which closes if it works."""
        credential = await self._try_typed(call.values)
        ticket = call.flow_state.get("ticket")
        if isinstance(ticket, str):
            self._page.end(ticket)
        return await _kept(call, credential)

    async def auth_poll(self, call: contract.AuthPollCall) -> contract.AuthPollResult:
        """Ask whether the person has typed the code in; a page gives a code instead."""
        if self._oauth is None:
            raise CapabilityInvalidInput("this flow ends with a code, not by asking")
        polled = await self._oauth.poll(call.flow_state)
        if isinstance(polled, contract.CapabilityAuthPending):
            return polled
        return await self._linked(self._oauth, call, polled)

    async def auth_resume(self, call: contract.AuthResumeCall) -> bool:
        """Open the page of a flow again after a restart; False when nobody can use it any more."""
        ticket = call.flow_state.get("ticket")
        if self._oauth is not None or not isinstance(ticket, str):
            return True  # the page is the authorization server's
        form = self._form(call.capability_id, call.user_id, call.begun_by)
        return await self._page.reopen(
            ticket, call.auth_url, call.expires_at_ms, form, self._try_typed
        )

    def auth_cancel(self, call: contract.AuthResumeCall) -> None:
        """Close the page of a flow."""
        ticket = call.flow_state.get("ticket")
        if isinstance(ticket, str):
            self._page.end(ticket)

    async def auth_revoke(self, call: contract.AuthRevokeCall) -> bool:
        """Withdraw the tokens at the authorization server; a password has nobody to tell."""
        if self._oauth is None:
            return False
        held = await call.credentials.get()
        return held is not None and await self._oauth.revoke(held)

    async def auth_check(self, call: contract.AuthCheckCall) -> bool:
        """Renew what can be renewed and use it, to see whether both still work."""
        held = await self._credential(call.credentials)
        renewed = self._oauth is not None and isinstance(held.get("refresh_token"), str)
        if self._oauth is not None and renewed:
            held = await self._oauth.renewed(call.credentials, held)
        return await self._check(held) or renewed

    async def reach(self) -> None:
        """Ask the service, and the authorization server if there is one, for anything."""
        await self._reach()
        if self._oauth is not None:
            await self._oauth.reach()

    @abstractmethod
    async def _check(self, held: JsonObject) -> bool:
        """Use a credential for nothing; False when there is no way to. Raises CapabilityError."""

    @abstractmethod
    async def _reach(self) -> None:
        """Ask the service for anything without an account. Raises CapabilityError."""

    @abstractmethod
    async def _try_login(self, user: str, password: str) -> None:
        """Log in at the service. Raises CapabilityError when that does not work."""

    async def _credential(self, credentials: contract.CredentialHandle) -> JsonObject:
        """Return what an account is used with. Raises `capability_auth_required` without any."""
        if self._oauth is not None:
            return await self._oauth.credential(credentials)
        held = await credentials.get()
        if held is None:
            raise auth_required("the account is no longer linked; link it again")
        return held

    async def _try_typed(self, values: dict[str, str]) -> JsonObject:
        address, user = values["email"].strip(), values["username"].strip()
        password = values["password"]
        if not password.strip():
            raise CapabilityInvalidInput("The password is missing.")
        user = user or address
        if not user:
            raise CapabilityInvalidInput("Your address or user name is missing.")
        await self._try_login(user, password)
        email = address if "@" in address else (user if "@" in user else "")
        return {
            "kind": PASSWORD_KIND,
            "username": user,
            "password": password,
            "account_email": email or None,
        }

    async def _linked(
        self,
        oauth: OAuthClient,
        call: contract.AuthCompleteCall | contract.AuthPollCall,
        credential: JsonObject,
    ) -> contract.CapabilityAuthCompleteResult:
        name, email = await oauth.person(credential)
        hint = call.account_hint
        email = email or (hint if hint is not None and "@" in hint else None)
        credential |= {"account_email": email, "username": email}
        return await _kept(call, credential, name)


async def _kept(
    call: contract.AuthCompleteCall | contract.AuthPollCall | contract.AuthSubmitCall,
    credential: JsonObject,
    name: str | None = None,
) -> contract.CapabilityAuthCompleteResult:
    """Put a credential into the vault and return the account that it is for."""
    await call.credentials.put(credential)
    email = credential.get("account_email")
    metadata: JsonObject = {}
    if isinstance(email, str):
        metadata["account_email"] = email
    if name:
        metadata["account_name"] = name
    label = _NOT_IN_REF.sub("_", call.account_hint or str(email or "default")).strip("_")
    return contract.CapabilityAuthCompleteResult(
        f"acct_{label[:_REF_CHARS] or 'default'}", {}, metadata
    )
