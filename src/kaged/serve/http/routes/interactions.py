"""`/api/v1/projects/{project_id}/interactions`: what agents ask the operator, and the answers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from kaged.serve.http.documented import errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT, Page
from kaged.serve.http.routes.work import InProject, page_of, uploads_of
from kaged.serve.http.work_models import InteractionAnswerIn, InteractionOut, InteractionsOut
from kaged.store.interaction_rows import InteractionStatus
from kaged.toolbox.project.answers import OperatorAnswer
from kaged.toolbox.project.interactions import interaction_json

router = APIRouter(
    route_class=LateRoute,
    prefix=IN_PROJECT,
    tags=["interactions"],
    responses=errors(400, 404, 409),
)

RequestId = Annotated[
    str,
    Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,119}$", description="The id of the question."),
]


@router.get("/interactions", summary="List what agents ask")
async def list_interactions(
    context: InProject,
    page: Page,
    status: Annotated[InteractionStatus | None, Query(description="Only these.")] = None,
) -> InteractionsOut:
    """Return the questions of a project's agents, newest first, a page at a time."""
    found = await context.work.interactions.page(
        context.project_id, status, page.limit, page.offset, context.who
    )
    return InteractionsOut.model_validate(page_of(page, found, "interactions"))


@router.get("/interactions/{request_id}", summary="Look at one question")
async def get(context: InProject, request_id: RequestId) -> InteractionOut:
    """Return one question and, if there is one, its answer."""
    found = await context.work.interactions.get(context.project_id, request_id, context.who)
    return InteractionOut.model_validate(interaction_json(found))


@router.post("/interactions/{request_id}/answer", summary="Answer a question")
async def answer(
    context: InProject, request_id: RequestId, body: InteractionAnswerIn
) -> InteractionOut:
    """Answer a question; what waits for it goes on. An answer that does not fit changes nothing."""
    context.require_record()
    given = OperatorAnswer(body.answers, uploads_of(body.files), body.decision, body.text)
    closed = await context.work.interactions.answer(
        context.project_id, request_id, given, context.author, context.who
    )
    return InteractionOut.model_validate(interaction_json(closed))


@router.delete("/interactions/{request_id}", summary="Let a session go on without an answer")
async def withdraw(context: InProject, request_id: RequestId) -> InteractionOut:
    """Withdraw the question: the agent gets no answer."""
    context.require_record()
    closed = await context.work.interactions.withdraw(
        context.project_id, request_id, context.author, context.who
    )
    return InteractionOut.model_validate(interaction_json(closed))
