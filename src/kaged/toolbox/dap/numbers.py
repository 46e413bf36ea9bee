"""`Numbers`: how the threads, frames, values and breakpoints of several sessions are told apart."""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.protocol import Taking

STEP: Final = 1 << 40  # adapters' own numbers are below; ours are whose times this, plus theirs
MAX_LISTS: Final = 2000
_NUMBERED: Final = (
    ("stackFrames", "id"),
    ("scopes", "variablesReference"),
    ("variables", "variablesReference"),
)


@dataclass(frozen=True, slots=True)
class BreakpointList:
    """A list of breakpoints as every session is told of it, and the numbers it is known by."""

    arguments: JsonObject
    numbers: tuple[int, ...]


class Numbers:
    """Gives and takes the numbers of a family's sessions; number 0 is the adapter's own session.

    Its numbers stay as they are, so that an adapter without child sessions is not changed at all,
    except for those of breakpoints: every session has its own for what is one breakpoint above.
    """

    def __init__(self) -> None:
        self.lists: dict[tuple[str, str], BreakpointList] = {}
        self._threads: dict[int, tuple[int, int]] = {}
        self._breakpoints: dict[tuple[int, int], int] = {}
        self._last = 0

    # -- threads, frames, values -----------------------------------------------------------------

    def thread(self, session: int, own: int) -> int:
        """Return a number for a session's thread that no other's has; the same each time."""
        if session == 0:
            return own
        for ours, theirs in self._threads.items():
            if theirs == (session, own):
                return ours
        ours = max(own, 0)
        while ours in self._threads:
            ours += 1
        self._threads[ours] = session, own
        return ours

    def addressed(self, arguments: JsonObject) -> tuple[int | None, JsonObject]:
        """Return which session a request is for, and write its numbers as that one knows them."""
        thread = arguments.get("threadId")
        if type(thread) is int:
            session, own = self._threads.get(thread, (0, thread))
            return session, {**arguments, "threadId": own}
        for name in ("frameId", "variablesReference"):
            value = arguments.get(name)
            if type(value) is int and value > 0:
                session, own = divmod(value, STEP)
                return session, {**arguments, name: own}
        return None, arguments

    def marked(self, session: int, body: JsonObject) -> JsonObject:
        """Write whose they are into the numbers of an answer."""
        if session == 0:
            return body
        base = session * STEP
        marked = dict(body)
        for listed, name in _NUMBERED:
            found = body.get(listed)
            if isinstance(found, list):
                marked[listed] = [_moved(one, name, base) for one in found]
        return cast("JsonObject", _moved(marked, "variablesReference", base))

    def placed(self, session: int, body: JsonObject) -> JsonObject:
        """Write an event's thread and breakpoints as they are known above."""
        placed = dict(body)
        thread, hits = body.get("threadId"), body.get("hitBreakpointIds")
        if type(thread) is int:
            placed["threadId"] = self.thread(session, thread)
        if isinstance(hits, list):
            known = [self._breakpoints.get((session, one)) for one in hits if type(one) is int]
            placed["hitBreakpointIds"] = [one for one in known if one is not None]
        return placed

    # -- breakpoints -----------------------------------------------------------------------------

    def new_list(self, command: str, arguments: JsonObject) -> tuple[int, ...]:
        """Number the breakpoints of a list, which takes the place of the one before."""
        source, wanted = arguments.get("source"), arguments.get("breakpoints")
        key = command, str(source.get("path")) if isinstance(source, dict) else ""
        count = len(wanted) if isinstance(wanted, list) else 0
        numbers = tuple(range(self._last + 1, self._last + 1 + count))
        self._last += count
        before = self.lists.get(key)
        if before is not None:
            gone = set(before.numbers)
            for known in [one for one, ours in self._breakpoints.items() if ours in gone]:
                del self._breakpoints[known]
        if before is not None or len(self.lists) < MAX_LISTS:
            self.lists[key] = BreakpointList(arguments, numbers)
        return numbers

    def taking(
        self,
        session: int,
        numbers: tuple[int, ...],
        answered: JsonObject | None = None,
        then: Taking | None = None,
    ) -> Taking:
        """Return the handler of a session's answer to a list; `answered` gets our numbers."""

        def take(body: JsonObject) -> None:
            listed = body.get("breakpoints")
            entries = listed if isinstance(listed, list) else []
            told: list[JsonValue] = []
            for number, one in zip(numbers, entries, strict=False):
                own = one.get("id") if isinstance(one, dict) else None
                if type(own) is int:
                    self._breakpoints[session, own] = number
                told.append({**one, "id": number} if isinstance(one, dict) else one)
            if answered is not None:
                answered.update({**body, "breakpoints": told})
                if then is not None:
                    then(answered)

        return take

    def renumbered(self, session: int, one: JsonValue) -> JsonValue:
        """Return a breakpoint of an event with our number; None when it has none of its own."""
        own = one.get("id") if isinstance(one, dict) else None
        if not isinstance(one, dict) or type(own) is not int:
            return None
        return {**one, "id": self._breakpoints.get((session, own))}

    def forget(self, session: int) -> None:
        """Drop what belongs to a session that has ended."""
        for ours in [key for key, one in self._threads.items() if one[0] == session]:
            del self._threads[ours]
        for known in [key for key in self._breakpoints if key[0] == session]:
            del self._breakpoints[known]


def _moved(one: JsonValue, name: str, base: int) -> JsonValue:
    """Add to a number of an object; a reference of 0 means none and stays."""
    number = one.get(name) if isinstance(one, dict) else None
    none = number == 0 and name == "variablesReference"
    if not isinstance(one, dict) or type(number) is not int or none:
        return one
    return {**one, name: number + base}
