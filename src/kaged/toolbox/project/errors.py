"""What can be wrong with a call of a project tool, beyond what the store itself refuses."""

from __future__ import annotations

from typing import ClassVar

from kaged.base import JsonValue
from kaged.tools import ToolError


class WorkError(ToolError):
    """Base: the facts about it reach agents as `detail` and operators as `data`."""

    code: ClassVar[str] = "tool_error"

    def __init__(
        self, message: str, *, code: str | None = None, fix: str = "", **data: JsonValue
    ) -> None:
        super().__init__(message, code=code, fix=fix, detail=dict(data) or None, **data)


class InvalidTransition(WorkError):
    """An issue or todo cannot go from where it is to where it is wanted."""

    code: ClassVar[str] = "invalid_transition"


class InvalidAssignment(WorkError):
    """An issue cannot be assigned to that."""

    code: ClassVar[str] = "invalid_assignment"


class TodoNotFound(WorkError):
    """No todo, or more than one, goes by that text."""

    code: ClassVar[str] = "todo_not_found"


class ContentAddressingHint(WorkError):
    """Todos are named by their text, not by a made-up id."""

    code: ClassVar[str] = "content_addressing_hint"


class WorkflowNotFound(WorkError):
    """The project declares no workflow of that name."""

    code: ClassVar[str] = "workflow_not_found"


class FileInputNotSupported(WorkError):
    """A workflow takes a file, which a tool call cannot bring."""

    code: ClassVar[str] = "file_input_not_supported"


class WorkflowRunnerMissing(WorkError):
    """This daemon has nothing that could carry a workflow out."""

    code: ClassVar[str] = "workflow_runner_missing"


class InteractionWithdrawn(WorkError):
    """The operator will not answer."""

    code: ClassVar[str] = "interaction_withdrawn"


class AnswerInvalid(WorkError):
    """An operator's answer does not fit the question; `problems` says where."""

    code: ClassVar[str] = "interaction_answer_invalid"

    @classmethod
    def of(cls, problems: list[tuple[str, str]]) -> AnswerInvalid:
        """Return the error that names what is wrong with which field."""
        said = "; ".join(f"{field}: {problem}" for field, problem in problems)
        return cls(
            f"The answer does not fit: {said}.",
            fix="correct these and send the answer again; the session goes on waiting",
            problems=[{"field": field, "problem": problem} for field, problem in problems],
        )


class UploadRefused(WorkError):
    """A file cannot be put into the project's folder for uploads."""

    code: ClassVar[str] = "upload_refused"
