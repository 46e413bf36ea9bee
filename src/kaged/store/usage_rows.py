"""`UsageRows`: what runs took of models, summed by person, team, day, project or model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    column,
    false,
    func,
    select,
    true,
)

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.store.rows import RowRepository
from kaged.store.schema import agent_runs, sessions
from kaged.store.usable_projects import usable_projects

_C = agent_runs.c


class UsageBy(StrEnum):
    """What usage is summed by."""

    PERSON = "person"
    TEAM = "team"
    DAY = "day"
    PROJECT = "project"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which runs are counted. Everything that is given must hold; `until_ms` is excluded."""

    person: str | None = None
    project_id: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What some runs took. `priced_runs` says of how many of them the price is known."""

    name: str | None
    runs: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float | None
    priced_runs: int


class UsageRows(RowRepository):
    """What the runs of all sessions took. A run counts from its end on."""

    async def sums(
        self, by: UsageBy, wanted: UsageFilter, actor: Actor, limit: int, offset: int
    ) -> tuple[Sequence[UsageSum], int]:
        """Return some of the sums that an actor may see, and how many there are in all.

        Days come newest first, everything else by tokens, the most first.
        """
        summed = _summed(by, [*_conditions(wanted), own_usage(actor)])
        rows = summed.subquery()
        most = rows.c.input_tokens + rows.c.output_tokens
        first = rows.c.name.desc() if by is UsageBy.DAY else most.desc()
        page = select(rows).order_by(first, rows.c.name).limit(limit).offset(offset)

        def work(conn: Connection) -> tuple[list[UsageSum], int]:
            total = conn.execute(select(func.count()).select_from(rows)).scalar() or 0
            return [UsageSum(*row) for row in conn.execute(page)], int(total)

        return await self._database.read(work)


def own_usage(actor: Actor) -> ColumnElement[bool]:
    """Return the condition that a run was begun by an actor, in a session of people.

    The operator sees all runs. In a group's chat, where others read along, only what was spent
    there is shown.
    """
    if not actor.is_person:
        return true()
    if not actor.person_id:
        return false()
    # What the operator begins is nobody else's, whatever a person is called.
    of_people = [sessions.c.id == _C.session_id, sessions.c.owner.is_not(None)]
    if actor.chat_type != PRIVATE_CHAT:
        here = sessions.c.chat_id
        of_people.append(here.is_(None) if actor.chat is None else here == actor.chat)
    return and_(
        _C.operator_id == actor.person_id,
        select(sessions.c.id).where(*of_people).exists(),
        usable_projects(actor, _C.project_id),
    )


def _summed(
    by: UsageBy, where: Sequence[ColumnElement[bool]]
) -> Select[Any, int, int, int, int, Any, int]:
    source = agent_runs.select().where(*where).subquery("run")
    of: ColumnElement[object]
    tables: list[FromClause] = [source]
    match by:
        case UsageBy.PERSON:
            of = source.c.operator_id
        case UsageBy.PROJECT:
            of = source.c.project_id
        case UsageBy.MODEL:
            of = source.c.model
        case UsageBy.DAY:
            of = func.date(source.c.started_at_ms / 1000, "unixepoch")
        case UsageBy.TEAM:
            # A run of somebody in two teams counts for both.
            each = func.json_each(source.c.teams).table_valued(column("value"), name="team")
            of = each.c.value
            tables.append(each)
    cost = func.json_extract(source.c.usage, "$.cost_usd")
    return (
        select(
            of.label("name"),
            func.count().label("runs"),
            _sum(source.c.usage, "input_tokens"),
            _sum(source.c.usage, "output_tokens"),
            _sum(source.c.usage, "cached_tokens"),
            func.sum(cost).label("cost_usd"),
            func.count(cost).label("priced_runs"),
        )
        .select_from(*tables)
        .group_by(of)
    )


def _sum(usage: ColumnElement[str], name: str) -> ColumnElement[int]:
    return func.coalesce(func.sum(func.json_extract(usage, f"$.{name}")), 0).label(name)


def _conditions(wanted: UsageFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.person is not None:
        found.append(_C.operator_id == wanted.person)
    if wanted.project_id is not None:
        found.append(_C.project_id == wanted.project_id)
    if wanted.since_ms is not None:
        found.append(_C.started_at_ms >= wanted.since_ms)
    if wanted.until_ms is not None:
        found.append(_C.started_at_ms < wanted.until_ms)
    return found
