"""`/api/v1/doctor`: what protects the user, what does not, and what to do about it."""

from __future__ import annotations

from fastapi import APIRouter

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import DoctorOut, DoctorRowOut
from kaged.serve.http.routes.dependencies import API_PREFIX, Services

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["doctor"])


@router.get("/doctor", **documented("What protects you and what does not"))
async def examine(services: Services) -> DoctorOut:
    """Run all checks as this daemon sees them."""
    return DoctorOut(rows=[DoctorRowOut.of(row) for row in await services.subsystems.doctor()])
