"""What can be wrong with a question about issues, todos, runs and interactions."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class IssueNotFound(KagedError):
    """The project has no issue of that number."""

    code: ClassVar[str] = "issue_not_found"

    @classmethod
    def numbered(cls, number: int) -> IssueNotFound:
        """Return the error for an issue number that does not exist."""
        return cls(
            f"There is no issue #{number} in this project.",
            fix="list the issues to see which there are",
            number=number,
        )


class SessionNotFound(KagedError):
    """There is no such session in this project."""

    code: ClassVar[str] = "session_not_found"


class NoBoundIssue(KagedError):
    """The session works on no issue, so it has no todo list."""

    code: ClassVar[str] = "no_bound_issue"


class RunNotFound(KagedError):
    """The project has no workflow run of that id."""

    code: ClassVar[str] = "run_not_found"


class InteractionPending(KagedError):
    """The session waits for the operator already; it asks one thing at a time."""

    code: ClassVar[str] = "interaction_pending"


class InteractionNotFound(KagedError):
    """There is no such question."""

    code: ClassVar[str] = "interaction_not_found"


class InteractionClosed(KagedError):
    """It was answered or withdrawn before."""

    code: ClassVar[str] = "interaction_closed"
