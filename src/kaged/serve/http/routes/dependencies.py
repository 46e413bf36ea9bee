"""What routes take, defined once: who asks, the daemon's services, ids in paths, and pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

from fastapi import Depends, Path, Query

from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.identity import Actor
from kaged.serve.http.services import HttpServices, actor_of, services_of
from kaged.store.page import encode_cursor, parse_cursor

API_PREFIX: Final = "/api/v1"
IN_PROJECT: Final = f"{API_PREFIX}/projects/{{project_id}}"
PROJECT_ID: Final = r"^prj_[0-9A-HJKMNP-TV-Z]{26}$"
SESSION_ID: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,119}$"
AGENT_PATTERN: Final = r"^[a-z][a-z0-9_.-]*$"
MAX_AGENT_CHARS: Final = 1000
MAX_PAGE: Final = 200

Services = Annotated[HttpServices, Depends(services_of)]
Who = Annotated[Actor, Depends(actor_of)]
ProjectId = Annotated[str, Path(pattern=PROJECT_ID, description="As `POST /projects` gave it.")]


@dataclass(frozen=True, slots=True)
class Paging:
    """Which page of a list is asked for."""

    cursor: str | None
    limit: int

    @property
    def offset(self) -> int:
        """Where the page begins. Raises `invalid_cursor`."""
        return parse_cursor(self.cursor) or 0

    def answer(self, items: Sequence[object], total: int) -> dict[str, object]:
        """Return the members of a page; `next_cursor` is None on the last."""
        behind = self.offset + len(items)
        more = bool(items) and behind < total
        cursor = encode_cursor(behind) if more else None
        return {"items": items, "total": total, "next_cursor": cursor}


def paging(default: int) -> Callable[..., Awaitable[Paging]]:
    """Return the dependency that reads a page from the query, of `default` items at most."""

    async def read(
        cursor: Annotated[
            str | None, Query(max_length=128, description="From the page before.")
        ] = None,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")] = default,
    ) -> Paging:
        return Paging(cursor, limit)

    return read


Page = Annotated[Paging, Depends(paging(50))]
