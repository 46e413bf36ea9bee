"""`Dialogs`: questions of scripts to the person in front, and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from kaged.base import Ids, JsonObject, JsonValue, KagedError
from kaged.lua.values import shown_object

ANSWER_S: Final = 600.0
"""How long a dialog stands; then it counts as dismissed."""
MAX_OPEN: Final = 32

Publish = Callable[[str, JsonObject], None]


@dataclass(slots=True)
class _OpenDialog:
    shown: JsonObject
    answer: asyncio.Future[JsonValue] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Dialogs:
    """The open dialogs of one project. Without anybody in front they are dismissed at once."""

    def __init__(self, ids: Ids, publish: Publish, answer_s: float = ANSWER_S) -> None:
        self._ids = ids
        self._publish = publish
        self._answer_s = answer_s
        self._open: dict[str, _OpenDialog] = {}
        self._fronts = 0
        self._changed = asyncio.Event()

    @contextmanager
    def front(self) -> Generator[None]:
        """Mark that a front end shows dialogs while the block runs."""
        self._fronts += 1
        try:
            yield
        finally:
            self._fronts -= 1
            if self._fronts == 0:
                self.dismiss_all()

    async def ask(self, script: str, kind: str, payload: JsonObject) -> JsonValue:
        """Show a dialog and wait for the answer; None when it is dismissed."""
        if self._fronts == 0 or len(self._open) >= MAX_OPEN:
            return None
        dialog_id = self._ids.tagged("dlg")
        made = _OpenDialog(
            {"id": dialog_id, "script": script, "kind": kind, **shown_object(payload)}
        )
        self._open[dialog_id] = made
        self._publish("lua.dialog", made.shown)
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(self._answer_s):
                return await made.answer
        except TimeoutError:
            return None
        finally:
            self._open.pop(dialog_id, None)
            self._publish("lua.dialog_closed", {"id": dialog_id})

    def answer(self, dialog_id: str, value: JsonValue) -> None:
        """Take a person's answer; None dismisses. Raises `lua_dialog_not_found`."""
        found = self._open.get(dialog_id)
        if found is None or found.answer.done():
            raise KagedError(
                f"No dialog {dialog_id} waits for an answer.", code="lua_dialog_not_found"
            )
        found.answer.set_result(value)

    def dismiss_all(self) -> None:
        """Dismiss what is open: nobody is there to answer."""
        for one in self._open.values():
            if not one.answer.done():
                one.answer.set_result(None)

    async def wait(self, seconds: float) -> Sequence[JsonObject]:
        """Return the open dialogs, waiting up to so long for one. The waiter is a front end."""
        with self.front():
            if not self.open():
                try:
                    async with asyncio.timeout(seconds):
                        await self._changed.wait()
                except TimeoutError:
                    return []
            return self.open()

    def open(self) -> Sequence[JsonObject]:
        """Return the dialogs that wait for an answer."""
        return [one.shown for one in self._open.values() if not one.answer.done()]
