"""`/`, `/healthz` and `/metrics`: is it there, is it well, what are its numbers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, Response

from kaged import __version__
from kaged.serve.http.documented import errors
from kaged.serve.http.metrics import CONTENT_TYPE
from kaged.serve.http.models import HealthOut, IndexOut
from kaged.serve.http.services import HttpServices, services_of


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/",
        index,
        methods=["GET"],
        tags=["health"],
        responses=errors(),
        summary="What this is",
    )
    app.add_api_route(
        f"{prefix}/healthz",
        healthz,
        methods=["GET"],
        tags=["health"],
        responses=errors(),
        summary="Whether the daemon can do its work",
    )
    app.add_api_route(
        f"{prefix}/metrics",
        metrics,
        methods=["GET"],
        tags=["health"],
        responses={
            200: {"content": {"text/plain": {}}, "description": "Prometheus text"},
            **errors(),
        },
        response_class=Response,
        summary="Numbers for Prometheus",
    )


async def index() -> IndexOut:
    """Return the program's name and where its API begins."""
    return IndexOut(
        name="kaged",
        version=__version__,
        openapi="/api/v1/openapi.json",
        status="/api/v1/status",
        events="/api/v1/events",
    )


async def healthz(
    response: Response, services: Annotated[HttpServices, Depends(services_of)]
) -> HealthOut:
    """Answer 200 while all is well and 503 while changes are refused. Open to everyone."""
    response.status_code, word = services.health()
    return HealthOut(status=word)


async def metrics(services: Annotated[HttpServices, Depends(services_of)]) -> Response:
    """Return all counters and gauges in the Prometheus text format."""
    return Response(services.metrics.exposition(), media_type=CONTENT_TYPE)
