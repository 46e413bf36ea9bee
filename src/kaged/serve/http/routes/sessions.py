"""`/api/v1/projects/{project_id}/sessions`: begin, find, read, export and take away sessions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import StreamingResponse

from kaged.base import iso_utc
from kaged.kernel.ownership import AccessAction, ownership_of
from kaged.serve.http.documented import ResponseDocs, documented, errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.routes.dependencies import IN_PROJECT, Page, Paging, paging
from kaged.serve.http.routes.session_request import Sessions, Which
from kaged.serve.http.session_models import (
    EntriesOut,
    EntryOut,
    EntryRef,
    HitOut,
    HitsOut,
    ImportedOut,
    SessionDetailOut,
    SessionEditIn,
    SessionIn,
    SessionRowOut,
    SessionsOut,
    SessionTreeOut,
)
from kaged.sessions.export import export_session, import_session
from kaged.store.session_rows import SessionKind
from kaged.store.text_query import QUERY_LIMIT_CHARS

ENTRIES_LIMIT = 1000

router = APIRouter(route_class=LateRoute, prefix=f"{IN_PROJECT}/sessions", tags=["sessions"])

_NDJSON = "application/x-ndjson"
_EXPORT: ResponseDocs = {
    200: {"content": {_NDJSON: {}}, "description": "One JSON object per line."},
}
_IMPORT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


# -- sessions -----------------------------------------------------------------------------------


@router.get("", **documented("List sessions", 400, 404, 409))
async def list_sessions(
    context: Sessions,
    page: Page,
    kind: Annotated[SessionKind | None, Query(description="Only these.")] = None,
) -> SessionsOut:
    """Return sessions, last used first, a page at a time."""
    found, total = await context.sessions.service.list(
        context.project_id,
        kind=kind,
        limit=page.limit,
        offset=page.offset,
        actor=context.who,
    )
    return SessionsOut.model_validate(page.answer(await context.all_shown(found), total))


@router.post("", **documented("Begin a session", 400, 404, 409), status_code=201)
async def create(context: Sessions, body: SessionIn) -> SessionRowOut:
    """Begin a session. Nothing is said in it yet.

    The project's current session is the operator's: what a person begins never becomes that.
    """
    context.require_record()
    project = await context.services.subsystems.projects.get(context.project_id)
    assert project.root is not None  # only people are not shown it
    made = await context.sessions.transcript.create(
        context.project_id,
        cwd=project.root,
        model=body.model,
        system_prompt=body.system_prompt,
        title=body.title,
        operator_id=context.operator_id,
        current=body.current and not context.who.is_person,
        ownership=ownership_of(context.who),
    )
    await context.record("kaged.session.created", {"session_id": made.id})
    return await context.shown(made)


@router.get("/tree", **documented("See which session was forked from which", 400, 404, 409))
async def tree(context: Sessions) -> SessionTreeOut:
    """Return all sessions, every parent before its forks."""
    current = await context.current()
    family = await context.sessions.service.family(context.project_id, context.who)
    return SessionTreeOut(sessions=await context.all_shown(family), current=current)


@router.get("/search", **documented("Search what was said", 400, 404, 409))
async def search(
    context: Sessions,
    q: Annotated[
        str,
        Query(min_length=1, max_length=QUERY_LIMIT_CHARS, description="Words, as with issues."),
    ],
    page: Annotated[Paging, Depends(paging(20))],
    session: Annotated[
        str | None, Query(max_length=120, description="Only what this session shows.")
    ] = None,
) -> HitsOut:
    """Find entries by what they say, newest first; also those that left the window."""
    offset = page.offset
    where = None if session is None else (await context.session(session)).id
    found, total = await context.sessions.service.search(
        context.project_id,
        q,
        session_id=where,
        limit=page.limit,
        offset=offset,
        actor=context.who,
    )
    items = [HitOut.of(hit, ts=iso_utc(hit.ts_ms)) for hit in found]
    return HitsOut.model_validate(page.answer(items, total))


@router.get("/{session_id}", **documented("Look at one session", 400, 404, 409))
async def get(context: Sessions, session_id: Which) -> SessionDetailOut:
    """Return one session with what its header says."""
    found = await context.session(session_id)
    header = await context.sessions.transcript.header(found.id)
    shown = await context.shown(found)
    return SessionDetailOut(
        **shown.model_dump(),
        header=None if header is None else header.content,
        active_run=context.sessions.service.active_run(found.id),
        pending=[one.value for one in context.sessions.navigation.pending(found.id)],
    )


@router.patch("/{session_id}", **documented("Give a session another title", 400, 404, 409))
async def edit(context: Sessions, session_id: Which, body: SessionEditIn) -> SessionRowOut:
    """Change a session's title."""
    found = await context.session(session_id, AccessAction.MANAGE)
    return await context.shown(
        await context.sessions.service.title(context.project_id, found.id, body.title)
    )


@router.delete("/{session_id}", **documented("Take a session away", 400, 404, 409))
async def delete(context: Sessions, session_id: Which) -> SessionRowOut:
    """Take a session away, with its runs and tool calls. Forks keep what they share with it."""
    context.require_record()
    found = await context.session(session_id, AccessAction.MANAGE)
    shown = await context.shown(found)
    await context.sessions.service.delete(context.project_id, found.id)
    await context.record("kaged.session.deleted", {"session_id": found.id})
    return shown


@router.get("/{session_id}/entries", **documented("Read a session", 400, 404, 409))
async def entries(
    context: Sessions,
    session_id: Which,
    after: Annotated[EntryRef | None, Query(description="Only what comes behind it.")] = None,
    limit: Annotated[int, Query(ge=1, le=ENTRIES_LIMIT)] = 200,
    tail: Annotated[bool, Query(description="The newest ones, and not the oldest.")] = False,
) -> EntriesOut:
    """Return what a session shows: its header, then everything else, oldest first."""
    found = await context.session(session_id)
    if tail:
        rows = await context.sessions.transcript.last(found.id, limit)
    else:
        rows = await context.sessions.transcript.entries(found.id, after=after, limit=limit)
    more = bool(rows) and rows[-1].id != found.head_entry and not tail
    return EntriesOut(
        items=[EntryOut.of(one, ts=iso_utc(one.ts_ms)) for one in rows],
        next_after=rows[-1].id if more else None,
        total=found.entry_count,
    )


# -- files --------------------------------------------------------------------------------------


@router.post(
    "/import",
    **documented("Take in an exported session", 400, 404),
    status_code=201,
    openapi_extra=_IMPORT,
)
async def import_(context: Sessions, request: Request) -> ImportedOut:
    """Take in what `export` gave, as a new session; its entries keep their ids."""
    context.require_record()
    services = context.services
    made, origin = await import_session(
        context.sessions.store,
        context.sessions.lifecycle,
        await request.body(),
        project_id=context.project_id,
        operator_id=context.operator_id,
        ownership=ownership_of(context.who),
        clock=services.clock,
        ids=services.ids,
    )
    await context.record(
        "kaged.session.imported",
        {"session_id": made.id, "origin": origin, "entries": made.entry_count},
    )
    return ImportedOut(session=await context.shown(made), imported_from=origin)


@router.get(
    "/{session_id}/export",
    responses={**_EXPORT, **errors(400, 404, 409)},
    response_class=StreamingResponse,
    summary="Take a copy of a session",
)
async def export(context: Sessions, session_id: Which) -> StreamingResponse:
    """Return everything a session shows as JSON lines; `import` takes them back without loss."""
    context.require_record()
    found = await context.session(session_id, AccessAction.MANAGE)
    await context.record(
        "kaged.session.exported", {"session_id": found.id, "entries": found.entry_count}
    )
    return StreamingResponse(export_session(context.sessions.transcript, found), media_type=_NDJSON)
