"""`Transforms`: where rings above may look at and change what a run is about to do.

Each list is asked in order of registration; what one gives is what the next gets. Whoever raises
or takes too long is logged and passed over, except where a no may be said: there it counts as a
no. Whoever raises TransformRefused says no anywhere: what it was to see does not go out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger

PATIENCE_S: Final = 10.0
"""How long one transform may take."""

MAX_TRANSFORMS: Final = 200

T = TypeVar("T")
_log = get_logger("kaged.sessions")


class TransformRefused(KagedError):
    """Somebody must see what goes to the model, and cannot; the model is not asked."""

    code = "transform_refused"


@dataclass(frozen=True, slots=True)
class TransformVeto:
    """A no, with the reason that people and the agent are given."""

    reason: str


@dataclass(frozen=True, slots=True)
class ContextDraft:
    """One request to a model, as it is put together; scripts may change it before it goes out.

    `messages` are without the agent's own prompt, which is `system`, and their content is a list
    of blocks. `tools` say name, description and input schema, by the names that the model knows.
    """

    messages: Sequence[JsonObject]
    system: str = ""
    model: str = ""
    tools: Sequence[JsonObject] = ()


BeforeToolCall = Callable[[str, str, JsonObject], Awaitable[JsonObject | TransformVeto | None]]
"""(session id, tool name, arguments) to other arguments, a veto, or None."""

Context = Callable[[str, ContextDraft], Awaitable[ContextDraft | None]]
"""(session id, request) to what this one request is instead, or None."""

AfterTurn = Callable[[str, JsonObject], Awaitable[bool]]
"""(session id, what the turn was) to whether the run ends here."""

Summarizing = Callable[[str, JsonObject], Awaitable[JsonObject | None]]
"""(session id, what is to be summarized and how) to what of it is changed, or None."""


class Transforms:
    """The lists. `patience_s` bounds each single answer."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._before_tool_call: list[BeforeToolCall] = []
        self._context: list[Context] = []
        self._after_turn: list[AfterTurn] = []
        self._summarizing: list[Summarizing] = []

    def on_before_tool_call(self, one: BeforeToolCall) -> Callable[[], None]:
        """Ask before a tool call goes to dispatch, which decides it as changed."""
        return _added(self._before_tool_call, one)

    def on_context(self, one: Context) -> Callable[[], None]:
        """Ask before each model call; changes concern that request only."""
        return _added(self._context, one)

    def on_after_turn(self, one: AfterTurn) -> Callable[[], None]:
        """Ask after each turn of a session's top agent whether its run ends there."""
        return _added(self._after_turn, one)

    def on_summarizing(self, one: Summarizing) -> Callable[[], None]:
        """Ask before a model summarizes what leaves a window."""
        return _added(self._summarizing, one)

    @property
    def has_context(self) -> bool:
        """Whether anybody wants to see requests."""
        return bool(self._context)

    async def before_tool_call(
        self, session_id: str, name: str, arguments: JsonObject
    ) -> JsonObject | TransformVeto:
        """Pass a tool call; a transform that fails refuses it."""
        for one in tuple(self._before_tool_call):
            try:
                async with asyncio.timeout(self._patience_s):
                    said = await one(session_id, name, arguments)
            except Exception as error:  # noqa: BLE001 - boundary: whoever may say no and breaks, says no
                _log.warning(
                    "sessions.transform_failed", what="before_tool_call", error=repr(error)
                )
                why = type(error).__name__
                return TransformVeto(f"what was asked at before_tool_call failed ({why})")
            if isinstance(said, TransformVeto):
                return said
            arguments = arguments if said is None else said
        return arguments

    async def context(self, session_id: str, draft: ContextDraft) -> ContextDraft:
        """Pass a request; returns what to send. Raises TransformRefused."""
        current = draft
        for one in tuple(self._context):
            said = await self._asked("context", one(session_id, current))
            current = current if said is None else said
        return current

    async def stops_after(self, session_id: str, turn: JsonObject) -> bool:
        """Return whether anybody ends the run after this turn; all are asked until one does."""
        for one in tuple(self._after_turn):
            if await self._asked("after_turn", one(session_id, turn)):
                return True
        return False

    async def summarizing(self, session_id: str, plan: JsonObject) -> JsonObject:
        """Pass what is to be summarized; returns it as it was changed. Raises TransformRefused."""
        for one in tuple(self._summarizing):
            plan = {**plan, **(await self._asked("summarizing", one(session_id, plan)) or {})}
        return plan

    @property
    def has_summarizing(self) -> bool:
        """Whether anybody wants to see what is summarized."""
        return bool(self._summarizing)

    async def _asked(self, what: str, question: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(self._patience_s):
                return await question
        except TransformRefused:
            raise
        except Exception as error:  # noqa: BLE001 - boundary: one that breaks is passed over
            _log.warning("sessions.transform_failed", what=what, error=repr(error))
            return None


def _added(listed: list[T], one: T) -> Callable[[], None]:
    if len(listed) >= MAX_TRANSFORMS:
        raise ValueError(f"no more than {MAX_TRANSFORMS} transforms of one kind")
    listed.append(one)
    there = True

    def take_back() -> None:
        # Once: the same function may be registered again, and that is another registration.
        nonlocal there
        if there:
            there = False
            listed.remove(one)

    return take_back
