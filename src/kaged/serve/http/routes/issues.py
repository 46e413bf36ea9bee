"""`/api/v1/projects/{project_id}/issues`: file, find, read, edit, discuss and move issues."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from kaged.serve.http.documented import errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT, SESSION_ID, Page
from kaged.serve.http.routes.work import InProject, Number, page_of
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

router = APIRouter(
    route_class=LateRoute, prefix=IN_PROJECT, tags=["issues"], responses=errors(400, 404, 409)
)


@router.get("/issues", summary="List issues")
async def list_issues(
    context: InProject,
    page: Page,
    status: Annotated[
        IssueStatus | None, Query(description="Only these; without it all that are not done.")
    ] = None,
    search: Annotated[
        str | None,
        Query(max_length=QUERY_LIMIT_CHARS, description="Words in title or body."),
    ] = None,
) -> IssuesOut:
    """Return issues, last changed first, a page at a time."""
    found = await context.work.issues.list(
        context.project_id, status=status, search=search, limit=page.limit, offset=page.offset
    )
    return IssuesOut.model_validate(page_of(page, found, "issues"))


@router.post("/issues", status_code=201, summary="File an issue")
async def create(context: InProject, body: IssueIn) -> IssueCreatedOut:
    """File an issue under the project's next number."""
    context.require_record()
    done = await context.work.issues.create(
        context.project_id, body.title, body.body, context.author
    )
    return IssueCreatedOut.model_validate(await context.recorded(done))


@router.get("/issues/{number}", summary="Look at one issue")
async def get(context: InProject, number: Number) -> IssueDetailOut:
    """Return one issue with everything that was said about it and done to it."""
    internal = not context.who.is_person
    return IssueDetailOut.model_validate(
        await context.work.issues.get(context.project_id, number, internal=internal)
    )


@router.patch("/issues/{number}", summary="Edit an issue")
async def edit(context: InProject, number: Number, body: IssueEditIn) -> IssueEditedOut:
    """Change title, body or assignment. The body before the first edit is kept."""
    context.require_record()
    given: dict[str, Any] = body.model_dump(include=body.model_fields_set)
    done = await context.work.issues.update(context.project_id, number, context.author, **given)
    return IssueEditedOut.model_validate(await context.recorded(done))


@router.post("/issues/{number}/comments", status_code=201, summary="Comment on an issue")
async def comment(context: InProject, number: Number, body: CommentIn) -> CommentedOut:
    """Add a comment; `operator_only` keeps it from guests."""
    context.require_record()
    done = await context.work.issues.comment(
        context.project_id, number, body.body, body.visibility, context.author
    )
    return CommentedOut.model_validate(await context.recorded(done))


@router.post("/issues/{number}/transition", summary="Move an issue along")
async def transition(context: InProject, number: Number, body: TransitionIn) -> TransitionedOut:
    """Move an issue to another status."""
    context.require_record()
    done = await context.work.issues.transition(
        context.project_id, number, body.to, body.comment, context.author
    )
    return TransitionedOut.model_validate(await context.recorded(done))


@router.put("/sessions/{session_id}/issue", summary="Let a session work on an issue")
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
    return SessionOut.of(found, issue_number=body.number)
