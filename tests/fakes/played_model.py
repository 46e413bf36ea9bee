"""A model that a test plays: it says what it is told, and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from kaged.models.errors import ModelError
from kaged.models.turn import (
    AssistantMessage,
    Model,
    ModelEvent,
    ModelRequest,
    ModelToolCall,
    ModelTurn,
    SystemMessage,
    TextDelta,
    ToolResultMessage,
    TurnFinished,
    Usage,
    UserMessage,
)

_numbers = count(1)


def call(
    name: str,
    arguments: Any = None,
    *,
    raw: str | None = None,
    id: str = "",  # noqa: A002 - the field's name
) -> ModelToolCall:
    """Make a tool call; `raw` makes it one that is no JSON."""
    made = id or f"c{next(_numbers)}"
    return ModelToolCall(made, name, None if raw is not None else (arguments or {}), raw or "")


def say(text: str = "", *calls: ModelToolCall, tokens: int = 0) -> ModelTurn:
    """Make a turn."""
    return ModelTurn(AssistantMessage(text, calls), Usage(tokens, len(text) // 4))


Play = Callable[[ModelRequest], Awaitable[ModelTurn]]
Turn = ModelTurn | BaseException | Play


class PlayedModel:
    """Plays turns in order, or what `play` answers. `requests` is everything it was asked."""

    def __init__(self, *turns: Turn, alias: str = "default", context_tokens: int = 100_000) -> None:
        self.alias = alias
        self.context_tokens = context_tokens
        self.turns: list[Turn] = list(turns)
        self.requests: list[ModelRequest] = []
        self.asked = asyncio.Event()
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
        """Play the next turn."""
        self.requests.append(request)
        self.asked.set()
        try:
            assert self.turns, f"nothing is left to say to {request.messages[-1]}"
            turn = self.turns.pop(0)
            if isinstance(turn, BaseException):
                raise turn
            made = turn if isinstance(turn, ModelTurn) else await turn(request)
            if made.message.text:
                yield TextDelta(made.message.text)
            yield TurnFinished(made)
        finally:
            self.closed += 1

    def texts(self, number: int = -1) -> list[str]:
        """Return what stood in one request, message by message."""
        return [shown(one) for one in self.requests[number].messages]


def shown(message: Any) -> str:
    """Write a message in a line."""
    match message:
        case SystemMessage():
            return f"system: {message.text}"
        case UserMessage():
            return f"user: {message.text}"
        case ToolResultMessage():
            return f"{'error' if message.is_error else 'result'} {message.name}: {message.content}"
        case AssistantMessage():
            calls = " ".join(f"<{one.name}>" for one in message.tool_calls)
            return f"assistant: {' '.join(filter(None, (message.text, calls)))}"
        case _:
            raise AssertionError(message)


@dataclass
class PlayedModels:
    """Models by alias."""

    by_alias: dict[str, Model]

    def get(self, alias: str, project_id: str = "") -> Model:
        """Return one. Raises `model_unknown`."""
        if alias not in self.by_alias:
            raise ModelError(f"no model {alias}", code="model_unknown")
        return self.by_alias[alias]


def hang() -> Play:
    """Make a turn that never comes."""

    async def wait(request: ModelRequest) -> ModelTurn:
        del request
        await asyncio.Event().wait()
        raise AssertionError

    return wait


def calls_of(turns: Sequence[ModelTurn]) -> list[str]:
    """Return the tools that turns ask for."""
    return [one.name for turn in turns for one in turn.message.tool_calls]


__all__ = ["PlayedModel", "PlayedModels", "call", "calls_of", "hang", "say", "shown"]
