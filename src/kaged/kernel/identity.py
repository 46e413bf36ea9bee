"""`Actor`: who acts, as the edge that let them in found out."""

from __future__ import annotations

from dataclasses import field, replace
from enum import StrEnum
from typing import Final

from kaged.base.lazy_dataclass import dataclass

OWN_PROVIDER: Final = "kaged"
PRIVATE_CHAT: Final = "private"
UNKNOWN_PERSON: Final = "operator"
"""Who somebody is on record whom nobody authenticated."""


class VouchedBy(StrEnum):
    """What vouched for an actor."""

    UNIX = "unix"
    BEARER = "bearer"
    COOKIE = "cookie"
    INSECURE = "insecure"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, from where, and who vouched for that.

    An edge makes it once, from what it verified, and never from a prompt or a parameter.
    `person_id` is None where nobody was authenticated (insecure mode). With `by_front_end` it is
    the person whom a trusted front end named, in the chat that it named; otherwise the operator.
    Whoever has no chat type cannot use what is kept for private chats.

    `thread_id` is the thread within the chat, and the two source names are what the chat calls the
    person; they route and describe, and decide nothing.

    `request_id` says under which request they act. It is no part of who they are: the same actor
    in two requests is equal.
    """

    person_id: str | None
    vouched_by: VouchedBy
    chat_type: str | None = None
    chat_id: str | None = None
    provider: str | None = None
    by_front_end: bool = False
    roles: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    agent_path: str | None = None
    skill: str | None = None
    thread_id: str | None = None
    source_username: str | None = None
    source_display_name: str | None = None
    request_id: str = field(default="", compare=False, repr=False)

    @classmethod
    def operator(cls, person_id: str | None, vouched_by: VouchedBy, request_id: str = "") -> Actor:
        """Return the operator on a listener of our own, which counts as a private chat (SC-AMB-38).

        In insecure mode, without a person, there is no chat either.
        """
        if person_id is None:
            return cls(None, vouched_by, request_id=request_id)
        return cls(
            person_id, vouched_by, PRIVATE_CHAT, provider=OWN_PROVIDER, request_id=request_id
        )

    @property
    def label(self) -> str:
        """Return a short name for logs and the audit trail."""
        return self.person_id or f"anonymous/{self.vouched_by}"

    @property
    def operator_name(self) -> str:
        """Return the name under which calls and runs are kept, also where nobody is known."""
        return self.person_id or UNKNOWN_PERSON

    @property
    def if_known(self) -> Actor | None:
        """Return the actor whose accounts may be used: None where nobody is known."""
        return None if self.person_id is None else self

    def in_request(self, request_id: str) -> Actor:
        """Return the same actor under another request."""
        return replace(self, request_id=request_id)
