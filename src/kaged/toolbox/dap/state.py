"""What a debug session keeps: its state, why it ended, where it stopped, the stack, the output."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.dialects import Ask

MAX_FRAMES: Final = 10_000
OUTPUT_LIMIT_CHARS: Final = 64 * 1024


class State(StrEnum):
    """What the debugged program is doing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a debug session ended, as the audit log names it (AT-AUD-10)."""

    DISCONNECT = "disconnect"
    CRASH = "crash"
    RUN_ENDED = "run_ended"


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why the program stopped."""

    reason: str
    thread_id: int
    body: JsonObject


class Frames:
    """What is known of the stacks since the program stopped."""

    def __init__(self) -> None:
        self._known: dict[int, list[JsonObject]] = {}
        self._totals: dict[int, int] = {}
        self._age = 0

    def forget(self) -> None:
        """Drop everything: the program goes on, or has stopped anew."""
        self._age += 1
        self._known.clear()
        self._totals.clear()

    async def top(self, thread_id: int, levels: int, ask: Ask) -> list[JsonObject]:
        """Return the top frames of a thread; asks the adapter only for what is not known."""
        known, age = self._known.get(thread_id, []), self._age
        if len(known) >= levels or len(known) == self._totals.get(thread_id):
            return known[:levels]
        asked: JsonObject = {"threadId": thread_id, "startFrame": 0, "levels": levels}
        body = await ask("stackTrace", asked)
        known = _frames(body)
        if self._age == age:  # else the program has gone on meanwhile
            self._known[thread_id] = known
            total = body.get("totalFrames")
            if type(total) is int and total >= len(known):
                self._totals[thread_id] = total
            elif 0 < len(known) < levels:
                self._totals[thread_id] = len(known)
        return known[:levels]

    async def count(self, thread_id: int, ask: Ask) -> int:
        """Return how many frames a thread has; an adapter that has not said is asked for all."""
        known, age = self._known.get(thread_id, []), self._age
        total = self._totals.get(thread_id)
        if total is None:
            total = max(len(_frames(await ask("stackTrace", {"threadId": thread_id}))), len(known))
            if self._age == age:
                self._totals[thread_id] = total
        return total


class CapturedOutput:
    """What a program printed and nobody has read yet; what comes when it is full is dropped."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chars = 0

    def hear(self, body: JsonObject) -> None:
        """Take an `output` event."""
        text = body.get("output")
        if isinstance(text, str) and body.get("category") not in ("telemetry", "important"):
            room = OUTPUT_LIMIT_CHARS - self._chars
            if room > 0:
                self._texts.append(text[:room])
                self._chars += min(len(text), room)

    def take(self) -> str:
        """Return all of it, once."""
        text = "".join(self._texts)
        self._texts.clear()
        self._chars = 0
        return text


def _frames(body: JsonObject) -> list[JsonObject]:
    listed = body.get("stackFrames")
    frames = listed if isinstance(listed, list) else []
    return [one for one in frames[:MAX_FRAMES] if isinstance(one, dict)]
