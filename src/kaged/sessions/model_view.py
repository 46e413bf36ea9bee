"""`ModelView`: a window written as a model takes it, again and again as it grows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.models.turn import (
    AssistantMessage,
    ModelMessage,
    ModelToolCall,
    SystemMessage,
    ToolResultMessage,
    UserMessage,
)
from kaged.models.vendor_parts import VendorParts, parts_of_json
from kaged.sessions.entry import EntryRole
from kaged.sessions.messages import (
    INTERRUPTED,
    VENDOR_PARTS,
    AskedCall,
    WindowMessage,
    results_of,
    texts_of,
)
from kaged.sessions.snapshot import ToolNames

UNSETTLED: Final = 4
"""How many messages at the end are written anew each time: notes come and go there."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a message comes to: how it is written, what it asks for, whose results it holds."""

    written: ModelMessage | None
    calls: tuple[AskedCall, ...] = ()
    results: tuple[tuple[str, str, bool], ...] = ()


class ModelView:
    """Writes the window of one agent.

    Results stand right behind the turn that asked for them, in the order of asking, whatever the
    order they came in. A call without a result gets one that says so, and a result without a call
    is left out: vendors refuse both.

    A beginning whose calls all have their results is settled: it is written once, however often
    the window is. After a compaction there is another beginning, and all is written anew.
    """

    __slots__ = ("_names", "_results", "_settled", "_written")

    def __init__(self, names: ToolNames) -> None:
        self._names = names
        self._begin()

    def write(self, messages: Sequence[WindowMessage]) -> list[ModelMessage]:
        """Write these messages; those that are the same as last time cost next to nothing."""
        if messages[: len(self._settled)] != self._settled:
            self._begin()
        rest = messages[len(self._settled) :]
        turns = [self._turn(message) for message in rest]
        later: dict[str, tuple[str, bool]] = {}
        for turn in turns:
            for name, output, is_error in turn.results:
                later.setdefault(name, (output, is_error))
        parts = [self._part(turn, later) for turn in turns]
        written = self._written.copy()
        for part in parts:
            written += part
        self._settle(rest, turns, parts)
        return written

    def _begin(self) -> None:
        self._settled: list[WindowMessage] = []
        self._written: list[ModelMessage] = []
        self._results: dict[str, tuple[str, bool]] = {}

    def _part(self, turn: _Turn, later: dict[str, tuple[str, bool]]) -> list[ModelMessage]:
        """Write one turn with the results that it asked for."""
        if turn.written is None:
            return []
        part = [turn.written]
        for call in turn.calls:
            found = self._result(call.request_id, later) or self._result(call.call_id, later)
            output, is_error = found or (INTERRUPTED, True)
            name = self._names.safe(call.name)
            part.append(ToolResultMessage(call.call_id, name, output, is_error))
        return part

    def _result(self, name: str, later: dict[str, tuple[str, bool]]) -> tuple[str, bool] | None:
        return self._results.get(name) or later.get(name)

    def _settle(
        self,
        rest: Sequence[WindowMessage],
        turns: Sequence[_Turn],
        parts: Sequence[list[ModelMessage]],
    ) -> None:
        """Keep what is written of the longest beginning that nothing later can change."""
        # By the host's own id only: a result under the model's id gives way to one under ours.
        seen: set[str] = set()
        waiting: set[str] = set()
        end = 0
        for number, turn in enumerate(turns[: max(0, len(turns) - UNSETTLED)], 1):
            asked = {call.request_id for call in turn.calls}
            waiting |= asked - seen - self._results.keys()
            names = {name for name, _, _ in turn.results}
            seen |= names
            waiting -= names
            if not waiting:
                end = number
        for turn, part in zip(turns[:end], parts[:end], strict=True):
            self._written += part
            for name, output, is_error in turn.results:
                self._results.setdefault(name, (output, is_error))
        self._settled += rest[:end]

    def _turn(self, message: WindowMessage) -> _Turn:
        match message.role:
            case EntryRole.SYSTEM:
                return _Turn(SystemMessage(message.text))
            case EntryRole.USER:
                return _Turn(UserMessage(message.text))
            case EntryRole.TOOL_RESULT:
                # Written with the turn that asked.
                return _Turn(None, results=tuple(results_of(message)))
            case EntryRole.ASSISTANT:
                calls, text = message.calls, message.text
                if not calls and not text:
                    # An empty turn says nothing, and some vendors refuse it.
                    return _Turn(None)
                said = AssistantMessage(
                    text,
                    tuple(
                        ModelToolCall(
                            one.call_id, self._names.safe(one.name), one.arguments, one.raw
                        )
                        for one in calls
                    ),
                    "\n".join(texts_of(message.blocks, "thinking")),
                    _vendor_parts(message),
                )
                return _Turn(said, calls)


def _vendor_parts(message: WindowMessage) -> VendorParts | None:
    found = next((one for one in message.blocks if one.get("type") == VENDOR_PARTS), None)
    return None if found is None else parts_of_json(found)
