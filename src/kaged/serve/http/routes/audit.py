"""`/api/v1/audit`: ask the audit trail, and check that nobody changed it."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.responses import StreamingResponse

from kaged.audit import AuditEvent, AuditFilter, AuditUnavailable
from kaged.serve.http.documented import documented, errors
from kaged.serve.http.errors import InvalidHttpRequest
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import AuditRowOut, PageOut, VerifyOut
from kaged.serve.http.routes.dependencies import API_PREFIX, ProjectId, Services, Who

MAX_PAGE = 500
MAX_MOMENT_CHARS = 40
MAX_EPOCH_MS = 253_402_300_799_999  # the end of the year 9999

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["audit"])


EventNames = Annotated[
    list[str] | None,
    Query(max_length=50, description="Event names; `plugin.*` covers all that begin so."),
]
Since = Annotated[
    str | None,
    Query(max_length=MAX_MOMENT_CHARS, description="ISO 8601 with zone, or epoch ms; included"),
]
Until = Annotated[
    str | None,
    Query(max_length=MAX_MOMENT_CHARS, description="ISO 8601 with zone, or epoch ms; excluded"),
]
SearchText = Annotated[
    str, Query(max_length=200, description="Looked for in names and data, any case.")
]
AfterSeq = Annotated[int, Query(ge=0, le=2**53, description="Only rows behind this number.")]


async def audit_filter(  # one parameter per query parameter is how FastAPI reads them
    event: EventNames = None,
    project_id: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    request_id: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    since: Since = None,
    until: Until = None,
    text: SearchText = "",
    after_seq: AfterSeq = 0,
) -> AuditFilter:
    """Read a filter from the query."""
    try:
        return AuditFilter(
            names=tuple(event or ()),
            project_id=project_id,
            request_id=request_id,
            since_ms=parse_moment(since, "since"),
            until_ms=parse_moment(until, "until"),
            text=text,
            after_seq=after_seq,
        )
    except ValueError as error:
        raise InvalidHttpRequest(f"The filter is not valid: {error}.") from error


async def project_filter(
    project_id: ProjectId,
    event: EventNames = None,
    since: Since = None,
    until: Until = None,
    text: SearchText = "",
    after_seq: AfterSeq = 0,
) -> AuditFilter:
    """Read a filter for the rows of the project that the path names."""
    return await audit_filter(event, project_id, None, since, until, text, after_seq)


@router.get("/audit", **documented("Ask the audit trail", 400))
async def query(
    services: Services,
    wanted: Annotated[AuditFilter, Depends(audit_filter)],
    cursor: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> PageOut[AuditRowOut]:
    """Return the rows that fit, newest first, a page at a time."""
    # What happened before the question belongs into the answer. A trail that cannot be written can
    # still be read.
    with contextlib.suppress(AuditUnavailable):
        services.audit.write_folded()
        await services.audit.flush()
    page = await services.store.audit.query(wanted, cursor, limit)
    return PageOut[AuditRowOut](
        items=[AuditRowOut.model_validate(row.to_json()) for row in page.items],
        next_cursor=page.next_cursor,
    )


@router.get(
    "/projects/{project_id}/audit",
    **documented("Ask what is on record about one's own work", 400, 404),
)
async def query_own(
    services: Services,
    who: Who,
    project_id: ProjectId,
    wanted: Annotated[AuditFilter, Depends(project_filter)],
    cursor: Annotated[str | None, Query(max_length=512)] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
) -> PageOut[AuditRowOut]:
    """Return the rows of a project that are about the caller's sessions and accounts.

    The operator gets all rows of the project.
    """
    await services.subsystems.projects.get(project_id)  # raises when no such project is loaded
    with contextlib.suppress(AuditUnavailable):
        services.audit.write_folded()
        await services.audit.flush()
    page = await services.store.audit.query(wanted, cursor, limit, actor=who)
    return PageOut[AuditRowOut](
        items=[AuditRowOut.model_validate(row.to_json()) for row in page.items],
        next_cursor=page.next_cursor,
    )


@router.get(
    "/audit/export",
    responses={
        200: {
            "content": {"application/x-ndjson": {}},
            "description": "One JSON object per line.",
        },
        **errors(),
    },
    response_class=StreamingResponse,
    summary="Take a copy that can be checked elsewhere",
)
async def export(
    services: Services,
    wanted: Annotated[AuditFilter, Depends(audit_filter)],
    who: Who,
) -> StreamingResponse:
    """Return the rows that fit as JSON lines, with their hashes and a signed last line.

    That a copy was taken is itself on record before the first line leaves.
    """
    head = services.audit.health.head_seq
    event = AuditEvent(
        "audit.exported",
        {"rows": head, "complete": wanted.everything, "filter": wanted.to_json()},
        request_id=who.request_id,
        caller=who.label,
    )
    await services.audit.record(event, durable=True)
    return StreamingResponse(services.export_audit(wanted), media_type="application/x-ndjson")


@router.post("/audit/verify", **documented("Check the whole chain"))
async def verify(services: Services) -> VerifyOut:
    """Read the whole trail and return whether a row was changed, removed or added."""
    return VerifyOut.of_report(await services.verify_audit())


def parse_moment(text: str | None, name: str) -> int | None:
    """Read a moment: ISO 8601 with a zone, or milliseconds since the epoch.

    Raises:
        InvalidHttpRequest: it is neither.
    """
    if text is None:
        return None
    if text.isdigit() and text.isascii() and int(text) <= MAX_EPOCH_MS:
        return int(text)
    try:
        # A `+` that nobody encoded arrives as a space.
        moment = datetime.fromisoformat(text.replace(" ", "+"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidHttpRequest(
            f"{name} is neither ISO 8601 with a zone nor milliseconds since the epoch.",
            fix="Write it like 2026-01-31T12:00:00Z.",
        )
    return max(0, round(moment.timestamp() * 1000))
