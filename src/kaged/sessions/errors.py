"""What can be wrong with an entry, a move or an import."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class EntryTooLarge(KagedError):
    """An entry is larger than the book takes."""

    code: ClassVar[str] = "entry_too_large"


class EntryInvalid(KagedError):
    """An entry is of no form that the book takes."""

    code: ClassVar[str] = "entry_invalid"


class MoveVetoed(KagedError):
    """A handler said no to a switch or fork; the session is where it was."""

    code: ClassVar[str] = "session_move_vetoed"


class ImportInvalid(KagedError):
    """The file is no export of a session; nothing was taken in."""

    code: ClassVar[str] = "session_import_invalid"
