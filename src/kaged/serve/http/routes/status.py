"""`/api/v1/status`: which daemon this is and its status."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI

from kaged.serve.http.documented import errors
from kaged.serve.http.models import StatusOut
from kaged.serve.http.services import HttpServices, services_of


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/status",
        status,
        methods=["GET"],
        tags=["status"],
        responses=errors(),
        summary="Which daemon this is and its status",
    )


async def status(services: Annotated[HttpServices, Depends(services_of)]) -> StatusOut:
    """Return version, addresses, uptime, projects and the health of the audit trail."""
    return services.status()
