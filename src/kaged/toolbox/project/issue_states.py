"""`IssueStatus` and the moves between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kaged.toolbox.project.errors import WorkError


class IssueStatus(StrEnum):
    """How far an issue is."""

    OPEN = "open"
    TRIAGED = "triaged"
    ASSIGNED = "assigned"
    IN_PROGRESS = "in_progress"
    RESOLVED = "resolved"
    REJECTED = "rejected"
    REOPENED = "reopened"


class UpdateKind(StrEnum):
    """What an update of an issue tells of."""

    STATUS_CHANGE = "status_change"
    COMMENT = "comment"
    TITLE_EDIT = "title_edit"
    BODY_EDIT = "body_edit"
    ASSIGNMENT_CHANGE = "assignment_change"


class Visibility(StrEnum):
    """Who sees an update."""

    ALL = "all"
    OPERATOR_ONLY = "operator_only"


FINAL: Final = frozenset({IssueStatus.RESOLVED, IssueStatus.REJECTED})
OPEN_STATUSES: Final = frozenset(IssueStatus) - FINAL
NEEDS_COMMENT: Final = FINAL

_WORKING: Final = (
    IssueStatus.TRIAGED,
    IssueStatus.ASSIGNED,
    IssueStatus.IN_PROGRESS,
    IssueStatus.RESOLVED,
    IssueStatus.REJECTED,
)
MOVES: Final[Mapping[IssueStatus, tuple[IssueStatus, ...]]] = {
    status: (IssueStatus.REOPENED,)
    if status in FINAL
    else tuple(target for target in _WORKING if target is not status)
    for status in IssueStatus
}


def require_move(current: IssueStatus, target: IssueStatus) -> None:
    """Let an issue go from one status to another. Raises `invalid_transition`."""
    legal = MOVES[current]
    if target not in legal:
        raise WorkError(
            f"An issue cannot go from {current} to {target}; from {current} it can go to "
            f"{', '.join(legal)}.",
            code="invalid_transition",
            current=current.value,
            to=target.value,
            legal=[one.value for one in legal],
        )
