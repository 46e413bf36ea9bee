"""What the routes of project work share: who asks, which project, pages, files and the record."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, ClassVar

import structlog
from fastapi import Depends, Path, Query

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import JsonObject, KagedError
from kaged.kernel.identity import Actor
from kaged.serve.http.errors import invalid_request
from kaged.serve.http.routes.projects import MAX_PAGE, PROJECT_ID
from kaged.serve.http.services import HttpServices, actor_of, services_of
from kaged.serve.http.work_models import FileIn
from kaged.store.page import encode_cursor, parse_cursor
from kaged.toolbox.project import ProjectWork
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.texts import NUMBER_LIMIT
from kaged.toolbox.project.uploads import Upload

OPERATOR = "operator"
"""Who an operator is in what is written: the author of comments, the one who decides."""

_log = structlog.get_logger("kaged.http")


class WorkAbsent(KagedError):
    """The application was built without issues, todos and workflows."""

    code: ClassVar[str] = "project_work_absent"


class ProjectRequest:
    """One request on one loaded project, with the services behind the routes."""

    def __init__(self, services: HttpServices, who: Actor, project_id: str) -> None:
        if services.work is None:
            raise WorkAbsent("This daemon runs without issues, todos and workflows.")
        self.work: ProjectWork = services.work
        self.project_id = project_id
        self.services = services
        self._who = who

    @property
    def identity(self) -> Actor | None:
        """Whom what they start acts for."""
        return self._who.if_known

    @property
    def operator_id(self) -> str | None:
        """Who asks; None in insecure mode, which authenticates nobody."""
        return self._who.person_id

    def require_record(self) -> None:
        """Refuse a change that could not be put on record. Raises AuditUnavailable."""
        self.services.audit.require_writable()

    async def recorded(self, done: Done) -> JsonObject:
        """Put on record what was done, and return its result."""
        if done.event is not None:
            await self.record(done.event, done.facts)
        return done.result

    async def record(self, event: str, facts: JsonObject) -> None:
        """Put something on record that has happened: no error can undo it any more."""
        made = AuditEvent(
            event,
            facts,
            project_id=self.project_id,
            request_id=None if "request_id" in facts else self._who.request_id,
            caller=self._who.label,
        )
        try:
            await self.services.audit.record(made)
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=event, error=error.message)


async def _project_request(
    services: Annotated[HttpServices, Depends(services_of)],
    who: Annotated[Actor, Depends(actor_of)],
    project_id: Annotated[
        str, Path(pattern=PROJECT_ID, description="As `POST /projects` gave it.")
    ],
) -> ProjectRequest:
    await services.projects.get(project_id)  # raises when no such project is loaded
    return ProjectRequest(services, who, project_id)


InProject = Annotated[ProjectRequest, Depends(_project_request)]
Number = Annotated[int, Path(ge=1, le=NUMBER_LIMIT, description="The issue's number.")]
Cursor = Annotated[str | None, Query(max_length=128, description="From the page before.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]


def offset_of(cursor: str | None) -> int:
    """Return where a page begins. Raises CursorInvalid."""
    return parse_cursor(cursor) or 0


def page_of(found: JsonObject, name: str) -> dict[str, object]:
    """Turn a list with limit and offset into a page with a cursor."""
    items, total, offset = found[name], found["total"], found["offset"]
    assert isinstance(items, list)
    assert isinstance(total, int)
    assert isinstance(offset, int)
    behind = offset + len(items)
    more = bool(items) and behind < total
    return {"items": items, "total": total, "next_cursor": encode_cursor(behind) if more else None}


def uploads_of(files: Mapping[str, FileIn]) -> dict[str, Upload]:
    """Read the files of a request. Raises InvalidRequest."""
    found: dict[str, Upload] = {}
    for field, file in files.items():
        try:
            data = base64.b64decode(file.content_base64, validate=True)
        except binascii.Error as error:
            problem = {"loc": ("body", "files", field, "content_base64"), "msg": "is no base64"}
            raise invalid_request([problem]) from error
        found[field] = Upload(file.name, data)
    return found
