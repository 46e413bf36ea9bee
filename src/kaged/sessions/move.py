"""`Move`: what somebody asks for, what handlers say to it, and what becomes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import field
from enum import StrEnum

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass


class Move(StrEnum):
    """What is asked for. A `branch` is a fork that nobody goes to."""

    SWITCH = "switch"
    FORK_TO = "fork_to"
    BRANCH = "fork"


@dataclass(frozen=True, slots=True)
class SwitchIntent:
    """A move that is about to be made, as handlers see it.

    `target` is the id of the session to go to or, for a fork, the beginning of the entry's id as
    it was asked for, empty for the last one.
    """

    move: Move
    session_id: str
    project_id: str
    target: str
    asked_by: str


@dataclass(frozen=True, slots=True)
class MoveVeto:
    """A handler's no."""

    reason: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """A handler's "not there, but here". The new target is resolved like any other."""

    target: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class SwitchOutcome:
    """What became of a request. `to` is where the move led; `reason` says why there was none."""

    move: Move
    asked_by: str
    target: str
    from_session: str
    to: str | None = None
    entry_id: str | None = None
    moved: bool = False  # the project's current session is another one now
    vetoed_by: str | None = None
    reason: str | None = None
    error: KagedError | None = field(default=None, compare=False)

    @property
    def made(self) -> bool:
        """Whether what was asked for was done."""
        return self.to is not None


Handler = Callable[[SwitchIntent], Awaitable[MoveVeto | Redirect | None]]
"""Asked before a move; None lets it pass."""
