"""`AccountShare`: what the owner of an account lets somebody else do with it; `decide_share`.

A share names everything: whose account of which capability, for whom, for which operations. It
gives the use of an account through the host and never the account itself, and it cannot be passed
on: only who has linked an account can share it.
"""

from __future__ import annotations

from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.decision import Decision, fail_closed

SHARE_RULE: Final = "service.share"
SHARE_DENIED: Final = "capability_access_denied"
SHARE_PREFIX: Final = "shr_"
"""How the ids of shares begin; as the name of an account they stand for the shared one."""

_PASSES: Final = Decision.allow(SHARE_RULE)


@dataclass(frozen=True, slots=True)
class AccountShare:
    """One share. It is with a `person`, or with whoever is in a `team` at the time of a call.

    `operations` are names, never patterns: an operation that a provider adds later is not shared.
    """

    share_id: str
    owner: str
    capability_id: str
    account_ref: str
    person: str | None
    team: str | None
    operations: list[str]
    created_at_ms: int
    expires_at_ms: int | None
    last_used_at_ms: int | None = None
    last_used_by: str | None = None


def is_shared_with(share: AccountShare, person_id: str, teams: frozenset[str]) -> bool:
    """Return whether somebody is one of those whom a share names. Its owner never is."""
    if not person_id or person_id == share.owner:
        return False
    if share.person is not None:
        return share.team is None and share.person == person_id
    return share.team is not None and share.team in teams


@fail_closed(SHARE_RULE)
def decide_share(
    share: AccountShare,
    person_id: str,
    teams: frozenset[str],
    capability_id: str,
    operation: str | None,
    now_ms: int,
) -> Decision:
    """Decide whether a share lets somebody run an operation; None stands for any of them."""
    if not is_shared_with(share, person_id, teams):
        return _deny("no such account is shared with this person")
    if share.capability_id != capability_id:
        return _deny(f"this account is shared for {share.capability_id} only")
    if share.expires_at_ms is not None and share.expires_at_ms <= now_ms:
        return _deny("this share of an account has ended")
    if operation is not None and operation not in share.operations:
        names = ", ".join(sorted(share.operations))
        return _deny(f"this account is shared for these operations only: {names}")
    return _PASSES


def _deny(detail: str) -> Decision:
    return Decision.deny(SHARE_RULE, detail, code=SHARE_DENIED)
