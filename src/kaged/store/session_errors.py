"""What can be wrong with a question about sessions, their entries and their runs."""

from __future__ import annotations

from kaged.base import KagedError


class SessionExists(KagedError):
    """There is a session of that id, and it has a header."""

    code = "session_exists"
