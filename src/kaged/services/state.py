"""`BoundState`: what a provider remembers, bound to one user, one capability and one chat."""

from __future__ import annotations

from typing import Final

import msgspec

from kaged.base import JsonObject
from kaged.services.errors import CapabilityInvalidInput
from kaged.store.service_rows import ServiceRows

NAME_CHARS: Final = 128
VALUE_LIMIT_BYTES: Final = 256 * 1024
ENTRIES_LIMIT: Final = 1000


class BoundState:
    """Entries of one user and capability, apart from credentials.

    With `chat=True` an entry belongs to the verified chat of the call as well.
    """

    __slots__ = ("_capability_id", "_chat_id", "_rows", "_user_id")

    def __init__(
        self, rows: ServiceRows, user_id: str, capability_id: str, chat_id: str | None
    ) -> None:
        self._rows = rows
        self._user_id = user_id
        self._capability_id = capability_id
        self._chat_id = chat_id

    async def get(self, name: str, *, chat: bool = False) -> JsonObject | None:
        """Read an entry."""
        where = self._chat(chat=chat)
        return await self._rows.state(self._user_id, self._capability_id, where, _name(name))

    async def put(self, name: str, value: JsonObject, *, chat: bool = False) -> None:
        """Write an entry."""
        if len(msgspec.json.encode(value)) > VALUE_LIMIT_BYTES:
            raise CapabilityInvalidInput("the state of the provider is too large")
        kept = await self._rows.put_state(
            self._user_id,
            self._capability_id,
            self._chat(chat=chat),
            _name(name),
            value,
            limit=ENTRIES_LIMIT,
        )
        if not kept:
            raise CapabilityInvalidInput("the provider keeps too many entries")

    async def delete(self, name: str, *, chat: bool = False) -> bool:
        """Remove an entry; returns whether it was there."""
        where = self._chat(chat=chat)
        return await self._rows.delete_state(self._user_id, self._capability_id, where, _name(name))

    def _chat(self, *, chat: bool) -> str:
        if not chat:
            return ""
        if not self._chat_id:
            raise CapabilityInvalidInput("this call comes from no chat")
        return self._chat_id


def _name(name: str) -> str:
    if not 0 < len(name) <= NAME_CHARS:
        raise CapabilityInvalidInput(f"a state entry has a name of 1 to {NAME_CHARS} characters")
    return name
