"""Issues and sessions as MCP resources: pages of addresses, and what is behind one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any, Final, cast

from kaged.base import KagedError, iso_utc
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import AccessAction, may
from kaged.serve.mcp.client_session import ListedResource
from kaged.sessions.session_services import SessionServices
from kaged.store.session_rows import session_not_found
from kaged.store.work_errors import IssueNotFound, SessionNotFound
from kaged.toolbox.project import ProjectWork

PAGE: Final = 50
ENTRIES: Final = 200
"""How many of a session's newest entries are shown."""


async def issue_page(
    work: ProjectWork, project_id: str, offset: int
) -> tuple[Sequence[ListedResource], int | None]:
    """Return a page of open issues, and where the next begins."""
    answer = await work.issues.list(project_id, limit=PAGE, offset=offset)
    issues = cast("list[dict[str, Any]]", answer["issues"])
    page = [
        ListedResource(
            f"kaged://issues/{one['number']}",
            f"issue {one['number']}: {one['title']}"[:200],
            f"status {one['status']}",
        )
        for one in issues
    ]
    end = offset + len(page)
    return page, end if page and end < cast("int", answer["total"]) else None


async def session_page(
    sessions: SessionServices, project_id: str, offset: int, actor: Actor
) -> tuple[Sequence[ListedResource], int | None]:
    """Return a page of the sessions that a client's person may see, and where the next begins."""
    records, total = await sessions.service.list(project_id, limit=PAGE, offset=offset, actor=actor)
    page = [
        ListedResource(
            f"kaged://sessions/{one.id}",
            f"session {one.title or one.id}"[:200],
            f"{one.kind}, {one.status}, last used {iso_utc(one.updated_at_ms)}",
        )
        for one in records
    ]
    end = offset + len(page)
    return page, end if page and end < total else None


async def read_issue(work: ProjectWork, project_id: str, number: int) -> str:
    """Return an issue as an agent sees it, as JSON. Raises `mcp_resource_not_found`."""
    try:
        found = await work.issues.get(project_id, number, internal=False)
    except IssueNotFound as error:
        raise KagedError(error.message, code="mcp_resource_not_found", fix=error.fix) from error
    return json.dumps(found, ensure_ascii=False)


async def read_session(
    sessions: SessionServices, project_id: str, session_id: str, actor: Actor | None
) -> str:
    """Return a session with its newest entries, as JSON. Raises `mcp_resource_not_found`."""
    try:
        found = await sessions.service.get(project_id, session_id)
        if actor is not None and not may(actor, AccessAction.SEE, found.ownership):
            raise session_not_found(session_id)
        entries = await sessions.transcript.last(found.id, ENTRIES)
    except SessionNotFound as error:
        raise KagedError(error.message, code="mcp_resource_not_found", fix=error.fix) from error
    shown = {
        **dataclasses.asdict(found),
        "entries": [dataclasses.asdict(entry) for entry in entries],
    }
    return json.dumps(shown, ensure_ascii=False)
