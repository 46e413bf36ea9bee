"""`/api/v1/plugins`: install, enable, look at and call plugins."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request

from kaged.serve.http.documented import documented
from kaged.serve.http.errors import InvalidHttpRequest
from kaged.serve.http.late_route import LateRoute
from kaged.serve.http.plugin_models import (
    ApproveChangedFilesIn,
    ConsentAnswerIn,
    ConsentIn,
    ConsentsOut,
    KnobWriteIn,
    PluginPathIn,
    PluginsOut,
)
from kaged.serve.http.routes.dependencies import API_PREFIX, PROJECT_ID, Who
from kaged.serve.http.routes.subsystems import Plugins
from kaged.wire.methods import is_method_name

PLUGIN_NAME = r"^[a-z][a-z0-9-]{0,63}$"
METHOD_NAME = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,3}$"
MAX_PARAMETERS = 100

router = APIRouter(route_class=LateRoute, prefix=API_PREFIX, tags=["plugins"])


Name = Annotated[str, Path(pattern=PLUGIN_NAME, description="The plugin's name.")]
KeptName = Annotated[
    str,
    Path(
        pattern=rf"(?:{PLUGIN_NAME})|^~[0-9a-f]{{16}}$",
        description="The name of the plugins, or ~ID of a record that cannot be read.",
    ),
]
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


@router.get("/plugins", **documented("List the installed plugins"))
async def list_plugins(service: Plugins) -> PluginsOut:
    """Return every installed plugin with its state, also those disabled for this run.

    `kept` is what `keep_data` has left of uninstalled ones.
    """
    return PluginsOut(items=list(service.list()), kept=list(await service.kept()))


@router.post("/plugins/preview", **documented("Look at a plugin before installing it", 404, 409))
async def preview(service: Plugins, body: PluginPathIn) -> dict[str, Any]:
    """Return what installing a directory would mean: capabilities in words, changes, the digest."""
    return await service.preview(body.path)


@router.post("/plugins", **documented("Install or upgrade a plugin", 404, 409), status_code=201)
async def install(service: Plugins, who: Who, body: ConsentIn) -> dict[str, Any]:
    """Install exactly the files that were previewed; other files have another digest."""
    return await service.install(body.path, body.digest, who)


@router.get("/plugins/{name}", **documented("Look at one plugin", 404))
async def get(service: Plugins, name: Name) -> dict[str, Any]:
    """Return one plugin's state, process, capabilities and counters."""
    return service.get(name)


@router.delete("/plugins/{name}", **documented("Uninstall a plugin", 404, 409))
async def uninstall(
    service: Plugins,
    who: Who,
    name: Name,
    force: Annotated[bool, Query()] = False,
    keep_data: Annotated[bool, Query()] = False,
) -> dict[str, Any]:
    """Stop it and remove its files, its tables and its entries.

    With `keep_data` its tables, its data folder and its settings are kept for the very same files.
    """
    return await service.uninstall(name, force=force, keep_data=keep_data, who=who)


@router.delete("/plugins/{name}/kept", **documented("Remove what was kept of a plugin", 404))
async def forget(service: Plugins, who: Who, name: KeptName) -> dict[str, Any]:
    """Remove for good what `keep_data` has left of uninstalled plugins of this name.

    `~ID` is what is left beside a record that cannot be read, as doctor's `plugins.kept` names it.
    """
    return await service.forget(name, who)


@router.post("/plugins/{name}/enable", **documented("Enable and start a plugin", 404, 409))
async def enable(service: Plugins, who: Who, name: Name) -> dict[str, Any]:
    """Write it into the enabled list and start it; the failure counter begins anew."""
    return await service.enable(name, who)


@router.post("/plugins/{name}/disable", **documented("Stop and disable a plugin", 404, 409))
async def disable(service: Plugins, who: Who, name: Name) -> dict[str, Any]:
    """Take it out of the enabled list and stop it."""
    return await service.disable(name, who)


@router.post("/plugins/{name}/restart", **documented("Restart a plugin", 404, 409))
async def restart(service: Plugins, who: Who, name: Name) -> dict[str, Any]:
    """Stop and start it."""
    return await service.restart(name, who)


@router.get("/plugins/{name}/logs", **documented("Read a plugin's recent stderr", 404))
async def logs(service: Plugins, name: Name) -> dict[str, Any]:
    """Return the last fifty lines of its standard error."""
    return {"lines": list(service.logs(name))}


@router.get("/plugins/{name}/knobs", **documented("List a plugin's knobs", 404))
async def knobs(
    service: Plugins,
    name: Name,
    project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None,
    agent_path: Annotated[str, Query(min_length=1, max_length=1024)] = "primary",
) -> dict[str, Any]:
    """Return everything a generic settings page needs; with a project also the values in force."""
    if project_id is None:
        return service.knobs(name)
    return service.knob_values(name, project_id, agent_path)


@router.put("/plugins/{name}/knobs/{knob}", **documented("Set a knob for an agent", 404, 409))
async def write_knob(
    service: Plugins, who: Who, name: Name, knob: Knob, body: KnobWriteIn
) -> dict[str, Any]:
    """Write a value into the project file, comments kept, and hand it to the running plugin."""
    return await service.write_knob(name, body.project_id, body.agent_path, knob, body.value, who)


@router.post(
    "/plugins/{name}/reload",
    **documented("Switch a running plugin to its changed files", 404, 409, 502),
)
async def reload(service: Plugins, who: Who, name: Name) -> dict[str, Any]:
    """Start the new files beside the old process and switch; a failure keeps the old one."""
    return await service.reload(name, who)


@router.get(
    "/plugins/{name}/renewal",
    **documented("Look at the changed files of an installed plugin", 404, 409),
)
async def preview_changed_files(service: Plugins, name: Name) -> dict[str, Any]:
    """Return what agreeing to an installed plugin's files as they are now would mean."""
    return await service.preview_changed_files(name)


@router.post(
    "/plugins/{name}/renewal",
    **documented("Agree to the changed files of an installed plugin", 404, 409),
)
async def approve_changed_files(
    service: Plugins, who: Who, name: Name, body: ApproveChangedFilesIn
) -> dict[str, Any]:
    """Approve the files with this digest, which puts a changed plugin into use again."""
    return await service.renew(name, body.digest, who)


@router.post(
    "/plugins/{name}/export", **documented("Write a plugin's tables into a file", 404, 409)
)
async def export(service: Plugins, who: Who, name: Name, body: PluginPathIn) -> dict[str, Any]:
    """Write its tables as SQL that any SQLite reads, into a new file on the daemon's machine."""
    return await service.export(name, body.path, who)


@router.get("/consents", **documented("List what projects ask of the operator"))
async def consents(
    service: Plugins, project_id: Annotated[str | None, Query(pattern=PROJECT_ID)] = None
) -> ConsentsOut:
    """Return the open questions of all projects or of one, and those answered with no."""
    return ConsentsOut(items=list(await service.consents(project_id)))


@router.post("/consents/{consent_id}", **documented("Answer a consent request", 403, 404, 409, 502))
async def answer_consent(
    service: Plugins, who: Who, consent_id: ConsentId, body: ConsentAnswerIn
) -> dict[str, Any]:
    """Answer yes or no. A yes to fetching leads to the next question; a no changes nothing."""
    return await service.answer_consent(
        consent_id, allowed=body.allowed, digest=body.digest, path=body.path, who=who
    )


@router.get(
    "/plugins/{name}/call/{method}", **documented("Call a plugin's method", 400, 404, 409, 502)
)
async def call_get(
    service: Plugins,
    who: Who,
    name: Name,
    method: Method,
    request: Request,
    session: InSession = None,
) -> dict[str, Any]:
    """Call a method; query parameters are passed on as text."""
    params: dict[str, Any] = dict(list(request.query_params.items())[:MAX_PARAMETERS])
    return {"result": await service.call(name, method, params, who, session_id=session)}


@router.post(
    "/plugins/{name}/call/{method}", **documented("Call a plugin's method", 400, 404, 409, 502)
)
async def call_post(
    service: Plugins,
    who: Who,
    name: Name,
    method: Method,
    body: Annotated[dict[str, Any] | None, Body()] = None,
    session: InSession = None,
) -> dict[str, Any]:
    """Call a method; the body's members are its parameters."""
    return {"result": await service.call(name, method, body or {}, who, session_id=session)}
