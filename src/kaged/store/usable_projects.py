"""`usable_projects`: the condition that an actor may use a row's project, for every query."""

from __future__ import annotations

from sqlalchemy import Column, ColumnElement, or_, true

from kaged.kernel.identity import Actor


def usable_projects(actor: Actor, project_id: Column[str]) -> ColumnElement[bool]:
    """Return `kernel.ownership.may_use_project` in SQL; a row of no project passes."""
    if not actor.is_person or actor.projects is None:
        return true()
    return or_(project_id.is_(None), project_id.in_(sorted(actor.projects)))
