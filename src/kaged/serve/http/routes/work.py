"""What the routes of project work share: who asks, which project, pages, files and the record."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Path

from kaged.audit import AuditEvent, AuditUnavailable
from kaged.base import JsonObject
from kaged.base.log import get_logger
from kaged.kernel.identity import Actor
from kaged.serve.http.errors import invalid_request
from kaged.serve.http.routes.dependencies import Paging, ProjectId, Services, Who
from kaged.serve.http.services import HttpServices
from kaged.serve.http.work_models import FileIn
from kaged.toolbox.project.done import Done
from kaged.toolbox.project.texts import NUMBER_LIMIT
from kaged.toolbox.project.uploads import Upload

OPERATOR = "operator"
"""Who an operator is in what is written: the author of comments, the one who decides."""

_log = get_logger("kaged.http")


class ProjectRequest:
    """One request on one loaded project, with the services behind the routes."""

    def __init__(self, services: HttpServices, who: Actor, project_id: str) -> None:
        self.work = services.subsystems.work
        self.project_id = project_id
        self.services = services
        self.who = who

    @property
    def identity(self) -> Actor | None:
        """Whom what they start acts for."""
        return self.who.if_known

    @property
    def author(self) -> str:
        """Under which name what they write is kept: a person's own, or just the operator."""
        return (self.who.person_id or OPERATOR) if self.who.is_person else OPERATOR

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
            request_id=None if "request_id" in facts else self.who.request_id,
            caller=self.who.label,
        )
        try:
            await self.services.audit.record(made)
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=event, error=error.message)


async def _project_request(services: Services, who: Who, project_id: ProjectId) -> ProjectRequest:
    await services.subsystems.projects.get(project_id)  # raises when no such project is loaded
    return ProjectRequest(services, who, project_id)


InProject = Annotated[ProjectRequest, Depends(_project_request)]
Number = Annotated[int, Path(ge=1, le=NUMBER_LIMIT, description="The issue's number.")]


def page_of(page: Paging, found: JsonObject, name: str) -> dict[str, object]:
    """Turn a list with its total into a page with a cursor."""
    items, total = found[name], found["total"]
    assert isinstance(items, list)
    assert isinstance(total, int)
    return page.answer(items, total)


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
