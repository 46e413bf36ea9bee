"""`ConnectionHealth`: whether linked accounts still work, found out by using and by testing them.

A change of an account's status is stored, put on record, and, when only its owner can mend it,
asked of them in the inbox: link it again. The request ends by itself when the account works again.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from kaged.audit import AuditEvent, AuditLog
from kaged.base import JsonObject, KagedError
from kaged.inbox import (
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestClosed,
    RequestDraft,
    RequestKind,
    RequestNotFound,
)
from kaged.services.accounts import Accounts, ConnectionStatus
from kaged.services.authflow import AuthFlows
from kaged.services.errors import CapabilityBackendUnavailable, CapabilityError
from kaged.services.registry import RegisteredCapability
from kaged.store.service_rows import AccountRow

DISMISS: Final = "dismiss"
_BY: Final = AnsweredBy("daemon")
_REFUSED: Final = frozenset({ConnectionStatus.EXPIRED, ConnectionStatus.REVOKED})


class ConnectionHealth:
    """Keeps the status of accounts."""

    def __init__(self, accounts: Accounts, flows: AuthFlows, inbox: Inbox, audit: AuditLog) -> None:
        self._accounts = accounts
        self._flows = flows
        self._inbox = inbox
        self._audit = audit
        inbox.register(_RelinkAnswers(), RequestKind.ACCOUNT_RELINK)

    async def worked(self, account: AccountRow) -> None:
        """Note that a call with an account succeeded."""
        if account.status != ConnectionStatus.ACTIVE:
            await self._change(account, ConnectionStatus.ACTIVE, "")

    async def failed(self, account: AccountRow, error: CapabilityError) -> None:
        """Note how a call with an account failed; most failures say nothing about the account."""
        if error.code == "capability_auth_required":
            found = ConnectionStatus.REVOKED if error.refused else ConnectionStatus.EXPIRED
        elif isinstance(error, CapabilityBackendUnavailable):
            found = ConnectionStatus.UNREACHABLE
            if account.status in _REFUSED:  # it must be linked again all the same
                return
        else:
            return
        if account.status != found:
            await self._change(account, found, error.message)

    async def check(self, account: AccountRow, capability: RegisteredCapability | None) -> bool:
        """Test an account at its service; returns whether its provider could do that."""
        try:
            checked = await self._flows.check(capability, account)
        except CapabilityError as error:
            await self.failed(account, error)
            return True
        if checked:
            await self.worked(account)
        return checked

    async def ended(self, account: AccountRow) -> None:
        """Ask no longer for an account that was linked again or taken back."""
        try:
            await self._inbox.withdraw(_request_id(account), _BY)
        except (RequestNotFound, RequestClosed):
            return

    # -- own -------------------------------------------------------------------------------------

    async def _change(self, account: AccountRow, status: ConnectionStatus, reason: str) -> None:
        if not await self._accounts.set_status(account, status, reason):
            return  # taken back meanwhile
        self._audit.post(
            AuditEvent(
                "capability_account_status",
                {
                    "user_id": account.user_id,
                    "capability.id": account.capability_id,
                    "account_ref": account.account_ref,
                    "status": status.value,
                    "before": account.status,
                },
            )
        )
        if status in _REFUSED:
            await self._inbox.ask_again(_draft(account, status))
        elif status is ConnectionStatus.ACTIVE:
            await self.ended(account)


class _RelinkAnswers:
    """What the inbox does with the answers to requests for linking an account again: nothing."""

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is stored. Raises `inbox_answer_invalid`."""
        choice = answer.get("choice") if isinstance(answer, dict) else None
        if choice != DISMISS:
            raise KagedError(
                "The answer is none of the choices.",
                code="inbox_answer_invalid",
                fix=f'Link the account again, or answer with {{"choice": "{DISMISS}"}}.',
                choices=list(request.choices),
            )
        return CheckedAnswer({"choice": DISMISS})

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Do nothing: the account is as it was."""

    def event(self, request: InboxRequest) -> JsonObject:
        """Return nothing more: what is asked is for its owner only."""
        del request
        return {}


def _request_id(account: AccountRow) -> str:
    named = json.dumps([account.user_id, account.capability_id, account.account_ref])
    return f"relink_{hashlib.sha256(named.encode()).hexdigest()[:32]}"


def _draft(account: AccountRow, status: ConnectionStatus) -> RequestDraft:
    shown = account.account_email or account.account_name or account.account_ref
    words = {
        ConnectionStatus.EXPIRED: "Its access has ended.",
        ConnectionStatus.REVOKED: "The service no longer accepts it.",
    }
    return RequestDraft(
        _request_id(account),
        RequestKind.ACCOUNT_RELINK,
        f"Link {shown} with {account.capability_id} again.",
        (words[status], f"The account is {account.account_ref} of {account.capability_id}."),
        choices=(DISMISS,),
        subject={"capability": account.capability_id, "account_ref": account.account_ref},
        owner=account.user_id,
    )
