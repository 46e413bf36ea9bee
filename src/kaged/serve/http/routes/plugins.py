"""`/api/v1/plugins`: install, enable, look at and call plugins."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from fastapi import Body, Depends, FastAPI, Header, Path, Query, Request

from kaged.base import KagedError
from kaged.kernel.identity import Actor
from kaged.plugins.plugin_service import PluginService
from kaged.serve.http.documented import errors
from kaged.serve.http.errors import InvalidHttpRequest
from kaged.serve.http.plugin_models import (
    ApproveChangedFilesIn,
    ConsentAnswerIn,
    ConsentIn,
    ConsentsOut,
    KnobWriteIn,
    PluginPathIn,
    PluginsOut,
)
from kaged.serve.http.routes.projects import PROJECT_ID
from kaged.serve.http.services import HttpServices, actor_of, services_of
from kaged.wire.methods import is_method_name

PLUGIN_NAME = r"^[a-z][a-z0-9-]{0,63}$"
METHOD_NAME = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,3}$"
MAX_PARAMETERS = 100


class PluginsAbsent(KagedError):
    """The application was built without a plugin host."""

    code: ClassVar[str] = "plugins_absent"


Who = Annotated[Actor, Depends(actor_of)]
Name = Annotated[str, Path(pattern=PLUGIN_NAME, description="The plugin's name.")]
Knob = Annotated[str, Path(pattern=r"^[a-z][a-z0-9_]{0,63}$", description="The knob's name.")]
ConsentId = Annotated[str, Path(pattern=r"^consent_[A-Za-z0-9]{1,64}$")]


def _method_name(
    name: Name,
    # The pattern is for the API's description only: its own message would show it to people.
    method: Annotated[str, Path(max_length=256, json_schema_extra={"pattern": METHOD_NAME})],
) -> str:
    if not is_method_name(method):
        raise InvalidHttpRequest(
            f"{method[:64]!r} is not a method name: it needs two to four lower-case words joined "
            "by dots, such as echo.say.",
            fix=f"run `kaged plugin info {name}` to see the methods of {name}",
        )
    return method


Method = Annotated[str, Depends(_method_name)]
InSession = Annotated[
    str | None,
    Header(
        alias="X-Kaged-Session",
        max_length=120,
        description="The session that the call is made for; without it, the daemon itself calls.",
    ),
]


async def _service(services: Annotated[HttpServices, Depends(services_of)]) -> PluginService:
    if services.plugins is None:
        raise PluginsAbsent("This daemon runs without a plugin host.")
    await services.plugins.ready()
    return services.plugins


Service = Annotated[PluginService, Depends(_service)]


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
        summary="Read a plugin's recent stderr",
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
        f"{prefix}/plugins/{{name}}/knobs/{{knob}}",
        write_knob,
        methods=["PUT"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Set a knob for an agent",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/reload",
        reload,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409, 502),
        summary="Switch a running plugin to its changed files",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/renewal",
        preview_changed_files,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Look at the changed files of an installed plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/renewal",
        approve_changed_files,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Agree to the changed files of an installed plugin",
    )
    app.add_api_route(
        f"{prefix}/plugins/{{name}}/export",
        export,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(404, 409),
        summary="Write a plugin's tables into a file",
    )
    app.add_api_route(
        f"{prefix}/consents",
        consents,
        methods=["GET"],
        tags=["plugins"],
        responses=errors(),
        summary="List what projects ask of the operator",
    )
    app.add_api_route(
        f"{prefix}/consents/{{consent_id}}",
        answer_consent,
        methods=["POST"],
        tags=["plugins"],
        responses=errors(403, 404, 409, 502),
        summary="Answer a consent request",
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


async def list_plugins(service: Service) -> PluginsOut:
    """Return every installed plugin with its state, also those disabled for this run."""
    return PluginsOut(items=[dict(one) for one in service.list()])


async def preview(service: Service, body: PluginPathIn) -> dict[str, Any]:
    """Return what installing a directory would mean: capabilities in words, changes, the digest."""
    return dict(await service.preview(body.path))


async def install(service: Service, who: Who, body: ConsentIn) -> dict[str, Any]:
    """Install exactly the files that were previewed; other files have another digest."""
    return dict(await service.install(body.path, body.digest, who))


async def get(service: Service, name: Name) -> dict[str, Any]:
    """Return one plugin's state, process, capabilities and counters."""
    return dict(service.get(name))


async def uninstall(
    service: Service, who: Who, name: Name, force: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Stop it and remove its files, its tables and its entries."""
    return dict(await service.uninstall(name, force=force, who=who))


async def enable(service: Service, who: Who, name: Name) -> dict[str, Any]:
    """Write it into the enabled list and start it; the failure counter begins anew."""
    return dict(await service.enable(name, who))


async def disable(service: Service, who: Who, name: Name) -> dict[str, Any]:
    """Take it out of the enabled list and stop it."""
    return dict(await service.disable(name, who))


async def restart(service: Service, who: Who, name: Name) -> dict[str, Any]:
    """Stop and start it."""
    return dict(await service.restart(name, who))


async def logs(service: Service, name: Name) -> dict[str, Any]:
    """Return the last fifty lines of its standard error."""
    return {"lines": list(service.logs(name))}


async def knobs(
    service: Service,
    name: Name,
    project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None,
    agent_path: Annotated[str, Query(min_length=1, max_length=1024)] = "primary",
) -> dict[str, Any]:
    """Return everything a generic settings page needs; with a project also the values in force."""
    if project_id is None:
        return dict(service.knobs(name))
    return dict(service.knob_values(name, project_id, agent_path))


async def write_knob(
    service: Service, who: Who, name: Name, knob: Knob, body: KnobWriteIn
) -> dict[str, Any]:
    """Write a value into the project file, comments kept, and hand it to the running plugin."""
    change = await service.write_knob(name, body.project_id, body.agent_path, knob, body.value, who)
    return dict(change)


async def reload(service: Service, who: Who, name: Name) -> dict[str, Any]:
    """Start the new files beside the old process and switch; a failure keeps the old one."""
    return dict(await service.reload(name, who))


async def preview_changed_files(service: Service, name: Name) -> dict[str, Any]:
    """Return what agreeing to an installed plugin's files as they are now would mean."""
    return dict(await service.preview_changed_files(name))


async def approve_changed_files(
    service: Service, who: Who, name: Name, body: ApproveChangedFilesIn
) -> dict[str, Any]:
    """Approve the files with this digest, which puts a changed plugin into use again."""
    return dict(await service.renew(name, body.digest, who))


async def export(service: Service, who: Who, name: Name, body: PluginPathIn) -> dict[str, Any]:
    """Write its tables as SQL that any SQLite reads, into a new file on the daemon's machine."""
    return dict(await service.export(name, body.path, who))


async def consents(
    service: Service, project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None
) -> ConsentsOut:
    """Return the open questions of all projects or of one, and those answered with no."""
    return ConsentsOut(items=[dict(one) for one in await service.consents(project_id)])


async def answer_consent(
    service: Service, who: Who, consent_id: ConsentId, body: ConsentAnswerIn
) -> dict[str, Any]:
    """Answer yes or no. A yes to fetching leads to the next question; a no changes nothing."""
    return dict(
        await service.answer_consent(
            consent_id, allowed=body.allowed, digest=body.digest, path=body.path, who=who
        )
    )


async def call_get(
    service: Service,
    who: Who,
    name: Name,
    method: Method,
    request: Request,
    session: InSession = None,
) -> dict[str, Any]:
    """Call a method; query parameters are passed on as text."""
    params: dict[str, Any] = dict(list(request.query_params.items())[:MAX_PARAMETERS])
    return {"result": await service.call(name, method, params, who, session_id=session)}


async def call_post(
    service: Service,
    who: Who,
    name: Name,
    method: Method,
    body: Annotated[dict[str, Any] | None, Body()] = None,
    session: InSession = None,
) -> dict[str, Any]:
    """Call a method; the body's members are its parameters."""
    return {"result": await service.call(name, method, body or {}, who, session_id=session)}
