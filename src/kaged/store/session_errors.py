"""What can be wrong with a question about sessions, their entries and their runs."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class SessionAmbiguous(KagedError):
    """Several sessions begin like that."""

    code: ClassVar[str] = "session_ambiguous"


class SessionExists(KagedError):
    """There is a session of that id, and it has a header."""

    code: ClassVar[str] = "session_exists"


class SessionBusy(KagedError):
    """A run of this session is active; a session has one at a time."""

    code: ClassVar[str] = "session_busy"


class EntryNotFound(KagedError):
    """The session has no entry whose id begins like that."""

    code: ClassVar[str] = "entry_not_found"


class EntryAmbiguous(KagedError):
    """Several entries of the session begin like that."""

    code: ClassVar[str] = "entry_ambiguous"


class NothingToFork(KagedError):
    """The session has no entry to fork at."""

    code: ClassVar[str] = "nothing_to_fork"


class ForkTooDeep(KagedError):
    """The session is a fork of a fork of a fork, too many times."""

    code: ClassVar[str] = "fork_too_deep"
