"""`IssueService`: file, find, discuss and move issues; for the root agent and operators."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from kaged.base import JsonObject, JsonValue
from kaged.kernel.ownership import Audience
from kaged.store import Store
from kaged.store.issue_rows import IssueChange, IssueFilter, IssueRecord, IssueUpdate, UpdateDraft
from kaged.store.text_query import parse_text_query
from kaged.store.work_errors import IssueNotFound, SessionNotFound
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.errors import WorkError
from kaged.toolbox.project.issue_states import (
    FINAL,
    NEEDS_COMMENT,
    OPEN_STATUSES,
    IssueStatus,
    UpdateKind,
    Visibility,
    require_move,
)
from kaged.toolbox.project.texts import NUMBER_LIMIT, require_body, require_title
from kaged.tools import InvalidToolParams

LIST_DEFAULT = 25
LIST_LIMIT = 100

_ASSIGNMENT = re.compile(r"primary|(workflow|session):([A-Za-z0-9][A-Za-z0-9_.-]{0,119})")
_SUMMARY = (
    "id", "number", "title", "status", "assignment", "created_by", "created_at", "updated_at",
)  # fmt: skip
_DETAIL = (
    "id", "number", "title", "body", "original_body", "status", "assignment", "created_by",
    "created_at", "updated_at", "resolved_at", "resolved_by",
)  # fmt: skip
_UPDATE = ("id", "author", "kind", "body", "metadata", "visibility", "created_at")
UNCHANGED: Any = object()
"""What `update` is given for a field that stays as it is; None would mean: assigned to nobody."""


class IssueService:
    """The issues of projects. `workflows` names the workflows that a project declares."""

    def __init__(self, store: Store, workflows: Callable[[str], Collection[str]]) -> None:
        self._store = store
        self._rows = store.issues
        self._workflows = workflows

    async def list(
        self,
        project_id: str,
        *,
        status: IssueStatus | None = None,
        search: str | None = None,
        limit: int = LIST_DEFAULT,
        offset: int = 0,
    ) -> JsonObject:
        """List issues, last changed first; without `status` those that are not done.

        Raises SearchInvalid when `search` names nothing to look for.
        """
        statuses = OPEN_STATUSES if status is None else {status}
        wanted = IssueFilter(
            frozenset(one.value for one in statuses),
            None if search is None or not search.strip() else parse_text_query(search),
        )
        found, total = await self._rows.find(project_id, wanted, limit, offset)
        return {
            "issues": [_fields(issue, _SUMMARY) for issue in found],
            "total": total,
            "limit": limit,
            "offset": offset,
        }

    async def get(self, project_id: str, number: int, *, internal: bool = True) -> JsonObject:
        """Return one issue with its updates; `internal` includes those for operators only.

        Raises IssueNotFound when there is no such issue.
        """
        visibility = None if internal else Visibility.ALL.value
        found = await self._rows.get(project_id, _numbered(number), visibility)
        updates: list[JsonValue] = [_fields(update, _UPDATE) for update in found.updates]
        answer = _fields(found.issue, _DETAIL)
        answer["updates"] = updates
        if found.omitted:
            answer["updates_omitted"] = found.omitted
        return answer

    async def shown_in(self, session_id: str, project_id: str, number: int) -> JsonObject:
        """Return one issue for a session: with internal updates only where nobody else reads them.

        Raises IssueNotFound.
        """
        try:
            session = await self._store.sessions.get(project_id, session_id)
        except SessionNotFound:
            internal = False
        else:
            internal = session.ownership.audience is Audience.OPERATOR
        return await self.get(project_id, number, internal=internal)

    async def create(self, project_id: str, title: str, body: str, author: str) -> Done:
        """File an issue. Raises InvalidToolParams."""
        made = await self._rows.create(
            project_id,
            require_title(title),
            require_body(body, blank=True),
            IssueStatus.OPEN.value,
            author,
        )
        return Done(
            _fields(made, ("id", "number", "status", "created_at")),
            "kaged.issue.created",
            {
                "issue_id": made.id,
                "project_id": project_id,
                "number": made.number,
                "title": made.title,
            },
        )

    async def comment(
        self, project_id: str, number: int, body: str, visibility: Visibility, author: str
    ) -> Done:
        """Add a comment. Raises InvalidToolParams and IssueNotFound."""
        draft = UpdateDraft(
            author, UpdateKind.COMMENT.value, require_body(body), visibility=visibility.value
        )
        changed = await self._rows.change(
            project_id, _numbered(number), lambda _: IssueChange(updates=(draft,))
        )
        (made,) = changed.updates
        return Done(
            {"update_id": made.id, "issue_number": number, "created_at": made.created_at},
            "kaged.issue.commented",
            {
                "issue_id": changed.issue.id,
                "update_id": made.id,
                "visibility": made.visibility,
            },
        )

    async def transition(
        self, project_id: str, number: int, to: IssueStatus, comment: str | None, author: str
    ) -> Done:
        """Move an issue to another status, with a comment where one is due.

        Raises InvalidToolParams, IssueNotFound and `invalid_transition`.
        """
        said = _comment(to, comment)

        def plan(issue: IssueRecord) -> IssueChange:
            current = IssueStatus(issue.status)
            require_move(current, to)
            values: dict[str, Any] = {"status": to.value}
            if to is IssueStatus.RESOLVED:
                values |= {"resolved_at": self._rows.now(), "resolved_by": author}
            elif current in FINAL:
                values |= {"resolved_at": None, "resolved_by": None}
            facts: JsonObject = {"old_status": current.value, "new_status": to.value}
            updates = [UpdateDraft(author, UpdateKind.STATUS_CHANGE.value, metadata=facts)]
            if said is not None:
                updates.append(UpdateDraft(author, UpdateKind.COMMENT.value, said))
            return IssueChange(values, tuple(updates))

        changed = await self._rows.change(project_id, _numbered(number), plan)
        was, now = changed.before.status, changed.issue.status
        return Done(
            {"number": number, "from": was, "to": now, "updated_at": changed.issue.updated_at},
            "kaged.issue.transitioned",
            {"issue_id": changed.issue.id, "from_status": was, "to_status": now},
        )

    async def update(
        self,
        project_id: str,
        number: int,
        author: str,
        *,
        title: str = UNCHANGED,
        body: str = UNCHANGED,
        assignment: str | None = UNCHANGED,
    ) -> Done:
        """Edit what an issue says or whom it is for. Operators only; agents have no such tool.

        Raises:
            InvalidToolParams: nothing to change, or a text that is too long.
            WorkError: `invalid_assignment`; it cannot be assigned to that.
            IssueNotFound: there is no such issue.
        """
        given: dict[str, str | None] = {
            name: value
            for name, value in (("title", title), ("body", body), ("assignment", assignment))
            if value is not UNCHANGED
        }
        if not given:
            raise InvalidToolParams("Give at least one of title, body and assignment.")
        if title is not UNCHANGED:
            require_title(title)
        if body is not UNCHANGED:
            require_body(body, blank=True)
        if assignment is not UNCHANGED and assignment is not None:
            self._require_assignment(project_id, assignment)
        changed = await self._rows.change(
            project_id, _numbered(number), lambda issue: _edit(issue, given, author)
        )
        return Done(
            {
                "number": number,
                "updated_fields": list(given),
                "updated_at": changed.issue.updated_at,
            },
            "kaged.issue.updated",
            {"issue_id": changed.issue.id, "updated_fields": list(given)},
        )

    def _require_assignment(self, project_id: str, assignment: str) -> None:
        found = _ASSIGNMENT.fullmatch(assignment)
        if found is None:
            raise WorkError(
                "An issue is assigned to null (no one), primary, workflow:<name> or session:<id>.",
                code="invalid_assignment",
                assignment=assignment[:200],
            )
        declared = self._workflows(project_id)
        if found[1] == "workflow" and found[2] not in declared:
            raise WorkError(
                f"The project declares no workflow {found[2]!r}.",
                code="invalid_assignment",
                fix="name one that `kaged workflow list` shows",
                assignment=assignment,
                workflows=list[JsonValue](sorted(declared)),
            )


def _edit(issue: IssueRecord, given: dict[str, str | None], author: str) -> IssueChange:
    values: dict[str, Any] = dict(given)
    if "body" in given and issue.original_body is None:
        values["original_body"] = issue.body
    kinds = {
        "title": UpdateKind.TITLE_EDIT,
        "body": UpdateKind.BODY_EDIT,
        "assignment": UpdateKind.ASSIGNMENT_CHANGE,
    }
    updates: list[UpdateDraft] = []
    for name, value in given.items():
        # The former body is large and kept in original_body; of the others both sides are told.
        facts: JsonObject | None = None
        if name != "body":
            facts = {f"old_{name}": getattr(issue, name), f"new_{name}": value}
        updates.append(UpdateDraft(author, kinds[name].value, metadata=facts))
    return IssueChange(values, tuple(updates))


def _comment(to: IssueStatus, comment: str | None) -> str | None:
    said = None if comment is None or not comment.strip() else require_body(comment, "comment")
    if said is None and to in NEEDS_COMMENT:
        what = "Rejection" if to is IssueStatus.REJECTED else "Resolution"
        raise InvalidToolParams(
            f"{what} requires an explanatory comment.",
            detail={"fields": [{"field": "comment", "problem": f"is required for {to.value}"}]},
        )
    return said


def _numbered(number: int) -> int:
    if not 0 < number <= NUMBER_LIMIT:
        raise IssueNotFound.numbered(number)
    return number


def _fields(record: IssueRecord | IssueUpdate, names: Collection[str]) -> JsonObject:
    return {name: getattr(record, name) for name in names}
