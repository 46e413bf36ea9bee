"""`/api/v1/doctor`: what protects the user, what does not, and what to do about it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI

from kaged.serve.http.documented import errors
from kaged.serve.http.models import DoctorOut, DoctorRowOut
from kaged.serve.http.services import HttpServices, services_of


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/doctor",
        examine,
        methods=["GET"],
        tags=["doctor"],
        responses=errors(),
        summary="What protects you and what does not",
    )


async def examine(services: Annotated[HttpServices, Depends(services_of)]) -> DoctorOut:
    """Run all checks as this daemon sees them."""
    rows = await services.doctor()
    return DoctorOut(
        rows=[
            DoctorRowOut(
                id=row.id, status=row.status.value, what=row.what, cause=row.cause, fix=row.fix
            )
            for row in rows
        ]
    )
