from __future__ import annotations

from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query
from fastapi.exceptions import FastAPIError
from fastapi.routing import APIRoute

from kaged.serve.http.late_route import LateRoute


def app_of(route_class: type[APIRoute]) -> FastAPI:
    router = APIRouter(prefix="/x", route_class=route_class)

    @router.post("/{number}", status_code=201, summary="Add")
    async def add(number: int, more: Annotated[int, Query(ge=0)] = 1) -> dict[str, int]:
        """Add two numbers."""
        return {"sum": number + more}

    app = FastAPI()
    app.router.routes.extend(router.routes)
    return app


def late_route(app: FastAPI) -> LateRoute:
    (found,) = [one for one in app.routes if isinstance(one, LateRoute)]
    return found


def is_built(route: LateRoute) -> bool:
    return "dependant" in vars(route)


async def ask(app: FastAPI, method: str, path: str) -> Any:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://kaged") as client:
        got = await client.request(method, path)
        return got.status_code, got.json(), got.headers.get("allow")


async def test_a_late_route_answers_and_refuses_as_others_do() -> None:
    late, usual = app_of(LateRoute), app_of(APIRoute)
    for method, path in [
        ("POST", "/x/2?more=3"),
        ("POST", "/x/2"),
        ("POST", "/x/two"),
        ("POST", "/x/2?more=-1"),
        ("GET", "/x/2"),
        ("POST", "/y"),
    ]:
        assert await ask(late, method, path) == await ask(usual, method, path)


async def test_it_is_built_by_the_first_request_for_it_and_by_no_other() -> None:
    app = app_of(LateRoute)
    route = late_route(app)
    await ask(app, "POST", "/y")
    await ask(app, "GET", "/x/2")
    assert not is_built(route)
    await ask(app, "POST", "/x/2")
    assert is_built(route)


def test_the_document_builds_it_and_says_the_same() -> None:
    late, usual = app_of(LateRoute), app_of(APIRoute)
    assert late.openapi() == usual.openapi()
    assert is_built(late_route(late))


def test_what_no_route_has_is_missing_from_a_late_one_too() -> None:
    route = late_route(app_of(LateRoute))
    for _ in range(2):
        with pytest.raises(AttributeError, match="has no attribute 'colour'"):
            _ = route.colour


def test_a_route_that_cannot_be_built_says_why_each_time() -> None:
    def broken() -> None:
        """Do nothing."""

    route = LateRoute("/x", broken, response_model=object.__new__)
    for _ in range(2):
        with pytest.raises(FastAPIError, match="Invalid args for response field"):
            _ = route.app  # what serves a request
