"""`/api/v1/models`: the operator's models by alias, and whether they answer."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from kaged.serve.http.documented import documented
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.models import ApiModel, RequestBody
from kaged.serve.http.routes.dependencies import API_PREFIX
from kaged.serve.http.routes.subsystems import Models

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["models"])


class ModelCheckIn(RequestBody):
    """Which model to try."""

    alias: Annotated[str, Field(min_length=1, max_length=128)]


class ModelOut(ApiModel):
    """One alias of `[models]`."""

    alias: str
    model: Annotated[str | None, Field(description="Vendor and model; null when not usable.")]
    usable: bool
    base_url: str | None = None
    has_key: bool = False
    context_window: int | None = None
    traits: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    problems: tuple[dict[str, object], ...] = ()


class ModelsOut(ApiModel):
    """Every alias there is."""

    models: list[ModelOut]


class ModelFailureOut(ApiModel):
    """Why a model did not answer."""

    code: str
    message: str
    fix: str | None = None
    vendor_says: str | None = None


class ModelCheckOut(ApiModel):
    """How one small question went."""

    alias: str
    ok: bool
    model: str | None = None
    says: str | None = None
    context_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    took_ms: int
    error: ModelFailureOut | None = None


@router.get("/models", **documented("List the models"))
async def list_models(service: Models) -> ModelsOut:
    """Return every alias, those that cannot be used as well. Keys are never shown."""
    return ModelsOut.model_validate({"models": service.rows()})


@router.post("/models/check", **documented("Ask a model one small question"))
async def check_model(service: Models, body: ModelCheckIn) -> ModelCheckOut:
    """Ask it once, with few tokens; a model that does not answer is an answer, too."""
    return ModelCheckOut.model_validate(await service.check(body.alias))
