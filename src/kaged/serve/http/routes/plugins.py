"""`/api/v1/plugins`: install, enable, look at and call plugins."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import Body, Depends, FastAPI, Path, Query, Request

from kaged.base import KagedError
from kaged.serve.http.documented import errors
from kaged.serve.http.plugin_models import ConsentIn, PluginPathIn, PluginsOut
from kaged.serve.http.services import Asker, HttpServices, PluginDesk, asker_of, services_of

PLUGIN_NAME = r"^[a-z][a-z0-9-]{0,63}$"
METHOD_NAME = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,3}$"
MAX_PARAMETERS = 100


class PluginsAbsent(KagedError):
    """The application was built without a plugin host."""

    code: ClassVar[str] = "plugins_absent"


Who = Annotated[Asker, Depends(asker_of)]
Name = Annotated[str, Path(pattern=PLUGIN_NAME, description="The plugin's name.")]
Method = Annotated[str, Path(pattern=METHOD_NAME, max_length=256)]


async def _desk(services: Annotated[HttpServices, Depends(services_of)]) -> PluginDesk:
    if services.plugins is None:
        raise PluginsAbsent("This daemon runs without a plugin host.")
    return services.plugins


Desk = Annotated[PluginDesk, Depends(_desk)]


def add_routes(app: FastAPI, prefix: str) -> None:
    """Add these routes to the application, below `prefix`."""
    app.add_api_route(
        f"{prefix}/plugins",
        list_plugins,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(),
        summary="List the installed plugins",
    )
    app.add_api_route(
        f"{prefix}/plugins/preview",
        preview,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Look at a plugin before installing it",
    )
    app.add_api_route(
        f"{prefix}/plugins",
        install,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        status_code=201,
        summary="Install or upgrade a plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}",
        get,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(404),
        summary="Look at one plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}",
        uninstall,
        methods=["DELETE"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Uninstall a plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/enable",
        enable,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Enable and start a plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/disable",
        disable,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Stop and disable a plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/restart",
        restart,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Restart a plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/logs",
        logs,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(404),
        summary="Read a plugin's last words",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/knobs",
        knobs,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(404),
        summary="List a plugin's knobs",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/call/{{method}}",
        call_get,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(400, 404, 409, 502),
        summary="Call a plugin's method",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/call/{{method}}",
        call_post,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(400, 404, 409, 502),
        summary="Call a plugin's method",
    )


async def list_plugins(desk: Desk) -> PluginsOut:
    """Give every installed plugin with its state, also those disabled for this run."""
    return PluginsOut(items=[dict(one) for one in desk.list()])


async def preview(desk: Desk, body: PluginPathIn) -> dict[str, Any]:
    """Give what installing a directory would mean: capabilities in words, changes, the digest."""
    return dict(await desk.preview(body.path))


async def install(desk: Desk, who: Who, body: ConsentIn) -> dict[str, Any]:
    """Install exactly the files that were previewed; other files have another digest."""
    return dict(await desk.install(body.path, body.digest, who))


async def get(desk: Desk, name: Name) -> dict[str, Any]:
    """Give one plugin's state, process, capabilities and counters."""
    return dict(desk.get(name))


async def uninstall(
    desk: Desk, who: Who, name: Name, force: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Stop it and remove its files, its tables and its entries."""
    return dict(await desk.uninstall(name, force=force, who=who))


async def enable(desk: Desk, who: Who, name: Name) -> dict[str, Any]:
    """Write it into the enabled list and start it; the failure counter begins anew."""
    return dict(await desk.enable(name, who))


async def disable(desk: Desk, who: Who, name: Name) -> dict[str, Any]:
    """Take it out of the enabled list and stop it."""
    return dict(await desk.disable(name, who))


async def restart(desk: Desk, who: Who, name: Name) -> dict[str, Any]:
    """Stop and start it."""
    return dict(await desk.restart(name, who))


async def logs(desk: Desk, name: Name) -> dict[str, Any]:
    """Give the last fifty lines of its standard error."""
    return {"lines": list(desk.logs(name))}


async def knobs(desk: Desk, name: Name) -> dict[str, Any]:
    """Give everything a generic settings page needs, as the manifest declares it."""
    return dict(desk.knobs(name))


async def call_get(
    desk: Desk, who: Who, name: Name, method: Method, request: Request
) -> dict[str, Any]:
    """Call a method; query parameters are passed on as text."""
    params: dict[str, Any] = dict(list(request.query_params.items())[:MAX_PARAMETERS])
    return {"result": await desk.call(name, method, params, who)}


async def call_post(
    desk: Desk,
    who: Who,
    name: Name,
    method: Method,
    body: Annotated[dict[str, Any] | None, Body()] = None,
) -> dict[str, Any]:
    """Call a method; the body's members are its parameters."""
    return {"result": await desk.call(name, method, body or {}, who)}


__all__ = ["add_routes"]
