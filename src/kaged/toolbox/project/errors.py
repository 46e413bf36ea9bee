"""What can be wrong with a call of a project tool, beyond what the store itself refuses."""

from __future__ import annotations

from kaged.base import JsonValue
from kaged.tools import ToolError


class WorkError(ToolError):
    """Base: the facts about it reach agents as `detail` and operators as `data`."""

    def __init__(
        self, message: str, *, code: str | None = None, fix: str = "", **data: JsonValue
    ) -> None:
        super().__init__(message, code=code, fix=fix, detail=dict(data) or None, **data)


class InteractionWithdrawn(WorkError):
    """The operator will not answer."""

    code = "interaction_withdrawn"


class AnswerInvalid(WorkError):
    """An operator's answer does not fit the question; `problems` says where."""

    code = "interaction_answer_invalid"

    @classmethod
    def of(cls, problems: list[tuple[str, str]]) -> AnswerInvalid:
        """Return the error that names what is wrong with which field."""
        said = "; ".join(f"{field}: {problem}" for field, problem in problems)
        return cls(
            f"The answer does not fit: {said}.",
            fix="correct these and send the answer again; the session goes on waiting",
            problems=[{"field": field, "problem": problem} for field, problem in problems],
        )
