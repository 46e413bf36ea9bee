"""`/api/v1/usage`: what runs took of models, for the operator by person, and one's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.audit import Since, Until, parse_moment
from kaged.serve.http.routes.dependencies import API_PREFIX, PROJECT_ID, Page, Services, Who
from kaged.store.usage_rows import UsageBy, UsageFilter, UsageRows

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["usage"])


class UsageSumOut(ApiModel):
    """What some runs took."""

    name: Annotated[
        str | None,
        Field(description="The person, team, day (UTC), project id or model; null: not known."),
    ]
    runs: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: Annotated[
        float | None, Field(description="The price of those runs whose price is known.")
    ]
    priced_runs: int


class UsageOut(ApiModel):
    """A page of sums."""

    by: UsageBy
    items: list[UsageSumOut]
    total: int
    next_cursor: str | None


@router.get("/usage", **documented("Sum up what runs took of models", 400))
async def usage(
    services: Services,
    who: Who,
    page: Page,
    by: Annotated[UsageBy, Query(description="What to sum by.")] = UsageBy.PERSON,
    person: Annotated[str | None, Query(min_length=1, max_length=128)] = None,
    project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None,
    since: Since = None,
    until: Until = None,
) -> UsageOut:
    """Return tokens and prices of ended runs, those of everybody for the operator, else one's own.

    A run of somebody in two teams counts for both. Days are days of UTC.
    """
    wanted = UsageFilter(
        person, project_id, parse_moment(since, "since"), parse_moment(until, "until")
    )
    rows = UsageRows(services.store)
    found, total = await rows.sums(by, wanted, who, page.limit, page.offset)
    items = [UsageSumOut.of(one) for one in found]
    return UsageOut.model_validate({"by": by, **page.answer(items, total)})
