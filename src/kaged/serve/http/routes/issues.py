"""`/api/v1/projects/{project_id}/issues`: file, find, read, edit, discuss and move issues."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query

from kaged.serve.http.documented import errors
from kaged.serve.http.routes.work import (
    OPERATOR,
    Cursor,
    InProject,
    Limit,
    Number,
    offset_of,
    page_of,
)
from kaged.serve.http.work_models import (
    BindIn,
    CommentedOut,
    CommentIn,
    IssueCreatedOut,
    IssueDetailOut,
    IssueEditedOut,
    IssueEditIn,
    IssueIn,
    IssuesOut,
    SessionOut,
    TransitionedOut,
    TransitionIn,
)
from kaged.store.text_query import QUERY_LIMIT_CHARS
from kaged.toolbox.project.issue_states import IssueStatus

SESSION_ID = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,119}$"


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    base = f"{prefix}/projects/{{project_id}}"
    for path, handler, method, summary, status in (
        ("/issues", list_issues, "GET", "List issues", 200),
        ("/issues", create, "POST", "File an issue", 201),
        ("/issues/{number}", get, "GET", "Look at one issue", 200),
        ("/issues/{number}", edit, "PATCH", "Edit an issue", 200),
        ("/issues/{number}/comments", comment, "POST", "Comment on an issue", 201),
        ("/issues/{number}/transition", transition, "POST", "Move an issue along", 200),
        ("/sessions/{session_id}/issue", bind, "PUT", "Let a session work on an issue", 200),
    ):
        app.add_api_route(
            f"{base}{path}",
            handler,
            methods=[method],
            tags=["issues"],
            responses=errors(400, 404, 409),
            status_code=status,
            summary=summary,
        )


async def list_issues(
    context: InProject,
    status: Annotated[
        IssueStatus | None, Query(description="Only these; without it all that are not done.")
    ] = None,
    search: Annotated[
        str | None,
        Query(max_length=QUERY_LIMIT_CHARS, description="Words in title or body."),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> IssuesOut:
    """Return issues, last changed first, a page at a time."""
    found = await context.work.issues.list(
        context.project_id, status=status, search=search, limit=limit, offset=offset_of(cursor)
    )
    return IssuesOut.model_validate(page_of(found, "issues"))


async def create(context: InProject, body: IssueIn) -> IssueCreatedOut:
    """File an issue under the project's next number."""
    context.require_record()
    done = await context.work.issues.create(context.project_id, body.title, body.body, OPERATOR)
    return IssueCreatedOut.model_validate(await context.recorded(done))


async def get(context: InProject, number: Number) -> IssueDetailOut:
    """Return one issue with everything that was said about it and done to it."""
    return IssueDetailOut.model_validate(await context.work.issues.get(context.project_id, number))


async def edit(context: InProject, number: Number, body: IssueEditIn) -> IssueEditedOut:
    """Change title, body or assignment. The body before the first edit is kept."""
    context.require_record()
    given: dict[str, Any] = body.model_dump(include=body.model_fields_set)
    done = await context.work.issues.update(context.project_id, number, OPERATOR, **given)
    return IssueEditedOut.model_validate(await context.recorded(done))


async def comment(context: InProject, number: Number, body: CommentIn) -> CommentedOut:
    """Add a comment; `operator_only` keeps it from guests."""
    context.require_record()
    done = await context.work.issues.comment(
        context.project_id, number, body.body, body.visibility, OPERATOR
    )
    return CommentedOut.model_validate(await context.recorded(done))


async def transition(context: InProject, number: Number, body: TransitionIn) -> TransitionedOut:
    """Move an issue to another status."""
    context.require_record()
    done = await context.work.issues.transition(
        context.project_id, number, body.to, body.comment, OPERATOR
    )
    return TransitionedOut.model_validate(await context.recorded(done))


async def bind(
    context: InProject,
    session_id: Annotated[str, Path(pattern=SESSION_ID, description="The session's id.")],
    body: BindIn,
) -> SessionOut:
    """Let a session work on an issue: its todo list is that of the issue from then on."""
    context.require_record()
    sessions = context.services.store.sessions
    # Callers over HTTP and MCP share a session that is nowhere stored until it is needed.
    await sessions.ensure(session_id, context.project_id)
    found = await sessions.bind(context.project_id, session_id, body.number)
    await context.record("kaged.session.bound", {"session_id": session_id, "number": body.number})
    return SessionOut(
        id=found.id,
        project_id=found.project_id,
        kind=found.kind,
        status=found.status,
        detail=found.detail,
        issue_number=body.number,
    )
