"""`/api/v1/inbox`: everything that waits for a person, whatever asks, and the answers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from kaged.inbox import (
    InboxRequest,
    RequestFilter,
    RequestKind,
    RequestState,
    request_json,
)
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX, PROJECT_ID, Page, Services, Who
from kaged.serve.http.routes.subsystems import InboxService

router = APIRouter(route_class=LateRoute, prefix=f"{API_PREFIX}/inbox", tags=["inbox"])


class InboxRequestOut(ApiModel):
    """One request."""

    id: str
    kind: RequestKind
    state: RequestState
    owner: Annotated[str | None, Field(description="Who may answer; null for the operator.")]
    project_id: str | None
    chat_id: Annotated[str | None, Field(description="The session or chat that it belongs to.")]
    title: Annotated[str, Field(description="What is asked, in one line.")]
    details: Annotated[list[str], Field(description="What is asked, in full.")]
    choices: Annotated[
        list[str], Field(description='With choices the answer is `{"choice": one of them}`.')
    ]
    answer_schema: Annotated[
        dict[str, Any] | None, Field(description="Without choices: the JSON Schema of the answer.")
    ]
    digest: Annotated[str, Field(description="What an answer must name: that of what is asked.")]
    answered_by: str | None
    created_at: str
    expires_at: str | None
    answered_at: str | None


class InboxOut(ApiModel):
    """A page of requests."""

    items: list[InboxRequestOut]
    total: int
    next_cursor: str | None


class InboxAnswerIn(RequestBody):
    """An answer to exactly what was shown."""

    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    answer: dict[str, Any]


RequestId = Annotated[
    str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,119}$", description="The request's id.")
]


@router.get("", **documented("List what waits for a person", 400))
async def list_requests(
    inbox: InboxService,
    who: Who,
    page: Page,
    project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None,
    kind: Annotated[list[RequestKind] | None, Query(description="Only these kinds.")] = None,
    state: Annotated[RequestState | None, Query(description="Only these.")] = None,
) -> InboxOut:
    """Return the requests that the caller may answer, newest first, a page at a time."""
    wanted = RequestFilter(project_id=project_id, kinds=kind or (), state=state)
    found, total = await inbox.list(who, wanted, page.limit, page.offset)
    return InboxOut.model_validate(page.answer([request_json(one) for one in found], total))


@router.get("/{request_id}", **documented("Look at one request", 404))
async def get(inbox: InboxService, who: Who, request_id: RequestId) -> InboxRequestOut:
    """Return one request; that of another person is not found."""
    return _out(await inbox.get(request_id, who))


@router.post("/{request_id}/answer", **documented("Answer a request", 400, 404, 409, 422, 503))
async def answer(
    services: Services, inbox: InboxService, who: Who, request_id: RequestId, body: InboxAnswerIn
) -> InboxRequestOut:
    """Answer a request once; the answer is carried out by what asked."""
    services.audit.require_writable()
    return _out(await inbox.answer(request_id, who, body.digest, body.answer))


def _out(request: InboxRequest) -> InboxRequestOut:
    return InboxRequestOut.model_validate(request_json(request))
