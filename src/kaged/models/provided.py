"""`ProvidedModel`: a model that a Lua script of the project provides, asked as any other.

What the script emits is as little trusted as what a vendor sends: unknown events are passed over,
and everything else is bounded by `TurnBuilder`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.config.localconfig import ModelEntry
from kaged.models import turn
from kaged.models.answer import TurnBuilder, clean_text
from kaged.models.errors import (
    ModelBadAnswer,
    ModelContextExceeded,
    ModelError,
    ModelRateLimited,
    ModelRefused,
    ModelUnavailable,
)
from kaged.models.retrying import AttemptEvent, RetryingModel

PROVIDED: Final = "lua"
"""The vendor in `model = "lua:provider/model"`."""
DEFAULT_CONTEXT_TOKENS: Final = 128_000
MAX_REQUEST_BYTES: Final = 4 * 1024 * 1024
MAX_EVENTS: Final = 200_000
_SAYS_CHARS: Final = 300
_FINISHES: Final[dict[str, turn.FinishReason]] = {
    "end_turn": "stop",
    "stop": "stop",
    "tool_use": "tool_calls",
    "tool_calls": "tool_calls",
    "max_tokens": "length",
    "length": "length",
    "content_filter": "content_filter",
}
_PASSING_STATUSES: Final = frozenset({408, 409, 425})
_TOO_MANY: Final = 429
_SERVER_FAULT: Final = 500


@dataclass(frozen=True, slots=True)
class ProviderQuestion:
    """One request for a script's provider; `body` is what its `stream` function is given."""

    project_id: str
    session_id: str
    provider: str
    model: str
    body: JsonObject


AskProvider = Callable[[ProviderQuestion], AsyncGenerator[JsonObject]]
"""Yields what the provider emits. Raises ModelError when it cannot be asked."""

WindowOf = Callable[[str, str, str], int | None]
"""Returns the window that a project's script states: for project, provider and model."""


class ProvidedModel:
    """A model behind an alias whose answers a script makes."""

    def __init__(
        self, alias: str, entry: ModelEntry, ask: AskProvider | None, window_of: WindowOf
    ) -> None:
        self.alias = alias
        self.context_tokens = entry.context_window or DEFAULT_CONTEXT_TOKENS
        self._window_of = window_of
        self._entry = entry
        self._ask = ask
        _, _, name = entry.model.partition(":")
        self._provider, _, self._model = name.partition("/")

    def context_tokens_in(self, project_id: str) -> int:
        """Return how many tokens its window holds in a project: the operator's word comes first."""
        stated = self._window_of(project_id, self._provider, self._model)
        return self._entry.context_window or stated or DEFAULT_CONTEXT_TOKENS

    async def attempt(
        self, request: turn.ModelRequest, number: int
    ) -> AsyncGenerator[AttemptEvent]:
        """Ask the script once; leaving the iteration lets its next `emit` raise.

        Raises:
            ModelError: the script cannot be asked, said what went wrong, or made no sense.
        """
        if self._ask is None or not request.project_id:
            raise ModelRefused(
                f"The model {self.alias} is provided by a script, and scripts belong to projects.",
                fix="Ask it in a session of a project.",
            )
        question = ProviderQuestion(
            request.project_id, request.session_id, self._provider, self._model, self._body(request)
        )
        answer = _Answer(self._entry.model)
        try:
            async with (
                asyncio.timeout(self._entry.timeout_s),
                aclosing(self._ask(question)) as said,
            ):
                while not answer.finished:
                    # Silent until it begins: it may be answering somebody else.
                    silent_s = self._entry.idle_timeout_s if answer.began else None
                    async with asyncio.timeout(silent_s):
                        event = await anext(said, None)
                    if event is None:
                        break
                    piece = answer.take(event)
                    if piece is not None:
                        yield piece
        except TimeoutError as error:
            raise ModelUnavailable(f"The script behind {self.alias} took too long.") from error
        yield turn.TurnFinished(answer.whole())

    def _body(self, request: turn.ModelRequest) -> JsonObject:
        system = [one.text for one in request.messages if isinstance(one, turn.SystemMessage)]
        body: JsonObject = {
            "model": self._model,
            "system": "\n\n".join(system),
            "messages": [
                _message(one) for one in request.messages if not isinstance(one, turn.SystemMessage)
            ],
            "tools": [
                {"name": one.name, "description": one.description, "input_schema": one.parameters}
                for one in request.tools
            ],
            "settings": {**self._entry.settings, **request.settings},
        }
        if len(json.dumps(body)) > MAX_REQUEST_BYTES:
            raise ModelContextExceeded(
                f"The request is larger than the {MAX_REQUEST_BYTES} bytes that a script is given.",
                fix="Compact the session, or set context_window for the model.",
            )
        return body


class ProjectModel:
    """A provided model as one project sees it: each project has scripts of its own."""

    def __init__(self, model: RetryingModel, provided: ProvidedModel, project_id: str) -> None:
        self.alias = model.alias
        self.stream = model.stream
        self._provided = provided
        self._project_id = project_id

    @property
    def context_tokens(self) -> int:
        """How many tokens its window holds, as the project's script says now."""
        return self._provided.context_tokens_in(self._project_id)


class _Answer:
    """One answer as it comes in."""

    def __init__(self, model: str) -> None:
        self.began = self.finished = False
        self._model = model
        self._builder = TurnBuilder()
        self._calls: dict[str, int] = {}
        self._count = 0
        self._finish: turn.FinishReason = "stop"
        self._usage = turn.Usage()

    def take(self, event: JsonObject) -> AttemptEvent | None:
        """Take an event; return what of it is shown at once."""
        self.began = True
        self._count += 1
        if self._count > MAX_EVENTS:
            raise ModelBadAnswer(f"The script emitted more than {MAX_EVENTS} events in one turn.")
        match event.get("type"):
            case "text_delta":
                return turn.TextDelta(self._builder.say(_text(event, "delta")))
            case "thinking_delta":
                return turn.ThinkingDelta(self._builder.think(_text(event, "delta")))
            case "tool_call_start":
                self._call(event, name=_text(event, "name"))
            case "tool_call_delta":
                self._call(event, arguments=_text(event, "delta"))
            case "tool_call_end":
                given = event.get("input")
                self._call(event, arguments="" if given is None else _written(given))
            case "message_end":
                self.finished = True
                self._finish = _FINISHES.get(_text(event, "stop_reason"), "other")
                self._usage = _usage(event.get("usage"))
            case "error":
                raise provider_error(event)
            case _:
                pass  # message_start, and what newer scripts may say
        return None

    def whole(self) -> turn.ModelTurn:
        """Return the turn; a script that returned without an end has not answered."""
        if not self.finished:
            raise ModelBadAnswer("The script returned without emitting message_end.")
        message = self._builder.message()
        finish = "tool_calls" if message.tool_calls and self._finish == "stop" else self._finish
        return turn.ModelTurn(message, self._usage, finish, self._model)

    def _call(self, event: JsonObject, *, name: str = "", arguments: str = "") -> None:
        call_id = _text(event, "id")
        index = self._calls.setdefault(call_id, len(self._calls))
        self._builder.call(index, call_id=call_id, name=name, arguments=arguments)


def provider_error(said: JsonObject) -> ModelError:
    """Return the error for what a script raised, by the kind that it gave."""
    kind, status = said.get("kind"), said.get("status")
    words = clean_text(_text(said, "message"))[:_SAYS_CHARS]
    code = status if type(status) is int else 0
    if kind == "rate_limited" or (kind == "http" and code == _TOO_MANY):
        return ModelRateLimited(f"The script's provider limits the rate: {words}")
    passing = code in _PASSING_STATUSES or code >= _SERVER_FAULT
    if kind == "transport" or (kind == "http" and passing):
        return ModelUnavailable(f"The script's provider cannot be reached: {words}")
    return ModelRefused(f"The script's provider failed: {words}")


def _message(message: turn.ModelMessage) -> JsonObject:
    blocks: list[JsonValue] = []
    role = "user"
    match message:
        case turn.ToolResultMessage():
            role = "tool_result"
            blocks.append(
                {
                    "type": "tool_result_block",
                    "call_id": message.call_id,
                    "name": message.name,
                    "output": message.content,
                    "is_error": message.is_error,
                }
            )
        case turn.AssistantMessage():
            role = "assistant"
            if message.text:
                blocks.append({"type": "text", "text": message.text})
            for one in message.tool_calls:
                wrote: JsonValue = {"not_json": one.raw} if one.arguments is None else one.arguments
                asked: JsonObject = {"id": one.id, "name": one.name, "input": wrote}
                blocks.append({"type": "tool_call", **asked})
        case _:
            blocks.append({"type": "text", "text": message.text})
    return {"role": role, "content": blocks}


def _usage(said: JsonValue) -> turn.Usage:
    given = said if isinstance(said, dict) else {}

    def count(name: str) -> int:
        value = given.get(name)
        return min(max(value, 0), 1_000_000_000) if type(value) is int else 0

    return turn.Usage(count("input") + count("cache_read"), count("output"), count("cache_read"))


def _text(said: JsonObject, name: str) -> str:
    value = said.get(name)
    return value if isinstance(value, str) else ""


def _written(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)
