"""`/api/v1/projects/{project_id}/interactions`: what agents ask the operator, and the answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Query

from kaged.serve.http.documented import errors
from kaged.serve.http.routes.work import (
    OPERATOR,
    Cursor,
    InProject,
    Limit,
    ProjectRequest,
    offset_of,
    page_of,
    uploads_of,
)
from kaged.serve.http.work_models import InteractionAnswerIn, InteractionOut, InteractionsOut
from kaged.store.interaction_rows import InteractionRecord, InteractionStatus
from kaged.toolbox.project.answers import OperatorAnswer
from kaged.toolbox.project.interactions import interaction_json

RequestId = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,119}$", description="The id of the question."),
]


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    base = f"{prefix}/projects/{{project_id}}/interactions"
    for path, handler, method, summary in (
        ("", list_interactions, "GET", "List what agents ask"),
        ("/{request_id}", get, "GET", "Look at one question"),
        ("/{request_id}/answer", answer, "POST", "Answer a question"),
        ("/{request_id}", withdraw, "DELETE", "Let a session go on without an answer"),
    ):
        app.add_api_route(
            f"{base}{path}",
            handler,
            methods=[method],
            tags=["interactions"],
            responses=errors(400, 404, 409),
            summary=summary,
        )


async def list_interactions(
    context: InProject,
    status: Annotated[InteractionStatus | None, Query(description="Only these.")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> InteractionsOut:
    """Return the questions of a project's agents, newest first, a page at a time."""
    found = await context.work.interactions.page(
        context.project_id, status, limit, offset_of(cursor)
    )
    return InteractionsOut.model_validate(page_of(found, "interactions"))


async def get(context: InProject, request_id: RequestId) -> InteractionOut:
    """Return one question and, if there is one, its answer."""
    found = await context.work.interactions.get(context.project_id, request_id)
    return InteractionOut.model_validate(interaction_json(found))


async def answer(
    context: InProject, request_id: RequestId, body: InteractionAnswerIn
) -> InteractionOut:
    """Answer a question; what waits for it goes on. An answer that does not fit changes nothing."""
    context.require_record()
    given = OperatorAnswer(body.answers, uploads_of(body.files), body.decision, body.text)
    closed = await context.work.interactions.answer(context.project_id, request_id, given, OPERATOR)
    return await _ended(context, closed)


async def withdraw(context: InProject, request_id: RequestId) -> InteractionOut:
    """Withdraw the question: the agent gets no answer."""
    context.require_record()
    closed = await context.work.interactions.withdraw(context.project_id, request_id, OPERATOR)
    return await _ended(context, closed)


async def _ended(context: ProjectRequest, closed: InteractionRecord) -> InteractionOut:
    decision = (closed.answer or {}).get("decision")
    await context.record(
        "kaged.interaction.answered",
        {
            "request_id": closed.request_id,
            "kind": closed.kind.value,
            "session_id": closed.session_id,
            "outcome": str(decision) if decision else closed.status.value,
        },
    )
    return InteractionOut.model_validate(interaction_json(closed))
