"""`Dialogs`: questions of scripts to the person in front, and the answers.

A dialog is a request of the inbox that lives as long as its script waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, Final

from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.inbox import (
    AnsweredBy,
    CheckedAnswer,
    Inbox,
    InboxRequest,
    RequestClosed,
    RequestDraft,
    RequestKind,
    RequestNotFound,
    RequestState,
)
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


class DialogAnswers:
    """Hands answers from the inbox to the dialogs of all projects."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.expected: dict[str, asyncio.Future[JsonValue]] = {}
        inbox.register(self, RequestKind.DIALOG)

    async def check(self, request: InboxRequest, answer: Any) -> CheckedAnswer:
        """Return the answer as it is given to the script. Raises `inbox_answer_invalid`."""
        if set(answer) != {"value"}:
            raise KagedError(
                "The answer to a dialog is a value.",
                code="inbox_answer_invalid",
                fix='Answer with {"value": …}; null dismisses the dialog.',
                id=request.id,
            )
        return CheckedAnswer(answer)

    async def on_answer(self, request: InboxRequest, by: AnsweredBy) -> None:
        """Let the script go on; without an answer the dialog is dismissed."""
        del by
        waits = self.expected.get(request.id)
        if waits is not None and not waits.done():
            waits.set_result((request.answer or {}).get("value"))

    def event(self, request: InboxRequest) -> JsonObject:
        """Return nothing more: `lua.dialog` has the rest."""
        del request
        return {}


class Dialogs:
    """The open dialogs of one project. Without anybody in front they are dismissed at once."""

    def __init__(
        self,
        project_id: str,
        answers: DialogAnswers,
        ids: Ids,
        clock: Clock,
        publish: Publish,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._project_id = project_id
        self._answers = answers
        self._ids = ids
        self._clock = clock
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
        self._answers.expected[dialog_id] = made.answer
        self._answers.inbox.hold(self._request(dialog_id, made.shown))
        self._publish("lua.dialog", made.shown)
        self._changed.set()
        self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(self._answer_s):
                return await made.answer
        except TimeoutError:
            self._answers.inbox.drop(dialog_id, RequestState.EXPIRED)
            return None
        finally:
            self._answers.inbox.drop(dialog_id)  # unless it was answered
            self._answers.expected.pop(dialog_id, None)
            self._open.pop(dialog_id, None)
            self._publish("lua.dialog_closed", {"id": dialog_id})

    async def answer(self, dialog_id: str, value: JsonValue, by: AnsweredBy) -> None:
        """Take a person's answer; None dismisses. Raises `lua_dialog_not_found`."""
        found = self._open.get(dialog_id)
        try:
            if found is None or found.answer.done():
                raise RequestNotFound.of_id(dialog_id)
            await self._answers.inbox.take_answer(dialog_id, {"value": value}, by)
        except (RequestNotFound, RequestClosed) as error:
            raise KagedError(
                f"No dialog {dialog_id} waits for an answer.", code="lua_dialog_not_found"
            ) from error

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

    def _request(self, dialog_id: str, shown: JsonObject) -> RequestDraft:
        kind, items = shown["kind"], shown.get("items")
        details = [str(one) for one in (shown.get("message"), shown.get("text")) if one]
        value: JsonObject = {"type": ["string", "null"]}
        if kind == "confirm":
            value = {"type": ["boolean", "null"]}
        elif isinstance(items, list):
            value = {"type": ["integer", "null"], "minimum": 1, "maximum": len(items)}
            details += [f"{number}. {_label(item)}" for number, item in enumerate(items, start=1)]
        return RequestDraft(
            dialog_id,
            RequestKind.DIALOG,
            f"{shown['script']}: {shown.get('title') or kind}",
            details,
            answer_schema={
                "type": "object",
                "required": ["value"],
                "properties": {"value": value},
            },
            subject=shown,
            project_id=self._project_id,
            expires_at_ms=self._clock.now_ms() + int(self._answer_s * 1000),
        )


def _label(item: JsonValue) -> str:
    return str(item.get("label", "")) if isinstance(item, dict) else str(item)
