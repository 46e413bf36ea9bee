"""`AccountLinks`: a person links an account themselves, at a terminal or through a front end.

The same flows as those of agents, through the same gates and on the same record. The difference is
who asks: a person may type a password where the flow takes one, and needs no skill for it.
"""

from __future__ import annotations

from dataclasses import replace

from kaged.audit import AuditLog
from kaged.base import JsonObject, KagedError
from kaged.kernel.identity import Actor
from kaged.services.accounts import Accounts
from kaged.services.authflow import AuthFlows
from kaged.services.caller import ContextTokens, ServiceCaller
from kaged.services.flow import Flow
from kaged.services.linking import AccountLinking
from kaged.services.rpc import Before
from kaged.wire.tokens import RoutingClaims


class AccountLinks:
    """Links accounts for whoever asks over HTTP, and for nobody else.

    `before` is awaited first, as for the requests of sandboxes: it may keep them waiting.
    """

    def __init__(
        self,
        linking: AccountLinking,
        flows: AuthFlows,
        accounts: Accounts,
        tokens: ContextTokens,
        audit: AuditLog,
        before: Before,
    ) -> None:
        self._linking = linking
        self._flows = flows
        self._accounts = accounts
        self._tokens = tokens
        self._audit = audit
        self._before = before

    async def begin(self, capability: str, account_hint: str | None, who: Actor) -> JsonObject:
        """Start a flow, or return the pending one; with the fields that may be filled in."""
        params: JsonObject = {"capability": capability, "account_hint": account_hint}
        await self._before(params)
        return await self._linking.auth_begin(self._caller(who), params, with_fields=True)

    async def complete(
        self, flow_id: str, callback_url: str | None, code: str | None, who: Actor
    ) -> JsonObject:
        """Finish a flow with what the person brought back."""
        await self._before({})
        caller = self._caller(who)
        flow = await self._flows.find(caller, flow_id)
        params: JsonObject = {"flow_id": flow_id, "callback_url": callback_url, "code": code}
        return await self._named(flow, await self._linking.auth_complete(caller, params))

    async def submit(self, flow_id: str, values: dict[str, str], who: Actor) -> JsonObject:
        """Finish a flow with the fields that it asks for."""
        await self._before({})
        caller = self._caller(who)
        flow = await self._flows.find(caller, flow_id)
        params: JsonObject = {"flow_id": flow_id}
        return await self._named(flow, await self._linking.auth_submit(caller, params, values))

    async def poll(self, flow_id: str, who: Actor) -> JsonObject:
        """Ask whether the person has agreed on another device."""
        await self._before({})
        caller = self._caller(who)
        flow = await self._flows.find(caller, flow_id)
        done = await self._linking.auth_poll(caller, {"flow_id": flow_id})
        return done if "status" in done else await self._named(flow, done)

    async def cancel(self, flow_id: str, who: Actor) -> JsonObject:
        """End a flow."""
        await self._before({})
        return await self._linking.auth_cancel(self._caller(who), {"flow_id": flow_id})

    async def _named(self, flow: Flow, done: JsonObject) -> JsonObject:
        """Return an account that was just linked with the names that its owner knows it by."""
        row, ref = flow.row, str(done["account_ref"])
        account = await self._accounts.get(row.user_id, row.capability_id, ref)
        return {
            "status": "linked",
            "account_ref": ref,
            "account_name": None if account is None else account.account_name,
            "account_email": None if account is None else account.account_email,
        }

    def _caller(self, who: Actor) -> ServiceCaller:
        """Return an actor as a caller. Raises `operator_only` where nobody is known."""
        self._audit.require_writable()
        token = self._tokens.mint(
            who.person_id,
            routing=RoutingClaims(
                chat_id=who.chat_id,
                chat_type=who.chat_type,
                provider=who.provider,
                thread_id=who.thread_id,
                source_username=who.source_username,
                source_display_name=who.source_display_name,
            ),
            actor=who,
        )
        if token is None:
            raise KagedError(
                "Nobody is signed in, so there is nobody to link an account for.",
                code="operator_only",
                fix="Use the command line, or a listener that knows who you are.",
            )
        return replace(self._tokens.caller(token), in_person=True)
