"""`BoundState`: what a provider remembers, bound to one user, one capability and one chat."""

from __future__ import annotations

from typing import Final

import msgspec

from kaged.base import JsonObject
from kaged.services.errors import CapabilityInvalidInput, CapabilityInvalidOutput
from kaged.services.secret_search import CallSecrets
from kaged.store.service_rows import ServiceRows, StateKey

NAME_CHARS: Final = 128
VALUE_LIMIT_BYTES: Final = 256 * 1024
ENTRIES_LIMIT: Final = 1000


class BoundState:
    """Entries of one user and capability, apart from credentials.

    With `chat=True` an entry belongs to the verified chat of the call as well. Entries lie in
    the database as they are, so none may hold one of the call's `secrets`.
    """

    __slots__ = ("_capability_id", "_chat_id", "_rows", "_secrets", "_user_id")

    def __init__(
        self,
        rows: ServiceRows,
        user_id: str,
        capability_id: str,
        chat_id: str | None,
        secrets: CallSecrets,
    ) -> None:
        self._rows = rows
        self._user_id = user_id
        self._capability_id = capability_id
        self._chat_id = chat_id
        self._secrets = secrets

    async def get(self, name: str, *, chat: bool = False) -> JsonObject | None:
        """Read an entry."""
        return await self._rows.state(self._key(name, chat=chat))

    async def put(self, name: str, value: JsonObject, *, chat: bool = False) -> None:
        """Write an entry."""
        text = msgspec.json.encode(value)
        if len(text) > VALUE_LIMIT_BYTES:
            raise CapabilityInvalidInput("the state of the provider is too large")
        if self._secrets.found_in(text) or self._secrets.found_in_text(name):
            raise CapabilityInvalidOutput("the state of the provider holds a secret")
        key = self._key(name, chat=chat)
        if not await self._rows.put_state(key, value, limit=ENTRIES_LIMIT):
            raise CapabilityInvalidInput("the provider keeps too many entries")

    async def delete(self, name: str, *, chat: bool = False) -> bool:
        """Remove an entry; returns whether it was there."""
        return await self._rows.delete_state(self._key(name, chat=chat))

    def _key(self, name: str, *, chat: bool) -> StateKey:
        if not 0 < len(name) <= NAME_CHARS:
            raise CapabilityInvalidInput(
                f"a state entry has a name of 1 to {NAME_CHARS} characters"
            )
        if chat and not self._chat_id:
            raise CapabilityInvalidInput("this call comes from no chat")
        chat_id = (self._chat_id or "") if chat else ""
        return StateKey(self._user_id, self._capability_id, chat_id, name)
