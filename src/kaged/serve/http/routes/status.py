"""`/api/v1/status`: which daemon this is and its status."""

from __future__ import annotations

from fastapi import APIRouter

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import StatusOut
from kaged.serve.http.routes.dependencies import API_PREFIX, Services

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["status"])


@router.get("/status", **documented("Which daemon this is and its status"))
async def status(services: Services) -> StatusOut:
    """Return version, addresses, uptime, projects and the health of the audit trail."""
    return services.subsystems.status()
