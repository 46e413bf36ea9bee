"""What can be wrong with a question about issues, todos, sessions, runs and interactions."""

from __future__ import annotations

from kaged.base import KagedError


class IssueNotFound(KagedError):
    """The project has no issue of that number."""

    code = "issue_not_found"

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

    code = "session_not_found"


class NoBoundIssue(KagedError):
    """The session works on no issue, so it has no todo list."""

    code = "no_bound_issue"


class RunNotFound(KagedError):
    """The project has no workflow run of that id."""

    code = "run_not_found"


class InteractionNotFound(KagedError):
    """There is no such question."""

    code = "interaction_not_found"


class SessionExists(KagedError):
    """There is a session of that id, and it has a header."""

    code = "session_exists"
