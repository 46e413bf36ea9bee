"""`/`, `/healthz` and `/metrics`: is it there, is it well, what are its numbers."""

from __future__ import annotations

from fastapi import APIRouter, Response

from kaged import __version__
from kaged.serve.http.documented import documented, errors
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.metrics import CONTENT_TYPE
from kaged.serve.http.models import HealthOut, IndexOut
from kaged.serve.http.routes.dependencies import Services

router = APIRouter(route_class=LateRoute, tags=["health"])


@router.get("/", **documented("What this is"))
async def index() -> IndexOut:
    """Return the program's name and where its API begins."""
    return IndexOut(
        name="kaged",
        version=__version__,
        openapi="/api/v1/openapi.json",
        status="/api/v1/status",
        events="/api/v1/events",
    )


@router.get("/healthz", **documented("Whether the daemon can do its work"))
async def healthz(response: Response, services: Services) -> HealthOut:
    """Answer 200 while all is well and 503 while changes are refused. Open to everyone."""
    response.status_code, word = services.health()
    return HealthOut(status=word)


@router.get(
    "/metrics",
    responses={
        200: {"content": {"text/plain": {}}, "description": "Prometheus text"},
        **errors(),
    },
    response_class=Response,
    summary="Numbers for Prometheus",
)
async def metrics(services: Services) -> Response:
    """Return all counters and gauges in the Prometheus text format."""
    return Response(services.metrics.exposition(), media_type=CONTENT_TYPE)
