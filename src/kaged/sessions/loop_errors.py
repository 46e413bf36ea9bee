"""Why a run, or the work of a subagent, ended without being done."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import KagedError


class StepLimitReached(KagedError):
    """The agent took as many model steps as it may; what it did so far is kept."""

    code: ClassVar[str] = "step_limit_reached"


class BudgetSpent(KagedError):
    """The run used up the steps, tokens, time or money that it was given."""

    code: ClassVar[str] = "budget_spent"


class DelegationFailed(KagedError):
    """A subagent could not do its task; the agent that asked for it goes on."""

    code: ClassVar[str] = "delegation_failed"


class DelegationTooDeep(DelegationFailed):
    """Agents called agents beyond the limit."""

    code: ClassVar[str] = "delegation_too_deep"


class SessionPaused(KagedError):
    """The session waits for the operator, so nothing more is done in it."""

    code: ClassVar[str] = "session_paused"


class PromptRefused(KagedError):
    """A script or policy of this daemon does not let the message through."""

    code: ClassVar[str] = "prompt_refused"


class SessionEnded(KagedError):
    """The session is over; nothing more is said in it."""

    code: ClassVar[str] = "session_ended"


class AgentUnknown(KagedError):
    """The session's project has no agent at that path."""

    code: ClassVar[str] = "agent_not_found"


class NothingToResume(KagedError):
    """The session's last run said all it had to say."""

    code: ClassVar[str] = "nothing_to_resume"


class TooManyRuns(KagedError):
    """As many runs are active as this daemon takes on at a time."""

    code: ClassVar[str] = "too_many_runs"
