"""`/api/v1/pipeline/traces/{request_id}`: what each policy saw, changed and decided in a call."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import Field

from kaged.base import iso_utc
from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel
from kaged.serve.http.routes.dependencies import API_PREFIX, Who
from kaged.serve.http.routes.subsystems import Traces

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["pipeline"])


class TraceStepOut(ApiModel):
    """What one policy did on one hook. Names of slots and fields, never their values."""

    at: str
    hook: str
    plugin: str
    mode: str
    saw: Annotated[list[str], Field(description="The filled slots that it could see.")]
    read: Annotated[list[str], Field(description="The slots that it looked at.")]
    changed: Annotated[
        list[str], Field(description="The parts of slots and payload that it changed.")
    ]
    refused: Annotated[
        list[str], Field(description="Its changes that were discarded, each with the reason.")
    ]
    outcome: Annotated[
        str,
        Field(
            description="`allowed`, `denied`, `denied (suppressed)`, `canceled`, or the class of "
            "the error."
        ),
    ]
    duration_ns: int
    code: Annotated[str, Field(description="The code of a denial or of a failure, else empty.")]
    reason: str
    description: str


class TraceOut(ApiModel):
    """What the policies did in one request, in the order in which they ended."""

    request_id: str
    steps: list[TraceStepOut]
    cut: Annotated[bool, Field(description="Whether there were more steps than are kept.")]


@router.get(
    "/pipeline/traces/{request_id}",
    **documented("Show what each policy did in a request", 404),
)
async def trace(
    traces: Traces,
    who: Who,
    request_id: Annotated[
        str,
        Path(min_length=1, max_length=120, description="As errors and audit rows name it."),
    ],
) -> TraceOut:
    """Return what each policy saw, changed and decided in a request of the caller's.

    The operator sees the requests of everybody.
    """
    found = await traces.read(request_id, who)
    steps = [
        TraceStepOut.model_validate({"at": iso_utc(row.at_ms), **row.step}) for row in found.steps
    ]
    return TraceOut(request_id=found.request_id, steps=steps, cut=found.cut)
