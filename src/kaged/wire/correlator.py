"""Which answer belongs to which request: `Correlator` for ours, `Inbound` for the other side's.

One of each per connection. Their counters are independent, so the same number may be in use in
both directions at once (PH-WIRE-19).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kaged.base.errors import KagedError

if TYPE_CHECKING:
    from kaged.wire.messages import Invalid, MessageId, Response

FIRST_ID = 1  # PH-WIRE-18
OPEN_LIMIT = 64  # PH-BEY-10: requests of one side that may wait for an answer at once
# Requests we gave up on whose late answers are still recognised. Only the log line depends on it.
REMEMBERED_LIMIT = 1024

T = TypeVar("T")


class TooManyOpen(KagedError):
    """The peer already owes as many answers as it may; nothing was sent."""

    code = "resource_busy"


class OpenRequest(NamedTuple, Generic[T]):
    """A request of ours that has no answer yet; `waiter` is whatever the caller wants back.

    A named tuple and not a dataclass: one is made for every call, in half the time.
    """

    id: int
    method: str
    waiter: T
    deadline_s: float | None = None


class Ignored(StrEnum):
    """Why an answer matches no open request. It is logged and never answered (PH-WIRE-26)."""

    NULL_ID = "null_id"  # the sender could not tell which request it answers
    LATE = "late"  # we gave up on that request before
    ANSWERED = "answered"  # that request has had its answer
    UNKNOWN = "unknown"  # we never sent a request with this id


class Correlator(Generic[T]):
    """Numbers our requests and finds the one that an answer belongs to.

    Ids count up from 1 and are never used twice until `reset`, which belongs to a new process at
    the other end (PH-WIRE-20). Time comes in as an argument, on the monotonic clock.
    """

    __slots__ = ("_given_up", "_next_id", "_open", "_open_limit", "_remembered_limit")

    def __init__(
        self, *, open_limit: int = OPEN_LIMIT, remembered_limit: int = REMEMBERED_LIMIT
    ) -> None:
        self._open_limit = open_limit
        self._remembered_limit = remembered_limit
        self._next_id = FIRST_ID
        self._open: dict[MessageId, OpenRequest[T]] = {}
        self._given_up: dict[MessageId, None] = {}  # a dict keeps the order of giving up

    def __len__(self) -> int:
        """Count the requests that wait for an answer."""
        return len(self._open)

    def open(self, method: str, waiter: T, deadline_s: float | None = None) -> OpenRequest[T]:
        """Open a request that is about to be sent, under the next id.

        Raises:
            TooManyOpen: `open_limit` requests wait already; no id was used.
        """
        if len(self._open) >= self._open_limit:
            raise TooManyOpen(
                f"{self._open_limit} calls are waiting for an answer already",
                fix="try again when one of them has ended",
                open_limit=self._open_limit,
            )
        request = OpenRequest(self._next_id, method, waiter, deadline_s)
        self._open[request.id] = request
        self._next_id += 1
        return request

    def settle(self, response: Response) -> OpenRequest[T] | Ignored:
        """Take an answer: return the request it ends, or why it ends none."""
        message_id = response.id
        if message_id is None:
            return Ignored.NULL_ID
        request = self._open.pop(message_id, None)
        if request is not None:
            return request
        if message_id in self._given_up:
            del self._given_up[message_id]
            return Ignored.LATE
        if isinstance(message_id, int) and FIRST_ID <= message_id < self._next_id:
            return Ignored.ANSWERED
        return Ignored.UNKNOWN

    def settle_invalid(self, invalid: Invalid) -> OpenRequest[T] | None:
        """Take a malformed message: return the request it was meant to answer, which fails now."""
        return None if invalid.open_id is None else self._open.pop(invalid.open_id, None)

    def give_up(self, request_id: int) -> OpenRequest[T] | None:
        """Stop waiting for an answer (timeout, cancelled caller); a late one will be `LATE`.

        Gives None when the request is not open any more.
        """
        request = self._open.pop(request_id, None)
        if request is not None:
            self._given_up[request_id] = None
            if len(self._given_up) > self._remembered_limit:
                del self._given_up[next(iter(self._given_up))]
        return request

    def next_deadline_s(self) -> float | None:
        """Return the earliest deadline of the open requests, to set one timer by."""
        deadlines = [r.deadline_s for r in self._open.values() if r.deadline_s is not None]
        return min(deadlines, default=None)

    def expire(self, now_s: float) -> list[OpenRequest[T]]:
        """Close every request whose deadline has come and return them in the order of sending."""
        due = [
            request
            for request in self._open.values()
            if request.deadline_s is not None and request.deadline_s <= now_s
        ]
        for request in due:
            self.give_up(request.id)
        return due

    def reset(self) -> list[OpenRequest[T]]:
        """Start anew for a new process: return the requests that will never be answered."""
        lost = list(self._open.values())
        self._open.clear()
        self._given_up.clear()
        self._next_id = FIRST_ID
        return lost


class Admission(StrEnum):
    """What to do with a request of the other side."""

    ADMITTED = "admitted"
    OUT_OF_STEP = "out_of_step"  # admitted; the first id that does not count up: log it once
    BUSY = "busy"  # too many are open: answer with resource_busy and do not run it


class Inbound:
    """Watches the other side's requests: how many are open, and whether their ids count up.

    Ids are echoed as they came, whatever they are; the same id twice is answered twice. Counting
    up from 1 is expected and a deviation is worth one log line, not a kill (PH-AMB-67).
    """

    __slots__ = ("_expected", "_open", "_open_limit")

    def __init__(self, *, open_limit: int = OPEN_LIMIT) -> None:
        self._open_limit = open_limit
        self._open = 0
        self._expected: int | None = FIRST_ID

    def __len__(self) -> int:
        """Count the requests that we still owe an answer."""
        return self._open

    def admit(self, message_id: MessageId) -> Admission:
        """Take note of a request; unless it is `BUSY`, `answered` must follow."""
        in_step = self._expected is None or message_id == self._expected
        if self._expected is not None:
            self._expected = self._expected + 1 if in_step else None
        if self._open >= self._open_limit:
            return Admission.BUSY
        self._open += 1
        return Admission.ADMITTED if in_step else Admission.OUT_OF_STEP

    def answered(self) -> None:
        """Take note that one admitted request has been answered."""
        if self._open == 0:
            raise RuntimeError("no request of the other side is open")
        self._open -= 1

    def reset(self) -> None:
        """Start anew for a new process."""
        self._open = 0
        self._expected = FIRST_ID
